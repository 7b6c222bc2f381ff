package integration

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/cms"
)

// A message is one to read, by us and by somebody else.
type message struct {
	word  string // "verify" or "open"
	bytes []byte
	whole bool // as it was made
}

// Whatever we and github.com/smallstep/pkcs7 both take, we take for the same; and
// each reads what the other has no reason to refuse. Messages are our own and
// those of openssl, as they are and with a few octets changed or cut off.
func TestOtherReadersOfCMSReadTheSame(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	bin := filepath.Join(dir, "pkcs7")
	goIn(t, "build", "-o", bin, "./pkcs7")
	cert, key := selfSigned(t)
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, b := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert.Raw}, keyFile: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	content := bytes.Repeat([]byte("content "), 20)
	messages := changed(wholeMessages(t, content, cert, key, certFile, keyFile), 300)

	var in strings.Builder
	for _, m := range messages {
		fmt.Fprintf(&in, "%s %x\n", m.word, m.bytes)
	}
	cmd := exec.CommandContext(t.Context(), bin, certFile, keyFile)
	cmd.Stdin = strings.NewReader(in.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	theirs := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(theirs) != len(messages) {
		t.Fatalf("%d answers to %d messages", len(theirs), len(messages))
	}
	counts := map[string]int{}
	for i, m := range messages {
		ours := "no"
		if got, err := readCMS(t.Context(), m, cert, key); err == nil {
			ours = "ok " + hex.EncodeToString(got)
		}
		word := func(s string) string { return strings.Fields(s)[0] }
		counts["ours "+word(ours)+", theirs "+word(theirs[i])]++
		switch {
		case m.whole && (ours != "ok "+hex.EncodeToString(content) || theirs[i] != ours):
			t.Errorf("a message as it was made: ours %.80s, theirs %.80s\n%x", ours, theirs[i], m.bytes)
		case word(ours) == "ok" && word(theirs[i]) == "ok" && ours != theirs[i]:
			t.Errorf("ours %s, theirs %s\n%x", ours, theirs[i], m.bytes)
		case m.word == "verify" && word(ours) == "ok" && ours != "ok "+hex.EncodeToString(content):
			t.Errorf("verified, and never signed: %x", m.bytes)
		}
	}
	t.Log(counts)
}

// wholeMessages are messages that everybody reads.
func wholeMessages(t *testing.T, content []byte, cert *x509.Certificate, key *rsa.PrivateKey, certFile, keyFile string) []message {
	t.Helper()
	var out []message
	add := func(word string, der []byte, err error) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, message{word, der, true})
	}
	signed, err := cms.Signer{Certificate: cert, Key: key}.Sign(cms.OIDData, content, nil, [][]byte{cert.Raw})
	add("verify", signed, err)
	for _, c := range []cms.Cipher{cms.AES128CBC, cms.AES256CBC} {
		for _, oaep := range []crypto.Hash{0, crypto.SHA256} {
			sealed, err := cms.Seal(cms.OIDData, content, c, cms.TransportTo{Certificate: cert, OAEP: oaep})
			add("open", sealed, err)
		}
	}
	for _, args := range []string{"-sign -nodetach -signer CERT -inkey KEY", "-sign -nodetach -stream -signer CERT -inkey KEY", "-encrypt -aes-128-cbc -recip CERT", "-encrypt -aes-256-cbc -stream -recip CERT"} {
		word := "open"
		if strings.HasPrefix(args, "-sign") {
			word = "verify"
		}
		args = strings.NewReplacer("CERT", certFile, "KEY", keyFile).Replace(args)
		cmd := exec.CommandContext(t.Context(), "openssl", append([]string{"cms", "-binary", "-outform", "DER"}, strings.Fields(args)...)...)
		cmd.Stdin = bytes.NewReader(content)
		der, err := cmd.Output()
		add(word, der, err)
	}
	return out
}

// changed adds n changed ones to each message.
func changed(whole []message, n int) []message {
	r := mathrand.New(mathrand.NewPCG(7, 8))
	out := slices.Clone(whole)
	for _, m := range whole {
		for range n {
			b := bytes.Clone(m.bytes)
			for range 1 + r.IntN(3) {
				b[r.IntN(len(b))] = byte(r.Uint32())
			}
			if r.IntN(10) == 0 {
				b = b[:r.IntN(len(b))]
			}
			out = append(out, message{m.word, b, false})
		}
	}
	return out
}

type inMemory struct{ *rsa.PrivateKey }

func (k inMemory) Decrypt(_ context.Context, ciphertext []byte, opts crypto.DecrypterOpts) ([]byte, error) {
	return k.PrivateKey.Decrypt(rand.Reader, ciphertext, opts)
}

func readCMS(ctx context.Context, m message, cert *x509.Certificate, key *rsa.PrivateKey) ([]byte, error) {
	if m.word == "open" {
		ed, err := cms.ParseEnvelopedData(m.bytes)
		if err != nil {
			return nil, err
		}
		for _, t := range ed.Transports {
			if t.For(cert) {
				return ed.Open(ctx, t, inMemory{key})
			}
		}
		return nil, errors.New("for nobody here")
	}
	sd, err := cms.ParseSignedData(m.bytes)
	if err != nil {
		return nil, err
	}
	if len(sd.Signers) != 1 {
		return nil, errors.New("not one signer")
	}
	signer, err := sd.Signers[0].Certificate(8 << 10)
	if err != nil {
		return nil, err
	}
	if !signer.Equal(cert) {
		return nil, errors.New("another's certificate")
	}
	return sd.Content, sd.Signers[0].Verify(signer.PublicKey, false)
}

func selfSigned(t *testing.T) (*x509.Certificate, *rsa.PrivateKey) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(77), Subject: pkix.Name{CommonName: "device"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}
