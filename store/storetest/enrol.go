package storetest

import (
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/enrol"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/store"
)

// Enrol is what both engines promise of users, challenges and requests of devices.
func Enrol(t *testing.T, open func(t *testing.T) *store.DB) {
	for name, law := range map[string]func(t *testing.T, s enrolWorld){
		"SameRequestIsClaimedOnce":               enrolOnce,
		"OneTimeChallengeIsTakenOnce":            enrolChallengeOnce,
		"FailedIssuanceGivesTheChallengeBack":    enrolGivesBack,
		"ApprovedRequestStaysSoWhenItFails":      enrolApproved,
		"WhatDiedIsGivenBackAfterItsLease":       enrolSweeps,
		"RevokedCertificateIsNotHandedOut":       enrolRevoked,
		"RequestThatIsOverMakesRoom":             enrolOver,
		"OnlySoManyWait":                         enrolFull,
		"UsersAreKept":                           enrolUsers,
		"ChallengesAreKept":                      enrolChallenges,
		"RequestsAreListedAndFoundByWhatTheyAre": enrolLists,
		"FirstKeyIsEverybodys":                   enrolKey,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			law(t, enrolWorld{store.NewEnrol(db), store.NewCA(db)})
		})
	}
}

type enrolWorld struct {
	*store.Enrol
	ca *store.CA
}

func enrolEntry() audit.Entry {
	return audit.New("operator:uid/0", "enrolment.tested", "enrolment/x", nil)
}

func enrolRecord(key string) enrol.Record {
	return enrol.Record{
		ID: audit.NewID(), Key: key, Endpoint: "devices", Profile: "device", Principal: "enrol:user/u", Transaction: "t1", CSR: []byte("csr"), SPKI: [32]byte{7},
		Names: []ca.Identifier{{Type: ca.SubjectCommonName, Value: "dev1"}}, CreatedAt: acmeNow, LeaseUntil: acmeNow.Add(2 * time.Minute), PurgeAt: acmeNow.Add(time.Hour),
	}
}

func enrolChallenge(t *testing.T, s enrolWorld, uses int) enrol.ChallengeRecord {
	t.Helper()
	c := enrol.ChallengeRecord{
		ID: audit.NewID(), Digest: audit.NewID(), Endpoint: "devices", Subject: "dev1", Names: []ca.Identifier{{Type: ca.SubjectCommonName, Value: "dev1"}},
		MaxUses: uses, Comment: "a pump", CreatedAt: acmeNow, CreatedBy: "operator:uid/0", Expires: acmeNow.Add(time.Hour),
	}
	must(t, s.AddChallenge(t.Context(), c, enrolEntry()))
	return c
}

func enrolUses(t *testing.T, s enrolWorld, c enrol.ChallengeRecord, want int) {
	t.Helper()
	got, err := s.Challenge(t.Context(), c.Endpoint, c.Digest)
	must(t, err)
	if got.Uses != want {
		t.Errorf("challenge used %d times, want %d", got.Uses, want)
	}
}

// enrolRace runs do eight times at once, and returns how many had no error; all others have one of losing.
func enrolRace(t *testing.T, do func() error, losing error) (won int) {
	t.Helper()
	var (
		wg sync.WaitGroup
		mu sync.Mutex // guards won
	)
	for range 8 {
		wg.Go(func() {
			err := do()
			if err != nil && !errors.Is(err, losing) {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			}
		})
	}
	wg.Wait()
	return won
}

func enrolOnce(t *testing.T, s enrolWorld) {
	won := enrolRace(t, func() error {
		r, in := enrolRecord("k"), acmeIntent()
		r.IntentID = in.ID
		if err := s.Begin(t.Context(), r, in); err != nil {
			return err
		}
		return s.Commit(t.Context(), r, in, acmeCertificate(in))
	}, enrol.ErrMoved)
	got, err := s.RequestByKey(t.Context(), "k", acmeNow)
	must(t, err)
	if won != 1 || got.State != enrol.Issued || string(got.Certificate) != got.IntentID {
		t.Errorf("%d certificates, %+v", won, got)
	}
}

func enrolChallengeOnce(t *testing.T, s enrolWorld) {
	c := enrolChallenge(t, s, 1)
	won := enrolRace(t, func() error {
		r, in := enrolRecord(audit.NewID()), acmeIntent()
		r.IntentID, r.Challenge = in.ID, c.ID
		return s.Begin(t.Context(), r, in)
	}, enrol.ErrSpent)
	if won != 1 {
		t.Errorf("%d requests took it", won)
	}
	enrolUses(t, s, c, 1)
	late := enrolChallenge(t, s, 1)
	r, in := enrolRecord("late"), acmeIntent()
	r.Challenge, r.CreatedAt = late.ID, late.Expires
	wantErr(t, s.Begin(t.Context(), r, in), enrol.ErrSpent)
}

func enrolGivesBack(t *testing.T, s enrolWorld) {
	ctx := t.Context()
	for _, cause := range []error{keys.ErrBusy, errors.New("broken")} {
		c, r, in := enrolChallenge(t, s, 1), enrolRecord("k"), acmeIntent()
		r.IntentID, r.Challenge = in.ID, c.ID
		must(t, s.Begin(ctx, r, in))
		enrolUses(t, s, c, 1)
		must(t, s.Abort(ctx, r, in, cause))
		enrolUses(t, s, c, 0)
		_, err := s.RequestByKey(ctx, "k", acmeNow)
		wantErr(t, err, enrol.ErrNotFound)
		wantErr(t, s.Commit(ctx, r, in, acmeCertificate(in)), ca.ErrLeaseLost)
	}
}

func enrolApproved(t *testing.T, s enrolWorld) {
	ctx := t.Context()
	c, r := enrolChallenge(t, s, 1), enrolRecord("k")
	r.State, r.Challenge = enrol.Waiting, c.ID
	must(t, s.Keep(ctx, r, 10, enrolEntry()))
	wantErr(t, s.Keep(ctx, enrolRecord("k"), 10, enrolEntry()), enrol.ErrMoved)
	won := enrolRace(t, func() error {
		return s.DecideRequest(ctx, r.ID, enrol.Approved, "operator:uid/0", acmeNow, r.PurgeAt, enrolEntry())
	}, enrol.ErrMoved)
	if won != 1 {
		t.Errorf("approved %d times", won)
	}
	wantErr(t, s.DecideRequest(ctx, "none", enrol.Denied, "x", acmeNow, r.PurgeAt, enrolEntry()), enrol.ErrNotFound)
	for range 2 {
		r, err := s.RequestByKey(ctx, "k", acmeNow)
		must(t, err)
		if r.State != enrol.Approved || r.DecidedBy != "operator:uid/0" || !r.DecidedAt.Equal(acmeNow) {
			t.Fatalf("%+v", r)
		}
		in := acmeIntent()
		r.IntentID = in.ID
		must(t, s.Begin(ctx, r, in))
		wantErr(t, s.Begin(ctx, r, acmeIntent()), enrol.ErrMoved)
		must(t, s.Abort(ctx, r, in, keys.ErrBusy))
	}
	enrolUses(t, s, c, 1)
}

func enrolSweeps(t *testing.T, s enrolWorld) {
	ctx := t.Context()
	c, r, in := enrolChallenge(t, s, 1), enrolRecord("k"), acmeIntent()
	r.IntentID, r.Challenge = in.ID, c.ID
	must(t, s.Begin(ctx, r, in))
	n, err := s.Sweep(ctx, r.LeaseUntil.Add(-time.Second), 10)
	must(t, err)
	enrolUses(t, s, c, 1)
	m, err := s.Sweep(ctx, r.LeaseUntil, 10)
	must(t, err)
	if n != 0 || m != 1 {
		t.Errorf("found %d and %d", n, m)
	}
	enrolUses(t, s, c, 0)
	wantErr(t, s.Commit(ctx, r, in, acmeCertificate(in)), ca.ErrLeaseLost)
}

func enrolRevoked(t *testing.T, s enrolWorld) {
	ctx := t.Context()
	r, in := enrolRecord("k"), acmeIntent()
	r.IntentID = in.ID
	must(t, s.Begin(ctx, r, in))
	must(t, s.Commit(ctx, r, in, acmeCertificate(in)))
	must(t, s.ca.Revoke(ctx, ca.Revocation{Serial: in.Serial, At: acmeNow}, enrolEntry()))
	got, err := s.RequestByKey(ctx, "k", acmeNow)
	must(t, err)
	if got.State != enrol.Issued || got.Certificate != nil || got.Serial != in.Serial {
		t.Errorf("%+v", got)
	}
}

func enrolOver(t *testing.T, s enrolWorld) {
	ctx := t.Context()
	r := enrolRecord("k")
	r.State = enrol.Waiting
	must(t, s.Keep(ctx, r, 10, enrolEntry()))
	_, err := s.RequestByKey(ctx, "k", r.PurgeAt)
	wantErr(t, err, enrol.ErrNotFound)
	again := enrolRecord("k")
	again.State, again.CreatedAt, again.PurgeAt = enrol.Waiting, r.PurgeAt, r.PurgeAt.Add(time.Hour)
	must(t, s.Keep(ctx, again, 10, enrolEntry()))
	n, err := s.Sweep(ctx, again.PurgeAt, 10)
	must(t, err)
	if n != 1 {
		t.Errorf("swept %d", n)
	}
}

func enrolFull(t *testing.T, s enrolWorld) {
	for _, key := range []string{"a", "b"} {
		r := enrolRecord(key)
		r.State = enrol.Waiting
		must(t, s.Keep(t.Context(), r, 2, enrolEntry()))
	}
	r := enrolRecord("c")
	r.State = enrol.Waiting
	wantErr(t, s.Keep(t.Context(), r, 2, enrolEntry()), enrol.ErrFull)
	r.Endpoint = "others"
	must(t, s.Keep(t.Context(), r, 2, enrolEntry()))
}

func enrolUsers(t *testing.T, s enrolWorld) {
	ctx := t.Context()
	u := enrol.UserRecord{Name: "dev1", Password: "hash", Endpoints: []string{"devices"}, Comment: "a pump", CreatedAt: acmeNow, CreatedBy: "operator:uid/0"}
	must(t, s.AddUser(ctx, u, enrolEntry()))
	wantErr(t, s.AddUser(ctx, u, enrolEntry()), enrol.ErrExists)
	got, err := s.User(ctx, "dev1")
	must(t, err)
	if !reflect.DeepEqual(got, u) {
		t.Errorf("got %+v\nwant %+v", got, u)
	}
	must(t, s.SetPassword(ctx, "dev1", "other", enrolEntry()))
	must(t, s.DisableUser(ctx, "dev1", acmeNow, enrolEntry()))
	got, err = s.User(ctx, "dev1")
	must(t, err)
	if got.Password != "other" || !got.DisabledAt.Equal(acmeNow) {
		t.Errorf("%+v", got)
	}
	list, err := s.ListUsers(ctx, "", 10)
	must(t, err)
	if len(list) != 1 || list[0].Name != "dev1" || list[0].Password != "" {
		t.Errorf("%+v", list)
	}
	must(t, s.RemoveUser(ctx, "dev1", enrolEntry()))
	for _, err := range []error{
		s.RemoveUser(ctx, "dev1", enrolEntry()), s.SetPassword(ctx, "dev1", "x", enrolEntry()), s.DisableUser(ctx, "dev1", acmeNow, enrolEntry()),
	} {
		wantErr(t, err, enrol.ErrNotFound)
	}
	_, err = s.User(ctx, "dev1")
	wantErr(t, err, enrol.ErrNotFound)
}

func enrolChallenges(t *testing.T, s enrolWorld) {
	ctx := t.Context()
	c := enrolChallenge(t, s, 3)
	double := c
	double.ID = audit.NewID()
	wantErr(t, s.AddChallenge(ctx, double, enrolEntry()), enrol.ErrExists)
	got, err := s.Challenge(ctx, "devices", c.Digest)
	must(t, err)
	if !reflect.DeepEqual(got, c) {
		t.Errorf("got %+v\nwant %+v", got, c)
	}
	_, err = s.Challenge(ctx, "others", c.Digest)
	wantErr(t, err, enrol.ErrNotFound)
	must(t, s.RevokeChallenge(ctx, c.ID, acmeNow, enrolEntry()))
	wantErr(t, s.RevokeChallenge(ctx, c.ID, acmeNow, enrolEntry()), enrol.ErrNotFound)
	r, in := enrolRecord("k"), acmeIntent()
	r.Challenge = c.ID
	wantErr(t, s.Begin(ctx, r, in), enrol.ErrSpent)
	enrolChallenge(t, s, 1)
	first, next, err := s.ListChallenges(ctx, "", 1)
	must(t, err)
	second, end, err := s.ListChallenges(ctx, next, 1)
	must(t, err)
	if len(first) != 1 || len(second) != 1 || end != "" || first[0].ID == second[0].ID || first[0].Digest != "" {
		t.Errorf("%+v, %q, %+v, %q", first, next, second, end)
	}
}

func enrolLists(t *testing.T, s enrolWorld) {
	ctx := t.Context()
	r := enrolRecord("k")
	r.State = enrol.Waiting
	must(t, s.Keep(ctx, r, 10, enrolEntry()))
	old := enrolRecord("o")
	old.State, old.Transaction, old.CreatedAt = enrol.Waiting, "", acmeNow.Add(-time.Minute)
	must(t, s.Keep(ctx, old, 10, enrolEntry()))
	first, next, err := s.ListRequests(ctx, enrol.Waiting, "", 1)
	must(t, err)
	second, end, err := s.ListRequests(ctx, enrol.Waiting, next, 1)
	must(t, err)
	if len(first) != 1 || len(second) != 1 || end != "" || first[0].ID != r.ID || second[0].ID != old.ID {
		t.Errorf("%+v, %q, %+v, %q", first, next, second, end)
	}
	none, _, err := s.ListRequests(ctx, enrol.Issued, "", 1)
	must(t, err)
	if len(none) != 0 {
		t.Errorf("%+v", none)
	}
	got, err := s.RequestByTransaction(ctx, r.Endpoint, r.Transaction, r.SPKI, acmeNow)
	must(t, err)
	r.LeaseUntil = got.LeaseUntil
	if !reflect.DeepEqual(got, r) {
		t.Errorf("got %+v\nwant %+v", got, r)
	}
	for _, try := range []func() (enrol.Record, error){
		func() (enrol.Record, error) {
			return s.RequestByTransaction(ctx, "others", r.Transaction, r.SPKI, acmeNow)
		},
		func() (enrol.Record, error) {
			return s.RequestByTransaction(ctx, r.Endpoint, r.Transaction, [32]byte{8}, acmeNow)
		},
		func() (enrol.Record, error) { return s.RequestByTransaction(ctx, r.Endpoint, "", r.SPKI, acmeNow) },
		func() (enrol.Record, error) { return s.Request(ctx, "none") },
	} {
		_, err := try()
		wantErr(t, err, enrol.ErrNotFound)
	}
}

func enrolKey(t *testing.T, s enrolWorld) {
	first, err := s.Key(t.Context(), "challenge", []byte("first"))
	must(t, err)
	second, err := s.Key(t.Context(), "challenge", []byte("second"))
	must(t, err)
	if string(first) != "first" || string(second) != "first" {
		t.Errorf("%q, %q", first, second)
	}
}
