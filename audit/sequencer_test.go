package audit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/audit/audittest"
)

func sequencer(t *testing.T, log audit.Log, change func(*audit.SequencerConfig)) *audit.Sequencer {
	t.Helper()
	c := audit.SequencerConfig{Log: log, Logger: slog.New(slog.DiscardHandler), Batch: 8}
	if change != nil {
		change(&c)
	}
	s, err := audit.NewSequencer(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func emptyLog() *audittest.Memory { return audittest.NewMemory(audit.Head{Hash: audit.ZeroHash}) }

func whole(t *testing.T, m audit.Reader, entries int64) {
	t.Helper()
	rep, err := audit.Verify(t.Context(), m, audit.VerifyOptions{})
	if err != nil || !rep.OK() || rep.Entries != entries || rep.Backlog.Count != 0 {
		t.Errorf("%+v, %v; want %d entries", rep, err, entries)
	}
}

func TestFlushChainsEverythingInBatches(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 7, 8, 9, 100} {
		m := emptyLog()
		for range n {
			m.Append(audit.New("system", "x", "y", nil))
		}
		if err := sequencer(t, m, nil).Flush(t.Context()); err != nil {
			t.Error(err)
		}
		whole(t, m, int64(n))
	}
}

// A counter counts how often what waits is counted.
type counter struct {
	*audittest.Memory
	counts atomic.Int32
}

func (c *counter) Backlog(ctx context.Context) (audit.Backlog, error) {
	c.counts.Add(1)
	return c.Memory.Backlog(ctx)
}

func TestLongBacklogIsCountedOnce(t *testing.T) {
	t.Parallel()
	c := &counter{Memory: emptyLog()}
	for range 100 {
		c.Append(audit.New("system", "x", "y", nil))
	}
	s := sequencer(t, c.Memory, func(cfg *audit.SequencerConfig) { cfg.Log = c })
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	whole(t, c.Memory, 100)
	if n := c.counts.Load(); n != 1 {
		t.Errorf("counted %d times on the way", n)
	}
}

// run starts s in the bubble and returns what stops it and waits.
func run(t *testing.T, s *audit.Sequencer) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.Run(ctx) }()
	return func() { cancel(); <-done }
}

func TestNotificationIsFasterThanTheTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := emptyLog()
		s := sequencer(t, m, func(c *audit.SequencerConfig) { c.Tick, c.Gather = time.Hour, 10*time.Millisecond })
		defer run(t, s)()
		synctest.Wait()
		for range 100 { // more than anybody listens for: it never blocks
			m.Append(audit.New("system", "x", "y", nil))
			s.Notify()
		}
		time.Sleep(11 * time.Millisecond)
		synctest.Wait()
		whole(t, m, 100)
	})
}

func TestTickFindsWhatNobodyNotified(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := emptyLog()
		defer run(t, sequencer(t, m, nil))()
		synctest.Wait()
		m.Append(audit.New("system", "x", "y", nil))
		time.Sleep(time.Second + time.Millisecond)
		synctest.Wait()
		whole(t, m, 1)
	})
}

func TestFailingStoreLosesNothingAndIsAskedEverMoreSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &counting{Memory: emptyLog()}
		reg := prometheus.NewRegistry()
		s := sequencer(t, m, func(c *audit.SequencerConfig) { c.Registerer = reg })
		m.Append(audit.New("system", "x", "y", nil))
		m.Fail(errors.New("disk full"))
		defer run(t, s)()
		for range 600 {
			s.Notify()
			time.Sleep(time.Second)
		}
		if n := m.asked(); n < 20 || n > 60 {
			t.Errorf("asked %d times in 10 minutes of failure", n)
		}
		m.Fail(nil)
		time.Sleep(31 * time.Second)
		synctest.Wait()
		whole(t, m, 1)
		if v := metric(t, reg, "secsy_audit_backlog_entries"); v != 0 {
			t.Errorf("backlog metric says %v", v)
		}
		if v := metric(t, reg, "secsy_audit_sequencer_errors_total"); v < 20 {
			t.Errorf("errors metric says %v", v)
		}
	})
}

func metric(t *testing.T, reg prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

type counting struct {
	*audittest.Memory
	mu sync.Mutex // guards n
	n  int
}

func (c *counting) Head(ctx context.Context) (audit.Head, error) {
	c.mu.Lock()
	c.n++
	c.mu.Unlock()
	return c.Memory.Head(ctx)
}

func (c *counting) asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// crashing fails now and then, before the work or after it, as a lost
// connection does: the caller can't know whether the batch is in.
type crashing struct {
	*audittest.Memory
	mu  sync.Mutex // guards rng
	rng *rand.Rand
}

func (c *crashing) Extend(ctx context.Context, from audit.Head, recs []audit.Record) error {
	c.mu.Lock()
	dice := c.rng.IntN(4)
	c.mu.Unlock()
	if dice == 0 {
		return errors.New("connection lost before")
	}
	err := c.Memory.Extend(ctx, from, recs)
	if dice == 1 {
		return fmt.Errorf("connection lost after: %w", errors.New("unknown outcome"))
	}
	return err
}

func TestCrashesBetweenLeaveNoGapForkOrDuplicate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &crashing{Memory: emptyLog(), rng: rand.New(rand.NewPCG(3, 4))}
		var stops []func()
		for range 3 {
			stops = append(stops, run(t, sequencer(t, m, nil)))
		}
		for range 200 {
			m.Append(audit.New("system", "x", "y", nil))
			time.Sleep(rand.N(100 * time.Millisecond))
		}
		time.Sleep(time.Hour)
		for _, stop := range stops {
			stop()
		}
		whole(t, m, 200)
	})
}

func TestManySequencersShareOneChain(t *testing.T) {
	t.Parallel()
	m := emptyLog()
	for range 1000 {
		m.Append(audit.New("system", "x", "y", nil))
	}
	var wg sync.WaitGroup
	for range 4 {
		s := sequencer(t, m, nil)
		wg.Go(func() {
			if err := s.Flush(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	whole(t, m, 1000)
}

func TestStoppingDoesNotWaitForTheBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := emptyLog()
		m.Fail(errors.New("disk full"))
		stop := run(t, sequencer(t, m, nil))
		time.Sleep(5 * time.Minute)
		start := time.Now()
		stop()
		if d := time.Since(start); d != 0 {
			t.Errorf("stopping took %v", d)
		}
	})
}

func TestSequencerNeedsItsParts(t *testing.T) {
	t.Parallel()
	if _, err := audit.NewSequencer(audit.SequencerConfig{}); err == nil {
		t.Error("made without a log")
	}
	c := audit.SequencerConfig{Log: emptyLog(), Logger: slog.New(slog.DiscardHandler), Tick: -1}
	if _, err := audit.NewSequencer(c); err == nil {
		t.Error("made with a negative tick")
	}
}
