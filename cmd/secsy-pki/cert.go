package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

func newCert() *cobra.Command {
	var conn connection
	cmd := group("cert", "List, show and revoke certificates", `  secsy-pki cert list --name example.org
  secsy-pki cert show 01:AB:CD:…
  secsy-pki cert revoke 01abcd… --reason superseded
  secsy-pki cert revoke --file serials.csv --reason superseded --dry-run`)
	conn.flags(cmd)
	cmd.AddCommand(newCertList(&conn), newCertShow(&conn), newCertRevoke(&conn), newCertHold(&conn), newCertRelease(&conn))
	return cmd
}

// statesInWords are client.States, told apart from what the list shows as status.
var statesInWords = strings.NewReplacer("issued", "issued (valid or expired)", "unexpired", "unexpired (valid or revoked)").
	Replace(strings.Join(client.States(), ", "))

func newCertList(conn *connection) *cobra.Command {
	var (
		filter client.CertificateFilter
		limit  int
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List certificates, newest first",
		Example: `  secsy-pki cert list
  secsy-pki cert list --name example.org --state revoked
  secsy-pki cert list --limit 0 --json | jq -r .serial`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkList(cmd, limit); err != nil {
				return err
			}
			if filter.State != "" && !slices.Contains(client.States(), filter.State) {
				return usagef(cmd, "--state %q: want one of %s", filter.State, statesInWords)
			}
			return conn.ask(cmd.Context(), patienceFor(limit), func(ctx context.Context, cl *client.Client) error {
				return listCertificates(ctx, cmd, cl, filter, limit, asJSON)
			})
		},
	}
	f := cmd.Flags()
	selectFlags(cmd, &filter, "only those")
	f.StringVar(&filter.SPKIHash, "key", "", "only those of the public key with this SHA-256, in `HEX`")
	f.StringVar(&filter.Serial, "serial", "", "only those whose serial number begins with these `DIGITS`")
	f.StringVar(&filter.State, "state", "", "only those of this `STATE`: "+statesInWords)
	limitFlag(cmd, &limit)
	jsonFlag(cmd, &asJSON)
	choices(cmd, "state", client.States()...)
	noFileCompletion(cmd, "key", "serial")
	return cmd
}

// selectFlags are the conditions that certificates are looked for by.
func selectFlags(cmd *cobra.Command, filter *client.CertificateFilter, those string) {
	f := cmd.Flags()
	f.StringVar(&filter.Name, "name", "", those+" with this `NAME`, or one below it")
	f.StringVar(&filter.Issuer, "issuer", "", those+" of this issuer, by `NAME` or id")
	f.StringVar(&filter.Profile, "profile", "", those+" of this profile, by `NAME`")
	f.StringVar(&filter.Account, "account", "", those+" of this ACME account, by `ID` or URL")
	f.StringVar(&filter.IssuedAfter, "issued-after", "", those+" issued at this `TIME` or later, such as 2026-05-01T12:00:00Z")
	f.StringVar(&filter.IssuedBefore, "issued-before", "", those+" issued before this `TIME`")
	f.StringVar(&filter.NotBeforeFrom, "not-before-from", "", those+" valid from this `TIME` on or later, by what they say")
	f.StringVar(&filter.NotBeforeTo, "not-before-to", "", those+" valid from before this `TIME` on")
	noFileCompletion(cmd, "name", "issuer", "profile", "account", "issued-after", "issued-before", "not-before-from", "not-before-to")
}

func listCertificates(ctx context.Context, cmd *cobra.Command, cl *client.Client, filter client.CertificateFilter, limit int, asJSON bool) error {
	out := cmd.OutOrStdout()
	l := lister{limit: limit, cmd: cmd}
	for l.more() {
		filter.Limit = l.size()
		page, err := cl.ListCertificates(ctx, filter)
		if err != nil {
			return err
		}
		filter.Cursor = page.Next
		first := l.took(len(page.Certificates), page.Next)
		if asJSON {
			for _, c := range page.Certificates {
				if err := printJSON(out, c); err != nil {
					return err
				}
			}
			continue
		}
		if err := table(out, certificateRows(page.Certificates, first)); err != nil {
			return err
		}
	}
	return nil
}

func certificateRows(list []client.Certificate, head bool) [][]string {
	var rows [][]string
	if head {
		rows = append(rows, []string{"SERIAL", "STATUS", "NOT AFTER", "ISSUER", "PROFILE", "NAMES"})
	}
	for _, c := range list {
		rows = append(rows, []string{c.Serial, c.Status, when(c.NotAfter), issuerName(c), c.Profile, someNames(c.Names)})
	}
	return rows
}

// someNames fits the names of a certificate into a table.
func someNames(names []client.Name) string {
	const most = 3
	var values []string
	for i, n := range names {
		if i == most {
			values = append(values, fmt.Sprintf("+%d", len(names)-most))
			break
		}
		values = append(values, n.Value)
	}
	return strings.Join(values, " ")
}

func issuerName(c client.Certificate) string {
	if c.IssuerName != "" {
		return c.IssuerName
	}
	return c.Issuer
}

func newCertShow(conn *connection) *cobra.Command {
	var asJSON, asPEM bool
	cmd := &cobra.Command{
		Use:   "show SERIAL",
		Short: "Show one certificate",
		Example: `  secsy-pki cert show 01:AB:CD:…
  secsy-pki cert show 01abcd… --pem | openssl x509 -text`,
		Args:              serialArg,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if asJSON && asPEM {
				return usagef(cmd, "--json and --pem can't both be had")
			}
			serial, err := parseSerial(args[0])
			if err != nil {
				return err
			}
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				c, err := cl.Certificate(ctx, serial)
				if err != nil {
					return err
				}
				return showCertificate(cmd.OutOrStdout(), c, asJSON, asPEM)
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&asPEM, "pem", false, "print the certificate alone, in PEM")
	return cmd
}

func showCertificate(w io.Writer, c client.Certificate, asJSON, asPEM bool) error {
	switch {
	case asJSON:
		return printJSON(w, c)
	case asPEM && c.PEM == "":
		return fmt.Errorf("serial %s is %s: there is no certificate", c.Serial, c.Status)
	case asPEM:
		_, err := io.WriteString(w, c.PEM)
		return err
	}
	rows := [][]string{
		{"Serial:", c.Serial},
		{"Status:", c.Status},
	}
	if c.RevokedAt != nil {
		rows = append(rows, []string{"Revoked:", when(*c.RevokedAt) + " " + c.Reason})
	}
	if c.InvalidSince != nil {
		rows = append(rows, []string{"Invalid since:", when(*c.InvalidSince)})
	}
	for _, n := range c.Names {
		rows = append(rows, []string{"Name:", n.Type + " " + n.Value})
	}
	rows = append(
		rows,
		[]string{"Issuer:", issuerName(c)},
		[]string{"Profile:", c.Profile},
		[]string{"Not before:", when(c.NotBefore)},
		[]string{"Not after:", when(c.NotAfter)},
		[]string{"Renew:", renewal(c)},
		[]string{"Replaced by:", c.ReplacedBy},
		[]string{"Requester:", c.Requester},
		[]string{"Created:", when(c.CreatedAt)},
		[]string{"SHA-256:", c.Fingerprint},
		[]string{"Key SHA-256:", c.SPKIHash},
	)
	if err := table(w, rows); err != nil {
		return err
	}
	_, err := io.WriteString(w, c.PEM)
	return err
}

// renewal is when a certificate is best renewed.
func renewal(c client.Certificate) string {
	if c.RenewFrom == nil || c.RenewTo == nil {
		return ""
	}
	return when(*c.RenewFrom) + " to " + when(*c.RenewTo)
}

// confirm waits for a typed yes; otherwise is what to say if none comes.
func confirm(ctx context.Context, in io.Reader, w io.Writer, otherwise string) error {
	if _, err := fmt.Fprint(w, "Type yes to go on: "); err != nil {
		return err
	}
	answer := make(chan string, 1)
	go func() { // ends with the line, or with the program: a terminal's read can't be called off
		line, _ := bufio.NewReader(io.LimitReader(in, 64)).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case line := <-answer:
		if line != "yes" {
			return errors.New(otherwise)
		}
		return nil
	}
}

// isTerminal reports whether somebody can be asked.
func isTerminal(in io.Reader) bool {
	f, ok := in.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && !isNull(info)
}

// isNull reports whether a file is the null device, which is one of characters
// too, but has nobody behind it.
func isNull(info os.FileInfo) bool {
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(info, null)
}
