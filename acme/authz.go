package acme

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
)

// An AuthzStatus is where an authorization stands (RFC 8555 §7.1.6).
type AuthzStatus string

// The states of an authorization. A pending one whose Challenge is set is being validated.
const (
	AuthzPending     AuthzStatus = "pending"
	AuthzValid       AuthzStatus = "valid"
	AuthzInvalid     AuthzStatus = "invalid"
	AuthzDeactivated AuthzStatus = "deactivated"
	AuthzExpired     AuthzStatus = "expired" // never stored
)

// An Authorization is an account's proof, or duty to prove, that it controls one identifier.
type Authorization struct {
	ID         string
	AccountID  string
	Directory  string
	OrderID    string        // the order it was made for, "" if made for none (RFC 8555 §7.4.1)
	Profile    string        // for whose certificates it holds
	Identifier ca.Identifier // without "*."
	Wildcard   bool
	Status     AuthzStatus // as stored; At says what it is at a time
	Token      string
	Offered    []ChallengeType
	Challenge  ChallengeType // the one the client chose, "" before
	Lease      time.Time     // while it is validated: until when somebody works on it
	Attempts   int
	Error      *Problem
	CreatedAt  time.Time
	Expires    time.Time
	PurgeAt    time.Time
	Validated  time.Time
	// AttestedKey is the SHA-256, in hex, of the SubjectPublicKeyInfo that was
	// proven to be in the device; certificates are for it alone. "": for any.
	AttestedKey string
	Answer      []byte    // what the client sent with the challenge, of types that are proven by it
	CAAChecked  time.Time // when CAA records last allowed it; zero: not yet
	Subdomains  bool      // it holds for all names below, too (RFC 9444)
}

// At returns the authorization as it is at now. A pending one that ran out
// never was valid, so it is invalid; RFC 8555 §7.1.6 has "expired" for valid ones.
func (a Authorization) At(now time.Time) Authorization {
	if now.Before(a.Expires) {
		return a
	}
	switch {
	case a.Status == AuthzValid:
		a.Status = AuthzExpired
	case a.Status == AuthzPending && a.Challenge == "":
		a.Status = AuthzInvalid
	}
	return a
}

// name is the identifier as the order has it.
func (a Authorization) name() ca.Identifier {
	id := a.Identifier
	if a.Wildcard {
		id.Value = "*." + id.Value
	}
	return id
}

// shown lists the challenges that a reader sees: all of them while there is a
// choice, the one that was tried afterwards. Some clients take any "invalid"
// inside a valid authorization for a failure.
func (a Authorization) shown() []ChallengeType {
	if a.Status == AuthzPending || a.Challenge == "" {
		return a.Offered
	}
	return []ChallengeType{a.Challenge}
}

// challengeStatus is the state of one of the authorization's challenges.
func (a Authorization) challengeStatus(t ChallengeType) string {
	switch {
	case a.Status == AuthzPending && a.Challenge == t:
		return "processing"
	case a.Status == AuthzPending:
		return "pending"
	case a.Challenge == t && !a.Validated.IsZero():
		return "valid"
	}
	return "invalid"
}

// newAuthorization makes the duty to prove one of an order's identifiers, or
// all that is at and below the domain above, if that is given.
func (s *Server) newAuthorization(o Order, id ca.Identifier, above string) Authorization {
	a := Authorization{
		ID: audit.NewID(), AccountID: o.AccountID, Directory: o.Directory, OrderID: o.ID, Profile: o.Profile, Identifier: id, Status: AuthzPending,
		Token: newToken(), CreatedAt: o.CreatedAt, Expires: o.Expires, PurgeAt: o.Expires.Add(s.cfg.Retention + purgeSlack),
	}
	if base, ok := wildcardBase(id); ok {
		a.Identifier.Value, a.Wildcard = base, true
	}
	if above != "" {
		a.Identifier.Value, a.Wildcard, a.Subdomains = above, false, true
	}
	a.Offered = offer(s.cfg.Challenges, a.Identifier, a.Wildcard)
	if a.Subdomains {
		a.Offered = slices.DeleteFunc(a.Offered, func(t ChallengeType) bool { return !t.provesBelow() })
	}
	return a
}

// newToken returns 256 random bits in base64url (RFC 8555 §8.1 asks for 128).
func newToken() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// authorization answers POST-as-GET and deactivation (RFC 8555 §7.5, §7.5.2).
func (s *Server) authorization(w http.ResponseWriter, r *http.Request) error {
	c, err := s.claimByAccount(r, s.step())
	if err != nil {
		return err
	}
	req, a, err := s.ownAuthorization(r, c)
	if err != nil {
		return err
	}
	if len(req.payload) > 0 {
		if a, err = s.deactivateAuthorization(r, req, a); err != nil {
			return err
		}
	}
	return s.writeAuthorization(w, http.StatusOK, a)
}

func (s *Server) deactivateAuthorization(r *http.Request, req request, a Authorization) (Authorization, error) {
	var body struct {
		Status string `json:"status"`
	}
	if err := req.decode(&body); err != nil {
		return a, err
	}
	if body.Status != string(AuthzDeactivated) {
		return a, malformed(`the only change to an authorization is {"status":"deactivated"}`)
	}
	if a.Status != AuthzPending && a.Status != AuthzValid {
		return a, malformed("only a pending or valid authorization can be deactivated; this one is " + string(a.Status))
	}
	now := s.now()
	sub := Problem{Type: Unauthorized, Status: http.StatusForbidden, Detail: "the authorization was deactivated"}
	closing := Closing{Error: aboutName(sub, a.name()), PurgeAt: now.Add(s.cfg.Retention)}
	e := s.entry(r.Context(), req.account, "authorization.deactivated", "authorization/"+a.ID, map[string]string{
		"order": a.OrderID, "name": a.name().Value,
	})
	if err := s.store.DeactivateAuthorization(r.Context(), a.ID, now, closing, e); err != nil {
		return a, err
	}
	return s.readAuthorization(r.Context(), a.ID)
}

// challenge answers POST-as-GET of a challenge, and starts its validation when
// the client says that it is ready (RFC 8555 §7.5.1).
func (s *Server) challenge(w http.ResponseWriter, r *http.Request) error {
	c, err := s.claimByAccount(r, s.step())
	if err != nil {
		return err
	}
	req, a, err := s.ownAuthorization(r, c)
	if err != nil {
		return err
	}
	t := ChallengeType(pathValue(r, "type"))
	if !slices.Contains(a.Offered, t) {
		return s.notTheirs(r.Context(), req)
	}
	if len(req.payload) > 0 {
		if a, err = s.startChallenge(r, req, a, t); err != nil {
			return err
		}
	}
	return s.writeChallenge(w, a, t)
}

func (s *Server) startChallenge(r *http.Request, req request, a Authorization, t ChallengeType) (Authorization, error) {
	// The object is empty; older clients put their key authorization in.
	var body map[string]json.RawMessage
	if err := req.decode(&body); err != nil {
		return a, err
	}
	if a.Status == AuthzPending && a.Challenge == "" {
		now := s.now()
		lease := s.validations.lease(now)
		err := s.beginChallenge(r.Context(), a.ID, t, req.payload, lease, now)
		switch {
		case isMoved(err):
			if a, err = s.readAuthorization(r.Context(), a.ID); err != nil {
				return a, err
			}
		case err != nil:
			return a, err
		default:
			a.Challenge, a.Lease = t, lease // all that moved and is shown
			if provenByAnswer(t) {
				a.Answer = req.payload
			}
			a = s.validateFor(r.Context(), a, req.thumbprint)
		}
	}
	if a.Challenge != t && a.Status == AuthzPending {
		return a, malformed("another challenge of this authorization is being validated")
	}
	return a, nil
}

// validateFor has the crew validate what a client just started, and waits a
// little for the outcome: with it the client need not ask again. Who is still
// told that it is processing is told to wait for as long.
func (s *Server) validateFor(ctx context.Context, a Authorization, thumbprint string) Authorization {
	c := claimed{id: a.ID, account: a.AccountID, lease: a.Lease, begun: &begun{a, thumbprint, make(chan Authorization, 1)}}
	if !s.validations.offer(c) {
		s.giveBack(ctx, c)
		return a
	}
	wait := time.NewTimer(s.cfg.ValidationWait)
	defer wait.Stop()
	select {
	case now, ok := <-c.begun.outcome:
		if ok {
			return now
		}
	case <-wait.C:
	case <-ctx.Done():
	}
	return a
}
