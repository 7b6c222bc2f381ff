package admin

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/ca"
)

const (
	maxBody   = 16 << 10
	maxBulk   = 64 << 10 // of many revocations
	maxText   = 512      // of one parameter
	maxLimit  = 500
	maxCursor = 256
)

// readBody reads a JSON object whose members are those of fields, pointers to
// what they hold. No body is an empty object.
func readBody(w http.ResponseWriter, r *http.Request, fields map[string]any) error {
	return readBodyOf(w, r, maxBody, fields)
}

func readBodyOf(w http.ResponseWriter, r *http.Request, size int64, fields map[string]any) error {
	if err := noQuery(r); err != nil {
		return err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, size))
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return err
		}
		return problemf(http.StatusBadRequest, client.CodeMalformed, "the body ended early")
	}
	if len(body) == 0 {
		return nil
	}
	// Browsers send other types across origins without asking; not this one.
	if mt, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mt != "application/json" {
		return problemf(http.StatusUnsupportedMediaType, client.CodeMediaType, "the body must be application/json")
	}
	return decodeObject(body, fields)
}

// decodeObject is stricter than encoding/json: names match to the letter, none
// comes twice, and each is known.
func decodeObject(body []byte, fields map[string]any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return problemf(http.StatusBadRequest, client.CodeMalformed, "the body is not a JSON object")
	}
	seen := map[string]bool{} // bounded by the number of fields
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return problemf(http.StatusBadRequest, client.CodeMalformed, "the body is not valid JSON")
		}
		dst, known := fields[name]
		if !known {
			return problemf(http.StatusBadRequest, client.CodeUnknownField, "the field %.100q is not known; %s", name, knownOnes(fields))
		}
		if seen[name] {
			return problemf(http.StatusBadRequest, client.CodeMalformed, "the field %q comes twice", name)
		}
		seen[name] = true
		if err := d.Decode(dst); err != nil {
			return problemf(http.StatusBadRequest, client.CodeMalformed, "the field %q does not have the right kind of value", name)
		}
	}
	if _, err := d.Token(); err != nil {
		return problemf(http.StatusBadRequest, client.CodeMalformed, "the body is not valid JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return problemf(http.StatusBadRequest, client.CodeMalformed, "something follows the JSON object")
	}
	return nil
}

func knownOnes[V any](fields map[string]V) string {
	if len(fields) == 0 {
		return "there are none"
	}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	return "these are: " + strings.Join(names, ", ")
}

// params are the query of one request. The first error stays; later reads
// return zero values.
type params struct {
	values url.Values
	err    error
}

// readParams reads a query whose names are among known, each once.
func readParams(r *http.Request, known ...string) *params {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return &params{err: problemf(http.StatusBadRequest, client.CodeMalformed, "the query is not well-formed")}
	}
	names := map[string]bool{}
	for _, name := range known {
		names[name] = true
	}
	for name, vs := range values {
		switch {
		case !names[name]:
			return &params{err: problemf(http.StatusBadRequest, client.CodeUnknownField, "the parameter %.100q is not known; %s", name, knownOnes(names))}
		case len(vs) > 1:
			return &params{err: invalid(name, "comes twice")}
		case len(vs[0]) > maxText || !utf8.ValidString(vs[0]) || strings.ContainsRune(vs[0], 0):
			return &params{err: invalid(name, "is longer than %d bytes or not text", maxText)}
		}
	}
	return &params{values: values}
}

func noQuery(r *http.Request) error { return readParams(r).err }

func invalid(name, format string, args ...any) *problem {
	p := problemf(http.StatusBadRequest, client.CodeInvalidParameter, format, args...)
	p.detail = name + " " + p.detail
	return p
}

func (p *params) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

func (p *params) text(name string) string { return p.values.Get(name) }

// number reads a whole number from lo to hi; absent is 0.
func (p *params) number(name string, lo, hi int64) int64 {
	s := p.values.Get(name)
	if s == "" {
		return 0
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < lo || n > hi {
		p.fail(invalid(name, "is not a whole number from %d to %d", lo, hi))
		return 0
	}
	return n
}

// time reads a time, to the second; absent is zero.
func (p *params) time(name string) time.Time {
	t, err := timeOf(name, p.values.Get(name))
	if err != nil {
		p.fail(err)
	}
	return t
}

// limit is how many rows a page has.
func (p *params) limit() int {
	if n := p.number("limit", 1, maxLimit); n != 0 {
		return int(n)
	}
	return 50
}

func (p *params) oneOf(name string, known []string) string {
	s := p.values.Get(name)
	if s != "" && !slices.Contains(known, s) {
		p.fail(invalid(name, "is not one of %s", strings.Join(known, ", ")))
		return ""
	}
	return s
}

// cursor returns what the list of this kind put into the parameter.
func (p *params) cursor(kind string) string {
	s := p.values.Get("cursor")
	if s == "" {
		return ""
	}
	v, err := decodeCursor(kind, s)
	if err != nil {
		p.fail(err)
	}
	return v
}

// A cursor is opaque to clients, and says which list it is of.
func encodeCursor(kind, value string) string {
	if value == "" {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(kind + ":" + value))
}

func decodeCursor(kind, s string) (string, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	v, ok := strings.CutPrefix(string(b), kind+":")
	if err != nil || len(s) > maxCursor || !ok || v == "" || !utf8.ValidString(v) || strings.ContainsAny(s, "\r\n") {
		return "", errBadCursor
	}
	return v, nil
}

var errBadCursor = invalid("cursor", "is not one that this list gave out")

// serialOf reads a serial as people have it: from openssl in capitals, from a
// browser with colons, with the zero octet that DER puts before the sign bit.
func serialOf(s string) (ca.Serial, error) {
	h := hexDigits(s)
	if len(h)%2 == 1 {
		h = "0" + h
	}
	for len(h) > 2 && h[:2] == "00" {
		h = h[2:]
	}
	if b, err := hex.DecodeString(h); err != nil || len(b) == 0 || len(b) > 20 {
		return "", problemf(http.StatusBadRequest, client.CodeInvalidParameter, "%.100q is not a serial number: 1 to 20 octets in hex are", s)
	}
	return ca.Serial(h), nil
}

func hexDigits(s string) string {
	return strings.ToLower(strings.ReplaceAll(s, ":", ""))
}

// serialPrefix reads the beginning of a serial.
func (p *params) serialPrefix() string {
	h := hexDigits(p.values.Get("serial"))
	if len(h) > 40 || strings.Trim(h, "0123456789abcdef") != "" {
		p.fail(invalid("serial", "is not the beginning of a serial number: up to 40 hex digits are"))
		return ""
	}
	return h
}

// reasonOf reads a CRLReason by its name or number.
func reasonOf(s string) (ca.Reason, error) {
	if s == "" {
		return ca.Unspecified, nil
	}
	for r := ca.Unspecified; r <= ca.AACompromise; r++ {
		if strings.EqualFold(s, r.String()) || s == strconv.Itoa(int(r)) {
			return r, nil
		}
	}
	return 0, invalid("reason", "is not one of %s", strings.Join(client.Reasons(), ", "))
}
