package pkcs11pool

import (
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/miekg/pkcs11"
)

var (
	errAmbiguous = errors.New("more than one token fits")
	errNoPIN     = errors.New("the token wants a login, and there is no PIN for it")
)

// permanent reports whether no time will heal an error of finding a token.
func permanent(err error) bool {
	return errors.Is(err, ErrPIN) || errors.Is(err, errAmbiguous) || errors.Is(err, errNoPIN)
}

// A token is one token with its sessions.
type token struct {
	pool    *Pool
	index   int // among the pool's
	name    string
	cfg     TokenConfig
	module  *module
	pin     []byte
	latency latencies
	there   atomic.Int32  // sessions that are open at the device
	shaken  atomic.Uint64 // how often object handles may have come to mean other objects while it was up
	wake    chan struct{} // tells its keeper to look at it
	first   chan error    // gets what came of the first attempt
	private atomic.Bool   // it wants a login, and without one hides its keys
	writes  atomic.Bool   // all its sessions are read-write ones
	doubt   atomic.Bool   // a login has failed, and it did not say that it was for the PIN

	// Guarded by the pool's mutex.
	state State
	cause error // why it is not up
	since time.Time
	// epoch rises whenever it goes down. Sessions of an earlier one are not lent
	// any more, and it is not brought back while there are any but hung ones.
	epoch   atomic.Uint64 // read without the mutex, too
	init    uint32        // initialization of the module that its sessions are of
	slot    uint
	info    pkcs11.TokenInfo
	limit   int       // of sessions: MaxSessions, or fewer if the token has no more
	learned time.Time // when the token had no more; zero: it has not said so
	idle    []*session
	count   [sessionStates]int
	rw      bool // one of its sessions is lent for a read-write job
	strikes int  // suspicious errors since something worked
	worked  bool // something has, since it is up
	everUp  bool
	pause   time.Duration
	atOnce  bool      // its module is another, so there is no pause before the next attempt
	next    time.Time // when it is tried next
	wanting int       // sessions discarded for a fault and not yet replaced
	opening retries   // of sessions, which has failed though it is up

	borrows, reopened, recovered, reinitialized uint64
	errors                                      [classes]uint64
	hangs                                       uint64
}

// objects is what holds for as long as its object handles do.
func (t *token) objects() uint64 { return t.epoch.Load() + t.shaken.Load() }

// alive is how many sessions are lent or can be, now or soon.
func (t *token) alive() int { return t.count[idle] + t.count[lent] + t.count[opening] }

// certain is how many sessions there are at the device for certain.
func (t *token) certain() int { return t.count[idle] + t.count[lent] + t.count[hung] }

// isFirstComing reports whether the first session is being opened, which logs in
// for the others.
func (t *token) isFirstComing() bool {
	return t.count[idle]+t.count[lent] == 0 && t.count[opening] > 0
}

// open is how many sessions there are at the device, as far as is known.
func (t *token) open() int { return t.alive() + t.count[closing] + t.count[hung] }

// maxHung is how many calls may hang before the token is down.
func (t *token) maxHung() int { return min(t.pool.cfg.MaxHung, t.limit) }

// inFlight is how many calls it is at.
func (t *token) inFlight() int { return t.count[lent] + t.count[opening] }

func (t *token) isUp() bool {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	return t.state == Up
}

func (t *token) isIn(slot uint) bool {
	t.pool.mu.Lock()
	defer t.pool.mu.Unlock()
	return t.state == Up && t.slot == slot
}

// nudge has its keeper look at it.
func (t *token) nudge() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// A site is where a token was found.
type site struct {
	slot uint
	info pkcs11.TokenInfo
}

const maxSlots = 4096 // that are looked into

// find looks for the token in all slots.
func (t *token) find(c *conn) (site, error) {
	slots, err := c.GetSlotList(true)
	if err != nil {
		return site{}, err
	}
	if len(slots) > maxSlots {
		return site{}, fmt.Errorf("%w: %d slots", errNonsense, len(slots))
	}
	var fit, all []site
	var failed error
	for _, slot := range slots {
		info, err := c.GetTokenInfo(slot)
		switch {
		case err == nil:
		case isCode(err, pkcs11.CKR_TOKEN_NOT_PRESENT), isCode(err, pkcs11.CKR_TOKEN_NOT_RECOGNIZED), isCode(err, pkcs11.CKR_SLOT_ID_INVALID):
			continue // gone since, or never there
		case errors.Is(err, errAbandoned), isCode(err, pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED):
			return site{}, err
		default:
			failed = fmt.Errorf("slot %d: %w", slot, err)
			continue
		}
		p := site{slot, info}
		all = append(all, p)
		if t.fits(p) {
			fit = append(fit, p)
		}
	}
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) > 1:
		return site{}, fmt.Errorf("%w: %s", errAmbiguous, list(fit))
	case failed != nil:
		return site{}, failed
	default:
		return site{}, fmt.Errorf("%w: %s; there is %s", errNoToken, t.wanted(), list(all))
	}
}

// fits reports whether the token is at p.
func (t *token) fits(p site) bool {
	return p.info.Flags&pkcs11.CKF_TOKEN_INITIALIZED != 0 &&
		(t.cfg.Label == "" || trim(p.info.Label) == trim(t.cfg.Label)) &&
		(t.cfg.Serial == "" || trim(p.info.SerialNumber) == trim(t.cfg.Serial)) &&
		(t.cfg.Slot == nil || p.slot == *t.cfg.Slot)
}

// trim removes what labels are padded with: spaces by the standard, zeros by some.
func trim(s string) string { return strings.TrimRight(s, " \x00") }

// wanted says what the token is looked for by.
func (t *token) wanted() string {
	var by []string
	if t.cfg.Label != "" {
		by = append(by, "label "+strconv.Quote(t.cfg.Label))
	}
	if t.cfg.Serial != "" {
		by = append(by, "serial "+strconv.Quote(t.cfg.Serial))
	}
	if t.cfg.Slot != nil {
		by = append(by, "slot "+strconv.FormatUint(uint64(*t.cfg.Slot), 10))
	}
	return strings.Join(by, ", ")
}

// list names tokens, for a person to choose from.
func list(sites []site) string {
	const most = 16
	if len(sites) == 0 {
		return "none"
	}
	var b strings.Builder
	for i, p := range sites {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(sites)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "label %q serial %q slot %d", trim(p.info.Label), trim(p.info.SerialNumber), p.slot)
		if p.info.Flags&pkcs11.CKF_TOKEN_INITIALIZED == 0 {
			b.WriteString(" (not initialized)")
		}
	}
	return b.String()
}

// login logs in to the token, unless it wants none, or another wrong PIN would
// lock it, or it has refused this one before.
func (t *token) login(c *conn, info pkcs11.TokenInfo) error {
	t.private.Store(info.Flags&pkcs11.CKF_LOGIN_REQUIRED != 0)
	if !t.private.Load() {
		return nil
	}
	if t.pin == nil {
		return errNoPIN
	}
	this := refusedPIN{token: info.SerialNumber + "/" + info.Label, pin: maphash.Bytes(pinSeed, t.pin)}
	switch {
	case info.Flags&pkcs11.CKF_USER_PIN_LOCKED != 0:
		return fmt.Errorf("%w: it is locked: have the security officer set a new one", errFlags)
	case info.Flags&pkcs11.CKF_USER_PIN_FINAL_TRY != 0:
		return fmt.Errorf("%w: one more wrong PIN would lock it: log in once by other means, such as pkcs11-tool --login", errFlags)
	case info.Flags&pkcs11.CKF_USER_PIN_COUNT_LOW != 0 && t.doubt.Load():
		return fmt.Errorf("%w: it has counted a wrong PIN since the login failed: log in once by other means, such as pkcs11-tool --login", errFlags)
	}
	err := t.module.try(this, func() error { return c.Login(c.session, pkcs11.CKU_USER, string(t.pin)) })
	t.doubt.Store(err != nil && !errors.Is(err, ErrPIN) && info.Flags&pkcs11.CKF_USER_PIN_COUNT_LOW == 0)
	return err
}

// stillLoggedIn is an error unless a new session may use private keys. A token
// forgets the login with the last session that is closed, and says nothing but
// that it has no such keys to the next.
func (t *token) stillLoggedIn(c *conn) error {
	if !t.private.Load() {
		return nil
	}
	info, err := c.GetSessionInfo(c.session)
	switch {
	case isCode(err, pkcs11.CKR_FUNCTION_NOT_SUPPORTED):
		return nil
	case err != nil:
		return err
	case info.State != pkcs11.CKS_RO_USER_FUNCTIONS && info.State != pkcs11.CKS_RW_USER_FUNCTIONS:
		return &callError{call: "C_GetSessionInfo", code: pkcs11.CKR_USER_NOT_LOGGED_IN}
	default:
		return nil
	}
}

// errFlags is an ErrPIN without a login: whoever looks again does no harm.
var errFlags = fmt.Errorf("%w, by its flags", ErrPIN)

// limitOf is how many sessions the token may have by what it says of itself.
func (p *Pool) limitOf(info pkcs11.TokenInfo) int {
	n := info.MaxSessionCount
	if n == pkcs11.CK_EFFECTIVELY_INFINITE || n == pkcs11.CK_UNAVAILABLE_INFORMATION || n > uint(p.cfg.MaxSessions) {
		return p.cfg.MaxSessions
	}
	return max(1, int(n)-1) // room for one that writes
}
