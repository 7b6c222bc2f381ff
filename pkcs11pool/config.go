package pkcs11pool

import (
	"log/slog"
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
	// Resized is told how many sessions the tokens that are up may have
	// together, whenever that changes. It must return without waiting for
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
	// PIN is asked once, before the first login. Nil: the token wants no login.
	PIN func() ([]byte, error)
}

const (
	defaultMaxSessions = 8
	defaultIdleTime    = 10 * time.Minute
	defaultMaxQueue    = 1024
	defaultCallTimeout = 30 * time.Second
)
