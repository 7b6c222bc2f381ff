package scep

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"

	"github.com/secsy-pki/secsy-pki/cms"
)

// A slow body has sent so much, and then no more until it is let go.
type slow struct {
	left   int
	stuck  *sync.WaitGroup
	letGo  <-chan struct{}
	waited bool
}

func (s *slow) Read(p []byte) (int, error) {
	if s.left > 0 {
		n := min(len(p), s.left)
		s.left -= n
		return n, nil
	}
	if !s.waited {
		s.waited = true
		s.stuck.Done()
		<-s.letGo
	}
	return 0, io.ErrUnexpectedEOF
}

// A thousand clients that send all that they may but for the end cost memory by what
// they sent, and the device nothing.
func TestAThousandSlowClientsCostWhatTheySent(t *testing.T) {
	w := newWorld(t)
	s := w.served(nil)
	asked := w.ca.Keys.Asked()
	const clients, sent = 1000, cms.MaxSize - 1
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	letGo := make(chan struct{})
	var stuck, done sync.WaitGroup
	stuck.Add(clients)
	for range clients {
		done.Go(func() {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/scep/devices?operation=PKIOperation", &slow{left: sent, stuck: &stuck, letGo: letGo})
			if res := do(s, r); res.Code != http.StatusBadRequest {
				t.Errorf("HTTP %d", res.Code)
			}
		})
	}
	stuck.Wait()
	grown := float64(heap()-before) / clients
	close(letGo)
	done.Wait()
	if grown > 2*sent {
		t.Errorf("%.0f octets for each, of %d sent", grown, sent)
	}
	t.Logf("%.0f octets for each, of %d sent", grown, sent)
	if n := w.ca.Keys.Asked() - asked; n != 0 {
		t.Errorf("the device was asked %d times", n)
	}
}
