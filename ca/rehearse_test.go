package ca_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
)

// Every single thing that a profile may say gives certificates that the linter
// passes, in each policy that lets the profile through.
func TestWhatAProfileMaySayCanBeIssued(t *testing.T) {
	t.Parallel()
	profiles := map[string]ca.Profile{
		"plain": {}, "cn": {CommonName: ca.CNFirst}, "longest-public": {Validity: 200 * day}, "longest": {Validity: 3650 * day},
		"backdated": {Backdate: 48 * 3600 * 1e9}, "no-ocsp": {OmitOCSP: true}, "no-crl": {OmitCRL: true}, "no-aia": {OmitCAIssuers: true, OmitOCSP: true},
		"short-no-crl": {Validity: 7 * day, OmitCRL: true, OmitOCSP: true},
		"wild-only":    {Names: []ca.NameKind{ca.KindWildcard}}, "ip-only": {Names: []ca.NameKind{ca.KindIP}}, "ip-only-cn": {Names: []ca.NameKind{ca.KindIP}, CommonName: ca.CNFirst},
		"mutual": {ExtKeyUsages: []string{"serverAuth", "clientAuth"}}, "client": {ExtKeyUsages: []string{"clientAuth"}},
	}
	for _, u := range []string{"digitalSignature", "contentCommitment", "keyEncipherment", "dataEncipherment", "keyAgreement"} {
		profiles["usage-"+strings.ToLower(u)] = ca.Profile{KeyUsages: []string{"digitalSignature", u}}
	}
	// RFC 5280 §4.2.1.12: serverAuth does not go with contentCommitment.
	profiles["usage-contentcommitment"] = ca.Profile{KeyUsages: []string{"contentCommitment"}, ExtKeyUsages: []string{"emailProtection"}}
	for _, u := range []string{"codeSigning", "emailProtection", "timeStamping"} {
		profiles["for-"+strings.ToLower(u)] = ca.Profile{ExtKeyUsages: []string{u}}
	}
	for _, alg := range []keys.Algorithm{keys.ECDSAP256, keys.ECDSAP384, ca.ECDSAP521, keys.Ed25519, keys.RSA2048} {
		profiles["key-"+string(alg)] = ca.Profile{KeyAlgorithms: []keys.Algorithm{alg}, KeyUsages: []string{"digitalSignature", "keyEncipherment"}}
	}
	for _, policy := range []ca.Policy{ca.Internal, ca.Public} {
		linter := catest.Linter(t, policy)
		base := catest.New(t, func(cfg *ca.Config) { cfg.Policy, cfg.Linter = policy, linter })
		let := 0
		for name, p := range profiles {
			if p.Name = name; p.Validity == 0 {
				p.Validity = 90 * day
			}
			a, err := ca.New(ca.Config{
				Issuers: base.Issuers(), Profiles: []ca.Profile{p}, Policy: policy, Store: base.Store, Linter: linter,
			})
			if err != nil {
				if policy == ca.Internal {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			let++
			if err := a.Rehearse(t.Context()); err != nil {
				t.Errorf("%s: %s: %v", policy, name, err)
			}
		}
		if let < 10 {
			t.Errorf("%s: only %d profiles were let through", policy, let)
		}
		if len(base.Store.Records()) > 0 {
			t.Error("a rehearsal was recorded")
		}
	}
}

func TestRehearsalFindsWhatCannotBeIssued(t *testing.T) {
	t.Parallel()
	base := catest.New(t, func(cfg *ca.Config) { cfg.Policy = ca.Public })
	issuer := *base.Issuer
	issuer.CRLURL = "ldap://pki.example.com/crl"
	a, err := ca.New(ca.Config{
		Issuers: []*ca.Issuer{&issuer}, Profiles: []ca.Profile{{Name: "web", Validity: 90 * day}}, Policy: ca.Public, Store: base.Store,
		Linter: catest.Linter(t, ca.Public),
	})
	if err != nil {
		t.Fatal(err)
	}
	err = a.Rehearse(t.Context())
	if le, ok := errors.AsType[*ca.LintError](err); !ok || len(le.Findings) == 0 || !strings.Contains(err.Error(), `profile "web"`) {
		t.Errorf("error %v", err)
	}
}
