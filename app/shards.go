package app

import (
	"context"
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/crl"
	"github.com/secsy-pki/secsy-pki/store"
)

// openShards gives each issuer the parts of its CRL that new certificates name.
// They are on record before any certificate is.
func (a *app) openShards(ctx context.Context) error {
	for i, is := range a.issuers {
		l := a.cfg.Issuers[i].CRL
		is.FreshestCRL = l.DeltaInCertificates
		if l.Shards <= 1 || !is.Active || is.CRLURL == "" {
			continue
		}
		var err error
		is.CRLShards, err = crl.OpenShards(ctx, store.NewCRL(a.db), is.ID, l.Shards, is.CRLURL, crl.NeededUntil(time.Now(), longestLife(a.cfg.Profiles)))
		if err != nil {
			return fmt.Errorf("issuers[%d].crl.shards: %w", i, err)
		}
	}
	return nil
}

// longestLife is how long a certificate that names a CRL may be valid.
func longestLife(profiles []config.Profile) time.Duration {
	longest := ca.SelfAge
	for _, p := range profiles {
		if p.CRL {
			longest = max(longest, p.Validity.Std())
		}
	}
	return longest
}

// crlPlans are what issuers want beyond complete CRLs.
func (a *app) crlPlans() map[ca.IssuerID]crl.Plan {
	plans := make(map[ca.IssuerID]crl.Plan, len(a.issuers))
	for i, is := range a.issuers {
		l := a.cfg.Issuers[i].CRL
		plans[is.ID] = crl.Plan{Delta: l.Delta.Std(), KeepExpired: l.KeepExpired.Std()}
	}
	return plans
}
