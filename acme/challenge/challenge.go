// Package challenge goes out and looks whether an account controls a name
// (RFC 8555 §8): it is the only room that talks to the network at a stranger's
// word, and so the one that decides where to.
package challenge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

// Config is how validations are done. Zero values mean what is said beside them.
type Config struct {
	// Resolver is the host:port of a recursive resolver, :53 if no port is
	// given. Empty: those of /etc/resolv.conf.
	Resolver string

	// RequireDNSSEC believes Resolver, which must be given, only while it proves
	// that it validates DNSSEC.
	RequireDNSSEC bool

	// CAAIdentities are the domains by which CAA records name this CA. Without
	// any, a record that restricts issuance forbids it.
	CAAIdentities []string

	HTTPPort  int // of http-01, and of http redirects without a port; 80
	HTTPSPort int // of https redirects without a port; 443
	TLSPort   int // of tls-alpn-01; 443

	// AllowPrivate lets names lead to private addresses (RFC 1918, RFC 6598,
	// RFC 4193), as those of an internal CA do.
	AllowPrivate bool
	// Allow lets names lead to further special-use addresses, loopback say. The
	// metadata services of clouds need a prefix of their own: a /32 or /128.
	Allow []netip.Prefix
	// Deny forbids addresses that would be allowed; it wins over all else.
	Deny []netip.Prefix

	Timeout     time.Duration // of a whole attempt; 10 s
	DNSTimeout  time.Duration // of each try of a DNS query, of which there are three; 2 s
	StepTimeout time.Duration // of each connection, handshake and wait for a header; a third of Timeout

	MaxBody      int // bytes of an http-01 answer; 8 KiB
	MaxRedirects int // 10; negative: none are followed

	UserAgent  string                // "secsy-pki ACME validation"
	Logger     *slog.Logger          // nil: silent
	Registerer prometheus.Registerer // nil: no metrics
}

// A Validator is an acme.Validator that uses the network. Each attempt opens
// its own connections and keeps nothing for the next.
type Validator struct {
	cfg      Config
	policy   policy
	resolver *resolver
	issuers  []string // in lower case
	metrics  *metrics
	log      *slog.Logger
}

var _ acme.Validator = (*Validator)(nil)

// New makes a Validator.
func New(cfg Config) (*Validator, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("challenge: %w", err)
	}
	servers, err := servers(cfg.Resolver)
	if err != nil {
		return nil, fmt.Errorf("challenge: choosing a resolver: %w", err)
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	v := &Validator{
		cfg:      cfg,
		policy:   policy{private: cfg.AllowPrivate, allow: cfg.Allow, deny: cfg.Deny},
		resolver: &resolver{servers: servers, timeout: cfg.DNSTimeout, queries: m.queries},
		metrics:  m,
		log:      cfg.Logger,
	}
	if cfg.RequireDNSSEC {
		v.resolver.dnssec = newDNSSEC()
	}
	for _, d := range cfg.CAAIdentities {
		v.issuers = append(v.issuers, strings.ToLower(d))
	}
	return v, nil
}

func (c *Config) complete() error {
	orElse(&c.HTTPPort, 80)
	orElse(&c.HTTPSPort, 443)
	orElse(&c.TLSPort, 443)
	orElse(&c.Timeout, 10*time.Second)
	orElse(&c.DNSTimeout, 2*time.Second)
	orElse(&c.StepTimeout, c.Timeout/3)
	orElse(&c.MaxBody, 8<<10)
	orElse(&c.MaxRedirects, 10)
	orElse(&c.UserAgent, "secsy-pki ACME validation")
	orElse(&c.Logger, slog.New(slog.DiscardHandler))
	for _, port := range []int{c.HTTPPort, c.HTTPSPort, c.TLSPort} {
		if port < 1 || port > 65535 {
			return fmt.Errorf("%d is no port", port)
		}
	}
	if c.RequireDNSSEC && c.Resolver == "" {
		return errors.New("DNSSEC needs a resolver that is named")
	}
	if c.Timeout < 0 || c.DNSTimeout < 0 || c.StepTimeout < 0 || c.MaxBody < 0 {
		return errors.New("negative limits make no sense")
	}
	for _, p := range append(c.Allow[:len(c.Allow):len(c.Allow)], c.Deny...) {
		if !p.IsValid() {
			return errors.New("an invalid address prefix")
		}
	}
	return nil
}

func orElse[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate implements acme.Validator.
func (v *Validator) Validate(ctx context.Context, q acme.Validation) (acme.ValidationRecord, *acme.Problem) {
	ctx, cancel := context.WithTimeout(ctx, v.cfg.Timeout)
	defer cancel()
	a := &attempt{v: v, q: q, dns: v.resolver.inquiry(), rec: acme.ValidationRecord{
		Type: q.Type, Name: q.Identifier.Value, Resolver: v.resolver.servers[0], At: time.Now(),
	}}
	p := a.run(ctx)
	a.rec.DNSSEC = a.dns.state()
	a.rec.Took = time.Since(a.rec.At)
	v.metrics.observe(a.rec)
	if p != nil && p.Err != nil {
		v.log.InfoContext(ctx, "validation failed", "type", string(q.Type), "name", q.Identifier.Value,
			"account", q.AccountID, "problem", string(p.Type), "detail", p.Detail, "error", p.Err)
	}
	return a.rec, p
}

// An attempt is one validation under way.
type attempt struct {
	v   *Validator
	q   acme.Validation
	dns *inquiry
	rec acme.ValidationRecord
}

func (a *attempt) run(ctx context.Context) *acme.Problem {
	if p := check(a.q); p != nil {
		return p
	}
	switch a.q.Type {
	case acme.HTTP01:
		return a.http01(ctx)
	case acme.DNS01:
		return a.dns01(ctx)
	case acme.TLSALPN01:
		return a.tlsALPN01(ctx)
	case acme.DNSAccount01:
		return a.dnsAccount01(ctx)
	case acme.DNSPersist01:
		return a.dnsPersist01(ctx)
	case acme.OnionCSR01:
		return a.onionCSR01(ctx)
	}
	return problem(acme.Malformed, nil, "challenges of type %s are not supported", excerpt([]byte(a.q.Type)))
}

// check refuses what would not make a plain URL or DNS name. The room above has
// looked already; but this is the last gate before the network.
func check(q acme.Validation) *acme.Problem {
	connects := q.Type == acme.HTTP01 || q.Type == acme.TLSALPN01
	switch {
	case q.Identifier.Type == ca.IP && connects:
		if addr, err := netip.ParseAddr(q.Identifier.Value); err != nil || !isIdentifier(addr, q.Identifier.Value) {
			return problem(acme.Malformed, nil, "%s is not an address in its one spelling", excerpt([]byte(q.Identifier.Value)))
		}
	case q.Identifier.Type != ca.DNS:
		return problem(acme.UnsupportedIdentifier, nil, "identifiers of this type can't be validated this way")
	case !isHostname(q.Identifier.Value):
		return problem(acme.Malformed, nil, "%s is not a host name", excerpt([]byte(q.Identifier.Value)))
	case ca.IsOnion(q.Identifier.Value) != (q.Type == acme.OnionCSR01):
		// RFC 7686 §2: such names are never asked of the DNS.
		return problem(acme.Malformed, nil, "names in .onion, and no others, are validated by onion-csr-01")
	case q.Wildcard && connects:
		return problem(acme.Malformed, nil, "a wildcard can't be validated this way")
	}
	if q.Type == acme.DNSPersist01 {
		return nil // it has no token
	}
	if !isToken(q.Token) || !strings.HasPrefix(q.KeyAuthorization, q.Token+".") {
		return problem(acme.ServerInternal, errors.New("the challenge's token is not one of ours"), "the challenge is damaged")
	}
	return nil
}

// isIdentifier reports whether text is how an identifier writes addr (RFC 8738
// §3: RFC 5952, and IPv4 with dots).
func isIdentifier(addr netip.Addr, text string) bool {
	return addr.Zone() == "" && !addr.Is4In6() && addr.String() == text
}

// isToken reports whether s is base64url of the length that RFC 8555 §8 has at least.
func isToken(s string) bool {
	const least = 22 // 128 bits
	if len(s) < least || len(s) > 256 {
		return false
	}
	return strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") == ""
}

// isHostname reports whether s is a name in lower-case A-labels, and not one
// that some program would take for an IPv4 address.
func isHostname(s string) bool {
	if len(s) == 0 || len(s) > 253 {
		return false
	}
	last := ""
	for label := range strings.SplitSeq(s, ".") {
		if len(label) == 0 || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return false
			}
		}
		last = label
	}
	// No top-level name begins with a digit (RFC 1123 §2.1, RFC 3696 §2); 127.1
	// and 0x7f.1 do.
	return last[0] < '0' || last[0] > '9'
}

// problem makes what the client hears; err is for the log.
func problem(t acme.ProblemType, err error, format string, args ...any) *acme.Problem {
	status := http.StatusBadRequest
	switch t {
	case acme.Unauthorized, acme.CAA:
		status = http.StatusForbidden
	case acme.ServerInternal:
		status = http.StatusInternalServerError
	}
	return &acme.Problem{Type: t, Status: status, Detail: fmt.Sprintf(format, args...), Err: err}
}

// excerpt quotes the beginning of what a stranger sent.
func excerpt(b []byte) string { return `"` + printable(b, 64) + `"` }

// printable makes at most so many bytes of b fit for a line of text: printable
// ASCII, and nothing that ends a quotation.
func printable(b []byte, most int) string {
	cut := len(b) > most
	if cut {
		b = b[:most]
	}
	text := bytes.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '?'
		}
		return r
	}, b)
	if cut {
		return string(text) + "..."
	}
	return string(text)
}
