package admin

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func FuzzDecodedObjectIsWhatJSONSays(f *testing.F) {
	for _, s := range []string{`{}`, `{"reason":"x"}`, `{"reason":null}`, `{"reason":"a","reason":"b"}`, `{"Reason":"a"}`, `{"reason":"\ud800"}`, `{"reason":[[[[`, `{"reason":"a"},`, `{"reason":"a",}`, `null`, "\xef\xbb\xbf{}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var got string
		err := decodeObject(body, map[string]any{"reason": &got})
		if err != nil {
			if p := problemFor(err); p.status != http.StatusBadRequest || len(p.detail) > 1000 {
				t.Errorf("%q: %+v", body, p)
			}
			return
		}
		var want struct {
			Reason string `json:"reason"`
		}
		if err := json.Unmarshal(body, &want); err != nil || want.Reason != got {
			t.Errorf("%q: got %q, encoding/json %q, %v", body, got, want.Reason, err)
		}
	})
}

func FuzzCursorIsOneThatWasGivenOut(f *testing.F) {
	f.Add(encodeCursor("audit", "12"))
	f.Add(encodeCursor("certificates", "1760000000000000.01ff"))
	f.Add("YXVkaXQ6MDE=")
	f.Add("YXVk\naXQ6MQ")
	f.Fuzz(func(t *testing.T, s string) {
		v, err := decodeCursor("audit", s)
		if err != nil {
			return
		}
		if encodeCursor("audit", v) != s {
			t.Errorf("%q is read as %q", s, v)
		}
		if n, err := auditPlace(v); err == nil && (n < 1 || auditCursor(n) != s) {
			t.Errorf("%q is read as place %d", s, n)
		}
	})
}

func FuzzQueryIsBounded(f *testing.F) {
	f.Add("name=example.com&serial=01:AB&state=revoked&limit=5")
	f.Add("limit=0x10&after=1e3&cursor=")
	f.Add("name=%ff&serial=zz&;")
	f.Fuzz(func(t *testing.T, query string) {
		r := &http.Request{URL: &url.URL{RawQuery: query}}
		if q, err := (&Server{}).readCertificateQuery(r); err == nil && (q.Limit < 1 || q.Limit > maxLimit || len(q.Name) > maxText || len(q.SerialPrefix) > 40) {
			t.Errorf("%q: %+v", query, q)
		}
		if q, err := readAuditQuery(r); err == nil && (q.Limit < 1 || q.Limit > maxLimit || q.After < 0 || q.Before < 0) {
			t.Errorf("%q: %+v", query, q)
		}
	})
}

func FuzzSerialIsCanonical(f *testing.F) {
	f.Add("00:AB")
	f.Add("1")
	f.Add(strings.Repeat("f", 41))
	f.Fuzz(func(t *testing.T, s string) {
		got, err := serialOf(s)
		if err != nil {
			return
		}
		if again, err := serialOf(string(got)); err != nil || again != got || len(got)%2 != 0 || len(got) > 40 {
			t.Errorf("%q is read as %q, then %q", s, got, again)
		}
	})
}
