package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/keys"
)

// All that is measured runs, each signature at the opening is verified, and what
// was made is gone afterwards.
func TestTheLastLineIsTheResult(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	t.Setenv("SOFTHSM2_CONF", "") // to be as it was
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-quick"}, &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := regexp.MustCompile(`^RESULT hsm ratio_1=\d+\.\d+ ratio_4=\d+\.\d+ ratio_8=\d+\.\d+ borrow_ns=\d+ borrow_allocs=\d+ linear_2ms=\d+\.\d+$`)
	if last := lines[len(lines)-1]; !want.MatchString(last) {
		t.Errorf("the last line is %q", last)
	}
	left, err := os.ReadDir(tmp)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if strings.HasPrefix(f.Name(), "bench-hsm-") {
			t.Errorf("%s is left", f.Name())
		}
	}
}

func TestARatioIsOfTwoMeasurementsOfOneRound(t *testing.T) {
	t.Parallel()
	c := &cell{runs: []*series{
		{by: bareName, rate: []float64{100, 1000, 10}},
		{by: oursName, rate: []float64{90, 950, 10}},
	}}
	got := c.ratios(oursName)
	for i, want := range []float64{0.9, 0.95, 1} {
		if len(got) != 3 || got[i] != want {
			t.Fatalf("ratios %v", got)
		}
	}
	if none := c.ratios(poolName); none != nil {
		t.Errorf("who was not measured has the ratios %v", none)
	}
}

func TestLinearIsThePartOfManyTimesOneSession(t *testing.T) {
	t.Parallel()
	at := func(sessions int, rate ...float64) *cell {
		return &cell{section: away, sessions: sessions, runs: []*series{{by: oursName, rate: rate}}}
	}
	b := &bench{cells: []*cell{at(1, 100, 200, 100), at(4, 400, 400, 200), at(8, 800, 800, 800)}}
	for n, want := range map[int]float64{1: 1, 4: 0.5, 8: 1} {
		if got := b.linear(oursName, n); got != want {
			t.Errorf("%d sessions: %v, want %v", n, got, want)
		}
	}
}

func TestWhatIsRefusedIsNotSigned(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	s := &series{workers: 4, sign: func(int) ([]byte, error) {
		if asked.Add(1)%4 == 0 {
			return nil, &keys.BusyError{Reason: "timeout"}
		}
		return nil, nil
	}}
	if err := s.measure(t.Context(), 5*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if s.refused[0] < 24 || s.refused[0] > 26 {
		t.Errorf("%v %% were refused, want 25", s.refused)
	}
}

func TestAnErrorEndsTheMeasurement(t *testing.T) {
	t.Parallel()
	lost := errors.New("the session handle is invalid")
	s := &series{workers: 4, sign: func(worker int) ([]byte, error) {
		if worker == 2 {
			return nil, lost
		}
		return nil, nil
	}}
	if err := s.measure(t.Context(), time.Millisecond); !errors.Is(err, lost) || s.rate != nil {
		t.Errorf("%v, %v", err, s.rate)
	}
	ctx, leave := context.WithCancel(t.Context())
	leave()
	s.sign = func(int) ([]byte, error) { return nil, nil }
	if err := s.measure(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("after an interrupt: %v", err)
	}
}

func TestWhatABorrowCostsIsReadFromTheBenchmark(t *testing.T) {
	t.Parallel()
	b, err := parseBorrow("goos: linux\nBenchmarkBorrow-2   \t  600000\t       712.5 ns/op\t       0 B/op\t       0 allocs/op\n" +
		"BenchmarkBorrow   \t  600000\t       800 ns/op\t      16 B/op\t       1 allocs/op\nPASS\n")
	if err != nil || b.ns.Median() != 712.5 || b.ns.Most() != 800 || b.allocs.Most() != 1 {
		t.Errorf("%v, %v", b, err)
	}
	if _, err := parseBorrow("PASS\n"); err == nil {
		t.Error("no benchmark ran, and nobody was told")
	}
}
