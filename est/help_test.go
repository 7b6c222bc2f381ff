package est

import (
	"bufio"
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/cms"
)

// overConnection sends a request over a connection that is already there, and
// returns the status.
func overConnection(t *testing.T, conn *tls.Conn, req *http.Request) int {
	t.Helper()
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return res.StatusCode
}

func catestSigner(t *testing.T, c *tls.Certificate) crypto.Signer {
	t.Helper()
	s, ok := c.PrivateKey.(crypto.Signer)
	if !ok {
		t.Fatal("no signer")
	}
	return s
}

func samePublic(t *testing.T, public crypto.PublicKey, key any) bool {
	t.Helper()
	s, ok := key.(interface {
		Public() crypto.PublicKey
	})
	if !ok {
		t.Fatalf("a key of type %T", key)
	}
	a, errA := x509.MarshalPKIXPublicKey(public)
	b, errB := x509.MarshalPKIXPublicKey(s.Public())
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

type decrypter struct{ key *rsa.PrivateKey }

func (d decrypter) Decrypt(_ context.Context, ciphertext []byte, opts crypto.DecrypterOpts) ([]byte, error) {
	return d.key.Decrypt(rand.Reader, ciphertext, opts)
}

// unseal opens a sealed key as its device does, and looks at who signed it.
func unseal(t *testing.T, text []byte, device *tls.Certificate, signer *x509.Certificate) any {
	t.Helper()
	der, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := cms.ParseEnvelopedData(der)
	if err != nil {
		t.Fatal(err)
	}
	key, ok := device.PrivateKey.(*rsa.PrivateKey)
	if !ok || len(sealed.Transports) != 1 || !sealed.ContentType.Equal(cms.OIDSignedData) {
		t.Fatalf("%d recipients of %v", len(sealed.Transports), sealed.ContentType)
	}
	inner, err := sealed.Open(t.Context(), sealed.Transports[0], decrypter{key})
	if err != nil {
		t.Fatal(err)
	}
	info, err := asn1.Marshal(struct {
		Type    asn1.ObjectIdentifier
		Content asn1.RawValue
	}{cms.OIDSignedData, asn1.RawValue{Class: asn1.ClassContextSpecific, IsCompound: true, Bytes: inner}})
	if err != nil {
		t.Fatal(err)
	}
	signed, err := cms.ParseSignedData(info)
	if err != nil {
		t.Fatal(err)
	}
	if len(signed.Signers) != 1 || !signed.ContentType.Equal(oidKeyPackage) {
		t.Fatalf("%d signers of %v", len(signed.Signers), signed.ContentType)
	}
	if err := signed.Signers[0].Verify(signer.PublicKey, false); err != nil {
		t.Fatal(err)
	}
	var pack []asn1.RawValue
	if _, err := asn1.Unmarshal(signed.Content, &pack); err != nil || len(pack) != 1 {
		t.Fatalf("%d keys: %v", len(pack), err)
	}
	out, err := x509.ParsePKCS8PrivateKey(pack[0].FullBytes)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
