package ratelimit

import (
	"fmt"
	"maps"
	"slices"
)

// settings are a Config made ready for use, and never change. Each request goes
// by those that are in force while it holds its sets.
type settings struct {
	gen uint64 // 1, 2, 3 …
	at  int64  // when they came into force

	jitter       bool
	translations translations
	sources      sources
	accounts     map[string]rule

	schedules [tiers]schedule
	tables    [tiers]*table // nil where nothing was ever limited
	all       []*word       // by endpoint
	globals   [groups]*word

	// What the classes of the schedules stand for, for whom comes after.
	rules []sourceRule
	names []string
}

// A schedule is the limits of one tier that has a table. Class 0 is the common
// limit, and the others are those of overrides; for EndpointIP, each endpoint
// has its own class.
type schedule struct {
	limits []limit
	moves  []move // by class of the generation before
}

// A move says by which limit a class was measured, and which class it is now.
type move struct {
	from limit
	to   uint16
}

const (
	defaultMaxKeys      = 100_000
	maxMaxKeys          = 100_000_000 // 1.8 GB for each tier
	defaultPrefixFactor = 4
	maxPrefixFactor     = 1 << (clientBits - siteBits) // as many clients as there are
)

// A policy is what of the settings follows from the Config alone.
type policy struct {
	settings
	ip, prefix, account limit
	shared              limit
	endpoints           map[string]endpointLimits
}

type endpointLimits struct{ ip, all limit }

// newPolicy compiles cfg, or names the key that is wrong.
func newPolicy(cfg Config) (*policy, error) {
	factor := cfg.PrefixFactor
	switch {
	case factor < 0 || factor > maxPrefixFactor:
		return nil, fmt.Errorf("prefix_factor: must be from 1 to %d, and is %d", maxPrefixFactor, factor)
	case cfg.MaxKeys < 0 || cfg.MaxKeys > maxMaxKeys:
		return nil, fmt.Errorf("max_keys: must be from 1 to %d, and is %d", maxMaxKeys, cfg.MaxKeys)
	case factor == 0:
		factor = defaultPrefixFactor
	}
	p := &policy{settings: settings{jitter: cfg.Jitter}}
	for _, err := range []error{
		p.common(cfg, factor),
		p.perEndpoint(cfg),
		p.override(cfg, factor),
	} {
		if err != nil {
			return nil, err
		}
	}
	var err error
	if p.translations, err = newTranslations(cfg.NAT64); err != nil {
		return nil, err
	}
	return p, nil
}

// common compiles the limits that have no name of their own.
func (p *policy) common(cfg Config, factor int) error {
	for _, x := range []struct {
		key    string
		bucket Bucket
		factor int
		into   *limit
	}{
		{"global", cfg.Global, 1, &p.shared},
		{"per_ip", cfg.PerIP, 1, &p.ip},
		{"per_ip", cfg.PerIP, factor, &p.prefix},
		{"per_account", cfg.PerAccount, 1, &p.account},
	} {
		l, err := cfg.limit(x.bucket, x.factor)
		if err != nil {
			return fmt.Errorf("%s: %w", x.key, err)
		}
		*x.into = l
	}
	return nil
}

// limit is newLimit, in shadow if all are.
func (c *Config) limit(b Bucket, factor int) (limit, error) {
	b.Shadow = b.Shadow || c.Shadow
	return newLimit(b, factor)
}

func (p *policy) perEndpoint(cfg Config) error {
	p.endpoints = map[string]endpointLimits{}
	for _, name := range slices.Sorted(maps.Keys(cfg.Endpoints)) { // the same error every time
		ip, err := cfg.limit(cfg.Endpoints[name].PerIP, 1)
		if err != nil {
			return fmt.Errorf("endpoints.%s.per_ip: %w", name, err)
		}
		all, err := cfg.limit(cfg.Endpoints[name].All, 1)
		if err != nil {
			return fmt.Errorf("endpoints.%s.all: %w", name, err)
		}
		p.endpoints[name] = endpointLimits{ip, all}
	}
	return nil
}

// override compiles the overrides: each becomes a class of its tier.
func (p *policy) override(cfg Config, factor int) error {
	if len(cfg.Overrides) > maxOverrides {
		return fmt.Errorf("overrides: must be no more than %d, and are %d", maxOverrides, len(cfg.Overrides))
	}
	p.schedules[PerIP].limits = []limit{p.ip}
	p.schedules[PerPrefix].limits = []limit{p.prefix}
	p.schedules[PerAccount].limits = []limit{p.account}
	p.accounts = map[string]rule{}
	p.rules = []sourceRule{{}} // of class 0
	p.names = []string{""}
	seen := map[span]bool{}
	for i, o := range cfg.Overrides {
		o.Bucket.Shadow = o.Bucket.Shadow || cfg.Shadow
		l, err := o.validate()
		if err == nil && o.Account != "" {
			err = p.overrideAccount(o, l)
		} else if err == nil {
			err = p.overrideSource(o, l, factor, seen)
		}
		if err != nil {
			return fmt.Errorf("overrides[%d]: %w", i, err)
		}
	}
	p.sources = newSources(p.rules[1:])
	return nil
}

func (p *policy) overrideAccount(o Override, l limit) error {
	if _, twice := p.accounts[o.Account]; twice {
		return fmt.Errorf("account %q has one already", o.Account)
	}
	sc := &p.schedules[PerAccount]
	p.accounts[o.Account] = rule{class: uint16(len(sc.limits)), exempt: o.Exempt}
	sc.limits = append(sc.limits, l)
	p.names = append(p.names, o.Account)
	return nil
}

func (p *policy) overrideSource(o Override, l limit, factor int, seen map[span]bool) error {
	s, err := spanOf(o.Source)
	if err != nil {
		return err
	}
	if seen[s] {
		return fmt.Errorf("source %s has one already", o.Source)
	}
	seen[s] = true
	site, err := newLimit(o.Bucket, factor)
	if err != nil {
		return err
	}
	ip, prefix := &p.schedules[PerIP], &p.schedules[PerPrefix]
	p.rules = append(p.rules, sourceRule{s, rule{class: uint16(len(ip.limits)), bits: uint8(s.bits), exempt: o.Exempt}})
	ip.limits = append(ip.limits, l)
	prefix.limits = append(prefix.limits, site)
	return nil
}

// follow makes settings of p that take over from prev, nil for the first ones,
// at the instant at, for the endpoints of those names. Nothing of prev changes.
func (p *policy) follow(prev *settings, at int64, maxKeys int, endpoints []string) *settings {
	s := p.settings
	s.gen, s.at = 1, at
	for g := range s.globals {
		s.globals[g] = &word{limit: p.shared}
	}
	for _, name := range endpoints {
		s.addEndpoint(p.endpoints[name])
	}
	if prev != nil {
		s.gen, s.tables = prev.gen+1, prev.tables
		s.succeed(prev)
	}
	s.schedules[PerSourceAccount] = s.schedules[PerAccount]
	s.makeTables(maxKeys)
	return &s
}

// addEndpoint gives the next endpoint its limits.
func (s *settings) addEndpoint(l endpointLimits) {
	sc := &s.schedules[EndpointIP]
	sc.limits = append(slices.Clip(sc.limits), l.ip)
	s.all = append(slices.Clip(s.all), &word{limit: l.all})
}

// succeed finds out what becomes of the classes of prev.
func (s *settings) succeed(prev *settings) {
	bySpan := map[span]uint16{}
	for class, r := range s.rules[1:] {
		bySpan[r.span] = uint16(class + 1)
	}
	ofRule := func(class int) uint16 {
		if class == 0 {
			return 0
		}
		r := prev.rules[class]
		if to, ok := bySpan[r.span]; ok {
			return to
		}
		return s.sources.find(r.address).class
	}
	fromRule := func(class int) uint16 {
		if class == 0 {
			return 0
		}
		return prev.sources.find(s.rules[class].address).class
	}
	s.schedules[PerIP].succeed(&prev.schedules[PerIP], ofRule, fromRule)
	s.schedules[PerPrefix].succeed(&prev.schedules[PerPrefix], ofRule, fromRule)
	s.schedules[PerAccount].succeed(&prev.schedules[PerAccount],
		func(class int) uint16 { return s.accounts[prev.names[class]].class },
		func(class int) uint16 { return prev.accounts[s.names[class]].class })
	same := func(class int) uint16 { return uint16(class) }
	s.schedules[EndpointIP].succeed(&prev.schedules[EndpointIP], same, same)
}

// succeed makes the moves from the classes of prev; heir says which class one of
// them becomes, and origin which one a new class was.
func (sc *schedule) succeed(prev *schedule, heir, origin func(class int) uint16) {
	for class := range sc.limits {
		sc.limits[class].keep(&prev.limits[origin(class)])
	}
	sc.moves = make([]move, len(prev.limits))
	for class := range sc.moves {
		sc.moves[class] = move{prev.limits[class], heir(class)}
	}
}

// keep lets a limit that is not active measure old debts by the one before.
func (l *limit) keep(prev *limit) {
	if !l.active {
		l.token, l.burst, l.capacity = prev.token, prev.burst, prev.capacity
	}
}

// bequeath binds the shared buckets of prev to those of s. From here on s must
// come into force.
func (s *settings) bequeath(prev *settings) {
	for g, w := range s.globals {
		w.limit.keep(&prev.globals[g].limit)
		w.succeed(prev.globals[g], s.at)
	}
	for i, w := range s.all {
		w.limit.keep(&prev.all[i].limit)
		w.succeed(prev.all[i], s.at)
	}
}

// takeOver ends the change that bequeath began, once s is in force: everything
// is brought up to it.
func (s *settings) takeOver() {
	for _, w := range s.globals {
		w.settle()
	}
	for _, w := range s.all {
		w.settle()
	}
	for tier, t := range s.tables {
		if t != nil {
			t.sweep(&s.schedules[tier], s.gen, s.at)
		}
	}
}

// makeTables makes those that are needed and not there yet. Only an account is
// proven: a source or a claim costs nothing to make up, so that a strict table
// would let a stranger shut out others.
func (s *settings) makeTables(maxKeys int) {
	for tier := range s.tables {
		active := slices.ContainsFunc(s.schedules[tier].limits, func(l limit) bool { return l.active })
		if active && s.tables[tier] == nil {
			s.tables[tier] = newTable(maxKeys, Tier(tier) == PerAccount)
		}
	}
}
