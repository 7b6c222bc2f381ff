// Package audit is the record of what the CA did: entries chained by hash, so
// that none can be changed, dropped or put in between unnoticed.
//
// An entry is written by the transaction that makes its fact true; a sequencer
// gives it its place in the chain afterwards.
package audit

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"
)

// An Entry is one fact of consequence.
type Entry struct {
	ID      string          `json:"id"`               // unguessable, set by New
	At      time.Time       `json:"at"`               // UTC, microseconds
	Actor   string          `json:"actor"`            // who: "acme:account/ID", "operator:uid/0", "system"
	Action  string          `json:"action"`           // what: "certificate.issued", from a closed set
	Object  string          `json:"object"`           // on what: "certificate/SERIAL"
	Remote  string          `json:"remote,omitempty"` // the caller's address, where there was one
	Request string          `json:"request,omitempty"`
	Detail  json.RawMessage `json:"detail,omitempty"` // one JSON object, small
}

// The bounds of an entry, in bytes. What is longer is cut with a mark: the
// fact matters more than its last words, and must not fail for them.
const (
	MaxField  = 512
	MaxDetail = 8 << 10
)

// New makes an entry of now. detail is marshalled; nil means none.
func New(actor, action, object string, detail any) Entry {
	e := Entry{ID: NewID(), At: time.Now().UTC().Truncate(time.Microsecond), Actor: actor, Action: action, Object: object}
	if detail != nil {
		b, err := json.Marshal(detail)
		if err != nil {
			// Details are structs and maps of plain values of our own.
			b, _ = json.Marshal(map[string]string{"unencodable": err.Error()})
		}
		e.Detail = b
	}
	return e.Bounded()
}

// NewID returns 128 random bits in hex.
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (Go 1.24)
	return hex.EncodeToString(b[:])
}

// Bounded returns e with each field within its bound and fit for any database:
// valid UTF-8 without NUL. An entry that New made and nobody changed comes back
// as it is.
func (e Entry) Bounded() Entry {
	e.ID = text(e.ID)
	e.Actor = text(e.Actor)
	e.Action = text(e.Action)
	e.Object = text(e.Object)
	e.Remote = text(e.Remote)
	e.Request = text(e.Request)
	switch {
	case len(e.Detail) == 0:
	case len(e.Detail) > MaxDetail:
		e.Detail = clipped("truncated", e.Detail)
	case !json.Valid(e.Detail) || !utf8.Valid(e.Detail):
		e.Detail = clipped("malformed", e.Detail)
	}
	return e
}

const (
	cutMark = "…"
	badRune = "\uFFFD"
)

func text(s string) string {
	if len(s) <= MaxField && utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	cut := len(s) > MaxField
	if cut {
		s = s[:MaxField] // before the replacing, so that the work is bounded too
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, badRune), "\x00", badRune)
	if cut || len(s) > MaxField {
		s = strings.ToValidUTF8(s[:min(len(s), MaxField-len(cutMark))], "") + cutMark
	}
	return s
}

// clipped is a detail that holds as much of raw's text as fits, under key.
func clipped(key string, raw []byte) json.RawMessage {
	for n := min(len(raw), MaxDetail); ; n /= 2 {
		b, _ := json.Marshal(map[string]any{ // strings and ints always marshal
			key:     strings.ToValidUTF8(string(raw[:n]), ""),
			"bytes": len(raw),
		})
		if len(b) <= MaxDetail {
			return b
		}
	}
}
