package ca

import (
	"context"
	"crypto/x509"
	"fmt"
	"strings"
)

// A LintKind is what kind of certificate is linted.
type LintKind string

// The kinds of certificates.
const (
	LintServer    LintKind = "server"
	LintResponder LintKind = "responder"
	LintRoot      LintKind = "root"
	LintIssuing   LintKind = "issuing"
)

// A Draft is a certificate that is to be signed, signed by a throwaway key of
// the kind and size of the issuer's.
type Draft struct {
	DER      []byte
	Issuer   *x509.Certificate // the true issuer; nil for a root
	Kind     LintKind
	SPKIHash [32]byte // of the key that was asked for
}

// A Linter looks at what is to be signed, and returns the faults that forbid
// it. Its error means that it could not look, which forbids it too. It is safe
// for concurrent use, and bounded in time whatever the draft holds.
type Linter interface {
	Lint(ctx context.Context, d Draft) ([]Finding, error)
}

// A Finding is one fault.
type Finding struct {
	Lint   string
	Status string // "notice", "warn", "error" or "fatal"
	Detail string
}

// A LintError says that a certificate was not signed because of what the
// linter found. It is for operators: the fault lies in the profile or the code.
type LintError struct{ Findings []Finding }

func (e *LintError) Error() string {
	names := make([]string, 0, len(e.Findings))
	for _, f := range e.Findings {
		s := f.Lint + " (" + f.Status
		if f.Detail != "" {
			s += ": " + f.Detail
		}
		names = append(names, s+")")
	}
	return fmt.Sprintf("linting: %s", strings.Join(names, "; "))
}
