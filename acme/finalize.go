package acme

import (
	"context"
	"encoding/base64"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/peer"
)

// order answers POST-as-GET of an order, and cancels its renewal.
func (s *Server) order(w http.ResponseWriter, r *http.Request) error {
	c, err := s.claimByAccount(r, s.step())
	if err != nil {
		return err
	}
	req, o, err := s.ownOrder(r, c)
	if err != nil {
		return err
	}
	if len(req.payload) > 0 {
		if o, err = s.changeOrder(r, req, o); err != nil {
			return err
		}
	}
	return s.writeOrder(w, http.StatusOK, o)
}

// finalize takes the CSR of an order that is ready (RFC 8555 §7.4). Once it is
// accepted the client's leaving changes nothing: the order is processing and
// ends valid or invalid.
func (s *Server) finalize(w http.ResponseWriter, r *http.Request) error {
	c, err := s.claimByAccount(r, s.finalizing())
	if err != nil {
		return err
	}
	req, o, err := s.ownOrder(r, c)
	if err != nil {
		return err
	}
	csr, words, err := readCSR(req)
	if err != nil {
		return err
	}
	if o.Status != OrderReady {
		return s.answerFinalize(w, o, hashCSR(csr))
	}
	if err := s.mayStill(req.account, o); err != nil {
		return err
	}
	if err := s.checkCSR(r.Context(), &o, csr); err != nil {
		return err
	}
	if err := s.checkOnions(r.Context(), o, words); err != nil {
		return err
	}
	o.CSR, o.CSRHash = csr, hashCSR(csr)
	switch c, err := s.issueWithin(r.Context(), o, s.cfg.FinalizeWait); {
	case err != nil:
		return err
	case c.ID != "": // as CommitIssue has written it
		o.Status, o.CertificateID, o.Serial = OrderValid, c.ID, c.Serial
		return s.writeOrder(w, http.StatusOK, o)
	}
	return s.reportFinalized(w, r, o)
}

// reportFinalized reads what became of the order, for who won the claim and got no
// certificate yet, and for whoever lost it.
func (s *Server) reportFinalized(w http.ResponseWriter, r *http.Request, o Order) error {
	now, err := s.readOrder(r.Context(), o.ID)
	if err != nil {
		return err
	}
	return s.answerFinalize(w, now, o.CSRHash)
}

// answerFinalize says how the order stands to a client that finalizes it with
// the CSR of that hash: maybe for the second time.
func (s *Server) answerFinalize(w http.ResponseWriter, o Order, hash string) error {
	if o.sameCSR(hash) && o.Status != OrderReady {
		return s.writeOrder(w, http.StatusOK, o)
	}
	detail := "the order is " + string(o.Status) + ", not ready"
	if o.Status == OrderProcessing || o.Status == OrderValid {
		detail = "the order was finalized with another CSR"
	}
	return &Problem{Type: OrderNotReady, Detail: detail, Location: s.url("order", o.ID)}
}

// readCSR reads the CSR, and what onion services say along with it.
func readCSR(req request) ([]byte, map[string]OnionCAA, error) {
	var body struct {
		CSR      string              `json:"csr"`
		OnionCAA map[string]OnionCAA `json:"onionCAA"`
	}
	if err := req.decode(&body); err != nil {
		return nil, nil, err
	}
	// Some clients pad, against RFC 8555 §6.1; that hurts nobody.
	der, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(body.CSR, "="))
	if err != nil || len(der) == 0 {
		return nil, nil, &Problem{Type: BadCSR, Detail: "csr is not the base64url of a DER PKCS#10 request"}
	}
	return der, body.OnionCAA, nil
}

// checkCSR leaves the order ready: the client may come again with a better one. It
// notes in o whether it is a renewal.
func (s *Server) checkCSR(ctx context.Context, o *Order, csr []byte) error {
	pub, err := s.ca.CheckCSR(ctx, o.Profile, csr, o.Identifiers)
	if err != nil {
		return inCSR(err)
	}
	if err := checkOnionKey(*o, pub); err != nil {
		return err
	}
	if err := s.checkAttestedKey(ctx, *o, pub); err != nil {
		return err
	}
	// RFC 8555 §11.1: the key of an account, this one's or another's, is not
	// for certificates.
	t, err := thumbprint(&jose.JSONWebKey{Key: pub})
	if err != nil {
		return &Problem{Type: BadCSR, Detail: "the CSR's key is of a kind not known here", Err: err}
	}
	facts, err := s.store.Facts(ctx, FactsQuery{Thumbprint: t, Requester: actor(o.AccountID), Names: o.Identifiers, Now: s.now()})
	if err != nil {
		return err
	}
	if facts.AccountKey {
		return &Problem{Type: BadCSR, Detail: "the CSR's key is the key of an account; make a new one (RFC 8555 §11.1)"}
	}
	o.Renewal = o.Renewal || facts.Held
	return nil
}

// inCSR names the fault of a key by what brought it (RFC 8555 §7.4).
func inCSR(err error) error {
	if r, ok := errors.AsType[*ca.Refusal](err); ok && r.Code == ca.BadPublicKey {
		return &Problem{Type: BadCSR, Detail: r.Detail, Err: r.Err}
	}
	return err
}

// issueWithin issues the order and waits for at most d. What is not done by
// then is parked: the order is durably processing, whoever works on it, and there is
// no certificate. The error is a refusal of an order that stays ready.
func (s *Server) issueWithin(ctx context.Context, o Order, d time.Duration) (ca.Certificate, error) {
	at, err := s.backlog.enter(o)
	if err != nil {
		s.metrics.order("turned_away")
		return ca.Certificate{}, err
	}
	defer at.leave()
	parked := func(due time.Time) (ca.Certificate, error) { return ca.Certificate{}, s.park(ctx, o, at, due) }
	// CAA records are asked for anew beside the request, as all that waits for
	// strangers' servers.
	if known, err := s.caaKnown(ctx, &o); err != nil {
		return ca.Certificate{}, err
	} else if !known {
		return parked(s.now())
	}
	wait, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	done, err := s.issueInTurn(wait, o, at)
	if err != nil {
		if ctx.Err() != nil {
			return ca.Certificate{}, ctx.Err() // nobody waits for an answer, and none was promised
		}
		return parked(s.now())
	}
	select {
	case got := <-done:
		return got.certificate, s.afterIssue(ctx, o, at, got.err)
	case <-wait.Done():
		if ctx.Err() != nil {
			return ca.Certificate{}, ctx.Err()
		}
		// Not before the try that goes on has ended.
		return parked(s.now().Add(s.cfg.IssueTimeout))
	}
}

var errClosing = errors.New("the server is shutting down")

// issued is what came of an attempt.
type issued struct {
	certificate ca.Certificate
	err         error
}

// issueInTurn waits for a seat and starts to issue. Run waits for what was
// started, and nothing starts after that.
func (s *Server) issueInTurn(wait context.Context, o Order, at *place) (<-chan issued, error) {
	release, err := s.seat(wait, o)
	if err != nil {
		return nil, err
	}
	if !s.underway.begin() {
		release()
		return nil, errClosing
	}
	done := make(chan issued, 1)
	go func() {
		defer s.underway.end()
		defer release()
		c, err := s.issue(context.WithoutCancel(wait), o, at)
		done <- issued{c, err}
	}()
	return done, nil
}

// afterIssue decides what an attempt for a waiting client means.
func (s *Server) afterIssue(ctx context.Context, o Order, at *place, err error) error {
	switch {
	case err == nil, isMoved(err), isUnproven(err), errors.Is(err, errBegun):
		return nil // the order itself says how it stands
	case retryable(err):
		// Nothing was claimed. The client did all it can: the order is
		// accepted, and issued when it can be.
		s.log.Log(ctx, levelOf(err), "issuance put off", slog.String("order", o.ID), slog.Any("error", err))
		return s.park(ctx, o, at, s.now().Add(backoff(0, err)))
	}
	return inCSR(err)
}

func (s *Server) park(ctx context.Context, o Order, at *place, due time.Time) error {
	err := s.store.Park(context.WithoutCancel(ctx), s.claim(o, due))
	switch {
	case isMoved(err):
		return nil
	case err != nil:
		return err
	}
	at.durable()
	s.metrics.order("parked")
	hint(s.dueOrders)
	return nil
}

func (s *Server) claim(o Order, due time.Time) Claim {
	now := s.now()
	return Claim{
		OrderID: o.ID, Prev: o.IntentID, CSR: o.CSR, CSRHash: o.CSRHash, Renewal: o.Renewal, Now: now, DueAt: due,
		Authzs: o.AuthzIDs, Since: s.provenSince(now), Unproven: s.unproven(now),
	}
}

// errBegun marks the error of an issuance that was claimed: the ledger has
// written, or the recovery will write, what becomes of the order.
var errBegun = errors.New("issuance was begun")

// issue makes one attempt, in a time of its own. A panic ends the attempt, not
// the process: the recovery finds the order.
func (s *Server) issue(ctx context.Context, o Order, at *place) (c ca.Certificate, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.IssueTimeout)
	defer cancel()
	ctx = peer.WithIdentity(ctx, actor(o.AccountID)) // whose turn it is at the device, too
	led := &ledger{s: s, order: o, at: at}
	defer func() {
		if v := recover(); v != nil {
			s.log.ErrorContext(ctx, "panic in issuance", slog.String("order", o.ID), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			if err = errPanic; led.begun {
				err = errors.Join(errBegun, err)
			}
		}
	}()
	if err := s.caaHolds(o); err != nil {
		return c, err
	}
	notBefore, notAfter := o.NotBefore, o.NotAfter
	if o.AutoRenewal != nil {
		notBefore, notAfter = o.AutoRenewal.first(s.now())
	}
	c, err = s.ca.Issue(ctx, ca.Request{
		Profile: o.Profile, CSR: o.CSR, Identifiers: o.Identifiers, NotBefore: notBefore, NotAfter: notAfter,
		Requester: requester(ctx, actor(o.AccountID)), Renewal: o.Renewal,
	}, led)
	s.noteIssuance(ctx, err)
	if err == nil {
		s.metrics.order("valid")
		return c, nil
	}
	if led.begun {
		if !busy(err) {
			s.log.ErrorContext(ctx, "issuance failed after it was begun", slog.String("order", o.ID), slog.Any("error", err))
		}
		err = errors.Join(errBegun, err)
	}
	return ca.Certificate{}, err
}

// A ledger ties one issuance to its order. One goroutine uses it.
type ledger struct {
	s     *Server
	order Order
	at    *place
	begun bool
}

func (l *ledger) Begin(ctx context.Context, in ca.Intent) error {
	if err := l.s.store.BeginIssue(ctx, l.s.claim(l.order, in.LeaseUntil), in); err != nil {
		if isUnproven(err) {
			l.s.noteUnproven(l.order)
		}
		return err
	}
	l.begun = true
	l.at.durable()
	return nil
}

func (l *ledger) Commit(ctx context.Context, in ca.Intent, c ca.Certificate) error {
	if err := l.s.store.CommitIssue(ctx, l.order.ID, in, c, l.s.now().Add(l.s.cfg.Retention)); err != nil {
		return err
	}
	l.s.backlog.done(l.order.AccountID)
	if l.order.Replaces != "" {
		l.s.metrics.replacements.Inc()
	}
	return nil
}

func (l *ledger) Abort(ctx context.Context, in ca.Intent, cause error) error {
	v := l.s.verdict(l.order, cause)
	if err := l.s.store.AbortIssue(ctx, l.order.ID, in, cause, v); err != nil {
		return err
	}
	l.s.countVerdict(l.order, v)
	return nil
}

// verdict says what becomes of an order whose attempt failed. A device that is
// busy or hangs never ends it; other faults of ours end it after some tries
// under new serials; a refusal ends it at once.
func (s *Server) verdict(o Order, cause error) Verdict {
	now := s.now()
	v := Verdict{DueAt: now.Add(backoff(o.Attempts, cause)), PurgeAt: now.Add(s.cfg.Retention), Counts: !passing(cause)}
	switch {
	case passing(cause):
	case !retryable(cause):
		v.Failed = translate(inCSR(cause))
	case o.Attempts+1 >= s.cfg.MaxIssueAttempts:
		return s.hopeless(now)
	}
	if v.Failed != nil {
		v.Failed.Status = v.Failed.status()
	}
	return v
}

// hopeless ends an order for a fault of ours.
func (s *Server) hopeless(now time.Time) Verdict {
	p := &Problem{Type: ServerInternal, Detail: "the certificate could not be issued; order again"}
	p.Status = p.status()
	return Verdict{Failed: p, PurgeAt: now.Add(s.cfg.Retention), Counts: true}
}

// countVerdict notes what became of an order that was processing.
func (s *Server) countVerdict(o Order, v Verdict) {
	if v.Failed != nil {
		s.backlog.done(o.AccountID)
		s.metrics.order("invalid")
		return
	}
	s.metrics.order("retried")
}

// noteUnproven notes the end of an order at its claim.
func (s *Server) noteUnproven(o Order) {
	if o.Status == OrderProcessing {
		s.backlog.done(o.AccountID)
	}
	s.metrics.order("invalid")
}

// busy says that nothing is wrong but the time.
func busy(err error) bool {
	r, ok := errors.AsType[*ca.Refusal](err)
	return ok && r.Code == ca.Busy || ca.NeverSigned(err)
}

// passing says that the device is at fault, and the order does not matter to it.
func passing(err error) bool { return busy(err) || ca.Hung(err) }

// retryable says that the same request may succeed later.
func retryable(err error) bool {
	_, refusal := errors.AsType[*ca.Refusal](err)
	return busy(err) || !refusal
}

// maxBackoff bounds the pause after the device was busy or hung: it is to be
// noticed soon that it is back.
const maxBackoff = 30 * time.Second

// backoff doubles from two seconds to about two minutes; the authority's or the
// device's own wish wins. Each try on which the device hangs costs a serial.
func backoff(attempts int, err error) time.Duration {
	if r, ok := errors.AsType[*ca.Refusal](err); ok && r.RetryAfter > 0 {
		return min(r.RetryAfter, maxBackoff)
	}
	if ca.NeverSigned(err) {
		return min(ca.RetryAfter(err), maxBackoff)
	}
	if ca.Hung(err) {
		return maxBackoff
	}
	return 2 * time.Second << min(attempts, 6)
}

// resume issues an order that was parked, or whose attempt ended with its
// process. The caller has claimed it and holds a slot.
func (s *Server) resume(ctx context.Context, o Order) {
	err := s.resumeOnce(ctx, o)
	s.learn(err)
	if err == nil || isMoved(err) || isUnproven(err) || errors.Is(err, errBegun) {
		return
	}
	v := s.verdict(o, err)
	s.log.Log(ctx, levelOf(err), "issuance of a waiting order failed", slog.String("order", o.ID), slog.Bool("final", v.Failed != nil), slog.Any("error", err))
	if err := s.settle(ctx, o, v); err != nil && !isMoved(err) {
		s.log.ErrorContext(ctx, "settling order", slog.String("order", o.ID), slog.Any("error", err))
	}
}

// learn paces the background by what came of an attempt.
func (s *Server) learn(err error) {
	switch {
	case err == nil:
		s.lull.served()
	case passing(err):
		s.lull.refused(s.now(), backoff(0, err))
	}
}

func (s *Server) resumeOnce(ctx context.Context, o Order) error {
	if now := s.now(); !now.Before(o.Expires) {
		p := OrderExpired()
		return s.settle(ctx, o, Verdict{Failed: &p, PurgeAt: now.Add(s.cfg.Retention)})
	}
	if o.Deaths >= maxDeaths {
		return s.settle(ctx, o, s.hopeless(s.now()))
	}
	// What an account finalized before it left is issued; not so if it was made to leave.
	switch a, err := s.store.Account(ctx, o.AccountID); {
	case err != nil:
		return err
	case a.Status == AccountRevoked:
		closed := ClosedByOperator(s.now())
		return s.settle(ctx, o, Verdict{Failed: &closed.Error, PurgeAt: closed.PurgeAt})
	}
	_, err := s.issue(ctx, o, nil)
	return err
}

var errPanic = errors.New("issuance panicked")

// maxDeaths is how many attempts of an order may end with their process. That is
// hardly ever the order's fault, so it has far more of them than of attempts
// that fail; but an order that kills whoever issues it must end some day.
const maxDeaths = 30

func (s *Server) settle(ctx context.Context, o Order, v Verdict) error {
	var e *audit.Entry
	if v.Failed != nil {
		x := audit.New("system", "order.failed", "order/"+o.ID, map[string]string{
			"account": o.AccountID, "type": string(v.Failed.Type), "detail": v.Failed.Detail,
		})
		e = &x
	}
	if err := s.store.Settle(ctx, o.ID, o.IntentID, v, e); err != nil {
		return err
	}
	s.countVerdict(o, v)
	return nil
}
