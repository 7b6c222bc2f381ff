// Command pkcs7 reads messages by github.com/smallstep/pkcs7, for tests that
// compare what it makes of them with what our own code does.
//
// Each line of its input is a word and a message in hex: "verify", a SignedData, or
// "open", an EnvelopedData for the certificate and key of the two arguments. Each
// line of its output is "ok" with the content in hex, "no", or "panic".
package main

import (
	"bufio"
	"crypto"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/smallstep/pkcs7"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 {
		return errors.New("want a certificate and a key")
	}
	certDER, err := block(os.Args[1])
	if err != nil {
		return err
	}
	cert, err := x509.ParseCertificate(certDER)
	if err != nil {
		return err
	}
	keyDER, err := block(os.Args[2])
	if err != nil {
		return err
	}
	key, err := x509.ParsePKCS8PrivateKey(keyDER)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		word, text, _ := strings.Cut(lines.Text(), " ")
		message, err := hex.DecodeString(text)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, answer(word, message, cert, key))
	}
	return errors.Join(lines.Err(), out.Flush())
}

func block(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p, _ := pem.Decode(b)
	if p == nil {
		return nil, fmt.Errorf("%s: no PEM", path)
	}
	return p.Bytes, nil
}

func answer(word string, message []byte, cert *x509.Certificate, key crypto.PrivateKey) (said string) {
	defer func() {
		if recover() != nil {
			said = "panic"
		}
	}()
	p7, err := pkcs7.Parse(message)
	if err != nil {
		return "no"
	}
	content := p7.Content
	if word == "open" {
		content, err = p7.Decrypt(cert, key)
	} else {
		err = p7.Verify()
	}
	if err != nil {
		return "no"
	}
	return "ok " + hex.EncodeToString(content)
}
