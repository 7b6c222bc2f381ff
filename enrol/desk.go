package enrol

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/peer"
)

// Config is what a Desk is made of.
type Config struct {
	Store     Store
	CA        CA
	Issuers   []*ca.Issuer
	Endpoints []Endpoint
	// ChallengeKey is what secrets of challenges are stored under; 32 octets that
	// all replicas have.
	ChallengeKey []byte
	Governor     *gate.Governor
	Verdicts     *gate.Verdicts
	Logger       *slog.Logger
	Now          func() time.Time // nil: time.Now

	// RetryAfter is when who waits for an operator is told to come back; 0: 5 minutes.
	RetryAfter time.Duration
	// Keep is for how long a request is the same one when it comes again; 0: a day.
	Keep time.Duration
	// KeepWaiting is for how long a request waits for an operator; 0: a week.
	KeepWaiting time.Duration
	// MaxWaiting is how many may at an endpoint; 0: 1000.
	MaxWaiting int
	// DecideTimeout bounds a Decider; 0: 5 s.
	DecideTimeout time.Duration
}

// A Desk decides about requests and has certificates issued. It is safe for
// concurrent use.
type Desk struct {
	cfg       Config
	endpoints map[string]*Endpoint
	issuers   map[ca.IssuerID]*ca.Issuer
}

// leaseMargin is how much longer a request is processing than its intent: when it
// is given back, nobody can be signing for it any more.
const leaseMargin = time.Minute

// soon is when to come back for what is just being signed.
const soon = 2 * time.Second

// New returns a desk.
func New(c Config) (*Desk, error) {
	if c.Store == nil || c.CA == nil || c.Governor == nil || c.Verdicts == nil || c.Logger == nil || len(c.ChallengeKey) != sha256.Size {
		return nil, errors.New("making desk: Store, CA, Governor, Verdicts, Logger and a ChallengeKey of 32 octets are needed")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	orElse := func(d *time.Duration, other time.Duration) {
		if *d <= 0 {
			*d = other
		}
	}
	orElse(&c.RetryAfter, 5*time.Minute)
	orElse(&c.Keep, 24*time.Hour)
	orElse(&c.KeepWaiting, 7*24*time.Hour)
	orElse(&c.DecideTimeout, 5*time.Second)
	if c.MaxWaiting <= 0 {
		c.MaxWaiting = 1000
	}
	d := &Desk{cfg: c, endpoints: map[string]*Endpoint{}, issuers: map[ca.IssuerID]*ca.Issuer{}}
	for _, e := range c.Endpoints {
		if !validLabel(e.Label) || d.endpoints[e.Label] != nil {
			return nil, fmt.Errorf("making desk: the label %q is not 1 to 64 lower-case letters, digits and hyphens, or there twice", e.Label)
		}
		d.endpoints[e.Label] = &e
	}
	for _, i := range c.Issuers {
		d.issuers[i.ID] = i
	}
	return d, nil
}

func (d *Desk) endpoint(label string) (*Endpoint, error) {
	e := d.endpoints[label]
	if e == nil {
		return nil, denied("no endpoint %q", label)
	}
	return e, nil
}

// CheckPassword says who logs in. Errors: ErrDenied, a *gate.GovernorRefused.
func (d *Desk) CheckPassword(ctx context.Context, endpoint, user, password string, client netip.Addr) (Principal, error) {
	if user == "" || len(user) > MaxName || len(password) > MaxPassword || !utf8.ValidString(user) || !utf8.ValidString(password) {
		return Principal{}, denied("user or password is empty, too long or not UTF-8")
	}
	p := Principal{Kind: User, Name: user, Subject: user}
	who := peer.NetworkName(client)
	u, err := d.cfg.Store.User(ctx, user)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return Principal{}, err
	}
	usable := err == nil && u.DisabledAt.IsZero() && (len(u.Endpoints) == 0 || slices.Contains(u.Endpoints, endpoint)) && d.endpoints[endpoint] != nil
	creds := gate.Credentials{Client: who, User: user, Secret: password, Version: u.Password}
	if usable && d.cfg.Verdicts.Known(creds) {
		return p, nil
	}
	var stored hash = nobody
	if err == nil {
		if stored, err = parseHash(u.Password); err != nil {
			d.cfg.Logger.ErrorContext(ctx, "the stored password of a user can't be read: set a new one", slog.String("user", user), slog.Any("error", err))
			stored, usable = nobody, false
		}
	}
	release, err := d.cfg.Governor.AcquireWeight(ctx, who, max(nobody.weight(), stored.weight()))
	if err != nil {
		return Principal{}, err
	}
	right := stored.matches(password)
	release()
	if !right || !usable {
		return Principal{}, denied("user %q: unknown, disabled, not of this endpoint, or another password", user)
	}
	d.cfg.Verdicts.Learn(creds)
	return p, nil
}

// CheckCertificate says who has proven to have the key of chain[0]: a certificate of
// ours, or one that the endpoint's manufacturers vouch for. One of ours whose time
// is over passes here, as it may have grace; Enrol looks at that.
func (d *Desk) CheckCertificate(ctx context.Context, endpoint string, chain []*x509.Certificate) (Principal, error) {
	e, err := d.endpoint(endpoint)
	if err != nil {
		return Principal{}, err
	}
	if len(chain) == 0 {
		return Principal{}, denied("no certificate")
	}
	leaf := chain[0]
	if i := d.issuerOf(leaf); i != nil {
		rec, err := d.cfg.Store.Record(ctx, ca.SerialOf(leaf.SerialNumber))
		switch {
		case errors.Is(err, ca.ErrNotFound) || err == nil && (rec.Issuer != i.ID || !bytes.Equal(rec.DER, leaf.Raw)):
			return Principal{}, denied("a certificate that was never issued")
		case err != nil:
			return Principal{}, err
		case rec.Revoked():
			return Principal{}, denied("certificate %s is revoked", rec.Serial)
		}
		return Principal{Kind: Certificate, Name: string(rec.Serial), Subject: leaf.Subject.CommonName, Current: &rec}, nil
	}
	if e.Manufacturers == nil {
		return Principal{}, denied("a certificate of somebody else")
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	// IDevIDs say what they are for in as many ways as there are manufacturers,
	// and end in 9999 (IEEE 802.1AR §8).
	_, err = leaf.Verify(x509.VerifyOptions{
		Roots: e.Manufacturers, Intermediates: between, CurrentTime: d.cfg.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return Principal{}, denied("certificate of no manufacturer: %v", err)
	}
	subject := leaf.Subject.SerialNumber
	if subject == "" {
		subject = leaf.Subject.CommonName
	}
	sum := sha256.Sum256(leaf.Raw)
	return Principal{Kind: Certificate, Name: "sha256:" + hex.EncodeToString(sum[:]), Subject: subject}, nil
}

// issuerOf is ours that signed c.
func (d *Desk) issuerOf(c *x509.Certificate) *ca.Issuer {
	for _, i := range d.issuers {
		if bytes.Equal(i.Cert.RawSubject, c.RawIssuer) && c.CheckSignatureFrom(i.Cert) == nil {
			return i
		}
	}
	return nil
}

// Digest is what a challenge is stored as.
func (d *Desk) Digest(secret string) string { return digest(d.cfg.ChallengeKey, secret) }

func digest(key []byte, secret string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(secret))
	return hex.EncodeToString(mac.Sum(nil))
}

// NewSecret draws a challenge that every device can carry: letters and digits.
func NewSecret() string { return rand.Text() }

// A job is a request under way.
type job struct {
	req       Request
	endpoint  *Endpoint
	principal Principal
	challenge *ChallengeRecord
	csr       *x509.CertificateRequest
	record    Record
}

// Enrol issues a certificate, or keeps the request for approval. The same request
// gives the same certificate, or still waits. Errors: ErrDenied, a *ca.Refusal, a
// *BusyError; all others are faults of ours.
func (d *Desk) Enrol(ctx context.Context, req Request) (Result, error) {
	e, err := d.endpoint(req.Endpoint)
	if err != nil {
		return Result{}, err
	}
	j := &job{req: req, endpoint: e, principal: req.Principal}
	if err := d.prove(ctx, j); err != nil {
		return Result{}, err
	}
	names, err := d.cfg.CA.RequestedNames(ctx, e.Profile, req.CSR)
	if err != nil {
		return Result{}, err
	}
	if err := d.describe(j, names); err != nil {
		return Result{}, err
	}
	switch r, err := d.cfg.Store.RequestByKey(ctx, j.record.Key, d.cfg.Now()); {
	case err == nil:
		return d.goOn(ctx, e, r, req.Requester)
	case !errors.Is(err, ErrNotFound):
		return Result{}, err
	}
	if err := d.allow(ctx, j); err != nil {
		return Result{}, err
	}
	if _, err := d.cfg.CA.CheckCSR(ctx, e.Profile, req.CSR, names); err != nil {
		return Result{}, err
	}
	verdict, err := d.decide(ctx, j)
	if err != nil {
		return Result{}, err
	}
	if verdict == Ask {
		return d.keep(ctx, j)
	}
	return d.issue(ctx, e, j.record, req.Requester)
}

// prove finds the principal of a request that brings a challenge.
func (d *Desk) prove(ctx context.Context, j *job) error {
	if j.principal.Kind != "" {
		return nil
	}
	if j.req.Challenge == "" || j.req.Renewal {
		return denied("nothing proves who asks")
	}
	c, err := d.cfg.Store.Challenge(ctx, j.endpoint.Label, d.Digest(j.req.Challenge))
	switch {
	case err == nil:
		j.challenge = &c
		j.principal = Principal{Kind: Challenge, Name: c.ID, Subject: c.Subject}
		return nil
	case !errors.Is(err, ErrNotFound):
		return err
	}
	if s := j.endpoint.Shared; s != "" && subtle.ConstantTimeCompare([]byte(d.Digest(s)), []byte(d.Digest(j.req.Challenge))) == 1 {
		j.principal = Principal{Kind: Challenge, Name: "shared"}
		return nil
	}
	return denied("no such challenge")
}

// describe writes the record of j.
func (d *Desk) describe(j *job, names []ca.Identifier) error {
	csr, err := x509.ParseCertificateRequest(j.req.CSR)
	if err != nil {
		return fmt.Errorf("reading a CSR that was read before: %w", err)
	}
	now := d.cfg.Now()
	j.csr = csr
	j.record = Record{
		ID: audit.NewID(), Endpoint: j.endpoint.Label, Profile: j.endpoint.Profile, Principal: j.principal.Actor(), Transaction: j.req.Transaction,
		CSR: j.req.CSR, SPKI: sha256.Sum256(csr.RawSubjectPublicKeyInfo), Names: names, Renewal: j.req.Renewal, CreatedAt: now, PurgeAt: now.Add(d.cfg.Keep),
	}
	if j.challenge != nil {
		j.record.Challenge = j.challenge.ID
	}
	j.record.Key = j.key()
	return nil
}

// key is of what makes a request the same one. A CSR may be signed anew, and its
// challengePassword differ, as that can be bound to the connection (RFC 7030 §4.2.3).
func (j *job) key() string {
	h := sha256.New()
	part := func(b []byte) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(b))))
		h.Write(b)
	}
	part([]byte(j.endpoint.Label))
	part([]byte(j.record.Principal))
	part([]byte(j.req.Transaction))
	part([]byte(fmt.Sprint(j.req.Renewal)))
	part(j.csr.RawSubject)
	part(j.csr.RawSubjectPublicKeyInfo)
	for _, e := range j.csr.Extensions {
		part([]byte(fmt.Sprint(e.Id, e.Critical)))
		part(e.Value)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// allow holds the request against the endpoint's rules.
func (d *Desk) allow(_ context.Context, j *job) error {
	if j.req.Renewal {
		return d.allowRenewal(j)
	}
	if c := j.challenge; c != nil {
		switch {
		case !c.Usable(d.cfg.Now()):
			return denied("challenge %s is used up, expired or revoked", c.ID)
		case len(c.Names) > 0 && !sameNames(c.Names, j.record.Names):
			return denied("challenge %s is for other names", c.ID)
		case len(c.Names) > 0:
			return nil // an operator has named them
		}
	}
	if c := j.principal.Current; c != nil && d.cfg.Now().After(c.NotAfter) {
		return denied("certificate %s has expired", c.Serial)
	}
	if !slices.ContainsFunc(j.endpoint.Rules, func(r Rule) bool { return r.allows(j.principal, j.record.Names) }) {
		return denied("no rule lets %s have %v", j.record.Principal, j.record.Names)
	}
	return nil
}

func sameNames(a, b []ca.Identifier) bool {
	if len(a) != len(b) {
		return false
	}
	return !slices.ContainsFunc(a, func(id ca.Identifier) bool { return !slices.Contains(b, id) })
}

func (d *Desk) allowRenewal(j *job) error {
	c, rules, now := j.principal.Current, j.endpoint.Renewal, d.cfg.Now()
	switch {
	case rules.Off:
		return denied("the endpoint renews nothing")
	case c == nil:
		return denied("no certificate of ours to renew")
	case c.Revoked():
		return denied("certificate %s is revoked", c.Serial)
	case c.Profile != j.endpoint.Profile || j.endpoint.Issuer != "" && c.Issuer != j.endpoint.Issuer:
		return denied("certificate %s is of another profile or issuer", c.Serial)
	case now.After(c.NotAfter.Add(rules.Grace)):
		return denied("certificate %s has expired", c.Serial)
	case !sameNames(c.Names, j.record.Names):
		return denied("certificate %s has other names than the request", c.Serial)
	case rules.NewKey && c.SPKIHash == j.record.SPKI:
		return denied("certificate %s has the key of the request", c.Serial)
	}
	if life := c.NotAfter.Sub(c.NotBefore); rules.Early > 0 && now.Before(c.NotBefore.Add(life/100*time.Duration(rules.Early))) {
		return denied("certificate %s is not to be renewed yet", c.Serial)
	}
	return nil
}

// decide asks whoever else is to be asked.
func (d *Desk) decide(ctx context.Context, j *job) (Verdict, error) {
	verdict := Allow
	if j.endpoint.Manual && !j.req.Renewal {
		verdict = Ask
	}
	if j.endpoint.Decider == nil {
		return verdict, nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.DecideTimeout)
	defer cancel()
	r := j.record
	said, err := j.endpoint.Decider.Decide(ctx, Question{
		Endpoint: r.Endpoint, Profile: r.Profile, Principal: r.Principal, Transaction: r.Transaction, Names: r.Names, Renewal: r.Renewal,
		SPKI: hex.EncodeToString(r.SPKI[:]), CSR: r.CSR,
	})
	switch {
	case err != nil:
		return Deny, &BusyError{RetryAfter: 30 * time.Second, Err: fmt.Errorf("asking for a decision: %w", err)}
	case said == Ask:
		return Ask, nil
	case said == Allow:
		return verdict, nil
	}
	return Deny, denied("the decision was %q", said)
}

// keep has a request wait for an operator.
func (d *Desk) keep(ctx context.Context, j *job) (Result, error) {
	r := j.record
	r.State, r.PurgeAt = Waiting, r.CreatedAt.Add(d.cfg.KeepWaiting)
	err := d.cfg.Store.Keep(ctx, r, d.cfg.MaxWaiting, entry(j.req.Requester, r.Principal, "enrolment.waits", r, nil))
	switch {
	case errors.Is(err, ErrMoved):
		return d.again(ctx, j.endpoint, r, j.req.Requester)
	case errors.Is(err, ErrFull):
		return Result{}, &BusyError{RetryAfter: d.cfg.RetryAfter, Err: err}
	case errors.Is(err, ErrSpent):
		return Result{}, denied("challenge %s: %v", r.Challenge, err)
	case err != nil:
		return Result{}, err
	}
	return Result{RetryAfter: d.cfg.RetryAfter}, nil
}

func entry(by ca.Requester, actor, action string, r Record, more map[string]any) audit.Entry {
	detail := map[string]any{"endpoint": r.Endpoint, "names": r.Names[:min(len(r.Names), 20)], "spki_sha256": hex.EncodeToString(r.SPKI[:])}
	for k, v := range more {
		detail[k] = v
	}
	e := audit.New(actor, action, "enrolment/"+r.ID, detail)
	if by.Addr.IsValid() {
		e.Remote = by.Addr.String()
	}
	e.Request = by.RequestID
	return e
}

// again reads a request that somebody else has just stored.
func (d *Desk) again(ctx context.Context, e *Endpoint, r Record, by ca.Requester) (Result, error) {
	now, err := d.cfg.Store.RequestByKey(ctx, r.Key, d.cfg.Now())
	if errors.Is(err, ErrNotFound) || err == nil && now.State == Approved {
		return Result{RetryAfter: soon}, nil // it is just being stored, or was just given back
	}
	if err != nil {
		return Result{}, err
	}
	return d.goOn(ctx, e, now, by)
}

// goOn answers whoever comes again with a request that is there.
func (d *Desk) goOn(ctx context.Context, e *Endpoint, r Record, by ca.Requester) (Result, error) {
	switch r.State {
	case Issued:
		if r.Certificate == nil {
			return Result{}, denied("the certificate of request %s was revoked", r.ID)
		}
		return d.result(ca.Certificate{DER: r.Certificate}), nil
	case Waiting:
		return Result{RetryAfter: d.cfg.RetryAfter}, nil
	case Processing:
		return Result{RetryAfter: soon}, nil
	case Approved:
		return d.issue(ctx, e, r, by)
	}
	return Result{}, denied("request %s was denied by %s", r.ID, r.DecidedBy)
}

// Poll says what became of a request.
func (d *Desk) Poll(ctx context.Context, p Poll) (Result, error) {
	e, err := d.endpoint(p.Endpoint)
	if err != nil {
		return Result{}, err
	}
	r, err := d.cfg.Store.RequestByTransaction(ctx, p.Endpoint, p.Transaction, p.SPKI, d.cfg.Now())
	if errors.Is(err, ErrNotFound) {
		return Result{}, denied("no such transaction")
	}
	if err != nil {
		return Result{}, err
	}
	return d.goOn(ctx, e, r, p.Requester)
}

// issue has the CA certify what r asks for.
func (d *Desk) issue(ctx context.Context, e *Endpoint, r Record, by ca.Requester) (Result, error) {
	by.Actor = r.Principal
	ctx = peer.WithIdentity(ctx, r.Principal) // whose turn it is at the device, too
	c, err := d.cfg.CA.Issue(ctx, ca.Request{
		Profile: r.Profile, CSR: r.CSR, Issuer: e.Issuer, Identifiers: r.Names, Requester: by, Renewal: r.Renewal,
	}, &ledger{desk: d, record: r})
	switch {
	case err == nil:
		return d.result(c), nil
	case errors.Is(err, ErrMoved):
		return d.again(ctx, e, r, by)
	case errors.Is(err, ErrSpent):
		return Result{}, denied("challenge %s: %v", r.Challenge, err)
	}
	if refusal, ok := errors.AsType[*ca.Refusal](err); ok && refusal.Code == ca.Busy {
		return Result{}, &BusyError{RetryAfter: refusal.RetryAfter, Err: err}
	}
	return Result{}, err
}

// result adds the chain to a certificate.
func (d *Desk) result(c ca.Certificate) Result {
	out := Result{Certificate: c.DER}
	leaf, err := x509.ParseCertificate(c.DER)
	if err != nil {
		return out
	}
	if i := d.issuerOf(leaf); i != nil {
		out.Chain = append(out.Chain, i.Cert.Raw)
		for _, up := range i.Chain {
			out.Chain = append(out.Chain, up.Raw)
		}
	}
	return out
}

// A ledger ties one issuance to its request.
type ledger struct {
	desk   *Desk
	record Record
}

func (l *ledger) claimed(in ca.Intent) Record {
	r := l.record
	r.IntentID, r.LeaseUntil = in.ID, in.LeaseUntil.Add(leaseMargin)
	return r
}

func (l *ledger) Begin(ctx context.Context, in ca.Intent) error {
	return l.desk.cfg.Store.Begin(ctx, l.claimed(in), in)
}

func (l *ledger) Commit(ctx context.Context, in ca.Intent, c ca.Certificate) error {
	r := l.claimed(in)
	r.PurgeAt = l.desk.cfg.Now().Add(l.desk.cfg.Keep)
	return l.desk.cfg.Store.Commit(ctx, r, in, c)
}

func (l *ledger) Abort(ctx context.Context, in ca.Intent, cause error) error {
	return l.desk.cfg.Store.Abort(ctx, l.claimed(in), in, cause)
}

const (
	sweepEvery = time.Minute
	sweepBatch = 200
)

// Run gives back what was left processing, and forgets what is over, until ctx ends.
func (d *Desk) Run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		for {
			n, err := d.cfg.Store.Sweep(ctx, d.cfg.Now(), sweepBatch)
			if err != nil && ctx.Err() == nil {
				d.cfg.Logger.ErrorContext(ctx, "sweeping enrolments", slog.Any("error", err))
			}
			if err != nil || n < sweepBatch {
				break
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// validLabel is a part of a path, and nothing that has a meaning there.
func validLabel(s string) bool {
	return s != "" && len(s) <= 64 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
