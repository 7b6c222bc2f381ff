package crl

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

func signed(t testing.TB, is *ca.Issuer, h Header, entries []Entry) []byte {
	t.Helper()
	body, _, err := Sign(t.Context(), is, each(entries), fixed(h))
	if err != nil {
		t.Fatal(err)
	}
	return bytesOf(t, body)
}

func TestVerifiedListSaysWhatWasMeant(t *testing.T) {
	t.Parallel()
	for _, alg := range []keys.Algorithm{keys.ECDSAP256, keys.ECDSAP521, keys.RSA2048, keys.Ed25519} {
		is := issuerOf(t, alg)
		h := headerOf(is, 300, DistributionPoint{URL: "http://crl.example/1.crl"}.Extension())
		info, err := Verify(bodyOf(signed(t, is, h, manyEntries(500))), is)
		if err != nil {
			t.Fatal(err)
		}
		if info.Number != 300 || info.Entries != 500 || !info.ThisUpdate.Equal(h.ThisUpdate) || !info.NextUpdate.Equal(h.NextUpdate) ||
			!bytes.Equal(info.Scope(), h.Extensions[2].Value) {
			t.Errorf("%s: %+v", alg, info)
		}
	}
}

// Whatever octet of a list is another one, it is not that list any more.
func TestNoOctetMayChange(t *testing.T) {
	t.Parallel()
	is := issuerOf(t, keys.ECDSAP256)
	der := signed(t, is, headerOf(is, 1), []Entry{
		{Serial: "05", RevokedAt: time.Unix(1_800_000_000, 0), Reason: ca.KeyCompromise, InvalidAt: time.Unix(1_700_000_000, 0)},
		{Serial: "ff", RevokedAt: time.Unix(1_800_000_000, 0)},
	})
	for i := range der {
		for _, bit := range []byte{1, 0x10, 0x80} {
			changed := bytes.Clone(der)
			changed[i] ^= bit
			if _, err := Verify(bodyOf(changed), is); err == nil {
				t.Errorf("octet %d of %d changed by %#x: verified", i, len(der), bit)
			}
		}
		if _, err := Verify(bodyOf(der[:i]), is); err == nil {
			t.Errorf("%d octets of %d: verified", i, len(der))
		}
	}
	if _, err := Verify(bodyOf(append(bytes.Clone(der), 0)), is); err == nil {
		t.Error("with an octet more: verified")
	}
}

func TestAListOfAnotherIssuerIsNotVerified(t *testing.T) {
	t.Parallel()
	is, other := issuerOf(t, keys.ECDSAP256), issuerOf(t, keys.ECDSAP256) // of the same name and key identifier
	der := signed(t, is, headerOf(is, 1), manyEntries(3))
	if _, err := Verify(bodyOf(der), other); err == nil || !strings.Contains(err.Error(), "signature") {
		t.Errorf("another key: %v", err)
	}
	renamed, cert := *is, *is.Cert
	renamed.Cert = &cert
	cert.RawSubject = []byte{0x30, 0}
	if _, err := Verify(bodyOf(der), &renamed); err == nil || !strings.Contains(err.Error(), "subject") {
		t.Errorf("another name: %v", err)
	}
	cert = *is.Cert
	cert.SubjectKeyId = []byte{9}
	if _, err := Verify(bodyOf(der), &renamed); err == nil || !strings.Contains(err.Error(), "key identifier") {
		t.Errorf("another key identifier: %v", err)
	}
	ed := issuerOf(t, keys.Ed25519)
	if _, err := Verify(bodyOf(der), ed); err == nil || !strings.Contains(err.Error(), "algorithm") {
		t.Errorf("another algorithm: %v", err)
	}
}

// A device that signs with another key than its own is found out before
// anybody sees the list.
func TestAnothersSignatureIsNotPublished(t *testing.T) {
	t.Parallel()
	is := issuerOf(t, keys.ECDSAP256)
	is.Key = issuerOf(t, keys.ECDSAP256).Key
	if _, _, err := Sign(t.Context(), is, generated(3), fixed(headerOf(is, 1))); err == nil {
		t.Error("signed")
	}
}

// What was read back is compared with what was meant, not with itself.
func TestADraftThatBecameAnotherListIsNoticed(t *testing.T) {
	t.Parallel()
	is := issuerOf(t, keys.ECDSAP256)
	made := func() *draft {
		h := headerOf(is, 5)
		d := &draft{body: newBody(), issuer: is}
		if _, err := d.make(t.Context(), each(manyEntries(2)), fixed(h)); err != nil {
			t.Fatal(err)
		}
		return d
	}
	digestOf := func(entries ...Entry) (d digest) {
		for _, e := range entries {
			l, err := listedOf(e, new([maxSerial]byte))
			if err != nil {
				t.Fatal(err)
			}
			d.add(l)
		}
		return d
	}
	two := manyEntries(2)
	if d := made(); d.digest != digestOf(two...) {
		t.Error("the digest is not that of its entries")
	}
	for name, change := range map[string]func(*draft){
		"thisUpdate": func(d *draft) { d.header.ThisUpdate = d.header.ThisUpdate.Add(time.Second) },
		"nextUpdate": func(d *draft) { d.header.NextUpdate = d.header.NextUpdate.Add(time.Second) },
		"number":     func(d *draft) { d.header.Extensions[1] = NumberOf(6) },
		"critical":   func(d *draft) { d.header.Extensions[1].Critical = true },
		"extension":  func(d *draft) { d.header.Extensions = d.header.Extensions[:1] },
		"entries":    func(d *draft) { d.sum.Entries++ },
		"serial": func(d *draft) {
			d.digest = digestOf(two[0], Entry{Serial: "77", RevokedAt: two[1].RevokedAt, Reason: two[1].Reason})
		},
		"reason": func(d *draft) { d.digest = digestOf(two[0], Entry{Serial: two[1].Serial, RevokedAt: two[1].RevokedAt}) },
		"order":  func(d *draft) { d.digest = digestOf(two[1], two[0]) },
		"date":   func(d *draft) { two[1].RevokedAt = two[1].RevokedAt.Add(time.Second); d.digest = digestOf(two...) },
		"hash":   func(d *draft) { d.signed.sum[0] ^= 1 },
		"octets": func(d *draft) { d.signed.crc ^= 1 },
	} {
		d := made()
		change(d)
		if _, err := d.check(); err == nil {
			t.Errorf("another %s: passes", name)
		}
	}
}

// What is signed is hashed while it is read once, and read back another time.
func TestADraftIsReadBackOctetForOctet(t *testing.T) {
	t.Parallel()
	is := issuerOf(t, keys.ECDSAP256)
	d := &draft{body: newBody(), issuer: is}
	if _, err := d.make(t.Context(), each(manyEntries(20)), fixed(headerOf(is, 5))); err != nil {
		t.Fatal(err)
	}
	for off := d.body.start; off < d.body.spool.size; off++ {
		var was [1]byte
		if _, err := d.body.spool.ReadAt(was[:], off); err != nil {
			t.Fatal(err)
		}
		if err := d.body.overwrite([]byte{was[0] ^ 1}, off); err != nil {
			t.Fatal(err)
		}
		if _, err := d.check(); err == nil {
			t.Errorf("octet %d of %d is another: passes", off-d.body.start, d.body.spool.size-d.body.start)
		}
		if err := d.body.overwrite(was[:], off); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := d.check(); err != nil {
		t.Error(err)
	}
}

func TestNothingGoesFromAListWithoutAReason(t *testing.T) {
	t.Parallel()
	is := issuerOf(t, keys.ECDSAP256)
	scope := DistributionPoint{URL: "http://crl.example/1.crl"}.Extension()
	at := time.Now()
	list := func(n Number, h Header, serials ...ca.Serial) *Body {
		h.Extensions[1] = NumberOf(n)
		var entries []Entry
		for _, s := range serials {
			entries = append(entries, Entry{Serial: s, RevokedAt: at})
		}
		return bodyOf(signed(t, is, h, entries))
	}
	var asked []ca.Serial
	explain := func(_ context.Context, serials []ca.Serial) (lost []ca.Serial, _ error) {
		asked = append(asked, serials...)
		for _, s := range serials {
			if s == "66" {
				lost = append(lost, s)
			}
		}
		return lost, nil
	}
	plain := func() Header { return headerOf(is, 0) }
	for name, c := range map[string]struct {
		previous, next *Body
		asked          []ca.Serial
		fails          string
	}{
		"the same":          {list(5, plain(), "01", "02"), list(6, plain(), "01", "02"), nil, ""},
		"both empty":        {list(5, plain()), list(6, plain()), nil, ""},
		"the first":         {list(5, plain()), list(6, plain(), "01"), nil, ""},
		"more":              {list(5, plain(), "02", "04"), list(6, plain(), "01", "02", "03", "04", "05"), nil, ""},
		"expired":           {list(5, plain(), "01", "02", "03", "04"), list(6, plain(), "02"), []ca.Serial{"01", "03", "04"}, ""},
		"expired and more":  {list(5, plain(), "02", "05"), list(6, plain(), "01", "03", "06"), []ca.Serial{"02", "05"}, ""},
		"all expired":       {list(5, plain(), "01", "02"), list(6, plain()), []ca.Serial{"01", "02"}, ""},
		"lost":              {list(5, plain(), "01", "66"), list(6, plain(), "01"), []ca.Serial{"66"}, "66"},
		"a number again":    {list(6, plain()), list(6, plain()), nil, "number 6"},
		"a number before":   {list(7, plain()), list(6, plain()), nil, "number 6"},
		"a scope comes":     {list(5, plain()), list(6, headerOf(is, 0, scope)), nil, "scope"},
		"another scope":     {list(5, headerOf(is, 0, DistributionPoint{URL: "http://crl.example/2.crl"}.Extension())), list(6, headerOf(is, 0, scope)), nil, "scope"},
		"the same scope":    {list(5, headerOf(is, 0, scope)), list(6, headerOf(is, 0, scope)), nil, ""},
		"what is no list":   {list(5, plain()), bodyOf([]byte{0x30, 0}), nil, "opening"},
		"after what is not": {bodyOf([]byte{0x30, 0}), list(6, plain()), nil, "the CRL before"},
	} {
		asked = nil
		err := follows(t.Context(), c.previous, c.next, explain)
		if (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) || !slices.Equal(asked, c.asked) {
			t.Errorf("%s: %v, asked about %v", name, err, asked)
		}
	}
	// However many go, they are asked about a few at a time.
	var many []ca.Serial
	for i := range 2*missingAtOnce + 1 {
		many = append(many, ca.Serial(fmt.Sprintf("01%08x", i)))
	}
	calls, broken := 0, errors.New("the database is away")
	err := follows(t.Context(), list(5, plain(), many...), list(6, plain()), func(_ context.Context, serials []ca.Serial) ([]ca.Serial, error) {
		if calls++; len(serials) > missingAtOnce {
			t.Errorf("%d at once", len(serials))
		}
		if calls == 3 {
			return nil, broken
		}
		return nil, nil
	})
	if calls != 3 || !errors.Is(err, broken) {
		t.Errorf("%d calls, %v", calls, err)
	}
}

// An entry that a faulty store forgets keeps the new CRL from being published.
func TestAStoreThatForgetsEntriesPublishesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.revoke("05", ca.Superseded, time.Now().Add(time.Hour))
	s := w.prepared(nil)
	before, _ := s.Current(w.issuer.ID)
	w.revoke("06", ca.Superseded, time.Now().Add(time.Hour))
	w.forgotten = "05"
	if _, err := s.update(t.Context(), s.shelf(Scope{Issuer: w.issuer.ID})); err == nil || !strings.Contains(err.Error(), "without a reason") {
		t.Errorf("error %v", err)
	}
	if c, _ := s.Current(w.issuer.ID); c.Number != before.Number || len(w.bodies) != 1 {
		t.Errorf("number %d after %d, %d bodies in the store", c.Number, before.Number, len(w.bodies))
	}
}

// A stored CRL that is not one of the issuer, such as of its certificate before
// with another key identifier, is not served, and soon replaced.
func TestAStoredCRLThatCannotBeVerifiedIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, _ := w.prepared(nil).Current(w.issuer.ID)
	w.bodies[first.Body][100] ^= 1
	s := w.prepared(nil)
	if c, ok := s.Current(w.issuer.ID); !ok || c.Number <= first.Number {
		t.Errorf("number %d after %d", c.Number, first.Number)
	}
	w.current(s) // verifies
}

// FuzzRead feeds the reader with what may be in a database. What it takes is
// what the standard library reads in it, and what Sign would write.
func FuzzRead(f *testing.F) {
	is := issuerOf(f, keys.ECDSAP256)
	key := &repeatingKey{is.Key, map[string][]byte{}}
	is.Key = key
	f.Add(signed(f, is, headerOf(is, 1), nil))
	f.Add(signed(f, is, headerOf(is, 1<<40, DeltaOf(5)), []Entry{
		{Serial: "05", RevokedAt: time.Unix(1_800_000_000, 0), Reason: ca.KeyCompromise, InvalidAt: time.Unix(1_700_000_000, 0)},
		{Serial: "ff", RevokedAt: time.Date(2050, 1, 1, 0, 0, 0, 0, time.UTC)},
	}))
	f.Fuzz(func(t *testing.T, der []byte) {
		r, err := read(bodyOf(der))
		if err != nil {
			return
		}
		var entries []Entry
		for {
			l, more, err := r.next()
			if err != nil {
				return
			}
			if !more {
				break
			}
			e := Entry{Serial: l.Serial(), RevokedAt: time.Unix(l.revokedAt, 0), Reason: l.reason}
			if l.invalidAt != noDate {
				e.InvalidAt = time.Unix(l.invalidAt, 0)
			}
			entries = append(entries, e)
		}
		info, err := r.finish()
		if err != nil {
			return
		}
		var again []byte
		for _, e := range entries {
			l, err := listedOf(e, new([maxSerial]byte))
			if err != nil {
				t.Fatal(err)
			}
			if again, err = appendEntry(again, l, new(stamp)); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Contains(der, again) {
			t.Fatalf("entries %+v are not written as they were read", entries)
		}
		l, err := x509.ParseRevocationList(der)
		if err != nil {
			return // it looks into more than we take an interest in
		}
		if len(l.RevokedCertificateEntries) != info.Entries || l.Number == nil || l.Number.Int64() != int64(info.Number) ||
			!l.ThisUpdate.Equal(info.ThisUpdate) || !l.NextUpdate.Equal(info.NextUpdate) || !bytes.Equal(l.RawIssuer, info.Issuer) {
			t.Fatalf("%+v is %+v to the standard library", info, l)
		}
		for i, e := range l.RevokedCertificateEntries {
			if ca.SerialOf(e.SerialNumber) != entries[i].Serial || e.ReasonCode != int(entries[i].Reason) || !e.RevocationTime.Equal(entries[i].RevokedAt) {
				t.Fatalf("entry %+v is %+v to the standard library", entries[i], e)
			}
		}
	})
}
