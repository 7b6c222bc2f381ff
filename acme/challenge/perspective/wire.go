package perspective

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

// The wire form is one small JSON object each way, by POST. Both sides take only
// what they would have written themselves, octet by octet: no member that they
// don't know, none twice, no other spelling. So a text means one thing, and what
// is new needs a new version.
const (
	version = 1

	pathValidation = "/v1/validation"
	pathCAA        = "/v1/caa"

	jsonType   = "application/json"
	maxMessage = 16 << 10
)

// Bounds of what is in a message.
const (
	maxName   = 253
	maxAuth   = 512
	maxURL    = 1024
	maxDetail = 256 // of a problem, in a message and in what is made of it
	maxAddrs  = 16
	maxType   = 32
	idLength  = 32
	maxWait   = 10 * time.Minute
)

// An ask is a question to a perspective: exactly one of validation and caa.
type ask struct {
	Version    int         `json:"version"`
	ID         string      `json:"id"`         // random; comes back, and is in both logs
	TimeoutMS  int64       `json:"timeout_ms"` // how long the caller waits
	Validation *validation `json:"validation,omitempty"`
	CAA        *caaQuery   `json:"caa,omitempty"`
}

// A validation is what of an acme.Validation it takes to look.
type validation struct {
	Type             acme.ChallengeType `json:"type"`
	Identifier       ca.Identifier      `json:"identifier"`
	Wildcard         bool               `json:"wildcard,omitempty"`
	Token            string             `json:"token,omitempty"`
	KeyAuthorization string             `json:"key_authorization,omitempty"`
	AccountURL       string             `json:"account_url,omitempty"`
}

// A caaQuery is an acme.CAAQuery.
type caaQuery struct {
	Name       string             `json:"name"`
	Wildcard   bool               `json:"wildcard,omitempty"`
	Method     acme.ChallengeType `json:"method,omitempty"`
	AccountURL string             `json:"account_url,omitempty"`
}

// An answer is what a perspective saw.
type answer struct {
	Version int          `json:"version"`
	ID      string       `json:"id"`
	Name    string       `json:"name"`
	Region  Region       `json:"region"`
	OK      bool         `json:"ok"`
	Problem *objection   `json:"problem,omitempty"` // exactly if not OK
	Addrs   []netip.Addr `json:"addrs,omitempty"`   // that were connected to
	TookMS  int64        `json:"took_ms"`
}

// An objection is why it is no.
type objection struct {
	Type   acme.ProblemType `json:"type"`
	Detail string           `json:"detail,omitempty"`
}

// objections are the types that a look can end with. What else a perspective
// says is not repeated to anybody.
var objections = []acme.ProblemType{
	acme.CAA, acme.Connection, acme.DNSError, acme.IncorrectResponse, acme.Malformed, acme.RejectedIdentifier,
	acme.ServerInternal, acme.TLSError, acme.Unauthorized, acme.UnsupportedIdentifier,
}

// decode reads one message into v, and refuses any text but the one that encode
// would make of it.
func decode(data []byte, v any) error {
	if len(data) > maxMessage {
		return fmt.Errorf("longer than %d octets", maxMessage)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	again, err := encode(v)
	if err != nil {
		return err
	}
	if !bytes.Equal(again, data) {
		return errors.New("not in the one form that means this")
	}
	return nil
}

func encode(v any) ([]byte, error) { return json.Marshal(v) }

func decodeAsk(data []byte) (ask, error) {
	var a ask
	if err := decode(data, &a); err != nil {
		return ask{}, err
	}
	if err := a.check(); err != nil {
		return ask{}, err
	}
	return a, nil
}

func (a ask) check() error {
	switch {
	case a.Version != version:
		return fmt.Errorf("version %d, and %d is spoken here", a.Version, version)
	case !isID(a.ID):
		return errors.New("no proper id")
	case a.TimeoutMS < 1 || a.TimeoutMS > maxWait.Milliseconds():
		return errors.New("no proper timeout")
	case (a.Validation == nil) == (a.CAA == nil):
		return errors.New("not exactly one question")
	case a.Validation != nil:
		return a.Validation.check()
	}
	return a.CAA.check()
}

// check keeps the text within bounds. What it means is the validator's to refuse.
func (v *validation) check() error {
	return errors.Join(
		bounded("type", string(v.Type), 1, maxType), bounded("identifier", string(v.Identifier.Type), 1, maxType),
		bounded("identifier", v.Identifier.Value, 1, maxName), bounded("token", v.Token, 0, maxAuth),
		bounded("key authorization", v.KeyAuthorization, 0, maxAuth), bounded("account URL", v.AccountURL, 0, maxURL))
}

func (q *caaQuery) check() error {
	return errors.Join(bounded("name", q.Name, 1, maxName), bounded("method", string(q.Method), 0, maxType),
		bounded("account URL", q.AccountURL, 0, maxURL))
}

func decodeAnswer(data []byte) (answer, error) {
	var a answer
	if err := decode(data, &a); err != nil {
		return answer{}, err
	}
	if err := a.check(); err != nil {
		return answer{}, err
	}
	return a, nil
}

func (a answer) check() error {
	switch {
	case a.Version != version:
		return fmt.Errorf("version %d, and %d is spoken here", a.Version, version)
	case !isID(a.ID):
		return errors.New("no proper id")
	case a.OK != (a.Problem == nil):
		return errors.New("neither a clear yes nor a clear no")
	case a.Problem != nil && !slices.Contains(objections, a.Problem.Type):
		return errors.New("a problem that no look can have")
	case len(a.Addrs) > maxAddrs || slices.ContainsFunc(a.Addrs, func(x netip.Addr) bool { return !x.IsValid() || x.Zone() != "" }):
		return errors.New("not a proper list of addresses")
	case a.TookMS < 0 || a.TookMS > 2*maxWait.Milliseconds():
		return errors.New("no proper time")
	}
	err := errors.Join(bounded("name", a.Name, 1, maxName), bounded("region", string(a.Region), 1, maxType))
	if a.Problem != nil {
		err = errors.Join(err, bounded("detail", a.Problem.Detail, 0, maxDetail+len("...")))
	}
	return err
}

// bounded wants printable ASCII of a length within bounds.
func bounded(what, s string, least, most int) error {
	if len(s) < least || len(s) > most || plain(s, most) != s {
		return fmt.Errorf("no proper %s", what)
	}
	return nil
}

func isID(s string) bool { return len(s) == idLength && strings.Trim(s, "0123456789abcdef") == "" }

// plain makes at most so many octets of s fit for a line of text.
func plain(s string, most int) string {
	cut := len(s) > most
	if cut {
		s = s[:most]
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	if cut {
		s += "..."
	}
	return s
}

// told is a problem as it goes over the wire: never more than a type of the few
// and a line of text.
func told(p *acme.Problem) *objection {
	if p == nil {
		return nil
	}
	o := &objection{Type: p.Type, Detail: plain(p.Detail, maxDetail)}
	if !slices.Contains(objections, o.Type) {
		o.Type = acme.ServerInternal
	}
	return o
}

// seen is the list of addresses as it goes over the wire.
func seen(addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs[:min(len(addrs), maxAddrs)] {
		if a.IsValid() {
			out = append(out, a.WithZone(""))
		}
	}
	return out
}
