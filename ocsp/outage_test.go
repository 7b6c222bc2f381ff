package ocsp

import (
	"context"
	"crypto"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

// While the device is away, what is at hand goes out until its nextUpdate and
// not a second longer, everything else is told when to come back, and the log
// has a line for the beginning and one for the end.
func TestAnOutageIsOutlivedByWhatIsSignedAndLeavesTwoLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(nil)
		kept, other := w.leaf(0, 5, Status{State: ca.Issued}), w.leaf(0, 6, Status{State: ca.Issued})
		first := w.ask(s, 0, kept)
		w.keys.Away(7 * time.Second)
		for time.Now().Before(first.NextUpdate) {
			if got := w.ask(s, 0, kept); !got.ProducedAt.Equal(first.ProducedAt) {
				t.Fatal("another answer than the one at hand")
			}
			later(t, doPost(s, w.query(0, other, crypto.SHA1), requestType), http.StatusServiceUnavailable, "7")
			later(t, doPost(s, encodeRequest(t, idsOf(t, w.query(0, other, crypto.SHA1)), nonceOf(1)), requestType), http.StatusServiceUnavailable, "7")
			time.Sleep(6 * time.Minute)
		}
		later(t, doPost(s, w.query(0, kept, crypto.SHA1), requestType), http.StatusServiceUnavailable, "7")
		if n := strings.Count(w.logs.String(), "\n"); n != 1 || !strings.Contains(w.logs.String(), "can't be signed") {
			t.Errorf("%d lines:\n%s", n, w.logs.String())
		}
		w.keys.Back()
		time.Sleep(signingCalm)
		for range 3 {
			if !w.ask(s, 0, kept).ProducedAt.After(first.ProducedAt) {
				t.Error("not signed anew")
			}
			w.ask(s, 0, other)
		}
		if n := strings.Count(w.logs.String(), "\n"); n != 2 || !strings.Contains(w.logs.String(), "are signed again") {
			t.Errorf("%d lines:\n%s", n, w.logs.String())
		}
	})
}

// A device that works now and then is one trouble and not hundreds.
func TestADeviceThatFlapsLeavesFewLines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(nil)
		for i := range int64(500) {
			if i%2 == 0 {
				w.keys.FailNext(1, errors.New("device on fire"))
			}
			doPost(s, w.query(0, w.leaf(0, 5+i, Status{State: ca.Issued}), crypto.SHA1), requestType)
			time.Sleep(time.Second)
		}
		if n := strings.Count(w.logs.String(), "\n"); n != 1 {
			t.Errorf("%d lines:\n%s", n, w.logs.String())
		}
	})
}

// That too many want to sign is no outage: it is the guard that says so, and
// the recorder of refusals.
func TestAFullGuardIsNoOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	w.keys.Fail(&keys.BusyError{Reason: "queue_full", RetryAfter: 3 * time.Second})
	later(t, doPost(s, w.query(0, w.leaf(0, 5, Status{State: ca.Issued}), crypto.SHA1), requestType), http.StatusServiceUnavailable, "3")
	if w.logs.Len() > 0 {
		t.Errorf("it says %s", w.logs.String())
	}
}

// A stuck is a device whose calls keep to no context: they take their time, and
// then fail with err, or sign if that is nil.
type stuck struct {
	KeyStore
	mu    sync.Mutex // guards what follows
	takes time.Duration
	err   error
	calls int
}

func (s *stuck) set(takes time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes, s.err, s.calls = takes, err, 0
}

func (s *stuck) called() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *stuck) Key(ctx context.Context, label string) (keys.Key, error) {
	k, err := s.KeyStore.Key(ctx, label)
	return stuckKey{k, s}, err
}

func (s *stuck) Generate(ctx context.Context, label string, alg keys.Algorithm) (keys.Key, error) {
	k, err := s.KeyStore.Generate(ctx, label, alg)
	return stuckKey{k, s}, err
}

type stuckKey struct {
	keys.Key
	s *stuck
}

func (k stuckKey) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	k.s.mu.Lock()
	takes, err := k.s.takes, k.s.err
	k.s.calls++
	k.s.mu.Unlock()
	time.Sleep(takes)
	if err != nil {
		return nil, err
	}
	return k.Key.Sign(context.WithoutCancel(ctx), digest, opts)
}

var errHung = &keys.HungError{After: 30 * time.Second}

func stuckWorld(t *testing.T) (*world, *stuck, *Server) {
	t.Helper()
	w := newWorld(t)
	d := &stuck{KeyStore: w.keys}
	return w, d, w.server(func(c *Config) { c.Keys = d })
}

// A call of the device that hangs keeps nobody from an answer that is good, and
// those who can't have one no longer than they have patience.
func TestAHungCallKeepsNobodyWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, d, s := stuckWorld(t)
		kept := w.leaf(0, 5, Status{State: ca.Issued})
		first := w.ask(s, 0, kept)
		time.Sleep(3 * 24 * time.Hour) // it is getting old
		d.set(30*time.Second, errHung)
		begin := time.Now()
		if got := w.ask(s, 0, kept); !got.ProducedAt.Equal(first.ProducedAt) {
			t.Error("another answer than the one at hand")
		}
		if took := time.Since(begin); took > refreshWait+overtime {
			t.Errorf("a good answer took %v", took)
		}
		for name, q := range map[string][]byte{
			"shared": w.query(0, w.leaf(0, 6, Status{State: ca.Issued}), crypto.SHA1),
			"nonce":  encodeRequest(t, idsOf(t, w.query(0, w.leaf(0, 7, Status{State: ca.Issued}), crypto.SHA1)), nonceOf(1)),
		} {
			begin = time.Now()
			later(t, doPost(s, q, requestType), http.StatusServiceUnavailable, "2")
			if took, most := time.Since(begin), 2*(10*time.Second+overtime); took > most {
				t.Errorf("%s: refused after %v", name, took)
			}
		}
		// Who asks again joins the call that hangs: one for each certificate.
		before := d.called()
		for range 10 {
			w.ask(s, 0, kept)
		}
		if n := d.called() - before; n > 1 {
			t.Errorf("%d more calls", n)
		}
		// It says so when it returns, and then it is tried again.
		time.Sleep(time.Minute)
		d.set(0, nil)
		if !w.ask(s, 0, kept).ProducedAt.After(first.ProducedAt) {
			t.Error("not signed anew")
		}
		synctest.Wait()
	})
}

// What is signed too late for the one who asked is there for the next.
func TestALateSignatureIsKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, d, s := stuckWorld(t)
		c := w.leaf(0, 5, Status{State: ca.Issued})
		d.set(20*time.Second, nil)
		later(t, doPost(s, w.query(0, c, crypto.SHA1), requestType), http.StatusServiceUnavailable, "2")
		time.Sleep(10 * time.Second)
		w.ask(s, 0, c)
		if n := d.called(); n != 1 {
			t.Errorf("%d calls", n)
		}
	})
}

func TestAPanicOfTheDeviceIsAFaultOfOursAndNotTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	p := s.posts[0]
	d := *p.delegate.Load().cert
	p.delegate.Store(&delegate{cert: &d, key: panickingKey{}, scheme: p.delegate.Load().scheme})
	refused(t, doPost(s, w.query(0, w.leaf(0, 5, Status{State: ca.Issued}), crypto.SHA1), requestType), internalError)
	if !strings.Contains(w.logs.String(), "the driver") || !strings.Contains(w.logs.String(), "stack=") {
		t.Errorf("the log says %s", w.logs.String())
	}
}

type panickingKey struct{ keys.Key }

func (panickingKey) Sign(context.Context, []byte, crypto.SignerOpts) ([]byte, error) {
	panic("the driver")
}

// Two responses that say the same do no harm, so the device may be asked again
// after a failure that leaves open whether it signed.
func TestEveryResponseMayBeSignedTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	c := w.leaf(0, 5, Status{State: ca.Issued})
	w.ask(s, 0, c)
	doPost(s, encodeRequest(t, idsOf(t, w.query(0, c, crypto.SHA1)), nonceOf(1)), requestType)
	signed := w.keys.Signed()
	if len(signed) != 2 {
		t.Errorf("%d signatures", len(signed))
	}
	for _, x := range signed {
		if !x.Repeatable {
			t.Errorf("%+v", x)
		}
	}
}

// A start without the device says so, and the responders are there within
// seconds of its return, however long that takes.
func TestRespondersAreThereSoonAfterTheDeviceIs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.keys.Away(time.Minute)
		s, err := New(w.config())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Prepare(t.Context()); !errors.Is(err, keys.ErrBusy) {
			t.Errorf("preparing: %v", err)
		}
		stop := runServer(t, s)
		defer stop()
		time.Sleep(6 * time.Hour)
		w.keys.Back()
		time.Sleep(mostBusy)
		synctest.Wait()
		w.ask(s, 0, w.leaf(0, 5, Status{State: ca.Issued}))
		w.ask(s, 1, w.leaf(1, 5, Status{State: ca.Issued}))
		if n := strings.Count(w.logs.String(), "\n"); n != 4 {
			t.Errorf("%d lines for two issuers:\n%s", n, w.logs.String())
		}
	})
}

func runServer(t *testing.T, s *Server) (stop func()) {
	t.Helper()
	return start(t, s.Run)
}

func follow(t *testing.T, s *Server) (stop func()) {
	t.Helper()
	return start(t, s.Follow)
}

func start(t *testing.T, run func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// Each certificate that the device hangs on costs a serial that must be revoked,
// so they are asked for ever more seldom.
func TestAHungRenewalIsTriedAgainEverMoreSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.issuers = w.issuers[:1]
		w.issueErr = errHung
		s, err := New(w.config())
		if err != nil {
			t.Fatal(err)
		}
		stop := runServer(t, s)
		defer stop()
		time.Sleep(6 * time.Hour)
		synctest.Wait()
		w.mu.Lock()
		tries := len(w.issued)
		w.issueErr = nil
		w.mu.Unlock()
		if tries < 6*6 || tries > 6*6+10 {
			t.Errorf("%d tries in 6 hours", tries)
		}
		time.Sleep(lastRetry)
		synctest.Wait()
		w.ask(s, 0, w.leaf(0, 5, Status{State: ca.Issued}))
	})
}
