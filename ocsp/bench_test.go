package ocsp

import (
	"bytes"
	"context"
	"crypto"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

// A stamp is a key whose signatures cost nothing, as all are the same.
type stamp struct {
	keys.Key
	signature []byte
}

func (k stamp) Sign(context.Context, []byte, crypto.SignerOpts) ([]byte, error) {
	return k.signature, nil
}

// unread takes an answer and keeps nothing of it.
type unread struct {
	header http.Header
	octets int
}

func (u *unread) Header() http.Header         { return u.header }
func (u *unread) WriteHeader(int)             {}
func (u *unread) Write(p []byte) (int, error) { u.octets = len(p); return len(p), nil }

// BenchmarkSignedAnswer is what an answer with a nonce costs beside its signature.
func BenchmarkSignedAnswer(b *testing.B) {
	w := newWorld(b)
	fixed := time.Now()
	s := w.server(func(c *Config) {
		c.Now = func() time.Time { return fixed.Add(time.Since(fixed) / (1 << 60)) } // takes its time, and stands still
	})
	p := s.posts[0]
	was := p.delegate.Load()
	d, err := newDelegate(was.cert)
	if err != nil {
		b.Fatal(err)
	}
	d.key = stamp{was.key, make([]byte, 71)}
	d.checked.Store(fixed.UnixNano()) // nothing would be found right
	p.delegate.Store(d)
	body := encodeRequest(b, idsOf(b, w.query(0, w.leaf(0, 5, Status{State: ca.Issued}), crypto.SHA1)), nonceOf(1))
	handler := s.Handler()
	blank, err := http.NewRequest(http.MethodPost, "/ocsp", http.NoBody)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r := blank.WithContext(b.Context())
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			out := &unread{header: http.Header{}}
			handler.ServeHTTP(out, r)
			if out.octets < 100 {
				b.Fatal("not signed")
			}
		}
	})
}
