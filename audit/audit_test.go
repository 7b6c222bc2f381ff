package audit_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/secsy-pki/secsy-pki/audit"
)

func TestNewEntryIsBoundedAndKeepsItsFact(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", audit.MaxField)
	e := audit.New(long, "certificate.issued", "a\x00b\xff", map[string]string{"k": strings.Repeat(`"\<`, audit.MaxDetail)})
	if len(e.Actor) > audit.MaxField || !strings.HasSuffix(e.Actor, "…") || !utf8.ValidString(e.Actor) {
		t.Errorf("actor of %d bytes ends with %q", len(e.Actor), e.Actor[len(e.Actor)-3:])
	}
	if e.Action != "certificate.issued" || e.Object != "a\uFFFDb\uFFFD" {
		t.Errorf("action %q, object %q", e.Action, e.Object)
	}
	var d struct {
		Truncated string `json:"truncated"`
		Bytes     int    `json:"bytes"`
	}
	if err := json.Unmarshal(e.Detail, &d); err != nil || len(e.Detail) > audit.MaxDetail {
		t.Fatalf("detail of %d bytes: %v", len(e.Detail), err)
	}
	if d.Bytes < 3*audit.MaxDetail || len(d.Truncated) < audit.MaxDetail/8 || !strings.HasPrefix(d.Truncated, `{"k":`) {
		t.Errorf("truncated detail keeps %d of %d bytes", len(d.Truncated), d.Bytes)
	}
	if !e.At.Equal(e.At.Truncate(time.Microsecond)) || e.At.Location() != time.UTC {
		t.Errorf("time %v is not UTC microseconds", e.At)
	}
}

func TestDetailThatDoesNotMarshalIsRecordedAsSuch(t *testing.T) {
	t.Parallel()
	if e := audit.New("system", "x", "y", make(chan int)); !strings.Contains(string(e.Detail), "unencodable") {
		t.Errorf("detail %s", e.Detail)
	}
}

func FuzzBoundedEntryFitsAnyDatabase(f *testing.F) {
	f.Add("acme:account/1", []byte(`{"a":1}`))
	f.Add(strings.Repeat("\xff", 600), []byte("{\"a\":\"\xff\"}"))
	f.Add(strings.Repeat("€", 171), []byte(strings.Repeat("\x01", 9000)))
	f.Add("\x00", []byte("not json"))
	f.Fuzz(func(t *testing.T, s string, detail []byte) {
		e := audit.Entry{ID: s, Actor: s, Action: s, Object: s, Remote: s, Request: s, Detail: detail}.Bounded()
		if len(e.Remote) > audit.MaxField || !utf8.ValidString(e.Remote) || strings.Contains(e.Remote, "\x00") {
			t.Errorf("field %q", e.Remote)
		}
		if len(detail) > 0 && (len(e.Detail) > audit.MaxDetail || !json.Valid(e.Detail) || !utf8.Valid(e.Detail) || bytes.IndexByte(e.Detail, 0) >= 0) {
			t.Errorf("detail %q", e.Detail)
		}
		if again := e.Bounded(); again.Remote != e.Remote || !bytes.Equal(again.Detail, e.Detail) {
			t.Errorf("bounding twice changes %q to %q, %q to %q", e.Remote, again.Remote, e.Detail, again.Detail)
		}
	})
}

func FuzzParsedHeadIsWrittenTheSame(f *testing.F) {
	f.Add("0:" + audit.ZeroHash)
	f.Add("12:" + strings.Repeat("ab", 32))
	f.Add("-1:" + audit.ZeroHash)
	f.Add("+1:" + strings.Repeat("AB", 32))
	f.Fuzz(func(t *testing.T, s string) {
		h, err := audit.ParseHead(s)
		if err == nil && h.String() != s {
			t.Errorf("%q is read as %q", s, h)
		}
		if err != nil && len(err.Error()) > 1000 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	})
}
