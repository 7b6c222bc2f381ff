package crl

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	_ "crypto/sha256" // the hashes of schemes
	_ "crypto/sha512"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"golang.org/x/crypto/cryptobyte"
	cryptobyte_asn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
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

// prepare reads what is to be signed and returns what Sign and verify are given.
func (s scheme) prepare(tbs *io.SectionReader) ([]byte, error) {
	if s.hash == 0 {
		if tbs.Size() > maxMessage {
			return nil, ErrTooLong
		}
		message := make([]byte, tbs.Size())
		_, err := io.ReadFull(tbs, message)
		return message, err
	}
	h := s.hash.New()
	if _, err := io.Copy(h, tbs); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}

// verify says whether sig is that of pub over what prepare returned.
func (s scheme) verify(pub crypto.PublicKey, prepared, sig []byte) error {
	good := false
	switch k := pub.(type) {
	case *ecdsa.PublicKey:
		good = ecdsa.VerifyASN1(k, prepared, sig)
	case *rsa.PublicKey:
		good = rsa.VerifyPKCS1v15(k, s.hash, prepared, sig) == nil
	case ed25519.PublicKey:
		good = ed25519.Verify(k, prepared, sig)
	}
	if !good {
		return errors.New("the signature is not the issuer's")
	}
	return nil
}

// A Summary is what is known of a list's entries once all of them were read.
type Summary struct {
	Entries int
	Latest  time.Time // the last revocation; zero: no entries
}

// Sign encodes a list of entries (RFC 5280 §5.1), has it signed by is and
// returns it. Entries come one after another in the order of Serial and are
// never all in memory. Once they have, head says what else is on the list. The
// signature's purpose, and whether it is repeatable, are ctx's.
//
// What the caller gets is not verified yet: that is the reader's trade.
func Sign(ctx context.Context, is *ca.Issuer, entries iter.Seq2[Entry, error], head func(Summary) (Header, error)) (*Body, Summary, error) {
	scheme, err := schemeOf(is.Key.Public())
	if err != nil {
		return nil, Summary{}, err
	}
	d := newDraft(is.Cert.RawSubject, scheme.alg)
	sum, err := d.list(ctx, entries)
	if err == nil {
		err = d.sign(ctx, is.Key, scheme, sum, head)
	}
	if err != nil {
		return nil, Summary{}, errors.Join(err, d.body.Release())
	}
	return d.body, sum, nil
}

// A draft is a list in the making. The entries' octets must be known before
// what goes in front of them, and the signature's before the very first octet:
// so entries are written first, behind a gap that is wide enough for both.
type draft struct {
	body   *Body
	issuer []byte
	alg    []byte
	gap    int64
	octets int64 // of entries
}

// opening is how long all that stands before the entries is at most, issuer and
// algorithm aside.
const opening = 96

func newDraft(issuer, alg []byte) *draft {
	d := &draft{body: newBody(), issuer: issuer, alg: alg, gap: int64(len(issuer) + len(alg) + opening)}
	return d
}

// list writes the entries.
func (d *draft) list(ctx context.Context, entries iter.Seq2[Entry, error]) (Summary, error) {
	var (
		sum  Summary
		last ca.Serial
		buf  = make([]byte, d.gap, 32<<10)
	)
	for e, err := range entries {
		if err != nil {
			return sum, fmt.Errorf("reading what is revoked: %w", err)
		}
		if e.Serial <= last {
			return sum, fmt.Errorf("serial %s comes after %s", e.Serial, last)
		}
		if buf, err = appendEntry(buf, e); err != nil {
			return sum, fmt.Errorf("listing: %w", err)
		}
		last = e.Serial
		if e.RevokedAt.After(sum.Latest) {
			sum.Latest = e.RevokedAt
		}
		if sum.Entries++; len(buf) < cap(buf)-128 {
			continue
		}
		if err := ctx.Err(); err != nil {
			return sum, err
		}
		if err := d.body.write(buf); err != nil {
			return sum, err
		}
		buf = buf[:0]
	}
	err := d.body.write(buf)
	d.octets = d.body.spool.size - d.gap
	return sum, err
}

// sign writes what stands around the entries.
func (d *draft) sign(ctx context.Context, key keys.Key, s scheme, sum Summary, head func(Summary) (Header, error)) error {
	h, err := head(sum)
	if err != nil {
		return err
	}
	f, err := newFrame(d.issuer, d.alg, h, d.octets)
	if err != nil {
		return err
	}
	from := d.gap - int64(len(f.opening))
	if err := d.body.overwrite(f.opening, from); err != nil {
		return err
	}
	if err := d.body.write(f.closing); err != nil {
		return err
	}
	prepared, err := s.prepare(io.NewSectionReader(&d.body.spool, from, d.body.spool.size-from))
	if err != nil {
		return err
	}
	sig, err := key.Sign(ctx, prepared, s.hash)
	if err != nil {
		return fmt.Errorf("signing: %w", err)
	}
	tail, err := appendSignature(append([]byte(nil), s.alg...), sig)
	if err != nil {
		return fmt.Errorf("encoding signature: %w", err)
	}
	if err := d.body.write(tail); err != nil {
		return err
	}
	first := appendLength([]byte{tagSequence}, d.body.spool.size-from)
	d.body.start = from - int64(len(first))
	return d.body.overwrite(first, d.body.start)
}
