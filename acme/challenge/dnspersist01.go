package challenge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/secsy-pki/secsy-pki/acme"
)

const (
	persistLabel = "_validation-persist"
	// persistReuse is for how long what such a record says may be relied on
	// (Baseline Requirements §3.2.2.4.22).
	persistReuse = 10 * 24 * time.Hour
)

// dnsPersist01 looks for a TXT record that stays (draft-ietf-acme-dns-persist-01).
// It names this CA and the account; of several records one is enough.
func (a *attempt) dnsPersist01(ctx context.Context) *acme.Problem {
	if len(a.v.issuers) == 0 || a.q.AccountURL == "" {
		return problem(acme.ServerInternal, errors.New("no issuer domain, or no account URL"), "dns-persist-01 can't be validated here")
	}
	name, p := a.below(persistLabel)
	if p != nil {
		return p
	}
	records, err := a.dns.lookup(ctx, name, dns.TypeTXT)
	if err != nil {
		return lookupProblem(err, name, "TXT")
	}
	now := time.Now()
	err = errNotOurs
	for _, rr := range records {
		text := textOf(rr)
		until, why := a.persists(text, now)
		if why == nil {
			a.rec.Records = []string{printable([]byte(text), 512)}
			a.rec.Until = until
			return nil
		}
		if errors.Is(err, errNotOurs) {
			err = why // what names us says more than what does not
		}
	}
	a.saw(records)
	kind := acme.Unauthorized
	if _, malformed := errors.AsType[malformedRecord](err); malformed {
		kind = acme.Malformed // draft-ietf-acme-dns-persist-01 §9.3.1
	}
	return problem(kind, nil, "the TXT records at %s do not let this account order here: %v", name, err)
}

var errNotOurs = errors.New("none names this CA")

// A malformedRecord says what is not as it must be in a record that names us.
type malformedRecord string

func (m malformedRecord) Error() string { return string(m) }

func malformed(format string, args ...any) error {
	return malformedRecord(fmt.Sprintf(format, args...))
}

// persists says why a record is no proof, or until when one is. The error may be shown.
func (a *attempt) persists(text string, now time.Time) (until time.Time, err error) {
	v, err := parseIssueValue(text)
	if err != nil {
		// Whether it is meant for us can only be guessed, which does no harm here.
		head, _, _ := strings.Cut(text, ";")
		if slices.Contains(a.v.issuers, strings.ToLower(trimWSP(head))) {
			return until, malformed("the one for this CA is malformed: %s", excerpt([]byte(text)))
		}
		return until, errNotOurs
	}
	if !slices.Contains(a.v.issuers, v.issuer) {
		return until, errNotOurs
	}
	switch uri, there, ok := v.get("accounturi"); {
	case !there || !ok:
		return until, malformed("accounturi is missing, or there twice; the one of this account is %s", a.q.AccountURL)
	case uri != a.q.AccountURL:
		return until, fmt.Errorf("accounturi is not the one of this account, %s", a.q.AccountURL)
	}
	policy, _, ok := v.get("policy")
	end, ends, once := v.get("persistuntil")
	switch {
	case !ok || !once:
		return until, malformed("policy or persistUntil is there twice")
	case a.q.Wildcard && !strings.EqualFold(policy, "wildcard"):
		return until, errors.New("the one for this CA is not for what lies below the name: policy=wildcard is missing")
	}
	if until = now.Add(persistReuse); !ends {
		return until, nil
	}
	seconds, err := unixSeconds(end)
	switch {
	case err != nil:
		return until, malformed("persistUntil is not a number of seconds: %s", excerpt([]byte(end)))
	case now.Unix() > seconds:
		return until, fmt.Errorf("persistUntil was %s", time.Unix(seconds, 0).UTC().Format(time.RFC3339))
	case seconds < until.Unix():
		until = time.Unix(seconds, 0)
	}
	return until, nil
}

// unixSeconds reads digits alone.
func unixSeconds(s string) (int64, error) {
	const most = 12 // digits, of which any date needs less
	if s == "" || len(s) > most || strings.Trim(s, "0123456789") != "" {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseInt(s, 10, 64)
}
