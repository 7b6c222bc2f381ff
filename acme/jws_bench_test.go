package acme

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	jose "github.com/go-jose/go-jose/v4"
)

// signedOrder is a newOrder of about so many octets, and who signed it.
func signedOrder(b testing.TB, names, label int) ([]byte, *jose.JSONWebKey) {
	b.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: key}, (&jose.SignerOptions{}).
		WithHeader("kid", "https://ca.example/acme/account/0123456789abcdef0123456789abcdef").
		WithHeader("url", "https://ca.example/acme/new-order").WithHeader("nonce", strings.Repeat("n", nonceLength)))
	if err != nil {
		b.Fatal(err)
	}
	ids := make([]map[string]string, 0, names)
	for i := range names {
		ids = append(ids, map[string]string{"type": "dns", "value": fmt.Sprintf("%d.%s.example", i, strings.Repeat("a", label))})
	}
	payload, err := json.Marshal(map[string]any{"identifiers": ids})
	if err != nil {
		b.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		b.Fatal(err)
	}
	return []byte(signed.FullSerialize()), &jose.JSONWebKey{Key: key.Public()}
}

// What a request costs up to the moment at which it is known what it says: read,
// the signature verified, the payload decoded.
func BenchmarkParseMessage(b *testing.B) {
	for name, size := range map[string]struct{ names, label int }{"small": {1, 10}, "60k": {400, 75}} {
		raw, key := signedOrder(b, size.names, size.label)
		b.Run(name+"/parse", func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := parseMessage(raw); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/whole", func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			b.ReportAllocs()
			for b.Loop() {
				m, err := parseMessage(raw)
				if err != nil {
					b.Fatal(err)
				}
				payload, err := m.verify(key)
				if err != nil {
					b.Fatal(err)
				}
				var body newOrderBody
				if err := (request{payload: payload}).decode(&body); err != nil || len(body.Identifiers) != size.names {
					b.Fatal(err)
				}
			}
		})
	}
}

// The key of an account, as its row has it.
func BenchmarkAccountKey(b *testing.B) {
	_, key := signedOrder(b, 1, 1)
	jwk, err := canonicalKey(key)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseKey(jwk); err != nil {
			b.Fatal(err)
		}
	}
}
