// Package attestation judges what devices say of themselves: the challenge
// device-attest-01 (draft-ietf-acme-device-attest), in the formats of Apple's
// devices, of TPMs, and "step", that of YubiKeys.
//
// It never goes out to the network. Whom to believe is the operator's to say: a
// format without roots is not taken.
package attestation

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

// A Format names a way to write an attestation (WebAuthn §8).
type Format string

// The formats.
const (
	Apple Format = "apple" // Managed Device Attestation
	TPM   Format = "tpm"   // WebAuthn §8.3
	Step  Format = "step"  // YubiKey PIV attestation
)

// Formats lists them all.
func Formats() []Format { return []Format{Apple, TPM, Step} }

// Config says which attestations are believed.
type Config struct {
	// Roots are the certificates that attestations of each format must lead to.
	// A format that is not there is refused.
	Roots map[Format]*x509.CertPool
	Clock func() time.Time // nil means time.Now
}

// A Verifier is an acme.Validator of device-attest-01. It is safe for concurrent use.
type Verifier struct {
	roots map[Format]*x509.CertPool
	now   func() time.Time
	cbor  cbor.DecMode
}

var _ acme.Validator = (*Verifier)(nil)

// New makes a Verifier.
func New(cfg Config) (*Verifier, error) {
	for f, pool := range cfg.Roots {
		if f != Apple && f != TPM && f != Step {
			return nil, fmt.Errorf("attestation: there is no format %q", f)
		}
		if pool == nil || pool.Equal(x509.NewCertPool()) {
			return nil, fmt.Errorf("attestation: format %q has no roots", f)
		}
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	mode, err := cbor.DecOptions{
		DupMapKey: cbor.DupMapKeyEnforcedAPF, IndefLength: cbor.IndefLengthForbidden, TagsMd: cbor.TagsForbidden,
		MaxNestedLevels: 4, MaxArrayElements: 16, MaxMapPairs: 16,
	}.DecMode()
	if err != nil {
		return nil, fmt.Errorf("attestation: %w", err)
	}
	return &Verifier{roots: cfg.Roots, now: cfg.Clock, cbor: mode}, nil
}

// maxObject bounds an attestation object: a chain of four certificates and a
// statement fit several times.
const maxObject = 48 << 10

// A reason is why an attestation is not believed. What it says may be heard by
// the client.
type reason struct {
	says string
	err  error // for the log
}

func (r *reason) Error() string {
	if r.err != nil {
		return r.says + ": " + r.err.Error()
	}
	return r.says
}

func no(format string, args ...any) error { return &reason{says: fmt.Sprintf(format, args...)} }

func because(err error, format string, args ...any) error {
	return &reason{says: fmt.Sprintf(format, args...), err: err}
}

// A device is what an attestation that is believed says.
type device struct {
	names []ca.Identifier // that it goes by
	key   any             // the public key that it holds
}

// Validate implements acme.Validator.
func (v *Verifier) Validate(_ context.Context, q acme.Validation) (acme.ValidationRecord, *acme.Problem) {
	rec := acme.ValidationRecord{Type: q.Type, Name: q.Identifier.Value, At: v.now()}
	format, key, err := v.judge(q)
	rec.Format, rec.AttestedKey, rec.Took = string(format), key, v.now().Sub(rec.At)
	if err == nil {
		return rec, nil
	}
	p := &acme.Problem{Type: acme.BadAttestationStatement, Detail: "the attestation is not believed", Err: err}
	if r, ok := errors.AsType[*reason](err); ok {
		p.Detail, p.Err = r.says, r.err
	}
	return rec, p
}

// judge returns the hash of the key that the device proved to hold.
func (v *Verifier) judge(q acme.Validation) (Format, string, error) {
	if q.Type != acme.DeviceAttest01 {
		return "", "", fmt.Errorf("a validation of type %s came here", q.Type)
	}
	obj, err := v.read(q.Answer)
	if err != nil {
		return "", "", err
	}
	roots := v.roots[obj.Format]
	if roots == nil {
		return "", "", no("attestations of the format are not taken here; those that are: %s", v.taken())
	}
	d, err := v.device(obj, roots, q)
	if err != nil {
		return obj.Format, "", err
	}
	if !d.goesBy(q.Identifier) {
		// The names it has stay unsaid: they are the device's, and who asks need not be.
		return obj.Format, "", no("the attestation is not that of the device %q", q.Identifier.Value)
	}
	spki, err := x509.MarshalPKIXPublicKey(d.key)
	if err != nil {
		return obj.Format, "", because(err, "the attested key is of a kind that is not known here")
	}
	sum := sha256.Sum256(spki)
	return obj.Format, hex.EncodeToString(sum[:]), nil
}

func (v *Verifier) device(obj object, roots *x509.CertPool, q acme.Validation) (device, error) {
	switch obj.Format {
	case Apple:
		return v.apple(obj.Statement, roots, q)
	case TPM:
		return v.tpm(obj.Statement, roots, q)
	}
	return v.step(obj.Statement, roots, q)
}

func (v *Verifier) taken() string {
	var s string
	for _, f := range Formats() {
		if v.roots[f] == nil {
			continue
		}
		if s != "" {
			s += ", "
		}
		s += string(f)
	}
	return s
}

func (d device) goesBy(id ca.Identifier) bool {
	for _, n := range d.names {
		if n == id && id.Value != "" {
			return true
		}
	}
	return false
}

// An object is a WebAuthn attestation object (WebAuthn §6.5.4). authData has no
// meaning here.
type object struct {
	Format    Format    `cbor:"fmt"`
	Statement statement `cbor:"attStmt"`
}

// A statement has the members of all the formats.
type statement struct {
	Chain    [][]byte `cbor:"x5c"`
	Sig      []byte   `cbor:"sig"`
	Alg      int64    `cbor:"alg"`
	Version  string   `cbor:"ver"`
	CertInfo []byte   `cbor:"certInfo"`
	PubArea  []byte   `cbor:"pubArea"`
}

// read takes the object out of the client's answer.
func (v *Verifier) read(answer []byte) (object, error) {
	var body struct {
		Object string `json:"attObj"`
		Error  string `json:"error"`
	}
	if err := json.Unmarshal(answer, &body); err != nil {
		return object{}, because(err, "the challenge was not answered with an object that has an attObj")
	}
	if body.Error != "" {
		return object{}, no("the client says that it could not have itself attested")
	}
	if body.Object == "" || len(body.Object) > base64.RawURLEncoding.EncodedLen(maxObject) {
		return object{}, no("attObj is missing or larger than %d octets", maxObject)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(body.Object)
	if err != nil {
		return object{}, because(err, "attObj is not base64url without padding")
	}
	var obj object
	if err := v.cbor.Unmarshal(raw, &obj); err != nil {
		return object{}, because(err, "attObj is not the CBOR of an attestation object")
	}
	return obj, nil
}

// maxChain is how many certificates come with an attestation.
const maxChain = 8

// chain verifies x5c up to one of roots, and returns its first certificate.
// Extensions in understood may be critical.
func (v *Verifier) chain(der [][]byte, roots *x509.CertPool, understood func(leaf *x509.Certificate)) (*x509.Certificate, error) {
	if len(der) == 0 || len(der) > maxChain {
		return nil, no("x5c has to hold from one to %d certificates", maxChain)
	}
	var leaf *x509.Certificate
	above := x509.NewCertPool()
	for i, b := range der {
		c, err := x509.ParseCertificate(b)
		if err != nil {
			return nil, because(err, "x5c holds something that is not a certificate")
		}
		if i == 0 {
			leaf = c
			continue
		}
		above.AddCert(c)
	}
	understood(leaf)
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: above, CurrentTime: v.now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return nil, because(err, "x5c does not lead to a root that is trusted here, or a certificate in it has expired")
	}
	return leaf, nil
}

func nothingElse(*x509.Certificate) {}

// once returns the value of an extension that must be there at most once.
func once(c *x509.Certificate, oid string) ([]byte, bool) {
	var (
		value []byte
		n     int
	)
	for _, e := range c.Extensions {
		if e.Id.String() == oid {
			value, n = e.Value, n+1
		}
	}
	return value, n == 1
}
