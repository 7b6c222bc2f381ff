package main

import (
	"bufio"
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

const (
	maxTargets = 1_000_000
	// maxTargetFile is room for so many certificates, if they are short.
	maxTargetFile = 1 << 30
	maxKeyFile    = 1 << 20
)

// readTargets reads which certificates are meant: certificates in PEM or DER, or
// a line for each, of a serial number and perhaps a reason. It gives each once.
func readTargets(r io.Reader) ([]client.Revoke, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxTargetFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxTargetFile:
		return nil, fmt.Errorf("is longer than %d bytes; split it", maxTargetFile)
	}
	var list []client.Revoke
	switch {
	case bytes.Contains(b, []byte("-----BEGIN ")):
		list, err = pemTargets(b)
	case len(b) > 0 && b[0] == 0x30 && !isText(b):
		list, err = derTargets(b)
	default:
		list, err = lineTargets(b)
	}
	if err == nil && len(list) == 0 {
		err = errors.New("lists no certificate")
	}
	if err != nil {
		return nil, err
	}
	return eachOnce(list)
}

// isText tells a serial number that begins with 0, which is 0x30, from DER.
func isText(b []byte) bool {
	return !bytes.ContainsFunc(b[:min(len(b), 64)], func(r rune) bool { return r < ' ' && !strings.ContainsRune("\t\r\n", r) || r > '~' })
}

// eachOnce leaves out repetitions, and refuses two that contradict each other.
func eachOnce(list []client.Revoke) ([]client.Revoke, error) {
	seen := make(map[string]client.Revoke, len(list))
	out := list[:0]
	for _, t := range list {
		if first, ok := seen[t.Serial]; !ok {
			seen[t.Serial] = t
			out = append(out, t)
		} else if first != t {
			return nil, fmt.Errorf("%s is there twice, and not the same", t.Serial)
		}
	}
	if len(out) > maxTargets {
		return nil, fmt.Errorf("lists more than %d certificates; split it", maxTargets)
	}
	return out, nil
}

func pemTargets(b []byte) (list []client.Revoke, err error) {
	for {
		block, rest := pem.Decode(b)
		if block == nil {
			if bytes.Contains(rest, []byte("-----BEGIN ")) {
				return nil, fmt.Errorf("what follows certificate %d is not PEM", len(list))
			}
			return list, nil
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("there is a %.40q in it; only certificates are revoked", block.Type)
		}
		certs, err := derTargets(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(list)+1, err)
		}
		list, b = append(list, certs...), rest
	}
}

func derTargets(b []byte) (list []client.Revoke, err error) {
	certs, err := x509.ParseCertificates(b)
	if err != nil {
		return nil, err
	}
	for _, c := range certs {
		serial, err := parseSerial(hex.EncodeToString(c.SerialNumber.Bytes()))
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(c.Raw)
		list = append(list, client.Revoke{Serial: serial, SHA256: hex.EncodeToString(sum[:])})
	}
	return list, nil
}

// lineTargets reads CSV with or without a heading, and what other tools list.
func lineTargets(b []byte) (list []client.Revoke, err error) {
	sc := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; sc.Scan(); n++ {
		fields := strings.FieldsFunc(sc.Text(), func(r rune) bool { return strings.ContainsRune(",;\t\r", r) })
		for i := range fields {
			fields[i] = strings.Trim(strings.TrimSpace(fields[i]), `"`)
		}
		if len(fields) == 0 || fields[0] == "" || fields[0][0] == '#' || len(list) == 0 && strings.EqualFold(fields[0], "serial") {
			continue
		}
		t := client.Revoke{}
		if t.Serial, err = parseSerial(fields[0]); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if len(fields) > 1 && fields[1] != "" {
			var known bool
			if t.Reason, known = knownReason(fields[1]); !known {
				return nil, fmt.Errorf("line %d: %.40q is not a reason: want one of %s", n, fields[1], strings.Join(client.Reasons(), ", "))
			}
		}
		list = append(list, t)
	}
	return list, sc.Err()
}

// keyHash finds the SHA-256 of a public key: it is given, or the key is in a file.
func keyHash(hashOrFile string) (string, error) {
	if b, err := hex.DecodeString(strings.ReplaceAll(hashOrFile, ":", "")); err == nil && len(b) == sha256.Size {
		return hex.EncodeToString(b), nil
	}
	f, err := os.Open(hashOrFile)
	if err != nil {
		return "", fmt.Errorf("--key is neither a SHA-256 in hex nor a file: %w", err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile))
	if err != nil {
		return "", err
	}
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if spki, err := publicKeyOf(block); err != nil {
			return "", fmt.Errorf("%s: %w", hashOrFile, err)
		} else if spki != nil {
			sum := sha256.Sum256(spki)
			return hex.EncodeToString(sum[:]), nil
		}
	}
	return "", fmt.Errorf("%s has no key in PEM", hashOrFile)
}

// publicKeyOf returns the DER of the SubjectPublicKeyInfo of what a block holds,
// nil for parameters and the like.
func publicKeyOf(block *pem.Block) (spki []byte, err error) {
	var key any
	switch block.Type {
	case "CERTIFICATE":
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		return c.RawSubjectPublicKeyInfo, nil
	case "CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST":
		c, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			return nil, err
		}
		return c.RawSubjectPublicKeyInfo, nil
	case "PUBLIC KEY":
		if key, err = x509.ParsePKIXPublicKey(block.Bytes); err != nil {
			return nil, err
		}
		return x509.MarshalPKIXPublicKey(key)
	case "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "ENCRYPTED PRIVATE KEY":
		return nil, errors.New("the key is encrypted: give its public key, or a certificate of it")
	default:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return x509.MarshalPKIXPublicKey(key.(interface{ Public() crypto.PublicKey }).Public())
}
