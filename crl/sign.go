package crl

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	_ "crypto/sha256" // the hashes of schemes
	_ "crypto/sha512"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"iter"
	"slices"
	"time"

	"golang.org/x/crypto/cryptobyte"
	cryptobyte_asn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/ca"
)

// maxMessage bounds what a key is given that signs messages, not digests
// (Ed25519): all of the list must be in memory for that. It holds 1.3 million
// entries; a CA with more needs shards, or another key.
const maxMessage = 64 << 20

// ErrTooLong says that a list is too long for a key that signs whole messages.
var ErrTooLong = errors.New("crl: an Ed25519 key signs the whole list at once, and this one is too long for that: use shards")

// A scheme is how a key signs.
type scheme struct {
	hash crypto.Hash // 0: the key signs the message itself
	alg  []byte      // AlgorithmIdentifier, DER
}

func schemeOf(pub crypto.PublicKey) (scheme, error) {
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		switch k.Curve { // RFC 5758 §3.2
		case elliptic.P256():
			return newScheme(crypto.SHA256, asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}, false), nil
		case elliptic.P384():
			return newScheme(crypto.SHA384, asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 3}, false), nil
		case elliptic.P521():
			return newScheme(crypto.SHA512, asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 4}, false), nil
		}
	case *rsa.PublicKey: // RFC 4055 §5: with NULL parameters
		return newScheme(crypto.SHA256, asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, true), nil
	case ed25519.PublicKey: // RFC 8410 §6
		return newScheme(0, asn1.ObjectIdentifier{1, 3, 101, 112}, false), nil
	}
	return scheme{}, errors.New("lists are signed with RSA, ECDSA on P-256, P-384 or P-521, or Ed25519")
}

func newScheme(h crypto.Hash, oid asn1.ObjectIdentifier, null bool) scheme {
	var b cryptobyte.Builder
	b.AddASN1(cryptobyte_asn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(oid)
		if null {
			b.AddASN1NULL()
		}
	})
	return scheme{hash: h, alg: b.BytesOrPanic()}
}

// A message is what a key signs: the hash of what is written to it, or all of it.
type message struct {
	hash   hash.Hash // nil: all of it
	octets []byte
}

// A prepared is what Sign is given, and by what the octets that it was made of are
// known again when they are read back: a checksum that one accident in 2^32 gets
// past. Hashing them once more is a tenth of the work of a long list.
type prepared struct {
	sum []byte
	crc uint32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// message returns one that takes so many octets.
func (s scheme) message(size int64) (*message, error) {
	if s.hash != 0 {
		return &message{hash: s.hash.New()}, nil
	}
	if size > maxMessage {
		return nil, ErrTooLong
	}
	return &message{octets: make([]byte, 0, size)}, nil
}

// Write never fails.
func (m *message) Write(p []byte) (int, error) {
	if m.hash != nil {
		return m.hash.Write(p)
	}
	m.octets = append(m.octets, p...)
	return len(p), nil
}

// sum returns what Sign and verify are given.
func (m *message) sum() []byte {
	if m.hash != nil {
		return m.hash.Sum(nil)
	}
	return m.octets
}

// prepare reads what is to be signed.
func (s scheme) prepare(tbs *io.SectionReader) (prepared, error) {
	m, err := s.message(tbs.Size())
	if err != nil {
		return prepared{}, err
	}
	crc := crc32.New(castagnoli)
	if _, err := io.Copy(io.MultiWriter(m, crc), tbs); err != nil {
		return prepared{}, err
	}
	return prepared{m.sum(), crc.Sum32()}, nil
}

// verify says whether sig is that of pub over what a message's sum is.
func (s scheme) verify(pub crypto.PublicKey, sum, sig []byte) error {
	good := false
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		good = ecdsa.VerifyASN1(k, sum, sig)
	case *rsa.PublicKey:
		good = rsa.VerifyPKCS1v15(k, s.hash, sum, sig) == nil
	case ed25519.PublicKey:
		good = ed25519.Verify(k, sum, sig)
	}
	if !good {
		return errors.New("the signature is not the issuer's")
	}
	return nil
}

// A Summary is what is known of a list's entries once all of them were read.
type Summary struct {
	Entries int
	Latest  time.Time // the last revocation, to the second; zero: no entries
}

// Sign encodes a list of entries (RFC 5280 §5.1), has it signed by is, reads it
// back before anybody else sees it, and returns it. Entries come one after
// another in the order of Serial and are never all in memory. Once they have
// come, head says what else is on the list. The signature's purpose, and whether
// it is repeatable, are ctx's. Who gets the body releases it.
func Sign(ctx context.Context, is *ca.Issuer, entries iter.Seq2[Entry, error], head func(Summary) (Header, error)) (*Body, Info, error) {
	d := &draft{body: newBody(), issuer: is}
	info, err := d.make(ctx, entries, head)
	if err != nil {
		return nil, Info{}, errors.Join(err, d.body.Release())
	}
	return d.body, info, nil
}

// A draft is a list in the making. How long the entries are must be known before
// what goes in front of them, and how long the signature is before the very
// first octet: so entries are written first, behind a gap that is wide enough
// for both.
type draft struct {
	body   *Body
	issuer *ca.Issuer
	scheme scheme
	gap    int64
	octets int64 // of entries
	sum    Summary
	latest int64  // revocation
	digest digest // of the entries
	header Header
	signed prepared
}

// opening is how long all that stands before the entries is at most, issuer and
// algorithm aside.
const opening = 96

func (d *draft) make(ctx context.Context, entries iter.Seq2[Entry, error], head func(Summary) (Header, error)) (Info, error) {
	var err error
	if d.scheme, err = schemeOf(d.issuer.Key.Public()); err != nil {
		return Info{}, err
	}
	d.gap = int64(len(d.issuer.Cert.RawSubject) + len(d.scheme.alg) + opening)
	if err := d.list(ctx, entries); err != nil {
		return Info{}, err
	}
	if d.sum.Entries > 0 {
		d.sum.Latest = time.Unix(d.latest, 0).UTC()
	}
	if d.header, err = head(d.sum); err != nil {
		return Info{}, err
	}
	if err := d.sign(ctx); err != nil {
		return Info{}, err
	}
	info, err := d.check()
	if err != nil {
		return Info{}, fmt.Errorf("checking what was signed: %w", err)
	}
	return info, nil
}

// writeBuffer is how many octets of entries are written at once.
const writeBuffer = 256 << 10

// list writes the entries.
func (d *draft) list(ctx context.Context, entries iter.Seq2[Entry, error]) error {
	var (
		last   ca.Serial
		serial [maxSerial]byte
		date   stamp
		buf    = make([]byte, d.gap, writeBuffer)
	)
	for e, err := range entries {
		if err != nil {
			return fmt.Errorf("reading what is revoked: %w", err)
		}
		if e.Serial <= last {
			return fmt.Errorf("serial %s comes after %s", e.Serial, last)
		}
		last = e.Serial
		l, err := listedOf(e, &serial)
		if err != nil {
			return fmt.Errorf("listing: %w", err)
		}
		if buf, err = appendEntry(buf, l, &date); err != nil {
			return fmt.Errorf("listing %s: %w", e.Serial, err)
		}
		d.note(l)
		if len(buf) < cap(buf)-maxEntry {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := d.body.Write(buf); err != nil {
			return err
		}
		buf = buf[:0]
	}
	_, err := d.body.Write(buf)
	d.octets = d.body.spool.size - d.gap
	return err
}

func (d *draft) note(l listed) {
	if d.sum.Entries == 0 || l.revokedAt > d.latest {
		d.latest = l.revokedAt
	}
	d.sum.Entries++
	d.digest.add(l)
}

// sign writes what stands around the entries.
func (d *draft) sign(ctx context.Context) error {
	f, err := newFrame(d.issuer.Cert.RawSubject, d.scheme.alg, d.header, d.octets)
	if err != nil {
		return err
	}
	from := d.gap - int64(len(f.opening))
	if err := d.body.overwrite(f.opening, from); err != nil {
		return err
	}
	if _, err := d.body.Write(f.closing); err != nil {
		return err
	}
	d.signed, err = d.scheme.prepare(io.NewSectionReader(&d.body.spool, from, d.body.spool.size-from))
	if err != nil {
		return err
	}
	sig, err := d.issuer.Key.Sign(ctx, d.signed.sum, d.scheme.hash)
	if err != nil {
		return fmt.Errorf("signing: %w", err)
	}
	tail, err := appendSignature(d.scheme.alg, sig)
	if err != nil {
		return fmt.Errorf("encoding signature: %w", err)
	}
	if _, err := d.body.Write(tail); err != nil {
		return err
	}
	first := appendLength([]byte{tagSequence}, d.body.spool.size-from)
	d.body.start = from - int64(len(first))
	return d.body.overwrite(first, d.body.start)
}

// check holds the finished list against what it was to say.
func (d *draft) check() (Info, error) {
	info, err := verify(d.body, d.issuer, &d.signed)
	switch {
	case err != nil:
		return Info{}, err
	case !info.ThisUpdate.Equal(d.header.ThisUpdate.Truncate(time.Second)), !info.NextUpdate.Equal(d.header.NextUpdate.Truncate(time.Second)):
		return Info{}, errors.New("the times are others")
	case !slices.EqualFunc(info.Extensions, d.header.Extensions, sameExtension):
		return Info{}, errors.New("the extensions are others")
	case info.Entries != d.sum.Entries:
		return Info{}, fmt.Errorf("%d entries became %d", d.sum.Entries, info.Entries)
	case info.digest != d.digest:
		return Info{}, errors.New("the entries are others")
	}
	return info, nil
}

func sameExtension(a, b pkix.Extension) bool {
	return a.Id.Equal(b.Id) && a.Critical == b.Critical && bytes.Equal(a.Value, b.Value)
}
