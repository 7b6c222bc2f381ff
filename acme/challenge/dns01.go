package challenge

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"strings"

	"github.com/miekg/dns"

	"github.com/secsy-pki/secsy-pki/acme"
)

// dns01 looks for a TXT record (RFC 8555 §8.4). One match among several is
// enough: two orders for a name and its wildcard need two at once.
func (a *attempt) dns01(ctx context.Context) *acme.Problem {
	name := "_acme-challenge." + a.q.Identifier.Value
	if len(name) > 253 {
		return problem(acme.DNSError, nil, "the name is too long to put _acme-challenge before it")
	}
	records, err := a.dns.lookup(ctx, name, dns.TypeTXT)
	if err != nil {
		return lookupProblem(err, name, "TXT")
	}
	digest := sha256.Sum256([]byte(a.q.KeyAuthorization))
	want := base64.RawURLEncoding.EncodeToString(digest[:])
	for _, rr := range records {
		if subtle.ConstantTimeCompare([]byte(textOf(rr)), []byte(want)) == 1 {
			return nil
		}
	}
	found := excerpt([]byte(textOf(records[0])))
	if n := len(records) - 1; n > 0 {
		return problem(acme.Unauthorized, nil, "none of the %d TXT records at %s is the expected one; the first is %s", n+1, name, found)
	}
	return problem(acme.Unauthorized, nil, "the TXT record at %s is %s, not the expected one", name, found)
}

// textOf joins the strings of a TXT record (RFC 1035 §3.3.14: 255 bytes each).
func textOf(rr dns.RR) string {
	if txt, ok := rr.(*dns.TXT); ok {
		return strings.Join(txt.Txt, "")
	}
	return ""
}
