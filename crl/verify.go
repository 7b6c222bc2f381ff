package crl

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/secsy-pki/secsy-pki/ca"
)

// Verify reads a list whole, once and in little memory, and says what is on it.
// It is an error if the list is not one of is, signed by it, its serials in order
// and none of them twice.
func Verify(b *Body, is *ca.Issuer) (Info, error) { return verify(b, is, nil) }

// verify is Verify. Of a list of which it is known what was signed, its signature
// is to be that, and its octets those.
func verify(b *Body, is *ca.Issuer, signed *prepared) (Info, error) {
	scheme, err := schemeOf(is.Cert.PublicKey)
	if err != nil {
		return Info{}, err
	}
	r := newReader(b)
	r.whole = sha256.New()
	if signed == nil {
		r.scheme = &scheme
	} else {
		r.crc = crc32.New(castagnoli)
	}
	if _, err := r.open(); err != nil {
		return Info{}, err
	}
	for {
		_, more, err := r.next()
		if err != nil {
			return Info{}, err
		}
		if !more {
			break
		}
	}
	info, err := r.finish()
	switch {
	case err != nil:
		return Info{}, err
	case !bytes.Equal(info.Issuer, is.Cert.RawSubject):
		return Info{}, errors.New("issuer is not the CA's subject octet for octet")
	case !bytes.Equal(info.alg, scheme.alg):
		return Info{}, errors.New("the signature is of another algorithm than the issuer's")
	case !info.names(is.Cert.SubjectKeyId):
		return Info{}, errors.New("authority key identifier is not the CA's")
	}
	if signed == nil {
		return info, scheme.verify(is.Cert.PublicKey, r.signed.sum(), info.sig)
	}
	if r.crc.Sum32() != signed.crc {
		return Info{}, errors.New("it is not what was signed")
	}
	return info, scheme.verify(is.Cert.PublicKey, signed.sum, info.sig)
}

// names says whether the list names the key of that identifier.
func (i Info) names(id []byte) bool {
	for _, e := range i.Extensions {
		if e.Id.Equal(oidAuthorityKeyID) {
			return bytes.Equal(e.Value, AuthorityKeyID(id).Value)
		}
	}
	return false
}

// missingAtOnce is how many serials are asked about at a time.
const missingAtOnce = 1000

// follows says whether next may follow previous, both verified: a later number
// of the same scope, from which nothing has gone without a reason. explain is
// asked for the serials of previous that are not on next, and returns those
// which should be.
func follows(ctx context.Context, previous, next *Body, explain func(context.Context, []ca.Serial) ([]ca.Serial, error)) error {
	old, err := read(previous)
	if err != nil {
		return fmt.Errorf("the CRL before: %w", err)
	}
	current, err := read(next)
	if err != nil {
		return err
	}
	missing := &absentees{explain: explain}
	if err := compare(ctx, old, current, missing.add); err != nil {
		return err
	}
	if err := missing.ask(ctx); err != nil {
		return err
	}
	before, err := old.finish()
	if err != nil {
		return fmt.Errorf("the CRL before: %w", err)
	}
	after, err := current.finish()
	switch {
	case err != nil:
		return err
	case after.Number <= before.Number:
		return fmt.Errorf("number %d comes after %d", after.Number, before.Number)
	case !bytes.Equal(after.Scope(), before.Scope()):
		return errors.New("the scope is another one than that of the CRL before")
	}
	return nil
}

// compare reads both lists to the end of their entries and calls gone for each
// that only old has.
func compare(ctx context.Context, old, current *reader, gone func(context.Context, ca.Serial) error) error {
	have, more, err := current.next()
	if err != nil {
		return err
	}
	for {
		was, any, err := old.next()
		if err != nil {
			return fmt.Errorf("the CRL before: %w", err)
		}
		if !any {
			break
		}
		for more && bytes.Compare(have.serial, was.serial) < 0 {
			if have, more, err = current.next(); err != nil {
				return err
			}
		}
		if more && bytes.Equal(have.serial, was.serial) {
			continue
		}
		if err := gone(ctx, was.Serial()); err != nil {
			return err
		}
	}
	for more {
		if _, more, err = current.next(); err != nil {
			return err
		}
	}
	return nil
}

// absentees are serials of the CRL before that are not on the next, a few at a time.
type absentees struct {
	serials []ca.Serial
	explain func(context.Context, []ca.Serial) ([]ca.Serial, error)
}

func (a *absentees) add(ctx context.Context, s ca.Serial) error {
	if a.serials = append(a.serials, s); len(a.serials) < missingAtOnce {
		return nil
	}
	return a.ask(ctx)
}

func (a *absentees) ask(ctx context.Context) error {
	if len(a.serials) == 0 {
		return nil
	}
	lost, err := a.explain(ctx, a.serials)
	if err != nil {
		return fmt.Errorf("asking why entries have gone: %w", err)
	}
	if len(lost) > 0 {
		return fmt.Errorf("%d entries have gone without a reason, %s among them", len(lost), lost[0])
	}
	a.serials = a.serials[:0]
	return nil
}
