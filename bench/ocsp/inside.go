package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/measure"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/hsmguard"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/ocsp"
	"github.com/secsy-pki/secsy-pki/pkcs11pool"
	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

// A sink takes an answer.
type sink struct {
	header http.Header
	octets int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(int)             {}
func (s *sink) Write(p []byte) (int, error) { s.octets = len(p); return len(p), nil }

// files is a store of keys in files.
func (b *bench) files() (ocsp.KeyStore, error) {
	secret := filepath.Join(b.dir, "passphrase")
	if err := os.WriteFile(secret, []byte("of a bench"), 0o600); err != nil {
		return nil, err
	}
	dir := filepath.Join(b.dir, "keys")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return keys.OpenFiles(keys.FilesConfig{Dir: dir, Passphrase: keys.Passphrase{File: secret}})
}

// handler is the processor time and the allocations of a ready answer to a GET,
// in the handler alone.
func (b *bench) handler() (ns, allocs float64, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store, err := b.files()
	if err != nil {
		return 0, 0, err
	}
	s, err := desk{b.inside, store}.server(ctx)
	if err != nil {
		return 0, 0, err
	}
	handler, requests := s.Handler(), make([]*http.Request, 0, certificates)
	for _, q := range b.inside.queries {
		target := "/ocsp/" + url.QueryEscape(base64.StdEncoding.EncodeToString(q))
		requests = append(requests, &http.Request{Method: http.MethodGet, RequestURI: target, Header: http.Header{}})
	}
	w := &sink{header: http.Header{}}
	const calls = 200_000
	var times, objects measure.Sample
	for round := range b.rounds + 1 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		began := measure.CPU()
		for i := range calls {
			handler.ServeHTTP(w, requests[i%len(requests)])
			if w.octets < 100 {
				return 0, 0, errors.New("the handler does not sign")
			}
		}
		took := measure.CPU() - began
		runtime.ReadMemStats(&after)
		if round > 0 { // the first signs
			times = append(times, float64(took.Nanoseconds())/calls)
			objects = append(objects, float64(after.Mallocs-before.Mallocs)/calls)
		}
	}
	fmt.Fprintf(b.out, "\nhandler alone, a ready GET: %s ns of CPU, %s allocations\n", times, objects)
	return times.Median(), objects.Median(), nil
}

// signing is the rate of answers that are signed, for nonces, as a share of the
// rate of signatures alone with the same key by as many at once.
func (b *bench) signing(ctx context.Context) (float64, error) {
	files, err := b.files()
	if err != nil {
		return 0, err
	}
	if _, err := b.signed(ctx, "keys in files", files); err != nil {
		return 0, err
	}
	hsm, err := pkcs11test.New(filepath.Join(b.dir, "hsm"), 1)
	if err != nil {
		return 0, err
	}
	if err := os.Setenv("SOFTHSM2_CONF", hsm.Conf); err != nil {
		return 0, err
	}
	const sessions = 8
	pool, err := pkcs11pool.Open(ctx, pkcs11pool.Config{
		Tokens:      []pkcs11pool.TokenConfig{{Module: hsm.Module, Label: "token-1", PIN: func() ([]byte, error) { return []byte(pkcs11test.PIN), nil }}},
		MinSessions: sessions, MaxSessions: sessions,
	})
	if err != nil {
		return 0, err
	}
	defer func() { _ = pool.Close() }()
	g, err := gate.New(gate.Config{Seats: sessions, MaxQueue: 64, MaxWait: 5 * time.Second})
	if err != nil {
		return 0, err
	}
	guarded, ok := hsmguard.New(hsmguard.Config{Gate: g}).Keys(pool).(ocsp.KeyStore)
	if !ok {
		return 0, errors.New("the guard makes no keys")
	}
	return b.signed(ctx, "SoftHSM, guard and pool", guarded)
}

func (b *bench) signed(ctx context.Context, name string, store ocsp.KeyStore) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d := desk{b.inside, store}
	s, err := d.server(ctx)
	if err != nil {
		return 0, err
	}
	key, err := store.Key(ctx, d.label())
	if err != nil {
		return 0, err
	}
	handler, digest := s.Handler(), sha256.Sum256([]byte("what is signed"))
	bodies := make([][]byte, certificates) // made before: that is the client's work
	for i, q := range b.inside.queries {
		bodies[i] = withNonce(q, uint64(i))
	}
	blank, err := http.NewRequestWithContext(ctx, http.MethodPost, "/ocsp", http.NoBody)
	if err != nil {
		return 0, err
	}
	answer := func(i int) error {
		r := blank.WithContext(ctx)
		r.Body = io.NopCloser(bytes.NewReader(bodies[i%certificates]))
		w := &sink{header: http.Header{}}
		handler.ServeHTTP(w, r)
		if w.octets < 100 {
			return fmt.Errorf("an answer of %d octets is not signed", w.octets)
		}
		return nil
	}
	alone := func(int) error {
		_, err := key.Sign(keys.Repeatable(keys.WithPurpose(ctx, keys.ForOne)), digest[:], crypto.SHA256)
		return err
	}
	var answers, signatures, answerCPU, signatureCPU measure.Sample
	for range b.rounds {
		for _, x := range []struct {
			do      func(int) error
			to, cpu *measure.Sample
		}{{answer, &answers, &answerCPU}, {alone, &signatures, &signatureCPU}} {
			rate, cpu, err := rateOf(b.length/2, x.do)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			*x.to, *x.cpu = append(*x.to, rate), append(*x.cpu, cpu)
		}
	}
	share := ratios(answers, signatures)
	fmt.Fprintf(b.out, "%s: signed answers %s a second, signatures alone %s: %s\n", name, answers, signatures, share)
	fmt.Fprintf(b.out, "%s: us of CPU for an answer %s, for a signature %s: %s\n", name, answerCPU, signatureCPU, ratios(answerCPU, signatureCPU))
	return share.Median(), nil
}

// rateOf has eight at once do something, and says how often a second, and what
// each took of the processors, in microseconds.
func rateOf(length time.Duration, do func(int) error) (rate, cpu float64, err error) {
	const workers = 8
	var n atomic.Int64
	var mu sync.Mutex // guards failed
	var failed error
	var all sync.WaitGroup
	began, used := time.Now(), measure.CPU()
	for w := range workers {
		all.Go(func() {
			for i := w; time.Since(began) < length; i += workers {
				if err := do(i); err != nil {
					mu.Lock()
					defer mu.Unlock()
					failed = errors.Join(failed, err)
					return
				}
				n.Add(1)
			}
		})
	}
	all.Wait()
	done := float64(n.Load())
	return done / time.Since(began).Seconds(), float64((measure.CPU() - used).Microseconds()) / done, failed
}
