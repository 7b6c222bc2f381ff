package main

import (
	"context"
	"crypto"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/hsmguard"
	"github.com/secsy-pki/secsy-pki/keys"
)

// The device that all is measured with.
const (
	seats   = 8
	service = 5 * time.Millisecond // on average
	queue   = 64
	wait    = 5 * time.Second
)

// capacity is how many signatures a second the device makes at best.
const capacity = float64(seats) * float64(time.Second) / float64(service)

// A device stands for an HSM: it has so many sessions, each signature takes an
// exponentially distributed time, and meanwhile nothing is computed here.
type device struct {
	sessions chan struct{}

	mu     sync.Mutex // guards random
	random *rand.Rand
}

func newDevice(seed uint64) *device {
	return &device{sessions: make(chan struct{}, seats), random: rand.New(rand.NewPCG(seed, 0x646576696365))}
}

// Key implements keys.Store: every label is a key.
func (d *device) Key(context.Context, string) (keys.Key, error) { return d, nil }

// Public implements keys.Key. Nobody verifies what the device signs.
func (d *device) Public() crypto.PublicKey { return nil }

// Sign implements keys.Key. What has begun is not broken off.
func (d *device) Sign(context.Context, []byte, crypto.SignerOpts) ([]byte, error) {
	d.sessions <- struct{}{}
	defer func() { <-d.sessions }()
	time.Sleep(d.serviceTime())
	return nil, nil
}

func (d *device) serviceTime() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Duration(d.random.ExpFloat64() * float64(service))
}

// A protection is a way to stand before a device.
type protection struct {
	name    string
	protect func(keys.Store) (keys.Store, error)
}

// ours is the guard of this program as it is configured by default.
var ours = protection{"ours", func(s keys.Store) (keys.Store, error) {
	g, err := gate.New(gate.Config{Seats: seats, MaxQueue: queue, MaxWait: wait})
	if err != nil {
		return nil, err
	}
	return hsmguard.New(hsmguard.Config{Gate: g}).Keys(s), nil
}}

// fifo is what a guard often is: a channel for the seats, a counter for those
// who wait, and one line for all.
var fifo = protection{"fifo", func(s keys.Store) (keys.Store, error) {
	return &fifoStore{inner: s, seats: make(chan struct{}, seats)}, nil
}}

var (
	errFull    = errors.New("the line is full")
	errTimeout = errors.New("waited too long")
)

type fifoStore struct {
	inner   keys.Store
	seats   chan struct{}
	waiting atomic.Int64
}

// Key implements keys.Store.
func (f *fifoStore) Key(ctx context.Context, label string) (keys.Key, error) {
	k, err := f.inner.Key(ctx, label)
	if err != nil {
		return nil, err
	}
	return fifoKey{k, f}, nil
}

func (f *fifoStore) acquire(ctx context.Context) error {
	select {
	case f.seats <- struct{}{}:
		return nil
	default:
	}
	if f.waiting.Add(1) > queue {
		f.waiting.Add(-1)
		return errFull
	}
	defer f.waiting.Add(-1)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case f.seats <- struct{}{}:
		return nil
	case <-timer.C:
		return errTimeout
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fifoStore) release() { <-f.seats }

type fifoKey struct {
	keys.Key
	guard *fifoStore
}

// Sign implements keys.Key.
func (k fifoKey) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if err := k.guard.acquire(ctx); err != nil {
		return nil, err
	}
	defer k.guard.release()
	return k.Key.Sign(ctx, digest, opts)
}
