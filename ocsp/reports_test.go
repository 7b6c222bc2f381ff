package ocsp

import (
	"bytes"
	"crypto"
	"errors"
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

// xipki/xipki#136: there are clients that abort at any critical extension.
func TestNoExtensionOfAResponseIsCritical(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(func(c *Config) { c.RevokeUnissued, c.Archive = true, time.Hour })
	issued, never := w.leaf(0, 5, Status{State: ca.Issued}), w.leaf(0, 6, Status{State: ca.Void})
	both := encodeRequest(t, idsOf(t, w.query(0, issued, crypto.SHA1), w.query(0, never, crypto.SHA1)), []byte("0123456789abcdef"))
	ofResponse, ofSingle := extensionsOf(t, doPost(s, both, requestType).Body.Bytes())
	if len(ofResponse) != 2 || len(ofSingle) != 1 {
		t.Errorf("extensions %v %v, want nonce, extended revoke and archive cutoff", ofResponse, ofSingle)
	}
	for _, e := range append(ofResponse, ofSingle...) {
		if e.critical {
			t.Errorf("%v is critical", e.oid)
		}
	}
}

// letsencrypt/boulder#7190: all times cut to the second, thisUpdate a little
// before producedAt for clocks that are behind, and by no more than that.
func TestTimesOfAResponseAreCutAlike(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(nil)
		time.Sleep(48*time.Hour + 999*time.Millisecond + 7*time.Microsecond)
		revoked := w.leaf(0, 6, Status{State: ca.Issued, RevokedAt: time.Now(), Reason: ca.Superseded})
		for _, c := range []struct {
			body  []byte
			early time.Duration
		}{
			{doPost(s, w.query(0, w.leaf(0, 5, Status{State: ca.Issued}), crypto.SHA1), requestType).Body.Bytes(), backdate},
			{doPost(s, w.query(0, revoked, crypto.SHA1), requestType).Body.Bytes(), 0}, // nothing is known from before
		} {
			now := time.Now().UTC().Truncate(time.Second)
			for name, at := range map[string]time.Time{"producedAt": now, "thisUpdate": now.Add(-c.early), "nextUpdate": now.Add(-c.early).Add(4 * 24 * time.Hour)} {
				if want := append([]byte{0x18, 15}, at.Format("20060102150405Z")...); !bytes.Contains(c.body, want) {
					t.Errorf("%s is not %s in %x", name, want, c.body)
				}
			}
		}
	})
}

// openssl/openssl#15002 read responses as requests, openca/openca-ocspd#20, #56
// and #17 went down with a hash, a revoked certificate or a method.
func TestABadRequestLeavesTheNextOnesAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	good, revoked := w.leaf(0, 5, Status{State: ca.Issued}), w.leaf(0, 6, Status{State: ca.Issued, RevokedAt: time.Now(), Reason: ca.KeyCompromise})
	response := doPost(s, w.query(0, revoked, crypto.SHA256), requestType).Body.Bytes()
	refused(t, doPost(s, response, requestType), malformedRequest)
	refused(t, doPost(s, unauthorized.der(), requestType), malformedRequest)
	md5 := tlv(0x30, tlv(0x30, []byte{6, 8, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 2, 5, 5, 0}), tlv(4, make([]byte, 16)), tlv(4, make([]byte, 16)), []byte{2, 1, 5})
	refused(t, doPost(s, tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, md5)))), requestType), unauthorized)
	for _, m := range []string{http.MethodOptions, http.MethodTrace, "BREW", "get"} {
		if rec := get(s, m, "/ocsp/MAA="); rec.Code != http.StatusMethodNotAllowed {
			t.Errorf("%s: HTTP %d", m, rec.Code)
		}
	}
	w.saysGood(doPost(s, w.query(0, good, crypto.SHA512), requestType), 0, good)
}

// h2o/h2o#449 kept a tryLater for a day, dotnet/runtime#89907 a page of HTML:
// every refusal, whatever it is for, is five octets of OCSP that nobody keeps.
func TestEveryRefusalIsOCSPThatNobodyKeeps(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(func(c *Config) { c.Limiter = newLimiter(t, 1) })
	leaf, two := w.leaf(0, 5, Status{State: ca.Issued}), w.leaf(0, 6, Status{State: ca.Issued})
	q := w.query(0, leaf, crypto.SHA1)
	open := w.server(nil)
	fails := func(err error) *httptest.ResponseRecorder {
		w.keys.Fail(err)
		defer w.keys.Fail(nil)
		return doPost(open, q, requestType)
	}
	postFrom(t.Context(), s, "192.0.2.7", q)
	for name, rec := range map[string]*httptest.ResponseRecorder{
		"malformed":    get(open, http.MethodGet, "/ocsp/%%"),
		"unauthorized": doPost(open, w.query(1, leaf, crypto.SHA1), requestType),
		"busy":         fails(keys.ErrBusy),
		"broken":       fails(errors.New("on fire")),
		"limited":      postFrom(t.Context(), s, "192.0.2.7", w.query(0, two, crypto.SHA1)),
		"method":       get(open, http.MethodDelete, "/ocsp"),
		"media type":   doPost(open, q, "text/html"),
	} {
		h, b := rec.Header(), rec.Body.Bytes()
		if h.Get("Content-Type") != responseType || h.Get("Cache-Control") != "no-store" || h.Get("Content-Length") != "5" ||
			len(b) != 5 || !bytes.HasPrefix(b, []byte{0x30, 3, 0x0a, 1}) || h.Get("ETag") != "" || h.Get("Expires") != "" {
			t.Errorf("%s: HTTP %d %v %x", name, rec.Code, h, b)
		}
	}
}

// RFC 9919 §3.2.1: both hashes may stand in one response; each as it was asked.
func TestBothHashesOfOneCertificateFitOneResponse(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	leaf := w.leaf(0, 5, Status{State: ca.Issued})
	ids := idsOf(t, w.query(0, leaf, crypto.SHA1), w.query(0, leaf, crypto.SHA256))
	body := doPost(s, encodeRequest(t, ids, nil), requestType).Body.Bytes()
	for _, id := range ids {
		if bytes.Count(body, id.raw) != 1 {
			t.Errorf("%x stands %d times in %x", id.raw, bytes.Count(body, id.raw), body)
		}
	}
	if n := w.keys.Signatures(); n != 1 {
		t.Errorf("%d signatures", n)
	}
}

// FuzzSpellings: whatever is asked, each spelling of it in a path is the same
// request.
func FuzzSpellings(f *testing.F) {
	f.Add(tlv(0x30, tlv(0x30, aList)), uint8(0))
	f.Add(append([]byte{0x30}, bytes.Repeat([]byte{0xff, 0xef, 0xbe}, 40)...), uint8(3))
	f.Fuzz(func(t *testing.T, der []byte, slashes uint8) {
		if len(der) == 0 || der[0] != 0x30 || len(der) > maxRequest {
			return // all requests begin so
		}
		std := b64(der)
		bare := strings.TrimRight(std, "=")
		toURL := strings.NewReplacer("+", "-", "/", "_")
		once := url.PathEscape(strings.ReplaceAll(std, "/", "%2F"))
		once = strings.ReplaceAll(once, "%252F", "%2F")
		for _, s := range []string{std, bare, toURL.Replace(std), toURL.Replace(bare), once, url.PathEscape(once), escapeAll(std), strings.ReplaceAll(std, "+", "%20")} {
			path := strings.Repeat("/", int(slashes%5)) + s
			if got, err := decodePath(path); err != nil || !bytes.Equal(got, der) {
				t.Fatalf("%s: %x, %v; want %x", path, got, err, der)
			}
		}
	})
}
