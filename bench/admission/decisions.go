package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/measure"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// The limit that most is measured with: 20 a second and 40 at once.
const (
	every = time.Second / 20
	burst = 40
)

// sizes are how much is done for one figure.
type sizes struct {
	calls  int // of one decision
	spray  int // unique keys
	direct int // requests through the middleware
	wire   int // requests over a connection
	heap   int // keys of which the memory is weighed
	longer int // unique keys after which spent ones are looked at again
	spent  int // keys that are all driven to their limit
}

var full = sizes{calls: 300_000, spray: 150_000, direct: 100_000, wire: 10_000, heap: 1_000_000, longer: 2_000_000, spent: 150_000}

var quickly = sizes{calls: 2_000, spray: 2_000, direct: 500, wire: 50, heap: 2_000, longer: 4_000, spent: 200}

// address is the i-th of four billion.
func address(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)})
}

// many are addresses that a server sees every day, with their texts.
var many, manyTexts = func() (as []netip.Addr, texts []string) {
	for i := range maxKeys {
		as = append(as, address(1<<31+i))
		texts = append(texts, as[i].String())
	}
	return as, texts
}()

// A spent is what a number of calls took.
type spent struct {
	cpu    float64 // nanoseconds a call
	allocs float64 // a call
}

// cost lets as many goroutines as there are processors, or one, make n calls altogether.
func cost(n, goroutines int, worker func(g, calls int)) spent {
	runtime.GC() // what lies about is not to be paid for by whoever comes next
	var before, after runtime.MemStats
	each := n / goroutines
	runtime.ReadMemStats(&before)
	cpu := measure.CPU()
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() { worker(g, each) })
	}
	all.Wait()
	cpu = measure.CPU() - cpu
	runtime.ReadMemStats(&after)
	calls := float64(each * goroutines)
	// What the runtime allocates for goroutines is no part of a call.
	allocs := math.Round(float64(after.Mallocs-before.Mallocs)/calls*100) / 100
	return spent{float64(cpu) / calls, allocs}
}

// A decided is what is measured of one subject, of each round.
type decided struct {
	refused, refusedParallel, many, spray measure.Sample // nanoseconds of processor time
	refusedAllocs, sprayAllocs            measure.Sample
}

// round measures everything of one subject once.
func (d *decided) round(s subject, z sizes, processors int) error {
	l, err := s.build(every, burst)
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	defer l.close()
	one := func(_, calls int) {
		decide := l.worker()
		for range calls {
			decide(many[0], manyTexts[0])
		}
	}
	one(0, 2*burst)
	alone := cost(z.calls, 1, one)
	d.refused = append(d.refused, alone.cpu)
	d.refusedAllocs = append(d.refusedAllocs, alone.allocs)
	d.refusedParallel = append(d.refusedParallel, cost(z.calls, processors, one).cpu)

	decide := l.worker()
	for i := range many {
		decide(many[i], manyTexts[i])
	}
	d.many = append(d.many, cost(z.calls, processors, func(g, calls int) {
		decide, random := l.worker(), rand.New(rand.NewPCG(uint64(g), 1))
		for range calls {
			i := random.IntN(len(many))
			decide(many[i], manyTexts[i])
		}
	}).cpu)

	d.sprays(s, z, processors)
	return nil
}

// sprays measures a spray of keys that all come once, upon as many before.
func (d *decided) sprays(s subject, z sizes, processors int) {
	l, err := s.build(every, burst)
	if err != nil {
		return // it was built a moment ago
	}
	defer l.close()
	spray := func(from int) func(g, calls int) {
		return func(g, calls int) {
			decide := l.worker()
			for i := range calls {
				decide(address(from+g*calls+i), "")
			}
		}
	}
	spray(0)(0, z.spray)
	c := cost(z.spray, processors, spray(z.spray))
	d.spray = append(d.spray, c.cpu)
	d.sprayAllocs = append(d.sprayAllocs, c.allocs)
}

// A held is what is measured of one subject once: it takes long, or is no
// figure of time.
type held struct {
	heap      float64 // bytes, after many keys
	reset     [2]int  // of the spent keys, those that were full again after a shorter and a longer spray
	newcomers int     // of a thousand, those let in after it
	worst     time.Duration
}

const (
	watched   = 50   // spent keys that are looked at again
	newcomers = 1000 // keys that were never seen
	shorter   = 150_000
)

func hold(s subject, z sizes) (held, error) {
	var h held
	var err error
	if h.heap, err = heapOf(s, z.heap); err != nil {
		return h, err
	}
	if h.worst, err = worstCall(s, z.spray); err != nil {
		return h, err
	}
	// A token a minute: nothing that is spent comes back meanwhile.
	l, err := s.build(time.Minute, burst)
	if err != nil {
		return h, err
	}
	defer l.close()
	decide := l.worker()
	exhaust(decide, many[:2*watched])
	for i := range min(shorter, z.longer) {
		decide(address(i), "")
	}
	h.reset[0] = countReset(decide, many[:watched])
	for i := shorter; i < z.longer; i++ {
		decide(address(i), "")
	}
	h.reset[1] = countReset(decide, many[watched:2*watched])
	h.newcomers = countAdmitted(decide, many[2*watched:][:newcomers])
	return h, nil
}

// exhaustedSpray drives n keys to their limit, and then counts as hold does.
func exhaustedSpray(s subject, n int) (reset, admitted int, err error) {
	l, err := s.build(time.Minute, burst)
	if err != nil {
		return 0, 0, err
	}
	defer l.close()
	decide := l.worker()
	exhaust(decide, many[:watched])
	for i := range n {
		for range burst {
			decide(address(i), "")
		}
	}
	return countReset(decide, many[:watched]), countAdmitted(decide, many[watched:][:newcomers]), nil
}

func exhaust(decide decide, keys []netip.Addr) {
	for _, a := range keys {
		for range burst {
			decide(a, "")
		}
	}
}

// countReset counts the keys that were forgotten: two tokens don't come back in
// the time that this takes, a full bucket has them.
func countReset(decide decide, keys []netip.Addr) int {
	n := 0
	for _, a := range keys {
		decide(a, "")
		if decide(a, "") {
			n++
		}
	}
	return n
}

func countAdmitted(decide decide, keys []netip.Addr) int {
	n := 0
	for _, a := range keys {
		if decide(a, "") {
			n++
		}
	}
	return n
}

// heapOf is the memory that is held after n keys.
func heapOf(s subject, n int) (float64, error) {
	before := heap()
	l, err := s.build(every, burst)
	if err != nil {
		return 0, err
	}
	defer l.close()
	decide := l.worker()
	for i := range n {
		decide(address(i), "")
	}
	took := heap() - before
	runtime.KeepAlive(decide)
	return took, nil
}

// bytesPerKey is our memory by the keys that fit into it. A limit of sources has
// two tables: one for addresses and one for the networks of IPv6 customers.
func bytesPerKey(n int) (float64, error) {
	before := heap()
	l, err := ratelimit.New(ratelimit.Config{PerIP: ratelimit.Bucket{Rate: perSecond(every), Burst: burst}, MaxKeys: maxKeys})
	if err != nil {
		return 0, err
	}
	e := l.Endpoint("bench", ratelimit.EndpointOptions{})
	for i := range n {
		e.Admit(address(i))
		e.Admit(network(i))
	}
	took := heap() - before
	slots := 0
	for _, t := range l.Stat().Tables {
		slots += t.Slots
	}
	return took / float64(slots), nil
}

// network is an address in the i-th IPv6 network.
func network(i int) netip.Addr {
	return netip.AddrFrom16([16]byte{0x20, 0x01, byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i), 15: 1})
}

func heap() float64 {
	runtime.GC()
	runtime.GC() // what finalizers and pools held is gone after the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// worstCall is the most processor time of a single call, of n in a spray upon as
// many before.
func worstCall(s subject, n int) (time.Duration, error) {
	l, err := s.build(every, burst)
	if err != nil {
		return 0, err
	}
	defer l.close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	decide := l.worker()
	for i := range n {
		decide(address(i), "")
	}
	runtime.GC()
	var worst time.Duration
	for i := range n {
		before := measure.ThreadCPU()
		decide(address(n+i), "")
		worst = max(worst, measure.ThreadCPU()-before)
	}
	return worst, nil
}
