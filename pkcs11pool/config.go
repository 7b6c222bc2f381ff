package pkcs11pool

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config is what a Pool needs. Zero values mean what the comments say.
type Config struct {
	Tokens []TokenConfig // one or more, which hold the same keys

	MinSessions int           // of each token, kept open: 1
	MaxSessions int           // of each token: 8
	IdleTime    time.Duration // after which a session above the least is closed: 10 minutes
	MaxQueue    int           // how many may wait for a session: 1024

	// CallTimeout is how long a call of the device is waited for. One that takes
	// longer hangs: its session is out of use until it returns. 30 seconds.
	CallTimeout time.Duration
	// MaxHung is how many calls of a token may hang before it counts as down:
	// half of MaxSessions, rounded up.
	MaxHung int

	// Lenient opens a pool none of whose tokens can be reached at the moment, and
	// goes on trying. A wrong PIN and a module that can't be loaded are errors
	// nevertheless.
	Lenient bool

	Logger     *slog.Logger          // nil: silent
	Registerer prometheus.Registerer // nil: no metrics
	// Resized is told how many sessions the tokens that are up may have together,
	// 0 included, whenever that changes. It must return without waiting for
	// anything. Nil: nobody is told.
	Resized func(sessions int)
}

// A TokenConfig names one token and says how to log in. All of Label, Serial
// and Slot that are given must fit; exactly one token may.
type TokenConfig struct {
	Name   string // in logs and metrics; "" means Label, or else "slot N"
	Module string // path of the PKCS#11 module
	Label  string // CKA_LABEL of the token, without padding
	Serial string // of the token
	Slot   *uint  // slot ID; not stable with every vendor
	// PIN is asked once, before the first login, and what it returns is cleared
	// when the pool is closed. Nil: the token wants no login.
	PIN func() ([]byte, error)
}

const (
	defaultMaxSessions = 8
	defaultIdleTime    = 10 * time.Minute
	defaultMaxQueue    = 1024
	defaultCallTimeout = 30 * time.Second
	mostSessions       = 4096 // more are a mistake
)

// complete returns a Config without zero values, or says what is wrong with it.
func (c Config) complete() (Config, error) {
	c.MinSessions = or(c.MinSessions, 1)
	c.MaxSessions = or(c.MaxSessions, max(defaultMaxSessions, c.MinSessions))
	c.IdleTime = or(c.IdleTime, defaultIdleTime)
	c.MaxQueue = or(c.MaxQueue, defaultMaxQueue)
	c.CallTimeout = or(c.CallTimeout, defaultCallTimeout)
	c.MaxHung = or(c.MaxHung, (c.MaxSessions+1)/2)
	c.Logger = or(c.Logger, slog.New(slog.DiscardHandler))
	switch {
	case len(c.Tokens) == 0:
		return c, errors.New("pkcs11pool: no token is configured")
	case c.MinSessions < 1 || c.MaxSessions < c.MinSessions || c.MaxSessions > mostSessions:
		return c, fmt.Errorf("pkcs11pool: from %d to %d sessions: the least must be at least 1, and the most from that to %d", c.MinSessions, c.MaxSessions, mostSessions)
	case c.IdleTime < 0 || c.CallTimeout < 0:
		return c, fmt.Errorf("pkcs11pool: idle time %v and call timeout %v must not be negative", c.IdleTime, c.CallTimeout)
	case c.MaxQueue < 0:
		return c, fmt.Errorf("pkcs11pool: a queue of %d must not be negative", c.MaxQueue)
	case c.MaxHung < 1 || c.MaxHung > c.MaxSessions:
		return c, fmt.Errorf("pkcs11pool: %d calls that may hang: must be from 1 to the %d sessions", c.MaxHung, c.MaxSessions)
	}
	return c.nameTokens()
}

// nameTokens gives each token a name of its own.
func (c Config) nameTokens() (Config, error) {
	tokens := make([]TokenConfig, len(c.Tokens))
	taken := map[string]bool{}
	for i, t := range c.Tokens {
		switch {
		case t.Module == "":
			return c, fmt.Errorf("pkcs11pool: token %d: no module", i+1)
		case t.Label == "" && t.Serial == "" && t.Slot == nil:
			return c, fmt.Errorf("pkcs11pool: token %d: no label, serial or slot to know it by", i+1)
		}
		if t.Name == "" {
			t.Name = t.Label
		}
		if t.Name == "" && t.Slot != nil {
			t.Name = "slot " + strconv.FormatUint(uint64(*t.Slot), 10)
		}
		t.Name = or(t.Name, t.Serial)
		if taken[t.Name] {
			return c, fmt.Errorf("pkcs11pool: two tokens are named %q", t.Name)
		}
		taken[t.Name] = true
		tokens[i] = t
	}
	c.Tokens = tokens
	return c, nil
}

// or is v, or what stands for its zero value.
func or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}
