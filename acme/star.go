package acme

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
)

// StarConfig is what orders for certificates that we renew ourselves may ask for
// (RFC 8739).
type StarConfig struct {
	Enabled     bool          // whether there are new ones; those that began go on
	MinLifetime time.Duration // of one certificate, default a day
	MaxDuration time.Duration // of them all, from the order on, default and at most AuthzLifetime
	AllowGet    bool          // whether they may be had by anybody who knows their address
	MaxRows     int           // that go on, of one account: each is work without end; default 100
}

// An AutoRenewal is a wish for certificates that follow each other (RFC 8739
// §3.1.1). Periods are numbered from 0.
type AutoRenewal struct {
	Start    time.Time     `json:"start"` // of the first; zero: at once
	End      time.Time     `json:"end"`   // of the last
	Lifetime time.Duration `json:"lifetime"`
	Adjust   time.Duration `json:"adjust"` // how much sooner than its period each begins, the first left out
	Get      bool          `json:"get"`
}

// first are the dates of the first certificate, issued at now. Like all others
// it begins when it is issued if nothing is said. If a start is said it is never
// valid before that (RFC 8739 §3.5), so that it is not backdated even when the
// start is over.
func (a AutoRenewal) first(now time.Time) (notBefore, notAfter time.Time) {
	if !a.Start.IsZero() {
		if a.Start.After(now) {
			now = a.Start
		}
		notBefore = now
	}
	return notBefore, a.last(now, 0)
}

// last is the last second of a period, given when period 0 began. It is never
// after the end (RFC 8739 §3.3).
func (a AutoRenewal) last(begin time.Time, period int) time.Time {
	end := begin.Add(time.Duration(period+1) * a.Lifetime)
	if end.After(a.End) {
		end = a.End
	}
	return end.Truncate(time.Second).Add(-time.Second)
}

// BeginOf is when period 0 began, by its certificate's end.
func (a AutoRenewal) BeginOf(notAfter time.Time) time.Time {
	return notAfter.Add(time.Second - a.Lifetime)
}

// starLead is how much sooner than it must be there a certificate is begun: to be
// found due, to wait for its turn and to be signed takes its time.
const starLead = time.Minute

// Due is when the certificate of a period is begun: so that it is there when the
// one before has half of its lifetime left, or sooner if the order wants more of
// an overlap. It is zero if there is no such period.
func (a AutoRenewal) Due(begin time.Time, period int) time.Time {
	from := begin.Add(time.Duration(period) * a.Lifetime)
	if !from.Before(a.End) {
		return time.Time{}
	}
	return from.Add(-a.Adjust - starLead)
}

// periodAt is the period to issue for at now, from next on: periods of which a
// later one is due as well were missed, and nobody needs them any more.
func (a AutoRenewal) periodAt(begin, now time.Time, next int) int {
	for later := a.Due(begin, next+1); !later.IsZero() && !later.After(now); later = a.Due(begin, next+1) {
		next++
	}
	return next
}

type autoRenewalBody struct {
	Start    string `json:"start-date"`
	End      string `json:"end-date"`
	Lifetime int64  `json:"lifetime"`
	Adjust   int64  `json:"lifetime-adjust"`
	Get      bool   `json:"allow-certificate-get"`
}

type wireAutoRenewal struct {
	Start    string `json:"start-date,omitempty"`
	End      string `json:"end-date"`
	Lifetime int64  `json:"lifetime"`
	Adjust   int64  `json:"lifetime-adjust"`
	Get      bool   `json:"allow-certificate-get,omitempty"`
}

func wireAutoRenewalOf(a *AutoRenewal) *wireAutoRenewal {
	if a == nil {
		return nil
	}
	return &wireAutoRenewal{wireTime(a.Start), wireTime(a.End), int64(a.Lifetime / time.Second), int64(a.Adjust / time.Second), a.Get}
}

// readAutoRenewal takes an order's wish for certificates that follow each other.
func (s *Server) readAutoRenewal(ctx context.Context, o *Order, body newOrderBody) error {
	b := body.AutoRenewal
	switch {
	case b == nil:
		return nil
	case !s.cfg.Star.Enabled:
		return malformed("certificates that are renewed automatically (RFC 8739) are not offered here")
	case body.NotBefore != "" || body.NotAfter != "":
		return malformed("an order with auto-renewal has neither notBefore nor notAfter (RFC 8739 §3.1.1)")
	case b.Get && !s.cfg.Star.AllowGet:
		return malformed("allow-certificate-get is not offered here; the directory's meta says so")
	case slices.ContainsFunc(o.Identifiers, func(id ca.Identifier) bool { return ca.IsOnion(id.Value) }):
		return malformed("certificates of onion services are not renewed automatically: each needs a word that their keys have signed")
	}
	a := AutoRenewal{Get: b.Get}
	var err error
	if a.Start, err = parseTime("start-date", b.Start); err != nil {
		return err
	}
	if a.End, err = parseTime("end-date", b.End); err != nil {
		return err
	}
	begin := o.CreatedAt
	if a.Start.After(begin) {
		begin = a.Start
	}
	const most = int64(maxStarLifetime / time.Second)
	least := int64(s.cfg.Star.MinLifetime / time.Second)
	switch {
	case a.End.IsZero() || !a.End.After(begin):
		return malformed("end-date is needed, and must be after start-date and now")
	case a.End.After(o.CreatedAt.Add(s.cfg.Star.MaxDuration)):
		return malformed(fmt.Sprintf("end-date must not be more than %d seconds from now", int64(s.cfg.Star.MaxDuration/time.Second)))
	case b.Lifetime < least || b.Lifetime > most:
		return malformed(fmt.Sprintf("lifetime must be from %d seconds to %d", least, most))
	case b.Adjust < 0:
		return malformed("lifetime-adjust must not be negative")
	}
	a.Lifetime = time.Duration(b.Lifetime) * time.Second
	// RFC 8739 §3.5: more than the lifetime is as much as the lifetime; and §3.3:
	// the next one is there when half of this one's life is over, and valid by then.
	a.Adjust = max(time.Duration(min(b.Adjust, b.Lifetime))*time.Second, a.Lifetime/2).Truncate(time.Second)
	if err := s.checkStarValidity(*o, a); err != nil {
		return err
	}
	n, err := s.store.OpenStars(ctx, o.AccountID, o.CreatedAt)
	if err != nil {
		return err
	}
	if n >= s.cfg.Star.MaxRows {
		return &Problem{Type: RateLimited, RetryAfter: time.Hour, Detail: fmt.Sprintf("the account has %d orders with auto-renewal that go on; cancel some of them", n)}
	}
	o.AutoRenewal = &a
	return nil
}

// maxStarLifetime bounds what a client may ask for, so that no sum of it overflows.
const maxStarLifetime = 400 * 24 * time.Hour

// checkStarValidity asks whether the profile allows the first certificate, and
// those after it, which live longer for their overlap.
func (s *Server) checkStarValidity(o Order, a AutoRenewal) error {
	notBefore, notAfter := a.first(o.CreatedAt)
	if err := s.ca.CheckValidity(o.Profile, notBefore, notAfter); err != nil {
		return err
	}
	if a.Due(o.CreatedAt, 1).IsZero() {
		return nil
	}
	return s.ca.CheckValidity(o.Profile, time.Time{}, o.CreatedAt.Add(a.Lifetime+a.Adjust+starLead))
}

// canceled reports whether the order's certificates are renewed no more.
func (o Order) canceled() bool { return !o.CanceledAt.IsZero() }

// changeOrder does what a client may do to an order: it cancels its renewal (RFC
// 8739 §3.1.2).
func (s *Server) changeOrder(r *http.Request, req request, o Order) (Order, error) {
	if o.AutoRenewal == nil {
		return o, onlyRead()
	}
	var body struct {
		Status string `json:"status"`
	}
	if err := req.decode(&body); err != nil {
		return o, err
	}
	if body.Status != "canceled" {
		return o, malformed(`the only change to an order is {"status":"canceled"}`)
	}
	if o.Status != OrderValid || o.canceled() {
		return o, notCancelable()
	}
	e := s.entry(r.Context(), req.account, "order.canceled", "order/"+o.ID, nil)
	switch err := s.store.CancelStar(r.Context(), o.ID, s.now(), e); {
	case isMoved(err):
		return o, notCancelable()
	case err != nil:
		return o, err
	}
	s.metrics.order("canceled")
	return s.readOrder(r.Context(), o.ID)
}

func notCancelable() *Problem {
	return &Problem{Type: AutoRenewalCancellationInvalid, Detail: "only an order with auto-renewal that is valid, and goes on, can be canceled (RFC 8739 §3.1.2)"}
}

// starCertificate answers its account with the newest certificate.
func (s *Server) starCertificate(w http.ResponseWriter, r *http.Request) error {
	c, err := s.claimByAccount(r, s.step())
	if err != nil {
		return err
	}
	if err := mustBeEmpty(c.req); err != nil {
		return err
	}
	req, o, err := s.ownOrder(r, c)
	if err != nil {
		return err
	}
	if o.AutoRenewal == nil || o.Status != OrderValid {
		return s.notTheirs(r.Context(), req)
	}
	return s.writeStar(w, r, o, false)
}

// openStarCertificate answers anybody, if that was agreed (RFC 8739 §3.4). What
// was not looks like nothing at all.
func (s *Server) openStarCertificate(w http.ResponseWriter, r *http.Request) error {
	id := pathValue(r, "id")
	if !isID(id) {
		return noSuchStar()
	}
	o, err := s.store.Order(r.Context(), id)
	if isNotFound(err) || err == nil && (o.Directory != s.cfg.Directory || o.AutoRenewal == nil || !o.AutoRenewal.Get || o.Status != OrderValid) {
		return noSuchStar()
	}
	if err != nil {
		return err
	}
	return s.writeStar(w, r, o, true)
}

func noSuchStar() *Problem {
	return &Problem{Type: Malformed, Status: http.StatusNotFound, Detail: "there is no such certificate, or it is not read without its account"}
}

// starAge is the longest that a shared cache may keep a certificate: so soon is a
// cancellation seen.
const starAge = time.Hour

func (s *Server) writeStar(w http.ResponseWriter, r *http.Request, o Order, shared bool) error {
	now := s.now()
	switch {
	case o.canceled():
		return &Problem{Type: AutoRenewalCanceled, Detail: "the renewal of this certificate was canceled"}
	case !now.Before(o.AutoRenewal.End):
		return &Problem{Type: AutoRenewalExpired, Detail: "the renewal of this certificate has ended, as its order said"}
	}
	star, err := s.store.Star(r.Context(), o.ID)
	if err != nil {
		return err
	}
	rec, err := s.store.CertificateOf(r.Context(), actor(o.AccountID), star.CertificateID)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Cert-Not-Before", rec.NotBefore.UTC().Format(http.TimeFormat))
	h.Set("Cert-Not-After", rec.NotAfter.UTC().Format(http.TimeFormat))
	if shared {
		age := min(max(star.DueAt.Sub(now), 0), starAge)
		h.Set("Cache-Control", "public, max-age="+strconv.Itoa(int(age/time.Second)))
		h.Set("Expires", now.Add(age).Format(http.TimeFormat))
	}
	issuer, ok := s.ca.Issuer(rec.Issuer)
	if !ok {
		return fmt.Errorf("certificate %s: issuer %s is not configured", rec.ID, rec.Issuer)
	}
	chains := issuer.Chains()
	out := pemOf(rec.DER)
	for _, c := range chains[preferredChain(chains, s.cfg.PreferredChains[rec.Profile])] {
		out = append(out, pemOf(c.Raw)...)
	}
	h.Set("Content-Type", "application/pem-certificate-chain")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(out)
	return nil
}

// A Star is a row of certificates that began.
type Star struct {
	OrderID       string
	AccountID     string
	Begin         time.Time // of period 0
	Period        int       // of the newest certificate
	CertificateID string    // the newest
	IntentID      string    // of the one being issued
	DueAt         time.Time // when there is something to do; zero: never again
	Failures      int       // since the newest certificate
}

// A StarClaim is an attempt to issue the certificate of one period.
type StarClaim struct {
	OrderID string
	Prev    string    // the intent that the row has: "" for none
	Lease   time.Time // the caller's
	Period  int
	Now     time.Time
	Authzs  []string // which must be valid, and proven since Since
	Since   time.Time
}

// Stars keeps rows of certificates. CommitIssue begins them.
type Stars interface {
	// Star returns ErrNotFound for none.
	Star(ctx context.Context, orderID string) (Star, error)
	// OpenStars counts the rows of an account that go on, and its orders that may
	// begin one after now.
	OpenStars(ctx context.Context, accountID string, now time.Time) (int, error)
	// DueStars lists rows in which there is something to do, the oldest first.
	DueStars(ctx context.Context, now time.Time, limit int) ([]Star, error)
	// ClaimStar moves the time of a row that goes on from old to until: ErrMoved
	// says that somebody else did.
	ClaimStar(ctx context.Context, orderID string, old, until time.Time) error
	// BeginStar records the intent for a period. ErrMoved says that the lease was
	// lost, that the period has its certificate, or that the row was canceled;
	// ErrUnproven that the authorizations do not hold any more.
	BeginStar(ctx context.Context, c StarClaim, in ca.Intent) error
	// CommitStar makes the certificate the newest; ca.ErrLeaseLost says that the
	// intent is no longer that of the row.
	CommitStar(ctx context.Context, orderID string, period int, in ca.Intent, c ca.Certificate, due time.Time) error
	// AbortStar ends the intent, and puts the row off if it still is the intent's.
	AbortStar(ctx context.Context, orderID string, in ca.Intent, cause error, due time.Time) error
	// PutOffStar moves the caller's lease to due, and counts a failure.
	PutOffStar(ctx context.Context, orderID string, lease, due time.Time) error
	// CancelStar ends a row that goes on, and EndStar one that the caller holds,
	// with what its order is told: ErrMoved if it does not, or is not his.
	CancelStar(ctx context.Context, orderID string, now time.Time, e audit.Entry) error
	EndStar(ctx context.Context, orderID string, lease, now time.Time, p Problem, e audit.Entry) error
	// SweepStars deletes what ended long ago.
	SweepStars(ctx context.Context, now time.Time, limit int) (int, error)
}

// ReadAutoRenewal and WriteAutoRenewal are how the store keeps one; "" is none.
func ReadAutoRenewal(v string) (*AutoRenewal, error) {
	if v == "" {
		return nil, nil
	}
	a := new(AutoRenewal)
	if err := json.Unmarshal([]byte(v), a); err != nil {
		return nil, fmt.Errorf("decoding auto-renewal: %w", err)
	}
	return a, nil
}

// WriteAutoRenewal is the reverse of ReadAutoRenewal.
func WriteAutoRenewal(a *AutoRenewal) string {
	if a == nil {
		return ""
	}
	b, _ := json.Marshal(a) // plain values
	return string(b)
}

var errStarAccount = errors.New("its account is not valid any more")
