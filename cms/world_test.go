package cms

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// An owner has a key and a certificate that it signed itself.
type owner struct {
	key  crypto.Signer
	cert *x509.Certificate
}

var rsaOwner = sync.OnceValue(func() owner {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	return certified("rsa", 0x1001, key, err)
})

var otherRSAOwner = sync.OnceValue(func() owner {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	return certified("other", 0x1002, key, err)
})

var ecOwner = sync.OnceValue(func() owner {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return certified("ec", 0x1003, key, err)
})

func certified(name string, serial int64, key crypto.Signer, err error) owner {
	if err != nil {
		panic(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, SubjectKeyId: []byte(name),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		panic(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return owner{key, cert}
}

func (o owner) signer() Signer { return Signer{Certificate: o.cert, Key: o.key} }

// Decrypt implements Decrypter.
func (o owner) Decrypt(_ context.Context, ciphertext []byte, opts crypto.DecrypterOpts) ([]byte, error) {
	return o.key.(crypto.Decrypter).Decrypt(rand.Reader, ciphertext, opts)
}

// files writes the certificate and the key for openssl.
func (o owner) files(t testing.TB) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	der, err := x509.MarshalPKCS8PrivateKey(o.key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: o.cert.Raw}, key: {Type: "PRIVATE KEY", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// openssl runs openssl with in on its input, and returns its output.
func openssl(t testing.TB, in []byte, args ...string) ([]byte, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "openssl", args...)
	cmd.Stdin = bytes.NewReader(in)
	return cmd.Output()
}

func mustOpenssl(t testing.TB, in []byte, args ...string) []byte {
	t.Helper()
	out, err := openssl(t, in, args...)
	if err != nil {
		var exit *exec.ExitError
		errors.As(err, &exit)
		t.Fatalf("openssl %v: %v\n%s", args, err, exit.Stderr)
	}
	return out
}
