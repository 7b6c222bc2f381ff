package gate_test

import (
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
)

func BenchmarkUncontended(b *testing.B) {
	g := newGate(b, eight)
	b.Run("release", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			release, err := g.Acquire(b.Context(), gate.Issuance, "a")
			if err != nil {
				b.Fatal(err)
			}
			release()
		}
	})
	b.Run("seat", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s, err := g.AcquireSeat(b.Context(), gate.Issuance, "a")
			if err != nil {
				b.Fatal(err)
			}
			s.Release()
		}
	})
}

// BenchmarkRefused is what one request of a flood costs while all seats and all
// places of the queue are taken by as many identities, one by one or by a crowd.
func BenchmarkRefused(b *testing.B) {
	for _, queue := range []int{64, 4096} {
		for _, each := range []int{1, 2} {
			b.Run(strconv.Itoa(queue)+" waiting, "+strconv.Itoa(each)+" each", func(b *testing.B) {
				g := newGate(b, gate.Config{Seats: 1, MaxQueue: queue, MaxWait: time.Hour})
				s := seat(b, g, gate.Issuance, "x")
				var all sync.WaitGroup
				for i := range queue {
					all.Go(func() {
						if s, err := g.AcquireSeat(background, gate.Issuance, strconv.Itoa(i/each)); err == nil {
							s.Release()
						}
					})
				}
				for g.Stat().Queued < queue {
					time.Sleep(time.Millisecond)
				}
				b.ReportAllocs()
				b.ResetTimer()
				for b.Loop() {
					if _, err := g.AcquireSeat(b.Context(), gate.Issuance, "0"); err == nil {
						b.Fatal("a seat")
					}
				}
				b.StopTimer()
				s.Release()
				all.Wait()
			})
		}
	}
}

// BenchmarkContended is one seat taken and given back, with 64 after eight seats.
func BenchmarkContended(b *testing.B) {
	g := newGate(b, gate.Config{Seats: 8, MaxQueue: 64, MaxWait: time.Minute})
	var all sync.WaitGroup
	var left, refusals atomic.Int64
	left.Store(int64(b.N))
	b.ReportAllocs()
	b.ResetTimer()
	for i := range 64 {
		all.Go(func() {
			for left.Add(-1) >= 0 {
				s, err := g.AcquireSeat(b.Context(), gate.Class(i)%gate.Classes, strconv.Itoa(i))
				if err != nil {
					refusals.Add(1)
					continue
				}
				s.Release()
			}
		})
	}
	all.Wait()
	b.ReportMetric(float64(refusals.Load())/float64(b.N), "refused/op")
}
