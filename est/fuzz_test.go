package est

import (
	"bytes"
	"crypto/x509"
	"net/http"
	"testing"

	"github.com/secsy-pki/secsy-pki/ca/catest"
)

// Whatever comes is a request whose signature holds, or the client's own fault.
func FuzzBody(f *testing.F) {
	key := catest.NewKey(f)
	der := csrWith(f, key, "a.example.com", challenge("code"))
	f.Add(encode(der, true))
	f.Add(encode(der, false))
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\n"))
	f.Add([]byte(" \t\r\n="))
	f.Fuzz(func(t *testing.T, body []byte) {
		v, err := parse(body)
		if err == nil {
			if again, err := decode(encode(v.csr.Raw, v.lines)); err != nil || !bytes.Equal(again, v.csr.Raw) {
				t.Fatalf("another request: %v", err)
			}
			return
		}
		s := Server{}
		if said := s.said(t.Context(), err); said.code != http.StatusBadRequest && said.code != http.StatusRequestEntityTooLarge {
			t.Fatalf("HTTP %d for %v", said.code, err)
		}
	})
}

// Attributes of any form are read or refused.
func FuzzAttributes(f *testing.F) {
	key := catest.NewKey(f)
	for _, a := range []string{"", "code"} {
		f.Add(csrWith(f, key, "a.example.com", challenge(a)))
	}
	f.Fuzz(func(t *testing.T, info []byte) {
		v := wish{csr: &x509.CertificateRequest{RawTBSCertificateRequest: info}}
		if err := v.readAttributes(); err == nil && len(v.challenge) > 2*maxChallenge {
			t.Fatalf("a challengePassword of %d octets", len(v.challenge))
		}
	})
}

func FuzzForwarded(f *testing.F) {
	f.Add(":AAAA:", ":AAAA:, :AAAA:")
	f.Fuzz(func(t *testing.T, leaf, above string) {
		chain, err := forwardedChain(http.Header{"Client-Cert": {leaf}, "Client-Cert-Chain": {above}})
		if err != nil && chain != nil || len(chain) > maxChain {
			t.Fatalf("%d certificates, %v", len(chain), err)
		}
	})
}
