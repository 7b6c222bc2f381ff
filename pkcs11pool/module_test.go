package pkcs11pool

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

func TestAModuleIsInitializedOnceForAllWhoUseIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		load := d.load()
		a, err := openWith(t.Context(), at("a", "b"), load)
		if err != nil {
			t.Fatal(err)
		}
		b, err := openWith(t.Context(), at("a"), load)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if d.count("C_Finalize") != 0 {
			t.Error("finalized while another pool uses it")
		}
		mustDo(t, b, sign()) // and its login is not taken away
		d.close(t, b)
		if d.count("C_Initialize") != 1 || d.count("C_Finalize") != 1 {
			t.Errorf("calls %v", d.calls)
		}
		c, err := openWith(t.Context(), at("a"), load)
		if err != nil {
			t.Fatal(err)
		}
		d.close(t, c)
	})
}

func TestAModuleThatSomebodyElseInitializedIsNotFinalized(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		d.running = true
		p, err := openWith(t.Context(), at("a"), d.load())
		if err != nil {
			t.Fatal(err)
		}
		lose(t, d, p)
		wait(10 * time.Minute)
		d.insert(0, aToken(0))
		wait(mostPause)
		mustDo(t, p, sign())
		d.close(t, p)
		if n := d.count("C_Finalize"); n != 0 {
			t.Errorf("finalized %d times", n)
		}
	})
}

// All tokens of a module that has lost itself come back by one initialization,
// which waits for the calls under way.
func TestALostModuleIsInitializedAnewOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 3)
		p := d.pool(t, at("a", "b", "c"))
		for range 9 {
			mustDo(t, p, sign())
		}
		slow := make(chan struct{})
		d.on("C_GetSlotInfo", nil)
		d.mu.Lock()
		d.hook = func(call string, _ int) error {
			if call == "C_Sign" {
				<-slow
			}
			return nil
		}
		d.mu.Unlock()
		signing := begin(t.Context(), p, sign())
		d.mu.Lock()
		d.running = false
		clear(d.sessions)
		clear(d.loggedIn)
		d.mu.Unlock()
		busyWith(t, p.do(t.Context(), sign()), unavailable)
		wait(time.Second)
		if d.count("C_Finalize") != 0 {
			t.Error("finalized with a call under way")
		}
		close(slow)
		if err := <-signing; err != nil && !errors.Is(err, keys.ErrBusy) { // the module may be back for another try
			t.Errorf("got %v of a module that says that it has done nothing", err)
		}
		wait(time.Minute)
		for range 9 {
			mustDo(t, p, sign())
		}
		restarts := uint64(0)
		for _, s := range p.Stat().Tokens {
			if s.State != Up {
				t.Errorf("%+v", s)
			}
			restarts += s.Restarted
		}
		if d.count("C_Initialize") != 2 || d.count("C_Finalize") != 1 || restarts < 1 {
			t.Errorf("calls %v, %d restarts", d.calls, restarts)
		}
	})
}

func TestAModuleIsNotInitializedAnewWhileACallHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		back := make(chan struct{})
		d.on("C_Sign", func(n int) error {
			if n == 1 {
				<-back
			}
			return nil
		})
		if err := p.do(t.Context(), sign()); !isHung(err) {
			t.Fatalf("got %v", err)
		}
		lose(t, d, p)
		wait(time.Hour)
		if d.count("C_Finalize") != 0 {
			t.Error("finalized")
		}
		close(back)
		wait(3 * time.Minute)
		if d.count("C_Finalize") == 0 {
			t.Error("not finalized when the call was back")
		}
		d.insert(0, aToken(0))
		wait(mostPause)
		mustDo(t, p, sign())
	})
}

func TestAModuleIsNotInitializedAnewWhileAnotherTokenIsUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		p := d.pool(t, at("a", "b"))
		d.remove(0)
		for range 4 {
			mustDo(t, p, sign())
		}
		end := time.Now().Add(time.Hour)
		for time.Now().Before(end) {
			mustDo(t, p, sign())
			time.Sleep(time.Second)
		}
		if n := d.count("C_Finalize"); n != 0 {
			t.Errorf("finalized %d times", n)
		}
	})
}

// Some modules see a token that has come back only then.
func TestAModuleIsInitializedAnewForATokenThatStaysAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		mustDo(t, p, sign())
		var times []time.Time
		lose(t, d, p)
		d.on("C_Finalize", func(int) error { times = append(times, time.Now()); return nil })
		d.on("C_Initialize", func(n int) error {
			if n == 1 {
				return nil
			}
			times = append(times, time.Now())
			if n == 9 {
				d.insert(0, aToken(0))
			}
			return nil
		})
		wait(time.Hour)
		mustDo(t, p, sign())
		if len(times) != 8 {
			t.Fatalf("%d times", len(times))
		}
		for i, least := 1, leastRestartPause; i < len(times); i++ {
			if pause := times[i].Sub(times[i-1]); pause < least || pause > least+mostPause+time.Second {
				t.Errorf("pause %d is %v, want at least %v", i, pause, least)
			}
			least = min(2*least, mostRestartPause)
		}
		if s := p.Stat().Tokens[0]; s.Restarted != 8 {
			t.Errorf("%+v", s)
		}
	})
}

// A handle of before is another session's after: it is neither used nor closed.
func TestNoHandleOutlivesItsInitialization(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		load := d.load()
		p, err := openWith(t.Context(), at("a"), load)
		if err != nil {
			t.Fatal(err)
		}
		q, err := openWith(t.Context(), at("b"), load)
		if err != nil {
			t.Fatal(err)
		}
		s, err := q.borrow(t.Context(), sign(), &attempts{}) // by one who is slow to use it
		if err != nil {
			t.Fatal(err)
		}
		d.mu.Lock()
		d.running = false
		clear(d.sessions)
		clear(d.loggedIn)
		d.mu.Unlock()
		busyWith(t, p.do(t.Context(), sign()), unavailable)
		wait(time.Minute)
		mustDo(t, p, sign())
		if st := q.Stat().Tokens[0]; st.State != Down { // it waits for the session of before
			t.Errorf("%+v: not told", st)
		}
		if err := s.call(sign()); !errors.Is(err, errStale) {
			t.Errorf("got %v", err)
		}
		q.giveBack(s, outcome{fate: classToken, why: errStale}, false)
		wait(time.Minute)
		mustDo(t, q, sign())
		mustDo(t, p, sign())
		if d.unknown != 0 || p.Stat().Tokens[0].Recovered != 1 {
			t.Errorf("%d calls with handles that are not there, %+v", d.unknown, p.Stat().Tokens[0])
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		d.close(t, q)
	})
}

func TestAnInitializationThatHangsIsWaitedForOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		back := make(chan struct{})
		d.on("C_Initialize", func(int) error { <-back; return nil })
		if _, err := openWith(t.Context(), at("a", "b"), d.load()); !isHung(err) {
			t.Errorf("got %v", err)
		}
		cfg := at("a", "b")
		cfg.Lenient = true
		p := d.pool(t, cfg)
		wait(time.Hour)
		if n := d.count("C_Initialize"); n != 2 {
			t.Errorf("called %d times, want once for each pool", n)
		}
		close(back)
		wait(time.Minute)
		mustDo(t, p, sign())
	})
}

func TestAModuleThatCanNotBeInitializedIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		d.on("C_Initialize", func(n int) error {
			if n < 9 {
				return pkcs11.Error(pkcs11.CKR_FUNCTION_FAILED)
			}
			return nil
		})
		cfg := at("a")
		cfg.Lenient = true
		began := time.Now()
		p := d.pool(t, cfg)
		busyWith(t, p.Ready(), unavailable)
		for p.Ready() != nil {
			wait(10 * time.Millisecond)
		}
		if took := time.Since(began); took < 10*time.Second || took > 30*time.Second {
			t.Errorf("8 pauses took %v", took)
		}
	})
}

func TestAFileThatIsNoModuleIsRefusedInWords(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "text.so")
	if err := os.WriteFile(text, []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(dir, "cut.so")
	b, err := os.ReadFile(hsm.Module)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut, b[:5000], 0o600); err != nil {
		t.Fatal(err)
	}
	bare := filepath.Join(dir, "bare.so") // cut off, too, and without section headers, which are at the end
	sectionless := bytes.Clone(b[:5000])
	clear(sectionless[0x28:0x30])
	clear(sectionless[0x3C:0x40])
	if err := os.WriteFile(bare, sectionless, 0o600); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "foreign.so")
	b[18], b[19] = 0xB7, 0 // e_machine: AArch64
	if runtime.GOARCH == "arm64" {
		b[18] = 0x3E
	}
	if err := os.WriteFile(foreign, b, 0o600); err != nil {
		t.Fatal(err)
	}
	libc, _ := filepath.Glob("/lib/*/libm.so.6")
	if len(libc) == 0 {
		t.Fatal("no library to try")
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none.so"): "no such file",
		dir:                           "not a file",
		text:                          "no shared library",
		cut:                           "cut off",
		bare:                          "cut off",
		foreign:                       "for another machine",
		libc[0]:                       "undefined symbol: C_GetFunctionList",
	} {
		cfg := at("a")
		cfg.Lenient = true
		cfg.Tokens[0].Module = path
		_, err := Open(t.Context(), cfg)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
		if errors.Is(err, keys.ErrBusy) || !errors.Is(err, ErrModule) {
			t.Errorf("%v is not a matter of time", err)
		}
	}
}

func TestALinkToAModuleIsTheModule(t *testing.T) {
	t.Parallel()
	link := filepath.Join(t.TempDir(), "link.so")
	if err := os.Symlink(hsm.Module, link); err != nil {
		t.Fatal(err)
	}
	a, err := load(hsm.Module)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := load(link); err != nil || a != b {
		t.Errorf("%v: another module by another name", err)
	}
}
