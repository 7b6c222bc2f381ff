package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/term"
)

// prompt asks on the terminal that the program was started from, whatever its
// standard input is.
func prompt(ctx context.Context, what string) ([]byte, error) {
	return promptOn(ctx, "/dev/tty", what)
}

// promptOn asks for a secret without showing what is typed.
func promptOn(ctx context.Context, terminal, what string) ([]byte, error) {
	tty, err := os.OpenFile(terminal, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("no terminal to ask on for the %s: %w", what, err)
	}
	fd := int(tty.Fd()) //nolint:gosec // a file's descriptor fits
	before, err := term.GetState(fd)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("no terminal to ask on for the %s: %w", what, err), tty.Close())
	}
	if _, err := fmt.Fprintf(tty, "%s: ", safe(what)); err != nil {
		return nil, errors.Join(err, tty.Close())
	}
	type answer struct {
		secret []byte
		err    error
	}
	typed := make(chan answer, 1)
	go func() { // ends with the line, or with the program: a terminal's read can't be called off
		secret, err := term.ReadPassword(fd)
		typed <- answer{secret, err}
	}()
	select {
	case <-ctx.Done():
		// The file stays open, as it is being read from.
		_, _ = fmt.Fprintln(tty)
		return nil, errors.Join(ctx.Err(), term.Restore(fd, before))
	case a := <-typed:
		_, _ = fmt.Fprintln(tty)
		if err := errors.Join(a.err, tty.Close()); err != nil {
			return nil, fmt.Errorf("asking for the %s: %w", what, err)
		}
		return a.secret, nil
	}
}
