package ocsp

import (
	"bufio"
	"bytes"
	"crypto"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

func TestEverySpellingOfAGetHasOneAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	// A request whose base64 holds "//", "+" and padding, which an issuer's
	// random hashes only sometimes give.
	var b64 string
	for n := int64(1); ; n++ {
		c := w.leaf(0, n<<40|n*0x9e3779b9&0xffffffffff, Status{State: ca.Issued})
		b64 = base64.StdEncoding.EncodeToString(w.query(0, c, crypto.SHA1))
		if strings.Contains(b64, "/") && strings.Contains(b64, "+") && strings.HasSuffix(b64, "=") {
			break
		}
	}
	once := strings.NewReplacer("+", "%2B", "/", "%2F", "=", "%3D").Replace(b64)
	want := get(s, http.MethodGet, "/ocsp/"+once)
	if want.Code != http.StatusOK || want.Body.Len() < 100 {
		t.Fatalf("HTTP %d, %d octets", want.Code, want.Body.Len())
	}
	for name, target := range map[string]string{
		"bare":                "/ocsp/" + b64,
		"lower-case escapes":  "/ocsp/" + strings.ToLower("%2f") + once,
		"two slashes":         "/ocsp//" + once,
		"many slashes":        "/ocsp/////" + b64,
		"escaped slash":       "/ocsp/%2F" + once,
		"no padding":          "/ocsp/" + strings.TrimRight(b64, "="),
		"URL alphabet":        "/ocsp/" + strings.NewReplacer("+", "-", "/", "_").Replace(b64),
		"URL, no padding":     "/ocsp/" + strings.TrimRight(strings.NewReplacer("+", "-", "/", "_").Replace(b64), "="),
		"escaped twice":       "/ocsp/" + url.PathEscape(once),
		"plus become space":   "/ocsp/" + strings.ReplaceAll(b64, "+", "%20"),
		"absolute form":       "http://ocsp.example.com/ocsp/" + b64,
		"with a query":        "/ocsp/" + b64 + "?x=y",
		"everything escaped":  "/ocsp/" + escapeAll(b64),
		"no slash in between": "/ocsp" + "/" + b64,
	} {
		got := get(s, http.MethodGet, target)
		if !bytes.Equal(got.Body.Bytes(), want.Body.Bytes()) || got.Code != http.StatusOK {
			t.Errorf("%s: HTTP %d %x", name, got.Code, got.Body.Bytes())
		}
	}
}

func escapeAll(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}

// The double slash must also survive the server in front of the handler.
func TestDoubleSlashInBase64IsNotRedirected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	id := []byte{0x30, 0x0c, 0x30, 0x07, 6, 5, 0x2b, 0x0e, 3, 2, 0x1a, 4, 1}
	srv := httptest.NewServer(s.Handler())
	defer srv.Close()
	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	// HTTP/1.0 and without Host, as old clients are.
	fmt.Fprintf(conn, "GET /ocsp/%s//// HTTP/1.0\r\n\r\n", base64.StdEncoding.EncodeToString(id))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !bytes.Equal(body, malformedRequest.der()) || resp.ContentLength != 5 {
		t.Errorf("HTTP %d %x %v", resp.StatusCode, body, err)
	}
}

func TestHeadTellsTheLength(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	srv := httptest.NewServer(w.server(nil).Handler())
	defer srv.Close()
	target := srv.URL + "/ocsp/" + url.PathEscape(b64(w.query(0, w.leaf(0, 5, Status{State: ca.Issued}), crypto.SHA1)))
	length := func(method string) int64 {
		r, err := http.NewRequestWithContext(t.Context(), method, target, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := srv.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != responseType {
			t.Errorf("%s: HTTP %d, %v", method, resp.StatusCode, resp.Header)
		}
		return resp.ContentLength
	}
	if get, head := length(http.MethodGet), length(http.MethodHead); get < 100 || head != get {
		t.Errorf("GET %d octets, HEAD %d", get, head)
	}
}

func TestWhatIsNoRequestIsMalformed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	for _, target := range []string{
		"/ocsp", "/ocsp/", "/ocsp//", "/", "/ocsp/not-base64!", "/ocsp/favicon.ico", "/ocsp/MAA", "/ocsp/%25%25",
		"/ocsp/MA%0AA", "/ocsp/" + strings.Repeat("M", maxPath+1), "*",
	} {
		refused(t, get(s, http.MethodGet, target), malformedRequest)
	}
	refused(t, doPost(s, nil, requestType), malformedRequest)
	refused(t, doPost(s, []byte("junk"), requestType), malformedRequest)
	refused(t, doPost(s, make([]byte, maxRequest+1), requestType), malformedRequest)
	refused(t, doPost(s, make([]byte, 2_000_000), requestType), malformedRequest)
	// And the server is well afterwards.
	w.ask(s, 0, w.leaf(0, 5, Status{State: ca.Issued}))
}

func TestOtherMethodsAndMediaTypesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	for _, m := range []string{http.MethodPut, http.MethodDelete, http.MethodOptions, http.MethodPatch, "PROPFIND"} {
		rec := get(s, m, "/ocsp")
		if rec.Code != http.StatusMethodNotAllowed || rec.Header().Get("Allow") != "GET, HEAD, POST" {
			t.Errorf("%s: HTTP %d, Allow %q", m, rec.Code, rec.Header().Get("Allow"))
		}
	}
	q := w.query(0, w.leaf(0, 5, Status{State: ca.Issued}), crypto.SHA256)
	for ct, want := range map[string]int{
		requestType:                      http.StatusOK,
		requestType + "; charset=binary": http.StatusOK,
		"Application/OCSP-Request":       http.StatusOK,
		"":                               http.StatusOK,
		"text/html":                      http.StatusUnsupportedMediaType,
		"application/ocsp-response":      http.StatusUnsupportedMediaType,
		";":                              http.StatusUnsupportedMediaType,
	} {
		if rec := doPost(s, q, ct); rec.Code != want {
			t.Errorf("Content-Type %q: HTTP %d, want %d", ct, rec.Code, want)
		}
	}
}

func TestCacheHeadersFollowTheResponse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(func(c *Config) { c.Validity = 8 * time.Hour; c.MaxAge = 12 * time.Hour })
		c := w.leaf(0, 5, Status{State: ca.Issued})
		target := "/ocsp/" + url.PathEscape(base64.StdEncoding.EncodeToString(w.query(0, c, crypto.SHA1)))
		first := get(s, http.MethodGet, target)
		made := time.Now()
		time.Sleep(time.Hour)
		rec := get(s, http.MethodGet, target)
		if !bytes.Equal(first.Body.Bytes(), rec.Body.Bytes()) {
			t.Error("not the cached response")
		}
		h := rec.Header()
		for k, want := range map[string]string{
			"Content-Type":   responseType,
			"Last-Modified":  made.UTC().Format(http.TimeFormat),
			"Expires":        made.UTC().Add(8*time.Hour - backdate).Format(http.TimeFormat),
			"Cache-Control":  "max-age=25140, public, no-transform, must-revalidate", // 7 h - backdate
			"Content-Length": fmt.Sprint(rec.Body.Len()),
		} {
			if h.Get(k) != want {
				t.Errorf("%s is %q, want %q", k, h.Get(k), want)
			}
		}
		if _, err := http.ParseTime(h.Get("Expires")); err != nil {
			t.Error(err)
		}
		etag := h.Get("ETag")
		if strings.HasPrefix(etag, "W/") || len(etag) < 10 {
			t.Errorf("ETag %q is not a strong one", etag)
		}
		unchangedIf := map[string][2]string{
			"the tag":         {"If-None-Match", etag},
			"the weak tag":    {"If-None-Match", "W/" + etag},
			"a list":          {"If-None-Match", `"other", W/"x" ,` + etag},
			"any":             {"If-None-Match", "*"},
			"the date":        {"If-Modified-Since", h.Get("Last-Modified")},
			"a later date":    {"If-Modified-Since", h.Get("Expires")},
			"an RFC 850 date": {"If-Modified-Since", made.UTC().Format("Monday, 02-Jan-06 15:04:05 GMT")},
		}
		for name, cond := range unchangedIf {
			for _, m := range []string{http.MethodGet, http.MethodHead} {
				rec := get(s, m, target, cond[0], cond[1])
				if rec.Code != http.StatusNotModified || rec.Body.Len() != 0 || rec.Header().Get("ETag") != etag {
					t.Errorf("%s, %s: HTTP %d with %d octets", name, m, rec.Code, rec.Body.Len())
				}
			}
		}
		for name, cond := range map[string][]string{
			"another tag":                    {"If-None-Match", `"other"`},
			"an earlier date":                {"If-Modified-Since", made.Add(-time.Hour).UTC().Format(http.TimeFormat)},
			"another tag, though a date":     {"If-None-Match", `"other"`, "If-Modified-Since", h.Get("Expires")},
			"no date at all":                 {"If-Modified-Since", "yesterday"},
			"a range, which has no use here": {"Range", "bytes=0-3"},
		} {
			if rec := get(s, http.MethodGet, target, cond...); rec.Code != http.StatusOK || rec.Body.Len() < 100 {
				t.Errorf("%s: HTTP %d with %d octets", name, rec.Code, rec.Body.Len())
			}
		}
	})
}

func TestNegativeAnswersAreNeverKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	never := w.leaf(0, 5, Status{State: ca.Issued})
	delete(w.statuses[w.issuers[0].ID], "05")
	refused(t, doPost(s, w.query(0, never, crypto.SHA1), requestType), unauthorized)
	pending := w.leaf(0, 6, Status{State: ca.Pending})
	refused(t, doPost(s, w.query(0, pending, crypto.SHA1), requestType), tryLater)
	void := w.leaf(0, 7, Status{State: ca.Void})
	refused(t, doPost(s, w.query(0, void, crypto.SHA1), requestType), unauthorized)
	if n := w.keys.Signatures(); n != 0 {
		t.Errorf("they cost %d signatures", n)
	}
}

func TestFaultsOfOursSayNothingToStrangers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	q := w.query(0, w.leaf(0, 5, Status{State: ca.Issued}), crypto.SHA1)
	w.keys.Fail(keys.ErrBusy)
	later(t, doPost(s, q, requestType), http.StatusServiceUnavailable, "2")
	w.keys.Fail(errors.New("device on fire"))
	refused(t, doPost(s, q, requestType), internalError)
	w.keys.Fail(nil)
	for _, fault := range []string{"database on fire", "database under water"} {
		w.readErr = errors.New(fault)
		refused(t, doPost(s, q, requestType), internalError)
	}
	if l := w.logs.String(); !strings.Contains(l, "device on fire") || !strings.Contains(l, "database on fire") || strings.Contains(l, "under water") {
		t.Errorf("the log should hold the first fault of each and hold back the second: %s", l)
	}
}
