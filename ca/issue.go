package ca

import (
	"bytes"
	"context"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca/weakkey"
	"github.com/secsy-pki/secsy-pki/keys"
)

const (
	// serialDraws is how often a serial is drawn before giving up: with 128
	// random bits even a second time means that something else is wrong.
	serialDraws = 3
	// commitTries bounds how often recording a signed certificate is tried.
	commitTries = 6
	commitPause = 100 * time.Millisecond // doubled each time
	abortBudget = 10 * time.Second
	// busyRetry is when to come back to a busy device that doesn't say.
	busyRetry = 5 * time.Second
	// clockSkew is how far this machine's clock may lie before the birth of an
	// issuer before it must be wrong.
	clockSkew = 5 * time.Minute
)

// Issue makes one certificate: it decides whether req may be had, lints what
// would be signed, records that, has exactly that signed, and records the
// certificate.
//
// A *Refusal is for the requester. ErrLeaseLost means that recovery gave the
// issuance up meanwhile; the certificate, if there is one, is revoked. From
// led.Begin's success on, ctx ending changes nothing.
func (a *Authority) Issue(ctx context.Context, req Request, led Ledger) (Certificate, error) {
	c, err := a.issue(ctx, req, led)
	a.count(req.Profile, err)
	return c, err
}

func (a *Authority) issue(ctx context.Context, req Request, led Ledger) (Certificate, error) {
	o, err := a.authorize(ctx, req)
	if err != nil {
		return Certificate{}, err
	}
	// While the device is away an attempt costs neither a serial nor a line.
	if err := o.issuer.ready(); err != nil {
		return Certificate{}, err
	}
	in, d, err := a.begin(ctx, o, led)
	if err != nil {
		return Certificate{}, err
	}
	// The intent is durable: the requester's hanging up must not leave it half done.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.lease)
	defer cancel()
	der, err := a.sign(keys.WithPurpose(ctx, o.purpose), o.issuer, d)
	if err != nil {
		return Certificate{}, a.abort(ctx, led, in, err)
	}
	c := in.certificate(der)
	if err := a.commit(ctx, led, in, c); err != nil {
		return Certificate{}, err
	}
	return c, nil
}

func (in Intent) certificate(der []byte) Certificate {
	return Certificate{ID: in.ID, Serial: in.Serial, Issuer: in.Issuer, Profile: in.Profile, DER: der, NotBefore: in.NotBefore, NotAfter: in.NotAfter}
}

// authorize decides whether req may be had, and from whom.
func (a *Authority) authorize(ctx context.Context, req Request) (*order, error) {
	p, err := a.profile(req.Profile)
	if err != nil {
		return nil, err
	}
	names := NormalizeIdentifiers(req.Identifiers)
	if err := a.checkNames(p, names); err != nil {
		return nil, err
	}
	o := &order{profile: p, names: names, requester: req.Requester, purpose: purposeOf(p, req)}
	if o.pub, err = a.requestedKey(ctx, p, req, names); err != nil {
		return nil, err
	}
	if o.spki, err = weakkey.SPKIHash(o.pub); err != nil {
		return nil, err
	}
	if o.issuer, err = a.pickIssuer(p, req.Issuer); err != nil {
		return nil, err
	}
	o.notBefore, o.notAfter, err = a.validity(p, o.issuer, req.NotBefore, req.NotAfter)
	return o, err
}

// purposeOf decides what goes first at a busy device. Without its responder an
// issuer has no status, without the https certificate of this very server nobody
// reaches it, and without its registration authority no device.
func purposeOf(p *Profile, req Request) keys.Purpose {
	switch {
	case p.kind == kindResponder:
		return keys.ForStatus
	case p.Name == ProfileSelf || p.kind == kindRegistration || req.Renewal:
		return keys.ForRenewal
	default:
		return keys.ForIssuance
	}
}

func (a *Authority) requestedKey(ctx context.Context, p *Profile, req Request, names []Identifier) (crypto.PublicKey, error) {
	switch {
	case req.CSR != nil:
		return a.CheckCSR(ctx, p.Name, req.CSR, names)
	case req.PublicKey != nil:
		return req.PublicKey, a.checkKey(ctx, p, req.PublicKey)
	}
	return nil, &Refusal{Code: BadCSR, Detail: "a CSR is needed"}
}

// pickIssuer takes the one asked for, or the active ones of the profile in turn,
// of which those whose device is away are passed over if there are others.
// Responder certificates are made for inactive issuers too: their status must
// be signed for as long as their certificates live.
func (a *Authority) pickIssuer(p *Profile, want IssuerID) (*issuer, error) {
	var fit []*issuer
	for _, i := range a.issuers {
		active := i.Active || p.kind == kindResponder
		allowed := len(p.Issuers) == 0 || slices.Contains(p.Issuers, i.Name)
		if active && allowed && (want == "" || i.ID == want) && i.validAt(a.now()) {
			fit = append(fit, i)
		}
	}
	if len(fit) == 0 {
		return nil, fmt.Errorf("profile %q: no issuer is active and valid (asked for %q)", p.Name, want)
	}
	if p.isOurs() && want == "" && len(fit) > 1 {
		return nil, fmt.Errorf("profile %q: of which issuer it is must be said", p.Name)
	}
	turn := int(a.turn.Add(1) % uint64(len(fit)))
	for n := range fit {
		if i := fit[(turn+n)%len(fit)]; i.ready() == nil {
			return i, nil
		}
	}
	return fit[turn], nil
}

// ready says whether the issuer's device can be asked at the moment, from what
// is known of it.
func (i *issuer) ready() error {
	err := keys.Ready(i.Key)
	switch {
	case err == nil:
		return nil
	case NeverSigned(err):
		return refusalOfBusy(err)
	}
	return fmt.Errorf("issuer %q: %w", i.Name, err)
}

func refusalOfBusy(cause error) *Refusal {
	return &Refusal{Code: Busy, Detail: "the signing device is busy", RetryAfter: RetryAfter(cause), Err: cause}
}

// Ready says whether a certificate of the profile could be signed at the moment,
// from what is known of the devices. If not, the error is what Issue would say.
func (a *Authority) Ready(profile string) error {
	p, err := a.profile(profile)
	if err != nil {
		return err
	}
	i, err := a.pickIssuer(p, "")
	if err != nil {
		return err
	}
	return i.ready()
}

func (i *issuer) validAt(now time.Time) bool {
	return i.Cert.NotAfter.After(now) && i.Cert.NotBefore.Before(now.Add(clockSkew))
}

// CheckValidity says whether a certificate of the profile may be asked for with
// these dates, zero ones being the profile's choice. The error is a *Refusal.
func (a *Authority) CheckValidity(profile string, notBefore, notAfter time.Time) error {
	p, err := a.profile(profile)
	if err != nil {
		return err
	}
	i, err := a.pickIssuer(p, "")
	if err != nil {
		return err
	}
	_, _, err = a.validity(p, i, notBefore, notAfter)
	return err
}

// UsualLifetime is that of a certificate for which no dates were asked for, 0 if
// there is no such profile.
func (a *Authority) UsualLifetime(profile string) time.Duration {
	p, err := a.profile(profile)
	if err != nil {
		return 0
	}
	return a.allowedAge(p, a.now())
}

// validity computes both ends, to the second. notAfter is the last second of
// the period, not the first after it (RFC 5280 §4.1.2.5).
func (a *Authority) validity(p *Profile, i *issuer, wantBefore, wantAfter time.Time) (notBefore, notAfter time.Time, err error) {
	bad := func(format string, args ...any) (time.Time, time.Time, error) {
		return time.Time{}, time.Time{}, &Refusal{Code: BadValidity, Detail: fmt.Sprintf(format, args...)}
	}
	if (!wantBefore.IsZero() || !wantAfter.IsZero()) && !p.RequestedDates {
		return bad("the profile sets notBefore and notAfter itself")
	}
	now := a.now().UTC().Truncate(time.Second)
	notBefore = now.Add(-p.Backdate)
	if !wantBefore.IsZero() {
		notBefore = wantBefore.UTC().Truncate(time.Second)
		if earliest := now.Add(-max(p.Backdate, time.Minute)); notBefore.Before(earliest) || notBefore.After(now.Add(maxAhead)) {
			return bad("notBefore must be from %s to %s", earliest.Format(time.RFC3339), now.Add(maxAhead).Format(time.RFC3339))
		}
	}
	if first := i.Cert.NotBefore.UTC(); notBefore.Before(first) {
		notBefore = first // a new issuer's certificates begin with it
	}
	latest := notBefore.Add(a.allowedAge(p, later(now, notBefore)) - time.Second)
	if end := i.Cert.NotAfter.UTC(); latest.After(end) {
		latest = end
	}
	notAfter = latest
	if !wantAfter.IsZero() {
		notAfter = wantAfter.UTC().Truncate(time.Second)
	}
	if notAfter.After(latest) || !notAfter.After(notBefore) || !notAfter.After(now) {
		return bad("notAfter must be after notBefore and now, and not after %s", latest.Format(time.RFC3339))
	}
	return notBefore, notAfter, nil
}

// allowedAge is the profile's validity, or less when a rule has come into
// force since start.
func (a *Authority) allowedAge(p *Profile, t time.Time) time.Duration {
	most := a.policy.MaxValidity(t)
	if p.Validity <= most {
		return p.Validity
	}
	a.mu.Lock()
	said := a.saidClamp[p.Name]
	a.saidClamp[p.Name] = true
	a.mu.Unlock()
	if !said {
		a.log.Warn("validity of a profile is cut to what the policy allows now",
			slog.String("profile", p.Name), slog.Duration("validity", p.Validity), slog.Duration("allowed", most))
	}
	return most
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// begin drafts and lints until the ledger has recorded an intent.
func (a *Authority) begin(ctx context.Context, o *order, led Ledger) (Intent, draft, error) {
	for draw := 1; ; draw++ {
		in, d, err := a.prepare(ctx, o)
		if err != nil {
			return Intent{}, draft{}, err
		}
		err = led.Begin(ctx, in)
		if err == nil {
			return in, d, nil
		}
		if !errors.Is(err, ErrSerialTaken) || draw == serialDraws {
			return Intent{}, draft{}, fmt.Errorf("recording intent: %w", err)
		}
		a.log.ErrorContext(ctx, "a serial was drawn twice: check the random source, and that no two replicas share a shard",
			slog.String("serial", string(in.Serial)))
	}
}

// prepare makes the intent of o under a fresh serial, linted.
func (a *Authority) prepare(ctx context.Context, o *order) (Intent, draft, error) {
	serial := newSerial(a.shard)
	var list CRLShard // none, if the certificate says nothing of a CRL
	if !o.profile.OmitCRL {
		var err error
		if list, err = o.issuer.crl(serial); err != nil {
			return Intent{}, draft{}, err
		}
	}
	template, err := o.template(serial, list, a.policy)
	if err != nil {
		return Intent{}, draft{}, err
	}
	d, err := o.issuer.drafter.endEntity(template, o.pub)
	if err != nil {
		return Intent{}, draft{}, err
	}
	kind := LintServer
	if o.profile.kind == kindResponder {
		kind = LintResponder
	}
	began := time.Now()
	err = lint(ctx, a.linter, Draft{DER: d.der, Issuer: o.issuer.Cert, Kind: kind, SPKIHash: o.spki})
	a.metrics.lintSeconds.Observe(time.Since(began).Seconds())
	if err != nil {
		return Intent{}, draft{}, fmt.Errorf("profile %q: %w", o.profile.Name, err)
	}
	now := a.now()
	return Intent{
		ID: audit.NewID(), Serial: serial, Issuer: o.issuer.ID, Profile: o.profile.Name, TBS: d.tbs, SPKIHash: o.spki, Names: o.names,
		NotBefore: o.notBefore, NotAfter: o.notAfter, Requester: o.requester, CRLShard: list.ID, CreatedAt: now, LeaseUntil: now.Add(a.lease),
	}, d, nil
}

func lint(ctx context.Context, l Linter, d Draft) error {
	found, err := l.Lint(ctx, d)
	if err != nil {
		return fmt.Errorf("linting: %w", err)
	}
	if len(found) > 0 {
		return &LintError{Findings: found}
	}
	return nil
}

// sign has the issuer's key sign the bytes that were linted.
func (a *Authority) sign(ctx context.Context, i *issuer, d draft) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, a.signTimeout)
	defer cancel()
	began := time.Now()
	der, err := signTBS(keys.Once(ctx), i.Key, d)
	a.metrics.signSeconds.Observe(time.Since(began).Seconds())
	return der, err
}

// abort records that in came to nothing, and returns what the requester is
// told. If that can't be recorded, recovery finds the intent after its lease.
func (a *Authority) abort(ctx context.Context, led Ledger, in Intent, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortBudget)
	defer cancel()
	if err := led.Abort(ctx, in, cause); err != nil {
		a.log.ErrorContext(ctx, "recording the end of an issuance", slog.String("serial", string(in.Serial)), slog.Any("error", err))
	}
	if NeverSigned(cause) {
		return refusalOfBusy(cause)
	}
	a.metrics.abandoned.Inc()
	a.tellRevoked(Revoked{Issuer: in.Issuer, Serial: in.Serial, Reason: AbandonedReason, At: a.now()})
	return fmt.Errorf("certificate %s: %w", in.Serial, cause)
}

// RetryAfter is when to come back to a device that cause calls busy.
func RetryAfter(cause error) time.Duration {
	if busy, ok := errors.AsType[*keys.BusyError](cause); ok && busy.RetryAfter > 0 {
		return busy.RetryAfter
	}
	return busyRetry
}

// commit records a signed certificate. A hiccup of the database must not lose
// it, so it tries again; when that does not help either, the intent stays
// pending and recovery abandons it after its lease.
func (a *Authority) commit(ctx context.Context, led Ledger, in Intent, c Certificate) error {
	pause := commitPause
	for try := 1; ; try++ {
		err := led.Commit(ctx, in, c)
		if err == nil || a.recorded(ctx, c) {
			return nil
		}
		err = fmt.Errorf("recording certificate %s: %w", c.Serial, err)
		if errors.Is(err, ErrLeaseLost) || try == commitTries {
			return err
		}
		a.log.WarnContext(ctx, "recording a signed certificate is tried again", slog.String("serial", string(c.Serial)), slog.Any("error", err))
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
			pause *= 2
		}
	}
}

// recorded looks whether a Commit that returned an error happened all the same,
// as when the connection broke after it.
func (a *Authority) recorded(ctx context.Context, c Certificate) bool {
	r, err := a.store.Record(ctx, c.Serial)
	return err == nil && r.State == Issued && bytes.Equal(r.DER, c.DER)
}

func (a *Authority) count(profile string, err error) {
	p, perr := a.profile(profile)
	if perr != nil {
		return // a stranger's word is no label
	}
	a.metrics.issuances.WithLabelValues(p.Name, resultOf(err)).Inc()
}

func resultOf(err error) string {
	if err == nil {
		return resultIssued
	}
	if r, ok := errors.AsType[*Refusal](err); ok {
		if r.Code == Busy {
			return resultBusy
		}
		return resultRefused
	}
	if _, ok := errors.AsType[*LintError](err); ok {
		return resultLint
	}
	return resultFailed
}
