package pkcs11pool

import "time"

// A Stat is what a Pool was doing at one moment, and what it has done so far.
type Stat struct {
	Tokens   []TokenStat   // in the order of the configuration
	Queued   int           // those who wait for a session
	Waits    uint64        // of those who found none idle
	WaitTime time.Duration // of all of them together
	// Refused is how often the device was not called, by the reason of the
	// *keys.BusyError.
	Refused map[string]uint64
}

// A TokenStat is the part of one token in a Stat.
type TokenStat struct {
	Name  string
	State State

	// Its sessions. All four together are never more than MaxSessions, and one
	// more while a token that is down is looked at.
	Idle    int
	Busy    int
	Opening int // or being closed
	Hung    int // in a call that has taken longer than CallTimeout

	Borrows   uint64            // how often a session was lent
	Errors    map[string]uint64 // of jobs and of recovery, by class
	Reopened  uint64            // sessions opened in place of one that was discarded
	Recovered uint64            // how often the token came back
	Restarted uint64            // how often its module was initialized anew for it
}

// A State says whether a token can be used.
type State uint8

// The states of a token.
const (
	Down    State = iota // being brought back
	Up                   // in use
	Refused              // its PIN was not accepted, or must not be tried
)

func (s State) String() string {
	return [...]string{"down", "up", "refused"}[s]
}
