package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// A SequencerConfig is what a Sequencer is made of.
type SequencerConfig struct {
	Log        Log
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics

	Tick   time.Duration // look for entries at least this often; 0: 1 s
	Gather time.Duration // after Notify, wait this long for more of them; 0: 50 ms
	Batch  int           // at most this many entries in one transaction; 0: 256
}

// A Sequencer gives entries their places in the chain, in the order in which it
// finds them. Any number of replicas may run one: the head moves by
// compare-and-swap, and whoever loses looks again.
type Sequencer struct {
	log    Log
	logger *slog.Logger
	tick   time.Duration
	gather time.Duration
	batch  int
	wake   chan struct{}
	stats  sequencerStats
}

const (
	minBackoff  = 200 * time.Millisecond
	maxBackoff  = 30 * time.Second
	maxLosses   = 20 // in a row, then it counts as an error
	lossDelay   = 20 * time.Millisecond
	maxDoubling = 8
)

// NewSequencer returns a sequencer that does nothing until Run or Flush.
func NewSequencer(c SequencerConfig) (*Sequencer, error) {
	if c.Log == nil || c.Logger == nil {
		return nil, errors.New("making audit sequencer: Log and Logger are needed")
	}
	if c.Tick < 0 || c.Gather < 0 || c.Batch < 0 {
		return nil, errors.New("making audit sequencer: Tick, Gather and Batch can't be negative")
	}
	s := &Sequencer{
		log: c.Log, logger: c.Logger,
		tick: c.Tick, gather: c.Gather, batch: c.Batch,
		wake:  make(chan struct{}, 1),
		stats: newSequencerStats(),
	}
	if s.tick == 0 {
		s.tick = time.Second
	}
	if s.gather == 0 {
		s.gather = 50 * time.Millisecond
	}
	if s.batch == 0 {
		s.batch = 256
	}
	if c.Registerer != nil {
		if err := s.stats.register(c.Registerer); err != nil {
			return nil, fmt.Errorf("registering audit metrics: %w", err)
		}
	}
	return s, nil
}

// Notify says that an entry was written. It never blocks.
func (s *Sequencer) Notify() {
	select {
	case s.wake <- struct{}{}:
	default: // it is awake already
	}
}

// Run sequences until ctx ends. An error of the store is logged and tried
// again, later each time; entries wait in the database meanwhile.
func (s *Sequencer) Run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		err := s.drain(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			failures++
			delay := backoff(failures)
			s.stats.errors.Inc()
			s.logger.LogAttrs(ctx, slog.LevelError, "audit entries can't be chained now; they are kept and tried again",
				slog.Any("error", err), slog.Duration("again_in", delay), slog.Int("failures", failures))
			pause(ctx, delay)
		default:
			failures = 0
			s.rest(ctx)
		}
	}
}

// Flush sequences all that waits, for a shutdown that leaves nothing behind.
// Entries that it can't reach before ctx ends stay for the next start.
func (s *Sequencer) Flush(ctx context.Context) error {
	if err := s.drain(ctx); err != nil {
		return fmt.Errorf("flushing audit entries: %w", err)
	}
	return nil
}

// rest waits for the tick, or for a notification and those that follow closely.
func (s *Sequencer) rest(ctx context.Context) {
	t := time.NewTimer(s.tick)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-s.wake:
		pause(ctx, s.gather)
	}
}

// drain extends the chain until nothing waits.
func (s *Sequencer) drain(ctx context.Context) error {
	counted := false
	for losses := 0; ; {
		more, err := s.extend(ctx, counted)
		counted = err == nil
		switch {
		case errors.Is(err, ErrHeadMoved) && losses < maxLosses:
			// Another replica was faster, and has probably done our work.
			losses++
			s.stats.lost.Inc()
			pause(ctx, rand.N(lossDelay))
		case err != nil:
			return err
		case !more:
			return nil
		default:
			losses = 0
		}
	}
}

// extend sequences one batch, and says whether there is more. counted says that
// the batch before this one has counted what waits.
func (s *Sequencer) extend(ctx context.Context, counted bool) (more bool, err error) {
	// The head is read before the entries: if one of them gets its place from
	// another replica after that, the head is no longer this one.
	head, err := s.log.Head(ctx)
	if err != nil {
		return false, fmt.Errorf("reading chain head: %w", err)
	}
	entries, err := s.log.Pending(ctx, s.batch)
	if err != nil {
		return false, fmt.Errorf("reading pending entries: %w", err)
	}
	more = len(entries) == s.batch
	if err := s.measure(ctx, entries, counted); err != nil {
		return false, err
	}
	if len(entries) == 0 {
		return false, nil
	}
	at, recs := head, make([]Record, 0, len(entries))
	for _, e := range entries {
		r := at.Next(e)
		recs, at = append(recs, r), r.Head()
	}
	if err := s.log.Extend(ctx, head, recs); err != nil {
		return false, fmt.Errorf("extending chain after %d: %w", head.Seq, err)
	}
	s.stats.extended(at, len(recs))
	return more, nil
}

// measure shows what waits. Only the first of several full batches has the
// database count: a count for each would cost the square of a long backlog.
func (s *Sequencer) measure(ctx context.Context, entries []Entry, counted bool) error {
	b := Backlog{Count: int64(len(entries))}
	if len(entries) > 0 {
		b.Oldest = entries[0].At
	}
	switch full := len(entries) == s.batch; {
	case full && counted:
		s.stats.waitingSince(b.Oldest) // extended has counted down
		return nil
	case full:
		var err error
		if b, err = s.log.Backlog(ctx); err != nil {
			return fmt.Errorf("counting pending entries: %w", err)
		}
	}
	s.stats.waiting(b)
	return nil
}

// backoff doubles with each failure up to maxBackoff, and is spread over the
// upper half so that replicas come back one by one.
func backoff(failures int) time.Duration {
	d := min(minBackoff<<min(failures-1, maxDoubling), maxBackoff)
	return d/2 + rand.N(d/2)
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

type sequencerStats struct {
	backlog   prometheus.Gauge
	oldest    prometheus.Gauge
	head      prometheus.Gauge
	sequenced prometheus.Counter
	lost      prometheus.Counter
	errors    prometheus.Counter
}

func newSequencerStats() sequencerStats {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "secsy", Subsystem: "audit", Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "secsy", Subsystem: "audit", Name: name, Help: help})
	}
	return sequencerStats{
		backlog:   gauge("backlog_entries", "Audit entries that have no place in the chain yet."),
		oldest:    gauge("backlog_oldest_timestamp_seconds", "Time of the oldest entry in the backlog, 0 for none."),
		head:      gauge("head_seq", "Sequence number of the last entry that this replica chained."),
		sequenced: counter("sequenced_total", "Audit entries that this replica chained."),
		lost:      counter("head_conflicts_total", "Batches that another replica's came before."),
		errors:    counter("sequencer_errors_total", "Failed attempts to chain entries; they are tried again."),
	}
}

func (s *sequencerStats) register(r prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{s.backlog, s.oldest, s.head, s.sequenced, s.lost, s.errors} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (s *sequencerStats) waiting(b Backlog) {
	s.backlog.Set(float64(b.Count))
	if b.Count == 0 {
		s.oldest.Set(0)
		return
	}
	s.waitingSince(b.Oldest)
}

func (s *sequencerStats) waitingSince(t time.Time) { s.oldest.Set(float64(t.UnixMicro()) / 1e6) }

func (s *sequencerStats) extended(head Head, n int) {
	s.sequenced.Add(float64(n))
	s.head.Set(float64(head.Seq))
	s.backlog.Sub(float64(n))
}
