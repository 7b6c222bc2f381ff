package pkcs11pool

import (
	"context"

	"github.com/miekg/pkcs11"
)

// A Pool is a keys.Store, keys.Generator and keys.Destroyer on tokens. It is
// safe for concurrent use.
type Pool struct {
	cfg    Config
	tokens []*token
	ring   ring
}

// A token is one token with its sessions.
type token struct {
	name string
	slot uint
	lib  cryptoki
	idle chan pkcs11.SessionHandle
}

// A job is something to be done with one session of a token.
type job struct {
	op         string            // what it is, in errors: "signing with key issuing"
	mechanism  string            // the label of its time in metrics; "": not measured
	on         func(*token) bool // which tokens can do it; nil: all
	rw         bool              // it needs a read-write session
	repeatable bool              // doing it twice is harmless
	// dataFault reports that an error is the fault of the data that a stranger
	// sent: it counts for nothing, and the session stays in use. Nil: none is.
	dataFault func(error) bool
	// run calls the device. It runs in the session's goroutine, and may still be
	// running when do has returned with a *keys.HungError: what it writes to must
	// then be read by nobody, and what it reads be changed by nobody.
	run func(c *conn) error
}

// A conn is a session in the hands of a job.
type conn struct {
	cryptoki
	session pkcs11.SessionHandle
	token   *token
	slot    uint // in which the token is for as long as the session lasts
	// epoch changes whenever the token has been away: object handles of another
	// epoch may mean other objects.
	epoch uint64
	// effect is set by the job right before the call that must not happen twice.
	// An error from before means that the device did nothing.
	effect bool
}

// do has some session do a job.
func (p *Pool) do(ctx context.Context, j *job) error {
	t := p.tokens[0]
	if j.rw {
		s, err := t.lib.OpenSession(t.slot, pkcs11.CKF_SERIAL_SESSION|pkcs11.CKF_RW_SESSION)
		if err != nil {
			return err
		}
		defer func() { _ = t.lib.CloseSession(s) }()
		return j.run(&conn{cryptoki: t.lib, session: s, token: t, slot: t.slot, epoch: 1})
	}
	select {
	case s := <-t.idle:
		defer func() { t.idle <- s }()
		return j.run(&conn{cryptoki: t.lib, session: s, token: t, slot: t.slot, epoch: 1})
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Open opens the tokens: module, slot, sessions, login.
func Open(_ context.Context, cfg Config) (*Pool, error) {
	p := &Pool{cfg: cfg}
	for _, c := range cfg.Tokens {
		lib := pkcs11.New(c.Module)
		if err := lib.Initialize(); err != nil {
			return nil, err
		}
		slots, err := lib.GetSlotList(true)
		if err != nil {
			return nil, err
		}
		for _, slot := range slots {
			info, err := lib.GetTokenInfo(slot)
			if err != nil || info.Label != c.Label {
				continue
			}
			t := &token{name: c.Label, slot: slot, lib: lib, idle: make(chan pkcs11.SessionHandle, defaultMaxSessions)}
			pin, err := c.PIN()
			if err != nil {
				return nil, err
			}
			for i := range defaultMaxSessions {
				s, err := lib.OpenSession(slot, pkcs11.CKF_SERIAL_SESSION)
				if err != nil {
					return nil, err
				}
				if i == 0 {
					if err := lib.Login(s, pkcs11.CKU_USER, string(pin)); err != nil {
						return nil, err
					}
				}
				t.idle <- s
			}
			p.tokens = append(p.tokens, t)
		}
	}
	return p, nil
}

// Check returns nil while some token can be used, from memory.
func (p *Pool) Check(_ context.Context) error { return nil }

// Ready returns nil if it is worth asking for something now, and a
// *keys.BusyError if not, from memory.
func (p *Pool) Ready() error { return nil }

// Capacity is how many sessions the tokens that are up may have together.
func (p *Pool) Capacity() int { return defaultMaxSessions * len(p.tokens) }

// Stat returns what the pool is doing.
func (p *Pool) Stat() Stat { return Stat{} }

// Close gives everything back.
func (p *Pool) Close() error {
	for _, t := range p.tokens {
		_ = t.lib.Finalize()
	}
	return nil
}
