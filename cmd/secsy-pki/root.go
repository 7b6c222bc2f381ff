package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/app"
)

// The exit codes.
const (
	exitOK    = 0
	exitError = 1
	exitUsage = 2
	// exitPIN is for a supervisor not to try again: a token locks itself after a
	// few wrong PINs.
	exitPIN = 3
)

// A usageError is a mistake in the command line. It is answered with a hint.
type usageError struct {
	cmd *cobra.Command
	err error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{cmd, fmt.Errorf(format, args...)}
}

// execute runs one command line and says what went wrong, a line for each thing.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	for line := range strings.Lines(err.Error()) {
		_, _ = fmt.Fprintf(stderr, "secsy-pki: %s\n", strings.TrimRight(line, "\n"))
	}
	if u, ok := errors.AsType[*usageError](err); ok {
		_, _ = fmt.Fprintf(stderr, "Try \"%s --help\".\n", u.cmd.CommandPath())
		return exitUsage
	}
	if errors.Is(err, app.ErrPIN) {
		return exitPIN
	}
	return exitError
}

func newRoot() *cobra.Command {
	root := group("secsy-pki", "A public PKI front end: ACME, OCSP and CRLs", `  # A CA to try things with, in one minute:
  secsy-pki quickstart

  # A CA to keep:
  secsy-pki init --dir /var/lib/secsy-pki --organization "Example Org" --external-host pki.example.org
  secsy-pki serve --config /var/lib/secsy-pki/config.yaml

  # Ask the CA that runs:
  secsy-pki cert list --config /var/lib/secsy-pki/config.yaml`)
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &usageError{cmd, plainFlagError(err)} })
	root.AddCommand(
		newQuickstart(), newInit(), newServe(), newMigrate(),
		newConfig(), newKeys(), newCert(), newIssuer(), newCRL(), newACME(), newEnrol(), newAudit(), newPerspective(), newVersion(),
	)
	return root
}

// plainFlagError says what a flag wants, where it was said which function of Go
// did not get it.
func plainFlagError(err error) error {
	n, ok := errors.AsType[*strconv.NumError](err)
	if !ok {
		return err
	}
	want := "want a whole number"
	switch {
	case n.Func == "ParseBool":
		want = "want true or false"
	case errors.Is(n, strconv.ErrRange):
		want = "the number is too large"
	}
	return fmt.Errorf("%s: %s", strings.TrimSuffix(err.Error(), ": "+n.Error()), want)
}

// group is a command that only holds others.
func group(use, short, example string) *cobra.Command {
	return &cobra.Command{
		Use:     use,
		Short:   short,
		Example: example,
		Args:    cobra.ArbitraryArgs, // or cobra answers for itself, in words that are not ours

		DisableFlagsInUseLine:      true,
		SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				cmd.SetOut(cmd.ErrOrStderr())
				_ = cmd.Help()
				return usagef(cmd, "name one of the commands of %q", cmd.CommandPath())
			}
			if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
				return usagef(cmd, "unknown command %q; did you mean %q?", args[0], like[0])
			}
			return usagef(cmd, "unknown command %q", args[0])
		},
	}
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef(cmd, "unexpected argument %q", args[0])
	}
	return nil
}
