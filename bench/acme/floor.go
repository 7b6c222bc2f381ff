package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"os"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/measure"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/lint"
)

// requestsOfAnOrder are the signed requests that one certificate takes at least:
// newOrder, authorization, challenge, authorization, finalize, certificate.
const requestsOfAnOrder = 6

// floor is the processor time that the arithmetic of one certificate takes, with
// nothing around it: the signatures of six requests and of the CSR verified, the
// certificate signed twice (once under a throw-away key, to be looked at), all
// lints, and two records of the size of a certificate appended to a file, each of
// them on the disk before the next.
func floor(ctx context.Context, n int) (time.Duration, error) {
	f, err := os.CreateTemp(".", ".bench-floor-")
	if err != nil {
		return 0, err
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(f.Name())) }()
	a, err := newArithmetic()
	if err != nil {
		return 0, err
	}
	before := measure.CPU()
	for range n {
		if err := a.one(ctx, f); err != nil {
			return 0, err
		}
	}
	return (measure.CPU() - before) / time.Duration(n), nil
}

type arithmetic struct {
	key, leaf, throwaway *ecdsa.PrivateKey
	issuer               *x509.Certificate
	template             *x509.Certificate
	digest               [32]byte
	sig                  []byte
	csr                  []byte
	linter               *lint.Linter
}

func newArithmetic() (*arithmetic, error) {
	a := &arithmetic{}
	for _, k := range []**ecdsa.PrivateKey{&a.key, &a.leaf, &a.throwaway} {
		var err error
		if *k, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return nil, err
		}
	}
	now := time.Now().UTC().Truncate(time.Second)
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"Bench"}, CommonName: "Bench CA"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(1000 * time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, SubjectKeyId: []byte("a key id of the issuer"),
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, a.key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	if a.issuer, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	a.template = &x509.Certificate{
		SerialNumber: new(big.Int).SetBytes(append([]byte{1}, make([]byte, 16)...)), DNSNames: []string{"n1.bench.test"},
		NotBefore: now, NotAfter: now.Add(100 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
		OCSPServer: []string{"http://pki.example.com/ocsp"}, CRLDistributionPoints: []string{"http://pki.example.com/ca.crl"},
	}
	if a.csr, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: a.template.DNSNames}, a.leaf); err != nil {
		return nil, err
	}
	a.digest = sha256.Sum256([]byte("a request"))
	if a.sig, err = ecdsa.SignASN1(rand.Reader, a.leaf, a.digest[:]); err != nil {
		return nil, err
	}
	a.linter, err = lint.New(lint.Config{})
	return a, err
}

func (a *arithmetic) one(ctx context.Context, f *os.File) error {
	for range requestsOfAnOrder {
		if !ecdsa.VerifyASN1(&a.leaf.PublicKey, a.digest[:], a.sig) {
			return errors.New("a signature does not hold")
		}
	}
	csr, err := x509.ParseCertificateRequest(a.csr)
	if err != nil {
		return err
	}
	if err := csr.CheckSignature(); err != nil {
		return err
	}
	draft, err := x509.CreateCertificate(rand.Reader, a.template, a.issuer, csr.PublicKey, a.key)
	if err != nil {
		return err
	}
	if _, err := a.linter.Lint(ctx, ca.Draft{DER: draft, Issuer: a.issuer, Kind: ca.LintServer, SPKIHash: sha256.Sum256(csr.RawSubjectPublicKeyInfo)}); err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, a.template, a.issuer, csr.PublicKey, a.key)
	if err != nil {
		return err
	}
	for range 2 {
		if _, err := f.Write(der); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	return nil
}
