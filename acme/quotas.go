package acme

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// Kinds of quotas that orders are debited to, beside that of identifiers.
const (
	quotaDuplicates = "acme_duplicates"        // of an account and a set of names
	quotaDomain     = "acme_registered_domain" // of a domain, whoever orders
)

// A Debit is what an order costs a quota.
type Debit struct {
	Kind    string
	Subject string
	Quota   ratelimit.Quota
	Cost    int
}

// debits are what the order costs. They are in one order for all, so that no two
// wait for each other.
func (s *Server) debits(o Order) []Debit {
	var out []Debit
	if s.cfg.DuplicateQuota.Active() {
		out = append(out, Debit{quotaDuplicates, o.AccountID + "/" + namesDigest(o.Identifiers), s.cfg.DuplicateQuota, 1})
	}
	if s.cfg.DomainQuota.Active() {
		for _, d := range registeredDomains(o.Identifiers) {
			out = append(out, Debit{quotaDomain, d, s.cfg.DomainQuota, 1})
		}
	}
	slices.SortFunc(out, func(a, b Debit) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Subject, b.Subject)) })
	return out
}

// namesDigest is of the set of identifiers, whatever else an order asks for.
func namesDigest(ids []ca.Identifier) string {
	names := make([]string, 0, len(ids))
	for _, id := range ids {
		names = append(names, string(id.Type)+" "+id.Value)
	}
	slices.Sort(names)
	h := sha256.Sum256([]byte(strings.Join(slices.Compact(names), "\n")))
	return hex.EncodeToString(h[:])
}

// registeredDomains are the domains under which somebody registered the names:
// one label more than the public suffix. A name that is itself a suffix, or has
// one label, stands for itself.
func registeredDomains(ids []ca.Identifier) []string {
	var out []string
	for _, id := range ids {
		if id.Type != ca.DNS {
			continue
		}
		name := strings.TrimPrefix(id.Value, "*.")
		if d, err := publicsuffix.EffectiveTLDPlusOne(name); err == nil {
			name = d
		}
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// usedUp says which quota does not hold an order.
func (s *Server) usedUp(o Order, q *QuotaError, wait time.Duration) string {
	when := fmt.Sprintf("in %d seconds, at %s", int64(wait/time.Second), wireTime(o.CreatedAt.Add(wait+time.Second-1)))
	switch d := q.Debit; d.Kind {
	case quotaDuplicates:
		return fmt.Sprintf("this account has had all %d orders for exactly these names that it may have in %s; the next is taken %s. Keep the certificate that you have, or renew it by ARI (RFC 9773)",
			d.Quota.Limit, span(d.Quota.Window), when)
	case quotaDomain:
		return fmt.Sprintf("all accounts together have had the %d orders for names of %s that there may be in %s; the next is taken %s", d.Quota.Limit, d.Subject, span(d.Quota.Window), when)
	default:
		return fmt.Sprintf("the account's quota of %d identifiers in %s does not hold this order's %d now; it will %s",
			s.cfg.OrderQuota.Limit, span(s.cfg.OrderQuota.Window), len(o.Identifiers), when)
	}
}

// span is a length of time in the largest unit that it is a multiple of: 7d, and
// not 168h0m0s.
func span(d time.Duration) string {
	for _, u := range []struct {
		size time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}} {
		if d >= u.size && d%u.size == 0 {
			return fmt.Sprintf("%d%s", d/u.size, u.name)
		}
	}
	return d.String()
}
