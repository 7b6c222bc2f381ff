package scep

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// What is wrong costs its source more than what is right, and reading costs little.
func TestWrongMessagesAreDearerForTheirSource(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	limiter, err := ratelimit.New(ratelimit.Config{PerIP: ratelimit.Bucket{Rate: 0.001, Burst: 20}})
	if err != nil {
		t.Fatal(err)
	}
	s := w.served(func(c *Config) { c.Limiter = limiter })
	d := newDevice(t, s, deviceKey())
	from := func(addr, method, target string, content []byte) int {
		var body []byte
		if content != nil {
			body = d.message(content)
		}
		r := httptest.NewRequestWithContext(t.Context(), method, target, newBody(body))
		r = r.WithContext(peer.With(r.Context(), peer.Peer{Addr: netip.MustParseAddr(addr)}))
		if dec := s.Limit().Admit(netip.MustParseAddr(addr)); !dec.OK {
			w := httptest.NewRecorder()
			s.Refuse(w, r, dec)
			return w.Code
		}
		return do(s, r).Code
	}
	count := func(addr, method, target string, content func() []byte) int {
		n := 0
		for n < 500 && from(addr, method, target, content()) == http.StatusOK {
			n++
		}
		return n
	}
	const op = "/scep/devices?operation="
	reads := count("192.0.2.1", http.MethodGet, op+"GetCACert", func() []byte { return nil })
	right := count("192.0.2.2", http.MethodPost, op+"PKIOperation", func() []byte { return csr(t, d.key, goodChallenge, "a.example.com") })
	wrong := count("192.0.2.3", http.MethodPost, op+"PKIOperation", func() []byte { return []byte("wrong") })
	if reads < 300 || right < 8 || right > 10 || wrong < 3 || wrong > 5 {
		t.Errorf("%d reads, %d right, %d wrong messages for 20 tokens", reads, right, wrong)
	}
	if n := count("192.0.2.4", http.MethodGet, op+"GetCACaps", func() []byte { return nil }); n != reads {
		t.Errorf("another source has %d", n)
	}
}
