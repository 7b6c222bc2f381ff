package app

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
	"github.com/secsy-pki/secsy-pki/pkcs11pool"
)

// An absence takes a device away from the CA, with all keys but that of the https
// listener, which is on none.
type absence struct {
	KeyStore
	away atomic.Pointer[keys.BusyError]
}

func (a *absence) begin() {
	a.away.Store(&keys.BusyError{Reason: "away", RetryAfter: time.Second, Err: errors.New("token 4711 was removed")})
}
func (a *absence) end() { a.away.Store(nil) }

func (a *absence) Ready() error {
	if err := a.away.Load(); err != nil {
		return err
	}
	return nil
}

func (a *absence) Key(ctx context.Context, label string) (keys.Key, error) {
	if strings.HasPrefix(label, selfKeyLabel) {
		return a.KeyStore.Key(ctx, label)
	}
	if err := a.Ready(); err != nil {
		return nil, err
	}
	k, err := a.KeyStore.Key(ctx, label)
	return absentKey{k, a}, err
}

func (a *absence) Generate(ctx context.Context, label string, alg keys.Algorithm) (keys.Key, error) {
	if strings.HasPrefix(label, selfKeyLabel) {
		return a.KeyStore.Generate(ctx, label, alg)
	}
	if err := a.Ready(); err != nil {
		return nil, err
	}
	k, err := a.KeyStore.Generate(ctx, label, alg)
	return absentKey{k, a}, err
}

type absentKey struct {
	keys.Key
	*absence
}

func (k absentKey) Ready() error { return k.absence.Ready() }

func (k absentKey) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if err := k.Ready(); err != nil {
		return nil, err
	}
	return k.Key.Sign(ctx, digest, opts)
}

// wrap is the absence before the keys of a program.
func (a *absence) wrap() Wrap {
	return Wrap{Keys: func(k KeyStore) KeyStore { a.KeyStore = k; return a }}
}

// runWith is run with something before the keys.
func runWith(t *testing.T, dir string, w Wrap) running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan Addresses, 1), make(chan error, 1)
	r := running{log: new(buffer)}
	cfg := load(t, dir)
	go func() {
		done <- Run(ctx, Options{Config: cfg, Stderr: r.log, Wrap: w, Ready: func(a Addresses) { ready <- a }})
	}()
	r.stop = sync.OnceValue(func() error { cancel(); return <-done })
	t.Cleanup(func() { _ = r.stop() })
	select {
	case r.at = <-ready:
	case err := <-done:
		done <- err
		t.Fatalf("it did not start: %v\n%s", err, r.log)
	}
	return r
}

func (r running) get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// becomes asks until the answer has that status.
func (r running) becomes(t *testing.T, url string, want int) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		code, body := r.get(t, url)
		if code == want {
			return
		}
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("%s answers %d %s\n%s", url, code, body, r.log)
		}
	}
}

// A start while the device of the CA is away serves what there is, says what is
// wrong to probes and, with the reason, to the log, and is whole again by itself
// once the device is back.
func TestAStartWithoutTheDeviceServesWhatThereIsAndRecovers(t *testing.T) {
	t.Parallel()
	dir := newCA(t)
	if err := run(t, dir).stop(); err != nil {
		t.Fatal(err)
	}
	id := issuerID(certificateOf(t, dir))
	device := new(absence)
	device.begin()
	r := runWith(t, dir, device.wrap())
	probe := "http://" + r.at.Operator.String() + "/readyz"
	if code, _ := r.get(t, "http://"+r.at.HTTP.String()+"/crl/"+id+".crl"); code != http.StatusOK {
		t.Errorf("the CRL of before: %d", code)
	}
	code, body := r.get(t, probe)
	if code != http.StatusServiceUnavailable || body != `{"status":"failed","checks":{"crl":"ok","database":"ok","keys":"failed"}}`+"\n" {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, body := r.get(t, probe+"?exclude=keys"); code != http.StatusOK || !strings.Contains(body, "degraded") {
		t.Errorf("/readyz without the keys: %d %s", code, body)
	}
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(t.Context(), "tcp", r.at.HTTPS.String()) //nolint:gosec // it is about being answered
	if err != nil {
		t.Errorf("the https listener: %v", err)
	} else {
		_ = conn.Close()
	}
	if !strings.Contains(r.log.String(), "token 4711 was removed") {
		t.Errorf("the log does not say why:\n%s", r.log)
	}
	device.end()
	r.becomes(t, probe, http.StatusOK)
	if !strings.Contains(r.log.String(), "found a key of the CA") {
		t.Errorf("the log does not say that the key is there:\n%s", r.log)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// certificateOf is that of the issuer in dir.
func certificateOf(t *testing.T, dir string) *x509.Certificate {
	t.Helper()
	c, err := readCertificate(filepath.Join(dir, issuingFile))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Without a CRL of before there is nothing to serve: the first start needs the
// device, and says what it says.
func TestAFirstStartNeedsTheDevice(t *testing.T) {
	t.Parallel()
	device := new(absence)
	device.begin()
	err := Run(t.Context(), Options{Config: load(t, newCA(t)), Stderr: new(buffer), Wrap: device.wrap(), Ready: func(Addresses) {
		t.Error("it started")
	}})
	if !errors.Is(err, keys.ErrBusy) || !strings.Contains(err.Error(), "token 4711 was removed") || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
}

// What looks at a configuration before a start does not take a key on trust.
func TestACheckWithoutTheDeviceFails(t *testing.T) {
	t.Parallel()
	device := new(absence)
	device.begin()
	a := newApp(Options{Config: load(t, newCA(t)), Stderr: new(buffer), Wrap: device.wrap()})
	a.strict = true
	if err := errors.Join(a.buildAdmission(t.Context()), a.openKeys(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := a.openIssuers(t.Context()); !errors.Is(err, keys.ErrBusy) {
		t.Errorf("got %v", err)
	}
}

func TestALateKeyIsLookedForUntilItIsThere(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		another bool
		want    []string // one line each
	}{
		"the key":       {false, []string{"is missing", "found a key"}},
		"another of it": {true, []string{"is missing", "is not that of its certificate"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				private, err := keys.NewPrivateKey(keys.ECDSAP256)
				if err != nil {
					t.Fatal(err)
				}
				s := keystest.New()
				late := keys.Later(s, "k", private.Public(), keys.ErrBusy)
				a := newApp(Options{Config: config.Default(), Stderr: new(buffer)})
				a.held.release()
				s.Away(time.Minute)
				done := make(chan error, 1)
				go func() { done <- a.findLate(t.Context(), "k", late) }()
				time.Sleep(6 * time.Hour)
				s.Back() // without the key, which is to be restored
				time.Sleep(time.Hour)
				synctest.Wait()
				if c.another {
					private, err = keys.NewPrivateKey(keys.ECDSAP256)
				}
				if _, putting := s.Put("k", private); err != nil || putting != nil {
					t.Fatal(err, putting)
				}
				time.Sleep(lateLook)
				if err := <-done; err != nil {
					t.Error(err)
				}
				if n := strings.Count(a.logged(), "\n"); n != len(c.want) {
					t.Errorf("%d lines:\n%s", n, a.logged())
				}
				for _, line := range c.want {
					if !strings.Contains(a.logged(), line) {
						t.Errorf("no %q in\n%s", line, a.logged())
					}
				}
				if err := keys.Ready(late); (err == nil) == c.another {
					t.Errorf("ready: %v", err)
				}
			})
		})
	}
}

func TestReadinessKnowsOfTheKeys(t *testing.T) {
	t.Parallel()
	dir := newCA(t)
	device := new(absence)
	a := newApp(Options{Config: load(t, dir), Stderr: new(buffer), Wrap: device.wrap()})
	t.Cleanup(func() { _ = a.close() })
	if err := a.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := a.keysReady(t.Context()); err != nil {
			t.Errorf("while the device is there: %v", err)
		}
		device.begin()
		if err := a.keysReady(t.Context()); !errors.Is(err, keys.ErrBusy) || !strings.Contains(err.Error(), issuingLabel) {
			t.Errorf("while it is away: %v", err)
		}
		device.end()
	}
}

// A busyCA is an authority whose device is away at first, and that then issues
// what it issued before.
type busyCA struct {
	certifier
	refusals int
	err      error
	issued   ca.Certificate
}

func (b *busyCA) Issue(context.Context, ca.Request, ca.Ledger) (ca.Certificate, error) {
	if b.refusals > 0 {
		b.refusals--
		return ca.Certificate{}, b.err
	}
	return b.issued, nil
}

func (*busyCA) CheckKey(context.Context, crypto.PublicKey) error { return nil }

func (*busyCA) Record(context.Context, ca.Serial) (ca.Record, error) {
	return ca.Record{}, ca.ErrNotFound
}

var errAway = &ca.Refusal{Code: ca.Busy, RetryAfter: time.Minute, Err: keys.ErrBusy}

// While no certificate can be issued the one on file is shown, however old it
// is, unless it is of another key or revoked. The https listener has what can be
// had as soon as it can be.
func TestTheHTTPSCertificateOnFileHasToDoWhileNoneCanBeIssued(t *testing.T) {
	t.Parallel()
	a := built(t, newCA(t))
	first := shown(t, a.selfCert)
	renamed := []ca.Identifier{{Type: ca.DNS, Value: "other.example"}}
	again := func(s *selfCert) *selfCert {
		c := copyOf(s)
		c.ca = &busyCA{certifier: a.ca, refusals: 1, err: errAway}
		return c
	}
	unfit := again(a.selfCert)
	unfit.names = renamed
	if err := unfit.prepare(t.Context()); err != nil || !bytes.Equal(shown(t, unfit).Certificate[0], first.Certificate[0]) {
		t.Errorf("an unfit one: %v", err)
	}
	broken := again(a.selfCert)
	broken.names, broken.ca.(*busyCA).err = renamed, errors.New("the linter says no")
	if err := broken.prepare(t.Context()); err == nil {
		t.Error("what no waiting makes better does not keep it from starting")
	}
	absent := again(a.selfCert)
	absent.file = filepath.Join(t.TempDir(), "absent")
	if err := absent.prepare(t.Context()); err != nil || absent.current.Load() != nil {
		t.Errorf("none on file: %v", err)
	}
	err := a.ca.Revoke(t.Context(), ca.Revocation{Serial: ca.SerialOf(first.Leaf.SerialNumber), Reason: ca.Superseded, Requester: ca.Requester{Actor: "operator:uid/0"}})
	if err != nil {
		t.Fatal(err)
	}
	revoked := copyOf(a.selfCert)
	revoked.ca = awayCA{a.ca}
	if err := revoked.prepare(t.Context()); err != nil || revoked.current.Load() != nil {
		t.Errorf("a revoked one: %v, and it is shown", err)
	}
	if n := strings.Count(a.logged(), "the https certificate on file is shown"); n != 1 {
		t.Errorf("%d lines of one that has to do in\n%s", n, a.logged())
	}
}

// An awayCA remembers all and issues nothing.
type awayCA struct{ certifier }

func (awayCA) Issue(context.Context, ca.Request, ca.Ledger) (ca.Certificate, error) {
	return ca.Certificate{}, errAway
}

func TestAMissingHTTPSCertificateIsThereSoonAfterTheDeviceIs(t *testing.T) {
	t.Parallel()
	a := built(t, newCA(t))
	first := shown(t, a.selfCert)
	synctest.Test(t, func(t *testing.T) {
		s := copyOf(a.selfCert)
		s.file = filepath.Join(t.TempDir(), selfCertFile)
		log := new(buffer)
		program := newApp(Options{Config: config.Default(), Stderr: log})
		program.held.release()
		s.log = program.log
		if err := s.register(program.registry); err != nil {
			t.Fatal(err)
		}
		device := &busyCA{certifier: a.ca, refusals: 1000, err: errAway, issued: ca.Certificate{DER: first.Certificate[0], Issuer: a.issuers[0].ID}}
		s.ca = device
		if err := s.prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.run(ctx) }()
		time.Sleep(998 * selfAway)
		synctest.Wait()
		if _, err := s.get(nil); err == nil || device.refusals != 0 {
			t.Errorf("%d refusals left", device.refusals)
		}
		time.Sleep(selfAway)
		synctest.Wait()
		if c, err := s.get(nil); err != nil || !bytes.Equal(c.Certificate[0], first.Certificate[0]) {
			t.Errorf("it is not shown: %v", err)
		}
		families, err := program.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if n := f.GetMetric()[0].GetCounter().GetValue(); f.GetName() == "secsy_http_certificate_renewal_failures_total" && n != 1000 {
				t.Errorf("%v failures are counted", n)
			}
		}
		// One when it was missed, one for the row of failures, one for the end.
		if n := strings.Count(log.String(), "\n"); n != 3 {
			t.Errorf("%d lines:\n%s", n, log)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if _, err := os.Stat(a.selfCert.file); err != nil {
		t.Error(err)
	}
}

// The gate before the keys is as wide as the tokens behind it, unless it is said
// how wide it is; and calls that hang on a token that is no longer used don't
// keep those from being used that are left.
func TestTheGateIsAsWideAsTheTokens(t *testing.T) {
	t.Parallel()
	up := func(limit, hung int) pkcs11pool.TokenStat {
		return pkcs11pool.TokenStat{State: pkcs11pool.Up, Limit: limit, Hung: hung}
	}
	down := func(hung int) pkcs11pool.TokenStat {
		return pkcs11pool.TokenStat{State: pkcs11pool.Down, Limit: 8, Hung: hung}
	}
	auto := config.Default().RateLimit
	auto.Enabled, auto.Concurrency.Enabled, auto.Concurrency.MaxInFlight = true, true, 0
	fixed := auto
	fixed.Concurrency.MaxInFlight = 5
	off := auto
	off.Concurrency.Enabled = false
	for name, c := range map[string]struct {
		limits config.RateLimit
		before int
		tokens []pkcs11pool.TokenStat
		want   int
	}{
		"one token":                   {auto, 0, []pkcs11pool.TokenStat{up(12, 0)}, 12},
		"two":                         {auto, 0, []pkcs11pool.TokenStat{up(12, 0), up(4, 0)}, 16},
		"one of two":                  {auto, 16, []pkcs11pool.TokenStat{up(12, 0), down(0)}, 12},
		"none, of which some were up": {auto, 12, []pkcs11pool.TokenStat{down(0), down(0)}, 12},
		"none yet":                    {auto, 0, []pkcs11pool.TokenStat{down(0)}, fileSeats},
		"hung on one in use":          {auto, 0, []pkcs11pool.TokenStat{up(12, 3)}, 12},
		"hung on one out of use":      {auto, 16, []pkcs11pool.TokenStat{up(12, 0), down(4)}, 16},
		"said":                        {fixed, 0, []pkcs11pool.TokenStat{up(12, 0)}, 5},
		"said, and some hang":         {fixed, 0, []pkcs11pool.TokenStat{up(12, 0), down(4)}, 9},
		"off":                         {off, 0, []pkcs11pool.TokenStat{up(12, 0)}, 64},
	} {
		w := width{limits: c.limits, sessions: c.before}
		if got := w.overTokensLocked(seats(c.limits), c.tokens).Seats; got != c.want {
			t.Errorf("%s: %d seats, want %d", name, got, c.want)
		}
	}
}
