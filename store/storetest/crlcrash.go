package storetest

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/big"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/crl"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/store"
)

// errCrash is the end of a process in the middle of building a CRL.
var errCrash = errors.New("crashed")

// A crashing store ends the process at its at-th step: every second one is after
// the store has done what it was asked, which nobody is told. From then on
// nothing is done any more.
type crashing struct {
	*store.CRL
	at       int
	steps    int
	lists    map[crl.Number][]byte // what was signed, by number
	repeated []crl.Number
}

func (c *crashing) step() error {
	if c.steps++; c.at > 0 && c.steps >= c.at {
		return errCrash
	}
	return nil
}

// around runs do between two steps.
func (c *crashing) around(do func() error) error {
	if err := c.step(); err != nil {
		return err
	}
	err := do()
	return errors.Join(err, c.step())
}

func (c *crashing) Head(ctx context.Context, s crl.Scope) (h crl.Head, err error) {
	err = c.around(func() error { h, err = c.CRL.Head(ctx, s); return err })
	return h, err
}

func (c *crashing) Reserve(ctx context.Context, s crl.Scope, l crl.Lease) (n crl.Number, err error) {
	err = c.around(func() error { n, err = c.CRL.Reserve(ctx, s, l); return err })
	return n, err
}

func (c *crashing) Release(ctx context.Context, s crl.Scope, n crl.Number) error {
	return c.around(func() error { return c.CRL.Release(ctx, s, n) })
}

func (c *crashing) Revoked(ctx context.Context, s crl.Selection) iter.Seq2[crl.Entry, error] {
	if err := c.step(); err != nil {
		return func(yield func(crl.Entry, error) bool) { yield(crl.Entry{}, err) }
	}
	return c.CRL.Revoked(ctx, s)
}

func (c *crashing) Put(ctx context.Context, at time.Time, r io.Reader) (id crl.BodyID, err error) {
	der, err := io.ReadAll(r)
	if err != nil {
		return "", err
	}
	l, err := x509.ParseRevocationList(der)
	if err != nil {
		return "", err
	}
	n := crl.Number(l.Number.Int64())
	if was, ok := c.lists[n]; ok && !bytes.Equal(was, l.RawTBSRevocationList) {
		c.repeated = append(c.repeated, n)
	}
	c.lists[n] = l.RawTBSRevocationList
	err = c.around(func() error { id, err = c.CRL.Put(ctx, at, bytes.NewReader(der)); return err })
	return id, err
}

func (c *crashing) Publish(ctx context.Context, p crl.Publication) error {
	return c.around(func() error { return c.CRL.Publish(ctx, p) })
}

func (c *crashing) Drop(ctx context.Context, id crl.BodyID) error {
	return c.around(func() error { return c.CRL.Drop(ctx, id) })
}

// crashNumbers has a process end at each step of building a complete CRL and a
// delta to it, and others begin where it ended: no number is ever that of two
// lists, and what is served only goes forward.
func crashNumbers(t *testing.T, db *store.DB) {
	is, now := crashIssuer(t), statusNow()
	lists := map[crl.Number][]byte{}
	var last crl.Head
	revoked := 0
	// So high that no clock helps: what keeps numbers apart is the row alone.
	lease := crl.Lease{Floor: 1 << 50, Now: now, Until: now}
	if _, err := store.NewCRL(db).Reserve(t.Context(), crl.Scope{Issuer: is.ID}, lease); err != nil {
		t.Fatal(err)
	}
	// start runs one process, whose clock is an hour and more after the one before:
	// leases of the dead have ended.
	start := func(at int) (*crashing, error) {
		now = now.Add(time.Hour)
		st := &crashing{CRL: store.NewCRL(db), at: at, lists: lists}
		s, err := crl.New(crl.Config{
			Issuers: []*ca.Issuer{is}, Store: st, Period: 2 * time.Hour, Now: func() time.Time { return now },
			Plans: map[ca.IssuerID]crl.Plan{is.ID: {Delta: 30 * time.Minute}},
		})
		if err != nil {
			t.Fatal(err)
		}
		return st, s.Prepare(t.Context())
	}
	for at := 1; ; at++ {
		serial := ca.Serial(fmt.Sprintf("0a%02x", revoked))
		revoked++
		statusIssue(t, db, is.ID, serial, now.Add(time.Hour))
		statusRevoke(t, db, serial, now, ca.Superseded)
		crashed, _ := start(at) // what it served before may have been good enough
		st, err := start(0)
		if err != nil {
			t.Fatalf("after a crash at step %d: %v", at, err)
		}
		if repeated := append(crashed.repeated, st.repeated...); len(repeated) > 0 {
			t.Errorf("crash at step %d: %v are numbers of two lists each", at, repeated)
		}
		h, err := st.CRL.Head(t.Context(), crl.Scope{Issuer: is.ID})
		if err != nil || h.Published <= last.Published || h.Delta <= last.Delta || h.Changed || h.DeltaChanged {
			t.Errorf("crash at step %d: %+v after %+v, %v", at, h, last, err)
		}
		last = h
		if crashed.steps < at {
			if at < 15 {
				t.Errorf("only %d steps", at)
			}
			return // it came to its end
		}
	}
}

func crashIssuer(t *testing.T) *ca.Issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "A CA"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &ca.Issuer{ID: ca.IDOf(cert), Cert: cert, Key: keys.FromSigner(key), CRLURL: "http://pki.example.com/crl/x.crl"}
}
