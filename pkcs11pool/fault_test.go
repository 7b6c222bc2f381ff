package pkcs11pool

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/hsmguard"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

// A rig is a key on tokens that fail as a script says, used as the program does:
// through a guard and a pool.
type rig struct {
	t      testing.TB
	fault  *pkcs11test.Fault
	labels []string
	pool   *Pool
	gate   *gate.Gate
	key    keys.Key // guarded
	mark   string   // of the goroutines of the pool
	left   bool     // the pool is closed, with something left at the device

	mu   sync.Mutex
	asks []question // of all workers, since they were last judged
}

const (
	rigSessions = 8
	rigWorkers  = 8
	// rigPatience is far above what anything takes here, also on a busy machine.
	rigPatience = 30 * time.Second
)

var digests atomic.Uint64 // makes each digest another one

// newRig has a key of that algorithm on one token, or the same on several.
func newRig(t testing.TB, alg keys.Algorithm, tokens int, change func(*Config)) *rig {
	t.Helper()
	f, own := hsm.Fault(t, tokens)
	r := &rig{t: t, fault: f, mark: fmt.Sprintf("rig-%d", digests.Add(1))}
	for _, token := range own {
		r.labels = append(r.labels, token.Label)
	}
	r.open(nil) // which has the time to make a key
	ctx := t.Context()
	var err error
	switch {
	case alg == keys.RSA2048:
		_, err = r.pool.GenerateWith(ctx, "k", alg, GenerateOptions{Decrypt: true})
	case tokens == 1:
		_, err = r.pool.Generate(ctx, "k", alg)
	default:
		r.importKey()
	}
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		if err := r.pool.Close(); err != nil {
			t.Fatal(err)
		}
		r.open(change)
	}
	if r.key, err = hsmguard.New(hsmguard.Config{Gate: r.gate}).Keys(r.pool).Key(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	return r
}

// config is that of the rig's pool.
func (r *rig) config() Config {
	cfg := Config{
		MinSessions: 2, MaxSessions: rigSessions, IdleTime: 300 * time.Millisecond, CallTimeout: 20 * time.Second,
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, label := range r.labels {
		cfg.Tokens = append(cfg.Tokens, TokenConfig{
			Module: r.fault.Module, Label: label, PIN: func() ([]byte, error) { return []byte(pkcs11test.PIN), nil },
		})
	}
	return cfg
}

// open opens the pool, and closes it at the end of the test, after which nothing
// of it is left.
func (r *rig) open(change func(*Config)) {
	r.t.Helper()
	cfg := r.config()
	if change != nil {
		change(&cfg)
	}
	var err error
	pprof.Do(r.t.Context(), pprof.Labels("rig", r.mark), func(ctx context.Context) {
		r.pool, err = Open(ctx, cfg)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.gate, err = gate.New(gate.Config{Seats: cfg.MaxSessions * len(r.labels), MaxQueue: 1024, MaxWait: 5 * time.Second})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		r.fault.Script(r.t)
		if err := r.pool.Close(); err != nil && !r.left {
			r.t.Errorf("closing: %v", err)
		}
		r.eventually("no goroutine is left", func() bool { return r.goroutines() == 0 })
		if r.left {
			return
		}
		// A device that does not close sessions has more of them.
		if most := r.fault.Book(r.t).PeakOpen; most > (rigSessions+1)*len(r.labels) && r.fault.Book(r.t).Functions["C_CloseSession"].Injected == 0 {
			r.t.Errorf("there were %d sessions at a time", most)
		}
		b := r.fault.Book(r.t)
		lied := b.Functions["C_Initialize"].Injected+b.Functions["C_Finalize"].Injected > 0 // about whose it is
		if b.Open != 0 || b.InFlight != 0 || b.Initialized != b.Finalized && !lied {
			r.t.Errorf("after closing: %d sessions open, %d calls under way, initialized %d times, finalized %d times",
				b.Open, b.InFlight, b.Initialized, b.Finalized)
		}
	})
}

// goroutines counts those that the pool has begun, and those that they have.
func (r *rig) goroutines() (n int) {
	var b bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		r.t.Fatal(err)
	}
	for profile := range strings.SplitSeq(b.String(), "\n\n") {
		if strings.Contains(profile, `"rig":"`+r.mark+`"`) {
			var same int
			_, _ = fmt.Sscan(profile, &same)
			n += same
		}
	}
	return n
}

// importKey puts the same key on all tokens.
func (r *rig) importKey() {
	r.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	private, err := k.Bytes()
	if err != nil {
		r.t.Fatal(err)
	}
	public, err := k.PublicKey.Bytes()
	if err != nil {
		r.t.Fatal(err)
	}
	both := []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true), pkcs11.NewAttribute(pkcs11.CKA_KEY_TYPE, pkcs11.CKK_EC),
		pkcs11.NewAttribute(pkcs11.CKA_LABEL, "k"), pkcs11.NewAttribute(pkcs11.CKA_ID, []byte{1}),
		pkcs11.NewAttribute(pkcs11.CKA_EC_PARAMS, []byte{0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07}),
	}
	objects := [][]*pkcs11.Attribute{
		slices.Concat(both, []*pkcs11.Attribute{
			pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PRIVATE_KEY), pkcs11.NewAttribute(pkcs11.CKA_PRIVATE, true),
			pkcs11.NewAttribute(pkcs11.CKA_SENSITIVE, true), pkcs11.NewAttribute(pkcs11.CKA_SIGN, true), pkcs11.NewAttribute(pkcs11.CKA_VALUE, private),
		}),
		slices.Concat(both, []*pkcs11.Attribute{
			pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_PUBLIC_KEY), pkcs11.NewAttribute(pkcs11.CKA_EC_POINT, append([]byte{4, 65}, public...)),
		}),
	}
	for _, on := range r.pool.tokens {
		err := r.pool.do(r.t.Context(), &job{op: "importing a key", rw: true, on: func(t *token) bool { return t == on }, run: func(c *conn) error {
			for _, o := range objects {
				if _, err := c.CreateObject(c.session, o); err != nil {
					return err
				}
			}
			return nil
		}})
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// eventually waits for what others are about to do.
func (r *rig) eventually(what string, is func() bool) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(rigPatience)
	for !is() {
		select {
		case <-tick.C:
		case <-deadline:
			b := r.fault.Book(r.t)
			r.t.Errorf("never: %s; pool %+v, book %+v", what, r.pool.Stat(), b.Tokens[r.labels[0]])
			return
		}
	}
}

// A question is one signature that was asked for, and what came of it.
type question struct {
	digest     []byte
	repeatable bool
	sig        []byte
	err        error
}

// sign asks for one signature: of a certificate, or of what may be signed twice.
func (r *rig) sign(ctx context.Context, repeatable bool) error {
	d := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(r.mark), digests.Add(1)))
	a := question{digest: d[:], repeatable: repeatable}
	ctx, cancel := context.WithTimeout(ctx, rigPatience)
	defer cancel()
	if repeatable {
		ctx = keys.WithPurpose(keys.Repeatable(ctx), keys.ForStatus)
	}
	a.sig, a.err = r.key.Sign(ctx, a.digest, crypto.SHA256)
	if ctx.Err() != nil {
		r.t.Errorf("somebody waits for ever: %v; pool %+v, gate %+v", a.err, r.pool.Stat(), r.gate.Stat())
	}
	r.mu.Lock()
	r.asks = append(r.asks, a)
	r.mu.Unlock()
	return a.err
}

// load has all workers ask for that many signatures each, every second of which
// may be made twice.
func (r *rig) load(each int) {
	var n atomic.Int64
	r.each(each, func() { _ = r.sign(r.t.Context(), n.Add(1)%2 == 0) })
}

// each has all workers do something that many times each.
func (r *rig) each(times int, do func()) {
	var wg sync.WaitGroup
	for range rigWorkers {
		wg.Go(func() {
			for range times {
				do()
			}
		})
	}
	wg.Wait()
}

// A tally is how often what came of signatures that were asked for.
type tally struct {
	delivered int
	busy      int // the device did nothing, and may do it later
	refused   int // the device did nothing, and won't
	unknown   int // whether the device did it
}

// judge looks at all that was asked for since it last did, and at what the device
// has signed.
func (r *rig) judge(when string) tally {
	r.t.Helper()
	r.mu.Lock()
	asks := r.asks
	r.asks = nil
	r.mu.Unlock()
	signed, err := r.fault.Signed()
	if err != nil {
		r.t.Fatal(err)
	}
	var o tally
	pub := r.key.Public().(*ecdsa.PublicKey)
	for _, a := range asks {
		times := signed.Times(a.digest)
		switch {
		case a.err == nil:
			o.delivered++
			if !ecdsa.VerifyASN1(pub, a.digest, a.sig) {
				r.t.Errorf("%s: a wrong signature was delivered", when)
			}
			if times == 0 {
				r.t.Errorf("%s: a signature was delivered that the device has not made", when)
			}
		case errors.Is(a.err, keys.ErrBusy):
			o.busy++
			if times != 0 {
				r.t.Errorf("%s: the device is said to have done nothing, and has signed %d times: %v", when, times, a.err)
			}
		case meaningOf(a.err).class == classData && meaningOf(a.err).idle:
			o.refused++
			if times != 0 {
				r.t.Errorf("%s: the device is said to have refused, and has signed %d times: %v", when, times, a.err)
			}
		default:
			o.unknown++
		}
		if times > 1 && !a.repeatable {
			r.t.Errorf("%s: what must be signed once was signed %d times", when, times)
		}
		if times > 3 {
			r.t.Errorf("%s: something was signed %d times", when, times)
		}
	}
	return o
}

// recover waits until signatures are made again, by nobody's doing, and returns
// how long that took.
func (r *rig) recover(when string) time.Duration {
	r.t.Helper()
	began := time.Now()
	var last error
	defer func() {
		if last != nil {
			r.t.Errorf("%s: the last signature failed: %v", when, last)
		}
	}()
	r.eventually(when+": it recovers", func() bool { last = r.sign(r.t.Context(), false); return last == nil })
	return time.Since(began)
}

// settled waits until all seats and sessions are back.
func (r *rig) settled(when string) {
	r.t.Helper()
	r.eventually(when+": all seats and sessions are back", func() bool {
		open, book := 0, r.fault.Book(r.t)
		for _, t := range r.pool.Stat().Tokens {
			if t.State != Up || t.Busy != 0 || t.Opening != 0 || t.Hung != 0 || t.Idle < 2 {
				return false
			}
			open += t.Idle
		}
		g := r.gate.Stat()
		return open == book.Open && book.InFlight == 0 && book.Hung == 0 && g.InFlight == 0 && g.Queued == 0
	})
}

var faultCodes = []uint{
	pkcs11.CKR_CANCEL, pkcs11.CKR_HOST_MEMORY, pkcs11.CKR_SLOT_ID_INVALID, pkcs11.CKR_GENERAL_ERROR, pkcs11.CKR_FUNCTION_FAILED,
	pkcs11.CKR_ARGUMENTS_BAD, pkcs11.CKR_CANT_LOCK, pkcs11.CKR_DATA_INVALID, pkcs11.CKR_DATA_LEN_RANGE, pkcs11.CKR_DEVICE_ERROR,
	pkcs11.CKR_DEVICE_MEMORY, pkcs11.CKR_DEVICE_REMOVED, pkcs11.CKR_FUNCTION_CANCELED, pkcs11.CKR_FUNCTION_NOT_SUPPORTED,
	pkcs11.CKR_KEY_HANDLE_INVALID, pkcs11.CKR_KEY_FUNCTION_NOT_PERMITTED, pkcs11.CKR_MECHANISM_INVALID, pkcs11.CKR_OBJECT_HANDLE_INVALID,
	pkcs11.CKR_OPERATION_ACTIVE, pkcs11.CKR_OPERATION_NOT_INITIALIZED, pkcs11.CKR_SESSION_CLOSED, pkcs11.CKR_SESSION_COUNT,
	pkcs11.CKR_SESSION_HANDLE_INVALID, pkcs11.CKR_TOKEN_NOT_PRESENT, pkcs11.CKR_TOKEN_NOT_RECOGNIZED, pkcs11.CKR_USER_ALREADY_LOGGED_IN,
	pkcs11.CKR_USER_NOT_LOGGED_IN, pkcs11.CKR_USER_ANOTHER_ALREADY_LOGGED_IN, pkcs11.CKR_USER_TOO_MANY_TYPES, pkcs11.CKR_BUFFER_TOO_SMALL,
	pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED, pkcs11.CKR_CRYPTOKI_ALREADY_INITIALIZED, pkcs11.CKR_FUNCTION_REJECTED,
	pkcs11.CKR_VENDOR_DEFINED + 1, 0x7FFF,
}

// A fault is where a code is returned, and what it takes for the call to be made.
type fault struct {
	call    string
	after   bool     // the call is made, and then denied
	trigger []string // other lines of the script
}

func (f fault) String() string {
	if f.after {
		return f.call + " after"
	}
	return f.call
}

// faults are played beside each other, each on a token of its own.
var faults = []fault{
	{call: "C_SignInit"},
	{call: "C_SignInit", after: true},
	{call: "C_Sign"},
	{call: "C_Sign", after: true},
	{call: "C_OpenSession", trigger: reset},
	{call: "C_OpenSession", after: true, trigger: reset},
	{call: "C_CloseSession", trigger: discard},
	{call: "C_CloseSession", after: true, trigger: discard},
	{call: "C_GetSlotList", trigger: down},
	{call: "C_GetTokenInfo", trigger: down},
	{call: "C_GetSessionInfo", trigger: reset},
	{call: "C_Login", trigger: down},
	{call: "C_Login", after: true, trigger: down},
	{call: "C_FindObjectsInit", trigger: reset},
	{call: "C_FindObjects", trigger: reset},
	{call: "C_FindObjectsFinal", trigger: reset},
	{call: "C_GetAttributeValue", trigger: reset},
	{call: "C_Initialize", trigger: anew},
	{call: "C_Initialize", after: true, trigger: anew},
	{call: "C_Finalize", trigger: anew},
	{call: "C_Finalize", after: true, trigger: anew},
}

var (
	reset   = []string{"token reset"}
	down    = []string{"token reset", "C_SignInit 1 return 0xE0"}
	discard = []string{"C_SignInit 1-2 return 0x30"}
	// anew has the module initialized anew: it says once that it is not.
	anew = []string{"token reset", "C_SignInit 1 return 0xE0", "C_GetSlotList 1 return 0x190"}
)

// A record is what one fault did to signatures and how long recovery took, over
// all codes.
type record struct {
	fault    string
	injected int
	tally
	times []time.Duration
}

func (r *record) String() string {
	slices.Sort(r.times)
	return fmt.Sprintf("%-20s %5d injected %6d delivered %6d busy %4d refused %4d unknown   recovered in %7v (median) %7v (most)", r.fault, r.injected,
		r.delivered, r.busy, r.refused, r.unknown, r.times[len(r.times)/2].Round(time.Millisecond), r.times[len(r.times)-1].Round(time.Millisecond))
}

// TestEveryFaultOfEveryCall returns each code from each call, once and for a
// while, to a program that signs with eight workers. No wrong signature is
// delivered, nothing is signed twice that must not be, whoever is told that the
// device did nothing is told the truth, and afterwards all is as before.
func TestEveryFaultOfEveryCall(t *testing.T) {
	t.Parallel()
	records := make([]*record, len(faults))
	var wg sync.WaitGroup
	for i, f := range faults {
		r := newRig(t, keys.ECDSAP256, 1, nil)
		wg.Go(func() { records[i] = r.suffer(f) })
	}
	wg.Wait()
	for _, r := range records {
		t.Log(r)
		// Before C_Sign the device has certainly done nothing, so nothing is lost.
		if r.unknown > 0 && !strings.HasPrefix(r.fault, "C_Sign after") && r.fault != "C_Sign" {
			t.Errorf("%s: of %d signatures it is not known whether they were made", r.fault, r.unknown)
		}
	}
}

// suffer plays all codes of one fault.
func (r *rig) suffer(f fault) *record {
	rec := &record{fault: f.String()}
	for _, code := range faultCodes {
		if f.call == "C_GetSessionInfo" && code == pkcs11.CKR_FUNCTION_NOT_SUPPORTED {
			continue // the pool does without
		}
		if f.call == "C_Finalize" && code == pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED {
			continue // a lie that nobody can see through: another may have initialized it since
		}
		if f.call == "C_Sign" && f.after && meaningOf(pkcs11.Error(code)).idle {
			continue // no device that signs says that it has not begun to
		}
		for _, when := range []string{"1", "*"} {
			after := ""
			if f.after {
				after = "after "
			}
			line := fmt.Sprintf("%s %s %sreturn 0x%X", f.call, when, after, code)
			if f.call == "C_CloseSession" && !f.after && saysGone(pkcs11.Error(code)) { // a lie nobody can see through
				line = strings.Replace(line, "return", "really return", 1)
			}
			before := r.fault.Book(r.t).Functions[f.call].Injected
			r.forgetRestarts()
			r.fault.Script(r.t, append([]string{line}, f.trigger...)...)
			r.load(2)
			r.eventually(line+": it was played", func() bool {
				_ = r.sign(r.t.Context(), true) // has the pool call
				return r.fault.Book(r.t).Functions[f.call].Injected > before
			})
			rec.injected += r.fault.Book(r.t).Functions[f.call].Injected - before
			r.fault.Script(r.t)
			rec.times = append(rec.times, r.recover(line))
			r.settled(line)
			o := r.judge(line)
			rec.delivered += o.delivered
			rec.busy += o.busy
			rec.refused += o.refused
			rec.unknown += o.unknown
			if r.t.Failed() { // one is enough, and the others would be slow
				return rec
			}
		}
	}
	return rec
}

// forgetRestarts has the module not wait before it is initialized anew once more.
func (r *rig) forgetRestarts() {
	for _, t := range r.pool.tokens {
		t.module.mu.Lock()
		t.module.pause = 0
		t.module.mu.Unlock()
	}
}
