package pkcs11pool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/keys"
)

// soakFaults are about one in a hundred calls, others in each round (%d). A sixth of those of C_Sign come
// when the signature has been made.
var soakFaults = []string{
	"* * p=0.004 seed=%d1 return 0x30",               // DEVICE_ERROR
	"* * p=0.002 seed=%d2 return 0x6",                // FUNCTION_FAILED
	"* * p=0.001 seed=%d3 return 0x80000001",         // a vendor's
	"C_Sign * p=0.002 seed=%d4 after return 0x30",    // it has signed
	"* * p=0.0008 seed=%d5 really return 0xB3",       // SESSION_HANDLE_INVALID
	"C_Sign * p=0.001 seed=%d6 really return 0xB0",   // SESSION_CLOSED
	"* * p=0.0002 seed=%d7 really return 0xE0",       // TOKEN_NOT_PRESENT
	"* * p=0.0001 seed=%d8 really return 0x101",      // USER_NOT_LOGGED_IN
	"C_Sign * p=0.0004 seed=%d9 really return 0x190", // CRYPTOKI_NOT_INITIALIZED
}

// TestNothingGrowsUnderFaults signs for a long time with a device that fails at
// random (SOAK signatures, or 20 000), and counts what there is then.
func TestNothingGrowsUnderFaults(t *testing.T) {
	wanted := 20_000
	if s := os.Getenv("SOAK"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal("SOAK: ", err)
		}
		wanted = n
	}
	r := newRig(t, keys.ECDSAP256, 1, nil)
	var total tally
	// The first part brings what is made once: threads, connections, buffers.
	r.soak(wanted/5, &total)
	r.settled("the first part")
	before := r.footprint()
	began := time.Now()
	r.soak(wanted-wanted/5, &total)
	took := time.Since(began)
	r.settled("the last part")
	after := r.footprint()

	book, stat := r.fault.Book(t), r.pool.Stat().Tokens[0]
	injected := 0
	for _, f := range book.Functions {
		injected += f.Injected
	}
	t.Logf("%d signatures made of %d asked for (%d refused, %d unknown), the last part in %v; %d of %d calls failed (%.2f %%), %d sessions opened anew, %d recoveries, %d initializations",
		total.delivered, wanted, total.busy, total.unknown, took.Round(time.Second), injected, book.Calls, 100*float64(injected)/float64(book.Calls),
		stat.Reopened, stat.Recovered, book.Initialized)
	t.Logf("before: %+v", before)
	t.Logf("after:  %+v", after)
	if stat.Recovered == 0 {
		t.Error("the token was never lost")
	}
	if total.delivered < wanted {
		t.Errorf("%d signatures, want %d", total.delivered, wanted)
	}
	// Those that would not close are closed soon after.
	if book.PeakOpen > 2*rigSessions {
		t.Errorf("there were %d sessions at a time", book.PeakOpen)
	}
	if after.goroutines > before.goroutines+rigSessions || after.threads > before.threads+rigSessions || after.descriptors > before.descriptors+4 {
		t.Error("something grows")
	}
	if after.remembered > before.remembered+rigSessions {
		t.Errorf("%d handles are remembered, before %d", after.remembered, before.remembered)
	}
	// SoftHSM keeps some memory for each session and each initialization, and the
	// race detector far more for each goroutine that ended as a coroutine: Go tells
	// it of the end of others only.
	if grown := after.memory - before.memory; !raceDetector && grown > 64<<20 {
		t.Errorf("the process has grown by %d MiB", grown>>20)
	}
}

// soak signs until n more signatures have been delivered, and looks at each.
func (r *rig) soak(n int, total *tally) {
	for round, got := n, 0; got < n; {
		if r.t.Failed() {
			return
		}
		r.forgetRestarts()
		round++
		var faults []string
		for _, f := range soakFaults {
			faults = append(faults, fmt.Sprintf(f, round))
		}
		r.fault.Script(r.t, faults...)
		r.each(min(1000, n-got)/rigWorkers+1, func() { r.signForSure() })
		r.fault.Script(r.t)
		o := r.judge("soak")
		got += o.delivered
		total.delivered += o.delivered
		total.busy += o.busy
		total.unknown += o.unknown
	}
}

// signForSure signs as those do who come again when the device is busy.
func (r *rig) signForSure() {
	for range 1000 {
		if err := r.sign(r.t.Context(), false); !errors.Is(err, keys.ErrBusy) {
			return
		}
		r.eventually("the device is ready", func() bool { return r.pool.Ready() == nil })
	}
	r.t.Error("the device is always busy")
}

// A footprint is what the process and the pool have of things that must not grow.
type footprint struct {
	goroutines, threads, descriptors int
	remembered                       int // handles of sessions
	memory                           int // resident, in bytes
}

func (r *rig) footprint() footprint {
	r.t.Helper()
	runtime.GC()
	f := footprint{goroutines: r.goroutines(), threads: entries(r.t, "/proc/self/task"), descriptors: entries(r.t, "/proc/self/fd")}
	for _, t := range r.pool.tokens {
		t.module.mu.Lock()
		f.remembered += len(t.module.handles) + len(t.module.left)
		t.module.mu.Unlock()
	}
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		r.t.Fatal(err)
	}
	pages, err := strconv.Atoi(string(bytes.Fields(b)[1]))
	if err != nil {
		r.t.Fatal(err)
	}
	f.memory = pages * os.Getpagesize()
	return f
}

func entries(tb testing.TB, dir string) int {
	tb.Helper()
	e, err := os.ReadDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	return len(e)
}
