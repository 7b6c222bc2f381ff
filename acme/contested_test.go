package acme_test

import (
	"context"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/store"
)

// contested is a validator whose perspectives never agree.
type contested struct{}

func (contested) Validate(_ context.Context, v acme.Validation) (acme.ValidationRecord, *acme.Problem) {
	return acme.ValidationRecord{
		Type: v.Type, Name: v.Identifier.Value, Corroborated: "1/2", Perspectives: []acme.PerspectiveRecord{
			{Name: "fra1", Region: "ripencc", OK: true}, {Name: "nrt1", Region: "apnic", Problem: "dns: NXDOMAIN"},
		},
	}, &acme.Problem{Type: acme.DNSError, Err: acme.ErrContested, Detail: "1 of 2 remote perspectives did not see it (apnic): NXDOMAIN"}
}

// TestAContestedValidationIsOnRecord holds that what was seen here, and not from
// elsewhere, is in the audit log with what each perspective saw.
func TestAContestedValidationIsOnRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.Validator = contested{} })
	c := w.client()
	_, r := c.order("a.example.com")
	c.prove(r.strs("authorizations")[0], "http-01")
	entries, err := store.NewAudit(w.db).Pending(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		if e.Action != "authorization.contested" {
			continue
		}
		n++
		for _, want := range []string{`"a.example.com"`, `"1/2"`, `"nrt1"`, `"dns: NXDOMAIN"`, `"fra1"`} {
			if !strings.Contains(string(e.Detail), want) {
				t.Errorf("the entry does not say %s: %s", want, e.Detail)
			}
		}
	}
	if n != 1 {
		t.Errorf("%d entries", n)
	}
}
