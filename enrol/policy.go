package enrol

import (
	"fmt"
	"slices"
	"strings"

	"github.com/secsy-pki/secsy-pki/ca"
)

// A Rule allows principals names. All that a request asks for has to be allowed
// by one rule.
type Rule struct {
	// Kinds of principals that it is for; none: all.
	Kinds []Kind
	// Principals that it is for, by subject; none: all of the kinds.
	Subjects []Pattern
	// Names that it allows.
	Names []NamePattern
}

// A NamePattern is the type of a name, and what its value looks like.
type NamePattern struct {
	Type  ca.IdentifierType
	Value Pattern
}

// A Pattern is text in which * stands for any characters but a dot, ** for any
// characters at all, and {name} for the principal's subject.
type Pattern string

const subjectMark = "{name}"

// maxPattern bounds the text, and maxStars the work of matching.
const (
	maxPattern = 256
	maxStars   = 8
)

// Validate says what is wrong with p.
func (p Pattern) Validate() error {
	switch {
	case p == "":
		return fmt.Errorf("a pattern is empty")
	case len(p) > maxPattern:
		return fmt.Errorf("pattern %.32q… is longer than %d octets", string(p), maxPattern)
	case strings.Count(strings.ReplaceAll(string(p), "**", "*"), "*") > maxStars:
		return fmt.Errorf("pattern %q has more than %d stars", string(p), maxStars)
	case strings.Contains(string(p), "***"):
		return fmt.Errorf("pattern %q has three stars in a row", string(p))
	}
	return nil
}

// ParseNamePattern reads "type:pattern".
func ParseNamePattern(s string) (NamePattern, error) {
	kind, value, ok := strings.Cut(s, ":")
	p := NamePattern{Type: ca.IdentifierType(kind), Value: Pattern(value)}
	if !ok || !slices.Contains(nameTypes, p.Type) {
		return p, fmt.Errorf("%q is not TYPE:PATTERN, where TYPE is one of %s", s, typeList())
	}
	return p, p.Value.Validate()
}

var nameTypes = []ca.IdentifierType{ca.SubjectCommonName, ca.SubjectSerialNumber, ca.DNS, ca.IP, ca.PermanentIdentifier, ca.HardwareModule}

func typeList() string {
	var out []string
	for _, t := range nameTypes {
		out = append(out, string(t))
	}
	return strings.Join(out, ", ")
}

// A piece of a pattern is text, or a star.
type piece struct {
	text string
	star bool
	dots bool // of a star: it stands for dots, too
}

func (p Pattern) pieces(subject string) []piece {
	var out []piece
	rest := string(p)
	for rest != "" {
		switch i := strings.IndexAny(rest, "*{"); {
		case i < 0:
			out, rest = append(out, piece{text: rest}), ""
		case i > 0:
			out, rest = append(out, piece{text: rest[:i]}), rest[i:]
		case strings.HasPrefix(rest, subjectMark):
			out, rest = append(out, piece{text: subject}), rest[len(subjectMark):]
		case strings.HasPrefix(rest, "**"):
			out, rest = append(out, piece{star: true, dots: true}), rest[2:]
		case rest[0] == '*':
			out, rest = append(out, piece{star: true}), rest[1:]
		default:
			out, rest = append(out, piece{text: "{"}), rest[1:]
		}
	}
	return out
}

// Match reports whether value is as p says. No star stands for nothing.
func (p Pattern) Match(value, subject string) bool {
	if strings.Contains(string(p), subjectMark) && subject == "" {
		return false
	}
	if len(value) > 4*maxPattern {
		return false
	}
	// reached[i]: the pieces so far match value[:i].
	reached := make([]bool, len(value)+1)
	reached[0] = true
	for _, piece := range p.pieces(subject) {
		next := make([]bool, len(value)+1)
		for i := range reached {
			switch {
			case !reached[i]:
			case !piece.star:
				if strings.HasPrefix(value[i:], piece.text) {
					next[i+len(piece.text)] = true
				}
			default:
				for j := i; j < len(value) && (piece.dots || value[j] != '.') && !next[j+1]; j++ {
					next[j+1] = true
				}
			}
		}
		reached = next
	}
	return reached[len(value)]
}

// allows reports whether r lets p have all of names.
func (r Rule) allows(p Principal, names []ca.Identifier) bool {
	if len(r.Kinds) > 0 && !slices.Contains(r.Kinds, p.Kind) {
		return false
	}
	if len(r.Subjects) > 0 && !slices.ContainsFunc(r.Subjects, func(x Pattern) bool { return p.Subject != "" && x.Match(p.Subject, "") }) {
		return false
	}
	for _, id := range names {
		if !slices.ContainsFunc(r.Names, func(x NamePattern) bool { return x.allows(p, id) }) {
			return false
		}
	}
	return len(names) > 0
}

func (n NamePattern) allows(p Principal, id ca.Identifier) bool {
	if n.Type != id.Type {
		return false
	}
	subject := p.Subject
	if id.Type == ca.DNS {
		subject = strings.ToLower(subject)
		// A wildcard is many names: a star of a pattern does not stand for its star.
		if strings.HasPrefix(id.Value, "*.") {
			return false
		}
	}
	return n.Value.Match(id.Value, subject)
}
