package config

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A Duration is a length of time such as 90d, 12h, 1h30m or 10s. A day has 24 hours.
type Duration time.Duration

// units of durations, largest first.
var durationUnits = []struct {
	name string
	size time.Duration
}{{"d", day}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}}

// Std returns d as the standard library has it.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes d in whole units, the largest first: 1d12h.
func (d Duration) String() string {
	if d == 0 {
		return "0s"
	}
	rest := time.Duration(d)
	var b strings.Builder
	for _, u := range durationUnits {
		if n := rest / u.size; n != 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			rest -= n * u.size
		}
	}
	return b.String()
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	errWant := errors.New("want a duration such as 30s, 12h or 90d")
	rest, total := string(text), time.Duration(0)
	if rest == "" {
		return errWant
	}
	units := durationUnits
	for rest != "" {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		n, err := strconv.ParseInt(rest[:digits], 10, 64)
		if err != nil {
			return errWant
		}
		rest = rest[digits:]
		name := rest[:len(rest)-len(strings.TrimLeft(rest, "dhms"))]
		rest = rest[len(name):]
		// Each unit once, in falling order: what is left of the list can follow.
		for len(units) > 0 && units[0].name != name {
			units = units[1:]
		}
		if len(units) == 0 || n > int64(time.Duration(1<<62)/units[0].size) {
			return errWant
		}
		total += time.Duration(n) * units[0].size
		if total < 0 {
			return errWant
		}
		units = units[1:]
	}
	*d = Duration(total)
	return nil
}

// A Size is a number of octets such as 64KiB or 1MiB.
type Size int64

// The units of sizes.
const (
	KiB Size = 1 << 10
	MiB Size = 1 << 20
	GiB Size = 1 << 30
)

var sizeUnits = []struct {
	name string
	size Size
}{{"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"B", 1}}

// String writes s in the largest unit that leaves it whole.
func (s Size) String() string {
	for _, u := range sizeUnits {
		if s >= u.size && s%u.size == 0 {
			return fmt.Sprintf("%d%s", s/u.size, u.name)
		}
	}
	return fmt.Sprintf("%dB", int64(s))
}

// MarshalText implements encoding.TextMarshaler.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Size) UnmarshalText(text []byte) error {
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(string(text), u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 32)
		if err != nil {
			break
		}
		*s = Size(n) * u.size
		return nil
	}
	return errors.New("want a size such as 512B, 64KiB or 1MiB")
}

// A CIDR is a range of addresses, such as 10.0.0.0/8; a bare address is a range of one.
type CIDR struct{ netip.Prefix }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *CIDR) UnmarshalText(text []byte) error {
	if addr, err := netip.ParseAddr(string(text)); err == nil && addr.Zone() == "" {
		addr = addr.Unmap()
		c.Prefix = netip.PrefixFrom(addr, addr.BitLen())
		return nil
	}
	p, err := netip.ParsePrefix(string(text))
	if err != nil || p.Addr().Is4In6() {
		return errors.New("want an address range such as 10.0.0.0/8 or 2001:db8::/32")
	}
	if p != p.Masked() {
		return fmt.Errorf("the address has bits beyond its prefix; did you mean %s?", p.Masked())
	}
	c.Prefix = p
	return nil
}

// An OptionalCIDR is a CIDR that may be empty.
type OptionalCIDR struct{ CIDR }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *OptionalCIDR) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*c = OptionalCIDR{}
		return nil
	}
	return c.CIDR.UnmarshalText(text)
}

// A Rate is a number of events a second: 20, 0.5, or 30/m and 100/h.
type Rate float64

var rateUnits = []struct {
	suffix  string
	seconds float64
}{{"/s", 1}, {"/m", 60}, {"/h", 3600}, {"", 1}}

const maxRate = 1e6

// MarshalText implements encoding.TextMarshaler.
func (r Rate) MarshalText() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(r), 'g', -1, 64), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *Rate) UnmarshalText(text []byte) error {
	for _, u := range rateUnits {
		number, ok := strings.CutSuffix(string(text), u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || strings.Trim(number, "0123456789.") != "" || n/u.seconds > maxRate {
			break
		}
		*r = Rate(n / u.seconds)
		return nil
	}
	return errors.New("want events a second from 0 to 1000000, such as 20, 0.5, 30/m or 100/h")
}

// A URL is an absolute http or https URL without user, query and fragment; no
// slash stands at its end. Empty means none.
type URL string

// Parsed returns u in parts.
func (u URL) Parsed() *url.URL {
	p, err := url.Parse(string(u))
	if err != nil {
		return &url.URL{}
	}
	return p
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (u *URL) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*u = ""
		return nil
	}
	p, err := url.Parse(string(text))
	switch {
	case err != nil || p.Scheme != "http" && p.Scheme != "https" || p.Opaque != "" || len(text) > 1024:
		return errors.New("want an absolute URL such as https://pki.example.org")
	case p.User != nil:
		return errors.New("a URL here can't hold a user or a password")
	case p.RawQuery != "" || p.ForceQuery || strings.Contains(string(text), "#"):
		return errors.New("a URL here can't hold a query or a fragment")
	}
	p.Host = strings.ToLower(p.Host)
	if !validHost(p.Hostname()) || p.Port() == "" && strings.HasSuffix(p.Host, ":") || p.Port() != "" && !validPort(p.Port(), 1) {
		return errors.New("the URL's host must be a name in lower-case ASCII (A-labels) or an address, its port between 1 and 65535")
	}
	*u = URL(strings.TrimRight(p.String(), "/"))
	return nil
}

// An Address is a host and port to listen on. Empty means not to.
type Address string

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Address) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*a = ""
		return nil
	}
	host, port, err := net.SplitHostPort(string(text))
	if err != nil || host != "" && !validHost(host) || !validPort(port, 0) {
		return errors.New(`want host and port such as 127.0.0.1:8080, [::1]:8080 or :8080`)
	}
	*a = Address(net.JoinHostPort(host, port))
	return nil
}

// A HostPort is a host and port to connect to. Empty means none.
type HostPort string

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *HostPort) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*a = ""
		return nil
	}
	host, port, err := net.SplitHostPort(string(text))
	if err != nil || !validHost(host) || !validPort(port, 1) {
		return errors.New(`want host and port such as 127.0.0.1:53 or [::1]:53`)
	}
	*a = HostPort(net.JoinHostPort(host, port))
	return nil
}

func validPort(s string, least uint64) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n >= least && strconv.FormatUint(n, 10) == s
}

func validHost(s string) bool {
	if addr, err := netip.ParseAddr(s); err == nil {
		return addr.Zone() == ""
	}
	return validDomain(s)
}

// A Domain is a DNS name in lower-case A-labels, without a dot at its end.
type Domain string

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Domain) UnmarshalText(text []byte) error {
	if _, err := netip.ParseAddr(string(text)); err == nil || !validDomain(string(text)) {
		return errors.New("want a domain in lower-case ASCII (A-labels) such as example.org")
	}
	*d = Domain(text)
	return nil
}

func validDomain(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return false
		}
	}
	return true
}

// A Host is a Domain or an IP address.
type Host string

// UnmarshalText implements encoding.TextUnmarshaler.
func (h *Host) UnmarshalText(text []byte) error {
	if addr, err := netip.ParseAddr(string(text)); err == nil && addr.Zone() == "" {
		*h = Host(addr.Unmap().String())
		return nil
	}
	if !validDomain(string(text)) {
		return errors.New("want a name in lower-case ASCII (A-labels) or an IP address")
	}
	*h = Host(text)
	return nil
}

// A Name is what the operator calls a thing.
type Name string

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *Name) UnmarshalText(text []byte) error {
	const alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	s := string(text)
	if s != "" && (len(s) > 64 || strings.Trim(s, alnum+"-_.") != "" || !strings.ContainsRune(alnum, rune(s[0]))) {
		return errors.New("want a name of at most 64 letters, digits, '-', '_' and '.', beginning with a letter or digit")
	}
	*n = Name(s)
	return nil
}

// KeyURI begins a KeyRef that is no plain label.
const KeyURI = "pkcs11:"

// A KeyRef names a private key: by its label, or by a PKCS#11 URI.
type KeyRef string

// IsURI reports whether k is a PKCS#11 URI.
func (k KeyRef) IsURI() bool {
	return len(k) >= len(KeyURI) && strings.EqualFold(string(k[:len(KeyURI)]), KeyURI)
}

// UnmarshalText implements encoding.TextUnmarshaler. What is wrong with a URI is
// found later, by those who don't repeat it: it could hold a PIN.
func (k *KeyRef) UnmarshalText(text []byte) error {
	if KeyRef(text).IsURI() {
		*k = KeyRef(text)
		return nil
	}
	if new(Name).UnmarshalText(text) != nil {
		return errors.New("want a label of at most 64 letters, digits, '-', '_' and '.', beginning with a letter or digit, or a PKCS#11 URI such as pkcs11:object=issuing-1")
	}
	*k = KeyRef(text)
	return nil
}

// A TokenLabel is the label of a PKCS#11 token, without padding. Empty means any.
type TokenLabel string

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *TokenLabel) UnmarshalText(text []byte) error {
	if !padded(text, 32) {
		return errors.New("want the label of a token, of at most 32 octets, without space at its end")
	}
	*l = TokenLabel(text)
	return nil
}

// A TokenSerial is the serial number of a PKCS#11 token. Empty means any.
type TokenSerial string

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *TokenSerial) UnmarshalText(text []byte) error {
	if !padded(text, 16) {
		return errors.New("want the serial number of a token, of at most 16 octets")
	}
	*n = TokenSerial(text)
	return nil
}

// padded reports whether text fits a field of so many octets that PKCS#11 pads
// with spaces.
func padded(text []byte, most int) bool {
	return len(text) <= most && printable(string(text)) && len(bytes.TrimRight(text, " ")) == len(text)
}

// A SlotID is the number of a PKCS#11 slot. Empty means any.
type SlotID string

// Number returns the number, and nil for none.
func (s SlotID) Number() *uint {
	n, err := strconv.ParseUint(string(s), 10, strconv.IntSize)
	if err != nil {
		return nil
	}
	id := uint(n)
	return &id
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *SlotID) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*s = ""
		return nil
	}
	digits, base := string(text), 10
	if hex, ok := strings.CutPrefix(digits, "0x"); ok {
		digits, base = hex, 16
	}
	n, err := strconv.ParseUint(digits, base, strconv.IntSize)
	if err != nil {
		return errors.New("want the number of a slot, such as 0 or 0x1a2b")
	}
	*s = SlotID(strconv.FormatUint(n, 10))
	return nil
}

// An EnvName is the name of an environment variable.
type EnvName string

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *EnvName) UnmarshalText(text []byte) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
	s := string(text)
	if s != "" && (len(s) > 128 || strings.Trim(s, letters+"0123456789") != "" || !strings.ContainsRune(letters, rune(s[0]))) {
		return errors.New("want the name of an environment variable, such as SECSY_PASSPHRASE")
	}
	*n = EnvName(s)
	return nil
}

// A Path is a file or folder; a relative one starts at the folder of the
// configuration file. Empty means none.
type Path string

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Path) UnmarshalText(text []byte) error {
	s := string(text)
	if len(s) > 4096 || !printable(s) {
		return errors.New("want a path of printable characters, at most 4096 octets")
	}
	if s != "" {
		s = filepath.Clean(s)
	}
	*p = Path(s)
	return nil
}

func printable(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) < 0
}
