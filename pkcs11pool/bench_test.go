package pkcs11pool

import (
	"testing"

	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

// BenchmarkBorrow is what a session costs that nobody else wants and nothing is
// done with: borrowed from a real token, and given back.
func BenchmarkBorrow(b *testing.B) {
	token := hsm.Take(b)
	p, err := Open(b.Context(), Config{Tokens: []TokenConfig{{
		Module: token.Module, Label: token.Label, PIN: func() ([]byte, error) { return []byte(pkcs11test.PIN), nil },
	}}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Close() })
	j := &job{op: "nothing", run: func(*conn) error { return nil }}
	b.ReportAllocs()
	for b.Loop() {
		if err := p.do(b.Context(), j); err != nil {
			b.Fatal(err)
		}
	}
}
