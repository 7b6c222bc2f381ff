package challenge

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/base64"
	"errors"
	"strings"

	"github.com/miekg/dns"

	"github.com/secsy-pki/secsy-pki/acme"
)

const challengeLabel = "_acme-challenge"

// dns01 looks for a TXT record (RFC 8555 §8.4).
func (a *attempt) dns01(ctx context.Context) *acme.Problem {
	return a.txt(ctx, challengeLabel)
}

// dnsAccount01 is dns01 at a name that is the account's own, so that several
// clients can delegate theirs (draft-ietf-acme-dns-account-label-01 §3.2).
func (a *attempt) dnsAccount01(ctx context.Context) *acme.Problem {
	if a.q.AccountURL == "" {
		return problem(acme.ServerInternal, errors.New("no account URL"), "dns-account-01 can't be validated here")
	}
	p := a.txt(ctx, accountLabel(a.q.AccountURL)+"."+challengeLabel)
	if p != nil && p.Type == acme.DNSError {
		// The same, §3.4: clients that built another label see why.
		p.Detail += "; the label is made of the account's URL, " + a.q.AccountURL
	}
	return p
}

// accountLabel is 80 bits of the hash of an account's URL.
func accountLabel(url string) string {
	sum := sha256.Sum256([]byte(url))
	return "_" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:10]))
}

// below puts labels before the identifier.
func (a *attempt) below(labels string) (string, *acme.Problem) {
	name := labels + "." + a.q.Identifier.Value
	if len(name) > 253 {
		return "", problem(acme.DNSError, nil, "the name is too long to put %s before it", labels)
	}
	return name, nil
}

// txt looks for the digest of the key authorization. One match among several is
// enough: two orders for a name and its wildcard need two at once.
func (a *attempt) txt(ctx context.Context, labels string) *acme.Problem {
	name, p := a.below(labels)
	if p != nil {
		return p
	}
	records, err := a.dns.lookup(ctx, name, dns.TypeTXT)
	if err != nil {
		return lookupProblem(err, name, "TXT")
	}
	digest := sha256.Sum256([]byte(a.q.KeyAuthorization))
	want := base64.RawURLEncoding.EncodeToString(digest[:])
	for _, rr := range records {
		if subtle.ConstantTimeCompare([]byte(textOf(rr)), []byte(want)) == 1 {
			a.rec.Records = []string{want}
			return nil
		}
	}
	a.saw(records)
	found := excerpt([]byte(textOf(records[0])))
	if n := len(records) - 1; n > 0 {
		return problem(acme.Unauthorized, nil, "none of the %d TXT records at %s is the expected one; the first is %s", n+1, name, found)
	}
	return problem(acme.Unauthorized, nil, "the TXT record at %s is %s, not the expected one", name, found)
}

// saw keeps the beginnings of what was there and was no proof.
func (a *attempt) saw(records []dns.RR) {
	const most = 4
	for _, rr := range records[:min(len(records), most)] {
		a.rec.Records = append(a.rec.Records, printable([]byte(textOf(rr)), 128))
	}
}

// textOf joins the strings of a TXT record (RFC 1035 §3.3.14: 255 bytes each).
func textOf(rr dns.RR) string {
	if txt, ok := rr.(*dns.TXT); ok {
		return strings.Join(txt.Txt, "")
	}
	return ""
}
