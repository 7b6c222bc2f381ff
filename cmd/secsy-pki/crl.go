package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

func newCRL() *cobra.Command {
	var conn connection
	cmd := group("crl", "List, show, rebuild and export CRLs", `  secsy-pki crl list
  secsy-pki crl show main --pem | openssl crl -noout -text
  secsy-pki crl rebuild
  secsy-pki crl export --dir /var/www/pki`)
	conn.flags(cmd)
	cmd.AddCommand(newCRLList(&conn), newCRLShow(&conn), newCRLRebuild(&conn), newCRLExport(&conn))
	return cmd
}

func newCRLList(conn *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the CRLs that the server serves",
		Example: `  secsy-pki crl list
  secsy-pki crl list --json | jq -r 'select(.trouble) | .path, .trouble'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				list, err := cl.ListCRLs(ctx)
				if err != nil {
					return err
				}
				return printCRLs(cmd, list, asJSON)
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func printCRLs(cmd *cobra.Command, list []client.CRLStatus, asJSON bool) error {
	if !asJSON {
		if err := table(cmd.OutOrStdout(), crlRows(list)); err != nil {
			return err
		}
	}
	for _, c := range list {
		if asJSON {
			if err := printJSON(cmd.OutOrStdout(), c); err != nil {
				return err
			}
		} else if c.Trouble != "" {
			warn(cmd.ErrOrStderr(), "building %s: %s", c.Path, safe(c.Trouble))
		}
	}
	return nil
}

func crlRows(list []client.CRLStatus) [][]string {
	rows := [][]string{{"ISSUER", "SHARD", "KIND", "NUMBER", "THIS UPDATE", "NEXT UPDATE", "ENTRIES", "OCTETS"}}
	for _, c := range list {
		row := []string{c.IssuerName, "", crlKind(c), "", "", "", "", ""}
		if c.Shard != 0 {
			row[1] = strconv.Itoa(c.Shard)
		}
		if c.Number != 0 {
			row = append(row[:3], strconv.FormatInt(c.Number, 10), whenPtr(c.ThisUpdate), whenPtr(c.NextUpdate), strconv.Itoa(c.Entries), strconv.FormatInt(c.Octets, 10))
		}
		rows = append(rows, row)
	}
	return rows
}

func crlKind(c client.CRLStatus) string {
	if c.Delta {
		return "delta"
	}
	return "complete"
}

func whenPtr(t *time.Time) string {
	if t == nil {
		return ""
	}
	return when(*t)
}

// A crlChoice names one CRL.
type crlChoice struct {
	issuer string
	shard  int
	delta  bool
}

func (c crlChoice) String() string {
	s := "the CRL"
	if c.delta {
		s = "a delta CRL"
	}
	if c.shard != 0 {
		s += " of shard " + strconv.Itoa(c.shard)
	}
	return s + " of issuer " + c.issuer
}

func (c crlChoice) find(list []client.CRLStatus) (client.CRLStatus, error) {
	for _, l := range list {
		if (l.IssuerName == c.issuer || l.Issuer == c.issuer) && l.Shard == c.shard && l.Delta == c.delta {
			if l.Number == 0 {
				return l, fmt.Errorf("%s is not there yet", c)
			}
			return l, nil
		}
	}
	return client.CRLStatus{}, fmt.Errorf("there is no %s: see \"secsy-pki crl list\"", c.String()[len("the "):])
}

func newCRLShow(conn *connection) *cobra.Command {
	var (
		want          crlChoice
		asJSON, asPEM bool
	)
	cmd := &cobra.Command{
		Use:   "show ISSUER",
		Short: "Show one CRL",
		Example: `  secsy-pki crl show main
  secsy-pki crl show main --shard 7 --pem | openssl crl -noout -text`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef(cmd, "want the name or id of one issuer, got %d arguments", len(args))
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if asJSON && asPEM {
				return usagef(cmd, "--json and --pem can't both be had")
			}
			want.issuer = args[0]
			return conn.ask(cmd.Context(), verifyPatience, func(ctx context.Context, cl *client.Client) error {
				list, err := cl.ListCRLs(ctx)
				if err != nil {
					return err
				}
				c, err := want.find(list)
				switch {
				case err != nil:
					return err
				case asPEM:
					return printCRL(ctx, cl, c, cmd.OutOrStdout())
				case asJSON:
					return printJSON(cmd.OutOrStdout(), c)
				}
				return table(cmd.OutOrStdout(), crlDetails(c))
			})
		},
	}
	cmd.Flags().IntVar(&want.shard, "shard", 0, "that of this shard's `NUMBER`; 0: all of the issuer")
	cmd.Flags().BoolVar(&want.delta, "delta", false, "the delta to it")
	cmd.Flags().BoolVar(&asPEM, "pem", false, "print the CRL itself")
	jsonFlag(cmd, &asJSON)
	noFileCompletion(cmd, "shard")
	return cmd
}

func crlDetails(c client.CRLStatus) [][]string {
	rows := [][]string{{"Issuer:", c.IssuerName}, {"Issuer ID:", c.Issuer}}
	if c.Shard != 0 {
		rows = append(rows, []string{"Shard:", strconv.Itoa(c.Shard)})
	}
	rows = append(rows, []string{"Kind:", crlKind(c)}, []string{"Number:", strconv.FormatInt(c.Number, 10)})
	if c.Delta {
		rows = append(rows, []string{"Delta to:", strconv.FormatInt(c.Base, 10)})
	}
	return append(rows,
		[]string{"This update:", whenPtr(c.ThisUpdate)}, []string{"Next update:", whenPtr(c.NextUpdate)},
		[]string{"Entries:", strconv.Itoa(c.Entries)}, []string{"Octets:", strconv.FormatInt(c.Octets, 10)}, []string{"SHA-256:", c.SHA256},
		[]string{"URL:", c.URL}, []string{"Trouble:", c.Trouble})
}

// printCRL writes a CRL as PEM (RFC 7468 §9), however long it is.
func printCRL(ctx context.Context, cl *client.Client, c client.CRLStatus, w io.Writer) error {
	if _, err := io.WriteString(w, "-----BEGIN X509 CRL-----\n"); err != nil {
		return err
	}
	lines := &lineWriter{w: w}
	enc := base64.NewEncoder(base64.StdEncoding, lines)
	if err := cl.CRL(ctx, c.Path, enc); err != nil {
		return err
	}
	if err := enc.Close(); err != nil {
		return err
	}
	end := "-----END X509 CRL-----\n"
	if lines.column > 0 {
		end = "\n" + end
	}
	_, err := io.WriteString(w, end)
	return err
}

// A lineWriter breaks lines after 64 characters.
type lineWriter struct {
	w      io.Writer
	column int
}

func (l *lineWriter) Write(p []byte) (int, error) {
	const width = 64
	for done := 0; done < len(p); {
		n := min(width-l.column, len(p)-done)
		if _, err := l.w.Write(p[done : done+n]); err != nil {
			return done, err
		}
		done += n
		if l.column += n; l.column == width {
			if _, err := io.WriteString(l.w, "\n"); err != nil {
				return done, err
			}
			l.column = 0
		}
	}
	return len(p), nil
}
