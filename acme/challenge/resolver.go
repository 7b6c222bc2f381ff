package challenge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

const (
	resolvConf = "/etc/resolv.conf"

	tries      = 3    // of one query, over the servers in turn
	maxCNAMEs  = 10   // on the way to a record
	maxRecords = 64   // of one answer that are looked at
	maxJunk    = 64   // datagrams that answer another question
	ednsSize   = 1232 // what passes everywhere unfragmented
)

// What can become of a lookup. Only errNoName and errNoData are statements of
// the DNS; the others are failures to get one, and prove nothing.
var (
	errNoName   = errors.New("NXDOMAIN")
	errNoData   = errors.New("no such records")
	errRefused  = errors.New("resolver failure")
	errTimeout  = errors.New("timeout")
	errChain    = errors.New("too many CNAMEs")
	errExchange = errors.New("no usable answer from the resolver")
	errNoAD     = errors.New("the resolver does not validate DNSSEC")
)

// servers lists the resolvers to ask.
func servers(configured string) ([]string, error) {
	if configured != "" {
		return []string{withPort(configured)}, nil
	}
	conf, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return nil, err
	}
	if len(conf.Servers) == 0 {
		return nil, fmt.Errorf("%s names none", resolvConf)
	}
	var all []string
	for _, host := range conf.Servers[:min(len(conf.Servers), tries)] {
		all = append(all, net.JoinHostPort(host, conf.Port))
	}
	return all, nil
}

func withPort(server string) string {
	if _, _, err := net.SplitHostPort(server); err == nil {
		return server
	}
	return net.JoinHostPort(strings.Trim(server, "[]"), "53")
}

// A resolver asks recursive DNS servers, and keeps no answers. It is a stub: it
// relies on the server for recursion and for DNSSEC.
type resolver struct {
	servers []string
	timeout time.Duration
	dnssec  *dnssec // nil: whether the servers validate is not looked at
	queries *prometheus.CounterVec
}

// An inquiry is the lookups of one attempt. It is safe for concurrent use.
type inquiry struct {
	*resolver
	secure, insecure atomic.Int64 // answers with and without the AD bit
}

func (r *resolver) inquiry() *inquiry { return &inquiry{resolver: r} }

// lookup finds the records of one type at name or where its CNAMEs lead, at
// most maxRecords and at least one.
func (q *inquiry) lookup(ctx context.Context, name string, qtype uint16) ([]dns.RR, error) {
	found, err := q.lookupAll(ctx, name, qtype)
	return found[:min(len(found), maxRecords)], err
}

// lookupAll finds all records of one type, at least one.
func (q *inquiry) lookupAll(ctx context.Context, name string, qtype uint16) ([]dns.RR, error) {
	if err := q.dnssec.check(ctx, q.resolver); err != nil {
		return nil, err
	}
	owner := dns.Fqdn(name)
	for cnames := 0; ; {
		answer, err := q.ask(ctx, owner, qtype)
		if err != nil {
			return nil, err
		}
		q.note(answer)
		end, n := follow(answer.Answer, owner)
		if cnames += n; cnames > maxCNAMEs {
			return nil, errChain
		}
		if found := recordsAt(answer.Answer, end, qtype); len(found) > 0 {
			return found, nil
		}
		switch {
		case answer.Rcode == dns.RcodeNameError:
			return nil, errNoName
		case n == 0:
			return nil, errNoData
		}
		owner = end // a server that gave a part of the chain is asked for the rest
	}
}

// follow goes along the CNAMEs of an answer. A loop ends it with too many.
func follow(answer []dns.RR, owner string) (end string, cnames int) {
	for cnames <= maxCNAMEs {
		i := slices.IndexFunc(answer, func(rr dns.RR) bool {
			_, ok := rr.(*dns.CNAME)
			return ok && sameName(rr.Header().Name, owner)
		})
		if i < 0 {
			break
		}
		owner = answer[i].(*dns.CNAME).Target
		cnames++
	}
	return owner, cnames
}

func recordsAt(answer []dns.RR, owner string, qtype uint16) []dns.RR {
	var found []dns.RR
	for _, rr := range answer {
		h := rr.Header()
		if h.Rrtype == qtype && h.Class == dns.ClassINET && sameName(h.Name, owner) {
			found = append(found, rr)
		}
	}
	return found
}

func sameName(a, b string) bool { return dns.CanonicalName(a) == dns.CanonicalName(b) }

// ask gets an answer that the server stands by: success or NXDOMAIN. All else
// is tried again, elsewhere if there is an elsewhere.
func (r *resolver) ask(ctx context.Context, owner string, qtype uint16) (*dns.Msg, error) {
	var err error
	for try := range tries {
		var answer *dns.Msg
		answer, err = r.try(ctx, r.servers[try%len(r.servers)], owner, qtype)
		if err == nil {
			return answer, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w: %w", errTimeout, ctx.Err())
		}
	}
	return nil, err
}

func (r *resolver) try(ctx context.Context, server, owner string, qtype uint16) (answer *dns.Msg, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	defer func() { r.queries.WithLabelValues(dns.TypeToString[qtype], outcome(answer, err)).Inc() }()
	query := new(dns.Msg).SetQuestion(owner, qtype)
	// RFC 6840 §5.7: who sets AD is told whether the answer was validated. Older
	// servers tell only who sets DO.
	query.AuthenticatedData = r.dnssec != nil
	query.SetEdns0(ednsSize, r.dnssec != nil)
	answer, err = exchange(ctx, "udp", server, query)
	if err == nil && answer.Truncated {
		answer, err = exchange(ctx, "tcp", server, query)
	}
	if err != nil {
		return nil, err
	}
	switch answer.Rcode {
	case dns.RcodeSuccess, dns.RcodeNameError:
		return answer, nil
	}
	return nil, fmt.Errorf("%w: %s", errRefused, dns.RcodeToString[answer.Rcode])
}

func outcome(answer *dns.Msg, err error) string {
	switch {
	case errors.Is(err, errTimeout):
		return "timeout"
	case err != nil:
		return "error"
	case answer.Rcode == dns.RcodeNameError:
		return "nxdomain"
	}
	return "answered"
}

// exchange sends a query over a socket of its own, so that its source port is
// as random as its id, and waits for the answer to this very question.
func exchange(ctx context.Context, network, server string, query *dns.Msg) (*dns.Msg, error) {
	raw, err := new(net.Dialer).DialContext(ctx, network, server)
	if err != nil {
		return nil, exchangeError(ctx, err)
	}
	conn := &dns.Conn{Conn: raw, UDPSize: 4096}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		stop()
		_ = conn.Close() // all that was wanted has been read
	}()
	if err := conn.WriteMsg(query); err != nil {
		return nil, exchangeError(ctx, err)
	}
	for range maxJunk {
		answer, err := conn.ReadMsg()
		switch {
		case answers(answer, query) && (err == nil || answer.Truncated): // what is cut off need not parse
			return answer, nil
		case ctx.Err() != nil || network == "tcp":
			return nil, exchangeError(ctx, err)
		case err != nil && isSocketError(err):
			return nil, exchangeError(ctx, err)
		}
		// A datagram that is not our answer is somebody's guess at it: the right
		// one may still come.
	}
	return nil, fmt.Errorf("%w: flooded with wrong ones", errExchange)
}

func answers(answer, query *dns.Msg) bool {
	if answer == nil || !answer.Response || answer.Id != query.Id || answer.Opcode != dns.OpcodeQuery {
		return false
	}
	// A resolver that could not even parse the question need not repeat it.
	if len(answer.Question) == 0 {
		return answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError
	}
	got, want := answer.Question[0], query.Question[0]
	return len(answer.Question) == 1 && got.Qtype == want.Qtype && got.Qclass == want.Qclass && sameName(got.Name, want.Name)
}

func isSocketError(err error) bool {
	_, ok := errors.AsType[*net.OpError](err)
	return ok
}

func exchangeError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", errTimeout, ctx.Err())
	}
	if err == nil {
		return fmt.Errorf("%w: it is to another question", errExchange)
	}
	return fmt.Errorf("%w: %w", errExchange, err)
}

// addresses finds the addresses of a host, which is its own if it is one, that may be connected to, IPv6 first.
func (a *attempt) addresses(ctx context.Context, host string) ([]netip.Addr, *acme.Problem) {
	if ca.IsOnion(host) {
		return nil, problem(acme.DNSError, nil, "%s is in .onion, which is not in the DNS (RFC 7686)", host)
	}
	found := localhost(host)
	if addr, err := netip.ParseAddr(host); err == nil {
		found = []netip.Addr{addr}
	}
	if found == nil {
		var p *acme.Problem
		if found, p = a.resolve(ctx, host); p != nil {
			return nil, p
		}
	}
	allowed := slices.DeleteFunc(slices.Clone(found), func(addr netip.Addr) bool { return !a.v.policy.allowed(addr) })
	if len(allowed) == 0 {
		// The addresses stay unsaid: they may come from a view of the DNS that
		// is ours alone.
		return nil, problem(acme.DNSError, fmt.Errorf("forbidden: %v", found), "%s has no address that this server may connect to", host)
	}
	return allowed, nil
}

// resolve asks for both kinds of addresses at once; one of them is enough.
func (a *attempt) resolve(ctx context.Context, host string) ([]netip.Addr, *acme.Problem) {
	type result struct {
		rrs []dns.RR
		err error
	}
	six := make(chan result, 1)
	go func() {
		rrs, err := a.dns.lookup(ctx, host, dns.TypeAAAA)
		six <- result{rrs, err}
	}()
	v4, err4 := a.dns.lookup(ctx, host, dns.TypeA)
	v6 := <-six
	found := append(addrs(v6.rrs), addrs(v4)...)
	switch {
	case len(found) > 0:
		return found, nil
	case isStatement(v6.err): // a failure says more than the absence of the other type
		return nil, lookupProblem(err4, host, "A or AAAA")
	}
	return nil, lookupProblem(v6.err, host, "A or AAAA")
}

func isStatement(err error) bool { return errors.Is(err, errNoName) || errors.Is(err, errNoData) }

func addrs(rrs []dns.RR) []netip.Addr {
	var all []netip.Addr
	for _, rr := range rrs {
		var ip net.IP
		switch rr := rr.(type) {
		case *dns.A:
			ip = rr.A
		case *dns.AAAA:
			ip = rr.AAAA
		}
		if addr, ok := netip.AddrFromSlice(ip); ok {
			all = append(all, addr.Unmap())
		}
	}
	return all
}

// lookupProblem says what went wrong in the DNS, without our resolver's name.
func lookupProblem(err error, name, what string) *acme.Problem {
	switch {
	case errors.Is(err, errNoAD): // which may be for any of the reasons below
		return problem(acme.DNSError, err, "looking up %s for %s: this server can't validate DNSSEC for now, and so believes no answer; that is its own fault, not the domain's", what, name)
	case errors.Is(err, errNoName):
		return problem(acme.DNSError, nil, "looking up %s for %s: the name does not exist (NXDOMAIN)", what, name)
	case errors.Is(err, errNoData):
		return problem(acme.DNSError, nil, "looking up %s for %s: there are no such records", what, name)
	case errors.Is(err, errTimeout):
		return problem(acme.DNSError, err, "looking up %s for %s: no answer in time; are all its name servers reachable?", what, name)
	case errors.Is(err, errChain):
		return problem(acme.DNSError, err, "looking up %s for %s: more than %d CNAMEs, or a loop of them", what, name, maxCNAMEs)
	case errors.Is(err, errRefused):
		return problem(acme.DNSError, err, "looking up %s for %s: the resolver answered with an error (SERVFAIL or the like); check the zone's name servers and DNSSEC", what, name)
	}
	return problem(acme.DNSError, err, "looking up %s for %s: the lookup failed", what, name)
}
