package challenge_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
)

const persistName = "_validation-persist." + name + "."

// persist makes a TXT record for dns-persist-01, in two strings.
func persist(value string) string {
	half := len(value) / 2
	return fmt.Sprintf("%s 60 IN TXT \"%s\" \"%s\"", persistName, value[:half], value[half:])
}

func persistValidation() acme.Validation {
	q := validation(acme.DNSPersist01)
	q.Token, q.KeyAuthorization, q.AccountURL = "", "", accountURL
	return q
}

const ourRecord = ours + "; accounturi=" + accountURL

func TestPersistentRecordPasses(t *testing.T) {
	t.Parallel()
	soon := time.Now().Add(time.Hour).Unix()
	for what, c := range map[string]struct {
		records []string
		wild    bool
		until   time.Duration
	}{
		"plain":              {[]string{ourRecord}, false, 240 * time.Hour},
		"our second domain":  {[]string{"SECOND.example.net;accounturi=" + accountURL}, false, 240 * time.Hour},
		"among others":       {[]string{"v=spf1 -all", "other.example; accounturi=" + accountURL, ourRecord, ours + "; accounturi=https://x.example"}, false, 240 * time.Hour},
		"unknown parameters": {[]string{ourRecord + "; color=blue; color=red"}, false, 240 * time.Hour},
		"policy, not needed": {[]string{ourRecord + "; policy=wildcard"}, false, 240 * time.Hour},
		"other policy":       {[]string{ourRecord + "; policy=other"}, false, 240 * time.Hour},
		"wildcard":           {[]string{ourRecord + "; policy=wildcard"}, true, 240 * time.Hour},
		"wildcard, any case": {[]string{ourRecord + ";POLICY = WildCard"}, true, 240 * time.Hour},
		"for an hour":        {[]string{fmt.Sprintf("%s; persistUntil=%d", ourRecord, soon)}, false, time.Hour},
		"for long":           {[]string{ourRecord + "; persistUntil=99999999999"}, false, 240 * time.Hour},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ns := newNameServer(t)
			for _, r := range c.records {
				ns.add(t, persist(r))
			}
			q := persistValidation()
			q.Wildcard = c.wild
			rec, p := mustNew(t, caaConfig(ns)).Validate(t.Context(), q)
			wantPass(t, p)
			if left := time.Until(rec.Until); left > c.until || left < c.until-time.Minute {
				t.Errorf("good for %v; want %v", left, c.until)
			}
			if len(rec.Records) != 1 || !strings.Contains(rec.Records[0], "accounturi") {
				t.Errorf("evidence %q", rec.Records)
			}
		})
	}
}

func TestPersistentRecordsThatDoNotFitAreNamed(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		record string
		wild   bool
		kind   acme.ProblemType
		detail string
	}{
		"other CA":            {"other.example; accounturi=" + accountURL, false, acme.Unauthorized, "none names this CA"},
		"other use":           {"some text\\; or other", false, acme.Unauthorized, "none names this CA"},
		"no account":          {ours, false, acme.Malformed, "accounturi is missing"},
		"other account":       {ours + "; accounturi=" + accountURL + "0", false, acme.Unauthorized, "accounturi"},
		"account in capitals": {ours + "; accounturi=" + strings.ToUpper(accountURL), false, acme.Unauthorized, "accounturi"},
		"account twice":       {ourRecord + "; accounturi=" + accountURL, false, acme.Malformed, "there twice"},
		"no policy":           {ourRecord, true, acme.Unauthorized, "policy=wildcard is missing"},
		"other policy":        {ourRecord + "; policy=wildcards", true, acme.Unauthorized, "policy=wildcard is missing"},
		"policy twice":        {ourRecord + "; policy=wildcard; policy=wildcard", true, acme.Malformed, "twice"},
		"over":                {ourRecord + "; persistUntil=1721952000", false, acme.Unauthorized, "persistUntil was 2024-07-26T00:00:00Z"},
		"negative":            {ourRecord + "; persistUntil=-1", false, acme.Malformed, "not a number"},
		"with a plus":         {ourRecord + "; persistUntil=+99999999999", false, acme.Malformed, "not a number"},
		"hexadecimal":         {ourRecord + "; persistUntil=0xffffffff", false, acme.Malformed, "not a number"},
		"a date":              {ourRecord + "; persistUntil=2099-01-01", false, acme.Malformed, "not a number"},
		"empty":               {ourRecord + "; persistUntil=", false, acme.Malformed, "not a number"},
		"too long":            {ourRecord + "; persistUntil=9999999999999", false, acme.Malformed, "not a number"},
		"until twice":         {ourRecord + "; persistUntil=99999999999; persistuntil=99999999999", false, acme.Malformed, "twice"},
		"malformed":           {ourRecord + ";", false, acme.Malformed, "malformed"},
		"malformed parameter": {ourRecord + "; now", false, acme.Malformed, "malformed"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ns := newNameServer(t, persist(c.record), persist("v=spf1 -all"))
			q := persistValidation()
			q.Wildcard = c.wild
			rec, p := mustNew(t, caaConfig(ns)).Validate(t.Context(), q)
			wantProblem(t, p, c.kind, c.detail)
			if len(rec.Records) != 2 || !rec.Until.IsZero() {
				t.Errorf("evidence %q until %v", rec.Records, rec.Until)
			}
		})
	}
}

func TestPersistentRecordNeedsAnIssuerAndAnAnswer(t *testing.T) {
	t.Parallel()
	ns := newNameServer(t, persist(ourRecord))
	_, p := mustNew(t, config(ns, 80)).Validate(t.Context(), persistValidation()) // without identities
	if p == nil || p.Type != acme.ServerInternal {
		t.Errorf("without a name of the CA: %v", p)
	}
	_, p = mustNew(t, caaConfig(newNameServer(t))).Validate(t.Context(), persistValidation())
	wantProblem(t, p, acme.DNSError, "NXDOMAIN")
	q := persistValidation()
	q.Identifier.Value = strings.Repeat("a.", 120) + "com"
	_, p = mustNew(t, caaConfig(ns)).Validate(t.Context(), q)
	wantProblem(t, p, acme.DNSError, "too long")
}

// TestAccountHasARecordOfItsOwn has the example of draft-ietf-acme-dns-account-label.
func TestAccountHasARecordOfItsOwn(t *testing.T) {
	t.Parallel()
	q := validation(acme.DNSAccount01)
	q.AccountURL = "https://example.com/acme/acct/ExampleAccount"
	at := "_ujmmovf2vn55tgye._acme-challenge." + name + "."
	ns := newNameServer(t, fmt.Sprintf("%s 60 IN TXT %q", at, dnsText()), txt("of another"))
	rec, p := mustNew(t, config(ns, 80)).Validate(t.Context(), q)
	wantPass(t, p)
	if len(rec.Records) != 1 || rec.Records[0] != dnsText() {
		t.Errorf("evidence %q", rec.Records)
	}
	if ns.times(txtName+"/TXT") != 0 {
		t.Error("the record that all accounts share was looked at")
	}
	q.AccountURL += "2"
	_, p = mustNew(t, config(ns, 80)).Validate(t.Context(), q)
	wantProblem(t, p, acme.DNSError, "NXDOMAIN")
	wantProblem(t, p, acme.DNSError, "the account's URL, "+q.AccountURL)
	q.AccountURL = ""
	if _, p = mustNew(t, config(ns, 80)).Validate(t.Context(), q); p == nil || p.Type != acme.ServerInternal {
		t.Errorf("without an account: %v", p)
	}
}
