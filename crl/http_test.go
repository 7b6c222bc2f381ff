package crl

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

func get(s *Server, method, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, http.NoBody)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, r)
	return rec
}

func TestCRLIsServedWithWhatCachesNeed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.prepared(nil)
		c, _ := s.Current(w.issuer.ID)
		der := w.der(s)
		path := "/crl/" + string(w.issuer.ID) + ".crl"
		rec := get(s, http.MethodGet, path)
		if rec.Code != http.StatusOK || !bytes.Equal(rec.Body.Bytes(), der) {
			t.Fatalf("HTTP %d, %d octets", rec.Code, rec.Body.Len())
		}
		h := rec.Header()
		for k, want := range map[string]string{
			"Content-Type":   "application/pkix-crl",
			"Content-Length": fmt.Sprint(len(der)),
			"Last-Modified":  c.ThisUpdate.UTC().Format(http.TimeFormat),
			"Expires":        time.Now().Add(time.Hour).UTC().Format(http.TimeFormat),
			"Cache-Control":  "max-age=3600, public, no-transform, must-revalidate",
		} {
			if h.Get(k) != want {
				t.Errorf("%s is %q, want %q", k, h.Get(k), want)
			}
		}
		etag := h.Get("ETag")
		if strings.HasPrefix(etag, "W/") || len(etag) < 10 {
			t.Errorf("ETag %q", etag)
		}
		for _, cond := range [][]string{
			{"If-None-Match", etag},
			{"If-None-Match", `"x", W/` + etag},
			{"If-None-Match", "*"},
			{"If-Modified-Since", h.Get("Last-Modified")},
		} {
			if rec := get(s, http.MethodGet, path, cond...); rec.Code != http.StatusNotModified || rec.Body.Len() != 0 {
				t.Errorf("%v: HTTP %d", cond, rec.Code)
			}
		}
		if rec := get(s, http.MethodHead, path); rec.Code != http.StatusOK || rec.Body.Len() != 0 || rec.Header().Get("Content-Length") != fmt.Sprint(len(der)) {
			t.Errorf("HEAD: HTTP %d, %v", rec.Code, rec.Header())
		}
		if rec := get(s, http.MethodGet, path, "Range", "bytes=1-3"); rec.Code != http.StatusPartialContent || !bytes.Equal(rec.Body.Bytes(), der[1:4]) {
			t.Errorf("Range: HTTP %d", rec.Code)
		}
		// Some resume with a header that means nothing in a request.
		if rec := get(s, http.MethodGet, path, "Content-Range", "bytes 5-10/*"); rec.Code != http.StatusOK || rec.Body.Len() != len(der) {
			t.Errorf("Content-Range: HTTP %d", rec.Code)
		}
		// Past its end it is still better than nothing, but not to be kept.
		time.Sleep(8 * 24 * time.Hour)
		if rec := get(s, http.MethodGet, path); rec.Code != http.StatusOK || !strings.HasPrefix(rec.Header().Get("Cache-Control"), "max-age=0,") {
			t.Errorf("late: HTTP %d, %v", rec.Code, rec.Header())
		}
	})
}

func TestManyRangesCostNoMoreThanTheWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.prepared(nil)
	der := w.der(s)
	for _, header := range [][]string{
		{"Range", "bytes=0-0,2-2"},
		{"Range", "bytes=0-0" + strings.Repeat(",1-1", 200)},
		{"Range", "bytes=0-0", "Range", "bytes=2-2"},
	} {
		for _, path := range []string{"/crl/" + string(w.issuer.ID) + ".crl", "/aia/" + string(w.issuer.ID) + ".cer"} {
			rec := get(s, http.MethodGet, path, header...)
			if want := fmt.Sprint(rec.Body.Len()); rec.Code != http.StatusOK || rec.Header().Get("Content-Length") != want || rec.Body.Len() > len(der)+len(w.issuer.Cert.Raw) {
				t.Errorf("%s, %.30s: HTTP %d, %d octets", path, header[1], rec.Code, rec.Body.Len())
			}
		}
	}
}

// A patient is a ResponseWriter that knows how long it may take.
type patient struct {
	*httptest.ResponseRecorder
	until time.Time
}

func (p *patient) SetWriteDeadline(t time.Time) error { p.until = t; return nil }

// Tens of megabytes over a slow line take longer than any other answer.
func TestLargeCRLHasTheTimeItTakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.prepared(nil)
		for size, want := range map[int]time.Duration{
			1000:    0, // as any answer
			8 << 20: 5 * time.Minute,
		} {
			s.put(t.Context(), &s.shelf(Scope{Issuer: w.issuer.ID}).list, CRL{Scope: Scope{Issuer: w.issuer.ID}, NextUpdate: time.Now().Add(time.Hour)}, bodyOf(make([]byte, size)), Info{})
			p := &patient{ResponseRecorder: httptest.NewRecorder()}
			s.Handler().ServeHTTP(p, httptest.NewRequest(http.MethodGet, "/crl/"+string(w.issuer.ID)+".crl", http.NoBody))
			if got := time.Until(p.until); p.Body.Len() != size || want == 0 != p.until.IsZero() || want > 0 && got.Round(time.Minute) != want {
				t.Errorf("%d octets of %d in %v", p.Body.Len(), size, got)
			}
		}
	})
}

func TestIssuerCertificateIsServed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rec := get(w.server(nil), http.MethodGet, "/aia/"+string(w.issuer.ID)+".cer")
	if rec.Code != http.StatusOK || !bytes.Equal(rec.Body.Bytes(), w.issuer.Cert.Raw) || rec.Header().Get("Content-Type") != "application/pkix-cert" {
		t.Errorf("HTTP %d, %v", rec.Code, rec.Header())
	}
}

func TestStrangersHearTheSameOfWhateverIsNotThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.prepared(nil)
	id := string(w.issuer.ID)
	for _, path := range []string{"/", "/crl/", "/crl/.crl", "/crl/" + id, "/crl/" + id + ".cer", "/aia/" + id + ".crl", "/crl/x" + id + ".crl", "/crl/" + strings.ToUpper(id) + ".crl/", "/crl//" + id + ".crl"} {
		rec := get(s, http.MethodGet, path)
		if rec.Code != http.StatusNotFound || rec.Body.String() != "not found\n" || rec.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: HTTP %d %q", path, rec.Code, rec.Body.String())
		}
	}
	for _, m := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		if rec := get(s, m, "/crl/"+id+".crl"); rec.Code != http.StatusMethodNotAllowed || rec.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: HTTP %d", m, rec.Code)
		}
	}
}

func TestCRLThatIsNotThereYetIsWorthComingBackFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rec := get(w.server(nil), http.MethodGet, "/crl/"+string(w.issuer.ID)+".crl")
	if rec.Code != http.StatusServiceUnavailable || rec.Header().Get("Retry-After") == "" {
		t.Errorf("HTTP %d, %v", rec.Code, rec.Header())
	}
}

func TestEveryNewCRLLooksNew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.prepared(nil)
		path := "/crl/" + string(w.issuer.ID) + ".crl"
		a := get(s, http.MethodGet, path).Header()
		w.revoke("05", ca.Superseded, time.Now())
		if _, err := s.update(t.Context(), s.shelf(Scope{Issuer: w.issuer.ID})); err != nil {
			t.Fatal(err)
		}
		b := get(s, http.MethodGet, path).Header()
		if a.Get("ETag") == b.Get("ETag") || a.Get("Last-Modified") == b.Get("Last-Modified") {
			t.Errorf("%v\n%v", a, b)
		}
	})
}

// A download of one CRL goes on with its octets, or begins anew with the next.
func TestDownloadIsResumedOnlyWithinOneCRL(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for i := range 40 {
		w.revoke(ca.Serial(fmt.Sprintf("01%04x", i)), ca.Superseded, time.Now().Add(time.Hour))
	}
	s := w.prepared(nil)
	path := "/crl/" + string(w.issuer.ID) + ".crl"
	first := w.der(s)
	h := get(s, http.MethodGet, path).Header()
	rest := func(condition string) *httptest.ResponseRecorder {
		return get(s, http.MethodGet, path, "Range", "bytes=100-", "If-Range", condition)
	}
	for _, condition := range []string{h.Get("ETag"), h.Get("Last-Modified")} {
		rec := rest(condition)
		if want := fmt.Sprintf("bytes 100-%d/%d", len(first)-1, len(first)); rec.Code != http.StatusPartialContent ||
			rec.Header().Get("Content-Range") != want || !bytes.Equal(rec.Body.Bytes(), first[100:]) {
			t.Errorf("%s: HTTP %d, %s", condition, rec.Code, rec.Header().Get("Content-Range"))
		}
	}
	w.revoke("05", ca.Superseded, time.Now().Add(time.Hour))
	if _, err := s.update(t.Context(), s.shelf(Scope{Issuer: w.issuer.ID})); err != nil {
		t.Fatal(err)
	}
	for _, condition := range []string{h.Get("ETag"), h.Get("Last-Modified")} {
		if rec := rest(condition); rec.Code != http.StatusOK || !bytes.Equal(rec.Body.Bytes(), w.der(s)) {
			t.Errorf("%s of the CRL before: HTTP %d, %d octets", condition, rec.Code, rec.Body.Len())
		}
	}
	if rec := get(s, http.MethodGet, path, "Range", "bytes=1000000-"); rec.Code != http.StatusRequestedRangeNotSatisfiable {
		t.Errorf("beyond its end: HTTP %d", rec.Code)
	}
	if rec := get(s, http.MethodGet, path, "Accept-Encoding", "gzip"); rec.Header().Get("Content-Encoding") != "" || rec.Header().Get("Vary") != "" {
		t.Errorf("%v", rec.Header())
	}
}

// A slow reader is one that has read a part when the next CRL takes the place of
// what it reads.
type slowReader struct {
	*httptest.ResponseRecorder
	once      sync.Once
	meanwhile func()
}

func (r *slowReader) Write(p []byte) (int, error) {
	r.once.Do(r.meanwhile)
	return r.ResponseRecorder.Write(p)
}

func TestWhoReadsALongCRLReadsItToItsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.prepared(nil)
	sh := s.shelf(Scope{Issuer: w.issuer.ID})
	long, info, err := Sign(t.Context(), w.issuer, generated(30_000), fixed(headerOf(w.issuer, 1)))
	if err != nil || long.spool.file == nil {
		t.Fatalf("%v", err)
	}
	s.put(t.Context(), sh.slot(false), CRL{Scope: sh.scope, Number: 1, NextUpdate: time.Now().Add(time.Hour)}, long, info)
	want := bytesOf(t, long)
	r := &slowReader{ResponseRecorder: httptest.NewRecorder(), meanwhile: func() {
		s.put(t.Context(), sh.slot(false), CRL{Scope: sh.scope, Number: 2, NextUpdate: time.Now().Add(time.Hour)}, bodyOf([]byte("next")), Info{})
	}}
	s.Handler().ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/crl/"+sh.scope.String()+".crl", http.NoBody))
	if !bytes.Equal(r.Body.Bytes(), want) {
		t.Errorf("%d octets of %d", r.Body.Len(), len(want))
	}
	if long.Hold() {
		t.Error("its file is still open, and nobody reads it")
	}
}
