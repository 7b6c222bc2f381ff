package app

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/acme/challenge"
	"github.com/secsy-pki/secsy-pki/admin"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/lint"
	"github.com/secsy-pki/secsy-pki/ca/weakkey"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/crl"
	"github.com/secsy-pki/secsy-pki/enrol"
	"github.com/secsy-pki/secsy-pki/front"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/ocsp"
	"github.com/secsy-pki/secsy-pki/pkcs11pool"
	"github.com/secsy-pki/secsy-pki/ratelimit"
	"github.com/secsy-pki/secsy-pki/scep"
	"github.com/secsy-pki/secsy-pki/store"
)

// Where the protocols are mounted.
const (
	acmePath = "/acme"
	ocspPath = "/ocsp"
	crlPath  = "/crl"
	aiaPath  = "/aia"
)

// aiaCost is the price of a CA's certificate: some octets from memory.
const aiaCost = ratelimit.Token / 100

// operatorWrite bounds an answer on the operator socket: verifying a long audit
// log takes its time.
const operatorWrite = time.Hour

// rooms are the parts of the program, as far as they are built.
type rooms struct {
	engine store.Engine
	db     *store.DB
	keys   KeyStore // behind the guard
	// listenerKeys are files without the guard, for the key of the https listener:
	// each handshake of a stranger is a signature, in our own processor, and must
	// not take a seat before the device of the CA. Nil: no such key.
	listenerKeys KeyStore
	pool         *pkcs11pool.Pool // what keys are on; nil: files

	issuers   []*ca.Issuer
	preferred map[string]string // roots whose chains profiles prefer
	ca        *ca.Authority
	ocsp      *ocsp.Server // nil: off
	crl       *crl.Server
	acme      *acme.Server   // the directory at /acme; nil: off
	beside    []*acme.Server // the other directories
	desk      *enrol.Desk    // nil: no device enrols
	scep      *scep.Server   // nil: off
	admin     *admin.Server
	selfCert  *selfCert              // nil: files, or no https
	https     *front.FileCertificate // nil: selfCert, or no https
	front     *front.Front
	admission
}

// newAuthority makes the core of issuers that are open.
func (a *app) newAuthority() error {
	policy := ca.Policy(a.cfg.Policy)
	linter, err := lint.New(lint.Config{Policy: policy})
	if err != nil {
		return fmt.Errorf("building the linter: %w", err)
	}
	weak, err := weakPolicy(a.cfg, policy)
	if err != nil {
		return err
	}
	cfg := ca.Config{
		Issuers: a.issuers, DefaultProfile: string(a.cfg.DefaultProfile), Policy: policy,
		Store: store.NewCA(a.db), Linter: linter, Shard: byte(a.cfg.Serials.Shard), Weak: weak,
		Logger: a.log.With("room", "ca"), Registerer: a.registry,
	}
	if a.cfg.Store.Engine != config.EngineSQLite { // which one process has for itself
		cfg.Settle = ocsp.Lag + ocsp.LagMargin
	}
	for _, p := range a.cfg.Profiles {
		cfg.Profiles = append(cfg.Profiles, profile(p))
	}
	a.ca, err = ca.New(cfg)
	return underProfiles(err)
}

// rehearse finds a profile that can't be issued before a client does.
func (a *app) rehearse(ctx context.Context) error {
	return underProfiles(a.ca.Rehearse(ctx))
}

func (a *app) buildAuthority(ctx context.Context) error {
	if err := a.newAuthority(); err != nil {
		return err
	}
	if err := a.rehearse(ctx); err != nil {
		return err
	}
	a.serve("recovery", a.ca.Run)

	seq, err := audit.NewSequencer(audit.SequencerConfig{
		Log: store.NewAudit(a.db), Logger: a.log.With("room", "audit"), Registerer: a.registry,
	})
	if err != nil {
		return fmt.Errorf("building the audit sequencer: %w", err)
	}
	a.services = append(a.services, service{
		name: "audit", err: make(chan error, 1), last: seq.Flush,
		run: func(ctx context.Context) error { seq.Run(ctx); return nil },
	})
	return nil
}

// weakPolicy adds the operator's lists of broken keys to what the CA takes by itself.
func weakPolicy(cfg *config.Config, policy ca.Policy) (*weakkey.Policy, error) {
	if len(cfg.WeakKeys.DebianLists) == 0 {
		return nil, nil
	}
	list, err := weakkey.LoadList(paths(cfg.WeakKeys.DebianLists)...)
	if err != nil {
		return nil, fmt.Errorf("weak_keys.debian_lists: %w", err)
	}
	p := *ca.DefaultWeak(policy)
	p.Debian = list
	return &p, nil
}

// recover ends what an earlier process left. On SQLite nobody else can be at
// work; on PostgreSQL only what nobody holds any more is abandoned.
func (a *app) recover(ctx context.Context) error {
	abandon := a.ca.Recover
	alone := a.cfg.Store.Engine == config.EngineSQLite
	if alone {
		abandon = a.ca.RecoverAll
	}
	n, err := abandon(ctx)
	if err != nil {
		return fmt.Errorf("recovering: %w", err)
	}
	if n > 0 {
		a.log.WarnContext(ctx, "abandoned issuances that an earlier run left unfinished; their orders are issued anew", "count", n)
	}
	if alone && a.acme != nil {
		return a.acme.TakeOver(ctx)
	}
	return nil
}

// adopt has the authorities' own certificates in the table of all statuses, where
// one of the issuers signed them.
func (a *app) adopt(ctx context.Context) {
	for _, is := range a.issuers {
		for _, chain := range is.Chains() {
			for _, cert := range chain {
				if _, err := a.ca.Adopt(ctx, cert); err != nil {
					a.log.WarnContext(ctx, "the status of an authority's certificate is not served, nor can it be revoked",
						"subject", cert.Subject.String(), "error", err)
				}
			}
		}
	}
}

// presigned are the hashes of CertIDs that responses are signed ahead for.
var presigned = map[string][]ocsp.Hash{
	config.PresignSHA1:       {ocsp.SHA1},
	config.PresignSHA256:     {ocsp.SHA256},
	config.PresignSHA1SHA256: {ocsp.SHA1, ocsp.SHA256},
}

func (a *app) buildStatus(context.Context) error {
	var err error
	if a.cfg.OCSP.Enabled {
		st := store.NewOCSP(a.db)
		a.ocsp, err = ocsp.New(ocsp.Config{
			Issuers: a.issuers, Source: st, Responders: st, CA: a.ca, Ledger: store.NewCA(a.db).PlainLedger(), Keys: a.keys, Path: ocspPath,
			Validity: a.cfg.OCSP.Validity.Std(), Nonce: ocsp.Nonces(a.cfg.OCSP.Nonce),
			Archive: a.cfg.OCSP.Archive.Std(), RevokeUnissued: a.cfg.OCSP.Unissued == config.UnissuedRevoked,
			Ahead: presigned[a.cfg.OCSP.Presign], AheadRate: a.cfg.OCSP.PresignRate, Shelf: st, Leases: st,
			Limiter: a.limiter,
			Logger:  a.log.With("room", "ocsp"), Registerer: a.registry,
		})
		if err != nil {
			return fmt.Errorf("ocsp: %w", err)
		}
		a.serve("ocsp", a.ocsp.Run)
		a.serve("ocsp-changes", a.ocsp.Follow)
		a.ca.OnRevoke(func(r ca.Revoked) { a.ocsp.Changed(r.Issuer, r.Serial) })
	}
	a.crl, err = crl.New(crl.Config{
		Issuers: a.issuers, Store: store.NewCRL(a.db), Plans: a.crlPlans(), Life: longestLife(a.cfg.Profiles),
		Period: a.cfg.CRL.Period.Std(), Validity: a.cfg.CRL.Validity.Std(), RevocationDelay: a.cfg.CRL.AfterRevocation.Std(),
		Limiter: a.limiter,
		Logger:  a.log.With("room", "crl"), Registerer: a.registry,
	})
	if err != nil {
		return fmt.Errorf("crl: %w", err)
	}
	a.serve("crl", a.crl.Run)
	a.ca.OnRevoke(func(r ca.Revoked) { a.crl.Trigger(r.Issuer) })
	return nil
}

// validator goes out and looks whether clients control their names.
func (a *app) validator() (*challenge.Validator, error) {
	c := a.cfg.ACME.Validation
	v, err := challenge.New(challenge.Config{
		Resolver: string(c.Resolver), HTTPPort: c.HTTP01Port, HTTPSPort: c.HTTPSPort, TLSPort: c.TLSALPN01Port,
		RequireDNSSEC: c.DNSSEC == config.DNSSECAD, CAAIdentities: domains(a.cfg.ACME.CAAIdentities),
		AllowPrivate: c.AllowPrivateAddresses, Allow: prefixes(c.Allow), Timeout: c.Timeout.Std(),
		Logger: a.log.With("room", "challenge"), Registerer: a.registry,
	})
	if err != nil {
		return nil, fmt.Errorf("acme.validation: %w; set acme.validation.resolver to host and port of one", err)
	}
	return v, nil
}

func (a *app) buildACME(context.Context) error {
	c := a.cfg.ACME
	if !c.Enabled {
		return nil
	}
	local, err := a.validator()
	if err != nil {
		return err
	}
	network, err := a.corroborated(local)
	if err != nil {
		return err
	}
	v, err := withDevices(network, c.DeviceAttestation)
	if err != nil {
		return err
	}
	quotas := a.cfg.RateLimit.Quotas
	cfg := acme.Config{
		BaseURL: a.cfg.Listen.HTTPS.ExternalURL.Parsed(), Path: acmePath, Instance: strconv.Itoa(int(a.cfg.Serials.Shard)),
		Store: store.NewACME(a.db), CA: a.ca, Validator: v,
		TermsOfService: string(c.TermsOfService), Website: string(c.Website), Binding: binding(c.ExternalAccountBinding),
		OrderLifetime: c.OrderLifetime.Std(), AuthzLifetime: c.AuthorizationLifetime.Std(), MaxOpenOrders: c.MaxPendingOrders,
		MaxReuse: a.ca.Policy().MaxReuse, ReuseAuthorizations: c.ReuseAuthorizations, ReuseOrders: c.ReuseOrders,
		DefaultProfile: a.ca.DefaultProfile(), Profiles: map[string]string{},
		PreferredChains:  a.preferred,
		PreAuthorization: c.PreAuthorization, Subdomains: c.SubdomainAuthorizations,
		RenewalPoll: c.RenewalPoll.Std(), MaxNames: mostNames(a.cfg.Profiles),
		Star: acme.StarConfig{
			Enabled: c.AutoRenewal.Enabled, MinLifetime: c.AutoRenewal.MinLifetime.Std(), MaxDuration: c.AutoRenewal.MaxDuration.Std(),
			AllowGet: c.AutoRenewal.AllowCertificateGet, MaxRows: c.AutoRenewal.MaxPerAccount,
		},
		ValidationWorkers: c.Validation.Workers, ValidationTimeout: validationTimeout(c.Validation),
		Limiter: a.limiter, Budget: a.budget, OrderQuota: a.quota(quotas.ACMEIdentifiers), Recorder: a.recorder,
		DuplicateQuota: a.quota(quotas.ACMEDuplicates), DomainQuota: a.quota(quotas.ACMERegisteredDomain),
		Logger: a.log.With("room", "acme"), Registerer: a.registry,
	}
	for _, t := range c.Challenges {
		cfg.Challenges = append(cfg.Challenges, acme.ChallengeType(t))
	}
	for _, p := range c.Profiles {
		cfg.Profiles[string(p.Name)] = p.Description
	}
	for _, p := range a.cfg.Profiles {
		if !p.SubdomainAuthorizations {
			cfg.NoSubdomains = append(cfg.NoSubdomains, string(p.Name))
		}
	}
	if c.Pausing.Enabled {
		cfg.Pausing = acme.Pausing{Failures: c.Pausing.Failures, Period: c.Pausing.Period.Std()}
	}
	cfg.CAAIdentities = domains(c.CAAIdentities)
	if a.cfg.ChecksCAA() {
		cfg.CAA = network
	}
	if a.acme, err = acme.New(cfg); err != nil {
		return fmt.Errorf("acme: %w", err)
	}
	if err := a.buildDirectories(cfg); err != nil {
		return err
	}
	a.services = append(a.services, service{name: "acme", run: a.acme.Run, last: a.saveNonces, err: make(chan error, 1)})
	a.serve("resolver", func(ctx context.Context) error { a.tryResolver(ctx, local); return nil })
	return nil
}

// takeNonces comes last before the serving: what is taken over is handed on only
// by a program that served.
func (a *app) takeNonces(ctx context.Context) error {
	for _, s := range a.acmeServers() {
		if err := s.TakeNonces(ctx); err != nil {
			a.log.WarnContext(ctx, "clients have to get new nonces", "error", err)
		}
	}
	return nil
}

// tryResolver says at once what else the first client would hear. It stops
// nothing: the resolver may come up later than we do.
func (a *app) tryResolver(ctx context.Context, v *challenge.Validator) {
	if err := v.CheckResolver(ctx); err != nil && ctx.Err() == nil {
		a.log.ErrorContext(ctx, "acme.validation.resolver can't be relied on; until it can, no name is validated", "error", err)
	}
}

func domains(list []config.Domain) []string {
	out := make([]string, 0, len(list))
	for _, d := range list {
		out = append(out, string(d))
	}
	return out
}

// preferredChains are the roots that profiles prefer, each of which an issuer must lead to.
func (a *app) preferredChains() (map[string]string, error) {
	out := map[string]string{}
	for i, p := range a.cfg.Profiles {
		if p.PreferredChain == "" {
			continue
		}
		var roots []string
		for _, is := range a.issuers {
			if len(p.Issuers) > 0 && !slices.Contains(p.Issuers, config.Name(is.Name)) {
				continue
			}
			for _, c := range is.Chains() {
				roots = append(roots, c[len(c)-1].Issuer.CommonName)
			}
		}
		if !slices.Contains(roots, p.PreferredChain) {
			return nil, fmt.Errorf("profiles[%d].preferred_chain: no chain of its issuers leads to %q; they lead to %q", i, p.PreferredChain, roots)
		}
		out[string(p.Name)] = p.PreferredChain
	}
	return out, nil
}

// chain is what is sent along with a certificate.
func (a *app) chain(id ca.IssuerID) ([]*x509.Certificate, error) {
	is, ok := a.ca.Issuer(id)
	if !ok {
		return nil, fmt.Errorf("issuer %s is no longer configured", id)
	}
	return append([]*x509.Certificate{is.Cert}, is.Chain...), nil
}

func (a *app) buildAdmin(context.Context) error {
	var err error
	a.admin, err = admin.New(admin.Config{
		Enrolment: a.operatorsEnrolment(),
		Authority: a.ca, Certificates: store.NewCA(a.db), Issuers: a.issuers,
		Audit: store.NewAudit(a.db), CRLs: store.NewCRL(a.db), CRLServer: a.crl, Incidents: store.NewIncidents(a.db),
		ExternalKeys: store.NewACMEOperator(a.db), Accounts: store.NewACMEOperator(a.db), Directories: a.operatorsDirectories(),
		Logger: a.log.With("room", "admin"), Registerer: a.registry,
	})
	if err != nil {
		return fmt.Errorf("building the operator API: %w", err)
	}
	return nil
}

// mostNames is how many names an order may have: what the most generous profile
// certifies. Which one an order is for, the authority looks at.
func mostNames(profiles []config.Profile) int {
	most := 0
	for _, p := range profiles {
		most = max(most, p.MaxNames)
	}
	return most
}

// profile is a profile in the CA's words.
func profile(p config.Profile) ca.Profile {
	out := ca.Profile{
		Name: string(p.Name), Validity: p.Validity.Std(), Backdate: p.Backdate.Std(),
		KeyUsages: p.KeyUsages, ExtKeyUsages: p.ExtendedKeyUsages, MaxNames: p.MaxNames, CommonName: ca.CNPolicy(p.CommonName),
		PermittedIP: prefixes(p.PermittedIP), ExcludedIP: prefixes(p.ExcludedIP),
		OmitOCSP: !p.OCSP, OmitCRL: !p.CRL, OmitCAIssuers: !p.CAIssuers, NoRevAvail: p.NoRevAvail, RequestedDates: p.AllowRequestedValidity,
	}
	for _, i := range p.Issuers {
		out.Issuers = append(out.Issuers, string(i))
	}
	for kind, on := range map[ca.NameKind]bool{
		ca.KindDNS: p.Identifiers.DNS, ca.KindWildcard: p.Identifiers.Wildcards, ca.KindIP: p.Identifiers.IP,
		ca.KindPermanentIdentifier: p.Identifiers.PermanentIdentifiers, ca.KindHardwareModule: p.Identifiers.HardwareModules,
		ca.KindCommonName: p.Identifiers.CommonNames, ca.KindSerialNumber: p.Identifiers.SerialNumbers,
	} {
		if on {
			out.Names = append(out.Names, kind)
		}
	}
	for _, d := range p.PermittedDNS {
		out.PermittedDNS = append(out.PermittedDNS, string(d))
	}
	for _, d := range p.ExcludedDNS {
		out.ExcludedDNS = append(out.ExcludedDNS, string(d))
	}
	for _, alg := range p.KeyAlgorithms {
		out.KeyAlgorithms = append(out.KeyAlgorithms, keys.Algorithm(alg))
	}
	return out
}

func prefixes(list []config.CIDR) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(list))
	for _, c := range list {
		out = append(out, c.Prefix)
	}
	return out
}

func paths(list []config.Path) []string {
	out := make([]string, 0, len(list))
	for _, p := range list {
		out = append(out, string(p))
	}
	return out
}

func (a *app) buildFront(ctx context.Context) error {
	hops, err := front.NewHops(hopHeader(a.cfg), prefixes(a.cfg.TrustedProxies.From)...)
	if err != nil {
		return fmt.Errorf("trusted_proxies: %w", err)
	}
	a.reloads = append(a.reloads, func(c *config.Config) error { return hops.Set(hopHeader(c), prefixes(c.TrustedProxies.From)) })
	ready, err := front.NewReadiness(front.ReadinessConfig{Checks: a.checks(), Log: a.log.With("room", "front")})
	if err != nil {
		return fmt.Errorf("building readiness: %w", err)
	}
	listeners, err := a.listeners(hops, ready)
	if err != nil {
		return err
	}
	a.front, err = front.New(front.Config{
		Listeners: listeners, Readiness: ready,
		DrainDelay: a.cfg.Limits.DrainDelay.Std(), DrainTimeout: a.cfg.Limits.DrainTimeout.Std(),
		Log: a.log.With("room", "front"), Registerer: a.registry,
	})
	if err != nil {
		return fmt.Errorf("building listeners: %w", err)
	}
	a.onClose(a.front.Close)
	return a.front.Listen(ctx)
}

func hopHeader(c *config.Config) string {
	if c.TrustedProxies.Header == config.HeaderForwarded {
		return front.Forwarded
	}
	return front.XForwardedFor
}

func (a *app) listeners(hops *front.Hops, ready *front.Readiness) ([]front.Listener, error) {
	l := a.cfg.Listen
	limits := front.Limits{
		Connections: a.cfg.Limits.MaxConnections, HeaderBytes: int(a.cfg.Limits.HeaderSize), Body: int64(a.cfg.Limits.BodySize),
		ReadHeader: a.cfg.Limits.HeaderTimeout.Std(), Read: a.cfg.Limits.ReadTimeout.Std(),
		Write: a.cfg.Limits.WriteTimeout.Std(), Idle: a.cfg.Limits.IdleTimeout.Std(),
	}
	status := a.crl.Handler()
	lines := front.Lines{
		OnlyErrors: l.HTTP.AccessLog == config.AccessErrors, None: l.HTTP.AccessLog == config.AccessOff, Sample: uint64(l.HTTP.AccessSample),
	}
	nobodys := a.limiter.Endpoint(classNone, ratelimit.EndpointOptions{Group: ratelimit.Stray})
	public := front.Listener{Name: listenHTTP, Address: string(l.HTTP.Address), Hops: hops, Limits: limits, Unrouted: nobodys, Routes: []front.Route{
		{Prefix: crlPath, Class: classCRL, Handler: status, Limit: a.crl.Limit(), Lines: lines},
		{
			Prefix: aiaPath, Class: classAIA, Handler: status, Lines: lines,
			Limit: a.limiter.Endpoint(classAIA, ratelimit.EndpointOptions{Group: ratelimit.Status, Cost: aiaCost, SkipGlobal: true}),
		},
	}}
	if a.ocsp != nil {
		public.Routes = append(public.Routes, front.Route{
			Prefix: ocspPath, Class: classOCSP, Handler: a.ocsp.Handler(), Quick: a.ocsp.Quick, Lines: lines,
			Limit: a.ocsp.Limit(), Refuse: a.ocsp.Refuse,
		})
	}
	if a.scep != nil {
		public.Routes = append(public.Routes, front.Route{
			Prefix: scepPath, Class: classSCEP, Handler: a.scep.Handler(), Limit: a.scep.Limit(), Refuse: a.scep.Refuse,
		})
	}
	var err error
	if public.ProxyFrom, err = proxyFrom(l.HTTP.ProxyProtocol); err != nil {
		return nil, fmt.Errorf("listen.http.proxy_protocol.from: %w", err)
	}
	out := []front.Listener{public}
	if get := a.certificate(); get != nil {
		secure := front.Listener{Name: listenHTTPS, Address: string(l.HTTPS.Address), Certificate: get, Hops: hops, Limits: limits, Unrouted: nobodys}
		if a.acme != nil {
			secure.Routes = append(secure.Routes, a.acmeRoutes()...)
		}
		if secure.ProxyFrom, err = proxyFrom(l.HTTPS.ProxyProtocol); err != nil {
			return nil, fmt.Errorf("listen.https.proxy_protocol.from: %w", err)
		}
		out = append(out, secure)
	}
	probes := front.OperatorRoutes(ready, a.registry, a.log.With("room", "front"))
	if l.Operator.Address != "" {
		out = append(out, front.Listener{Name: listenOperator, Address: string(l.Operator.Address), Operator: true, Routes: probes, Limits: limits})
	}
	if l.Operator.Socket != "" {
		api := append([]front.Route{{Prefix: "/api", Class: "api", Handler: a.admin.Handler()}}, probes...)
		limits.Write = operatorWrite
		out = append(out, front.Listener{Name: listenSocket, Socket: string(l.Operator.Socket), Operator: true, Routes: api, Limits: limits})
	}
	return out, nil
}

func proxyFrom(p config.ProxyProtocol) (*front.Prefixes, error) {
	if len(p.From) == 0 {
		return nil, nil
	}
	return front.NewPrefixes(prefixes(p.From)...)
}

// checks are what readiness asks.
func (a *app) checks() []front.Check {
	return []front.Check{
		{Name: "database", Run: a.engine.Ping},
		{Name: "keys", Run: a.keysReady},
		{Name: "crl", Run: func(context.Context) error { return a.crl.Check() }},
	}
}
