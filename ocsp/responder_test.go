package ocsp

import (
	"context"
	"crypto"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

func TestResponderCertificateSurvivesARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server(nil)
	if len(w.issued) != 2 {
		t.Fatalf("%d certificates for 2 issuers", len(w.issued))
	}
	for i, r := range w.issued {
		if r.Profile != ca.ProfileResponder || r.Issuer != w.issuers[i].ID || r.PublicKey == nil {
			t.Errorf("asked for %+v", r)
		}
	}
	s := w.server(nil)
	if len(w.issued) != 2 {
		t.Errorf("%d certificates after a restart", len(w.issued))
	}
	w.ask(s, 0, w.leaf(0, 5, Status{State: ca.Issued}))
}

func TestUnfitStoredCertificateIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.server(nil)
	a, b := w.issuers[0].ID, w.issuers[1].ID
	w.responders[a], w.responders[b] = w.responders[b], []byte("junk")
	w.server(nil)
	if len(w.issued) != 4 {
		t.Errorf("%d certificates", len(w.issued))
	}
}

func TestWithoutResponderTheAnswerIsTryLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.issueErr = errors.New("no")
	s, err := New(w.config())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Prepare(t.Context()); err == nil || strings.Count(err.Error(), "renewing") != 2 {
		t.Errorf("error %v", err)
	}
	q := w.query(0, w.leaf(0, 5, Status{State: ca.Issued}), crypto.SHA256)
	refused(t, doPost(s, q, requestType), tryLater)
	if n := w.keys.Signatures(); n != 0 {
		t.Errorf("%d signatures by somebody else", n)
	}
}

func TestResponderIsRenewedAtHalfLifeWithoutAGap(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		first := w.ask(s, 0, w.leaf(0, 5, Status{State: ca.Issued})).Certificate
		time.Sleep(14 * 24 * time.Hour)
		if n := w.certificates(); n != 2 {
			t.Fatalf("%d certificates before half of the life", n)
		}
		// The renewal fails for a week, and nobody outside notices.
		w.mu.Lock()
		w.issueErr = errors.New("the CA is away")
		w.mu.Unlock()
		time.Sleep(7 * 24 * time.Hour)
		if got := w.ask(s, 0, w.leaf(0, 6, Status{State: ca.Issued})).Certificate; !got.Equal(first) {
			t.Error("the old certificate is not used while it is valid")
		}
		w.mu.Lock()
		w.issueErr = nil
		w.mu.Unlock()
		time.Sleep(lastRetry)
		second := w.ask(s, 0, w.leaf(0, 7, Status{State: ca.Issued})).Certificate
		if second.Equal(first) || !second.NotAfter.After(first.NotAfter) {
			t.Error("no new certificate")
		}
		time.Sleep(28 * 24 * time.Hour)
		w.ask(s, 0, w.leaf(0, 8, Status{State: ca.Issued}))
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestCompromisedResponderStopsAtOnceAndHasASuccessor takes a delegate's key
// away: what it signed is no longer sent, and another key answers.
func TestCompromisedResponderStopsAtOnceAndHasASuccessor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	leaf := w.leaf(0, 5, Status{State: ca.Issued})
	first := w.ask(s, 0, leaf).Certificate
	w.set(0, first, Status{State: ca.Issued, RevokedAt: time.Now(), Reason: ca.KeyCompromise, NotAfter: first.NotAfter})
	w.mu.Lock()
	w.blocked = func(pub crypto.PublicKey) bool {
		return first.PublicKey.(interface{ Equal(x crypto.PublicKey) bool }).Equal(pub)
	}
	w.issueErr = errors.New("the CA is away")
	w.mu.Unlock()
	if err := s.staff(t.Context(), s.posts[0]); err == nil {
		t.Error("no error though there is no successor")
	}
	refused(t, doPost(s, w.query(0, leaf, crypto.SHA256), requestType), tryLater)
	w.mu.Lock()
	w.issueErr = nil
	w.mu.Unlock()
	if err := s.staff(t.Context(), s.posts[0]); err != nil {
		t.Fatal(err)
	}
	second := w.ask(s, 0, leaf).Certificate
	if second.Equal(first) || w.blocked(second.PublicKey) {
		t.Error("the compromised key still answers")
	}
	if again := w.ask(w.server(nil), 0, leaf).Certificate; !again.Equal(second) {
		t.Error("the next start has another delegate")
	}
}

// TestTwoReplicasMakeOneResponder: those that start together with one key, and
// those whose certificate comes to its half-life, have one made for all.
func TestTwoReplicasMakeOneResponder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.issuers = w.issuers[:1]
		slow := &slowCA{world: w}
		var replicas []*Server
		var wg sync.WaitGroup
		for range 3 {
			cfg := w.config()
			cfg.CA = slow
			s, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			replicas = append(replicas, s)
			wg.Go(func() {
				if err := s.Prepare(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		leaf := w.leaf(0, 5, Status{State: ca.Issued})
		first := w.ask(replicas[0], 0, leaf).Certificate
		for _, s := range replicas {
			if got := w.ask(s, 0, leaf).Certificate; !got.Equal(first) {
				t.Error("replicas have different responders")
			}
			defer runServer(t, s)()
		}
		if n := w.certificates(); n != 1 {
			t.Errorf("%d certificates were issued at the start", n)
		}
		time.Sleep(w.lifetime/2 + 2*checkEvery)
		synctest.Wait()
		leaf = w.leaf(0, 6, Status{State: ca.Issued})
		second := w.ask(replicas[0], 0, leaf).Certificate
		if second.Equal(first) {
			t.Error("not renewed at half of its life")
		}
		for _, s := range replicas {
			if got := w.ask(s, 0, leaf).Certificate; !got.Equal(second) {
				t.Error("replicas have different responders after the renewal")
			}
		}
		if n := w.certificates(); n != 2 {
			t.Errorf("%d certificates were issued", n)
		}
	})
}

// A slowCA is one whose device takes its time.
type slowCA struct{ *world }

func (s *slowCA) Issue(ctx context.Context, req ca.Request, led ca.Ledger) (ca.Certificate, error) {
	time.Sleep(3 * time.Second)
	return s.world.Issue(ctx, req, led)
}

// TestARevokedResponderOfBeforeTakesItsAnswersAlong: a certificate that was
// renewed since has signed what is still sent.
func TestARevokedResponderOfBeforeTakesItsAnswersAlong(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.lifetime = 4 * 24 * time.Hour
		s := w.server(nil)
		leaf := w.leaf(0, 5, Status{State: ca.Issued})
		time.Sleep(35 * time.Hour)
		first := w.ask(s, 0, leaf).Certificate
		time.Sleep(14 * time.Hour)
		if err := s.staff(t.Context(), s.posts[0]); err != nil {
			t.Fatal(err)
		}
		if !w.ask(s, 0, leaf).Certificate.Equal(first) {
			t.Fatal("a renewal makes answers anew")
		}
		w.set(0, first, Status{State: ca.Issued, RevokedAt: time.Now(), Reason: ca.Superseded, NotAfter: first.NotAfter})
		if err := s.staff(t.Context(), s.posts[0]); err != nil {
			t.Fatal(err)
		}
		if w.ask(s, 0, leaf).Certificate.Equal(first) {
			t.Error("what a revoked responder signed is sent on")
		}
	})
}
