package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

// A revocation is what one command is to revoke, and how.
type revocation struct {
	conn *connection
	cmd  *cobra.Command

	serials []string
	file    string
	key     string
	filter  client.CertificateFilter
	client.Revocation

	replaceBy, incident string
	url, note           string

	rate                int
	dryRun, yes, asJSON bool
}

func newCertRevoke(conn *connection) *cobra.Command {
	rev := &revocation{conn: conn}
	cmd := &cobra.Command{
		Use:   "revoke [SERIAL…] --reason REASON",
		Short: "Revoke certificates",
		Long: `Revoke certificates, for good: those whose serial numbers are given, or those
that a file lists, or those that have not expired and fulfil all conditions.
keyCompromise also refuses their keys for all time. On a terminal it asks first,
with a count and some examples; elsewhere it needs --yes. --dry-run only counts.

A command that was cut off can be given again: what is revoked already stays as
it is. Certificates that can't be revoked don't keep the others from it; they are
listed, and the exit code is 1.

--file takes a serial number a line, in any form that other tools print, with a
reason of its own behind a comma or not; or certificates in PEM or DER, which must
be the very ones that were issued here.

--replace-by revokes nothing yet: it opens an incident, by which ACME clients
that ask for renewal information replace the certificates before that time, and
says how to revoke them then.

Reasons: ` + strings.Join(client.Reasons(), ", ") + `.`,
		Example: `  secsy-pki cert revoke 01:AB:CD:… --reason keyCompromise
  secsy-pki cert revoke --file serials.csv --reason superseded --dry-run
  secsy-pki cert revoke --key leaked.pem --invalid-since 2026-05-01T12:00:00Z
  secsy-pki cert revoke --profile tls-server --issued-after 2026-05-01T00:00:00Z --reason superseded --replace-by 2026-05-06T00:00:00Z
  secsy-pki cert revoke --incident revocation-20260506t000000z --reason superseded --yes`,
		ValidArgsFunction: cobra.NoFileCompletions,
		Args:              cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			rev.cmd = cmd
			if err := rev.check(args); err != nil {
				return err
			}
			if rev.single() {
				return rev.one(cmd.Context())
			}
			return rev.many(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&rev.Reason, "reason", "", "why (required, but for --key): "+strings.Join(client.Reasons(), ", "))
	f.StringVar(&rev.RevokedAt, "revoked-at", "", "for keyCompromise only: the `TIME` that the revocation is dated back to")
	f.StringVar(&rev.InvalidSince, "invalid-since", "", "the `TIME` since when the key is known or feared to be lost")
	f.StringVar(&rev.file, "file", "", "those that `FILE` lists; -: standard input")
	f.StringVar(&rev.key, "key", "", "those of this public key: its SHA-256 in `HEX`, or a PEM file of it,\nits private key, or a certificate or request for it (default reason: keyCompromise)")
	f.StringVar(&rev.filter.Incident, "incident", "", "those that the incident `NAME` selects")
	selectFlags(cmd, &rev.filter, "those")
	f.StringVar(&rev.replaceBy, "replace-by", "", "only have them replaced before this `TIME`")
	f.StringVar(&rev.incident, "open-incident", "", "`NAME` of the incident that --replace-by opens (default \"revocation-TIME\")")
	f.StringVar(&rev.url, "url", "", "`URL` of a page that tells subscribers why, for --replace-by")
	f.StringVar(&rev.note, "note", "", "`WHY`, for operators, for --replace-by")
	f.IntVar(&rev.rate, "rate", defaultRate, "certificates a second at most; 0: as many as leave the server half of its time")
	f.BoolVar(&rev.dryRun, "dry-run", false, "only say what would happen")
	f.BoolVar(&rev.yes, "yes", false, "don't ask")
	jsonFlag(cmd, &rev.asJSON)
	choices(cmd, "reason", client.Reasons()...)
	_ = cmd.MarkFlagFilename("file")
	_ = cmd.MarkFlagFilename("key")
	noFileCompletion(cmd, "revoked-at", "invalid-since", "incident", "replace-by", "open-incident", "url", "note", "rate")
	return cmd
}

// single says that one certificate is meant, and only to be revoked: that has
// words and an answer of its own.
func (rev *revocation) single() bool {
	return len(rev.serials) == 1 && rev.replaceBy == "" && !rev.dryRun
}

func (rev *revocation) check(args []string) error {
	cmd := rev.cmd
	for _, a := range args {
		serial, err := parseSerial(a)
		if err != nil {
			return &usageError{cmd, err}
		}
		rev.serials = append(rev.serials, serial)
	}
	ways := 0
	for _, given := range []bool{len(args) > 0, rev.file != "", rev.filter != (client.CertificateFilter{}) || rev.key != ""} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		return usagef(cmd, "say which certificates: by serial numbers, by --file, or by conditions such as --key and --profile")
	}
	if rev.Reason == "" && rev.key != "" {
		rev.Reason = "keyCompromise"
	}
	if err := checkReason(cmd, &rev.Reason, rev.file != ""); err != nil {
		return err
	}
	if rev.rate < 0 {
		return usagef(cmd, "--rate %d: want a whole number from 0", rev.rate)
	}
	if rev.replaceBy == "" && (rev.incident != "" || rev.url != "" || rev.note != "") {
		return usagef(cmd, "--open-incident, --url and --note go with --replace-by")
	}
	if rev.replaceBy != "" {
		by, err := time.Parse(time.RFC3339, rev.replaceBy)
		if err != nil || !by.After(time.Now()) {
			return usagef(cmd, "--replace-by %q: want a time to come, such as 2026-05-01T12:00:00Z", rev.replaceBy)
		}
	}
	if !rev.yes && !rev.dryRun && !isTerminal(cmd.InOrStdin()) {
		return usagef(cmd, "nobody to ask whether to revoke: say --yes")
	}
	return nil
}

// checkReason finds the reason that is meant; none is one where a file may say it.
func checkReason(cmd *cobra.Command, reason *string, optional bool) error {
	if *reason == "" && optional {
		return nil
	}
	known, ok := knownReason(*reason)
	if !ok {
		return usagef(cmd, "--reason %q: want one of %s", *reason, strings.Join(client.Reasons(), ", "))
	}
	*reason = known
	return nil
}

func knownReason(s string) (string, bool) {
	i := slices.IndexFunc(client.Reasons(), func(r string) bool { return strings.EqualFold(r, s) })
	if i < 0 {
		return "", false
	}
	return client.Reasons()[i], true
}

// one asks the person, who may take any time, outside of what is bounded.
func (rev *revocation) one(ctx context.Context) error {
	cmd, serial := rev.cmd, rev.serials[0]
	if !rev.yes {
		err := rev.conn.ask(ctx, patience, func(ctx context.Context, cl *client.Client) error {
			c, err := cl.Certificate(ctx, serial)
			if err != nil {
				return err
			}
			warn(cmd.ErrOrStderr(), "certificate %s of %s (%s), %s, will be revoked for %s", c.Serial, safe(someNames(c.Names)), issuerName(c), c.Status, rev.Reason)
			return nil
		})
		if err != nil {
			return err
		}
		if err := confirm(ctx, cmd.InOrStdin(), cmd.ErrOrStderr(), "nothing was revoked"); err != nil {
			return err
		}
	}
	return rev.conn.ask(ctx, patience, func(ctx context.Context, cl *client.Client) error {
		c, err := cl.RevokeCertificate(ctx, serial, rev.Revocation)
		if err != nil {
			return err
		}
		return sayStatus(cmd, c, "is revoked for "+c.Reason, rev.asJSON)
	})
}

func sayStatus(cmd *cobra.Command, c client.Certificate, status string, asJSON bool) error {
	if asJSON {
		return printJSON(cmd.OutOrStdout(), c)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "certificate %s %s\n", c.Serial, status)
	return err
}

func newCertHold(conn *connection) *cobra.Command {
	return eachCert(conn, "hold", "Put certificates on hold", `Put certificates on hold: they count as revoked until they are released, or
revoked for good. Only where the configuration of their issuer allows it.`,
		`  secsy-pki cert hold 01:AB:CD:…`, "is on hold",
		func(ctx context.Context, cl *client.Client, serial string) (client.Certificate, error) {
			return cl.RevokeCertificate(ctx, serial, client.Revocation{Reason: client.Hold})
		})
}

func newCertRelease(conn *connection) *cobra.Command {
	return eachCert(conn, "release", "Release certificates from their hold", `Release certificates from their hold: they are valid again.`,
		`  secsy-pki cert release 01:AB:CD:…`, "is released",
		func(ctx context.Context, cl *client.Client, serial string) (client.Certificate, error) {
			return cl.ReleaseCertificate(ctx, serial)
		})
}

// eachCert is a command that does one thing to each of a few certificates.
func eachCert(conn *connection, use, short, long, example, done string, do func(context.Context, *client.Client, string) (client.Certificate, error)) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               use + " SERIAL…",
		Short:             short,
		Long:              long,
		Example:           example,
		ValidArgsFunction: cobra.NoFileCompletions,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef(cmd, "want serial numbers")
			}
			for _, a := range args {
				if _, err := parseSerial(a); err != nil {
					return &usageError{cmd, err}
				}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			var errs []error
			for _, a := range args {
				serial, _ := parseSerial(a) // was checked
				errs = append(errs, conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
					c, err := do(ctx, cl, serial)
					if err != nil {
						return err
					}
					return sayStatus(cmd, c, done, asJSON)
				}))
			}
			return errors.Join(errs...)
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
