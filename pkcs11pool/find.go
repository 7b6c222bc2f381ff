package pkcs11pool

import (
	"bytes"
	"context"
	"crypto"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

const (
	maxLabel   = 64 // characters
	maxID      = 64 // bytes
	maxMatches = 64 // objects that are looked at for one key
)

// A ref is what a key is looked up by: all of it that is given must fit.
type ref struct {
	text  string // as it was given
	label string
	id    []byte
	token URI // what it says of the token
}

// parseRef reads a label or a URI.
func parseRef(text string) (ref, error) {
	r := ref{text: text, label: text}
	if len(text) >= len(URIScheme) && strings.EqualFold(text[:len(URIScheme)], URIScheme) {
		u, err := ParseURI(text)
		if err != nil {
			return ref{}, err
		}
		if u.Type != "" && u.Type != "private" {
			return ref{}, fmt.Errorf("pkcs11pool: %q names an object of type %s, not a private key", text, u.Type)
		}
		if u.Object == "" && len(u.ID) == 0 {
			return ref{}, fmt.Errorf("pkcs11pool: %q names no key: give object, id or both", text)
		}
		r = ref{text: text, label: u.Object, id: u.ID, token: u}
	}
	if len(r.id) > maxID {
		return ref{}, fmt.Errorf("pkcs11pool: the ID in %q has %d bytes, at most %d are used", text, len(r.id), maxID)
	}
	if len(r.id) > 0 && r.label == "" {
		return r, nil
	}
	return r, checkLabel(r.label)
}

func checkLabel(label string) error {
	if n := utf8.RuneCountInString(label); n < 1 || n > maxLabel || !utf8.ValidString(label) {
		return fmt.Errorf("pkcs11pool: a label has 1 to %d characters", maxLabel)
	}
	if strings.ContainsFunc(label, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return fmt.Errorf("pkcs11pool: label %q has a character that can't be printed", label)
	}
	return nil
}

// fits reports whether a key of the reference can be on such a token.
func (r ref) fits(info pkcs11.TokenInfo) bool {
	fit := func(want, is string) bool { return want == "" || want == strings.TrimRight(is, " \x00") }
	return fit(r.token.Token, info.Label) && fit(r.token.Serial, info.SerialNumber) &&
		fit(r.token.Manufacturer, info.ManufacturerID) && fit(r.token.Model, info.Model)
}

// template finds the private keys of the reference.
func (r ref) template() []*pkcs11.Attribute {
	t := []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PRIVATE_KEY),
		pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true),
	}
	if r.label != "" {
		t = append(t, pkcs11.NewAttribute(pkcs11.CKA_LABEL, r.label))
	}
	if len(r.id) > 0 {
		t = append(t, pkcs11.NewAttribute(pkcs11.CKA_ID, r.id))
	}
	return t
}

// beside finds the objects of a class that belong to a key: those of its ID or,
// if it has none, of its label.
func beside(class uint, id, label []byte) []*pkcs11.Attribute {
	t := []*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_CLASS, class), pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true)}
	if len(id) > 0 {
		return append(t, pkcs11.NewAttribute(pkcs11.CKA_ID, id))
	}
	return append(t, pkcs11.NewAttribute(pkcs11.CKA_LABEL, label))
}

// errTooMany says that there are more objects than are looked at.
var errTooMany = errors.New("pkcs11pool: too many objects")

// find returns at most limit objects, or errTooMany. The search is ended in any
// case, as a session can't begin another before.
func find(c *conn, template []*pkcs11.Attribute, limit int) (found []pkcs11.ObjectHandle, err error) {
	if err := c.FindObjectsInit(c.session, template); err != nil {
		return nil, err
	}
	defer func() {
		if end := c.FindObjectsFinal(c.session); end != nil && err == nil {
			found, err = nil, end
		}
	}()
	for {
		// One more than is wanted, to know whether there is one.
		some, _, err := c.FindObjects(c.session, min(limit+1-len(found), maxMatches))
		if err != nil {
			return nil, err
		}
		if len(some) == 0 {
			return found, nil
		}
		if found = append(found, some...); len(found) > limit {
			return nil, errTooMany
		}
	}
}

// findPrivate is find for private keys. A token shows none to a session whose
// login was lost, as by a restart, and gives no error: that must not be taken for
// having none.
func findPrivate(c *conn, template []*pkcs11.Attribute, limit int) ([]pkcs11.ObjectHandle, error) {
	found, err := find(c, template, limit)
	if err != nil && !errors.Is(err, errTooMany) {
		return nil, err
	}
	if lost := c.token.stillLoggedIn(c); lost != nil {
		return nil, lost
	}
	return found, err
}

// attributes reads attributes of an object; those that it has not, or does not
// show, are missing. A token refuses them all for the sake of one that it does
// not know, so then they are asked for one by one.
func attributes(c *conn, o pkcs11.ObjectHandle, types ...uint) (map[uint][]byte, error) {
	ask := make([]*pkcs11.Attribute, len(types))
	for i, t := range types {
		ask[i] = pkcs11.NewAttribute(t, nil)
	}
	got, err := c.GetAttributeValue(c.session, o, ask)
	if isWithheld(err) && len(types) > 1 {
		all := make(map[uint][]byte, len(types))
		for _, t := range types {
			one, err := attributes(c, o, t)
			if err != nil {
				return nil, err
			}
			if v, ok := one[t]; ok {
				all[t] = v
			}
		}
		return all, nil
	}
	if isWithheld(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := make(map[uint][]byte, len(got))
	for _, a := range got {
		if len(a.Value) > 0 && len(a.Value) <= maxAttribute {
			all[a.Type] = a.Value
		}
	}
	return all, nil
}

// isWithheld reports whether a token has an attribute not, or not for us.
func isWithheld(err error) bool {
	code, ok := errors.AsType[pkcs11.Error](err)
	return ok && (code == pkcs11.CKR_ATTRIBUTE_TYPE_INVALID || code == pkcs11.CKR_ATTRIBUTE_SENSITIVE)
}

// number reads a CK_ULONG, which is in the order and size of the machine; ^0 if
// it is none.
func number(b []byte) uint {
	switch len(b) {
	case 4:
		return uint(binary.NativeEndian.Uint32(b))
	case 8:
		return uint(binary.NativeEndian.Uint64(b))
	}
	return ^uint(0)
}

// yes reads a CK_BBOOL.
func yes(b []byte) bool { return len(b) == 1 && b[0] != 0 }

// no reads one that must be told, as false.
func no(b []byte) bool { return len(b) == 1 && b[0] == 0 }

// A skill is something that a key can do on a token.
type skill uint8

const (
	canSign skill = 1 << iota
	canSignPSS
	canDecrypt
	canDecryptRaw // as far as the token's mechanisms tell
)

// A place is where a key is on a token, for as long as handles mean the same
// objects there.
type place struct {
	objects uint64
	handle  pkcs11.ObjectHandle
	id      []byte
	label   []byte
	public  crypto.PublicKey
	skills  skill
	asks    bool   // for the PIN, before each use
	owner   string // the token, by the name that its refused PINs have
	// why the key can't be used on the token: keys.ErrNotFound, or what is
	// wrong with it. Then handle means nothing.
	why error
	// doubtful says that the token has refused something that it should be able
	// to do.
	doubtful bool
	again    time.Time // when it is looked for again, if doubtful or with a why
}

// holds reports whether what is known of a place on t still holds.
func (at *place) holds(t *token) bool {
	if at == nil || at.objects != t.objects() {
		return false
	}
	return at.why == nil && !at.doubtful || time.Now().Before(at.again)
}

// had reports whether the token has had the key, as far as is known.
func (at *place) had() bool { return at != nil && at.why == nil }

// lookUp finds the key of a reference on the token. Its error says that the token
// did not answer.
func (p *Pool) lookUp(c *conn, r ref) (*place, error) {
	at := &place{objects: c.token.objects(), again: time.Now().Add(mostPause)}
	able, err := p.abilities(c)
	if err != nil {
		return nil, err
	}
	if !r.fits(able.info) {
		at.why = keys.ErrNotFound
		return at, nil
	}
	objects, err := findPrivate(c, r.template(), maxMatches)
	if errors.Is(err, errTooMany) {
		at.why = fmt.Errorf("more than %d private keys fit", maxMatches)
		return at, nil
	}
	if err != nil {
		return nil, err
	}
	if len(objects) == 0 {
		at.why = keys.ErrNotFound
		return at, nil
	}
	if err := p.choose(c, r, objects, at); err != nil || at.why != nil {
		return at, err
	}
	return at, p.describe(c, able, at)
}

// choose takes the key of the smallest ID, as every replica would.
func (p *Pool) choose(c *conn, r ref, objects []pkcs11.ObjectHandle, at *place) error {
	ids := make([][]byte, len(objects))
	for i, o := range objects {
		a, err := attributes(c, o, pkcs11.CKA_ID, pkcs11.CKA_LABEL)
		if err != nil {
			return err
		}
		ids[i] = a[pkcs11.CKA_ID]
		if i == 0 || bytes.Compare(ids[i], at.id) < 0 {
			at.handle, at.id, at.label = o, ids[i], a[pkcs11.CKA_LABEL]
		}
	}
	if len(ids) == 1 {
		return nil
	}
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = hex.EncodeToString(id)
	}
	slices.Sort(names)
	if names[0] == names[1] {
		at.why = fmt.Errorf("%d private keys fit, two of them with the ID %q", len(ids), names[0])
		return nil
	}
	p.log.Warn("several private keys have the label: the one with the smallest ID is used; name it by its ID",
		slog.String("token", c.token.name), slog.String("key", r.text), slog.Any("ids", names))
	return nil
}

// describe reads what the private key at a place is and can do.
func (p *Pool) describe(c *conn, able *abilities, at *place) error {
	a, err := attributes(c, at.handle, pkcs11.CKA_KEY_TYPE, pkcs11.CKA_SIGN, pkcs11.CKA_DECRYPT)
	if err != nil {
		return err
	}
	kind := number(a[pkcs11.CKA_KEY_TYPE])
	if kind != pkcs11.CKK_RSA && kind != pkcs11.CKK_EC && kind != ckkECEdwards {
		at.why = fmt.Errorf("a private key of type %#x, which is not used", kind)
		return nil
	}
	if at.public, at.why, err = publicOf(c, at.handle, kind, at.id, at.label); err != nil || at.why != nil {
		return err
	}
	more, err := attributes(c, at.handle, pkcs11.CKA_ALWAYS_AUTHENTICATE)
	if err != nil {
		return err
	}
	at.asks = yes(more[pkcs11.CKA_ALWAYS_AUTHENTICATE])
	at.owner = able.info.SerialNumber + "/" + able.info.Label
	at.skills, at.why = able.skillsOf(at.public, yes(a[pkcs11.CKA_SIGN]), yes(a[pkcs11.CKA_DECRYPT]))
	return nil
}

// ask has a token answer a question, which asking twice does not change.
func ask[T any](ctx context.Context, p *Pool, t *token, op string, question func(*conn) (T, error)) (T, error) {
	// A session that answers late finds nobody waiting, so the answer is not
	// written where somebody reads.
	var answer atomic.Pointer[T]
	err := p.do(ctx, &job{
		op:         op,
		on:         func(other *token) bool { return other == t },
		repeatable: true,
		run: func(c *conn) error {
			v, err := question(c)
			if err == nil {
				answer.Store(&v)
			}
			return err
		},
	})
	if err != nil {
		var none T
		return none, err
	}
	return *answer.Load(), nil
}
