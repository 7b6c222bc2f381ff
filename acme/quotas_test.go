package acme

import (
	"slices"
	"testing"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

func dnsIDs(names ...string) []ca.Identifier {
	var ids []ca.Identifier
	for _, n := range names {
		ids = append(ids, ca.Identifier{Type: ca.DNS, Value: n})
	}
	return ids
}

func TestADomainIsWhatSomebodyRegistered(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		ids  []ca.Identifier
		want []string
	}{
		{dnsIDs("a.example.com", "*.example.com", "example.com", "x.y.example.co.uk"), []string{"example.com", "example.co.uk"}},
		{dnsIDs("me.github.io", "you.github.io"), []string{"me.github.io", "you.github.io"}},
		{dnsIDs("com", "localhost", "*.localhost", "a.internal.corp"), []string{"com", "localhost", "internal.corp"}},
		{[]ca.Identifier{{Type: ca.IP, Value: "192.0.2.1"}}, nil},
	} {
		if got := registeredDomains(row.ids); !slices.Equal(got, row.want) {
			t.Errorf("%v: %q; want %q", row.ids, got, row.want)
		}
	}
}

// The same names are the same in any order, and no others are.
func TestASetOfNamesHasOneDigest(t *testing.T) {
	t.Parallel()
	if namesDigest(dnsIDs("a.example", "b.example")) != namesDigest(dnsIDs("b.example", "a.example")) {
		t.Error("the order of names counts")
	}
	seen := map[string]bool{}
	for _, ids := range [][]ca.Identifier{dnsIDs("a.example"), dnsIDs("*.a.example"), dnsIDs("a.example", "b.example"), dnsIDs("a.exampleb.example"), {{Type: ca.IP, Value: "a.example"}}} {
		seen[namesDigest(ids)] = true
	}
	if len(seen) != 5 {
		t.Errorf("%d digests of five sets", len(seen))
	}
}

// Two orders that need the same quotas ask for them in one order.
func TestDebitsComeInOneOrder(t *testing.T) {
	t.Parallel()
	q := ratelimit.Quota{Limit: 1, Window: 1}
	s := &Server{cfg: Config{DuplicateQuota: q, DomainQuota: q}}
	subjects := func(names ...string) (out []string) {
		for _, d := range s.debits(Order{AccountID: "x", Identifiers: dnsIDs(names...)}) {
			out = append(out, d.Kind+" "+d.Subject)
		}
		return out
	}
	if a, b := subjects("b.com", "a.com", "c.com"), subjects("c.com", "a.com", "b.com"); len(a) != 4 || !slices.Equal(a, b) {
		t.Errorf("%q and %q", a, b)
	}
}
