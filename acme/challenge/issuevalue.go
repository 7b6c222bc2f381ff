package challenge

import (
	"errors"
	"strings"
)

// An issueValue is an issue or issuewild property's value, and what a TXT record
// of dns-persist-01 holds (RFC 8659 §4.2).
type issueValue struct {
	issuer string // in lower case; "" is nobody
	params []param
}

type param struct {
	tag   string // in lower case
	value string
}

var errIssueValue = errors.New("not as RFC 8659 §4.2 has it")

// maxParams bounds what one value is read for.
const maxParams = 64

// parseIssueValue reads a whole value. Nothing is guessed: whoever wrote
// something else than the grammar has did not write whom he meant.
func parseIssueValue(s string) (issueValue, error) {
	head, rest, more := strings.Cut(s, ";")
	v := issueValue{issuer: strings.ToLower(trimWSP(head))}
	if v.issuer != "" && !isLabels(v.issuer) {
		return issueValue{}, errIssueValue
	}
	if !more || trimWSP(rest) == "" {
		return v, nil
	}
	for part := range strings.SplitSeq(rest, ";") {
		tag, value, ok := strings.Cut(part, "=")
		tag, value = trimWSP(tag), trimWSP(value)
		if !ok || !isLabel(tag) || !isParamValue(value) || len(v.params) == maxParams {
			return issueValue{}, errIssueValue
		}
		v.params = append(v.params, param{strings.ToLower(tag), value})
	}
	return v, nil
}

// get finds the one parameter of that tag. Twice the same is once too often: ok
// is false, as for a value that is "there, and unfit".
func (v issueValue) get(tag string) (value string, there, ok bool) {
	for _, p := range v.params {
		if p.tag != tag {
			continue
		}
		if there {
			return "", true, false
		}
		value, there = p.value, true
	}
	return value, there, true
}

// trimWSP takes off blanks and tabs, and no other white space.
func trimWSP(s string) string { return strings.Trim(s, " \t") }

// isLabels reports whether s is labels with dots between them.
func isLabels(s string) bool {
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !isLabel(label) {
			return false
		}
	}
	return true
}

// isLabel reports whether s is letters and digits, with hyphens between them.
func isLabel(s string) bool {
	if s == "" || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// isParamValue reports whether s is printable ASCII without blanks and semicolons.
func isParamValue(s string) bool {
	for _, c := range []byte(s) {
		if c < 0x21 || c > 0x7e || c == ';' {
			return false
		}
	}
	return true
}
