package pkcs11pool

import (
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

// The pauses between two initializations of a module.
const (
	leastRestartPause = time.Second
	mostRestartPause  = time.Minute
)

const maxLeft = 1024 // sessions that would not close, and are remembered

var (
	errRestartLater = errors.New("the module was initialized a moment ago")
	errInUse        = errors.New("the module is in use")
)

// A module is a PKCS#11 library in this process, with all who use it.
type module struct {
	path string
	lib  cryptoki
	// word counts the calls under way. It changes without a mutex, as every job
	// begins and ends with it: count, bits, and in the upper half the number of
	// the initialization.
	word  atomic.Uint64
	empty chan struct{} // told when the count is zero and that is waited for

	mu      sync.Mutex                        // guards what follows; never held while the module is called
	users   map[*token]bool                   // those that have not given it up
	handles map[pkcs11.SessionHandle]*session // whose each is
	left    map[pkcs11.SessionHandle]*token   // of sessions that nobody has and that would not close
	refused map[refusedPIN]bool               // for as long as the process lives
	trying  map[refusedPIN]chan struct{}      // closed when that login has ended
	up      bool                              // initialized
	ours    bool                              // by us, so finalizing is up to us
	unsure  bool                              // our C_Initialize failed, and may have worked all the same
	change  *change                           // under way, or nil
	begun   time.Time                         // when it was last initialized anew
	pause   time.Duration                     // after that, until the next time
}

// The parts of a module's word.
const (
	countMask   = 1<<24 - 1
	awaited     = 1 << 24 // somebody waits for the count to be zero
	shut        = 1 << 25 // the module is being finalized
	nextInit    = 1 << 32
	initsOfWord = 32
)

// A change is a C_Initialize or C_Finalize under way, for all who want it.
type change struct {
	done chan struct{}
	err  error // once done is closed
}

// A refusedPIN is a PIN that a token has not accepted. The PIN is hashed with a
// seed of this process.
type refusedPIN struct {
	token string
	pin   uint64
}

var pinSeed = maphash.MakeSeed()

func newModule(path string, lib cryptoki) *module {
	return &module{
		path:    path,
		lib:     lib,
		empty:   make(chan struct{}, 1),
		users:   map[*token]bool{},
		handles: map[pkcs11.SessionHandle]*session{},
		left:    map[pkcs11.SessionHandle]*token{},
		refused: map[refusedPIN]bool{},
		trying:  map[refusedPIN]chan struct{}{},
	}
}

// enter counts one more caller, unless the module is another than that of the
// initialization init: then its handles are of sessions that are not ours.
func (m *module) enter(init uint32) bool {
	w := m.word.Add(1)
	if w&shut == 0 && uint32(w>>initsOfWord) == init {
		return true
	}
	m.exit()
	return false
}

func (m *module) exit() {
	if w := m.word.Add(^uint64(0)); w&awaited != 0 && w&countMask == 0 {
		select {
		case m.empty <- struct{}{}:
		default:
		}
	}
}

// init is the number of the initialization in force.
func (m *module) init() uint32 { return uint32(m.word.Load() >> initsOfWord) }

// calling is how many callers there are.
func (m *module) calling() int { return int(m.word.Load() & countMask) }

// shutOut lets nobody in any more, once nobody is in. It gives up after wait.
func (m *module) shutOut(wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	m.word.Or(awaited)
	defer m.word.And(^uint64(awaited))
	for {
		w := m.word.Load()
		if w&countMask == 0 {
			if m.word.CompareAndSwap(w, w|shut) {
				return nil
			}
			continue
		}
		select {
		case <-m.empty:
		case <-timer.C:
			return fmt.Errorf("%w: %d calls have not returned", errInUse, m.calling())
		}
	}
}

// use makes t one of the users.
func (m *module) use(t *token) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.users[t] = true
}

// took says that the module has given a handle to s. Whoever had it before has
// lost it, since the module has closed that session by itself.
func (m *module) took(h pkcs11.SessionHandle, s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if before := m.handles[h]; before != nil && before != s {
		before.halt.Store(1)
	}
	m.handles[h] = s
	delete(m.left, h)
}

// gaveUp says that s has no use for a handle any more, and reports whether it
// was its own until now.
func (m *module) gaveUp(h pkcs11.SessionHandle, s *session) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.handles[h] != s {
		return false
	}
	delete(m.handles, h)
	return true
}

// closed takes in what C_CloseSession said of a session that nobody has any more.
// One that may still be open is remembered: a device has only so many.
func (m *module) closed(h pkcs11.SessionHandle, t *token, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil || saysGone(err):
		delete(m.left, h)
	case len(m.left) < maxLeft && m.handles[h] == nil:
		m.left[h] = t
	}
}

// saysGone reports whether an error of C_CloseSession says that there is nothing
// to be closed.
func saysGone(err error) bool {
	code, _ := errors.AsType[pkcs11.Error](err)
	switch code {
	case pkcs11.CKR_SESSION_HANDLE_INVALID, pkcs11.CKR_SESSION_CLOSED, pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_DEVICE_REMOVED, pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED:
		return true
	}
	return false
}

// isLeft reports whether a session is still to be closed once more: its handle may
// be another's by now.
func (m *module) isLeft(h pkcs11.SessionHandle, t *token) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left[h] == t
}

// leftOf are the sessions of t that are to be closed once more.
func (m *module) leftOf(t *token) (left []pkcs11.SessionHandle) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for h, of := range m.left {
		if of == t {
			left = append(left, h)
		}
	}
	return left
}

// try has a PIN tried by login, unless it was refused before in this process.
// Whoever would try it at the same time waits for what comes of that, however long
// it takes: a token counts each wrong one.
func (m *module) try(p refusedPIN, login func() error) error {
	refused, done := m.beginTrying(p)
	defer done()
	if refused {
		return fmt.Errorf("%w: it was refused before and is not tried again: correct it and start anew", ErrPIN)
	}
	err := login()
	switch {
	case isCode(err, pkcs11.CKR_USER_ALREADY_LOGGED_IN):
		return nil
	case meaningOf(err).class == classPIN:
		m.refuse(p)
		return fmt.Errorf("%w: %w: it is not tried again: correct it and start anew", ErrPIN, err)
	}
	return err
}

func (m *module) beginTrying(p refusedPIN) (refused bool, done func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.trying[p] != nil {
		other := m.trying[p]
		m.mu.Unlock()
		<-other
		m.mu.Lock()
	}
	mine := make(chan struct{})
	m.trying[p] = mine
	return m.refused[p], func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.trying, p)
		close(mine)
	}
}

func (m *module) refuse(p refusedPIN) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refused[p] = true
}

// initialized returns the number of the initialization in force, after making
// one if there is none.
func (m *module) initialized(wait time.Duration) (uint32, error) {
	for {
		m.mu.Lock()
		if m.up && m.change == nil {
			m.mu.Unlock()
			return m.init(), nil
		}
		own := m.change == nil
		if own {
			m.beginLocked(m.initialize)
		}
		c := m.change
		m.mu.Unlock()
		if err := c.await(wait); err != nil && (own || isHung(err)) {
			return 0, err
		}
	}
}

// restart initializes the module anew for t, which has seen that the
// initialization init is of no use, and reports whether there is another now. All
// who ask for the same share it. It does nothing while a call is under way or
// another token is up, unless the module itself says that it is not initialized.
func (m *module) restart(t *token, init uint32, uninitialized bool, wait time.Duration) (bool, error) {
	c, another, err := m.reinitializing(init, uninitialized, m.upBut(t), wait)
	if c == nil {
		return another, err
	}
	if err := c.await(2 * wait); err != nil {
		return false, err
	}
	for _, u := range m.others(t) {
		u.pool.restarted(u)
	}
	return true, nil
}

// reinitializing returns the change that is to be waited for, if there is one.
func (m *module) reinitializing(init uint32, uninitialized, others bool, wait time.Duration) (c *change, another bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	since := time.Since(m.begun)
	switch {
	case m.change != nil:
		return m.change, false, nil
	case !m.up: // the next who uses it initializes it
		return nil, false, nil
	case m.init() != init:
		return nil, true, nil
	case !uninitialized && (others || !m.ours):
		return nil, false, errInUse
	case since < m.pause:
		return nil, false, errRestartLater
	case since > m.pause+mostRestartPause: // the last time was another trouble
		m.pause = 0
	}
	m.begun, m.pause = time.Now(), min(max(2*m.pause, leastRestartPause), mostRestartPause)
	m.beginLocked(func() error { return m.reinitialize(wait) })
	return m.change, false, nil
}

func (m *module) others(t *token) []*token {
	m.mu.Lock()
	defer m.mu.Unlock()
	var others []*token
	for u := range m.users {
		if u != t {
			others = append(others, u)
		}
	}
	return others
}

// shared reports whether another token than t, which is another pool's, is in
// that slot.
func (m *module) shared(t *token, slot uint) bool {
	for _, u := range m.others(t) {
		if u.isIn(slot) {
			return true
		}
	}
	return false
}

func (m *module) upBut(t *token) bool {
	for _, u := range m.others(t) {
		if u.isUp() {
			return true
		}
	}
	return false
}

// beginLocked has a goroutine call the module, as that may take for ever.
func (m *module) beginLocked(f func() error) {
	c := &change{done: make(chan struct{})}
	m.change = c
	go func() {
		c.err = f()
		m.mu.Lock()
		m.change = nil
		m.mu.Unlock()
		close(c.done)
	}()
}

func (c *change) await(wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-c.done:
		return c.err
	case <-timer.C:
		return &keys.HungError{After: wait, Returned: c.done}
	}
}

// initialize calls C_Initialize. That somebody else in the process has done so
// is as good.
func (m *module) initialize() error {
	err := m.lib.Initialize()
	already := isCode(err, pkcs11.CKR_CRYPTOKI_ALREADY_INITIALIZED)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil && !already {
		m.unsure = true
		return named("C_Initialize", err)
	}
	m.up, m.ours, m.unsure = true, m.ours || m.unsure || !already, false
	clear(m.handles)
	clear(m.left)
	for { // the next initialization is open to all
		w := m.word.Load()
		if m.word.CompareAndSwap(w, (w+nextInit)&^shut) {
			return nil
		}
	}
}

// finalize calls C_Finalize when nobody is calling the module, if that is up to us.
func (m *module) finalize(wait time.Duration) error {
	if err := m.shutOut(wait); err != nil {
		return err
	}
	m.mu.Lock()
	ours := m.ours
	m.mu.Unlock()
	var err error
	if ours {
		err = m.lib.Finalize()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.up = false
	if err == nil || isCode(err, pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED) {
		m.ours = false
		return nil
	}
	return named("C_Finalize", err)
}

// reinitialize is both. Whatever C_Finalize says, C_Initialize has the last word.
func (m *module) reinitialize(wait time.Duration) error {
	if err := m.finalize(wait); errors.Is(err, errInUse) {
		return err
	}
	return m.initialize()
}

// leave ends the use of the module by t. The last one finalizes it.
func (m *module) leave(t *token, wait time.Duration) error {
	m.mu.Lock()
	delete(m.users, t)
	if len(m.users) > 0 || !m.up || m.change != nil {
		m.mu.Unlock()
		return nil
	}
	if !m.ours {
		m.mu.Unlock()
		return nil
	}
	m.beginLocked(func() error { return m.finalize(wait) })
	c := m.change
	m.mu.Unlock()
	return c.await(2 * wait)
}

// named says which call an error is of.
func named(call string, err error) error {
	if code, ok := errors.AsType[pkcs11.Error](err); ok {
		return &callError{call: call, code: code}
	}
	return err
}
