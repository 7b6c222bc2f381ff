package app

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/secsy-pki/secsy-pki/admin"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/enrol"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/scep"
	"github.com/secsy-pki/secsy-pki/store"
)

// scepPath is where SCEP is mounted; the label of an endpoint follows.
const scepPath = "/scep"

// buildEnrolment makes the desk at which devices enrol, if there is an endpoint.
func (a *app) buildEnrolment(ctx context.Context) error {
	if len(a.cfg.Enrolment.Endpoints) == 0 {
		return nil
	}
	st := store.NewEnrol(a.db)
	fresh := make([]byte, sha256.Size)
	_, _ = rand.Read(fresh) // never fails
	key, err := st.Key(ctx, "challenge", fresh)
	if err != nil {
		return err
	}
	cfg := enrol.Config{
		Store: st, CA: a.ca, Issuers: a.issuers, ChallengeKey: key, Logger: a.log.With("room", "enrol"),
		Governor: gate.NewGovernor(gate.GovernorConfig{}), Verdicts: gate.NewVerdicts(gate.VerdictsConfig{}),
	}
	for i, e := range a.cfg.Enrolment.Endpoints {
		p, err := a.enrolmentEndpoint(e)
		if err != nil {
			return fmt.Errorf("enrolment.endpoints[%d] (%s): %w", i, e.Name, err)
		}
		cfg.Endpoints = append(cfg.Endpoints, p)
	}
	if a.desk, err = enrol.New(cfg); err != nil {
		return fmt.Errorf("enrolment: %w", err)
	}
	a.serve("enrolment", a.desk.Run)
	return a.buildSCEP()
}

func (a *app) enrolmentEndpoint(c config.EnrolmentEndpoint) (enrol.Endpoint, error) {
	e := enrol.Endpoint{
		Label: string(c.Name), Profile: string(c.Profile), Manual: c.Approval == config.ApprovalManual,
		Renewal: enrol.Renewal{Off: !c.Renewal.Enabled, Grace: c.Renewal.Grace.Std(), Early: c.Renewal.Early, NewKey: c.Renewal.NewKey},
	}
	is, err := a.issuerNamed(string(c.Issuer))
	if err != nil {
		return e, err
	}
	e.Issuer = is.ID
	if c.Challenge.IsSet() {
		if e.Shared, err = c.Challenge.Read(); err != nil {
			return e, fmt.Errorf("challenge: %w", err)
		}
	}
	for i, r := range c.Allow {
		var rule enrol.Rule
		for _, k := range r.By {
			rule.Kinds = append(rule.Kinds, enrol.Kind(k))
		}
		for _, s := range r.Subjects {
			if err := enrol.Pattern(s).Validate(); err != nil {
				return e, fmt.Errorf("allow[%d].subjects: %w", i, err)
			}
			rule.Subjects = append(rule.Subjects, enrol.Pattern(s))
		}
		for _, s := range r.Names {
			n, err := enrol.ParseNamePattern(s)
			if err != nil {
				return e, fmt.Errorf("allow[%d].names: %w", i, err)
			}
			rule.Names = append(rule.Names, n)
		}
		e.Rules = append(e.Rules, rule)
	}
	return e, nil
}

// issuerNamed is the issuer of that name, or the active one if there is no name.
func (a *app) issuerNamed(name string) (*ca.Issuer, error) {
	i := slices.IndexFunc(a.issuers, func(is *ca.Issuer) bool { return is.Name == name || name == "" && is.Active })
	if i < 0 {
		return nil, fmt.Errorf("there is no issuer %q, or none is active", name)
	}
	return a.issuers[i], nil
}

// buildSCEP has the endpoints speak SCEP that are to.
func (a *app) buildSCEP() error {
	cas, st := store.NewCA(a.db), store.NewSCEP(a.db)
	cfg := scep.Config{
		Desk: a.desk, CA: a.ca, Ledger: cas.PlainLedger(), Certificates: cas, Registrations: st, CRLs: a.crl, Keys: a.keys,
		Limiter: a.limiter, Path: scepPath, Logger: a.log.With("room", "scep"), Registerer: a.registry,
	}
	for _, e := range a.cfg.Enrolment.Endpoints {
		if !e.SCEP {
			continue
		}
		is, err := a.issuerNamed(string(e.Issuer))
		if err != nil {
			return err
		}
		cfg.Endpoints = append(cfg.Endpoints, scep.Endpoint{Label: string(e.Name), Issuer: is, Legacy: e.SCEPLegacy})
	}
	if len(cfg.Endpoints) == 0 {
		return nil
	}
	if len(cfg.Endpoints) == 1 {
		cfg.Default = cfg.Endpoints[0].Label
	}
	var err error
	if a.scep, err = scep.New(cfg); err != nil {
		return err
	}
	a.serve("scep", a.scep.Run)
	return nil
}

// operatorsEnrolment is the desk as the operator API knows it.
func (a *app) operatorsEnrolment() *admin.Enrolment {
	if a.desk == nil {
		return nil
	}
	e := &admin.Enrolment{Store: store.NewEnrol(a.db), Digest: a.desk.Digest}
	for _, p := range a.cfg.Enrolment.Endpoints {
		e.Endpoints = append(e.Endpoints, string(p.Name))
	}
	return e
}
