package store_test

import (
	"fmt"
	"testing"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/storetest"
)

func TestListingIsTheSameHoweverMuchIsFound(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) *store.DB{"sqlite": storetest.SQLite, "postgres": storetest.Postgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sorting := store.NewCA(open(t))
			walking := store.ListingBackInTime(sorting)
			for n, names := range [][]string{
				{"example.com"}, {"www.example.com", "a.example.com"}, {"notexample.com"}, {"192.0.2.7"}, {"b.example.com"}, {"c.example.com"},
			} {
				in := catest.Intent(n)
				in.Names = catest.IDs(names...)
				if err := sorting.PlainLedger().Begin(t.Context(), in); err != nil {
					t.Fatal(err)
				}
			}
			for _, q := range []ca.ListQuery{
				{Name: "example.com"},
				{Name: "com"},
				{Name: "192.0.2.7"},
				{Name: "example.net"},
				{SerialPrefix: "01"},
				{SerialPrefix: "0100"},
				{SerialPrefix: string(catest.Intent(3).Serial)},
				{SerialPrefix: "02"},
				{Issuer: catest.Intent(0).Issuer},
				{Issuer: catest.Intent(0).Issuer, Revoked: true},
				{Issuer: "other"},
				{Name: "example.com", SerialPrefix: "01", State: ca.Pending},
				{Name: "example.com", State: ca.Issued},
				{SPKIHash: fmt.Sprintf("%x", catest.Intent(3).SPKIHash)},
				{ListedBy: "some"},
			} {
				q.Limit = 2
				if one, other := listed(t, sorting, q), listed(t, walking, q); one != other {
					t.Errorf("%+v: sorted %s, walking %s", q, one, other)
				}
			}
		})
	}
}

// listed is a whole listing, page by page.
func listed(t *testing.T, c *store.CA, q ca.ListQuery) (all string) {
	t.Helper()
	for {
		page, next, err := c.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range page {
			all += fmt.Sprint(r.Serial, " ")
		}
		if next == "" {
			return all
		}
		q.Before, all = next, all+"| "
	}
}
