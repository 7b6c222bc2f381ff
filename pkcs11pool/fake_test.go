package pkcs11pool

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/pkcs11"
)

// A device is a PKCS#11 module with tokens, of which tests see and say what it
// does. It keeps a book of its sessions, and has no patience with those who use
// them wrongly.
type device struct {
	cryptoki // what it does not implement: nil

	t  *testing.T
	mu sync.Mutex // guards what follows
	// hook is asked before each call, with how often that was made so far. What it
	// returns is the call's error. It may wait.
	hook     func(call string, n int) error
	calls    map[string]int
	busy     map[pkcs11.SessionHandle]string
	inside   int
	unknown  int // calls with a session that there is not
	running  bool
	tokens   map[uint]pkcs11.TokenInfo
	sessions map[pkcs11.SessionHandle]uint // their slots
	writes   map[pkcs11.SessionHandle]bool
	signing  map[pkcs11.SessionHandle]bool
	last     pkcs11.SessionHandle
	reuse    bool // give the lowest handle that is free
	room     int  // sessions of a token; 0: any number
	// noReadOnly is what somebody is told who wants a read-only session; 0: gets one.
	noReadOnly uint
	peak       int
	loggedIn   map[uint]bool
	events     []string // calls that change sessions, in their order
}

const goodPIN = "1234"

// newDevice returns a device with tokens labelled a, b … in slots 0, 1 ….
func newDevice(t *testing.T, tokens int) *device {
	d := &device{
		t:        t,
		calls:    map[string]int{},
		busy:     map[pkcs11.SessionHandle]string{},
		tokens:   map[uint]pkcs11.TokenInfo{},
		sessions: map[pkcs11.SessionHandle]uint{},
		writes:   map[pkcs11.SessionHandle]bool{},
		signing:  map[pkcs11.SessionHandle]bool{},
		loggedIn: map[uint]bool{},
	}
	for i := range tokens {
		d.tokens[uint(i)] = aToken(i)
	}
	return d
}

func aToken(i int) pkcs11.TokenInfo {
	return pkcs11.TokenInfo{
		Label:           fmt.Sprintf("%-32c", 'a'+i),
		SerialNumber:    fmt.Sprintf("%d\x00\x00", i),
		Flags:           pkcs11.CKF_TOKEN_INITIALIZED | pkcs11.CKF_LOGIN_REQUIRED,
		MaxSessionCount: pkcs11.CK_UNAVAILABLE_INFORMATION,
	}
}

// on has all calls of a name end as f says.
func (d *device) on(call string, f func(n int) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = func(c string, n int) error {
		if c != call {
			return nil
		}
		return f(n)
	}
}

// fail has all calls of a name return a code; "" stands for none.
func (d *device) fail(call string, code uint) {
	d.on(call, func(int) error { return pkcs11.Error(code) })
}

func (d *device) count(call string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[call]
}

func (d *device) open() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.sessions)
}

// remove takes a token away, with its sessions.
func (d *device) remove(slot uint) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.tokens, slot)
	d.forgetLocked(slot)
}

// forget ends the sessions of a token, as if the device had been restarted.
func (d *device) forget(slot uint) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.forgetLocked(slot)
}

func (d *device) forgetLocked(slot uint) {
	maps.DeleteFunc(d.sessions, func(_ pkcs11.SessionHandle, s uint) bool { return s == slot })
	d.loggedIn[slot] = false
}

func (d *device) insert(slot uint, info pkcs11.TokenInfo) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tokens[slot] = info
}

// enter begins a call, of a session if s is not 0. Its error is the call's.
func (d *device) enter(call string, s pkcs11.SessionHandle) error {
	d.mu.Lock()
	d.calls[call]++
	n, hook := d.calls[call], d.hook
	d.inside++
	if other := d.busy[s]; s != 0 && other != "" {
		d.t.Errorf("%s with session %d, which is in %s", call, s, other)
	}
	d.busy[s] = call
	d.mu.Unlock()
	var err error
	if hook != nil {
		err = hook(call, n)
	}
	d.mu.Lock()
	delete(d.busy, s)
	_, known := d.sessions[s]
	switch {
	case err != nil:
	case !d.running && call != "C_Initialize" && call != "C_Finalize":
		err = pkcs11.Error(pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED)
	case s != 0 && !known:
		d.unknown++
		err = pkcs11.Error(pkcs11.CKR_SESSION_HANDLE_INVALID)
	}
	return err
}

// leave ends it.
func (d *device) leave() {
	d.inside--
	d.mu.Unlock()
}

func (d *device) Initialize(...pkcs11.InitializeOption) error {
	err := d.enter("C_Initialize", 0)
	defer d.leave()
	if err == nil && d.running {
		err = pkcs11.Error(pkcs11.CKR_CRYPTOKI_ALREADY_INITIALIZED)
	}
	if err == nil {
		d.running = true
		d.last = 0
	}
	return err
}

func (d *device) Finalize() error {
	err := d.enter("C_Finalize", 0)
	defer d.leave()
	if d.inside > 1 {
		d.t.Errorf("C_Finalize while %d calls are under way", d.inside-1)
	}
	if err == nil {
		d.running = false
		clear(d.sessions)
		clear(d.loggedIn)
	}
	return err
}

func (d *device) GetSlotList(bool) ([]uint, error) {
	err := d.enter("C_GetSlotList", 0)
	defer d.leave()
	return slices.Sorted(maps.Keys(d.tokens)), err
}

func (d *device) GetTokenInfo(slot uint) (pkcs11.TokenInfo, error) {
	err := d.enter("C_GetTokenInfo", 0)
	defer d.leave()
	info, there := d.tokens[slot]
	if err == nil && !there {
		err = pkcs11.Error(pkcs11.CKR_TOKEN_NOT_PRESENT)
	}
	return info, err
}

func (d *device) OpenSession(slot, flags uint) (pkcs11.SessionHandle, error) {
	err := d.enter("C_OpenSession", 0)
	defer d.leave()
	here := 0
	for _, s := range d.sessions {
		if s == slot {
			here++
		}
	}
	switch {
	case err != nil:
	case d.tokens[slot].Label == "":
		err = pkcs11.Error(pkcs11.CKR_TOKEN_NOT_PRESENT)
	case d.room > 0 && here >= d.room:
		err = pkcs11.Error(pkcs11.CKR_SESSION_COUNT)
	case d.noReadOnly != 0 && flags&pkcs11.CKF_RW_SESSION == 0:
		err = pkcs11.Error(d.noReadOnly)
	}
	if err != nil {
		return 0, err
	}
	d.last++
	h := d.last
	if d.reuse {
		for h = 1; d.sessions[h] != 0 || hasKey(d.sessions, h); h++ {
			continue
		}
	}
	d.sessions[h], d.writes[h], d.signing[h] = slot, flags&pkcs11.CKF_RW_SESSION != 0, false
	d.peak = max(d.peak, len(d.sessions))
	d.events = append(d.events, "open")
	return h, nil
}

func hasKey[K comparable, V any](m map[K]V, k K) bool {
	_, ok := m[k]
	return ok
}

func (d *device) CloseSession(s pkcs11.SessionHandle) error {
	err := d.enter("C_CloseSession", s)
	defer d.leave()
	if err == nil {
		slot := d.sessions[s]
		delete(d.sessions, s)
		d.events = append(d.events, "close")
		if !slices.Contains(slices.Collect(maps.Values(d.sessions)), slot) {
			d.loggedIn[slot] = false
		}
	}
	return err
}

func (d *device) Login(s pkcs11.SessionHandle, _ uint, pin string) error {
	err := d.enter("C_Login", s)
	defer d.leave()
	slot := d.sessions[s]
	switch {
	case err != nil:
	case d.loggedIn[slot]:
		err = pkcs11.Error(pkcs11.CKR_USER_ALREADY_LOGGED_IN)
	case pin != goodPIN:
		err = pkcs11.Error(pkcs11.CKR_PIN_INCORRECT)
	default:
		d.loggedIn[slot] = true
	}
	return err
}

func (d *device) GetSessionInfo(s pkcs11.SessionHandle) (pkcs11.SessionInfo, error) {
	err := d.enter("C_GetSessionInfo", s)
	defer d.leave()
	info := pkcs11.SessionInfo{State: pkcs11.CKS_RO_PUBLIC_SESSION}
	if d.loggedIn[d.sessions[s]] {
		info.State = pkcs11.CKS_RO_USER_FUNCTIONS
	}
	return info, err
}

func (d *device) Logout(s pkcs11.SessionHandle) error {
	err := d.enter("C_Logout", s)
	defer d.leave()
	if err == nil {
		d.loggedIn[d.sessions[s]] = false
		d.events = append(d.events, "logout")
	}
	return err
}

func (d *device) SignInit(s pkcs11.SessionHandle, _ []*pkcs11.Mechanism, _ pkcs11.ObjectHandle) error {
	err := d.enter("C_SignInit", s)
	defer d.leave()
	switch {
	case err != nil:
	case !d.loggedIn[d.sessions[s]]:
		err = pkcs11.Error(pkcs11.CKR_USER_NOT_LOGGED_IN)
	case d.signing[s]:
		err = pkcs11.Error(pkcs11.CKR_OPERATION_ACTIVE)
	default:
		d.signing[s] = true
	}
	return err
}

func (d *device) Sign(s pkcs11.SessionHandle, message []byte) ([]byte, error) {
	err := d.enter("C_Sign", s)
	defer d.leave()
	if err == nil && !d.signing[s] {
		err = pkcs11.Error(pkcs11.CKR_OPERATION_NOT_INITIALIZED)
	}
	d.signing[s] = false
	return message, err
}

// Decrypt fails at data that is none, and has no Init.
func (d *device) Decrypt(s pkcs11.SessionHandle, ciphertext []byte) ([]byte, error) {
	err := d.enter("C_Decrypt", s)
	defer d.leave()
	return ciphertext, err
}

func (d *device) CreateObject(s pkcs11.SessionHandle, _ []*pkcs11.Attribute) (pkcs11.ObjectHandle, error) {
	err := d.enter("C_CreateObject", s)
	defer d.leave()
	if err == nil && !d.writes[s] {
		err = pkcs11.Error(pkcs11.CKR_SESSION_READ_ONLY)
	}
	return 1, err
}

// at is a Config for tokens of the device with those labels.
func at(labels ...string) Config {
	var c Config
	for _, l := range labels {
		c.Tokens = append(c.Tokens, TokenConfig{Module: "fake", Label: l, PIN: pinOf(goodPIN)})
	}
	return c
}

func pinOf(pin string) func() ([]byte, error) {
	return func() ([]byte, error) { return []byte(pin), nil }
}

func (d *device) load() func(string) (*module, error) {
	m := newModule("fake", d)
	return func(string) (*module, error) { return m, nil }
}

// pool opens a pool, and closes it at the end of the test, when nothing may be
// left of it at the device.
func (d *device) pool(t *testing.T, cfg Config) *Pool {
	t.Helper()
	p, err := openWith(t.Context(), cfg, d.load())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.close(t, p) })
	return p
}

func (d *device) close(t *testing.T, p *Pool) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if n := d.open(); n != 0 {
		t.Errorf("%d sessions are left at the device", n)
	}
	for _, s := range p.Stat().Tokens {
		if s.Idle+s.Busy+s.Opening+s.Closing+s.Hung != 0 {
			t.Errorf("sessions are left in the book: %+v", s)
		}
	}
}

// bubble runs a test in time of its own.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, f)
}

// sign is a job like that of a signature.
func sign() *job {
	return &job{op: "signing", mechanism: "fake", run: func(c *conn) error {
		if err := c.SignInit(c.session, nil, 1); err != nil {
			return err
		}
		c.effect = true
		_, err := c.Sign(c.session, []byte("message"))
		return err
	}}
}

// hold is a job that keeps its session until it is told to let go.
func hold() (j *job, let func()) {
	held := make(chan struct{})
	return &job{op: "holding", run: func(*conn) error { <-held; return nil }}, func() { close(held) }
}

// begin has somebody do a job, and returns once that is at a standstill.
func begin(ctx context.Context, p *Pool, j *job) <-chan error {
	done := make(chan error, 1)
	go func() { done <- p.do(ctx, j) }()
	synctest.Wait()
	return done
}

func mustDo(t *testing.T, p *Pool, j *job) {
	t.Helper()
	if err := p.do(t.Context(), j); err != nil {
		t.Fatal(err)
	}
}

// wait lets time pass, and then all come to a standstill.
func wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
