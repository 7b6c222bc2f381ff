// Command crashserver is the CA with a bomb in it: it kills itself, as kill -9
// would, at one named point between the intent and the answer. It is the
// product's own app room with its keys and its database wrapped; the product
// itself knows nothing of it.
//
//	crashserver CONFIG POINT NTH SIGNLOG
//
// POINT is where (see the points below), NTH which time that it is passed, 0 for
// never. Each signature of a certificate is noted in SIGNLOG, by its digest,
// once before it is made ("try") and once after ("made").
//
// CRASH_FAULTS is how many of a hundred signatures fail or are late, in the ways
// in which devices do; none if it is not set.
package main

import (
	"context"
	"crypto"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/secsy-pki/secsy-pki/app"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/store"
)

// The points, in the order in which an issuance passes them.
const (
	inBegin      = "in-begin"      // the statements of the intent have run, uncommitted
	afterBegin   = "after-begin"   // the intent is durable
	beforeSign   = "before-sign"   // the key is about to be used
	afterSign    = "after-sign"    // the signature exists, in memory only
	inCommit     = "in-commit"     // the statements of the certificate have run, uncommitted
	afterCommit  = "after-commit"  // the certificate is durable, the client has not heard
	afterAnother = "after-another" // like after-commit, while others are under way
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "crashserver:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 4 {
		return errors.New("usage: crashserver CONFIG POINT NTH SIGNLOG")
	}
	cfg, err := config.Load(args[0])
	if err != nil {
		return err
	}
	nth, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return fmt.Errorf("reading NTH: %w", err)
	}
	log, err := os.OpenFile(args[3], os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	b := &bomb{point: args[1], nth: nth}
	if f := os.Getenv("CRASH_FAULTS"); f != "" {
		if b.faults, err = strconv.Atoi(f); err != nil {
			return fmt.Errorf("reading CRASH_FAULTS: %w", err)
		}
	}
	return app.Run(ctx, app.Options{
		Config: cfg, ConfigPath: args[0], Version: "crash", Stdout: os.Stdout, Stderr: os.Stderr,
		Wrap: app.Wrap{
			Keys:   func(k app.KeyStore) app.KeyStore { return keyStore{k, b, log} },
			Engine: func(e store.Engine) store.Engine { return engine{e, b} },
		},
	})
}

// bomb goes off the nth time that its point is passed.
type bomb struct {
	point  string
	nth    int64
	passed atomic.Int64
	faults int
}

var errDevice = errors.New("CKR_DEVICE_ERROR")

// fault is what goes wrong with a signature, if anything does.
func (b *bomb) fault() (f fault) {
	if rand.IntN(100) >= b.faults {
		return f
	}
	switch rand.IntN(4) {
	case 0:
		f.before = keys.ErrBusy // not called
	case 1:
		f.before = errDevice // not signed, but who knows
	case 2:
		f.after = errDevice // signed, and not returned
	default:
		f.late = 500 * time.Millisecond
	}
	return f
}

type fault struct {
	before, after error
	late          time.Duration
}

func (b *bomb) pass(point string) {
	if b.point != point || b.passed.Add(1) != b.nth {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until the kernel has done it
}

// engine passes the points of the database.
type engine struct {
	store.Engine
	bomb *bomb
}

func (e engine) Write(ctx context.Context, fn func(ctx context.Context, tx store.Tx) error) error {
	var seen *spy
	err := e.Engine.Write(ctx, func(ctx context.Context, tx store.Tx) error {
		s := &spy{Tx: tx}
		seen = s
		err := fn(ctx, s)
		if err == nil {
			switch {
			case s.begins:
				e.bomb.pass(inBegin)
			case s.commits:
				e.bomb.pass(inCommit)
			}
		}
		return err
	})
	if err == nil && seen != nil {
		switch {
		case seen.begins:
			e.bomb.pass(afterBegin)
		case seen.commits:
			e.bomb.pass(afterCommit)
			e.bomb.pass(afterAnother)
		}
	}
	return err
}

// spy looks at what a transaction does to certificates.
type spy struct {
	store.Tx
	begins, commits bool
}

func (s *spy) Exec(ctx context.Context, q string, args ...any) (int64, error) {
	switch {
	case strings.HasPrefix(q, "INSERT INTO certificates "):
		s.begins = true
	case strings.HasPrefix(q, "UPDATE certificates SET state = 'issued'"):
		s.commits = true
	}
	return s.Tx.Exec(ctx, q, args...)
}

// keyStore passes the points of the signature and keeps the sign log.
type keyStore struct {
	app.KeyStore
	bomb *bomb
	log  *os.File
}

func (s keyStore) Key(ctx context.Context, label string) (keys.Key, error) {
	k, err := s.KeyStore.Key(ctx, label)
	if err != nil {
		return nil, err
	}
	return &key{Key: k, bomb: s.bomb, log: s.log}, nil
}

func (s keyStore) Generate(ctx context.Context, label string, alg keys.Algorithm) (keys.Key, error) {
	k, err := s.KeyStore.Generate(ctx, label, alg)
	if err != nil {
		return nil, err
	}
	return &key{Key: k, bomb: s.bomb, log: s.log}, nil
}

type key struct {
	keys.Key
	bomb *bomb
	mu   sync.Mutex
	log  *os.File
}

func (k *key) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if !forCertificate() {
		return k.Key.Sign(ctx, digest, opts)
	}
	f := k.bomb.fault()
	if f.before != nil {
		return nil, f.before
	}
	time.Sleep(f.late)
	k.bomb.pass(beforeSign)
	k.note("try", digest)
	sig, err := k.Key.Sign(ctx, digest, opts)
	if err == nil {
		k.note("made", digest)
		k.bomb.pass(afterSign)
	}
	if err == nil && f.after != nil {
		return nil, f.after
	}
	return sig, err
}

func (k *key) note(what string, digest []byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, err := fmt.Fprintln(k.log, what, hex.EncodeToString(digest)); err != nil {
		panic(err)
	}
}

// forCertificate says whether ca asked for the signature, and not crl or ocsp,
// which use the same kind of key for their own things.
func forCertificate() bool {
	pcs := make([]uintptr, 32)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		switch {
		case strings.Contains(f.Function, "secsy-pki/crl."), strings.Contains(f.Function, "secsy-pki/ocsp."):
			return false
		case strings.Contains(f.Function, "secsy-pki/ca.(*Authority)"):
			return true
		case !more:
			return false
		}
	}
}
