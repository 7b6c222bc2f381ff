package front

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
)

// The two headers that hops write. There is no third, and never one in place of
// the other: a header that our proxies don't overwrite belongs to the stranger.
const (
	XForwardedFor = "X-Forwarded-For"
	Forwarded     = "Forwarded" // RFC 7239
)

const (
	maxHops     = 32
	maxHopBytes = 4 << 10
)

// Hops says which proxies stand before a listener, and where they write whom
// they speak for. It can be replaced while requests read it. A nil Hops believes
// nobody: the client is the TCP peer.
type Hops struct {
	rule atomic.Pointer[hopRule]
}

type hopRule struct {
	header  string
	trusted Prefixes
}

// NewHops returns the rule that the proxies in trusted write whom they speak for
// into header.
func NewHops(header string, trusted ...netip.Prefix) (*Hops, error) {
	h := &Hops{}
	if err := h.Set(header, trusted); err != nil {
		return nil, err
	}
	return h, nil
}

// Set replaces the rule. If it returns an error, the old one stays.
func (h *Hops) Set(header string, trusted []netip.Prefix) error {
	rule := &hopRule{header: http.CanonicalHeaderKey(header)}
	if rule.header != XForwardedFor && rule.header != Forwarded {
		return fmt.Errorf("header of trusted hops is %q: it must be %s or %s", header, XForwardedFor, Forwarded)
	}
	if err := rule.trusted.Set(trusted); err != nil {
		return err
	}
	h.rule.Store(rule)
	return nil
}

// trusts reports whether a is one of the proxies.
func (h *Hops) trusts(a netip.Addr) bool {
	if h == nil {
		return false
	}
	rule := h.rule.Load()
	return rule != nil && rule.trusted.Contains(a)
}

// Client returns the address of the client of a request that came over a
// connection from conn.
//
// Each proxy appends the address it saw, so the list is read from its right
// end, and each entry is believed only if the one that wrote it is trusted. The
// first address that isn't one of ours is the client. What stands further left
// is what that client says about itself, and isn't looked at. An entry that is
// no address ends the walk at the last hop that was one.
func (h *Hops) Client(conn netip.Addr, header http.Header) netip.Addr {
	conn = plain(conn)
	if !h.trusts(conn) {
		return conn
	}
	return h.rule.Load().client(conn, header)
}

func (h *hopRule) client(conn netip.Addr, header http.Header) netip.Addr {
	lines := header[h.header]
	if !bounded(lines) {
		return conn
	}
	cut, parse := cutPlain, parseXFF
	if h.header == Forwarded {
		cut, parse = cutQuoted, parseForwarded
	}
	client := conn
	for i := len(lines) - 1; i >= 0; i-- {
		rest, more := lines[i], true
		for more {
			var hop string
			rest, hop, more = cut(rest)
			addr, ok := parse(hop)
			if !ok {
				return client
			}
			client = addr
			if !h.trusted.Contains(addr) {
				return client
			}
		}
	}
	return client
}

// bounded counts commas, so a quoted comma counts as a hop too: that errs on the
// side of the TCP peer.
func bounded(lines []string) bool {
	hops, size := 0, 0
	for _, l := range lines {
		hops += strings.Count(l, ",") + 1
		size += len(l)
	}
	return hops <= maxHops && size <= maxHopBytes
}

// cutPlain takes the last element off a comma-separated list.
func cutPlain(list string) (rest, last string, more bool) {
	i := strings.LastIndexByte(list, ',')
	if i < 0 {
		return "", list, false
	}
	return list[:i], list[i+1:], true
}

// cutQuoted is cutPlain for a list whose elements may hold quoted strings. It
// reads from the right, as the walk does: an open quote that a stranger left
// in its part of the list can't swallow what our proxy wrote after it.
func cutQuoted(list string) (rest, last string, more bool) {
	quoted := false
	for i := len(list) - 1; i >= 0; i-- {
		switch {
		case list[i] == '"' && (!quoted || !escaped(list, i)):
			quoted = !quoted
		case list[i] == ',' && !quoted:
			return list[:i], list[i+1:], true
		}
	}
	return "", list, false
}

// escaped reports whether an odd number of backslashes stands before s[i].
func escaped(s string, i int) bool {
	n := 0
	for i--; i >= 0 && s[i] == '\\'; i-- {
		n++
	}
	return n%2 == 1
}

// parseXFF reads one element of X-Forwarded-For. The header has no standard;
// addresses come bare, with a port, or in brackets.
func parseXFF(s string) (netip.Addr, bool) {
	s = strings.Trim(s, " \t")
	if a, err := netip.ParseAddr(s); err == nil {
		return plain(a), true
	}
	return parseNode(s)
}

// parseForwarded reads one element of Forwarded (RFC 7239 §4) and returns the
// node of its "for". A second "for", or none, is not a hop.
func parseForwarded(s string) (addr netip.Addr, ok bool) {
	for more := true; more; {
		name, value, rest, again, good := cutPair(s)
		if !good {
			return netip.Addr{}, false
		}
		s, more = rest, again
		if !strings.EqualFold(name, "for") {
			continue
		}
		if ok {
			return netip.Addr{}, false
		}
		if addr, ok = parseNode(value); !ok {
			return netip.Addr{}, false
		}
	}
	return addr, ok
}

// cutPair takes one name=value off the front of an element; a ";" must follow if
// there is more.
func cutPair(s string) (name, value, rest string, more, ok bool) {
	s = strings.TrimLeft(s, " \t")
	name, s, ok = strings.Cut(s, "=")
	if !ok || !isToken(name) {
		return "", "", "", false, false
	}
	if strings.HasPrefix(s, `"`) {
		if value, s, ok = unquote(s); !ok {
			return "", "", "", false, false
		}
	} else {
		end := strings.IndexAny(s, "; \t")
		if end < 0 {
			end = len(s)
		}
		value, s = s[:end], s[end:]
		if !isToken(value) {
			return "", "", "", false, false
		}
	}
	s = strings.TrimLeft(s, " \t")
	if s == "" {
		return name, value, "", false, true
	}
	rest, more = strings.CutPrefix(s, ";")
	return name, value, rest, more, more
}

// unquote takes a quoted-string (RFC 9110 §5.6.4) off the front of s.
func unquote(s string) (value, rest string, ok bool) {
	if i := strings.IndexAny(s[1:], `"\`); i >= 0 && s[1+i] == '"' { // no escapes: nothing to rewrite
		return s[1 : 1+i], s[2+i:], true
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return "", "", false
			}
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}

func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !alnum && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// parseNode reads a node of RFC 7239 §6: an IPv4 address or an IPv6 address in
// brackets, with or without a port. "unknown" and "_hidden" are no address.
func parseNode(s string) (netip.Addr, bool) {
	host, port := s, ""
	if inner, ok := strings.CutPrefix(s, "["); ok {
		if host, port, ok = strings.Cut(inner, "]"); !ok {
			return netip.Addr{}, false
		}
	} else if i := strings.IndexByte(s, ':'); i >= 0 {
		host, port = s[:i], s[i:]
	}
	if port != "" && !isPort(port) {
		return netip.Addr{}, false
	}
	a, err := netip.ParseAddr(host)
	if err != nil || a.Is4() == strings.HasPrefix(s, "[") {
		return netip.Addr{}, false
	}
	return plain(a), true
}

// isPort reports whether s is ":" and a port, which RFC 7239 lets a proxy hide
// behind an "_" name.
func isPort(s string) bool {
	s, ok := strings.CutPrefix(s, ":")
	if !ok {
		return false
	}
	if hidden, ok := strings.CutPrefix(s, "_"); ok {
		return isToken(hidden)
	}
	return len(s) >= 1 && len(s) <= 5 && strings.Trim(s, "0123456789") == ""
}
