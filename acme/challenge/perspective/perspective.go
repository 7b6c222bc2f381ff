// Package perspective has what an account proved to us proven again as it is
// seen from other places of the Internet, so that who misleads one network does
// not get a certificate (Baseline Requirements §3.2.2.9, multi-perspective
// issuance corroboration). It is both sides: the Corroborator of the server that
// issues, and the Server of each remote perspective.
package perspective

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

// Config is what a Corroborator is made of.
type Config struct {
	Remotes []*Remote // each with a name of its own; at most 32
	Rule    Rule

	Validator acme.Validator  // what we see ourselves
	CAA       acme.CAAChecker // likewise

	Timeout time.Duration // for each remote; 20 s
	Grace   time.Duration // for the rest, once their answers change nothing any more; 2 s

	Logger     *slog.Logger          // nil: silent
	Registerer prometheus.Registerer // nil: no metrics
	Clock      func() time.Time      // default time.Now
}

const maxRemotes = 32

// A Corroborator is an acme.Validator and an acme.CAAChecker that looks itself,
// and if all is well has the remotes look, too. It keeps nothing of an answer.
//
// We look first and alone: most of what fails fails here, and what a stranger
// asks for should not cost every perspective a look before it cost us one. Then
// all remotes look at once, so that a validation takes two looks' time and not
// as many as there are perspectives. Nobody waits for it: it goes on beside
// requests.
type Corroborator struct {
	cfg     Config
	regions []Region
	down    []atomic.Bool // remotes that gave no answer last time
	stopped atomic.Bool   // the rule wants more remotes than there are
	metrics *metrics
	log     *slog.Logger
}

var (
	_ acme.Validator  = (*Corroborator)(nil)
	_ acme.CAAChecker = (*Corroborator)(nil)
)

// New makes a Corroborator. Remotes that are not enough are an error that says
// how many would be.
func New(c Config) (*Corroborator, error) {
	if c.Validator == nil {
		return nil, errors.New("perspective: it needs a validator")
	}
	if len(c.Remotes) > maxRemotes {
		return nil, fmt.Errorf("%d remote perspectives: %d at most", len(c.Remotes), maxRemotes)
	}
	c.setDefaults()
	names, in := map[string]bool{}, make([]Region, 0, len(c.Remotes))
	for _, r := range c.Remotes {
		if names[r.name] {
			return nil, fmt.Errorf("the name %s is given twice", r.name)
		}
		names[r.name] = true
		in = append(in, r.region)
	}
	if err := c.Rule.Check(c.Clock(), in); err != nil {
		return nil, err
	}
	out := &Corroborator{cfg: c, regions: in, down: make([]atomic.Bool, len(c.Remotes)), log: c.Logger}
	var err error
	out.metrics, err = newMetrics(c.Registerer, out)
	return out, err
}

func (c *Config) setDefaults() {
	if c.Timeout <= 0 {
		c.Timeout = 20 * time.Second
	}
	if c.Grace <= 0 {
		c.Grace = 2 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
}

// Close lets go of connections that are not in use.
func (c *Corroborator) Close() {
	for _, r := range c.cfg.Remotes {
		r.Close()
	}
}

// Validate implements acme.Validator.
func (c *Corroborator) Validate(ctx context.Context, v acme.Validation) (acme.ValidationRecord, *acme.Problem) {
	if v.Type == acme.OnionCSR01 {
		// What an onion service signs is the same wherever one stands.
		return c.cfg.Validator.Validate(ctx, v)
	}
	if p := c.enough(ctx); p != nil {
		return acme.ValidationRecord{Type: v.Type, Name: v.Identifier.Value, At: c.cfg.Clock()}, p
	}
	rec, p := c.cfg.Validator.Validate(ctx, v)
	if p != nil {
		return rec, p
	}
	begin := time.Now()
	sum := c.corroborate(ctx, question{kind: kindValidation, name: v.Identifier.Value, ask: askValidation(v)})
	rec.Perspectives, rec.Corroborated, rec.Took = sum.records, sum.quorum(), rec.Took+time.Since(begin)
	return rec, sum.problem
}

// CheckCAA implements acme.CAAChecker.
func (c *Corroborator) CheckCAA(ctx context.Context, q acme.CAAQuery) (acme.CAARecord, *acme.Problem) {
	rec := acme.CAARecord{Name: q.Name, At: c.cfg.Clock()}
	if c.cfg.CAA != nil && ca.IsOnion(q.Name) {
		return c.cfg.CAA.CheckCAA(ctx, q)
	}
	if p := c.enough(ctx); p != nil {
		return rec, p
	}
	if c.cfg.CAA == nil {
		return rec, ours(errors.New("nobody looks at CAA records here"), "CAA records can't be looked at")
	}
	rec, p := c.cfg.CAA.CheckCAA(ctx, q)
	if p != nil {
		return rec, p
	}
	begin := time.Now()
	sum := c.corroborate(ctx, question{kind: kindCAA, name: q.Name, ask: askCAA(q)})
	rec.Perspectives, rec.Corroborated, rec.Took = sum.records, sum.quorum(), rec.Took+time.Since(begin)
	return rec, sum.problem
}

// enough stops everything from the date on that wants more remotes than there
// are: a certificate less is better than one against the rules.
func (c *Corroborator) enough(ctx context.Context) *acme.Problem {
	err := c.cfg.Rule.Check(c.cfg.Clock(), c.regions)
	if was := c.stopped.Swap(err != nil); err == nil {
		return nil
	} else if !was {
		c.log.ErrorContext(ctx, "validation has stopped: there are too few remote perspectives", "error", err)
	}
	return ours(err, "this server may not validate at present; its operator has been told")
}

func ours(err error, detail string) *acme.Problem {
	return &acme.Problem{Type: acme.ServerInternal, Status: http.StatusInternalServerError, Detail: detail, Err: err}
}

// Kinds of questions, as labels.
const (
	kindValidation = "validation"
	kindCAA        = "caa"
)

type question struct {
	kind, name string
	ask        ask
}

// A report is what one remote came back with.
type report struct {
	remote int
	answer answer
	err    error // there is no answer
	took   time.Duration
}

func (r report) agrees() bool { return r.err == nil && r.answer.OK }

// corroborate asks all remotes at once and waits for them, but not for long for
// those that no longer matter.
func (c *Corroborator) corroborate(ctx context.Context, q question) summary {
	q.ask.ID = newID()
	d := c.cfg.Rule.demand(c.cfg.Clock(), len(c.cfg.Remotes))
	asking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	answers := make(chan report, len(c.cfg.Remotes))
	for i := range c.cfg.Remotes {
		go func() { answers <- c.askOne(asking, i, q.ask) }()
	}
	all := make([]report, len(c.cfg.Remotes))
	open := map[int]bool{}
	for i := range all {
		open[i] = true
	}
	var grace <-chan time.Time
	for len(open) > 0 {
		if grace == nil && d.judge(c.standing(all, open)) != undecided {
			t := time.NewTimer(c.cfg.Grace)
			defer t.Stop()
			grace = t.C
		}
		select {
		case r := <-answers:
			all[r.remote] = r
			delete(open, r.remote)
		case <-grace:
			cancel(errLate)
		}
	}
	sum := c.sumUp(q, d, all)
	c.tell(ctx, q, all, sum)
	return sum
}

func (c *Corroborator) askOne(ctx context.Context, i int, a ask) report {
	begin := time.Now()
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	left := c.cfg.Timeout
	if at, ok := ctx.Deadline(); ok {
		left = min(left, time.Until(at))
	}
	// A remote that ends a little earlier can still say why.
	a.TimeoutMS = min(max(1, (left*9/10).Milliseconds()), maxWait.Milliseconds())
	got, err := c.cfg.Remotes[i].ask(ctx, a)
	return report{remote: i, answer: got, err: err, took: time.Since(begin)}
}

func (c *Corroborator) standing(all []report, open map[int]bool) standing {
	var s standing
	for i, r := range all {
		switch {
		case open[i]:
			s.open = append(s.open, c.regions[i])
		case r.agrees():
			s.agreed = append(s.agreed, c.regions[i])
		}
	}
	return s
}

// A summary is what all reports come to.
type summary struct {
	agreed  int
	records []acme.PerspectiveRecord
	problem *acme.Problem // nil: corroborated
}

// quorum is the result as Baseline Requirements §5.4.1 want it kept.
func (s summary) quorum() string { return fmt.Sprintf("%d/%d", s.agreed, len(s.records)) }

func (c *Corroborator) sumUp(q question, d demand, all []report) summary {
	var sum summary
	for _, r := range all {
		remote := c.cfg.Remotes[r.remote]
		rec := acme.PerspectiveRecord{Name: remote.name, Region: string(remote.region), OK: r.agrees(), Took: r.took}
		switch {
		case r.err != nil:
			rec.Problem = plain(r.err.Error(), maxDetail)
		default:
			rec.Addrs = r.answer.Addrs
			if o := r.answer.Problem; o != nil {
				rec.Problem = string(o.Type) + ": " + plain(o.Detail, maxDetail)
			}
		}
		if rec.OK {
			sum.agreed++
		}
		sum.records = append(sum.records, rec)
	}
	if d.judge(c.standing(all, nil)) != corroborated {
		sum.problem = c.problem(q, d, all)
	}
	return sum
}

// problem is what the client hears: how many, in which regions, and of the
// reason that most have the first one's words.
func (c *Corroborator) problem(q question, d demand, all []report) *acme.Problem {
	var against []Region
	counts := map[acme.ProblemType]int{}
	var reason *objection
	for _, r := range all {
		if r.agrees() {
			continue
		}
		against = append(against, c.regions[r.remote])
		o := r.answer.Problem
		if r.err != nil || o.Type == acme.ServerInternal {
			continue // its own trouble, and nothing about the name
		}
		counts[o.Type]++
		if reason == nil || counts[o.Type] > counts[reason.Type] {
			reason = o
		}
	}
	reason = firstOf(reason, all)
	did := "did not see it"
	if q.kind == kindCAA {
		did = "did not find it allowed"
	}
	head := fmt.Sprintf("%d of %d remote perspectives %s (%s)", len(against), len(all), did, names(against))
	if len(against) <= len(all)-d.agree {
		head += ", and those that did are all in one region"
	}
	p := &acme.Problem{Err: fmt.Errorf("%w, id %s", acme.ErrContested, q.ask.ID)}
	if reason == nil {
		p.Type, p.Status = acme.ServerInternal, http.StatusInternalServerError
		p.Detail = head + ": they could not look; try again later"
		return p
	}
	p.Type, p.Detail = reason.Type, head+": "+plain(reason.Detail, maxDetail)
	return p
}

// firstOf is the first objection of the same type as o.
func firstOf(o *objection, all []report) *objection {
	for _, r := range all {
		if o != nil && r.err == nil && r.answer.Problem != nil && r.answer.Problem.Type == o.Type {
			return r.answer.Problem
		}
	}
	return o
}

func names(in []Region) string {
	var out []string
	for _, r := range in {
		out = append(out, string(r))
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), ", ")
}

// tell counts and logs what came of a question. A remote that gives no answer
// has one line when that begins, and one when it is over.
func (c *Corroborator) tell(ctx context.Context, q question, all []report, sum summary) {
	for _, r := range all {
		remote := c.cfg.Remotes[r.remote]
		c.metrics.result(remote.name, q.kind, resultOf(r), r.took)
		if ctx.Err() != nil && r.err != nil {
			continue // we are ending, which says nothing about the remote
		}
		was := c.down[r.remote].Swap(r.err != nil)
		switch {
		case r.err != nil && !was:
			c.log.WarnContext(ctx, "a remote perspective gives no answer, and counts as one that disagrees",
				"perspective", remote.name, "region", string(remote.region), "error", r.err)
		case r.err == nil && was:
			c.log.InfoContext(ctx, "a remote perspective answers again", "perspective", remote.name)
		}
	}
	c.metrics.corroborated(q.kind, sum.problem == nil)
	if sum.agreed < len(all) {
		c.log.InfoContext(ctx, "perspectives disagree", "kind", q.kind, "name", q.name, "id", q.ask.ID,
			"quorum", sum.quorum(), "corroborated", sum.problem == nil, "results", sum.records)
	}
}

func newID() string {
	var b [idLength / 2]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Run warns while there is time that the perspectives will not be enough for
// what is demanded from a date on. It returns when ctx ends.
func (c *Corroborator) Run(ctx context.Context) error {
	const lookEvery, sayEvery = time.Hour, 24 * time.Hour
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	var said time.Time
	for {
		now := c.cfg.Clock()
		if c.warn(ctx, now, now.Sub(said) >= sayEvery) {
			said = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// ahead is how long before such a date the operator is told.
const ahead = 30 * 24 * time.Hour

func (c *Corroborator) warn(ctx context.Context, now time.Time, due bool) bool {
	at, err := c.cfg.Rule.Shortfall(now, c.regions)
	switch {
	case err == nil || at.Sub(now) > ahead || !due:
		return false
	case !at.After(now):
		c.log.ErrorContext(ctx, "validation has stopped: there are too few remote perspectives", "error", err)
	default:
		c.log.WarnContext(ctx, "validation will stop: there will be too few remote perspectives", "from", at.Format(time.DateOnly), "error", err)
	}
	return true
}
