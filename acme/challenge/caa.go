package challenge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

const (
	maxCAA        = 64 // records of one domain; more are refused, as any of them may forbid
	maxCAARecords = 16 // of these in the evidence
)

var _ acme.CAAChecker = (*Validator)(nil)

// CheckCAA implements acme.CAAChecker (RFC 8659, RFC 8657).
func (v *Validator) CheckCAA(ctx context.Context, q acme.CAAQuery) (acme.CAARecord, *acme.Problem) {
	ctx, cancel := context.WithTimeout(ctx, v.cfg.Timeout)
	defer cancel()
	rec := acme.CAARecord{Name: q.Name, Resolver: v.resolver.servers[0], At: time.Now()}
	inq := v.resolver.inquiry()
	p := v.checkCAA(ctx, q, inq, &rec)
	rec.DNSSEC, rec.Took = inq.state(), time.Since(rec.At)
	v.metrics.caa(p, rec.Took)
	if p != nil && p.Err != nil {
		v.log.InfoContext(ctx, "CAA check failed", "name", q.Name, "problem", string(p.Type), "detail", p.Detail, "error", p.Err)
	}
	return rec, p
}

func (v *Validator) checkCAA(ctx context.Context, q acme.CAAQuery, inq *inquiry, rec *acme.CAARecord) *acme.Problem {
	if !isHostname(q.Name) {
		return problem(acme.Malformed, nil, "%s is not a host name", excerpt([]byte(q.Name)))
	}
	if ca.IsOnion(q.Name) {
		return v.checkOnionCAA(q, rec)
	}
	domain, set, p := relevantCAA(ctx, inq, q.Name)
	if p != nil {
		return p
	}
	rec.Found = domain
	rec.Records = shownRecords(set)
	if err := v.permits(set, q); err != nil {
		return problem(acme.CAA, nil, "the CAA records of %s do not allow this CA to issue for %s: %v", domain, shownName(q), err)
	}
	return nil
}

// shownRecords are those of a set that go into the evidence.
func shownRecords(set []*dns.CAA) (out []string) {
	for _, r := range set[:min(len(set), maxCAARecords)] {
		out = append(out, printable([]byte(fmt.Sprintf("%d %s %s", r.Flag, r.Tag, r.Value)), 256))
	}
	return out
}

func shownName(q acme.CAAQuery) string {
	if q.Wildcard {
		return "*." + q.Name
	}
	return q.Name
}

// relevantCAA climbs from name towards the root, to the closest domain that has
// CAA records (RFC 8659 §3). What can't be looked up on the way might forbid, so
// it ends the climb; what does not exist, or has no records, does not.
func relevantCAA(ctx context.Context, inq *inquiry, name string) (domain string, set []*dns.CAA, p *acme.Problem) {
	if localhost(name) != nil {
		return "", nil, nil // not in the DNS (RFC 6761 §6.3)
	}
	for domain = name; ; {
		rrs, err := inq.lookupAll(ctx, domain, dns.TypeCAA)
		switch {
		case err == nil:
			if len(rrs) > maxCAA {
				return "", nil, problem(acme.CAA, nil, "%s has more than %d CAA records", domain, maxCAA)
			}
			return domain, caaOf(rrs), nil
		case !isStatement(err):
			return "", nil, lookupProblem(err, domain, "CAA")
		}
		_, parent, ok := strings.Cut(domain, ".")
		if !ok {
			return "", nil, nil
		}
		domain = parent
	}
}

func caaOf(rrs []dns.RR) []*dns.CAA {
	var set []*dns.CAA
	for _, rr := range rrs {
		if r, ok := rr.(*dns.CAA); ok {
			set = append(set, r)
		}
	}
	return set
}

// permits says why a domain's records do not allow issuance; the error may be
// shown. An empty set allows everybody, and so does one that says nothing of
// issuance for this kind of name.
func (v *Validator) permits(set []*dns.CAA, q acme.CAAQuery) error {
	var issue, issueWild []string
	for _, r := range set {
		switch strings.ToLower(r.Tag) {
		case "issue":
			issue = append(issue, r.Value)
		case "issuewild":
			issueWild = append(issueWild, r.Value)
		case "iodef", "issuemail", "contactemail", "contactphone":
			// which are not about issuance for names
		default:
			if r.Flag&128 != 0 {
				return fmt.Errorf("the property %s is critical, and not known here", excerpt([]byte(r.Tag)))
			}
		}
	}
	// RFC 8659 §4.3: issuewild, where there is one, is all that counts for
	// wildcards, and nothing for others.
	values := issue
	if q.Wildcard && len(issueWild) > 0 {
		values = issueWild
	}
	if len(values) == 0 {
		return nil
	}
	var first error
	for _, value := range values {
		err := v.authorizes(value, q)
		if err == nil {
			return nil
		}
		if first == nil || errors.Is(first, errOtherCA) {
			first = err // what names us says more than what does not
		}
	}
	return first
}

var errOtherCA = errors.New("they name other CAs")

// authorizes says why one property does not let us issue. One that is malformed
// lets nobody (RFC 8659 §4.2).
func (v *Validator) authorizes(value string, q acme.CAAQuery) error {
	is, err := parseIssueValue(value)
	if err != nil {
		return fmt.Errorf("the value %s is malformed", excerpt([]byte(value)))
	}
	if is.issuer == "" || !slices.Contains(v.issuers, is.issuer) {
		return errOtherCA
	}
	// RFC 8657 §3: one accounturi, which is the account's, octet by octet.
	if uri, there, ok := is.get("accounturi"); !ok || there && uri != q.AccountURL {
		return fmt.Errorf("accounturi is not the one of this account, %s", q.AccountURL)
	}
	// RFC 8657 §4: one list of methods.
	if methods, there, ok := is.get("validationmethods"); !ok || there && !listsMethod(methods, string(q.Method)) {
		return fmt.Errorf("validationmethods does not list %s", q.Method)
	}
	return nil
}

// listsMethod reports whether a comma-separated list, all of which must be
// labels, has the method.
func listsMethod(list, method string) bool {
	found := false
	for m := range strings.SplitSeq(list, ",") {
		if !isLabel(m) {
			return false
		}
		found = found || m == method
	}
	return found
}
