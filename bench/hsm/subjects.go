package main

import (
	"context"
	"crypto"
	"crypto/rand"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/ThalesGroup/crypto11"
	"github.com/letsencrypt/pkcs11key/v4"
	"github.com/miekg/pkcs11"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/hsmguard"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/pkcs11pool"
	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

const maxWorkers = 64

// A sign makes one signature for a worker, and reports a *keys.BusyError for none.
type sign func(worker int) ([]byte, error)

// A subject is a way to sign with the keys of a token.
type subject struct {
	what string // it is, with its version
	// able says whether it can sign with such a key; nil: with all.
	able func(kind) bool
	// alone says that it initializes the module itself, and wants nobody else to
	// have done so.
	alone bool
	// open opens the sessions, and returns how a signature is made with a key.
	open func(h *host, p place) (func(kind) (sign, error), error)
}

// A place is a token and how many sessions of it there are.
type place struct {
	module   string
	token    string
	sessions int
}

// The subjects.
const (
	bareName    = "bare calls"
	lineName    = "bare calls, channel"
	findName    = "bare calls, find each time"
	oursName    = "guard and pool"
	poolName    = "pool"
	cryptoName  = "crypto11"
	pkcs11kName = "pkcs11key"
)

var subjects = map[string]subject{
	bareName: {what: "C_SignInit and C_Sign by github.com/miekg/pkcs11 " + version("github.com/miekg/pkcs11") +
		", each worker with a session and the key's handle of its own", open: openBare},
	lineName: {what: "the same, with the sessions in a channel", open: openLine},
	findName: {what: "the same, looking for the key each time", open: openFind},
	oursName: {what: "hsmguard and pkcs11pool, with metrics", open: openOurs},
	poolName: {what: "pkcs11pool alone", open: openPool},
	cryptoName: {
		what: "github.com/ThalesGroup/crypto11 " + version("github.com/ThalesGroup/crypto11"), open: openCrypto11,
		able: func(k kind) bool { return k.mech != mechEdDSA },
	},
	pkcs11kName: {
		what: "github.com/letsencrypt/pkcs11key/v4 " + version("github.com/letsencrypt/pkcs11key/v4") + ", with a copy of the module of its own",
		open: openPKCS11Key, alone: true,
		able: func(k kind) bool { return k.mech != mechEdDSA },
	},
}

// version is that of a module this program is built with.
func version(module string) string {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, m := range info.Deps {
			if m.Path == module {
				return m.Version
			}
		}
	}
	return "of unknown version"
}

// bare are sessions without anything around them.
type bare struct {
	lib      *pkcs11.Ctx
	sessions []pkcs11.SessionHandle
}

func newBare(h *host, p place) (*bare, error) {
	lib, err := h.load(p.module)
	if err != nil {
		return nil, err
	}
	b := &bare{lib: lib}
	for range p.sessions {
		s, err := login(lib, p.token)
		if err != nil {
			return nil, err
		}
		b.sessions = append(b.sessions, s)
	}
	return b, nil
}

func (b *bare) find(s pkcs11.SessionHandle, label string) (pkcs11.ObjectHandle, error) {
	err := b.lib.FindObjectsInit(s, []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PRIVATE_KEY), pkcs11.NewAttribute(pkcs11.CKA_LABEL, label),
	})
	if err != nil {
		return 0, fmt.Errorf("C_FindObjectsInit: %w", err)
	}
	found, _, err := b.lib.FindObjects(s, 1)
	if err := errors.Join(err, b.lib.FindObjectsFinal(s)); err != nil {
		return 0, fmt.Errorf("C_FindObjects: %w", err)
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("no key is labelled %q", label)
	}
	return found[0], nil
}

func (b *bare) sign(s pkcs11.SessionHandle, k kind, mech []*pkcs11.Mechanism, key pkcs11.ObjectHandle) ([]byte, error) {
	if err := b.lib.SignInit(s, mech, key); err != nil {
		return nil, fmt.Errorf("C_SignInit: %w", err)
	}
	return b.lib.Sign(s, k.input)
}

func openBare(h *host, p place) (func(kind) (sign, error), error) {
	b, err := newBare(h, p)
	if err != nil {
		return nil, err
	}
	return func(k kind) (sign, error) {
		mech := []*pkcs11.Mechanism{pkcs11.NewMechanism(k.mech, nil)}
		key, err := b.find(b.sessions[0], k.name)
		return func(worker int) ([]byte, error) { return b.sign(b.sessions[worker], k, mech, key) }, err
	}, nil
}

func openLine(h *host, p place) (func(kind) (sign, error), error) {
	b, err := newBare(h, p)
	if err != nil {
		return nil, err
	}
	free := make(chan pkcs11.SessionHandle, p.sessions)
	for _, s := range b.sessions {
		free <- s
	}
	return func(k kind) (sign, error) {
		mech := []*pkcs11.Mechanism{pkcs11.NewMechanism(k.mech, nil)}
		key, err := b.find(b.sessions[0], k.name)
		return func(int) ([]byte, error) {
			s := <-free
			defer func() { free <- s }()
			return b.sign(s, k, mech, key)
		}, err
	}, nil
}

func openFind(h *host, p place) (func(kind) (sign, error), error) {
	b, err := newBare(h, p)
	if err != nil {
		return nil, err
	}
	return func(k kind) (sign, error) {
		mech := []*pkcs11.Mechanism{pkcs11.NewMechanism(k.mech, nil)}
		return func(worker int) ([]byte, error) {
			key, err := b.find(b.sessions[worker], k.name)
			if err != nil {
				return nil, err
			}
			return b.sign(b.sessions[worker], k, mech, key)
		}, nil
	}, nil
}

func newPool(h *host, p place) (*pkcs11pool.Pool, error) {
	pool, err := pkcs11pool.Open(context.Background(), pkcs11pool.Config{
		Tokens: []pkcs11pool.TokenConfig{{
			Module: p.module, Label: p.token, PIN: func() ([]byte, error) { return []byte(pkcs11test.PIN), nil },
		}},
		MinSessions: p.sessions, MaxSessions: p.sessions, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		return nil, err
	}
	h.onClose(pool.Close)
	return pool, nil
}

func openPool(h *host, p place) (func(kind) (sign, error), error) {
	pool, err := newPool(h, p)
	if err != nil {
		return nil, err
	}
	return signWith(pool), nil
}

// openOurs is as the program is put together: as many seats as sessions.
func openOurs(h *host, p place) (func(kind) (sign, error), error) {
	pool, err := newPool(h, p)
	if err != nil {
		return nil, err
	}
	g, err := gate.New(gate.Config{Seats: p.sessions, MaxQueue: 2 * maxWorkers, MaxWait: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	return signWith(hsmguard.New(hsmguard.Config{Gate: g}).Keys(pool)), nil
}

// signWith signs for each worker as for an account of its own.
func signWith(s keys.Store) func(kind) (sign, error) {
	var as [maxWorkers]context.Context
	for i := range as {
		as[i] = peer.WithIdentity(context.Background(), fmt.Sprintf("acme:account/%d", i))
	}
	return func(k kind) (sign, error) {
		key, err := s.Key(context.Background(), k.name)
		if err != nil {
			return nil, err
		}
		return func(worker int) ([]byte, error) { return key.Sign(as[worker], k.message, k.opts) }, nil
	}
}

// openCrypto11 gives it one session more: it keeps one for itself.
func openCrypto11(h *host, p place) (func(kind) (sign, error), error) {
	c, err := crypto11.Configure(&crypto11.Config{Path: p.module, TokenLabel: p.token, Pin: pkcs11test.PIN, MaxSessions: p.sessions + 1})
	if err != nil {
		return nil, err
	}
	h.onClose(c.Close)
	return func(k kind) (sign, error) {
		key, err := c.FindKeyPair(nil, []byte(k.name))
		if err != nil {
			return nil, err
		}
		return signer(key, k), nil
	}, nil
}

func openPKCS11Key(h *host, p place) (func(kind) (sign, error), error) {
	return func(k kind) (sign, error) {
		pool, err := pkcs11key.NewPool(p.sessions, p.module, p.token, pkcs11test.PIN, h.public[p.token][k.name])
		if err != nil {
			return nil, err
		}
		h.onClose(pool.Destroy)
		return signer(pool, k), nil
	}, nil
}

func signer(key crypto.Signer, k kind) sign {
	return func(int) ([]byte, error) { return key.Sign(rand.Reader, k.message, k.opts) }
}
