package ca

import (
	"context"
	"crypto/elliptic"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/ca/weakkey"
)

// Config is what an Authority is made of.
type Config struct {
	Issuers        []*Issuer // at least one
	Profiles       []Profile // beside the two that every CA has
	DefaultProfile string    // "" means the only one, if there is one
	Policy         Policy    // "" means Internal
	Store          Store
	Linter         Linter
	Shard          byte // first octet of every serial, 0x01 to 0x7f, different on each replica; 0 means 1

	Clock       func() time.Time // nil means time.Now
	SignTimeout time.Duration    // for one signature, its queue included; 0 means 20s
	Lease       time.Duration    // after which an unfinished issuance is abandoned; 0 means 60s
	// Settle is how long other processes on the same store may say what was true
	// before a change of status; 0: there are none.
	Settle time.Duration

	// Weak says which keys are strong enough; nil means weakkey.Certificates,
	// and with the internal policy P-521 and Ed25519 too.
	Weak *weakkey.Policy
	// BlockedKeys knows of further keys that may not be certified, by the
	// SHA-256 of their SubjectPublicKeyInfo. nil means none.
	BlockedKeys func(ctx context.Context, spki [32]byte) (bool, error)

	Logger     *slog.Logger          // nil means none
	Registerer prometheus.Registerer // nil means none
}

const (
	defaultSignTimeout = 20 * time.Second
	defaultLease       = time.Minute
	// commitBudget is how much of the lease recording a signed certificate may take.
	commitBudget = 15 * time.Second
)

// An Authority issues and revokes. It is safe for concurrent use.
type Authority struct {
	issuers        []*issuer
	profiles       map[string]*Profile
	names          []string // of the configured profiles, sorted
	defaultProfile string
	policy         Policy
	store          Store
	linter         Linter
	shard          byte
	now            func() time.Time
	signTimeout    time.Duration
	lease          time.Duration
	settle         time.Duration
	weak           weakkey.Policy
	blockedKeys    func(context.Context, [32]byte) (bool, error)
	own            map[[32]byte]bool // the SPKI hashes of the issuers
	log            *slog.Logger
	metrics        *metrics
	turn           atomic.Uint64 // whose turn it is among issuers
	verified       memo          // the CSRs whose signatures hold

	mu        sync.Mutex // guards what follows
	onRevoke  []func(Revoked)
	saidClamp map[string]bool // profiles whose clamping was logged
}

// New checks cfg as a whole and returns the Authority. It makes one throwaway
// key for each issuer, to lint with.
func New(cfg Config) (*Authority, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	a := &Authority{
		policy: cfg.Policy, store: cfg.Store, linter: cfg.Linter, shard: cfg.Shard, now: cfg.Clock, signTimeout: cfg.SignTimeout,
		lease: cfg.Lease, settle: cfg.Settle, weak: *cfg.Weak, blockedKeys: cfg.BlockedKeys, own: map[[32]byte]bool{}, log: cfg.Logger,
		metrics: newMetrics(cfg.Registerer), saidClamp: map[string]bool{},
	}
	if err := a.addIssuers(cfg.Issuers); err != nil {
		return nil, err
	}
	if err := a.addProfiles(cfg.Profiles, cfg.DefaultProfile); err != nil {
		return nil, err
	}
	return a, nil
}

// check fills the zero values and refuses what can't work.
func (cfg *Config) check() error {
	if cfg.Policy == "" {
		cfg.Policy = Internal
	}
	if cfg.Shard == 0 {
		cfg.Shard = 1
	}
	if cfg.Clock == nil {
		cfg.Clock = time.Now
	}
	if cfg.SignTimeout == 0 {
		cfg.SignTimeout = defaultSignTimeout
	}
	if cfg.Lease == 0 {
		cfg.Lease = defaultLease
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Weak == nil {
		cfg.Weak = DefaultWeak(cfg.Policy)
	}
	switch {
	case !cfg.Policy.Valid():
		return fmt.Errorf("policy %q is not one of internal, public", cfg.Policy)
	case cfg.Shard > 0x7f:
		return fmt.Errorf("serial shard %#x is not from 0x01 to 0x7f", cfg.Shard)
	case cfg.SignTimeout < 0 || cfg.Lease < cfg.SignTimeout+commitBudget:
		return fmt.Errorf("lease %s must be at least the signing timeout, %s, and %s more", cfg.Lease, cfg.SignTimeout, commitBudget)
	case cfg.Store == nil, cfg.Linter == nil, len(cfg.Issuers) == 0:
		return errors.New("an authority needs issuers, a store and a linter")
	}
	return nil
}

// DefaultWeak says which keys are strong enough under a policy, for a Config
// that adds to it.
func DefaultWeak(p Policy) *weakkey.Policy {
	w := weakkey.Certificates()
	if p == Internal {
		w.Curves = append(w.Curves, elliptic.P521())
		w.Ed25519 = true
	}
	return &w
}

func (a *Authority) addIssuers(list []*Issuer) error {
	for _, i := range list {
		if a.issuerByName(i.Name) != nil || a.issuerByID(i.ID) != nil {
			return fmt.Errorf("issuer %q is there twice", i.Name)
		}
		own, err := newIssuer(i)
		if err != nil {
			return fmt.Errorf("issuer %q: %w", i.Name, err)
		}
		a.issuers = append(a.issuers, own)
		hash, err := weakkey.SPKIHash(i.Cert.PublicKey)
		if err != nil {
			return fmt.Errorf("issuer %q: %w", i.Name, err)
		}
		a.own[hash] = true
	}
	return nil
}

func (a *Authority) addProfiles(list []Profile, def string) error {
	a.profiles = make(map[string]*Profile, len(list)+3)
	var errs []error
	for _, p := range list {
		if a.profiles[p.Name] != nil || p.Name == ProfileSelf || p.Name == ProfileResponder || p.Name == ProfileRegistration || p.Name == ProfileAuthority {
			errs = append(errs, &FieldError{Profile: p.Name, Field: "name", Problem: "is taken"})
			continue
		}
		errs = append(errs, p.Validate(), a.addProfile(p))
		a.names = append(a.names, p.Name)
	}
	for _, p := range builtin(a.policy) {
		errs = append(errs, a.addProfile(p))
	}
	slices.Sort(a.names)
	if def == "" && len(a.names) == 1 {
		def = a.names[0]
	}
	if def != "" && !slices.Contains(a.names, def) {
		errs = append(errs, fmt.Errorf("default profile %q is not one of %q", def, a.names))
	}
	a.defaultProfile = def
	return errors.Join(errs...)
}

func (a *Authority) addProfile(p Profile) error {
	full := p.withDefaults(a.policy)
	a.profiles[p.Name] = full
	errs := []error{full.validateFor(a.policy, a.now())}
	for _, name := range p.Issuers {
		if a.issuerByName(name) == nil {
			errs = append(errs, &FieldError{Profile: p.Name, Field: "issuers", Problem: fmt.Sprintf("there is no issuer %q", name)})
		}
	}
	return errors.Join(errs...)
}

// profile finds a profile, "" being the default one.
func (a *Authority) profile(name string) (*Profile, error) {
	if name == "" {
		name = a.defaultProfile
	}
	p := a.profiles[name]
	if p == nil {
		return nil, &Refusal{Code: UnknownProfile, Detail: "there is no such profile"}
	}
	return p, nil
}

// Profiles lists the configured profiles by name, without those that every CA has.
func (a *Authority) Profiles() []string { return slices.Clone(a.names) }

// DefaultProfile is the profile that "" means, itself "" if there is none.
func (a *Authority) DefaultProfile() string { return a.defaultProfile }

// Policy is the preset in force.
func (a *Authority) Policy() Policy { return a.policy }

// Issuers lists all issuers, active and not.
func (a *Authority) Issuers() []*Issuer {
	out := make([]*Issuer, 0, len(a.issuers))
	for _, i := range a.issuers {
		out = append(out, i.Issuer)
	}
	return out
}

// Issuer finds an issuer.
func (a *Authority) Issuer(id IssuerID) (*Issuer, bool) {
	if i := a.issuerByID(id); i != nil {
		return i.Issuer, true
	}
	return nil, false
}

func (a *Authority) issuerByID(id IssuerID) *issuer {
	for _, i := range a.issuers {
		if i.ID == id {
			return i
		}
	}
	return nil
}

func (a *Authority) issuerByName(name string) *issuer {
	for _, i := range a.issuers {
		if i.Name == name {
			return i
		}
	}
	return nil
}
