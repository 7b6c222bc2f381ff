package pkcs11pool

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/pkcs11"
	"github.com/prometheus/client_golang/prometheus"
)

// mustFail opens a pool that is not to be opened, and wants nothing left of it.
func mustFail(t *testing.T, d *device, cfg Config, words ...string) error {
	t.Helper()
	p, err := openWith(t.Context(), cfg, d.load())
	if err == nil {
		_ = p.Close()
		t.Fatalf("opened %+v", cfg)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	if n := d.open(); n != 0 {
		t.Errorf("%d sessions are left after %v", n, err)
	}
	return err
}

func TestAMistakeInTheConfigurationIsSaidAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		slot := uint(0)
		for words, change := range map[string]func(*Config){
			"no token":                        func(c *Config) { c.Tokens = nil },
			"token 1: no module":              func(c *Config) { c.Tokens[0].Module = "" },
			"no label, serial or slot":        func(c *Config) { c.Tokens[0].Label = "" },
			`two tokens are named "a"`:        func(c *Config) { c.Tokens = append(c.Tokens, c.Tokens[0]) },
			"from 5 to 4 sessions":            func(c *Config) { c.MinSessions, c.MaxSessions = 5, 4 },
			"from -1 to 8 sessions":           func(c *Config) { c.MinSessions = -1 },
			"from 1 to 100000 sessions":       func(c *Config) { c.MaxSessions = 100000 },
			"must not be negative":            func(c *Config) { c.CallTimeout = -1 },
			"idle time -1ns":                  func(c *Config) { c.IdleTime = -1 },
			"a queue of -1":                   func(c *Config) { c.MaxQueue = -1 },
			"9 calls that may hang":           func(c *Config) { c.MaxHung = 9 },
			`label "z"; there is label "a" s`: func(c *Config) { c.Tokens[0].Label = "z" },
			`serial "17"`:                     func(c *Config) { c.Tokens[0].Serial = "17" },
			"slot 9":                          func(c *Config) { n := uint(9); c.Tokens[0].Slot = &n },
			"there is no PIN for it":          func(c *Config) { c.Tokens[0].PIN = nil },
			"are the same one": func(c *Config) {
				c.Tokens = append(c.Tokens, TokenConfig{Module: "fake", Slot: &slot, PIN: pinOf(goodPIN)})
			},
			"PIN: out of reach": func(c *Config) {
				c.Tokens[0].PIN = func() ([]byte, error) { return nil, errors.New("out of reach") }
			},
		} {
			cfg := at("a")
			change(&cfg)
			_ = mustFail(t, newDevice(t, 1), cfg, words)
		}
	})
}

func TestATokenIsKnownByAllThatIsSaidOfIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 3)
		twin := aToken(0)
		twin.SerialNumber = "77"
		d.insert(9, twin)
		if err := mustFail(t, d, at("a"), "more than one", "slot 0", "slot 9"); !errors.Is(err, errAmbiguous) {
			t.Errorf("got %v", err)
		}
		cfg := at("a")
		cfg.Lenient = true
		_ = mustFail(t, d, cfg, "more than one")
		slot := uint(9)
		for _, tok := range []TokenConfig{
			{Label: "a", Serial: "77"},
			{Serial: "77"},
			{Slot: &slot},
			{Label: "a", Serial: "77", Slot: &slot, Name: "twin"},
		} {
			tok.Module, tok.PIN = "fake", pinOf(goodPIN)
			p := d.pool(t, Config{Tokens: []TokenConfig{tok}})
			mustDo(t, p, &job{run: func(c *conn) error {
				if c.slot != 9 {
					t.Errorf("%+v is in slot %d", tok, c.slot)
				}
				return nil
			}})
			d.close(t, p)
		}
		blank := aToken(4)
		blank.Flags = 0
		d.insert(5, blank)
		_ = mustFail(t, d, at("e"), `label "e" serial "4" slot 5 (not initialized)`)
	})
}

func TestASlotThatFailsHidesNoOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 3)
		d.on("C_GetTokenInfo", func(n int) error {
			if n == 1 {
				return pkcs11.Error(pkcs11.CKR_DEVICE_ERROR)
			}
			return nil
		})
		p := d.pool(t, at("c"))
		mustDo(t, p, sign())
		_ = p
	})
}

func TestOneTokenOfSeveralIsEnough(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("b", "a", "c"))
		for range 10 {
			mustDo(t, p, sign())
		}
		if p.Capacity() != defaultMaxSessions {
			t.Errorf("capacity %d", p.Capacity())
		}
		d.insert(1, aToken(1))
		wait(time.Minute)
		if p.Capacity() != 2*defaultMaxSessions {
			t.Errorf("capacity %d with two", p.Capacity())
		}
	})
}

func TestAWrongPINIsAnErrorHoweverManyTokensThereAre(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 2)
		cfg := at("a", "b")
		cfg.Tokens[1].PIN = pinOf("wrong")
		if err := mustFail(t, d, cfg, "token b"); !errors.Is(err, ErrPIN) {
			t.Errorf("got %v", err)
		}
	})
}

func TestALenientPoolOpensWithoutItsTokens(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 0)
		if err := mustFail(t, d, at("a"), "none"); !errors.Is(err, errNoToken) {
			t.Errorf("got %v", err)
		}
		cfg := at("a")
		cfg.Lenient = true
		p := d.pool(t, cfg)
		busyWith(t, p.do(t.Context(), sign()), unavailable)
		if err := p.Check(t.Context()); !errors.Is(err, errNoToken) {
			t.Errorf("check says %v", err)
		}
		wait(time.Hour)
		d.insert(0, aToken(0))
		wait(mostPause)
		mustDo(t, p, sign())
	})
}

func TestOpeningEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		d.on("C_Login", func(int) error { time.Sleep(10 * time.Second); return nil })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := openWith(ctx, at("a"), d.load()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if n := d.open(); n != 0 {
			t.Errorf("%d sessions are left", n)
		}
	})
}

func TestClosingWaitsForWhatIsUnderWay(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.MaxSessions = 2
		p := d.pool(t, cfg)
		d.on("C_Sign", func(int) error { time.Sleep(5 * time.Second); return nil })
		one, two := begin(t.Context(), p, sign()), begin(t.Context(), p, sign())
		queued := begin(t.Context(), p, sign())
		began := time.Now()
		closed := make(chan error, 2)
		for range 2 { // as often as one likes
			go func() { closed <- p.Close() }()
		}
		busyWith(t, <-queued, closedPool)
		busyWith(t, p.do(t.Context(), sign()), closedPool)
		busyWith(t, p.Ready(), closedPool)
		if p.Check(t.Context()) == nil {
			t.Error("ready")
		}
		for _, c := range []<-chan error{one, two, closed, closed} {
			if err := <-c; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("closed after %v", took)
		}
		if want := []string{"open", "open", "logout", "close", "close"}; !slices.Equal(d.events, want) || d.count("C_Finalize") != 1 {
			t.Errorf("events %v, want %v", d.events, want)
		}
	})
}

func TestClosingDoesNotWaitForEver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		cfg := at("a")
		cfg.CallTimeout = 5 * time.Second
		p, err := openWith(t.Context(), cfg, d.load())
		if err != nil {
			t.Fatal(err)
		}
		back := make(chan struct{})
		d.on("C_Sign", func(int) error { <-back; return nil })
		hanging := begin(t.Context(), p, sign())
		began := time.Now()
		if err := p.Close(); err == nil || !strings.Contains(err.Error(), "1 of them hang") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(began); took > 4*cfg.CallTimeout {
			t.Errorf("closed after %v", took)
		}
		if d.count("C_Finalize") != 0 {
			t.Error("finalized with a call under way")
		}
		if err := <-hanging; !isHung(err) {
			t.Errorf("got %v", err)
		}
		close(back)
		wait(0)
		if n := d.open(); n != 0 {
			t.Errorf("%d sessions are left when the call is back", n)
		}
	})
}

func TestClosingUnderLoadLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for i := range 30 {
			d := newDevice(t, 2)
			cfg := at("a", "b")
			cfg.CallTimeout = time.Second
			p := d.pool(t, cfg)
			d.on("C_Sign", func(n int) error {
				time.Sleep(time.Millisecond)
				if n%7 == 0 {
					return pkcs11.Error(pkcs11.CKR_DEVICE_REMOVED)
				}
				return nil
			})
			var all sync.WaitGroup
			for range 20 {
				all.Go(func() {
					for p.Check(t.Context()) != errClosed { //nolint:errorlint // this very one
						_ = p.do(t.Context(), sign())
						time.Sleep(time.Millisecond)
					}
				})
			}
			time.Sleep(time.Duration(i) * 500 * time.Microsecond)
			d.close(t, p)
			all.Wait()
		}
	})
}

func TestClosingWhileTheTokenIsAwayLeavesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		p := d.pool(t, at("a"))
		lose(t, d, p)
		wait(time.Minute)
		began := time.Now()
		d.close(t, p)
		if took := time.Since(began); took != 0 {
			t.Errorf("closed after %v", took)
		}
	})
}

func TestThePINIsAskedForOnceAndForgotten(t *testing.T) {
	bubble(t, func(t *testing.T) {
		d := newDevice(t, 1)
		asked, pin := 0, []byte(goodPIN)
		cfg := at("a")
		cfg.Tokens[0].PIN = func() ([]byte, error) { asked++; return pin, nil }
		p := d.pool(t, cfg)
		for range 3 {
			lose(t, d, p)
			d.insert(0, aToken(0))
			wait(time.Minute)
			mustDo(t, p, sign())
		}
		d.close(t, p)
		if asked != 1 || string(pin) == goodPIN {
			t.Errorf("asked %d times, left as %q", asked, pin)
		}
	})
}

func TestMetricsSayWhatAStatSays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		d := newDevice(t, 2)
		cfg := at("a", "b")
		cfg.Registerer = reg
		p := d.pool(t, cfg)
		d.on("C_Sign", func(int) error { time.Sleep(3 * time.Millisecond); return nil })
		for range 4 {
			mustDo(t, p, sign())
		}
		d.remove(1)
		for range 2 {
			_ = p.do(t.Context(), sign())
		}
		wait(0)
		got := gather(t, reg)
		for metric, want := range map[string]float64{
			"secsy_pkcs11_token_up{a}":                1,
			"secsy_pkcs11_token_up{b}":                0,
			"secsy_pkcs11_sessions{idle a}":           1,
			"secsy_pkcs11_sessions{busy a}":           0,
			"secsy_pkcs11_sessions{idle b}":           0,
			"secsy_pkcs11_sessions{hung b}":           0,
			"secsy_pkcs11_sessions_limit{a}":          defaultMaxSessions,
			"secsy_pkcs11_errors_total{session b}":    1,
			"secsy_pkcs11_borrows_total{a}":           float64(p.Stat().Tokens[0].Borrows),
			"secsy_pkcs11_call_seconds{fake a}":       float64(p.Stat().Tokens[0].Latency[0].Count),
			"secsy_pkcs11_refusals_total{queue_full}": 0,
			"secsy_pkcs11_queue{}":                    0,
			"secsy_pkcs11_recoveries_total{b}":        0,
			"secsy_pkcs11_module_restarts_total{b}":   0,
			"secsy_pkcs11_reopened_sessions_total{a}": 0,
			"secsy_pkcs11_waits_total{}":              0,
			"secsy_pkcs11_wait_seconds_total{}":       0,
		} {
			if v, ok := got[metric]; !ok || v != want {
				t.Errorf("%s is %v, want %v", metric, v, want)
			}
		}
		l := p.Stat().Tokens[0].Latency
		if len(l) != 1 || l[0].Mechanism != "fake" || l[0].Count < 2 || l[0].Buckets[5] != 0 || l[0].Buckets[6] != l[0].Count {
			t.Errorf("%+v", l)
		}
		d.close(t, p)
		if all, err := reg.Gather(); err != nil || len(all) != 0 {
			t.Errorf("%d metrics are left: %v", len(all), err)
		}
	})
}

// gather returns what the metrics are, by name and labels; of a histogram its count.
func gather(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range all {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			values[family.GetName()+"{"+strings.Join(labels, " ")+"}"] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}

func TestLabelsOfMetricsAreBounded(t *testing.T) {
	t.Parallel()
	var l latencies
	for i := range 10 * maxMechanisms {
		l.observe(strings.Repeat("m", i+1), time.Millisecond)
	}
	if n := len(l.stat()); n != maxMechanisms {
		t.Errorf("%d mechanisms", n)
	}
}
