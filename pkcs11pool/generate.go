package pkcs11pool

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

// GenerateOptions say what else than signing a key may do.
type GenerateOptions struct {
	Decrypt bool // RSA only: SCEP needs it
}

// A spec is how a token is asked for a key.
type spec struct {
	generates need
	signs     need
	params    [][]byte // CKA_EC_PARAMS, in the forms that tokens know; nil: RSA
}

func ecSpec(bits uint, params []byte) spec {
	return spec{
		generates: need{pkcs11.CKM_EC_KEY_PAIR_GEN, pkcs11.CKF_GENERATE_KEY_PAIR, bits},
		signs:     need{pkcs11.CKM_ECDSA, pkcs11.CKF_SIGN, bits},
		params:    [][]byte{params},
	}
}

func rsaSpec(bits uint) spec {
	return spec{
		generates: need{pkcs11.CKM_RSA_PKCS_KEY_PAIR_GEN, pkcs11.CKF_GENERATE_KEY_PAIR, bits},
		signs:     need{pkcs11.CKM_RSA_PKCS, pkcs11.CKF_SIGN, bits},
	}
}

var specs = map[keys.Algorithm]spec{
	keys.ECDSAP256: ecSpec(256, paramsP256),
	keys.ECDSAP384: ecSpec(384, paramsP384),
	keys.ECDSAP521: ecSpec(521, paramsP521),
	keys.RSA2048:   rsaSpec(2048),
	keys.RSA3072:   rsaSpec(3072),
	keys.RSA4096:   rsaSpec(4096),
	keys.Ed25519: {
		generates: need{ckmECEdwardsKeyPair, pkcs11.CKF_GENERATE_KEY_PAIR, 0},
		signs:     need{ckmEdDSA, pkcs11.CKF_SIGN, 0},
		params:    paramsEd25519,
	},
}

// contests is how often a key is made anew because another process made one of
// the same label at the same moment.
const contests = 3

// Generate implements keys.Generator: a key that can only sign, unless ctx is of
// keys.ToDecrypt, and never leaves its token. With several tokens it is made on the first that can, and
// carrying it over to the others is up to the means of their vendor. A token
// that does not answer may have a key of the label, so then none is made.
func (p *Pool) Generate(ctx context.Context, ref string, alg keys.Algorithm) (keys.Key, error) {
	return p.GenerateWith(ctx, ref, alg, GenerateOptions{Decrypt: keys.IsToDecrypt(ctx)})
}

// GenerateWith is Generate for a key that may do more than sign.
func (p *Pool) GenerateWith(ctx context.Context, ref string, alg keys.Algorithm, o GenerateOptions) (keys.Key, error) {
	m, err := newMaking(ref, alg, o)
	if err != nil {
		return nil, err
	}
	if err := p.ring.take(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", m.op, err)
	}
	defer p.ring.give()
	for range contests {
		t, err := p.vacancy(ctx, m)
		if err != nil {
			return nil, err
		}
		at, err := p.make(ctx, t, m)
		if err == nil {
			return p.keepMade(ctx, t, m, at), nil
		}
		if !errors.Is(err, errContested) {
			return nil, err
		}
		if err := pauseAtRandom(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", m.op, err)
		}
	}
	return nil, fmt.Errorf("%w: %q: %w", keys.ErrExists, ref, errContested)
}

// A making is a key to be made.
type making struct {
	spec
	GenerateOptions
	ref ref
	alg keys.Algorithm
	op  string
}

func newMaking(text string, alg keys.Algorithm, o GenerateOptions) (making, error) {
	r, err := parseRef(text)
	if err != nil {
		return making{}, err
	}
	s, known := specs[alg]
	switch {
	case !known:
		return making{}, fmt.Errorf("pkcs11pool: unknown algorithm %q", alg)
	case o.Decrypt && s.params != nil:
		return making{}, fmt.Errorf("pkcs11pool: a key of algorithm %s can't decrypt: only RSA keys can", alg)
	case r.label == "":
		return making{}, fmt.Errorf("pkcs11pool: %q: a key to be made needs a label", text)
	}
	return making{spec: s, GenerateOptions: o, ref: r, alg: alg, op: "making key " + text}, nil
}

// vacancy chooses the token to make a key on, and makes sure that no token has
// one of its label or ID.
func (p *Pool) vacancy(ctx context.Context, m making) (*token, error) {
	var first *token
	var unable []error
	for _, t := range p.tokens {
		lacks, err := ask(ctx, p, t, m.op, func(c *conn) (error, error) { return p.isVacant(c, m) })
		switch {
		case ctx.Err() != nil:
			return nil, fmt.Errorf("%s: %w", m.op, ctx.Err())
		case err != nil:
			return nil, busy(fmt.Errorf("token %s did not answer: %w", t.name, err))
		case errors.Is(lacks, keys.ErrExists):
			return nil, fmt.Errorf("%w: %q on token %s", keys.ErrExists, m.ref.text, t.name)
		case lacks != nil:
			unable = append(unable, fmt.Errorf("token %s %w", t.name, lacks))
		case first == nil:
			first = t
		}
	}
	if first == nil {
		return nil, fmt.Errorf("pkcs11pool: %s: %w", m.op, errors.Join(unable...))
	}
	return first, nil
}

// isVacant returns why a key can't be made on the token.
func (p *Pool) isVacant(c *conn, m making) (why, err error) {
	able, err := p.abilities(c)
	if err != nil {
		return nil, err
	}
	for _, r := range []ref{{label: m.ref.label}, {id: m.ref.id}} {
		if r.label == "" && len(r.id) == 0 {
			continue
		}
		objects, err := findPrivate(c, r.template(), maxMatches)
		if len(objects) > 0 || errors.Is(err, errTooMany) {
			return keys.ErrExists, nil
		}
		if err != nil {
			return nil, err
		}
	}
	if !m.ref.fits(able.info) {
		return errors.New("is not the one that the URI names"), nil
	}
	if lacks := able.lacks(m.generates, m.signs); len(lacks) > 0 {
		return fmt.Errorf("can't make and sign with %s: it lacks %s", m.alg, strings.Join(lacks, ", ")), nil
	}
	return nil, nil
}

// errContested says that somebody else made a key of the label meanwhile.
var errContested = errors.New("another key of the label was made at the same time")

// make makes a key on a token. A token knows no unique labels, so whoever made
// one looks again: who then sees another key of the label destroys his own and
// begins anew. Of two at once at least one sees the other, and nobody who has
// seen none is ever overtaken, as taking the smaller ID for the winner would do.
func (p *Pool) make(ctx context.Context, t *token, m making) (*place, error) {
	id := m.ref.id
	if len(id) == 0 {
		id = make([]byte, 16)
		if _, err := rand.Read(id); err != nil {
			return nil, err
		}
	}
	var made atomic.Pointer[creation]
	err := p.do(ctx, &job{
		op: m.op,
		on: func(other *token) bool { return other == t },
		rw: true,
		run: func(c *conn) error {
			result, err := p.create(c, m, id)
			if err == nil {
				made.Store(&result)
			}
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	result := made.Load()
	return result.at, result.fault
}

// A creation is a key on a token, or why there is none any more.
type creation struct {
	at    *place
	fault error
}

func (p *Pool) create(c *conn, m making, id []byte) (creation, error) {
	public, private, err := generatePair(c, m, id)
	if err != nil {
		return creation{}, err
	}
	at, fault, err := p.inspect(c, m, id, private)
	if err == nil && fault == nil {
		return creation{at: at}, nil
	}
	gone := destroyPair(c, private, public)
	switch {
	case err != nil && gone != nil:
		// Not as it is: whatever it says was not done, the key was made.
		return creation{}, fmt.Errorf("pkcs11pool: token %s: a key was made, and can't be looked at: %v", c.token.name, err) //nolint:errorlint // see above
	case err != nil:
		c.effect = false
		return creation{}, err
	case gone != nil:
		return creation{}, fmt.Errorf("a key was made and must not be used (%w), but can't be destroyed: %w", fault, gone)
	}
	return creation{fault: fault}, nil
}

func destroyPair(c *conn, private, public pkcs11.ObjectHandle) error {
	return errors.Join(c.DestroyObject(c.session, private), c.DestroyObject(c.session, public))
}

// inspect looks whether a key that was made is what was asked for.
func (p *Pool) inspect(c *conn, m making, id []byte, private pkcs11.ObjectHandle) (at *place, fault, err error) {
	a, err := attributes(c, private, pkcs11.CKA_SENSITIVE, pkcs11.CKA_EXTRACTABLE, pkcs11.CKA_NEVER_EXTRACTABLE)
	if err != nil {
		return nil, nil, err
	}
	if !yes(a[pkcs11.CKA_SENSITIVE]) || !no(a[pkcs11.CKA_EXTRACTABLE]) || !yes(a[pkcs11.CKA_NEVER_EXTRACTABLE]) {
		return nil, fmt.Errorf("pkcs11pool: token %s made a key that can leave it: sensitive %x, extractable %x, never extractable %x",
			c.token.name, a[pkcs11.CKA_SENSITIVE], a[pkcs11.CKA_EXTRACTABLE], a[pkcs11.CKA_NEVER_EXTRACTABLE]), nil
	}
	same, err := findPrivate(c, ref{label: m.ref.label}.template(), maxMatches)
	if len(same) > 1 || errors.Is(err, errTooMany) {
		return nil, errContested, nil
	}
	if err != nil {
		return nil, nil, err
	}
	at, err = p.lookUp(c, ref{text: m.ref.text, label: m.ref.label, id: id})
	switch {
	case err != nil:
		return nil, nil, err
	case at.why != nil:
		return nil, fmt.Errorf("pkcs11pool: token %s made a key that can't be used: %w", c.token.name, at.why), nil
	}
	if alg, _ := keys.AlgorithmOf(at.public); alg != m.alg {
		return nil, fmt.Errorf("pkcs11pool: token %s made a key of algorithm %s, not %s", c.token.name, nameOf(at.public), m.alg), nil
	}
	return at, nil, nil
}

// generatePair asks for a key in the words that the token understands: of what
// makes a key safe it may leave out what is so by default, never that it is
// sensitive and can't be extracted.
func generatePair(c *conn, m making, id []byte) (public, private pkcs11.ObjectHandle, err error) {
	mechanism := []*pkcs11.Mechanism{pkcs11.NewMechanism(m.generates.mechanism, nil)}
	params := m.params
	if params == nil {
		params = [][]byte{nil}
	}
	for _, curve := range params {
		for _, words := range []verbosity{everything, common, least} {
			c.effect = true
			public, private, err = c.GenerateKeyPair(c.session, mechanism, m.publicTemplate(id, curve, words), m.privateTemplate(id, words))
			if err == nil {
				return public, private, nil
			}
			if !isRefusedTemplate(err) {
				return 0, 0, err
			}
			c.effect = false
		}
	}
	return 0, 0, err
}

// A verbosity is how much of a key is spelt out.
type verbosity int

const (
	everything verbosity = iota
	common               // without what younger versions of PKCS#11 brought, and what can't be changed
	least
)

func (m making) privateTemplate(id []byte, words verbosity) []*pkcs11.Attribute {
	t := []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true),
		pkcs11.NewAttribute(pkcs11.CKA_PRIVATE, true),
		pkcs11.NewAttribute(pkcs11.CKA_SENSITIVE, true),
		pkcs11.NewAttribute(pkcs11.CKA_EXTRACTABLE, false),
		pkcs11.NewAttribute(pkcs11.CKA_SIGN, true),
		pkcs11.NewAttribute(pkcs11.CKA_LABEL, m.ref.label),
		pkcs11.NewAttribute(pkcs11.CKA_ID, id),
	}
	if m.Decrypt || words < least {
		t = append(t, pkcs11.NewAttribute(pkcs11.CKA_DECRYPT, m.Decrypt))
	}
	if words < least {
		t = append(t, pkcs11.NewAttribute(pkcs11.CKA_UNWRAP, false), pkcs11.NewAttribute(pkcs11.CKA_DERIVE, false))
	}
	if words < common {
		t = append(
			t,
			pkcs11.NewAttribute(pkcs11.CKA_SIGN_RECOVER, false),
			pkcs11.NewAttribute(pkcs11.CKA_MODIFIABLE, false),
			pkcs11.NewAttribute(pkcs11.CKA_COPYABLE, false),
		)
	}
	return t
}

func (m making) publicTemplate(id, curve []byte, words verbosity) []*pkcs11.Attribute {
	t := []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true),
		pkcs11.NewAttribute(pkcs11.CKA_VERIFY, true),
		pkcs11.NewAttribute(pkcs11.CKA_LABEL, m.ref.label),
		pkcs11.NewAttribute(pkcs11.CKA_ID, id),
	}
	if m.params != nil {
		t = append(t, pkcs11.NewAttribute(pkcs11.CKA_EC_PARAMS, curve))
	} else {
		t = append(
			t,
			pkcs11.NewAttribute(pkcs11.CKA_MODULUS_BITS, m.generates.bits),
			pkcs11.NewAttribute(pkcs11.CKA_PUBLIC_EXPONENT, big.NewInt(65537).Bytes()),
		)
	}
	if words < least {
		t = append(t, pkcs11.NewAttribute(pkcs11.CKA_PRIVATE, false))
	}
	if words < common && m.params == nil {
		t = append(
			t,
			pkcs11.NewAttribute(pkcs11.CKA_ENCRYPT, m.Decrypt),
			pkcs11.NewAttribute(pkcs11.CKA_WRAP, false),
		)
	}
	return t
}

// isRefusedTemplate reports whether the token made no key because it does not
// understand the words.
func isRefusedTemplate(err error) bool {
	code, _ := errors.AsType[pkcs11.Error](err)
	switch code {
	case pkcs11.CKR_ATTRIBUTE_TYPE_INVALID, pkcs11.CKR_ATTRIBUTE_VALUE_INVALID, pkcs11.CKR_ATTRIBUTE_READ_ONLY,
		pkcs11.CKR_TEMPLATE_INCONSISTENT, pkcs11.CKR_TEMPLATE_INCOMPLETE, pkcs11.CKR_DOMAIN_PARAMS_INVALID, ckrCurveNotSupported:
		return true
	}
	return false
}

func (p *Pool) keepMade(ctx context.Context, t *token, m making, at *place) keys.Key {
	p.log.InfoContext(ctx, "key made", "token", t.name, "key", m.ref.text, "algorithm", string(m.alg))
	if len(p.tokens) > 1 {
		p.log.WarnContext(ctx, "key is on one token alone: carry it over to the others", "token", t.name, "key", m.ref.text)
	}
	k := p.newKey(m.ref, at.public)
	k.place(t).Store(at)
	return p.ring.keep(m.ref.text, k.as(at.skills))
}

// pauseAtRandom has those who met not meet again.
func pauseAtRandom(ctx context.Context) error {
	const most = 200 * time.Millisecond
	n, err := rand.Int(rand.Reader, big.NewInt(int64(most)))
	if err != nil {
		return err
	}
	timer := time.NewTimer(time.Duration(n.Int64()))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Destroy implements keys.Destroyer: the key is gone from all tokens, with its
// public key and certificate objects. It begins only when all tokens have said
// whether they have it, and a label that several keys have names none of them.
func (p *Pool) Destroy(ctx context.Context, text string) error {
	r, err := parseRef(text)
	if err != nil {
		return fmt.Errorf("%w: %w", keys.ErrNotFound, err)
	}
	op := "destroying key " + text
	if err := p.ring.take(ctx); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer p.ring.give()
	doomed := make(map[*token]*place)
	for _, t := range p.tokens {
		at, err := ask(ctx, p, t, op, func(c *conn) (*place, error) { return p.onlyPlace(c, r) })
		switch {
		case ctx.Err() != nil:
			return fmt.Errorf("%s: %w", op, ctx.Err())
		case err != nil:
			return busy(fmt.Errorf("token %s did not answer: %w", t.name, err))
		case errors.Is(at.why, keys.ErrNotFound):
		case errors.Is(at.why, errSeveral):
			return fmt.Errorf("pkcs11pool: %s: token %s: %w", op, t.name, at.why)
		default:
			doomed[t] = at
		}
	}
	if len(doomed) == 0 {
		return fmt.Errorf("%w: %q", keys.ErrNotFound, text)
	}
	return p.destroy(ctx, op, doomed)
}

// errSeveral says that a reference is not exact enough to destroy what it names.
var errSeveral = errors.New("several private keys fit: name one by its ID")

// onlyPlace is lookUp for a reference that must name one key.
func (p *Pool) onlyPlace(c *conn, r ref) (*place, error) {
	objects, err := findPrivate(c, r.template(), maxMatches)
	if len(objects) > 1 || errors.Is(err, errTooMany) {
		return &place{why: errSeveral}, nil
	}
	if err != nil {
		return nil, err
	}
	return p.lookUp(c, r)
}

func (p *Pool) destroy(ctx context.Context, op string, doomed map[*token]*place) error {
	for t, at := range doomed {
		// It goes out of use before the first token forgets it, as what has its
		// handle then is up to the token.
		if at.public != nil {
			p.ring.forget(at.public)
		}
		err := p.do(ctx, &job{
			op: op, rw: true, repeatable: true,
			on:  func(other *token) bool { return other == t },
			run: func(c *conn) error { return destroyAt(c, at) },
		})
		if err != nil {
			return err
		}
		p.log.InfoContext(ctx, "key destroyed", "token", t.name, "doing", op)
	}
	return nil
}

// destroyAt destroys the private key last: as long as it is there, destroying
// can be tried again.
func destroyAt(c *conn, at *place) error {
	own := ref{label: string(at.label), id: at.id}
	private, err := findPrivate(c, own.template(), maxMatches)
	if err != nil {
		return err
	}
	namesakes, err := find(c, beside(pkcs11.CKO_PRIVATE_KEY, at.id, at.label), maxMatches)
	if err != nil {
		return err
	}
	var doomed []pkcs11.ObjectHandle
	for _, class := range []uint{pkcs11.CKO_CERTIFICATE, pkcs11.CKO_PUBLIC_KEY} {
		t := beside(class, at.id, at.label)
		if len(namesakes) > 1 && len(at.id) > 0 { // another key has the ID: its objects stay
			t = append(t, pkcs11.NewAttribute(pkcs11.CKA_LABEL, at.label))
		}
		objects, err := find(c, t, maxMatches)
		if err != nil {
			return err
		}
		doomed = append(doomed, objects...)
	}
	c.effect = true
	for _, o := range append(doomed, private...) {
		err := c.DestroyObject(c.session, o)
		if err != nil && !errors.Is(err, pkcs11.Error(pkcs11.CKR_OBJECT_HANDLE_INVALID)) {
			return err
		}
	}
	return nil
}
