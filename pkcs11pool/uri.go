package pkcs11pool

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// URIScheme begins each PKCS#11 URI.
const URIScheme = "pkcs11:"

// maxURI bounds a URI, as it is given and as String writes it.
const maxURI = 4096

// A URI is a PKCS#11 URI (RFC 7512): what it says of a token, of an object on it
// and of the way there. An empty field says nothing, and so fits everything.
type URI struct {
	Token        string // CK_TOKEN_INFO, without padding
	Manufacturer string
	Serial       string
	Model        string

	LibraryManufacturer string // CK_INFO
	LibraryDescription  string
	LibraryVersion      string // "2" or "2.40"

	SlotID           *uint
	SlotManufacturer string // CK_SLOT_INFO
	SlotDescription  string

	Object string // CKA_LABEL
	Type   string // private, public, cert, secret-key or data
	ID     []byte // CKA_ID

	ModuleName string
	ModulePath string
	// PINSource is where the PIN is, a file: URI or a path. A URI that holds the
	// PIN itself is refused.
	PINSource string
}

// ParseURI reads a PKCS#11 URI. Its errors name the attribute at fault, and never
// repeat what could be a PIN.
func ParseURI(s string) (URI, error) {
	u, err := parseURI(s)
	if err != nil {
		return URI{}, fmt.Errorf("pkcs11pool: reading a PKCS#11 URI: %w", err)
	}
	return u, nil
}

func parseURI(s string) (u URI, err error) {
	if len(s) > maxURI {
		return u, fmt.Errorf("it has %d octets, at most %d are read", len(s), maxURI)
	}
	if len(s) < len(URIScheme) || !strings.EqualFold(s[:len(URIScheme)], URIScheme) {
		return u, fmt.Errorf("it does not begin with %q", URIScheme)
	}
	path, query, hasQuery := strings.Cut(s[len(URIScheme):], "?")
	attributes := u.attributes()
	if err := parseAttributes(path, ";", false, attributes); err != nil {
		return u, err
	}
	if hasQuery {
		if err := parseAttributes(query, "&", true, attributes); err != nil {
			return u, err
		}
	}
	// Written by us it may be longer than it came, and must still be readable.
	if n := len(u.String()); n > maxURI {
		return u, fmt.Errorf("it has %d octets with all that needs it percent-encoded, at most %d are read", n, maxURI)
	}
	return u, nil
}

// An attribute is one of a URI: where it stands and what its value is.
type attribute struct {
	name  string
	query bool
	set   func(value string) error
	get   func() string // "" for one that is not there
	raw   bool          // every octet is percent-encoded
}

// attributes are all that there are, in the order of String.
func (u *URI) attributes() []attribute {
	text := func(name string, p *string, most int) attribute {
		return attribute{name: name, set: func(v string) error { *p = v; return checkText(v, most) }, get: func() string { return *p }}
	}
	query := func(name string, p *string) attribute {
		a := text(name, p, maxURI)
		a.query = true
		return a
	}
	return []attribute{
		text("token", &u.Token, 32),
		text("manufacturer", &u.Manufacturer, 32),
		text("serial", &u.Serial, 16),
		text("model", &u.Model, 16),
		text("library-manufacturer", &u.LibraryManufacturer, 32),
		text("library-description", &u.LibraryDescription, 32),
		{name: "library-version", set: u.setLibraryVersion, get: func() string { return u.LibraryVersion }},
		{name: "slot-id", set: u.setSlotID, get: u.slotID},
		text("slot-manufacturer", &u.SlotManufacturer, 32),
		text("slot-description", &u.SlotDescription, 64),
		text("object", &u.Object, maxURI),
		{name: "type", set: u.setType, get: func() string { return u.Type }},
		{name: "id", raw: true, set: func(v string) error { u.ID = []byte(v); return nil }, get: func() string { return string(u.ID) }},
		query("module-name", &u.ModuleName),
		query("module-path", &u.ModulePath),
		query("pin-source", &u.PINSource),
	}
}

func (u *URI) setLibraryVersion(v string) error {
	u.LibraryVersion = v
	major, minor, dotted := strings.Cut(v, ".")
	if !digits(major) || dotted && !digits(minor) {
		return errors.New("want a version such as 2 or 2.40")
	}
	return nil
}

func digits(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func (u *URI) setSlotID(v string) error {
	n, err := strconv.ParseUint(v, 10, strconv.IntSize)
	if err != nil {
		return errors.New("want a slot's number")
	}
	id := uint(n)
	u.SlotID = &id
	return nil
}

func (u *URI) slotID() string {
	if u.SlotID == nil {
		return ""
	}
	return strconv.FormatUint(uint64(*u.SlotID), 10)
}

func (u *URI) setType(v string) error {
	u.Type = v
	if !slices.Contains([]string{"private", "public", "cert", "secret-key", "data"}, v) {
		return errors.New("want private, public, cert, secret-key or data")
	}
	return nil
}

// checkText wants what a person may have named a thing.
func checkText(v string, most int) error {
	switch {
	case len(v) > most:
		return fmt.Errorf("its value has %d octets, at most %d are possible", len(v), most)
	case !utf8.ValidString(v):
		return errors.New("its value is not UTF-8")
	case strings.ContainsFunc(v, unicode.IsControl):
		return errors.New("its value has a control character")
	}
	return nil
}

// parseAttributes reads the path or the query of a URI.
func parseAttributes(s, separator string, query bool, attributes []attribute) error {
	if s == "" && !query {
		return nil // RFC 7512 §2.3: the path may be empty
	}
	seen := map[string]bool{}
	for n, part := range strings.Split(s, separator) {
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			return fmt.Errorf("attribute %d of its %s has no =", n+1, partName(query))
		}
		if err := refuseName(name, query); err != nil {
			return err
		}
		i := slices.IndexFunc(attributes, func(a attribute) bool { return a.name == name && a.query == query })
		if i < 0 {
			return unknownAttribute(name, query, attributes)
		}
		if seen[name] {
			return fmt.Errorf("%s: it is there twice", name)
		}
		seen[name] = true
		decoded, err := decode(value, query)
		if err == nil && decoded == "" {
			err = errors.New("it has no value: leave it out")
		}
		if err == nil {
			err = attributes[i].set(decoded)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func partName(query bool) string {
	if query {
		return "query"
	}
	return "path"
}

// refuseName says no to what must not be shown, or is not there for us.
func refuseName(name string, query bool) error {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	switch {
	case strings.EqualFold(name, "pin-value"):
		return errors.New("pin-value: a PIN in a URI can be read in lists of processes, logs and histories: put it into a file and name that with pin-source")
	case name == "" || len(name) > 64 || strings.Trim(name, letters) != "":
		return fmt.Errorf("its %s has an attribute whose name is none", partName(query))
	case strings.HasPrefix(name, "x-"):
		return fmt.Errorf("%s: attributes of vendors are not understood: leave it out", name)
	}
	return nil
}

func unknownAttribute(name string, query bool, attributes []attribute) error {
	if slices.ContainsFunc(attributes, func(a attribute) bool { return a.name == name }) {
		if query {
			return fmt.Errorf("%s: it belongs before the question mark, with ; between attributes", name)
		}
		return fmt.Errorf("%s: it belongs after the question mark, with & between attributes", name)
	}
	return fmt.Errorf("%s: there is no such attribute in the %s of a PKCS#11 URI (RFC 7512)", name, partName(query))
}

const unreserved = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"

// Octets that stand for themselves beside the unreserved ones (RFC 7512 §2.3).
const (
	plainInPath  = unreserved + ":[]@!$'()*+,=" + "&"
	plainInQuery = unreserved + ":[]@!$'()*+,=" + "/?|"
)

func decode(s string, query bool) (string, error) {
	plain := plainInPath
	if query {
		plain = plainInQuery
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '%':
			if i+2 >= len(s) {
				return "", errors.New("want two hexadecimal digits after each %")
			}
			octet, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
			if err != nil {
				return "", errors.New("want two hexadecimal digits after each %")
			}
			b.WriteByte(byte(octet))
			i += 2
		case strings.IndexByte(plain, s[i]) >= 0:
			b.WriteByte(s[i])
		default:
			return "", fmt.Errorf("write %%%02X where its value has %q", s[i], s[i:i+1])
		}
	}
	return b.String(), nil
}

// String writes u in one form of the many that mean the same. It reads back as u.
func (u URI) String() string {
	var path, query []string
	for _, a := range u.attributes() {
		v := a.get()
		if v == "" {
			continue
		}
		if a.query {
			query = append(query, a.name+"="+encode(v, unreserved+":/"))
			continue
		}
		plain := unreserved
		if a.raw {
			plain = "" // RFC 7512 §2.3: the whole value of id should be encoded
		}
		path = append(path, a.name+"="+encode(v, plain))
	}
	s := URIScheme + strings.Join(path, ";")
	if len(query) > 0 {
		s += "?" + strings.Join(query, "&")
	}
	return s
}

func encode(s, plain string) string {
	var b strings.Builder
	for i := range len(s) {
		if strings.IndexByte(plain, s[i]) >= 0 {
			b.WriteByte(s[i])
		} else {
			fmt.Fprintf(&b, "%%%02X", s[i])
		}
	}
	return b.String()
}
