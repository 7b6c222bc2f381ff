package app

import (
	"cmp"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/pkcs11pool"
)

// A Keyring is the keys that a configuration names, for whoever looks after
// them. It needs no database, and may be open while the program serves.
type Keyring struct {
	issuers []config.Issuer
	files   *keys.Files // nil: they are on tokens
	dir     string
	pool    *pkcs11pool.Pool // nil: they are in files
}

// OpenKeyring opens the keys of c.
func OpenKeyring(ctx context.Context, c *config.Config, ask Prompt) (*Keyring, error) {
	k := &Keyring{issuers: c.Issuers, dir: string(c.Keys.Directory)}
	var err error
	if c.Keys.PKCS11.Enabled() {
		k.pool, err = openPool(ctx, &c.Keys.PKCS11, ask, pkcs11pool.Config{})
	} else {
		k.files, err = openFiles(c, slog.New(slog.DiscardHandler))
	}
	if err != nil {
		return nil, err
	}
	return k, nil
}

// Close gives the tokens back.
func (k *Keyring) Close() error {
	if k.pool == nil {
		return nil
	}
	return k.pool.Close()
}

// A KeyInfo is what can be told of a private key.
type KeyInfo struct {
	Token       string `json:"token,omitempty"`
	File        string `json:"file,omitempty"`
	Label       string `json:"label"`
	ID          string `json:"id,omitempty"` // of the object on the token, in hexadecimal
	Algorithm   string `json:"algorithm,omitempty"`
	SPKIHash    string `json:"spki_sha256,omitempty"` // of the public key, as "cert show" has it
	Certificate string `json:"certificate,omitempty"` // the subject of the one beside it
	Sign        bool   `json:"sign"`
	Decrypt     bool   `json:"decrypt"`
	// Bound reports that the key has never been, and never will be, readable
	// outside of its token.
	Bound  bool   `json:"never_extractable"`
	Doubt  string `json:"doubt,omitempty"` // what an operator should look into
	Public string `json:"public_key,omitempty"`
}

func (i *KeyInfo) setPublic(pub crypto.PublicKey) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return // a kind of key that we have no use for
	}
	sum := sha256.Sum256(der)
	i.SPKIHash = hex.EncodeToString(sum[:])
	i.Public = string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	alg, _ := keys.AlgorithmOf(pub)
	i.Algorithm = string(alg)
}

// List describes all private keys. What can't be asked is in the error, beside
// the rest.
func (k *Keyring) List(ctx context.Context) ([]KeyInfo, error) {
	if k.files != nil {
		return k.listFiles(ctx)
	}
	objects, err := k.pool.List(ctx)
	list := make([]KeyInfo, 0, len(objects))
	for _, o := range objects {
		list = append(list, objectInfo(o))
	}
	slices.SortStableFunc(list, func(a, b KeyInfo) int {
		return cmp.Or(cmp.Compare(a.Label, b.Label), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Token, b.Token))
	})
	return list, err
}

func (k *Keyring) listFiles(ctx context.Context) (list []KeyInfo, err error) {
	labels, err := k.files.List(ctx)
	errs := []error{err}
	for _, label := range labels {
		key, err := k.files.Key(ctx, label)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		list = append(list, k.fileInfo(label, key))
	}
	return list, errors.Join(errs...)
}

func (k *Keyring) fileInfo(label string, key keys.Key) KeyInfo {
	i := KeyInfo{File: filepath.Join(k.dir, label+".pem"), Label: label, Sign: true}
	i.setPublic(key.Public())
	return i
}

func objectInfo(o pkcs11pool.Object) KeyInfo {
	i := KeyInfo{
		Token: o.Token, Label: o.Label, ID: o.ID, Algorithm: string(o.Algorithm), Sign: o.Sign, Decrypt: o.Decrypt,
		Bound: o.Sensitive && !o.Extractable && o.NeverExtractable && o.Local,
	}
	if o.Public != nil {
		i.setPublic(o.Public)
	}
	if o.Certificate != nil {
		i.Certificate = o.Certificate.Subject.String()
	}
	i.Doubt = doubt(o)
	return i
}

// doubt is the worst that is to be said of a key on a token.
func doubt(o pkcs11pool.Object) string {
	switch {
	case o.Extractable || !o.Sensitive:
		return "the token lets it be read"
	case !o.Local:
		return "it was not made on the token: a copy may be elsewhere"
	case !o.NeverExtractable:
		return "the token has let it be read before"
	case o.AlwaysAuthenticate:
		return "the token asks for the PIN before each signature, which this program does not give"
	case o.Public == nil:
		return "there is neither a public key nor a certificate beside it, without which it can't be used"
	case o.Algorithm == "":
		return "a kind or size of key that this program does not use"
	case !o.Sign:
		return "it must not sign"
	}
	return ""
}

// Generate makes a key. One that decrypts too is for SCEP, and must be RSA.
func (k *Keyring) Generate(ctx context.Context, label, algorithm string, decrypt bool) (KeyInfo, error) {
	alg := keys.Algorithm(algorithm)
	if k.files != nil {
		if decrypt {
			return KeyInfo{}, errors.New("keys in files can't be made to decrypt")
		}
		key, err := k.files.Generate(ctx, label, alg)
		if err != nil {
			return KeyInfo{}, err
		}
		return k.fileInfo(label, key), nil
	}
	key, err := k.pool.GenerateWith(ctx, label, alg, pkcs11pool.GenerateOptions{Decrypt: decrypt})
	if err != nil {
		return KeyInfo{}, err
	}
	objects, err := k.pool.List(ctx)
	i := slices.IndexFunc(objects, func(o pkcs11pool.Object) bool { return same(o.Public, key.Public()) })
	if i < 0 {
		return KeyInfo{}, errors.Join(fmt.Errorf("key %q was made, but is not listed", label), err)
	}
	return objectInfo(objects[i]), nil
}

// same reports whether two public keys are one. Either may be nil.
func same(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(x crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// store is where the keys are.
func (k *Keyring) store() interface {
	keys.Store
	keys.Destroyer
} {
	if k.files != nil {
		return k.files
	}
	return k.pool
}

// Destroy destroys a key for good. That of an issuer is refused, for the status
// of what it issued could no longer be signed.
func (k *Keyring) Destroy(ctx context.Context, label string) error {
	key, err := k.store().Key(ctx, label)
	for i, is := range k.issuers {
		if string(is.Key) == label || err == nil && k.isKey(ctx, string(is.Key), key.Public()) {
			return fmt.Errorf("key %s is that of issuers[%d] (%s): take the issuer out of the configuration first", label, i, is.Name)
		}
	}
	return k.store().Destroy(ctx, label)
}

func (k *Keyring) isKey(ctx context.Context, ref string, pub crypto.PublicKey) bool {
	key, err := k.store().Key(ctx, ref)
	return err == nil && same(key.Public(), pub)
}

// StoreCertificate stores the certificate of a PEM file beside its key, for
// other programs that use the token.
func (k *Keyring) StoreCertificate(ctx context.Context, label, file string) (*x509.Certificate, error) {
	if k.pool == nil {
		return nil, errors.New("certificates are stored beside keys on tokens only; these keys are in files")
	}
	cert, err := readCertificate(file)
	if err != nil {
		return nil, err
	}
	return cert, k.pool.StoreCertificate(ctx, label, cert)
}

// Check says on out what tokens can do, and where the key of each issuer is.
// Nothing is signed, for a CA's key signs nothing that is not on record.
func (k *Keyring) Check(ctx context.Context, out io.Writer) error {
	list := checklist{out: out}
	if k.pool != nil {
		list.tokens(ctx, k.pool)
	} else {
		list.ok(nil, "keys in %s", k.dir)
	}
	k.checkIssuers(ctx, &list)
	return list.err()
}

func (k *Keyring) checkIssuers(ctx context.Context, list *checklist) {
	infos, err := k.List(ctx)
	list.add(err)
	for i, is := range k.issuers {
		line, err := k.checkIssuer(ctx, is, infos)
		if err != nil {
			err = fmt.Errorf("issuers[%d] (%s): %w", i, is.Name, err)
		}
		list.ok(err, "issuer %s: %s", is.Name, line)
	}
	if len(k.issuers) == 0 {
		list.ok(nil, "%d keys; no issuer is configured", len(infos))
	}
}

// checkIssuer finds the key of an issuer and says where it is.
func (k *Keyring) checkIssuer(ctx context.Context, is config.Issuer, infos []KeyInfo) (string, error) {
	key, err := k.store().Key(ctx, string(is.Key))
	if err != nil {
		return "", fmt.Errorf("opening key %s: %w", is.Key, err)
	}
	cert, err := readCertificate(string(is.Certificate))
	if err != nil {
		return "", err
	}
	if !same(cert.PublicKey, key.Public()) {
		return "", fmt.Errorf("key %s is not the key of %s", is.Key, is.Certificate)
	}
	var want KeyInfo
	want.setPublic(key.Public())
	if k.files != nil {
		return fmt.Sprintf("key %s, %s", is.Key, want.Algorithm), nil
	}
	var at, doubts []string
	for _, i := range infos {
		if i.SPKIHash != want.SPKIHash {
			continue
		}
		at = append(at, i.Token)
		if i.Doubt != "" {
			doubts = append(doubts, fmt.Sprintf("; on %s: %s", i.Token, i.Doubt))
		}
	}
	if missing := k.tokensWithout(at); len(missing) > 0 {
		return "", fmt.Errorf("key %s is on %s and not on %s: carry it over by the means of the vendor", is.Key, orNothing(at), strings.Join(missing, ", "))
	}
	line := fmt.Sprintf("key %s, %s, on %s", is.Key, want.Algorithm, strings.Join(at, ", "))
	if len(doubts) == 0 {
		return line + ", never extractable", nil
	}
	return line + strings.Join(doubts, ""), nil
}

func orNothing(list []string) string { return cmp.Or(strings.Join(list, ", "), "none") }

// tokensWithout lists the tokens that are not in a list.
func (k *Keyring) tokensWithout(at []string) []string {
	var missing []string
	for _, t := range k.pool.Stat().Tokens {
		if !slices.Contains(at, t.Name) {
			missing = append(missing, t.Name)
		}
	}
	return missing
}

// A checklist is what was looked at: what is right is said at once, what is wrong
// in the end.
type checklist struct {
	out  io.Writer
	errs []error
}

func (l *checklist) add(err error) { l.errs = append(l.errs, err) }

// ok notes one thing, which is right if err is nil.
func (l *checklist) ok(err error, format string, args ...any) {
	if l.add(err); err == nil {
		fmt.Fprintf(l.out, "  ok  "+format+"\n", args...)
	}
}

func (l *checklist) err() error { return errors.Join(l.errs...) }

// tokens says of each token what it is and what it can do.
func (l *checklist) tokens(ctx context.Context, p *pkcs11pool.Pool) {
	all, err := p.Capabilities(ctx)
	for _, c := range all {
		what := strings.Join(slices.DeleteFunc([]string{c.Manufacturer, c.Model}, func(s string) bool { return s == "" }), " ")
		l.ok(nil, "token %s: %s, serial %s, firmware %s, %s", c.Token, what, c.Serial, c.Firmware, freeSessions(c.FreeSessions))
		signs, lacks := abilities(c)
		l.ok(nil, "token %s signs with %s%s", c.Token, signs, lacks)
	}
	if err != nil {
		l.add(fmt.Errorf("keys.pkcs11: %w", err))
	}
}

func freeSessions(n int) string {
	if n < 0 {
		return "any number of sessions"
	}
	return fmt.Sprintf("%d more sessions", n)
}

// abilities puts in words what a token can do, and why not the rest.
func abilities(c pkcs11pool.Capability) (can, cannot string) {
	var signs []string
	for _, a := range c.Algorithms {
		switch name := string(a.Algorithm); {
		case a.Sign && a.Generate:
			signs = append(signs, name)
		case a.Sign:
			signs = append(signs, name+" (but can't make such keys)")
		default:
			cannot += fmt.Sprintf("; not with %s, for it lacks %s", name, strings.Join(a.Lacks, " and "))
		}
	}
	return orNothing(signs), cannot
}
