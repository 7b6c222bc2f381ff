package hsmguard_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/hsmguard"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
)

// Eight seats at 5 ms each: what the device can do is 1600 signatures a second.
const (
	seats   = 8
	service = 5 * time.Millisecond
)

// A stream is requests that come whether or not those before them
// were answered.
type stream struct {
	n     int           // requests
	every time.Duration // from one to the next
	who   func(ctx context.Context, i int) context.Context
}

// A result is what came of one stream.
type result struct {
	served int
	waits  []time.Duration // from asking to having, of those served
}

func (r result) quantile(q float64) time.Duration {
	slices.Sort(r.waits)
	return r.waits[min(len(r.waits)-1, int(q*float64(len(r.waits))))]
}

// run sends streams at one guarded device of seats and returns what came of
// each. The i-th request of a stream takes the device the same time in each run,
// so that two runs differ by their waits alone.
func run(t *testing.T, streams ...stream) []result {
	t.Helper()
	g := newGate(t, gate.Config{Seats: seats, MaxQueue: 64, MaxWait: 5 * time.Second})
	d := &device{}
	k := keyOf(t, hsmguard.New(hsmguard.Config{Gate: g}).Keys(d))
	out := make([]result, len(streams))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, s := range streams {
		times := rand.New(rand.NewPCG(1, uint64(i)))
		wg.Go(func() {
			for n := range s.n {
				takes := time.Duration(times.ExpFloat64() * float64(service))
				ctx := s.who(context.WithValue(t.Context(), ownTime{}, takes), n)
				wg.Go(func() {
					asked := time.Now()
					if err := sign(ctx, k); err != nil {
						if !errors.Is(err, keys.ErrBusy) {
							t.Error(err)
						}
						return
					}
					mu.Lock()
					defer mu.Unlock()
					out[i].served++
					out[i].waits = append(out[i].waits, time.Since(asked))
				})
				time.Sleep(s.every)
			}
		})
	}
	wg.Wait()
	if st := g.Stat(); st.InFlight != 0 || st.Queued != 0 || st.Identities != 0 || st.PeakInFlight > seats {
		t.Errorf("seats are not conserved: %+v", st)
	}
	return out
}

func account(name string) func(context.Context, int) context.Context {
	return func(ctx context.Context, _ int) context.Context { return peer.WithIdentity(ctx, name) }
}

// crowd is as many identities, in turn.
func crowd(n int, p keys.Purpose) func(context.Context, int) context.Context {
	return func(ctx context.Context, i int) context.Context {
		return keys.WithPurpose(peer.WithIdentity(ctx, fmt.Sprintf("acme:account/%d", i%n)), p)
	}
}

// nets is as many callers whom nobody knows but by their network, in turn.
func nets(n int, p keys.Purpose) func(context.Context, int) context.Context {
	return func(ctx context.Context, i int) context.Context {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(i % n >> 8), byte(i % n)})
		return keys.WithPurpose(peer.With(ctx, peer.Peer{Addr: addr}), p)
	}
}

// tenfold is ten times what the device can do, for as long as a victim asks.
func tenfold(victim stream, who func(context.Context, int) context.Context) stream {
	every := service / seats / 10
	return stream{n: int(time.Duration(victim.n) * victim.every / every), every: every, who: who}
}

// One account that asks for ten times what the device can do is served what is
// left, and another account hardly notices.
func TestAHogDoesNotSlowAnotherAccount(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		victim := stream{n: 200, every: 10 * time.Millisecond, who: account("acme:account/victim")}
		idle := run(t, victim)[0]
		r := run(t, victim, tenfold(victim, account("acme:account/hog")))
		busy, hog := r[0], r[1]
		t.Logf("idle median %v p99 %v, beside a hog median %v p99 %v", idle.quantile(.5), idle.quantile(.99), busy.quantile(.5), busy.quantile(.99))
		if busy.served != victim.n {
			t.Errorf("%d of %d served", busy.served, victim.n)
		}
		if m, of := busy.quantile(.5), idle.quantile(.5); m > of*13/10 {
			t.Errorf("median %v, idle %v", m, of)
		}
		if p, of := busy.quantile(.99), idle.quantile(.99); p > of*3/2 {
			t.Errorf("p99 %v, idle %v", p, of)
		}
		if could := victim.n * int(victim.every/service) * seats; hog.served+busy.served < could*95/100 {
			t.Errorf("%d of %d that the device can do were done", hog.served+busy.served, could)
		}
	})
}

// However many accounts a flood makes up, a renewal by one that has proven
// itself has seats before it.
func TestACrowdOfNewAccountsDoesNotKeepOutARenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		victim := stream{n: 100, every: 10 * time.Millisecond, who: crowd(1, keys.ForRenewal)}
		for _, n := range []int{50, 1000} {
			if r := run(t, victim, tenfold(victim, crowd(n, keys.ForIssuance))); r[0].served != victim.n || r[1].served == 0 {
				t.Errorf("%d of %d renewals, %d others", r[0].served, victim.n, r[1].served)
			}
		}
	})
}

// What many will read goes before answers for one stranger each, from however
// many networks they are asked for.
func TestAnonymousWorkDoesNotStarveStatus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		status := stream{n: 200, every: 10 * time.Millisecond, who: nets(7, keys.ForStatus)}
		idle := run(t, status)[0]
		r := run(t, status, tenfold(status, nets(1000, keys.ForOne)))
		if r[0].served != status.n || r[1].served == 0 {
			t.Errorf("%d of %d shared answers, %d single ones", r[0].served, status.n, r[1].served)
		}
		if p, of := r[0].quantile(.99), idle.quantile(.99); p > 2*of {
			t.Errorf("p99 %v, idle %v", p, of)
		}
	})
}

// A revocation waits for one seat to come free at most.
func TestARevocationGoesFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		revocation := stream{n: 100, every: 10 * time.Millisecond, who: crowd(1, keys.ForRevocation)}
		idle := run(t, revocation)[0]
		r := run(t, revocation, tenfold(revocation, crowd(1000, keys.ForIssuance)), tenfold(revocation, nets(1000, keys.ForStatus)))
		if r[0].served != revocation.n || r[1].served == 0 || r[2].served == 0 {
			t.Errorf("%d of %d revocations, %d issuances, %d answers", r[0].served, revocation.n, r[1].served, r[2].served)
		}
		if m, of := r[0].quantile(.5), idle.quantile(.5); m > of+service {
			t.Errorf("median %v, idle %v", m, of)
		}
	})
}
