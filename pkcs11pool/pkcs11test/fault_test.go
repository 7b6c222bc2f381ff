package pkcs11test_test

import (
	"crypto/sha256"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

// A client uses a Fault as a program would that trusts it.
type client struct {
	*pkcs11.Ctx
	t     *testing.T
	fault *pkcs11test.Fault
	token pkcs11test.Token
	slot  uint
}

var ecP256 = []byte{0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07}

func open(t *testing.T) *client {
	t.Helper()
	f, tokens := hsm.Fault(t, 1)
	return openWith(t, f, tokens[0])
}

func openWith(t *testing.T, f *pkcs11test.Fault, token pkcs11test.Token) *client {
	t.Helper()
	c := &client{Ctx: pkcs11.New(f.Module), t: t, fault: f, token: token}
	c.must(c.Initialize())
	c.slot = c.slotOf(c.token.Label)
	return c
}

func (c *client) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) slotOf(label string) uint {
	c.t.Helper()
	slots, err := c.GetSlotList(true)
	c.must(err)
	for _, s := range slots {
		if info, err := c.GetTokenInfo(s); err == nil && info.Label == label {
			return s
		}
	}
	c.t.Fatalf("no token %s among %d", label, len(slots))
	return 0
}

func (c *client) session() pkcs11.SessionHandle {
	c.t.Helper()
	s, err := c.OpenSession(c.slot, pkcs11.CKF_SERIAL_SESSION|pkcs11.CKF_RW_SESSION)
	c.must(err)
	return s
}

func (c *client) login(s pkcs11.SessionHandle) {
	c.t.Helper()
	c.must(c.Login(s, pkcs11.CKU_USER, pkcs11test.PIN))
}

// key makes a key that is kept.
func (c *client) key(s pkcs11.SessionHandle) pkcs11.ObjectHandle {
	c.t.Helper()
	_, private, err := c.GenerateKeyPair(s, []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_EC_KEY_PAIR_GEN, nil)},
		[]*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true), pkcs11.NewAttribute(pkcs11.CKA_EC_PARAMS, ecP256)},
		[]*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true), pkcs11.NewAttribute(pkcs11.CKA_SIGN, true), pkcs11.NewAttribute(pkcs11.CKA_LABEL, "k")})
	c.must(err)
	return private
}

func (c *client) find(s pkcs11.SessionHandle) pkcs11.ObjectHandle {
	c.t.Helper()
	c.must(c.FindObjectsInit(s, []*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PRIVATE_KEY)}))
	found, _, err := c.FindObjects(s, 10)
	c.must(err)
	c.must(c.FindObjectsFinal(s))
	if len(found) != 1 {
		c.t.Fatalf("%d keys, want 1", len(found))
	}
	return found[0]
}

func digest(n int) []byte {
	d := sha256.Sum256([]byte(strconv.Itoa(n)))
	return d[:]
}

func (c *client) sign(s pkcs11.SessionHandle, k pkcs11.ObjectHandle, n int) error {
	if err := c.SignInit(s, []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_ECDSA, nil)}, k); err != nil {
		return err
	}
	_, err := c.Sign(s, digest(n))
	return err
}

// signs signs with a session of its own each time: after an error a session may
// have an active operation.
func (c *client) signs(k pkcs11.ObjectHandle, n int) error {
	c.t.Helper()
	s := c.session()
	defer func() { c.must(c.CloseSession(s)) }()
	return c.sign(s, k, n)
}

func (c *client) book() pkcs11test.Book {
	c.t.Helper()
	return c.fault.Book(c.t)
}

func (c *client) times(n int) int {
	c.t.Helper()
	s, err := c.fault.Signed()
	c.must(err)
	return s.Times(digest(n))
}

func code(err error) uint {
	if e, ok := errors.AsType[pkcs11.Error](err); ok {
		return uint(e)
	}
	return 0
}

// eventually waits for what another thread is about to do.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !is(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("never: ", what)
		}
	}
}

func TestWithoutAScriptItIsTheModuleBehind(t *testing.T) {
	t.Parallel()
	c := open(t)
	s := c.session()
	c.login(s)
	k := c.key(s)
	for n := range 10 {
		c.must(c.sign(s, k, n))
	}
	b := c.book()
	if b.Signatures != 10 || b.Open != 1 || b.Logins != 1 || b.WrongPINs != 0 || b.InFlight != 0 || b.Initialized != 1 {
		t.Errorf("%+v", b)
	}
	if got := b.Functions["C_Sign"]; got.Calls != 10 || got.Injected != 0 {
		t.Errorf("C_Sign: %+v", got)
	}
	if got := b.Functions["C_Sign?length"].Calls; got != 10 {
		t.Errorf("C_Sign?length: %d calls", got)
	}
	if got := b.Tokens[c.token.Label]; got.Open != 1 || got.Signatures != 10 {
		t.Errorf("token: %+v", got)
	}
	if c.times(3) != 1 || c.times(11) != 0 {
		t.Error("the book does not know what was signed")
	}
	c.must(c.CloseSession(s))
	c.must(c.Finalize())
	if b := c.book(); b.Open != 0 || b.PeakOpen != 1 || b.Finalized != 1 || b.Violations != 0 {
		t.Errorf("%+v", b)
	}
}

func TestTwoFaultsInOneProcessShareNothing(t *testing.T) {
	t.Parallel()
	one, two := open(t), open(t)
	one.session()
	one.fault.Script(t, "C_OpenSession * return 0x30")
	two.session()
	two.session()
	if one.book().Open != 1 || two.book().Open != 2 {
		t.Error("they share a book")
	}
	two.must(two.Finalize())
	if _, err := one.GetSlotList(true); err != nil {
		t.Errorf("finalizing one finalized the other: %v", err)
	}
}

func TestRulesHitTheCallsTheySay(t *testing.T) {
	t.Parallel()
	c := open(t)
	s := c.session()
	c.login(s)
	k := c.key(s)
	run := func(lines ...string) string {
		c.fault.Script(t, lines...)
		var hits []string
		for n := range 8 {
			if code(c.signs(k, n)) == 0x30 {
				hits = append(hits, strconv.Itoa(n+1))
			}
		}
		return strings.Join(hits, " ")
	}
	for _, law := range []struct{ line, want string }{
		{"C_Sign 5 return 0x30 # the fifth", "5"},
		{"C_Sign 3- return 0x30", "3 4 5 6 7 8"},
		{"C_Sign 1-3 return 48", "1 2 3"},
		{"C_SignInit * return 0x30", "1 2 3 4 5 6 7 8"},
		{"C_Sign?length 2 return 0x30", "2"},
		{"@" + c.token.Label + " C_Sign 2 return 0x30", "2"},
		{"@another C_Sign 2 return 0x30", ""},
		{"C_Sign 2 delay 1us", ""},
	} {
		if got := run(law.line); got != law.want {
			t.Errorf("%s: calls %q, want %q", law.line, got, law.want)
		}
	}
	if got := run("C_Sign 2 return 0x30", "", "# nothing", "C_Sign 4 return 0x30"); got != "2 4" {
		t.Errorf("two rules: calls %q", got)
	}
	random := run("C_Sign * p=0.5 seed=3 return 0x30")
	if random == "" || len(random) == 15 {
		t.Errorf("p=0.5 hit %q", random)
	}
	if again := run("C_Sign * p=0.5 seed=3 return 0x30"); again != random {
		t.Errorf("the same seed hit %q and %q", random, again)
	}
	if other := run("C_Sign * p=0.5 seed=4 return 0x30"); other == random {
		t.Errorf("two seeds hit %q", random)
	}
}

func TestBeforeItDidNotSignAndAfterItDid(t *testing.T) {
	t.Parallel()
	c := open(t)
	s := c.session()
	c.login(s)
	k := c.key(s)
	c.fault.Script(t, "C_Sign 1 return 0x30", "C_Sign 2 after return 0x30")
	for n := 1; n <= 2; n++ {
		if err := c.signs(k, n); code(err) != pkcs11.CKR_DEVICE_ERROR {
			t.Errorf("signature %d: %v", n, err)
		}
	}
	if c.times(1) != 0 || c.times(2) != 1 {
		t.Errorf("signed %d times before and %d after", c.times(1), c.times(2))
	}
	if got := c.book().Functions["C_Sign"].Injected; got != 2 {
		t.Errorf("%d injected", got)
	}
}

func TestAHangLastsAsLongAsTheScriptSays(t *testing.T) {
	t.Parallel()
	c := open(t)
	s := c.session()
	c.login(s)
	k := c.key(s)
	c.fault.Script(t, "C_Sign 1 hang", "C_Sign 2 after hang")
	var done [2]chan error
	for i := range done {
		done[i] = make(chan error, 1)
		go func() { done[i] <- c.signs(k, i) }()
		eventually(t, "it hangs", func() bool { return c.book().Hung == i+1 })
	}
	if c.times(0) != 0 || c.times(1) != 1 {
		t.Errorf("signed %d times before and %d after", c.times(0), c.times(1))
	}
	c.fault.Script(t, "C_Sign 2 after hang")
	if err := <-done[0]; err != nil {
		t.Error(err)
	}
	if got := c.book().Hung; got != 1 {
		t.Errorf("%d hang, want 1", got)
	}
	c.fault.Script(t)
	if err := <-done[1]; err != nil {
		t.Error(err)
	}
	if b := c.book(); b.Hung != 0 || b.InFlight != 0 || b.Signatures != 2 {
		t.Errorf("%+v", b)
	}
}

func TestAPulledTokenHasLostItsSessionsAndItsLogin(t *testing.T) {
	t.Parallel()
	c := open(t)
	s := c.session()
	c.login(s)
	k := c.key(s)
	here, err := c.GetSlotList(true)
	c.must(err)

	c.fault.Script(t, "@"+c.token.Label+" token removed")
	if err := c.sign(s, k, 1); code(err) != pkcs11.CKR_TOKEN_NOT_PRESENT {
		t.Errorf("signing: %v", err)
	}
	if _, err := c.OpenSession(c.slot, pkcs11.CKF_SERIAL_SESSION); code(err) != pkcs11.CKR_TOKEN_NOT_PRESENT {
		t.Errorf("opening a session: %v", err)
	}
	if _, err := c.GetTokenInfo(c.slot); code(err) != pkcs11.CKR_TOKEN_NOT_PRESENT {
		t.Errorf("its information: %v", err)
	}
	left, err := c.GetSlotList(true)
	c.must(err)
	if len(left) != len(here)-1 || slices.Contains(left, c.slot) {
		t.Errorf("slots with tokens: %v, before %v", left, here)
	}
	if info, err := c.GetSlotInfo(c.slot); err != nil || info.Flags&pkcs11.CKF_TOKEN_PRESENT != 0 {
		t.Errorf("slot: flags %x, %v", info.Flags, err)
	}

	c.fault.Script(t)
	if err := c.sign(s, k, 1); code(err) != pkcs11.CKR_SESSION_HANDLE_INVALID {
		t.Errorf("with the session of before: %v", err)
	}
	if got := c.book().Open; got != 0 {
		t.Errorf("%d sessions open", got)
	}
	s = c.session()
	if err := c.sign(s, k, 1); code(err) != pkcs11.CKR_KEY_HANDLE_INVALID {
		t.Errorf("with the handle of before: %v", err)
	}
	c.login(s)
	c.must(c.sign(s, c.find(s), 1))
}

func TestACallThatARemovalOvertakesIsTold(t *testing.T) {
	t.Parallel()
	c := open(t)
	s := c.session()
	c.login(s)
	k := c.key(s)
	c.fault.Script(t, "C_Sign 1 hang")
	done := make(chan error, 1)
	go func() { done <- c.sign(s, k, 1) }()
	eventually(t, "it hangs", func() bool { return c.book().Hung == 1 })
	c.fault.Script(t, "@"+c.token.Label+" token removed")
	if err := <-done; code(err) != pkcs11.CKR_DEVICE_REMOVED || c.times(1) != 0 {
		t.Errorf("%v, signed %d times", err, c.times(1))
	}
}

func TestAResetIsOnce(t *testing.T) {
	t.Parallel()
	c := open(t)
	s := c.session()
	c.login(s)
	c.key(s)
	c.fault.Script(t, "token reset")
	if _, err := c.GetSessionInfo(s); code(err) != pkcs11.CKR_SESSION_HANDLE_INVALID {
		t.Errorf("session: %v", err)
	}
	for n := range 3 {
		s = c.session()
		if n == 0 {
			c.login(s)
		}
		c.must(c.sign(s, c.find(s), n))
	}
}

func TestReallyIsTrueUntilItIsMended(t *testing.T) {
	t.Parallel()
	c := open(t)
	s, other := c.session(), c.session()
	c.login(s)
	k := c.key(s)

	c.fault.Script(t, "C_SignInit 1 really return 0xB3")
	for range 2 {
		if err := c.sign(s, k, 1); code(err) != pkcs11.CKR_SESSION_HANDLE_INVALID {
			t.Errorf("a session that is gone: %v", err)
		}
	}
	c.must(c.sign(other, k, 1))

	c.fault.Script(t, "C_SignInit 1 really return 0x101")
	if err := c.sign(other, k, 1); code(err) != pkcs11.CKR_USER_NOT_LOGGED_IN {
		t.Errorf("a login that is gone: %v", err)
	}
	if err := c.sign(other, k, 1); err == nil {
		t.Error("it signs without a login")
	}
	c.login(other)
	c.must(c.sign(other, c.find(other), 2))

	c.fault.Script(t, "C_SignInit 1 really return 0xE0")
	if err := c.sign(other, k, 1); code(err) != pkcs11.CKR_TOKEN_NOT_PRESENT {
		t.Errorf("a token that is gone: %v", err)
	}
	s = c.session()
	c.login(s)

	c.fault.Script(t, "C_SignInit 1 really return 0x190")
	for range 2 {
		if err := c.sign(s, k, 1); code(err) != pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED {
			t.Errorf("a module that is not initialized: %v", err)
		}
	}
	if err := c.Finalize(); code(err) != pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED {
		t.Errorf("C_Finalize: %v", err)
	}
	c.must(c.Initialize())
	if got := c.book().Open; got != 0 {
		t.Errorf("%d sessions open", got)
	}
	s = c.session()
	c.login(s)
	c.must(c.sign(s, c.find(s), 3))
}

func TestADelayedCallTakesAsLongAndEnginesAreBounded(t *testing.T) {
	t.Parallel()
	c := open(t)
	s := c.session()
	c.login(s)
	k := c.key(s)
	c.fault.Script(t, "engines 2", "C_Sign * delay 20ms", "C_Sign?length * delay 0us")
	began := time.Now()
	var wg sync.WaitGroup
	for n := range 6 {
		wg.Go(func() {
			if err := c.signs(k, n); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took < 60*time.Millisecond {
		t.Errorf("6 calls of 20 ms by 2 engines took %v", took)
	}
}

func TestABrokenDeviceSignsWrongly(t *testing.T) {
	t.Parallel()
	c := open(t)
	s := c.session()
	c.login(s)
	k := c.key(s)
	c.fault.Script(t, "C_Sign * corrupt")
	mech := []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_ECDSA, nil)}
	c.must(c.SignInit(s, mech, k))
	bad, err := c.Sign(s, digest(1))
	c.must(err)
	bad[len(bad)-1] ^= 1
	c.fault.Script(t)
	c.must(c.FindObjectsInit(s, []*pkcs11.Attribute{pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PUBLIC_KEY)}))
	public, _, err := c.FindObjects(s, 1)
	c.must(err)
	c.must(c.FindObjectsFinal(s))
	c.must(c.VerifyInit(s, mech, public[0]))
	if err := c.Verify(s, digest(1), bad); err != nil {
		t.Errorf("with the last bit turned back: %v", err)
	}
}

func TestATokenHasAsManySessionsAndFlagsAsTheScriptSays(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.fault.Script(t, "token sessions 2", "@"+c.token.Label+" token flags 0x20000", "@"+c.token.Label+" token sessions 2")
	c.session()
	s := c.session()
	if _, err := c.OpenSession(c.slot, pkcs11.CKF_SERIAL_SESSION); code(err) != pkcs11.CKR_SESSION_COUNT {
		t.Errorf("the third session: %v", err)
	}
	info, err := c.GetTokenInfo(c.slot)
	c.must(err)
	if info.MaxSessionCount != 2 || info.SessionCount != 2 || info.Flags&pkcs11.CKF_USER_PIN_FINAL_TRY == 0 {
		t.Errorf("%+v", info)
	}
	c.must(c.CloseSession(s))
	c.session()
}

func TestWrongPINsAreCounted(t *testing.T) {
	t.Parallel()
	c := open(t)
	s := c.session()
	if err := c.Login(s, pkcs11.CKU_USER, "4321"); code(err) != pkcs11.CKR_PIN_INCORRECT {
		t.Errorf("login: %v", err)
	}
	c.login(s)
	if b := c.book(); b.Logins != 2 || b.WrongPINs != 1 || b.Tokens[c.token.Label].WrongPINs != 1 {
		t.Errorf("%+v", b)
	}
}

func TestASessionThatNobodyWasToldOfIsClosed(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.fault.Script(t, "C_OpenSession 1 after return 0x30")
	if _, err := c.OpenSession(c.slot, pkcs11.CKF_SERIAL_SESSION); code(err) != pkcs11.CKR_DEVICE_ERROR {
		t.Errorf("%v", err)
	}
	if got := c.book().Open; got != 0 {
		t.Errorf("%d open", got)
	}
}

// TestBreachesOfTheContractAreSeen has a Fault without the check at the end, as
// breaches are what it wants.
func TestBreachesOfTheContractAreSeen(t *testing.T) {
	t.Parallel()
	first, err := pkcs11test.MakeFault(t.TempDir(), hsm.Module)
	if err != nil {
		t.Fatal(err)
	}
	token := hsm.Take(t)
	for what, breach := range map[string]func(c *client, s pkcs11.SessionHandle, k pkcs11.ObjectHandle){
		"C_Initialize: it is initialized": func(c *client, _ pkcs11.SessionHandle, _ pkcs11.ObjectHandle) {
			_ = c.Initialize()
		},
		"C_GetSessionInfo: the session is closed": func(c *client, s pkcs11.SessionHandle, _ pkcs11.ObjectHandle) {
			c.must(c.CloseSession(s))
			_, _ = c.GetSessionInfo(s)
		},
		"C_CloseSession: the session is closed": func(c *client, s pkcs11.SessionHandle, _ pkcs11.ObjectHandle) {
			c.must(c.CloseAllSessions(c.slot))
			_ = c.CloseSession(s)
		},
		"C_GetSessionInfo: no session ever had that handle": func(c *client, s pkcs11.SessionHandle, _ pkcs11.ObjectHandle) {
			_, _ = c.GetSessionInfo(s + 1)
		},
		"C_GetSlotList: the module is not initialized": func(c *client, _ pkcs11.SessionHandle, _ pkcs11.ObjectHandle) {
			c.must(c.Finalize())
			_, _ = c.GetSlotList(true)
		},
		"C_SignInit: such an operation is active": func(c *client, s pkcs11.SessionHandle, k pkcs11.ObjectHandle) {
			for range 2 {
				_ = c.SignInit(s, []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_ECDSA, nil)}, k)
			}
		},
		"C_FindObjectsInit: such an operation is active": func(c *client, s pkcs11.SessionHandle, _ pkcs11.ObjectHandle) {
			for range 2 {
				_ = c.FindObjectsInit(s, nil)
			}
		},
		"C_Sign: no such operation was begun": func(c *client, s pkcs11.SessionHandle, k pkcs11.ObjectHandle) {
			c.must(c.sign(s, k, 1))
			_, _ = c.Sign(s, digest(1))
		},
		"C_GetSessionInfo: another call of the session is under way": func(c *client, s pkcs11.SessionHandle, k pkcs11.ObjectHandle) {
			c.during(s, k, func() { _, _ = c.GetSessionInfo(s) })
		},
		"C_CloseSession: another call of the session is under way": func(c *client, s pkcs11.SessionHandle, k pkcs11.ObjectHandle) {
			c.during(s, k, func() { _ = c.CloseSession(s) })
		},
		"C_CloseAllSessions: a call of one of the sessions is under way": func(c *client, s pkcs11.SessionHandle, k pkcs11.ObjectHandle) {
			c.during(s, k, func() { _ = c.CloseAllSessions(c.slot) })
		},
		"C_Finalize: calls are under way": func(c *client, s pkcs11.SessionHandle, k pkcs11.ObjectHandle) {
			c.during(s, k, func() { _ = c.Finalize() })
		},
	} {
		f, err := first.Again(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		c := openWith(t, f, token)
		s := c.session()
		c.login(s)
		k := c.key(s)
		if b := c.book(); b.Violations != 0 {
			t.Errorf("before %s: %s", what, b.Violation)
		}
		breach(c, s, k)
		if b := c.book(); b.Violations == 0 || !strings.HasPrefix(b.Violation, what) {
			t.Errorf("%s: %d violations, first %q", what, b.Violations, b.Violation)
		}
	}
}

// during does something while a call of the session hangs.
func (c *client) during(s pkcs11.SessionHandle, k pkcs11.ObjectHandle, do func()) {
	c.fault.Script(c.t, "C_SignInit 1 hang")
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = c.SignInit(s, []*pkcs11.Mechanism{pkcs11.NewMechanism(pkcs11.CKM_ECDSA, nil)}, k)
	}()
	eventually(c.t, "it hangs", func() bool { return c.book().Hung == 1 })
	do()
	c.fault.Script(c.t)
	<-done
}

func TestWhatAFaultMadeTheCallerBelieveIsNoBreach(t *testing.T) {
	t.Parallel()
	c := open(t) // which looks for breaches at its end
	s := c.session()
	c.login(s)
	k := c.key(s)
	c.fault.Script(t, "C_CloseSession 1 after return 0x30", "C_SignInit 1 after return 0x30", "C_Finalize 1 return 0x30")
	other := c.session()
	_ = c.CloseSession(other)
	_ = c.CloseSession(other)
	_ = c.sign(s, k, 1)
	_ = c.sign(s, k, 1)
	_ = c.Finalize()
	_ = c.Initialize()
}

func TestAScriptThatMakesNoSenseEndsTheProcess(t *testing.T) {
	t.Parallel()
	first, err := pkcs11test.MakeFault(t.TempDir(), hsm.Module)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"C_Sing 1 return 0x30", "C_Sign", "C_Sign 1", "C_Sign x return 0x30", "C_Sign 0 return 0x30", "C_Sign 3-2 return 0x30",
		"C_Sign 1 return", "C_Sign 1 return 0xZZ", "C_Sign 1 delay 5", "C_Sign 1 explode", "C_Sign * p=2 return 0x30",
		"token", "token gone", "@nobody token removed", "@token-1",
	} {
		f, err := first.Again(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		f.Script(t, line)
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), asClient+"="+f.Module, "GOTRACEBACK=none")
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "faultmodule: script: ") {
			t.Errorf("%q: %v\n%.300s", line, err, out)
		}
	}
}
