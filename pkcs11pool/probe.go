package pkcs11pool

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"errors"
	"fmt"
	"strings"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

// A Capability is what a token says that it is and can do.
type Capability struct {
	Token        string
	Manufacturer string
	Model        string
	Serial       string
	Firmware     string
	FreeSessions int // negative: it does not say, or knows no bound

	Algorithms []AlgorithmCapability // all that the program uses
	PSS        bool                  // RSA signatures with PSS too

	// Decryption with RSA keys.
	DecryptRaw   bool // without padding, which is then removed in constant time
	DecryptPKCS1 bool // with PKCS#1 v1.5 padding, removed by the token
	DecryptOAEP  bool // with OAEP padding, removed by the token
	// OAEPHashes are sure to work. Which hash functions the token itself can use
	// for OAEP, no mechanism list tells.
	OAEPHashes []crypto.Hash
}

// An AlgorithmCapability is what a token can do with one kind of key.
type AlgorithmCapability struct {
	Algorithm keys.Algorithm
	Generate  bool
	Sign      bool
	Lacks     []string // what it would need, such as "CKM_ECDSA"
}

// Capabilities asks the tokens what they can do. Those that do not answer are in
// the error, beside the capabilities of the others.
func (p *Pool) Capabilities(ctx context.Context) ([]Capability, error) {
	var all []Capability
	var errs []error
	for _, t := range p.tokens {
		able, err := ask(ctx, p, t, "asking what a token can do", p.abilities)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, able.capability(t.name))
	}
	return all, errors.Join(errs...)
}

// abilities are a token's mechanisms, in one epoch of it.
type abilities struct {
	epoch      uint64
	info       pkcs11.TokenInfo
	mechanisms map[uint]pkcs11.MechanismInfo // those that the program uses
	untold     bool                          // the token lists none: what it can't do shows when it is tried
}

var algorithms = []keys.Algorithm{
	keys.ECDSAP256, keys.ECDSAP384, keys.ECDSAP521, keys.RSA2048, keys.RSA3072, keys.RSA4096, keys.Ed25519,
}

// mechanismNames are all that the program uses.
var mechanismNames = map[uint]string{
	pkcs11.CKM_ECDSA:                 "CKM_ECDSA",
	pkcs11.CKM_EC_KEY_PAIR_GEN:       "CKM_EC_KEY_PAIR_GEN",
	pkcs11.CKM_RSA_PKCS:              "CKM_RSA_PKCS",
	pkcs11.CKM_RSA_PKCS_PSS:          "CKM_RSA_PKCS_PSS",
	pkcs11.CKM_RSA_PKCS_OAEP:         "CKM_RSA_PKCS_OAEP",
	pkcs11.CKM_RSA_X_509:             "CKM_RSA_X_509",
	pkcs11.CKM_RSA_PKCS_KEY_PAIR_GEN: "CKM_RSA_PKCS_KEY_PAIR_GEN",
	ckmEdDSA:                         "CKM_EDDSA",
	ckmECEdwardsKeyPair:              "CKM_EC_EDWARDS_KEY_PAIR_GEN",
}

// operations are the flags that say what a mechanism is for. A token that sets
// none of them says nothing.
const operations = pkcs11.CKF_ENCRYPT | pkcs11.CKF_DECRYPT | pkcs11.CKF_SIGN | pkcs11.CKF_VERIFY | pkcs11.CKF_GENERATE_KEY_PAIR

// abilities asks the token once in each epoch.
func (p *Pool) abilities(c *conn) (*abilities, error) {
	epoch := c.epoch
	if able := p.ring.abilitiesOf(c.token); able != nil && able.epoch == epoch {
		return able, nil
	}
	able := &abilities{epoch: epoch, mechanisms: make(map[uint]pkcs11.MechanismInfo)}
	var err error
	if able.info, err = c.GetTokenInfo(c.slot); err != nil {
		return nil, err
	}
	list, err := c.GetMechanismList(c.slot)
	if errors.Is(err, pkcs11.Error(pkcs11.CKR_FUNCTION_NOT_SUPPORTED)) {
		able.untold, list, err = true, nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, m := range list {
		if _, used := mechanismNames[m.Mechanism]; !used {
			continue
		}
		info, err := c.GetMechanismInfo(c.slot, []*pkcs11.Mechanism{m})
		if errors.Is(err, pkcs11.Error(pkcs11.CKR_MECHANISM_INVALID)) {
			continue // listed, and yet not there
		}
		if err != nil {
			return nil, err
		}
		able.mechanisms[m.Mechanism] = info
	}
	p.ring.keepAbilities(c.token, able)
	return able, nil
}

// A need is a mechanism for an operation on keys of so many bits; 0 for any.
type need struct{ mechanism, operation, bits uint }

func (a *abilities) can(n need) bool {
	info, listed := a.mechanisms[n.mechanism]
	if !listed {
		return a.untold
	}
	if info.Flags&operations != 0 && info.Flags&n.operation == 0 {
		return false
	}
	least, most := info.MinKeySize, info.MaxKeySize
	if most < smallest(n.mechanism) { // some tokens count bytes
		least, most = 8*least, 8*most
	}
	return n.bits == 0 || most == 0 || least <= n.bits && n.bits <= most
}

// smallest is a size in bits that the largest key of a mechanism surely has.
func smallest(mechanism uint) uint {
	if mechanism == pkcs11.CKM_ECDSA || mechanism == pkcs11.CKM_EC_KEY_PAIR_GEN {
		return 112
	}
	return 1024
}

// lacks names the mechanisms that the token has not.
func (a *abilities) lacks(needs ...need) (names []string) {
	for _, n := range needs {
		if !a.can(n) {
			names = append(names, mechanismNames[n.mechanism])
		}
	}
	return names
}

func toSign(pub crypto.PublicKey) need {
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		return need{pkcs11.CKM_RSA_PKCS, pkcs11.CKF_SIGN, uint(pub.N.BitLen())}
	case *ecdsa.PublicKey:
		return need{pkcs11.CKM_ECDSA, pkcs11.CKF_SIGN, uint(pub.Curve.Params().BitSize)}
	}
	return need{ckmEdDSA, pkcs11.CKF_SIGN, 0} // a size of 255 with some tokens, 256 with others
}

// skillsOf is what a key can do that may sign or decrypt, or why it can do nothing.
func (a *abilities) skillsOf(pub crypto.PublicKey, sign, decrypt bool) (s skill, why error) {
	rsaKey, isRSA := pub.(*rsa.PublicKey)
	signs := toSign(pub)
	if sign && a.can(signs) {
		s |= canSign
	}
	if isRSA {
		bits := uint(rsaKey.N.BitLen())
		if sign && a.can(need{pkcs11.CKM_RSA_PKCS_PSS, pkcs11.CKF_SIGN, bits}) {
			s |= canSignPSS
		}
		raw, padded, oaep := a.decryption(bits)
		if decrypt && (raw || padded || oaep) {
			s |= canDecrypt
		}
		if decrypt && raw {
			s |= canDecryptRaw
		}
	}
	switch {
	case s != 0:
		return s, nil
	case sign:
		return 0, fmt.Errorf("the token can't sign with %s: it lacks %s", nameOf(pub), strings.Join(a.lacks(signs), ", "))
	}
	return 0, errors.New("the key may not sign (CKA_SIGN is false)")
}

func (a *abilities) decryption(bits uint) (raw, pkcs1, oaep bool) {
	return a.can(need{pkcs11.CKM_RSA_X_509, pkcs11.CKF_DECRYPT, bits}),
		a.can(need{pkcs11.CKM_RSA_PKCS, pkcs11.CKF_DECRYPT, bits}),
		a.can(need{pkcs11.CKM_RSA_PKCS_OAEP, pkcs11.CKF_DECRYPT, bits})
}

func nameOf(pub crypto.PublicKey) string {
	if alg, ok := keys.AlgorithmOf(pub); ok {
		return string(alg)
	}
	if pub, ok := pub.(*rsa.PublicKey); ok {
		return fmt.Sprintf("rsa-%d", pub.N.BitLen())
	}
	return fmt.Sprintf("%T", pub)
}

func (a *abilities) capability(token string) Capability {
	c := Capability{
		Token: token, Manufacturer: a.info.ManufacturerID, Model: a.info.Model, Serial: a.info.SerialNumber,
		Firmware:     fmt.Sprintf("%d.%d", a.info.FirmwareVersion.Major, a.info.FirmwareVersion.Minor),
		FreeSessions: freeSessions(a.info),
		PSS:          a.can(need{pkcs11.CKM_RSA_PKCS_PSS, pkcs11.CKF_SIGN, 0}),
	}
	c.DecryptRaw, c.DecryptPKCS1, c.DecryptOAEP = a.decryption(0)
	if c.DecryptRaw {
		c.OAEPHashes = []crypto.Hash{crypto.SHA1, crypto.SHA256, crypto.SHA384, crypto.SHA512}
	}
	for _, alg := range algorithms {
		s := specs[alg]
		c.Algorithms = append(c.Algorithms, AlgorithmCapability{
			Algorithm: alg, Generate: a.can(s.generates), Sign: a.can(s.signs), Lacks: a.lacks(s.generates, s.signs),
		})
	}
	return c
}

func freeSessions(info pkcs11.TokenInfo) int {
	const unavailable = ^uint(0) // CK_UNAVAILABLE_INFORMATION
	most, open := info.MaxSessionCount, info.SessionCount
	if most == unavailable || most == 0 || open == unavailable {
		return -1
	}
	return int(most) - int(min(open, most))
}
