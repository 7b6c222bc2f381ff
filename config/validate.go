package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Limits of the public policy that hold whatever the date. The CA itself
// checks those that change with it.
const (
	publicValidity = Duration(200 * day) // Baseline Requirements §6.3.2
	publicReuse    = Duration(200 * day) // Baseline Requirements §4.2.1
)

// minDelta is how often a delta CRL may be signed.
const minDelta = Duration(5 * time.Minute)

// maxSocketPath is what sockaddr_un holds on the smallest of our systems, NUL included.
const maxSocketPath = 104

// maxIssuerDomains is how many domains a challenge of dns-persist-01 may name.
const maxIssuerDomains = 10

// maxKeyURI bounds a PKCS#11 URI.
const maxKeyURI = 4096

// Validate finds what is wrong with c, however it came about: an Errors, or nil.
func (c *Config) Validate() error {
	return append(c.check(), c.checkTogether()...).orNil()
}

// ValidateServe finds what is missing for serving with a c that is valid.
func (c *Config) ValidateServe() error {
	var r report
	if !slices.ContainsFunc(c.Issuers, func(i Issuer) bool { return i.Active }) {
		r.add("issuers", "no active issuer; secsy-pki init makes one")
	}
	if !c.Keys.Passphrase.IsSet() && c.NeedsKeyFiles() {
		msg := "no source: set one of file, env and credential"
		if c.Keys.PKCS11.Enabled() {
			msg += "; it opens the key of the https listener, which is not on the HSM"
		}
		r.add("keys.passphrase", "%s", msg)
	}
	if len(c.Profiles) == 0 {
		r.add("profiles", "no profile")
	}
	for i, p := range c.Profiles {
		if c.Listen.HTTP.ExternalURL == "" && (p.OCSP || p.CRL || p.CAIssuers) {
			r.add("listen.http.external_url", "needed by profiles[%d], which puts addresses below it into certificates", i)
			break
		}
	}
	if c.ACME.Enabled {
		if c.Listen.HTTPS.Address == "" {
			r.add("listen.https.address", "needed by ACME; to do without, set acme.enabled to false")
		}
		if c.Listen.HTTPS.ExternalURL == "" {
			r.add("listen.https.external_url", "needed by ACME, whose clients are sent addresses below it")
		}
	}
	return Errors(r).orNil()
}

// checkAutoRenewal holds it to what it needs of other keys.
func (c *Config) checkAutoRenewal(r *report) {
	a := c.ACME.AutoRenewal
	if !a.Enabled {
		return
	}
	if a.MaxDuration > c.ACME.AuthorizationLifetime {
		r.add("acme.auto_renewal.max_duration", "%s is more than acme.authorization_lifetime, %s", a.MaxDuration, c.ACME.AuthorizationLifetime)
	}
	if a.MinLifetime > a.MaxDuration {
		r.add("acme.auto_renewal.min_lifetime", "%s is more than max_duration, %s", a.MinLifetime, a.MaxDuration)
	}
	longest, chosen := Duration(0), false
	for _, p := range c.Profiles {
		if p.AllowRequestedValidity {
			longest, chosen = max(longest, p.Validity-p.Backdate), true
		}
	}
	if !chosen {
		r.add("acme.auto_renewal.enabled", "no profile has allow_requested_validity, which its certificates need")
	} else if least := a.MinLifetime + a.MinLifetime/2; longest <= least {
		r.add("acme.auto_renewal.min_lifetime", "no profile with allow_requested_validity lasts: want a validity, less its backdate, of more than %s, as certificates live for half as long again as they are asked for", least)
	}
}

// NeedsKeyFiles reports whether any key is in an encrypted file: all are, or with
// PKCS#11 that of the certificate which the CA issues to its own listener.
func (c *Config) NeedsKeyFiles() bool {
	https := &c.Listen.HTTPS
	return !c.Keys.PKCS11.Enabled() || https.Address != "" && https.Files.CertFile == ""
}

// A report gathers errors.
type report Errors

func (r *report) add(key, format string, args ...any) {
	*r = append(*r, Error{Key: key, Msg: fmt.Sprintf(format, args...)})
}

// checkTogether finds the values that do not go together.
func (c *Config) checkTogether() Errors {
	var r report
	c.checkListen(&r)
	c.checkHops(&r)
	c.checkStore(&r)
	c.checkIssuers(&r)
	c.checkProfiles(&r)
	c.checkACMEProfiles(&r)
	c.checkDirectories(&r)
	c.checkEnrolment(&r)
	c.checkStatus(&r)
	c.checkACME(&r)
	c.checkRateLimit(&r)
	c.checkPerspectives(&r)
	if c.Policy == PolicyPublic {
		c.checkPublic(&r)
	}
	if c.Limits.HeaderTimeout > c.Limits.ReadTimeout {
		r.add("limits.header_timeout", "%s is more than limits.read_timeout, %s", c.Limits.HeaderTimeout, c.Limits.ReadTimeout)
	}
	checkSecret(&r, "keys.passphrase", c.Keys.Passphrase)
	c.checkPKCS11(&r)
	return Errors(r)
}

func (c *Config) checkListen(r *report) {
	l := &c.Listen
	checkExternal(r, "listen.http.external_url", l.HTTP.ExternalURL, "http")
	checkExternal(r, "listen.https.external_url", l.HTTPS.ExternalURL, "https")
	if (l.HTTPS.Files.CertFile == "") != (l.HTTPS.Files.KeyFile == "") {
		r.add("listen.https.files", "cert_file and key_file go together")
	}
	if l.HTTPS.Files.CertFile != "" && len(l.HTTPS.Certificate.Names) > 0 {
		r.add("listen.https.certificate.names", "the certificate comes from listen.https.files: set one of the two")
	}
	if len(l.Operator.Socket) >= maxSocketPath {
		r.add("listen.operator.socket", "the path has %d octets; a Unix socket's has at most %d", len(l.Operator.Socket), maxSocketPath-1)
	}
	type listener struct {
		key  string
		addr Address
	}
	all := []listener{
		{"listen.http.address", l.HTTP.Address},
		{"listen.https.address", l.HTTPS.Address},
		{"listen.operator.address", l.Operator.Address},
	}
	for i, a := range all {
		for _, b := range all[:i] {
			if collide(a.addr, b.addr) {
				r.add(a.key, "%s is taken by %s", a.addr, b.key)
			}
		}
	}
}

// checkExternal holds the address that the world sees against its listener.
// The program answers at fixed paths, so there can be none here.
func checkExternal(r *report, key string, u URL, scheme string) {
	if u == "" {
		return
	}
	if p := u.Parsed(); p.Scheme != scheme || p.Path != "" {
		r.add(key, "%s: want %s://host or %s://host:port, without a path", quote(string(u)), scheme, scheme)
	}
}

// collide reports whether two listeners can't both be had.
func collide(a, b Address) bool {
	hostA, portA, errA := net.SplitHostPort(string(a))
	hostB, portB, errB := net.SplitHostPort(string(b))
	if errA != nil || errB != nil || portA != portB || portA == "0" {
		return false
	}
	wildcard := func(host string) bool {
		addr, err := netip.ParseAddr(host)
		return host == "" || err == nil && addr.IsUnspecified()
	}
	return hostA == hostB || wildcard(hostA) || wildcard(hostB)
}

// checkHops refuses to trust the whole Internet.
func (c *Config) checkHops(r *report) {
	for key, list := range map[string][]CIDR{
		"trusted_proxies.from":             c.TrustedProxies.From,
		"listen.http.proxy_protocol.from":  c.Listen.HTTP.ProxyProtocol.From,
		"listen.https.proxy_protocol.from": c.Listen.HTTPS.ProxyProtocol.From,
	} {
		for i, p := range list {
			if p.IsValid() && p.Bits() == 0 {
				r.add(fmt.Sprintf("%s[%d]", key, i), "%s is everybody: any client could claim any address", p)
			}
		}
	}
}

func (c *Config) checkStore(r *report) {
	checkSecret(r, "store.postgres.url", c.Store.Postgres.URL)
	if c.Store.Engine == EnginePostgres && !c.Store.Postgres.URL.IsSet() {
		r.add("store.postgres.url", "needed by engine postgres: set one of file, env and credential")
	}
}

func checkSecret(r *report, key string, s Secret) {
	if s.sources() > 1 {
		r.add(key, "more than one source: set exactly one of file, env and credential")
	}
}

func (c *Config) checkIssuers(r *report) {
	seen := map[Name]bool{}
	for i, is := range c.Issuers {
		if seen[is.Name] {
			r.add(fmt.Sprintf("issuers[%d].name", i), "%s is taken by another issuer", quote(string(is.Name)))
		}
		seen[is.Name] = true
		if is.Key.IsURI() {
			c.checkKeyURI(r, fmt.Sprintf("issuers[%d].key", i), string(is.Key))
		}
		if is.Hold && c.Policy == PolicyPublic {
			r.add(fmt.Sprintf("issuers[%d].hold", i), "not allowed under policy public")
		}
		c.checkIssuerCRL(r, func(name string) string { return fmt.Sprintf("issuers[%d].crl.%s", i, name) }, is.CRL)
	}
}

func (c *Config) checkIssuerCRL(r *report, key func(string) string, l IssuerCRL) {
	switch {
	case l.Delta > c.CRL.Period:
		r.add(key("delta"), "%s is more than crl.period, %s: a delta that is as rare as whole lists says nothing new", l.Delta, c.CRL.Period)
	case l.Delta > 0 && l.Delta < minDelta:
		r.add(key("delta"), "%s: want 0s for none, or at least %s", l.Delta, minDelta)
	case l.Delta == 0 && l.DeltaInCertificates:
		r.add(key("delta_in_certificates"), "there is no delta to point to: set delta, or this to false")
	}
}

// checkKeyURI looks at what doesn't need the whole URI taken apart, and never
// repeats any of it.
func (c *Config) checkKeyURI(r *report, key, uri string) {
	switch {
	case !c.Keys.PKCS11.Enabled():
		r.add(key, "a PKCS#11 URI, but keys.pkcs11 names no module and no token")
	case len(uri) > maxKeyURI || !printable(uri):
		r.add(key, "want a PKCS#11 URI of printable characters, at most %d octets", maxKeyURI)
	case strings.Contains(uri, "?"):
		r.add(key, "only object and id belong here: the module and the PIN are named in keys.pkcs11")
	}
}

func (c *Config) checkProfiles(r *report) {
	issuers := map[Name]Issuer{}
	for _, is := range c.Issuers {
		issuers[is.Name] = is
	}
	seen := map[Name]bool{}
	for i, p := range c.Profiles {
		key := func(name string) string { return fmt.Sprintf("profiles[%d].%s", i, name) }
		if seen[p.Name] {
			r.add(key("name"), "%s is taken by another profile", quote(string(p.Name)))
		}
		seen[p.Name] = true
		c.checkProfile(r, key, p, issuers)
	}
	if c.DefaultProfile != "" && !seen[c.DefaultProfile] {
		r.add("default_profile", "there is no profile %s", quote(string(c.DefaultProfile)))
	}
}

func (c *Config) checkACMEProfiles(r *report) {
	if c.ACME.PreAuthorization && !c.ACME.ReuseAuthorizations {
		r.add("acme.pre_authorization", "needs acme.reuse_authorizations: what is proven ahead of an order is of use only if orders rely on it")
	}
	c.checkOffered(r, "acme", c.ACME.Profiles)
}

// checkOffered looks at the profiles that a directory, with its section, lets
// clients choose from.
func (c *Config) checkOffered(r *report, section string, list []ACMEProfile) {
	seen := map[Name]bool{}
	for i, p := range list {
		key := fmt.Sprintf("%s.profiles[%d].name", section, i)
		if !slices.ContainsFunc(c.Profiles, func(have Profile) bool { return have.Name == p.Name }) {
			r.add(key, "there is no profile %s", quote(string(p.Name)))
		}
		if seen[p.Name] {
			r.add(key, "%s is given twice", quote(string(p.Name)))
		}
		seen[p.Name] = true
		if !printable(p.Description) || len(p.Description) > 200 {
			r.add(fmt.Sprintf("%s.profiles[%d].description", section, i), "want at most 200 octets of printable text")
		}
	}
}

func (c *Config) checkProfile(r *report, key func(string) string, p Profile, issuers map[Name]Issuer) {
	if strings.Trim(string(p.Name), "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		r.add(key("name"), "%s: want lower-case letters, digits and hyphens", quote(string(p.Name)))
	}
	if strings.HasPrefix(string(p.Name), "secsy-") {
		r.add(key("name"), `names that begin with "secsy-" are the CA's own`)
	}
	for j, name := range p.Issuers {
		at := key(fmt.Sprintf("issuers[%d]", j))
		switch is, ok := issuers[name]; {
		case !ok:
			r.add(at, "there is no issuer %s", quote(string(name)))
		case !is.Active:
			r.add(at, "issuer %s is not active", quote(string(name)))
		}
	}
	if p.Backdate >= p.Validity {
		r.add(key("backdate"), "%s is not less than the validity, %s", p.Backdate, p.Validity)
	}
	if p.Identifiers == (Identifiers{}) {
		r.add(key("identifiers"), "allow at least one kind of name")
	}
	if p.OCSP && !c.OCSP.Enabled {
		r.add(key("ocsp"), "the responder is off: set ocsp.enabled, or this to false")
	}
	// RFC 9608 §3.
	if p.NoRevAvail && (p.OCSP || p.CRL) {
		r.add(key("no_rev_avail"), "says that there is no status, beside what says where it is: set ocsp and crl to false, or this")
	}
}

func (c *Config) checkStatus(r *report) {
	if c.CRL.Validity < 2*c.CRL.Period {
		r.add("crl.validity", "%s is less than twice crl.period, %s", c.CRL.Validity, c.CRL.Period)
	}
	if c.CRL.AfterRevocation > c.CRL.Period {
		r.add("crl.after_revocation", "%s is more than crl.period, %s", c.CRL.AfterRevocation, c.CRL.Period)
	}
}

// ChecksCAA reports whether CAA records are kept to.
func (c *Config) ChecksCAA() bool {
	return c.Policy == PolicyPublic || c.ACME.CAA == CAAOn || c.ACME.CAA == CAAAuto && len(c.ACME.CAAIdentities) > 0
}

func (c *Config) checkACME(r *report) {
	list := c.ACME.Challenges
	if c.ACME.Enabled && len(list) == 0 {
		r.add("acme.challenges", "without any, nothing can be proven: name at least one, or leave the key out")
	}
	for i, name := range list {
		if slices.Contains(list[:i], name) {
			r.add(fmt.Sprintf("acme.challenges[%d]", i), "%s is given twice", name)
		}
	}
	devices := c.ACME.DeviceAttestation != DeviceAttestation{}
	switch at := c.ACME.offeredAt(DeviceAttest01); {
	case at != "" && !devices:
		r.add(at, "device-attest-01 needs somebody whose word is taken: set apple_roots, tpm_roots or step_roots of acme.device_attestation")
	case at != "" && !slices.ContainsFunc(c.Profiles, Profile.certifiesDevices):
		r.add(at, "device-attest-01 proves devices and nothing else: set identifiers.permanent_identifiers or identifiers.hardware_modules of a profile")
	case at == "" && devices:
		r.add("acme.device_attestation", "is of no use without device-attest-01 in acme.challenges, or in those of a directory")
	}
	if n := len(c.ACME.CAAIdentities); c.ACME.offers("dns-persist-01") && (n == 0 || n > maxIssuerDomains) {
		r.add("acme.caa_identities", "dns-persist-01 needs 1 to %d of them: its TXT records name this CA by one; there are %d", maxIssuerDomains, n)
	}
	if c.ACME.SubdomainAuthorizations && !c.ACME.offers("dns-01") && !c.ACME.offers("dns-account-01") && !c.ACME.offers("dns-persist-01") {
		r.add("acme.subdomain_authorizations", "needs dns-01, dns-account-01 or dns-persist-01 in acme.challenges, or in those of a directory: a domain is proven in the DNS")
	}
	if v := c.ACME.Validation; v.DNSSEC == DNSSECAD && v.Resolver == "" {
		r.add("acme.validation.resolver", "needed by dnssec ad: name the resolver that validates")
	}
	c.checkAutoRenewal(r)
}

// checkPublic holds c against the Baseline Requirements, where no date matters.
func (c *Config) checkPublic(r *report) {
	v := &c.ACME.Validation
	if v.HTTP01Port != 80 {
		r.add("acme.validation.http01_port", "under policy public it is 80")
	}
	if v.HTTPSPort != 443 {
		r.add("acme.validation.https_port", "under policy public it is 443")
	}
	if v.TLSALPN01Port != 443 {
		r.add("acme.validation.tls_alpn01_port", "under policy public it is 443")
	}
	if at := c.ACME.offeredAt(DeviceAttest01); at != "" {
		r.add(at, "under policy public there is no device-attest-01")
	}
	if v.AllowPrivateAddresses {
		r.add("acme.validation.allow_private_addresses", "not allowed under policy public")
	}
	if len(v.Allow) > 0 {
		r.add("acme.validation.allow", "not allowed under policy public")
	}
	if c.OCSP.Unissued == UnissuedRevoked {
		// Baseline Requirements §4.9.13: OCSP says of none that it is on hold, which
		// is the reason that RFC 6960 §2.2 wants here.
		r.add("ocsp.unissued", "under policy public it is %s", UnissuedUnauthorized)
	}
	if c.ACME.AutoRenewal.Enabled {
		// Baseline Requirements §4.9.1.1: whoever has a certificate may have it
		// revoked, which RFC 8739 §3.1.2 has refused.
		r.add("acme.auto_renewal.enabled", "not allowed under policy public")
	}
	if c.ACME.AuthorizationLifetime > publicReuse {
		r.add("acme.authorization_lifetime", "%s is more than the %s of policy public", c.ACME.AuthorizationLifetime, publicReuse)
	}
	if c.ACME.Enabled && v.DNSSEC != DNSSECAD {
		// Baseline Requirements §3.2.2.4 and §3.2.2.8, since 2026-03-15. Resolver is
		// needed by it.
		r.add("acme.validation.dnssec", "policy public needs ad, and a resolver that validates")
	}
	if c.ACME.CAA == CAAOff {
		r.add("acme.caa", "under policy public CAA records are always kept to")
	}
	if c.ACME.Enabled && len(c.ACME.CAAIdentities) == 0 {
		r.add("acme.caa_identities", "policy public needs the domain that CAA records name this CA by")
	}
	for i, p := range c.Profiles {
		checkPublicProfile(r, func(name string) string { return fmt.Sprintf("profiles[%d].%s", i, name) }, p)
	}
}

func checkPublicProfile(r *report, key func(string) string, p Profile) {
	if p.Validity > publicValidity {
		r.add(key("validity"), "%s is more than the %s of policy public", p.Validity, publicValidity)
	}
	for _, list := range []struct {
		name    string
		values  []string
		refused []string
	}{
		{"key_usages", p.KeyUsages, []string{"contentCommitment", "dataEncipherment", "keyAgreement"}},
		{"extended_key_usages", p.ExtendedKeyUsages, []string{"clientAuth", "codeSigning", "emailProtection", "timeStamping"}},
		{"key_algorithms", p.KeyAlgorithms, []string{"ecdsa-p521", "ed25519"}},
	} {
		for i, v := range list.values {
			if slices.Contains(list.refused, v) {
				r.add(key(fmt.Sprintf("%s[%d]", list.name, i)), "%s is not allowed under policy public", v)
			}
		}
	}
	if !p.CRL && !p.OCSP && p.Validity > Duration(7*day) {
		// Baseline Requirements §7.1.2.11.2: only short-lived certificates need no CRL.
		r.add(key("crl"), "policy public needs crl or ocsp in certificates that live longer than 7d")
	}
}

// checkRateLimit holds also when it is off: SIGHUP may turn it on.
func (c *Config) checkRateLimit(r *report) {
	l := &c.RateLimit
	bucket := func(key string, rate Rate, burst int) {
		idle := float64(l.IdleTTLSeconds)
		switch {
		case rate > 0 && burst == 0:
			r.add(key+".burst", "0 with a rate of %s would refuse everything: want at least 1, or a rate of 0 for no limit", plainRate(rate))
		case rate > 0 && float64(burst)/float64(rate) > idle:
			r.add(key, "an empty bucket takes %.0f seconds to refill, longer than rate_limit.idle_ttl_seconds, %.0f; raise that, or make burst smaller", float64(burst)/float64(rate), idle)
		}
	}
	active := l.Concurrency.Enabled
	for _, b := range l.buckets() {
		bucket(b.key, b.Rate, b.Burst)
		active = active || b.Rate > 0 && b.Burst > 0
	}
	c.checkEndpointLimits(r)
	for i, o := range l.Overrides {
		bucket(fmt.Sprintf("rate_limit.overrides[%d]", i), o.Rate, o.Burst)
	}
	c.checkOverrides(r)
	for i, p := range l.NAT64 {
		if p.IsValid() && (p.Bits() != 96 || p.Addr().Is4()) {
			r.add(fmt.Sprintf("rate_limit.nat64[%d]", i), "%s: want an IPv6 prefix of 96 bits, such as 64:ff9b::/96", p)
		}
	}
	if l.Enabled && !active && !l.Quotas.Active() {
		r.add("rate_limit.enabled", "true, but no tier has a rate and the guard is off: set a rate and a burst, concurrency.enabled, or this to false")
	}
}

func plainRate(r Rate) string {
	b, _ := r.MarshalText() // never fails
	return string(b)
}

func (c *Config) checkEndpointLimits(r *report) {
	seen := map[string]bool{}
	for i, e := range c.RateLimit.Endpoints {
		if seen[e.Name] {
			r.add(fmt.Sprintf("rate_limit.endpoints[%d].name", i), "%s is given twice", quote(e.Name))
		}
		seen[e.Name] = true
		if e.PerIP == (Bucket{}) && e.Total == (Bucket{}) {
			r.add(fmt.Sprintf("rate_limit.endpoints[%d]", i), "limits nothing: set a rate and a burst in per_ip, in total, or in both")
		}
	}
}

// maxOverrides are as many as the limiter can tell apart.
const maxOverrides = 10000

func (c *Config) checkOverrides(r *report) {
	list := c.RateLimit.Overrides
	if len(list) > maxOverrides {
		r.add("rate_limit.overrides", "there are %d: want at most %d", len(list), maxOverrides)
	}
	seen := map[string]int{}
	for i, o := range list {
		key := fmt.Sprintf("rate_limit.overrides[%d]", i)
		if o.Source.IsValid() == (o.Account != "") {
			r.add(key, "set exactly one of source and account")
			continue
		}
		if o.Exempt == (o.Rate > 0) || o.Exempt && o.Burst > 0 {
			r.add(key, "set exempt, or a rate and a burst")
		}
		of, what := "account", string(o.Account)
		if o.Source.IsValid() {
			of, what = "source", o.Source.String()
		}
		if first, twice := seen[of+what]; twice {
			r.add(key+"."+of, "%s has an override already, rate_limit.overrides[%d]", what, first)
		} else {
			seen[of+what] = i
		}
		if o.Exempt && o.Source.IsValid() && o.Source.Bits() == 0 {
			r.add(key+".source", "%s is everybody: to have no limit for each client, set rate_limit.per_ip.rate to 0", what)
		}
	}
}

type keyedBucket struct {
	key string
	Bucket
}

// buckets are all that are no overrides.
func (l *RateLimit) buckets() []keyedBucket {
	out := []keyedBucket{
		{"rate_limit.global", l.Global}, {"rate_limit.per_ip", l.PerIP}, {"rate_limit.per_account", l.PerAccount},
	}
	for i, e := range l.Endpoints {
		key := fmt.Sprintf("rate_limit.endpoints[%d].", i)
		out = append(out, keyedBucket{key + "per_ip", e.PerIP}, keyedBucket{key + "total", e.Total})
	}
	return out
}
