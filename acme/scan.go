package acme

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxDepth is how deep JSON may be nested. What ACME needs is five.
const maxDepth = 64

// Why something is not one JSON object that can be read in one way only.
var (
	errNoObject = errors.New("it is no JSON object")
	errNoJSON   = errors.New("it is not well-formed JSON")
	errTwice    = errors.New("a member is there twice")
	errFollowed = errors.New("something follows the JSON object")
	errDepth    = errors.New("it is nested too deeply")
)

// members reads one JSON object, strictly: nothing after it, and no two names in
// one object, at any depth, that encoding/json takes for the same one. It looks
// at no case, and would let the last of two win; another reader of the same
// request might let the first. The values share memory with b.
func members(b []byte) (map[string]json.RawMessage, error) {
	m := make(map[string]json.RawMessage, 4)
	err := scanObject(b, func(name string, value []byte) { m[name] = value })
	if err != nil {
		return nil, err
	}
	return m, nil
}

// unambiguous is members for those who read the object by other means.
func unambiguous(b []byte) error { return scanObject(b, nil) }

// scanObject goes through b once. It calls member, which may be nil, for each
// member of the object itself; what it was called for counts only if the error is nil.
func scanObject(b []byte, member func(name string, value []byte)) error {
	s := scanner{b: b}
	s.space()
	if s.i == len(b) || b[s.i] != '{' {
		return errNoObject
	}
	if err := s.object(1, member); err != nil {
		return err
	}
	s.space()
	if s.i < len(b) {
		return errFollowed
	}
	return nil
}

// A scanner is at b[i], and knows JSON as RFC 8259 and encoding/json do.
type scanner struct {
	b []byte
	i int
}

func (s *scanner) space() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\n' || s.b[s.i] == '\t' || s.b[s.i] == '\r') {
		s.i++
	}
}

// is moves on if the next octet after spaces is c.
func (s *scanner) is(c byte) bool {
	s.space()
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

func (s *scanner) value(depth int) error {
	s.space()
	if s.i == len(s.b) {
		return errNoJSON
	}
	switch s.b[s.i] {
	case '"':
		_, _, err := s.text()
		return err
	case '{':
		return s.object(depth+1, nil)
	case '[':
		return s.list(depth + 1)
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		return s.number()
	}
}

func (s *scanner) list(depth int) error {
	if depth > maxDepth {
		return errDepth
	}
	s.i++ // the bracket
	if s.is(']') {
		return nil
	}
	for {
		if err := s.value(depth); err != nil {
			return err
		}
		if s.is(']') {
			return nil
		}
		if !s.is(',') {
			return errNoJSON
		}
	}
}

func (s *scanner) object(depth int, member func(name string, value []byte)) error {
	if depth > maxDepth {
		return errDepth
	}
	s.i++ // the brace
	if s.is('}') {
		return nil
	}
	var names nameSet
	for {
		s.space()
		raw, plain, err := s.text()
		if err != nil {
			return err
		}
		if !names.add(name{raw, plain}) {
			return errTwice
		}
		if !s.is(':') {
			return errNoJSON
		}
		s.space()
		from := s.i
		if err := s.value(depth); err != nil {
			return err
		}
		if member != nil {
			member(textOf(raw, plain), s.b[from:s.i:s.i])
		}
		if s.is('}') {
			return nil
		}
		if !s.is(',') {
			return errNoJSON
		}
	}
}

// ordinary are the octets of strings that stand for themselves.
var ordinary = func() (t [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// text reads a string. It returns it with its quotation marks, and whether it is
// plain: ASCII without escapes.
func (s *scanner) text() (raw []byte, plain bool, err error) {
	if s.i == len(s.b) || s.b[s.i] != '"' {
		return nil, false, errNoJSON
	}
	from := s.i
	plain = true
	for s.i++; s.i < len(s.b); s.i++ {
		c := s.b[s.i]
		if ordinary[c] {
			continue
		}
		switch {
		case c == '"':
			s.i++
			return s.b[from:s.i], plain, nil
		case c == '\\':
			plain = false
			if err := s.escape(); err != nil {
				return nil, false, err
			}
		case c < ' ':
			return nil, false, errNoJSON
		case c >= utf8.RuneSelf:
			plain = false
		}
	}
	return nil, false, errNoJSON
}

// escape goes to the last octet of an escape.
func (s *scanner) escape() error {
	s.i++
	if s.i == len(s.b) {
		return errNoJSON
	}
	if s.b[s.i] != 'u' {
		if strings.IndexByte(`"\/bfnrt`, s.b[s.i]) < 0 {
			return errNoJSON
		}
		return nil
	}
	for range 4 {
		s.i++
		if s.i == len(s.b) || !isHex(s.b[s.i]) {
			return errNoJSON
		}
	}
	return nil
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func (s *scanner) literal(word string) error {
	if !bytes.HasPrefix(s.b[s.i:], []byte(word)) {
		return errNoJSON
	}
	s.i += len(word)
	return nil
}

func (s *scanner) number() error {
	s.skip('-')
	switch {
	case s.skip('0'):
	case !s.digits():
		return errNoJSON
	}
	if s.skip('.') && !s.digits() {
		return errNoJSON
	}
	if s.skip('e') || s.skip('E') {
		if !s.skip('+') {
			s.skip('-')
		}
		if !s.digits() {
			return errNoJSON
		}
	}
	return nil
}

func (s *scanner) skip(c byte) bool {
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

func (s *scanner) digits() bool {
	from := s.i
	for s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > from
}

// isPlain reports whether a string that was scanned stands for itself.
func isPlain(raw []byte) bool { return bytes.IndexByte(raw, '\\') < 0 && utf8.Valid(raw) }

// textOf is the value of a string that was scanned.
func textOf(raw []byte, plain bool) string {
	if plain {
		return string(raw[1 : len(raw)-1])
	}
	var v string
	_ = json.Unmarshal(raw, &v) // it is well-formed
	return v
}

// A name is one of a member, as it was scanned.
type name struct {
	raw   []byte
	plain bool
}

// is reports whether encoding/json takes n and o for the same name.
func (n name) is(o name) bool {
	if !n.plain || !o.plain {
		return n.folded() == o.folded()
	}
	if len(n.raw) != len(o.raw) {
		return false
	}
	for i, c := range n.raw {
		if upper(c) != upper(o.raw[i]) {
			return false
		}
	}
	return true
}

// folded is the same for all that is reports to be one.
func (n name) folded() string { return strings.Map(foldRune, textOf(n.raw, n.plain)) }

func upper(c byte) byte {
	if 'a' <= c && c <= 'z' {
		return c - 'a' + 'A'
	}
	return c
}

// A nameSet holds the names of one object.
type nameSet struct {
	few  [8]name
	n    int
	many map[string]bool // folded; nil while there are few
}

// add reports whether the name is new.
func (s *nameSet) add(n name) bool {
	if s.many != nil {
		f := n.folded()
		if s.many[f] {
			return false
		}
		s.many[f] = true
		return true
	}
	for _, other := range s.few[:s.n] {
		if n.is(other) {
			return false
		}
	}
	if s.n < len(s.few) {
		s.few[s.n] = n
		s.n++
		return true
	}
	s.many = map[string]bool{n.folded(): true}
	for _, other := range s.few {
		s.many[other.folded()] = true
	}
	return true
}

// foldRune returns the least of the runes that are one without regard to case.
func foldRune(r rune) rune {
	for {
		next := unicode.SimpleFold(r)
		if next <= r {
			return next
		}
		r = next
	}
}
