package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/measure"
	"github.com/secsy-pki/secsy-pki/keys"
)

// What is measured with, in sessions and in those who want them.
var (
	few        = []int{1, 4, 8}
	many       = []int{1, 2, 4, 8, 16}
	poolSize   = 8 // sessions of a token by default
	requesters = 64
	// comeBack is when who was refused asks again: far sooner than he was told to.
	comeBack = 10 * time.Millisecond
)

// A cell is what several subjects are measured in one after the other.
type cell struct {
	section, name string
	kind          string
	sessions      int
	runs          []*series
}

// A series is what is measured of one subject in a cell, of each round.
type series struct {
	by      string
	sign    sign
	workers int
	latency bool // is of interest, too

	rate      measure.Sample // signatures a second
	cpu       measure.Sample // microseconds of processor time for each
	half, p99 measure.Sample // milliseconds until there was one
	refused   measure.Sample // percent of those asked for
}

func (c *cell) of(subject string) *series {
	for _, r := range c.runs {
		if r.by == subject {
			return r
		}
	}
	return nil
}

// judged reports whether the result has the ratio of c.
func (c *cell) judged() bool { return c.section == signing && c.kind == kinds[0].name }

// ratios are those of a subject's rate to that of bare calls, of each round.
func (c *cell) ratios(subject string) measure.Sample {
	a, b := c.of(subject), c.of(bareName)
	if a == nil || b == nil {
		return nil
	}
	var s measure.Sample
	for i := range min(len(a.rate), len(b.rate)) {
		s = append(s, a.rate[i]/b.rate[i])
	}
	return s
}

// The sections of the report.
const (
	signing = "signing"
	away    = "away"
	queuing = "queuing"
	finding = "finding"
)

// plan opens everything that is measured.
func plan(ctx context.Context, h *host) (cells []*cell, err error) {
	p := &planner{host: h}
	for _, k := range kinds {
		for _, n := range few {
			p.cell(signing, k.name, k, n)
			for _, by := range []string{bareName, oursName, poolName, cryptoName, pkcs11kName} {
				if by != poolName || k.name == kinds[0].name {
					p.add(by, opening{token: plain, sessions: n}, n)
				}
			}
		}
	}
	for _, n := range many {
		p.cell(away, "", kinds[0], n)
		for _, by := range []string{lineName, oursName, poolName, cryptoName, pkcs11kName} {
			p.add(by, opening{token: plain, far: true, sessions: n}, requesters)
		}
	}
	p.cell(queuing, "", kinds[0], poolSize)
	for _, by := range []string{lineName, oursName, poolName, cryptoName, pkcs11kName} {
		p.add(by, opening{token: plain, sessions: poolSize}, requesters).latency = true
	}
	for name, token := range map[string]string{"a few": plain, fmt.Sprintf("%d more", fillers): crowded} {
		p.cell(finding, name, kinds[0], 1)
		for _, by := range []string{bareName, findName, oursName, cryptoName, pkcs11kName} {
			p.add(by, opening{token: token, sessions: 1}, 1)
		}
	}
	return p.cells, errors.Join(p.err, ctx.Err())
}

// A planner makes cells until something fails.
type planner struct {
	host  *host
	cells []*cell
	kind  kind
	err   error
}

func (p *planner) cell(section, name string, k kind, sessions int) {
	p.kind = k
	p.cells = append(p.cells, &cell{section: section, name: name, kind: k.name, sessions: sessions})
}

// add has a subject be measured in the last cell, if it can.
func (p *planner) add(subject string, o opening, workers int) *series {
	s := &series{by: subject, workers: workers}
	if able := subjects[subject].able; p.err != nil || able != nil && !able(p.kind) {
		return s
	}
	o.subject = subject
	if s.sign, p.err = p.host.sign(o, p.kind); p.err != nil {
		p.err = fmt.Errorf("%s with %s: %w", subject, p.kind.name, p.err)
		return s
	}
	c := p.cells[len(p.cells)-1]
	c.runs = append(c.runs, s)
	return s
}

// measure has the workers sign for so long.
func (s *series) measure(ctx context.Context, length time.Duration) error {
	var crowd crowd
	crowd.begin.Add(s.workers)
	gate := make(chan struct{})
	for i := range s.workers {
		crowd.all.Go(func() { crowd.work(s, i, gate) })
	}
	crowd.begin.Wait() // each has a thread that is warm
	cpu, began := measure.CPU(), time.Now()
	close(gate)
	select {
	case <-time.After(length):
	case <-ctx.Done():
	}
	crowd.stop.Store(true)
	crowd.all.Wait()
	took, cpu := time.Since(began), measure.CPU()-cpu
	if err := errors.Join(ctx.Err(), crowd.err); err != nil {
		return err
	}
	return s.count(&crowd, took, cpu)
}

func (s *series) count(c *crowd, took, cpu time.Duration) error {
	if c.signed == 0 {
		return errors.New("nothing was signed")
	}
	s.rate = append(s.rate, float64(c.signed)/took.Seconds())
	s.cpu = append(s.cpu, float64(cpu)/float64(time.Microsecond)/float64(c.signed))
	s.refused = append(s.refused, 100*float64(c.refused)/float64(c.signed+c.refused))
	if s.latency {
		all := measure.Durations(c.took)
		s.half, s.p99 = append(s.half, all.Median()), append(s.p99, all.Quantile(0.99))
	}
	return nil
}

// A crowd is workers who sign as fast as they are let.
type crowd struct {
	begin sync.WaitGroup
	all   sync.WaitGroup
	stop  atomic.Bool

	mu              sync.Mutex // guards what follows
	signed, refused int
	took            []time.Duration
	err             error
}

func (c *crowd) work(s *series, worker int, gate <-chan struct{}) {
	_, err := s.sign(worker)
	c.begin.Done()
	<-gate
	if errors.Is(err, keys.ErrBusy) {
		err = nil
	}
	var signed, refused int
	var took []time.Duration
	for err == nil && !c.stop.Load() {
		var began time.Time
		if s.latency {
			began = time.Now()
		}
		switch _, err = s.sign(worker); {
		case err == nil:
			signed++
		case errors.Is(err, keys.ErrBusy):
			refused++
			err = nil
			time.Sleep(comeBack)
		}
		if s.latency {
			took = append(took, time.Since(began))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.signed += signed
	c.refused += refused
	c.took = append(c.took, took...)
	c.err = errors.Join(c.err, err)
}
