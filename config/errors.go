package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// An Error is one thing wrong with a configuration.
type Error struct {
	File string // empty for a Config that came from no file
	Line int    // 0: unknown
	Col  int
	Key  string // such as listen.http.address or profiles[0].name; empty: the whole file
	Msg  string
}

// Error puts e in one line.
func (e Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File + ":")
		if e.Line > 0 {
			fmt.Fprintf(&b, "%d:%d:", e.Line, e.Col)
		}
		b.WriteByte(' ')
	}
	if e.Key != "" {
		b.WriteString(e.Key + ": ")
	}
	b.WriteString(e.Msg)
	return b.String()
}

// Errors is all that is wrong, in the order of the file.
type Errors []Error

// maxErrors bounds what Error prints.
const maxErrors = 20

// Error gives each of e a line, up to a bound.
func (e Errors) Error() string {
	lines := make([]string, 0, maxErrors+1)
	for i, one := range e {
		if i == maxErrors {
			lines = append(lines, fmt.Sprintf("and %d more", len(e)-i))
			break
		}
		lines = append(lines, one.Error())
	}
	return strings.Join(lines, "\n")
}

// orNil returns e as an error, sorted, and nil if it is empty.
func (e Errors) orNil() error {
	if len(e) == 0 {
		return nil
	}
	slices.SortStableFunc(e, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return e
}

// quote shows a value of the file, cut to what fits a line.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		s = s[:most] + "…"
	}
	return fmt.Sprintf("%q", s)
}
