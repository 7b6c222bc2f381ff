package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"time"

	xocsp "golang.org/x/crypto/ocsp"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/ocsp"
	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/sqlite"
)

// certificates is how many are asked about.
const certificates = 1000

// A world is an issuer, ours or one of our own, with serials that it has given.
type world struct {
	dir     string
	issuer  *x509.Certificate
	key     *ecdsa.PrivateKey // of the issuer
	serials []*big.Int
	queries [][]byte // OCSPRequests by SHA-1
}

func newWorld(dir string) (*world, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Bench CA"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir, key: key}
	for range certificates {
		n := make([]byte, 16)
		_, _ = rand.Read(n) // never fails
		n[0] = n[0]&0x7f | 0x40
		w.serials = append(w.serials, new(big.Int).SetBytes(n))
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return w, w.askOf(cert)
}

// askOf has the queries be about certificates of issuer.
func (w *world) askOf(issuer *x509.Certificate) error {
	w.issuer, w.queries = issuer, nil
	for _, n := range w.serials {
		q, err := xocsp.CreateRequest(&x509.Certificate{SerialNumber: n, RawIssuer: issuer.RawSubject}, issuer, nil)
		if err != nil {
			return err
		}
		w.queries = append(w.queries, q)
	}
	return nil
}

// gets are requests as NSS and others spell them.
func (w *world) gets(prefix string) [][]byte {
	var out [][]byte
	for _, q := range w.queries {
		out = append(out, fmt.Appendf(nil, "GET %s%s HTTP/1.1\r\nHost: ocsp.example.org\r\nAccept: */*\r\n\r\n", prefix, url.QueryEscape(base64.StdEncoding.EncodeToString(q))))
	}
	return out
}

func (w *world) posts(path string) [][]byte {
	var out [][]byte
	for _, q := range w.queries {
		head := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: ocsp.example.org\r\nContent-Type: application/ocsp-request\r\nContent-Length: %d\r\n\r\n", path, len(q))
		out = append(out, append(head, q...))
	}
	return out
}

var noCheck = pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 48, 1, 5}, Value: []byte{5, 0}}

// responder certifies a delegate's key.
func (w *world) responder(pub crypto.PublicKey) ([]byte, error) {
	return x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "Bench Responder"}, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().AddDate(0, 0, 30),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageOCSPSigning}, ExtraExtensions: []pkix.Extension{noCheck},
	}, w.issuer, pub, w.key)
}

// record writes the certificates into the database of a program that is not running.
func (w *world) record(ctx context.Context, file string, issuer *x509.Certificate) (err error) {
	e, err := sqlite.Open(ctx, sqlite.Config{Path: file})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	ledger, now := store.NewCA(store.New(e)).PlainLedger(), time.Now().UTC()
	for _, n := range w.serials {
		in := ca.Intent{
			ID: audit.NewID(), Serial: ca.SerialOf(n), Issuer: ca.IDOf(issuer), Profile: "bench", TBS: []byte{1}, Requester: ca.Requester{Actor: "system"},
			NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(0, 0, 90), CreatedAt: now, LeaseUntil: now.Add(time.Minute),
		}
		if err := ledger.Begin(ctx, in); err != nil {
			return err
		}
		c := ca.Certificate{ID: in.ID, Serial: in.Serial, Issuer: in.Issuer, Profile: in.Profile, DER: []byte{2}, NotBefore: in.NotBefore, NotAfter: in.NotAfter}
		if err := ledger.Commit(ctx, in, c); err != nil {
			return err
		}
	}
	return nil
}

// pems writes what openssl is started with: the issuer, a delegate, and an index.
func (w *world) pems() (caFile, signer, key, index string, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", "", "", err
	}
	cert, err := w.responder(k.Public())
	if err != nil {
		return "", "", "", "", err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return "", "", "", "", err
	}
	var list []byte
	for i, n := range w.serials { // in hex digits of whole octets, and no letter small
		list = fmt.Appendf(list, "V\t%s\t\t%X\tunknown\t/CN=n%d\n", time.Now().AddDate(0, 0, 90).UTC().Format("060102150405Z"), n.Bytes(), i)
	}
	at := func(name string) string { return filepath.Join(w.dir, name) }
	return at("ca.pem"), at("signer.pem"), at("key.pem"), at("index.txt"), errors.Join(
		writePEM(at("ca.pem"), "CERTIFICATE", w.issuer.Raw), writePEM(at("signer.pem"), "CERTIFICATE", cert),
		writePEM(at("key.pem"), "PRIVATE KEY", pkcs8), os.WriteFile(at("index.txt"), list, 0o600))
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// A desk is what an ocsp.Server asks of the rest of the program, without the rest.
type desk struct {
	w    *world
	keys ocsp.KeyStore
}

func (d desk) Status(context.Context, ca.IssuerID, ca.Serial) (ocsp.Status, error) {
	return ocsp.Status{State: ca.Issued, NotAfter: time.Now().AddDate(0, 0, 90)}, nil
}

func (d desk) Heads(context.Context) (map[ca.IssuerID]int64, error) { return nil, nil }

func (d desk) Changes(context.Context, ca.IssuerID, int64, int) ([]ocsp.Change, error) {
	return nil, nil
}

func (d desk) Responder(ctx context.Context, _ ca.IssuerID, _ [32]byte) ([]byte, error) {
	k, err := d.keys.Key(ctx, d.label())
	if err != nil {
		return nil, err
	}
	return d.w.responder(k.Public())
}

func (d desk) SaveResponder(context.Context, ca.IssuerID, [32]byte, []byte, time.Time) error {
	return nil
}

func (d desk) Issue(context.Context, ca.Request, ca.Ledger) (ca.Certificate, error) {
	return ca.Certificate{}, errors.New("nothing is issued here")
}

func (d desk) Begin(context.Context, ca.Intent) error                  { return nil }
func (d desk) Commit(context.Context, ca.Intent, ca.Certificate) error { return nil }
func (d desk) Abort(context.Context, ca.Intent, error) error           { return nil }

func (d desk) label() string { return "ocsp-" + string(ca.IDOf(d.w.issuer)) }

// server is a responder with the keys of d. It follows the changes.
func (d desk) server(ctx context.Context) (*ocsp.Server, error) {
	if _, err := d.keys.Key(ctx, d.label()); errors.Is(err, keys.ErrNotFound) {
		if _, err := d.keys.Generate(ctx, d.label(), keys.ECDSAP256); err != nil {
			return nil, err
		}
	}
	s, err := ocsp.New(ocsp.Config{
		Issuers: []*ca.Issuer{{ID: ca.IDOf(d.w.issuer), Name: "bench", Cert: d.w.issuer, Key: keys.FromSigner(d.w.key)}},
		Source:  d, Responders: d, CA: d, Ledger: d, Keys: d.keys,
	})
	if err != nil {
		return nil, err
	}
	go func() { _ = s.Follow(ctx) }()
	return s, s.Prepare(ctx)
}

// withNonce adds a nonce of 32 octets to a request that has no extensions.
func withNonce(query []byte, n uint64) []byte {
	value := fmt.Appendf(nil, "%032d", n)
	wrap := func(tag byte, parts ...[]byte) []byte {
		all := bytes.Join(parts, nil)
		out := []byte{tag, byte(len(all))}
		if len(all) > 127 {
			out = []byte{tag, 0x81, byte(len(all))}
		}
		return append(out, all...)
	}
	oid := []byte{6, 9, 0x2b, 6, 1, 5, 5, 7, 0x30, 1, 2}
	extensions := wrap(0xa2, wrap(0x30, wrap(0x30, oid, wrap(4, wrap(4, value)))))
	var outer, tbs asn1.RawValue
	if _, err := asn1.Unmarshal(query, &outer); err != nil {
		panic(err) // it was made here
	}
	if _, err := asn1.Unmarshal(outer.Bytes, &tbs); err != nil {
		panic(err)
	}
	return wrap(0x30, wrap(0x30, tbs.Bytes, extensions))
}
