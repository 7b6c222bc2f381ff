package ocsp

import (
	"crypto"
	"testing"
	"testing/synctest"
	"time"

	xocsp "golang.org/x/crypto/ocsp"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

// TestWhatIsAskedForIsMadeAnewBeforeItComesDue: nobody waits for that, and what
// nobody asks for any more costs one signature at most.
func TestWhatIsAskedForIsMadeAnewBeforeItComesDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.lifetime = 90 * 24 * time.Hour
		s := w.server(nil)
		defer runServer(t, s)()
		busy, once := w.leaf(0, 5, Status{State: ca.Issued}), w.leaf(0, 6, Status{State: ca.Issued})
		w.judged(s, 0, once, crypto.SHA1)
		first := w.judged(s, 0, busy, crypto.SHA1)
		w.judged(s, 0, busy, crypto.SHA1)
		time.Sleep(48 * time.Hour)
		synctest.Wait()
		if n := w.keys.Signatures(); n != 3 {
			t.Errorf("%d signatures after half of a life, want one more than at first", n)
		}
		w.keys.Away(time.Second) // what is there was there before anybody asked
		if r := w.judged(s, 0, busy, crypto.SHA1); !r.ProducedAt.After(first.ProducedAt.Add(35*time.Hour)) || r.Status != xocsp.Good {
			t.Errorf("produced at %v, and before at %v", r.ProducedAt, first.ProducedAt)
		}
		w.keys.Back()
		time.Sleep(10 * 24 * time.Hour)
		synctest.Wait()
		if n := w.keys.Signatures(); n != 4 { // it was asked for once more
			t.Errorf("%d signatures after ten days in which nobody asked", n)
		}
	})
}

// TestARefreshSaysWhatIsTrueThen: and an answer that is due in an outage goes on.
func TestARefreshSaysWhatIsTrueThen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.lifetime = 90 * 24 * time.Hour
		s := w.server(nil)
		defer runServer(t, s)()
		c := w.leaf(0, 5, Status{State: ca.Issued})
		w.judged(s, 0, c, crypto.SHA1)
		first := w.judged(s, 0, c, crypto.SHA1)
		w.keys.Fail(keys.ErrBusy)
		time.Sleep(60 * time.Hour)
		synctest.Wait()
		if r := w.judged(s, 0, c, crypto.SHA1); !r.ProducedAt.Equal(first.ProducedAt) {
			t.Error("the old one is not sent on")
		}
		w.set(0, c, Status{State: ca.Issued, RevokedAt: time.Now(), Reason: ca.KeyCompromise})
		w.keys.Fail(nil)
		time.Sleep(2 * refreshEvery)
		synctest.Wait()
		w.keys.Away(time.Second)
		if r := w.judged(s, 0, c, crypto.SHA1); r.Status != xocsp.Revoked {
			t.Errorf("status %d", r.Status)
		}
	})
}
