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
	"time"
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
	return e
}

// NewID returns 128 random bits in hex.
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (Go 1.24)
	return hex.EncodeToString(b[:])
}
