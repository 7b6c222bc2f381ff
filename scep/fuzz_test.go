package scep

import (
	"bytes"
	"encoding/base64"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	casn1 "golang.org/x/crypto/cryptobyte/asn1"
)

func newBody(b []byte) io.Reader { return bytes.NewReader(b) }

// Whatever comes, the answer is one of the client's own fault, and nobody gets a
// certificate who does not know the challenge.
func FuzzPKIOperation(f *testing.F) {
	w := newWorld(f)
	s := w.served(nil)
	d := newDevice(f, s, ecKey())
	for _, d.kind = range []string{"17", "19", "20", "21", "22", "99"} {
		f.Add(d.message(csr(f, d.key, "wrong", "a.example.com")))
		f.Add(d.message(issuerAndSubject(d.cert)))
	}
	f.Add(d.sign([]byte{0x30, 0x80}))
	f.Fuzz(func(t *testing.T, in []byte) {
		res := do(s, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/scep/devices?operation=PKIOperation", bytes.NewReader(in)))
		if res.Code != http.StatusOK && res.Code != http.StatusBadRequest && res.Code != http.StatusRequestEntityTooLarge {
			t.Fatalf("HTTP %d", res.Code)
		}
		if n := len(w.ca.Store.Records()); n != 1 {
			t.Fatalf("%d certificates", n)
		}
	})
}

// A message in a query is read, however it is spelled, as the one that it is.
func FuzzQuery(f *testing.F) {
	w := newWorld(f)
	s := w.served(nil)
	d := newDevice(f, s, ecKey())
	der := d.message(csr(f, d.key, "wrong", "a.example.com"))
	std := base64.StdEncoding.EncodeToString(der)
	for _, text := range []string{std, url.QueryEscape(std), base64.RawURLEncoding.EncodeToString(der), std[:40] + "%0A" + std[40:], "%zz", "AA AA", "="} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		operation, message := query("operation=PKIOperation&message=" + text)
		if operation == "PKIOperation" && len(message) > len(text) {
			t.Fatalf("%d characters out of %d", len(message), len(text))
		}
		m, raw, err := decodeQuery(message)
		if err != nil {
			if m != nil {
				t.Fatal("a message and an error")
			}
			return
		}
		again, same, err := decodeQuery(url.QueryEscape(base64.StdEncoding.EncodeToString(raw)))
		if err != nil || !bytes.Equal(same, raw) || again.transaction != m.transaction || again.kind != m.kind {
			t.Fatalf("read again: %v", err)
		}
	})
}

// A challenge is found, or it is said why not; and it is no longer than it may be.
func FuzzChallenge(f *testing.F) {
	f.Add(csr(f, ecKey(), goodChallenge, "a.example.com"))
	f.Add(csr(f, ecKey(), "", "a.example.com"))
	f.Add(csrWith(f, ecKey(), []attribute{{tagBMP, []byte{0, 'a'}}, {tagT61, []byte{0xe4}}}, "a.example.com"))
	f.Add(csrWith(f, ecKey(), []attribute{{casn1.INTEGER, []byte{1}}}, "a.example.com"))
	f.Fuzz(func(t *testing.T, in []byte) {
		req, err := parseCSR(in)
		if err != nil {
			if err != badMessageCheck { //nolint:errorlint // the very same, whatever was wrong
				t.Fatal(err)
			}
			return
		}
		challenge, err := challengeOf(req)
		if err != nil {
			if fail, ok := failureOf(err); !ok || fail != badRequest || challenge != "" {
				t.Fatalf("%q, %v", challenge, err)
			}
			return
		}
		if len(challenge) > 3*maxChallenge {
			t.Fatalf("%d octets", len(challenge))
		}
	})
}
