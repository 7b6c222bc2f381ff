package ca

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/secsy-pki/secsy-pki/ca/weakkey"
	"github.com/secsy-pki/secsy-pki/keys"
)

// Rehearse drafts and lints one certificate of each profile from each of its
// issuers, so that a profile that can't be issued is found at start and not by
// the first who asks. Nothing is signed with an issuer's key, nor recorded.
func (a *Authority) Rehearse(ctx context.Context) error {
	var errs []error
	for _, p := range a.profiles {
		pub, err := sampleKey(p)
		if err != nil {
			return fmt.Errorf("profile %q: %w", p.Name, err)
		}
		for _, i := range a.issuers {
			if len(p.Issuers) > 0 && !slices.Contains(p.Issuers, i.Name) || !i.Active || !i.validAt(a.now()) {
				continue
			}
			if err := a.rehearse(ctx, p, i, pub); err != nil {
				errs = append(errs, fmt.Errorf("issuer %q: %w", i.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (a *Authority) rehearse(ctx context.Context, p *Profile, i *issuer, pub crypto.PublicKey) error {
	notBefore, notAfter, err := a.validity(p, i, time.Time{}, time.Time{})
	if err != nil {
		return fmt.Errorf("profile %q: %w", p.Name, err)
	}
	hash, err := weakkey.SPKIHash(pub)
	if err != nil {
		return err
	}
	_, _, err = a.prepare(ctx, &order{
		profile: p, issuer: i, pub: pub, spki: hash, names: sampleNames(p, a.policy), notBefore: notBefore, notAfter: notAfter,
	})
	return err
}

// sampleKey makes a key that p allows, of the kind that is made fastest.
func sampleKey(p *Profile) (crypto.PublicKey, error) {
	if p.kind == kindRegistration { // RSA takes too long for a try
		k, err := keys.NewPrivateKey(keys.ECDSAP256)
		if err != nil {
			return nil, fmt.Errorf("making a sample key: %w", err)
		}
		return k.Public(), nil
	}
	for _, alg := range []keys.Algorithm{keys.ECDSAP256, keys.ECDSAP384, keys.Ed25519, keys.RSA2048, keys.RSA3072, keys.RSA4096} {
		if slices.Contains(p.KeyAlgorithms, alg) {
			k, err := keys.NewPrivateKey(alg)
			if err != nil {
				return nil, fmt.Errorf("making a sample key: %w", err)
			}
			return k.Public(), nil
		}
	}
	k, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a sample key: %w", err)
	}
	return k.Public(), nil
}

// sampleNames is one name of a kind that p allows.
func sampleNames(p *Profile, policy Policy) []Identifier {
	dns, ip := "www.example.com", "192.0.2.1"
	if policy == Public {
		ip = "1.1.1.1" // a documentation address would be refused
	}
	if len(p.PermittedDNS) > 0 {
		dns = p.PermittedDNS[0]
	}
	if len(p.PermittedIP) > 0 {
		ip = p.PermittedIP[0].Addr().String()
	}
	switch {
	case p.isOurs():
		return nil
	case p.allows(KindDNS):
		return []Identifier{{Type: DNS, Value: dns}}
	case p.allows(KindWildcard):
		return []Identifier{{Type: DNS, Value: "*." + dns}}
	}
	if p.allows(KindIP) {
		return []Identifier{{Type: IP, Value: ip}}
	}
	if p.allows(KindPermanentIdentifier) {
		return []Identifier{{Type: PermanentIdentifier, Value: "0123456789/1.2.3"}}
	}
	return []Identifier{{Type: HardwareModule, Value: "0123456789/1.2.3"}}
}
