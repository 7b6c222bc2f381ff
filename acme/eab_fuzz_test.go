package acme

import (
	"bytes"
	"crypto/hmac"
	"encoding/base64"
	"encoding/json"
	"testing"
)

// FuzzBinding: whatever is taken for a binding names one key, one algorithm and
// one account key, and says the same to another reader of its bytes; and no MAC
// that was not made by the key passes.
func FuzzBinding(f *testing.F) {
	const at = "https://ca.example/acme/new-account"
	jwk := []byte(`{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}`)
	key, err := parseKey(jwk)
	if err != nil {
		f.Fatal(err)
	}
	tp, err := thumbprint(key)
	if err != nil {
		f.Fatal(err)
	}
	secret := bytes.Repeat([]byte{1}, decoyMACSize)
	made := func(header string) []byte {
		input := base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString(jwk)
		h := hmac.New(macs["HS256"], secret)
		h.Write([]byte(input))
		p, rest, _ := bytes.Cut([]byte(input), []byte("."))
		b, err := json.Marshal(map[string]string{"protected": string(p), "payload": string(rest), "signature": base64.RawURLEncoding.EncodeToString(h.Sum(nil))})
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	for _, header := range []string{
		`{"alg":"HS256","kid":"a","url":"` + at + `"}`, `{"alg":"HS256","kid":"a","url":"` + at + `","nonce":"x"}`, `{"alg":"none","kid":"a","url":"` + at + `"}`,
		`{"alg":"HS256","kid":"a","kid":"b","url":"` + at + `"}`, `{"alg":"HS512","kid":"a","url":"` + at + `"}`, `{}`, `[]`,
	} {
		f.Add(made(header))
	}
	f.Add([]byte(`{"protected":"e30","payload":"","signature":""}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseBinding(b, at, tp)
		if err != nil {
			if translate(err).Type != Malformed {
				t.Errorf("%q: %v", b, err)
			}
			return
		}
		var again struct{ Protected, Payload, Signature string }
		var header struct{ Alg, Kid, URL, Nonce string }
		if err := json.Unmarshal(b, &again); err != nil {
			t.Fatal(err)
		}
		raw, err := base64.RawURLEncoding.DecodeString(again.Protected)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(raw, &header); err != nil || header.Alg != got.alg || header.Kid != got.kid || header.URL != at || header.Nonce != "" {
			t.Errorf("%q: %+v, another reads %+v, %v", b, got, header, err)
		}
		h := hmac.New(macs[got.alg], secret)
		h.Write([]byte(again.Protected + "." + again.Payload))
		if right := hmac.Equal(h.Sum(nil), got.mac); right != got.holds(secret) {
			t.Errorf("%q: the MAC holds: %t; want %t", b, !right, right)
		}
		if got.holds(secret[:len(secret)-1]) || got.holds(nil) {
			t.Errorf("%q holds by another key", b)
		}
	})
}
