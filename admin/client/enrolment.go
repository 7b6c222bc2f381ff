package client

import (
	"context"
	"net/url"
	"time"
)

// A NewUser is the body of a request for somebody who enrols devices by password:
// in clear, or hashed elsewhere by argon2id or bcrypt.
type NewUser struct {
	Name         string   `json:"name"`
	Password     string   `json:"password,omitempty"`
	PasswordHash string   `json:"password_hash,omitempty"`
	Endpoints    []string `json:"endpoints,omitempty"` // that the user may enrol at; none: all
	Comment      string   `json:"comment,omitempty"`
}

// A User enrols devices by password.
type User struct {
	Name       string     `json:"name"`
	Endpoints  []string   `json:"endpoints,omitempty"`
	Comment    string     `json:"comment,omitempty"`
	CreatedAt  time.Time  `json:"created_at"`
	CreatedBy  string     `json:"created_by"`
	DisabledAt *time.Time `json:"disabled_at,omitempty"`
}

// A UserPage is a part of a list, by name. An empty Next says that it is the last one.
type UserPage struct {
	Users []User `json:"users"`
	Next  string `json:"next,omitempty"`
}

// A NewPassword takes the place of a user's.
type NewPassword struct {
	Name         string `json:"name"`
	Password     string `json:"password,omitempty"`
	PasswordHash string `json:"password_hash,omitempty"`
}

// Changed says what was changed.
type Changed struct {
	Name string `json:"name"`
}

// A NewChallenge is the body of a request for a secret by which a device enrols.
type NewChallenge struct {
	Endpoint     string   `json:"endpoint"`
	Subject      string   `json:"subject,omitempty"` // what rules put in the place of {name}
	Names        []string `json:"names,omitempty"`   // TYPE:VALUE, that the request has to have, exactly; none: what the rules allow
	MaxUses      int      `json:"max_uses"`          // 0: any number
	ValidSeconds int64    `json:"valid_seconds"`
	Comment      string   `json:"comment,omitempty"`
}

// A Challenge is a secret by which a device enrols.
type Challenge struct {
	ID        string     `json:"id"`
	Secret    string     `json:"secret,omitempty"` // in the answer to its creation, and never again
	Endpoint  string     `json:"endpoint"`
	Status    string     `json:"status"` // usable, used, expired or revoked
	Subject   string     `json:"subject,omitempty"`
	Names     []string   `json:"names,omitempty"`
	MaxUses   int        `json:"max_uses"`
	Uses      int        `json:"uses"`
	Comment   string     `json:"comment,omitempty"`
	CreatedAt time.Time  `json:"created_at"`
	CreatedBy string     `json:"created_by"`
	Expires   *time.Time `json:"expires,omitempty"`
	RevokedAt *time.Time `json:"revoked_at,omitempty"`
}

// A ChallengePage is a part of a list, newest first.
type ChallengePage struct {
	Challenges []Challenge `json:"challenges"`
	Next       string      `json:"next,omitempty"`
}

// RequestStates are what a request can be: waiting for an operator, approved and
// not yet fetched, denied, processing or issued.
func RequestStates() []string {
	return []string{"waiting", "approved", "denied", "processing", "issued"}
}

// A Request is a device's request for a certificate.
type Request struct {
	ID          string     `json:"id"`
	Endpoint    string     `json:"endpoint"`
	Profile     string     `json:"profile"`
	State       string     `json:"state"`
	Principal   string     `json:"principal"`
	Transaction string     `json:"transaction,omitempty"`
	Names       []string   `json:"names"`
	SPKIHash    string     `json:"spki_sha256"`
	Renewal     bool       `json:"renewal,omitempty"`
	Serial      string     `json:"serial,omitempty"`
	CreatedAt   time.Time  `json:"created_at"`
	DecidedAt   *time.Time `json:"decided_at,omitempty"`
	DecidedBy   string     `json:"decided_by,omitempty"`
	CSR         []byte     `json:"csr"` // DER, in base64
}

// A RequestPage is a part of a list, newest first.
type RequestPage struct {
	Requests []Request `json:"requests"`
	Next     string    `json:"next,omitempty"`
}

func pageOf(limit int, cursor string) query {
	q := query{}
	q.number("limit", int64(limit))
	q.text("cursor", cursor)
	return q
}

// AddUser adds a user.
func (c *Client) AddUser(ctx context.Context, n NewUser) (u User, err error) {
	err = c.post(ctx, "/enrolment/users", n, &u)
	return u, err
}

// ListUsers returns a page of users.
func (c *Client) ListUsers(ctx context.Context, limit int, cursor string) (p UserPage, err error) {
	err = c.get(ctx, "/enrolment/users", pageOf(limit, cursor), &p)
	return p, err
}

// SetPassword gives a user another password.
func (c *Client) SetPassword(ctx context.Context, n NewPassword) error {
	return c.post(ctx, "/enrolment/users/password", n, &Changed{})
}

// DisableUser keeps a user from enrolling; enable lets them again.
func (c *Client) DisableUser(ctx context.Context, name string, enable bool) error {
	return c.post(ctx, "/enrolment/users/disable", map[string]any{"name": name, "enable": enable}, &Changed{})
}

// RemoveUser forgets a user.
func (c *Client) RemoveUser(ctx context.Context, name string) error {
	return c.post(ctx, "/enrolment/users/remove", map[string]string{"name": name}, &Changed{})
}

// CreateChallenge makes a challenge.
func (c *Client) CreateChallenge(ctx context.Context, n NewChallenge) (out Challenge, err error) {
	err = c.post(ctx, "/enrolment/challenges", n, &out)
	return out, err
}

// ListChallenges returns a page of challenges, without their secrets.
func (c *Client) ListChallenges(ctx context.Context, limit int, cursor string) (p ChallengePage, err error) {
	err = c.get(ctx, "/enrolment/challenges", pageOf(limit, cursor), &p)
	return p, err
}

// RevokeChallenge ends a challenge.
func (c *Client) RevokeChallenge(ctx context.Context, id string) error {
	return c.post(ctx, "/enrolment/challenges/"+url.PathEscape(id)+"/revoke", struct{}{}, &Changed{})
}

// ListRequests returns a page of requests; an empty state is all.
func (c *Client) ListRequests(ctx context.Context, state string, limit int, cursor string) (p RequestPage, err error) {
	q := pageOf(limit, cursor)
	q.text("state", state)
	err = c.get(ctx, "/enrolment/requests", q, &p)
	return p, err
}

// Request returns one request.
func (c *Client) Request(ctx context.Context, id string) (r Request, err error) {
	err = c.get(ctx, "/enrolment/requests/"+url.PathEscape(id), nil, &r)
	return r, err
}

// DecideRequest approves or denies a request that waits.
func (c *Client) DecideRequest(ctx context.Context, id string, approve bool) (r Request, err error) {
	verb := "/deny"
	if approve {
		verb = "/approve"
	}
	err = c.post(ctx, "/enrolment/requests/"+url.PathEscape(id)+verb, struct{}{}, &r)
	return r, err
}
