package pkcs11pool

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

// under has eight workers sign for as long as do takes.
func (r *rig) under(load func(), do func()) {
	var over atomic.Bool
	var wg sync.WaitGroup
	for range rigWorkers {
		wg.Go(func() {
			for !over.Load() {
				load()
			}
		})
	}
	do()
	over.Store(true)
	wg.Wait()
}

// signBoth asks for a signature of each kind.
func (r *rig) signBoth() {
	_ = r.sign(r.t.Context(), false)
	_ = r.sign(r.t.Context(), true)
}

// signed waits until n more signatures have been made.
func (r *rig) signed(n int) {
	r.t.Helper()
	n += r.fault.Book(r.t).Signatures
	r.eventually("signatures are made", func() bool { return r.fault.Book(r.t).Signatures >= n })
}

// TestLossesOfEveryKindHeal makes codes come true in the middle of the load: a
// session is gone, or all, or the login, or the initialization of the module.
func TestLossesOfEveryKindHeal(t *testing.T) {
	t.Parallel()
	r := newRig(t, keys.ECDSAP256, 1, nil)
	for _, code := range []uint{
		pkcs11.CKR_SESSION_HANDLE_INVALID, pkcs11.CKR_SESSION_CLOSED, pkcs11.CKR_DEVICE_REMOVED, pkcs11.CKR_TOKEN_NOT_PRESENT,
		pkcs11.CKR_USER_NOT_LOGGED_IN, pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED,
	} {
		for _, call := range []string{"C_SignInit", "C_Sign", "C_CloseSession"} {
			line := fmt.Sprintf("%s 1 really return 0x%X", call, code)
			r.forgetRestarts()
			before := r.fault.Book(t).Functions[call].Injected
			r.fault.Script(t, line, "C_SignInit 2 return 0x30")
			var took time.Duration
			r.under(r.signBoth, func() {
				r.eventually(line+": it was played", func() bool { return r.fault.Book(t).Functions[call].Injected > before })
				took = r.recover(line)
				r.signed(20)
			})
			r.fault.Script(t)
			r.settled(line)
			o := r.judge(line)
			t.Logf("%-38s recovered in %v: %+v", line, took.Round(time.Millisecond), o)
		}
	}
}

// TestATokenThatLosesItsKeysIsDownUntilTheyAreBack takes the files of a token away
// while it is in use. The module goes on as if nothing was, without any keys, also
// when they are back: only one that begins anew finds them.
func TestATokenThatLosesItsKeysIsDownUntilTheyAreBack(t *testing.T) {
	t.Parallel()
	p, fault := behindFaults(t, 1)
	k := mustGenerate(t, p, "k", keys.ECDSAP256)
	tokens := filepath.Join(filepath.Dir(fault.Module), "tokens")
	if err := os.Rename(tokens, tokens+".away"); err != nil {
		t.Fatal(err)
	}
	for range 10 { // while the device says that its keys are not there, or that it failed
		if err := signs(t.Context(), k, crypto.SHA256); err == nil {
			t.Fatal("signed without a key")
		}
	}
	if err := p.Check(t.Context()); err == nil {
		t.Error("the token has no keys, and Check does not know")
	}
	if err := keys.Ready(k); !errors.Is(err, keys.ErrBusy) {
		t.Errorf("Ready: %v, want a *keys.BusyError", err)
	}
	if err := os.Rename(tokens+".away", tokens); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(time.Minute)
	for p.Check(t.Context()) != nil {
		select {
		case <-deadline:
			t.Fatalf("the keys are back: %v", p.Check(t.Context()))
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := signs(t.Context(), k, crypto.SHA256); err != nil {
		t.Errorf("after the token has come back: %v", err)
	}
}

// One key that somebody destroyed is no reason to do without the others.
func TestAKeyThatIsDestroyedElsewhereIsLeftOut(t *testing.T) {
	t.Parallel()
	token := hsm.Take(t)
	p := openPool(t, Config{}, token)
	lost, kept := mustGenerate(t, p, "lost", keys.ECDSAP256), mustGenerate(t, p, "kept", keys.ECDSAP256)
	if err := openPool(t, Config{}, token).Destroy(t.Context(), "lost"); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(time.Minute)
	for signs(t.Context(), kept, crypto.SHA256) != nil || keys.Ready(lost) == nil {
		if err := signs(t.Context(), lost, crypto.SHA256); !errors.Is(err, keys.ErrBusy) {
			t.Fatalf("signing with a key that is gone: %v", err)
		}
		select {
		case <-deadline:
			t.Fatal("the other key can't be used any more, or the lost one is not missed")
		case <-time.After(10 * time.Millisecond):
		}
	}
	if err := p.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestATokenIsPulledAndPutBackUnderLoad is the outage of one token, many times.
func TestATokenIsPulledAndPutBackUnderLoad(t *testing.T) {
	t.Parallel()
	r := newRig(t, keys.ECDSAP256, 1, nil)
	var total tally
	var most time.Duration
	for range 10 {
		r.under(r.signBoth, func() {
			r.signed(20)
			r.fault.Script(t, "token removed")
			r.eventually("the token is down", func() bool { return r.pool.Ready() != nil })
			if err := r.pool.Ready(); !errors.Is(err, keys.ErrBusy) {
				t.Errorf("while the token is away: %v", err)
			}
			if err := r.pool.Check(t.Context()); err == nil {
				t.Error("the check passes while the token is away")
			}
			r.fault.Script(t)
			most = max(most, r.recover("it is back"))
			r.signed(20)
		})
		r.settled("it is back")
		o := r.judge("it is back")
		total.delivered += o.delivered
		total.busy += o.busy
		total.unknown += o.unknown
	}
	// What the removal overtook may have been signed, as far as the device says.
	if total.unknown > 10*rigSessions {
		t.Errorf("%d signatures failed without a word on whether they were made", total.unknown)
	}
	b := r.fault.Book(t)
	if b.Logins < 11 || b.WrongPINs > 0 {
		t.Errorf("%d logins, %d of them wrong", b.Logins, b.WrongPINs)
	}
	t.Logf("10 outages: %+v, recovered in at most %v", total, most.Round(time.Millisecond))
}

// TestATokenRestartsUnderLoad has it lose sessions, login and handles in the
// middle, again and again.
func TestATokenRestartsUnderLoad(t *testing.T) {
	t.Parallel()
	r := newRig(t, keys.ECDSAP256, 1, nil)
	r.under(r.signBoth, func() {
		for range 30 {
			r.fault.Script(t, "token reset")
			r.recover("after a restart")
			r.signed(8)
		}
	})
	r.fault.Script(t)
	r.settled("after 30 restarts")
	o := r.judge("after 30 restarts")
	if o.delivered < 240 {
		t.Errorf("%+v", o)
	}
	if b := r.fault.Book(t); b.WrongPINs > 0 {
		t.Errorf("%d wrong PINs", b.WrongPINs)
	}
	t.Logf("30 restarts: %+v", o)
}

// TestTwoTokensShareTheLoadAndOneIsEnough has the same key on two tokens, pulls
// one under load and puts it back. What may be repeated never fails, and what may
// not fails only if the removal overtook it.
func TestTwoTokensShareTheLoadAndOneIsEnough(t *testing.T) {
	t.Parallel()
	r := newRig(t, keys.ECDSAP256, 2, nil)
	const device = "C_Sign * delay 1ms"
	failed := atomic.Int64{}
	load := func() {
		if err := r.sign(t.Context(), true); err != nil {
			t.Errorf("what may be repeated: %v", err)
		}
		if err := r.sign(t.Context(), false); err != nil {
			failed.Add(1)
			if errors.Is(err, keys.ErrBusy) {
				t.Errorf("one token is not enough: %v", err)
			}
		}
	}
	shared := func(when string) {
		before := r.fault.Book(t)
		r.signed(400)
		after := r.fault.Book(t)
		var made [2]int
		for i, l := range r.labels {
			made[i] = after.Tokens[l].Signatures - before.Tokens[l].Signatures
		}
		if least := min(made[0], made[1]); 3*least < made[0]+made[1] {
			t.Errorf("%s: %d and %d signatures", when, made[0], made[1])
		}
		t.Logf("%s: %d and %d signatures", when, made[0], made[1])
	}
	r.fault.Script(t, device)
	r.under(load, func() {
		r.signed(200)
		shared("before")
		for range 5 {
			r.fault.Script(t, device, "@"+r.labels[0]+" token removed")
			r.eventually("one token is up", func() bool { return r.pool.Capacity() == rigSessions })
			if err := errors.Join(r.pool.Ready(), r.pool.Check(t.Context())); err != nil {
				t.Errorf("one token is not enough: %v", err)
			}
			r.signed(50)
			r.fault.Script(t, device)
			r.eventually("both are up", func() bool { return r.pool.Capacity() == 2*rigSessions })
			r.signed(200)
		}
		shared("afterwards")
	})
	r.fault.Script(t)
	r.settled("afterwards")
	t.Logf("5 outages of one of two: %+v", r.judge("afterwards"))
	if n := failed.Load(); n > 5*rigSessions {
		t.Errorf("%d signatures failed", n)
	}
}

// hangs are where calls hang, and what it takes for them to be made.
var hangs = []fault{
	{call: "C_SignInit"},
	{call: "C_Sign"},
	{call: "C_Sign", after: true},
	{call: "C_OpenSession", trigger: reset},
	{call: "C_CloseSession", trigger: discard},
	{call: "C_GetSessionInfo", trigger: reset},
	{call: "C_GetSlotList", trigger: down},
	{call: "C_GetTokenInfo", trigger: down},
	{call: "C_Login", trigger: down},
	{call: "C_FindObjectsInit", trigger: reset},
	{call: "C_FindObjects", trigger: reset},
	{call: "C_FindObjectsFinal", trigger: reset},
	{call: "C_GetAttributeValue", trigger: reset},
	{call: "C_Initialize", trigger: anew},
	{call: "C_Finalize", trigger: anew},
}

// TestACallThatHangsCostsItsSessionOnly has each call hang once, until nobody
// waits for it any more. Its session is counted until it returns, and then all is
// as before.
func TestACallThatHangsCostsItsSessionOnly(t *testing.T) {
	t.Parallel()
	var wg sync.WaitGroup
	for _, h := range hangs {
		r := newRig(t, keys.ECDSAP256, 1, func(c *Config) { c.CallTimeout = time.Second })
		wg.Go(func() { r.hang(h) })
	}
	wg.Wait()
}

func (r *rig) hang(h fault) {
	when := h.String() + " hangs"
	line := h.call + " 1 hang"
	if h.after {
		line = h.call + " 1 after hang"
	}
	r.fault.Script(r.t, append([]string{line}, h.trigger...)...)
	r.eventually(when, func() bool {
		go func() { _ = r.sign(r.t.Context(), true) }()
		return r.fault.Book(r.t).Hung == 1
	})
	signing := h.call == "C_SignInit" || h.call == "C_Sign"
	if signing { // the others go on
		r.eventually(when+": it is given up", func() bool { return r.pool.Stat().Tokens[0].Hung == 1 })
		if err := r.sign(r.t.Context(), false); err != nil {
			r.t.Errorf("%s: signing with another session: %v", when, err)
		}
		if b := r.fault.Book(r.t); b.Hung != 1 {
			r.t.Errorf("%s: %d hang", when, b.Hung)
		}
	} else { // nobody waits longer than a call may take
		_ = r.sign(r.t.Context(), false)
	}
	r.fault.Script(r.t)
	took := r.recover(when)
	r.settled(when)
	r.judge(when)
	r.t.Logf("%-28s recovered in %v", when, took.Round(time.Millisecond))
}

// TestWhenAllHangTheTokenIsDownAndComesBack has each signature hang.
func TestWhenAllHangTheTokenIsDownAndComesBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, keys.ECDSAP256, 1, func(c *Config) { c.CallTimeout, c.MaxHung = time.Second, 3 })
	r.fault.Script(t, "C_Sign * hang")
	before := r.fault.Book(t).Finalized
	var hung atomic.Int64
	r.under(func() {
		if _, yes := errors.AsType[*keys.HungError](r.sign(t.Context(), false)); yes {
			hung.Add(1)
		}
	}, func() {
		r.eventually("it is down", func() bool { return r.pool.Ready() != nil })
	})
	if n := hung.Load(); n < 3 || n > rigSessions {
		t.Errorf("%d calls were given up", n)
	}
	if b := r.fault.Book(t); b.Hung > rigSessions || b.Finalized != before {
		t.Errorf("%d calls hang, finalized %d times", b.Hung, b.Finalized-before)
	}
	r.fault.Script(t)
	took := r.recover("they return")
	r.settled("they return")
	t.Logf("%d calls given up, recovered in %v: %+v", hung.Load(), took.Round(time.Millisecond), r.judge("they return"))
}

// TestClosingDoesNotWaitForWhatHangs has a call hang for as long as the pool is
// being closed, and the module must not be finalized below it.
func TestClosingDoesNotWaitForWhatHangs(t *testing.T) {
	t.Parallel()
	r := newRig(t, keys.ECDSAP256, 1, func(c *Config) { c.CallTimeout = time.Second })
	r.fault.Script(t, "C_Sign 1 hang")
	if _, yes := errors.AsType[*keys.HungError](r.sign(t.Context(), false)); !yes {
		t.Error("it does not hang")
	}
	before := r.fault.Book(t).Finalized
	if err := r.pool.Close(); err == nil {
		t.Error("closing says nothing of a call that hangs")
	}
	if b := r.fault.Book(t); b.Hung != 1 || b.Finalized != before {
		t.Errorf("%d calls hang, finalized %d times", b.Hung, b.Finalized-before)
	}
	r.left = true
	r.fault.Script(t)
	r.eventually("it returns", func() bool { return r.fault.Book(t).InFlight == 0 })
}

// TestAWrongPINIsTriedOnceInAProcess opens the pool three times with a wrong PIN.
func TestAWrongPINIsTriedOnceInAProcess(t *testing.T) {
	t.Parallel()
	f, tokens := hsm.Fault(t, 1)
	cfg := Config{Tokens: []TokenConfig{{Module: f.Module, Label: tokens[0].Label, PIN: func() ([]byte, error) { return []byte("4321"), nil }}}}
	for range 3 {
		if p, err := Open(t.Context(), cfg); !errors.Is(err, ErrPIN) {
			t.Errorf("opened %v: %v", p, err)
		}
	}
	if b := f.Book(t); b.Logins != 1 || b.WrongPINs != 1 {
		t.Errorf("%d logins, %d wrong", b.Logins, b.WrongPINs)
	}
}

// TestAPINThatChangesDuringAnOutageIsTriedOnce comes back with another PIN.
func TestAPINThatChangesDuringAnOutageIsTriedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, keys.ECDSAP256, 1, nil)
	r.fault.Script(t, "token removed")
	r.eventually("the token is down", func() bool { _ = r.sign(t.Context(), true); return r.pool.Ready() != nil })
	r.changePIN("8765")
	r.fault.Script(t)
	r.eventually("it is refused", func() bool { return r.pool.Stat().Tokens[0].State == Refused })
	// Whatever is asked now, and whatever else is lost, it is not tried again.
	for range 3 {
		r.load(2)
		r.fault.Script(t, "token reset")
	}
	o := r.judge("with another PIN")
	if o.delivered > 0 || o.unknown > 0 {
		t.Errorf("%+v", o)
	}
	if err := r.pool.Check(t.Context()); !errors.Is(err, ErrPIN) {
		t.Errorf("the check says %v", err)
	}
	if b := r.fault.Book(t); b.WrongPINs != 1 {
		t.Errorf("tried %d times", b.WrongPINs)
	}
}

// changePIN does so by another program's hands.
func (r *rig) changePIN(pin string) {
	r.t.Helper()
	c := pkcs11.New(r.fault.Behind())
	defer c.Destroy()
	slots, err := c.GetSlotList(true) // it is initialized: by the module in front
	if err != nil {
		r.t.Fatal(err)
	}
	s, err := c.OpenSession(slots[0], pkcs11.CKF_SERIAL_SESSION|pkcs11.CKF_RW_SESSION)
	if err == nil {
		err = errors.Join(c.Login(s, pkcs11.CKU_USER, pkcs11test.PIN), c.SetPIN(s, pkcs11test.PIN, pin), c.CloseSession(s))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// TestASessionThatWouldNotCloseIsClosedLater has the device refuse to close
// sessions for a while.
func TestASessionThatWouldNotCloseIsClosedLater(t *testing.T) {
	t.Parallel()
	r := newRig(t, keys.ECDSAP256, 1, nil)
	r.fault.Script(t, "C_SignInit 1-5 return 0x30", "C_CloseSession * return 0x30")
	r.load(4)
	if left := len(r.pool.tokens[0].module.leftOf(r.pool.tokens[0])); left == 0 {
		t.Error("no session is left")
	}
	r.fault.Script(t)
	r.settled("it closes sessions again")
	if left := len(r.pool.tokens[0].module.leftOf(r.pool.tokens[0])); left != 0 {
		t.Errorf("%d sessions are left", left)
	}
}

// TestDecryptingUnderFaultsIsRightOrAnError returns each code from the calls of
// a decryption.
func TestDecryptingUnderFaultsIsRightOrAnError(t *testing.T) {
	t.Parallel()
	r := newRig(t, keys.RSA2048, 1, nil)
	pub := r.key.Public().(*rsa.PublicKey)
	d := r.key.(keys.Decrypter)
	decrypt := func(ctx context.Context, n byte) error {
		secret := bytes.Repeat([]byte{n}, 32)
		c, err := rsa.EncryptOAEP(sha256.New(), rand.Reader, pub, secret, nil)
		if err != nil {
			t.Error(err)
		}
		got, err := d.Decrypt(ctx, c, &rsa.OAEPOptions{Hash: crypto.SHA256})
		if err == nil && !bytes.Equal(got, secret) {
			t.Error("decrypted wrongly")
		}
		return err
	}
	for _, call := range []string{"C_DecryptInit", "C_Decrypt", "C_Decrypt after", "C_Decrypt?length"} {
		failed := 0
		for _, code := range faultCodes {
			for _, when := range []string{"1", "*"} {
				name, after, _ := bytes.Cut([]byte(call), []byte(" "))
				line := fmt.Sprintf("%s %s %s return 0x%X", name, when, after, code)
				if call == "C_DecryptInit" && isRefusedMechanism(pkcs11.Error(code)) {
					continue // the token is taken at its word, for half a minute
				}
				r.fault.Script(t, line)
				var wg sync.WaitGroup
				var bad atomic.Int64
				for w := range rigWorkers / 2 {
					wg.Go(func() {
						if decrypt(t.Context(), byte(w)) != nil {
							bad.Add(1)
						}
					})
				}
				wg.Wait()
				failed += int(bad.Load())
				r.fault.Script(t)
				r.eventually(line+": it decrypts", func() bool { return decrypt(t.Context(), 9) == nil })
				r.settled(line)
				if t.Failed() {
					return
				}
			}
		}
		t.Logf("%-18s %d of %d failed", call, failed, len(faultCodes)*2*rigWorkers/2)
	}
	if t.Failed() {
		return
	}
	r.fault.Script(t, "C_DecryptInit 1 return 0x70")
	_ = decrypt(t.Context(), 1)
	r.fault.Script(t)
	on := r.pool.tokens[0]
	known := keyOf(theKey(t, r.pool)).place(on)
	later := *known.Load()
	if !later.doubtful {
		t.Error("that the token has refused its own mechanism is believed for ever")
	}
	later.again = time.Now()
	known.Store(&later)
	if err := decrypt(t.Context(), 2); err != nil {
		t.Errorf("half a minute later: %v", err)
	}
}

func theKey(t *testing.T, p *Pool) keys.Key {
	t.Helper()
	k, err := p.Key(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	return k
}
