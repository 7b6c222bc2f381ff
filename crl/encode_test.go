package crl

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/big"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

// each gives out entries as a store does.
func each(entries []Entry) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	}
}

// generated gives out n entries of all kinds without having them in memory.
func generated(n int) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for i := range n {
			if !yield(entryNumber(i), nil) {
				return
			}
		}
	}
}

// entryNumber varies serial lengths, sign octets, reasons and times.
func entryNumber(i int) Entry {
	reasons := []ca.Reason{ca.Unspecified, ca.KeyCompromise, ca.Superseded, ca.CessationOfOperation, ca.PrivilegeWithdrawn}
	serial := fmt.Sprintf("%08x", 0x7ffff000+i) // from some i on, it needs a sign octet
	if i%2 == 1 {
		serial += "000102030405060708090a0b"
	}
	return Entry{Serial: ca.Serial(serial), RevokedAt: time.Unix(1_800_000_000+int64(i), 999).UTC(), Reason: reasons[i%len(reasons)]}
}

// byStdlib encodes the same list with the standard library. ECDSA signatures
// being random, the key notes and repeats them.
func byStdlib(t *testing.T, is *ca.Issuer, sig *repeatingKey, n Number, h Header, entries iter.Seq2[Entry, error]) []byte {
	t.Helper()
	l := &x509.RevocationList{Number: big.NewInt(int64(n)), ThisUpdate: h.ThisUpdate, NextUpdate: h.NextUpdate, ExtraExtensions: h.Extensions[2:]}
	for e, err := range entries {
		if err != nil {
			t.Fatal(err)
		}
		serial, err := e.Serial.Int()
		if err != nil {
			t.Fatal(err)
		}
		x := x509.RevocationListEntry{SerialNumber: serial, RevocationTime: e.RevokedAt.Truncate(time.Second), ReasonCode: int(e.Reason)}
		if !e.InvalidAt.IsZero() {
			value, err := asn1.MarshalWithParams(e.InvalidAt.Truncate(time.Second), "generalized")
			if err != nil {
				t.Fatal(err)
			}
			x.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 24}, Value: value}}
		}
		l.RevokedCertificateEntries = append(l.RevokedCertificateEntries, x)
	}
	der, err := x509.CreateRevocationList(nil, l, is.Cert, keys.Signer(t.Context(), sig))
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// A repeatingKey gives the same signature for the same bytes.
type repeatingKey struct {
	keys.Key
	sigs map[string][]byte
}

func (k *repeatingKey) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if sig, ok := k.sigs[string(digest)]; ok {
		return sig, nil
	}
	sig, err := k.Key.Sign(ctx, digest, opts)
	k.sigs[string(digest)] = sig
	return sig, err
}

// issuerOf returns a CA with a key of that kind.
func issuerOf(t testing.TB, alg keys.Algorithm) *ca.Issuer {
	t.Helper()
	key, err := keys.NewPrivateKey(alg)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), RawSubject: oddSubject(t), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCRLSign, SubjectKeyId: []byte{1, 2, 3, 4},
	}
	der, err := x509.CreateCertificate(nil, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &ca.Issuer{ID: ca.IDOf(cert), Name: "ca", Cert: cert, Key: keys.FromSigner(key)}
}

func bytesOf(t testing.TB, b *Body) []byte {
	t.Helper()
	der, err := io.ReadAll(b.Open())
	if err != nil || int64(len(der)) != b.Size() {
		t.Fatalf("%d octets of %d, %v", len(der), b.Size(), err)
	}
	return der
}

func fixed(h Header) func(Summary) (Header, error) {
	return func(Summary) (Header, error) { return h, nil }
}

func headerOf(is *ca.Issuer, n Number, more ...pkix.Extension) Header {
	at := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	return Header{
		ThisUpdate: at, NextUpdate: at.AddDate(0, 0, 7),
		Extensions: append([]pkix.Extension{AuthorityKeyID(is.Cert.SubjectKeyId), NumberOf(n)}, more...),
	}
}

// What both can say, we say octet for octet as the standard library does.
func TestListsAreThoseOfTheStandardLibrary(t *testing.T) {
	t.Parallel()
	for _, alg := range []keys.Algorithm{keys.ECDSAP256, keys.ECDSAP384, keys.ECDSAP521, keys.RSA2048, keys.Ed25519} {
		t.Run(string(alg), func(t *testing.T) {
			t.Parallel()
			is := issuerOf(t, alg)
			key := &repeatingKey{is.Key, map[string][]byte{}}
			is.Key = key
			for _, n := range []int{0, 1, 2, 3, 10_000} {
				h := headerOf(is, Number(n)+0x7f)
				body, info, err := Sign(t.Context(), is, generated(n), fixed(h))
				if err != nil {
					t.Fatal(err)
				}
				got := bytesOf(t, body)
				if want := byStdlib(t, is, key, Number(n)+0x7f, h, generated(n)); !bytes.Equal(got, want) || len(key.sigs) != 1 {
					t.Errorf("%d entries: %d octets, want %d; %d times signed", n, len(got), len(want), len(key.sigs))
				}
				if info.Entries != n || info.Number != Number(n)+0x7f || info.SHA256 != sha256.Sum256(got) {
					t.Errorf("%d entries: %+v", n, info)
				}
				clear(key.sigs)
				if err := body.Release(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestExtensionsAndDatesAreThoseOfTheStandardLibrary(t *testing.T) {
	t.Parallel()
	is := issuerOf(t, keys.ECDSAP256)
	key := &repeatingKey{is.Key, map[string][]byte{}}
	is.Key = key
	since, err := ExpiredSince(time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC))
	if err != nil {
		t.Fatal(err)
	}
	h := headerOf(is, 1<<40, DeltaOf(128), DistributionPoint{URL: "http://crl.example/crl/1.crl", OnlyUserCerts: true}.Extension(), FreshestAt("http://crl.example/d.crl"), since)
	h.ThisUpdate = time.Date(2049, 12, 31, 23, 59, 59, 0, time.UTC)
	h.NextUpdate = h.ThisUpdate.Add(time.Second) // the first GeneralizedTime
	entries := []Entry{
		{Serial: "01", RevokedAt: time.Date(2049, 12, 31, 23, 59, 59, 0, time.UTC), Reason: ca.RemoveFromCRL},
		{Serial: "7f", RevokedAt: time.Date(2050, 1, 1, 0, 0, 0, 0, time.UTC)},
		{Serial: "80", RevokedAt: time.Date(1950, 1, 1, 0, 0, 0, 0, time.UTC), InvalidAt: time.Date(2026, 4, 1, 2, 3, 4, 5, time.UTC)},
		{Serial: "ffffffffffffffffffffffffffffffffffffffff", RevokedAt: time.Date(2026, 2, 28, 1, 2, 3, 0, time.FixedZone("", 3600)), Reason: ca.KeyCompromise, InvalidAt: time.Date(2051, 4, 1, 2, 3, 4, 0, time.UTC)},
	}
	body, _, err := Sign(t.Context(), is, each(entries), fixed(h))
	if err != nil {
		t.Fatal(err)
	}
	got := bytesOf(t, body)
	if want := byStdlib(t, is, key, 1<<40, h, each(entries)); !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	l, err := x509.ParseRevocationList(got)
	if err != nil {
		t.Fatal(err)
	}
	critical := map[string]bool{"2.5.29.27": true, "2.5.29.28": true}
	for _, e := range l.Extensions {
		if e.Critical != critical[e.Id.String()] {
			t.Errorf("extension %v: critical is %v", e.Id, e.Critical)
		}
	}
}

func TestWhatCannotBeListedIsNot(t *testing.T) {
	t.Parallel()
	is := issuerOf(t, keys.ECDSAP256)
	at := time.Now()
	broken := errors.New("the database is away")
	for name, entries := range map[string]iter.Seq2[Entry, error]{
		"no serial":     each([]Entry{{RevokedAt: at}}),
		"half an octet": each([]Entry{{Serial: "1", RevokedAt: at}}),
		"no hex":        each([]Entry{{Serial: "0g", RevokedAt: at}}),
		"zero":          each([]Entry{{Serial: "00", RevokedAt: at}}),
		"leading zero":  each([]Entry{{Serial: "0001", RevokedAt: at}}),
		"too long":      each([]Entry{{Serial: ca.Serial(fmt.Sprintf("01%040x", 1)), RevokedAt: at}}),
		"twice":         each([]Entry{{Serial: "05", RevokedAt: at}, {Serial: "05", RevokedAt: at}}),
		"out of order":  each([]Entry{{Serial: "06", RevokedAt: at}, {Serial: "05", RevokedAt: at}}),
		"reason 7":      each([]Entry{{Serial: "05", RevokedAt: at, Reason: 7}}),
		"reason 11":     each([]Entry{{Serial: "05", RevokedAt: at, Reason: 11}}),
		"reason -1":     each([]Entry{{Serial: "05", RevokedAt: at, Reason: -1}}),
		"no date":       each([]Entry{{Serial: "05", RevokedAt: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}}),
		"a failure":     func(yield func(Entry, error) bool) { yield(Entry{}, broken) },
	} {
		if body, _, err := Sign(t.Context(), is, entries, fixed(headerOf(is, 1))); err == nil || body != nil {
			t.Errorf("%s: listed", name)
		} else if name == "a failure" && !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := Sign(t.Context(), is, each(nil), fixed(Header{ThisUpdate: at, NextUpdate: at})); err == nil {
		t.Error("a list without a number")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Sign(ctx, is, generated(10_000), fixed(headerOf(is, 1))); !errors.Is(err, context.Canceled) {
		t.Errorf("after its time: %v", err)
	}
}

// A list that is longer than memory is to hold is in a file without a name,
// and what of it is read does not depend on that.
func TestLongListsAreInAFileThatLeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	is := issuerOf(t, keys.ECDSAP256)
	body, _, err := Sign(t.Context(), is, generated(50_000), fixed(headerOf(is, 1)))
	if err != nil {
		t.Fatal(err)
	}
	if body.spool.file == nil || body.Size() < spoolInMemory {
		t.Errorf("%d octets are in memory", body.Size())
	}
	if names, err := filepath.Glob(dir + "/*"); err != nil || len(names) != 0 {
		t.Errorf("%v, %v", names, err)
	}
	l, err := x509.ParseRevocationList(bytesOf(t, body))
	if err != nil || len(l.RevokedCertificateEntries) != 50_000 || l.CheckSignatureFrom(is.Cert) != nil {
		t.Errorf("%v", err)
	}
	if !body.Hold() {
		t.Fatal("gone")
	}
	if err := body.Release(); err != nil {
		t.Error(err)
	}
	if len(bytesOf(t, body)) == 0 { // one holder is left
		t.Error("gone")
	}
	if err := body.Release(); err != nil {
		t.Error(err)
	}
	if body.Hold() {
		t.Error("what is gone is there again")
	}
	t.Setenv("TMPDIR", dir+"/none")
	if _, _, err := Sign(t.Context(), is, generated(50_000), fixed(headerOf(is, 1))); err == nil || !bytes.Contains([]byte(err.Error()), []byte("TMPDIR")) {
		t.Errorf("without a folder: %v", err)
	}
}

// Ed25519 signs the list itself, which must be in memory for that, and so has a bound.
func TestEd25519RefusesWhatItWouldHaveToHoldInMemory(t *testing.T) {
	t.Parallel()
	s, err := schemeOf(make(ed25519.PublicKey, ed25519.PublicKeySize))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.prepare(io.NewSectionReader(new(spool), 0, maxMessage+1)); !errors.Is(err, ErrTooLong) {
		t.Errorf("%v", err)
	}
	if _, err := schemeOf(ecdsa.PublicKey{}); err == nil {
		t.Error("a key of no kind")
	}
}

func TestLengthsAreMinimal(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64][]byte{
		0: {0}, 127: {127}, 128: {0x81, 128}, 255: {0x81, 255}, 256: {0x82, 1, 0}, 65535: {0x82, 255, 255},
		65536: {0x83, 1, 0, 0}, 1 << 24: {0x84, 1, 0, 0, 0}, 1<<32 + 5: {0x85, 1, 0, 0, 0, 5},
	} {
		if got := appendLength(nil, n); !slices.Equal(got, want) {
			t.Errorf("%d: % x", n, got)
		}
	}
}

func BenchmarkSign(b *testing.B) {
	is := issuerOf(b, keys.ECDSAP256)
	entries := manyEntries(100_000)
	b.ReportAllocs()
	for b.Loop() {
		body, _, err := Sign(b.Context(), is, each(entries), fixed(headerOf(is, 1)))
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(body.Size())
		if err := body.Release(); err != nil {
			b.Fatal(err)
		}
	}
}
