package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/secsy-pki/secsy-pki/store"
)

// SQLSTATE codes, from appendix A of PostgreSQL's manual.
const (
	uniqueViolation      = "23505"
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	connectionException  = "08" // a class
	adminShutdown        = "57P01"
	crashShutdown        = "57P02"
	cannotConnectNow     = "57P03"
	idleInTransaction    = "25P03"
)

// classify gives an error of the driver the names that callers know.
func classify(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return store.ErrNoRows
	}
	if code(err) == uniqueViolation {
		return fmt.Errorf("%w: %w", store.ErrUnique, err)
	}
	return err
}

// conflict says that the server chose this transaction to give way to another.
func conflict(err error) bool {
	c := code(err)
	return c == serializationFailure || c == deadlockDetected
}

// connectionLost says that err is the end of a connection, or one that could
// not begin for now.
func connectionLost(err error) bool {
	switch c := code(err); {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return false // somebody ended it on purpose
	case c == adminShutdown, c == crashShutdown, c == cannotConnectNow, c == idleInTransaction,
		strings.HasPrefix(c, connectionException):
		return true
	case c != "":
		return false
	}
	_, netErr := errors.AsType[net.Error](err)
	return netErr || pgconn.SafeToRetry(err) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)
}

func code(err error) string {
	if pe, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pe.Code
	}
	return ""
}

// secrets are the parts of a URL that no error may show.
type secrets []string

// secretsOf finds them. Its own error shows nothing of the URL: what made it
// unreadable may well be the password.
func secretsOf(raw string) (secrets, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, errors.New("the PostgreSQL URL is not of the form postgres://user:password@host:port/database " +
			"(special characters in user and password are written as %XX)")
	}
	var found secrets
	if password, ok := u.User.Password(); ok {
		found = append(found, password, url.QueryEscape(password), url.PathEscape(password))
		if _, encoded, ok := strings.Cut(u.User.String(), ":"); ok {
			found = append(found, encoded)
		}
	}
	for _, name := range []string{"password", "sslpassword"} {
		if v := u.Query().Get(name); v != "" {
			found = append(found, v, url.QueryEscape(v))
		}
	}
	return found, nil
}

func hasParam(raw, name string) bool {
	u, err := url.Parse(raw)
	return err == nil && u.Query().Has(name)
}

// clean puts an error of connecting into one line without secrets. The error
// below holds the driver's configuration, so it can be asked what it is and not
// be unwrapped.
func (s secrets) clean(err error) error {
	_, parsing := errors.AsType[*pgconn.ParseConfigError](err)
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	if !parsing && !connecting {
		return classify(err)
	}
	text := strings.Join(strings.Fields(err.Error()), " ")
	for _, secret := range s {
		if secret != "" {
			text = strings.ReplaceAll(text, secret, "xxxxx")
		}
	}
	return connectError{text, err}
}

type connectError struct {
	text  string
	cause error
}

func (e connectError) Error() string        { return e.text }
func (e connectError) Is(target error) bool { return errors.Is(e.cause, target) }
