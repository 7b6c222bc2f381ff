package admin

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/enrol"
)

// Enrolments keeps what operators have to do with devices that enrol. It is safe
// for concurrent use, and each entry is in the transaction of its fact. Who is not
// there is enrol.ErrNotFound.
type Enrolments interface {
	AddUser(ctx context.Context, u enrol.UserRecord, e audit.Entry) error // enrol.ErrExists
	ListUsers(ctx context.Context, after string, limit int) ([]enrol.UserRecord, error)
	SetPassword(ctx context.Context, name, hash string, e audit.Entry) error
	DisableUser(ctx context.Context, name string, at time.Time, e audit.Entry) error // zero: in use again
	RemoveUser(ctx context.Context, name string, e audit.Entry) error

	AddChallenge(ctx context.Context, c enrol.ChallengeRecord, e audit.Entry) error
	ListChallenges(ctx context.Context, before string, limit int) ([]enrol.ChallengeRecord, string, error)
	RevokeChallenge(ctx context.Context, id string, at time.Time, e audit.Entry) error

	ListRequests(ctx context.Context, state enrol.State, before string, limit int) ([]enrol.Record, string, error)
	Request(ctx context.Context, id string) (enrol.Record, error)
	// DecideRequest moves one that waits: enrol.ErrMoved for another.
	DecideRequest(ctx context.Context, id string, to enrol.State, by string, at, purge time.Time, e audit.Entry) error
}

// Enrolment is the desk as operators see it.
type Enrolment struct {
	Store     Enrolments
	Digest    func(secret string) string // what a challenge is stored as
	Endpoints []string
}

const (
	maxChallengeUses = 1_000_000
	maxChallengeLife = 366 * 24 * time.Hour
	// keepDecided is for how long a device can come back for what was decided.
	keepDecided = 7 * 24 * time.Hour
)

func (s *Server) enrolmentRoutes(route func(path, name string, methods map[string]handler)) {
	post := func(h handler) map[string]handler { return map[string]handler{http.MethodPost: h} }
	route("/enrolment/users", "enrolment_users", map[string]handler{http.MethodGet: s.listUsers, http.MethodHead: s.listUsers, http.MethodPost: s.addUser})
	route("/enrolment/users/password", "enrolment_password", post(s.setPassword))
	route("/enrolment/users/disable", "enrolment_disable_user", post(s.disableUser))
	route("/enrolment/users/remove", "enrolment_remove_user", post(s.removeUser))
	route("/enrolment/challenges", "enrolment_challenges", map[string]handler{
		http.MethodGet: s.listChallenges, http.MethodHead: s.listChallenges, http.MethodPost: s.addChallenge,
	})
	route("/enrolment/challenges/{id}/revoke", "enrolment_revoke_challenge", post(s.revokeChallenge))
	route("/enrolment/requests", "enrolment_requests", map[string]handler{http.MethodGet: s.listRequests, http.MethodHead: s.listRequests})
	route("/enrolment/requests/{id}", "enrolment_request", map[string]handler{http.MethodGet: s.enrolmentRequest, http.MethodHead: s.enrolmentRequest})
	route("/enrolment/requests/{id}/approve", "enrolment_approve", post(func(w http.ResponseWriter, r *http.Request) error { return s.decide(w, r, enrol.Approved) }))
	route("/enrolment/requests/{id}/deny", "enrolment_deny", post(func(w http.ResponseWriter, r *http.Request) error { return s.decide(w, r, enrol.Denied) }))
}

// now is the time as it is stored.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

func checkComment(comment string) error {
	if len(comment) > maxKeyComment || !utf8.ValidString(comment) || strings.ContainsFunc(comment, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return invalid("comment", "is longer than %d bytes, or not one line of text", maxKeyComment)
	}
	return nil
}

func checkUserName(name string) error {
	if name == "" || len(name) > enrol.MaxName || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || r == ':' }) {
		return invalid("name", "is not 1 to %d bytes of text without spaces and colons", enrol.MaxName)
	}
	return nil
}

func (s *Server) checkEndpoints(list ...string) error {
	for _, e := range list {
		if !slices.Contains(s.enrolment.Endpoints, e) {
			return invalid("endpoint", "has %.100q; there is %s", e, orNone(s.enrolment.Endpoints))
		}
	}
	return nil
}

// hashOf takes a password, or a hash that was made elsewhere.
func hashOf(password, hash string) (string, error) {
	if (password == "") == (hash == "") {
		return "", invalid("password", "and password_hash are both there, or neither is: give one")
	}
	if hash != "" {
		if err := enrol.CheckHash(hash); err != nil {
			return "", invalid("password_hash", "is not taken: %v", err)
		}
		return hash, nil
	}
	if err := enrol.CheckPassword(password); err != nil {
		return "", invalid("password", "is not taken: %v", err)
	}
	return enrol.HashPassword(password)
}

func (s *Server) addUser(w http.ResponseWriter, r *http.Request) error {
	var q client.NewUser
	err := readBody(w, r, map[string]any{
		"name": &q.Name, "password": &q.Password, "password_hash": &q.PasswordHash, "endpoints": &q.Endpoints, "comment": &q.Comment,
	})
	for _, check := range []func() error{
		func() error { return checkUserName(q.Name) },
		func() error { return checkComment(q.Comment) },
		func() error { return s.checkEndpoints(q.Endpoints...) },
	} {
		if err == nil {
			err = check()
		}
	}
	if err != nil {
		return err
	}
	hash, err := hashOf(q.Password, q.PasswordHash)
	if err != nil {
		return err
	}
	by := requester(r.Context())
	u := enrol.UserRecord{Name: q.Name, Password: hash, Endpoints: q.Endpoints, Comment: q.Comment, CreatedAt: now(), CreatedBy: by.Actor}
	e := entryOf(by, "enrolment.user.added", "enrolment-user/"+u.Name, map[string]any{"endpoints": u.Endpoints, "comment": u.Comment})
	err = s.enrolment.Store.AddUser(r.Context(), u, e)
	if errors.Is(err, enrol.ErrExists) {
		return problemf(http.StatusConflict, client.CodeConflict, "there is a user %q", u.Name)
	}
	if err != nil {
		return fmt.Errorf("adding user: %w", err)
	}
	return answer(w, wireUser(u))
}

func (s *Server) listUsers(w http.ResponseWriter, r *http.Request) error {
	p := readParams(r, "limit", "cursor")
	limit, after := p.limit(), p.cursor("enrolment-users")
	if p.err != nil {
		return p.err
	}
	list, err := s.enrolment.Store.ListUsers(r.Context(), after, limit+1)
	if err != nil {
		return fmt.Errorf("listing users: %w", err)
	}
	page := client.UserPage{Users: []client.User{}}
	if len(list) > limit {
		list = list[:limit]
		page.Next = encodeCursor("enrolment-users", list[limit-1].Name)
	}
	for _, u := range list {
		page.Users = append(page.Users, wireUser(u))
	}
	return answer(w, page)
}

func wireUser(u enrol.UserRecord) client.User {
	return client.User{
		Name: u.Name, Endpoints: u.Endpoints, Comment: u.Comment, CreatedAt: u.CreatedAt, CreatedBy: u.CreatedBy, DisabledAt: timePtr(u.DisabledAt),
	}
}

func (s *Server) setPassword(w http.ResponseWriter, r *http.Request) error {
	var q client.NewPassword
	if err := readBody(w, r, map[string]any{"name": &q.Name, "password": &q.Password, "password_hash": &q.PasswordHash}); err != nil {
		return err
	}
	hash, err := hashOf(q.Password, q.PasswordHash)
	if err != nil {
		return err
	}
	e := entryOf(requester(r.Context()), "enrolment.user.password_set", "enrolment-user/"+q.Name, nil)
	return s.changedUser(w, q.Name, s.enrolment.Store.SetPassword(r.Context(), q.Name, hash, e))
}

func (s *Server) disableUser(w http.ResponseWriter, r *http.Request) error {
	var (
		name   string
		enable bool
		at     = now()
		action = "enrolment.user.disabled"
	)
	if err := readBody(w, r, map[string]any{"name": &name, "enable": &enable}); err != nil {
		return err
	}
	if enable {
		at, action = time.Time{}, "enrolment.user.enabled"
	}
	e := entryOf(requester(r.Context()), action, "enrolment-user/"+name, nil)
	return s.changedUser(w, name, s.enrolment.Store.DisableUser(r.Context(), name, at, e))
}

func (s *Server) removeUser(w http.ResponseWriter, r *http.Request) error {
	var name string
	if err := readBody(w, r, map[string]any{"name": &name}); err != nil {
		return err
	}
	e := entryOf(requester(r.Context()), "enrolment.user.removed", "enrolment-user/"+name, nil)
	return s.changedUser(w, name, s.enrolment.Store.RemoveUser(r.Context(), name, e))
}

func (s *Server) changedUser(w http.ResponseWriter, name string, err error) error {
	if errors.Is(err, enrol.ErrNotFound) {
		return problemf(http.StatusNotFound, client.CodeNotFound, "there is no user %.100q", name)
	}
	if err != nil {
		return fmt.Errorf("changing user: %w", err)
	}
	return answer(w, client.Changed{Name: name})
}

func (s *Server) addChallenge(w http.ResponseWriter, r *http.Request) error {
	q := client.NewChallenge{MaxUses: 1, ValidSeconds: 24 * 3600}
	err := readBody(w, r, map[string]any{
		"endpoint": &q.Endpoint, "subject": &q.Subject, "names": &q.Names, "max_uses": &q.MaxUses, "valid_seconds": &q.ValidSeconds, "comment": &q.Comment,
	})
	if err == nil {
		err = checkComment(q.Comment)
	}
	if err == nil {
		err = s.checkEndpoints(q.Endpoint)
	}
	if err != nil {
		return err
	}
	switch {
	case q.MaxUses < 0 || q.MaxUses > maxChallengeUses:
		return invalid("max_uses", "is not a whole number from 0, which is any number of requests, to %d", maxChallengeUses)
	case q.ValidSeconds < 1 || q.ValidSeconds > int64(maxChallengeLife/time.Second):
		return invalid("valid_seconds", "is not from 1 to %d", int64(maxChallengeLife/time.Second))
	case len(q.Subject) > enrol.MaxName || !utf8.ValidString(q.Subject):
		return invalid("subject", "is longer than %d bytes, or not text", enrol.MaxName)
	}
	names, err := readNames(q.Names)
	if err != nil {
		return err
	}
	by, secret := requester(r.Context()), enrol.NewSecret()
	c := enrol.ChallengeRecord{
		ID: audit.NewID(), Digest: s.enrolment.Digest(secret), Endpoint: q.Endpoint, Subject: q.Subject, Names: names, MaxUses: q.MaxUses,
		Comment: q.Comment, CreatedAt: now(), CreatedBy: by.Actor,
	}
	c.Expires = c.CreatedAt.Add(time.Duration(q.ValidSeconds) * time.Second)
	e := entryOf(by, "enrolment.challenge.created", "enrolment-challenge/"+c.ID, map[string]any{
		"endpoint": c.Endpoint, "subject": c.Subject, "names": c.Names, "max_uses": c.MaxUses, "expires": c.Expires, "comment": c.Comment,
	})
	if err := s.enrolment.Store.AddChallenge(r.Context(), c, e); err != nil {
		return fmt.Errorf("adding challenge: %w", err)
	}
	out := wireChallenge(c, c.CreatedAt)
	out.Secret = secret // in this answer and nowhere else
	return answer(w, out)
}

// maxChallengeNames bounds the names of one challenge.
const maxChallengeNames = 100

func readNames(list []string) ([]ca.Identifier, error) {
	if len(list) > maxChallengeNames {
		return nil, invalid("names", "has more than %d entries", maxChallengeNames)
	}
	var out []ca.Identifier
	for _, text := range list {
		p, err := enrol.ParseNamePattern(text)
		if err != nil {
			return nil, invalid("names", "has %v", err)
		}
		out = append(out, ca.Identifier{Type: p.Type, Value: string(p.Value)})
	}
	return ca.NormalizeIdentifiers(out), nil
}

func writeNames(list []ca.Identifier) []string {
	out := make([]string, 0, len(list))
	for _, id := range list {
		out = append(out, string(id.Type)+":"+id.Value)
	}
	return out
}

func wireChallenge(c enrol.ChallengeRecord, at time.Time) client.Challenge {
	out := client.Challenge{
		ID: c.ID, Endpoint: c.Endpoint, Status: client.KeyUsable, Subject: c.Subject, Names: writeNames(c.Names), MaxUses: c.MaxUses, Uses: c.Uses,
		Comment: c.Comment, CreatedAt: c.CreatedAt, CreatedBy: c.CreatedBy, Expires: timePtr(c.Expires), RevokedAt: timePtr(c.RevokedAt),
	}
	switch {
	case !c.RevokedAt.IsZero():
		out.Status = client.KeyRevoked
	case c.MaxUses > 0 && c.Uses >= c.MaxUses:
		out.Status = client.KeyUsed
	case !c.Usable(at):
		out.Status = client.KeyExpired
	}
	return out
}

func (s *Server) listChallenges(w http.ResponseWriter, r *http.Request) error {
	p := readParams(r, "limit", "cursor")
	limit, before := p.limit(), p.cursor("enrolment-challenges")
	if p.err != nil {
		return p.err
	}
	list, next, err := s.enrolment.Store.ListChallenges(r.Context(), before, limit)
	if errors.Is(err, ErrNotFound) {
		return errBadCursor
	}
	if err != nil {
		return fmt.Errorf("listing challenges: %w", err)
	}
	page := client.ChallengePage{Challenges: []client.Challenge{}, Next: encodeCursor("enrolment-challenges", next)}
	for _, c := range list {
		page.Challenges = append(page.Challenges, wireChallenge(c, time.Now()))
	}
	return answer(w, page)
}

func (s *Server) revokeChallenge(w http.ResponseWriter, r *http.Request) error {
	id, err := idOf(r, "id", "challenge id")
	if err != nil {
		return err
	}
	if err := readBody(w, r, map[string]any{}); err != nil {
		return err
	}
	e := entryOf(requester(r.Context()), "enrolment.challenge.revoked", "enrolment-challenge/"+id, nil)
	err = s.enrolment.Store.RevokeChallenge(r.Context(), id, now(), e)
	if errors.Is(err, enrol.ErrNotFound) {
		return problemf(http.StatusNotFound, client.CodeNotFound, "there is no challenge %s that is not revoked", id)
	}
	if err != nil {
		return fmt.Errorf("revoking challenge: %w", err)
	}
	return answer(w, client.Changed{Name: id})
}

func (s *Server) listRequests(w http.ResponseWriter, r *http.Request) error {
	p := readParams(r, "state", "limit", "cursor")
	state, limit, before := enrol.State(p.text("state")), p.limit(), p.cursor("enrolment-requests")
	if p.err != nil {
		return p.err
	}
	if state != "" && !slices.Contains(client.RequestStates(), string(state)) {
		return invalid("state", "is none of %s", strings.Join(client.RequestStates(), ", "))
	}
	list, next, err := s.enrolment.Store.ListRequests(r.Context(), state, before, limit)
	if errors.Is(err, ErrNotFound) {
		return errBadCursor
	}
	if err != nil {
		return fmt.Errorf("listing requests: %w", err)
	}
	page := client.RequestPage{Requests: []client.Request{}, Next: encodeCursor("enrolment-requests", next)}
	for _, q := range list {
		page.Requests = append(page.Requests, wireRequest(q))
	}
	return answer(w, page)
}

func (s *Server) enrolmentRequest(w http.ResponseWriter, r *http.Request) error {
	id, err := idOf(r, "id", "request id")
	if err != nil {
		return err
	}
	return s.showRequest(w, r, id)
}

func (s *Server) showRequest(w http.ResponseWriter, r *http.Request, id string) error {
	q, err := s.enrolment.Store.Request(r.Context(), id)
	if errors.Is(err, enrol.ErrNotFound) {
		return problemf(http.StatusNotFound, client.CodeNotFound, "there is no request %s", id)
	}
	if err != nil {
		return fmt.Errorf("reading request: %w", err)
	}
	return answer(w, wireRequest(q))
}

func wireRequest(q enrol.Record) client.Request {
	return client.Request{
		ID: q.ID, Endpoint: q.Endpoint, Profile: q.Profile, State: string(q.State), Principal: q.Principal, Transaction: q.Transaction, Names: writeNames(q.Names),
		SPKIHash: hex.EncodeToString(q.SPKI[:]), Renewal: q.Renewal, Serial: string(q.Serial), CreatedAt: q.CreatedAt,
		DecidedAt: timePtr(q.DecidedAt), DecidedBy: q.DecidedBy, CSR: q.CSR,
	}
}

func (s *Server) decide(w http.ResponseWriter, r *http.Request, to enrol.State) error {
	id, err := idOf(r, "id", "request id")
	if err != nil {
		return err
	}
	if err := readBody(w, r, map[string]any{}); err != nil {
		return err
	}
	by, at := requester(r.Context()), now()
	e := entryOf(by, "enrolment."+string(to), "enrolment/"+id, nil)
	err = s.enrolment.Store.DecideRequest(r.Context(), id, to, by.Actor, at, at.Add(keepDecided), e)
	switch {
	case errors.Is(err, enrol.ErrNotFound):
		return problemf(http.StatusNotFound, client.CodeNotFound, "there is no request %s", id)
	case errors.Is(err, enrol.ErrMoved):
		return problemf(http.StatusConflict, client.CodeConflict, "request %s does not wait for a decision any more", id)
	case err != nil:
		return fmt.Errorf("deciding request: %w", err)
	}
	return s.showRequest(w, r, id)
}
