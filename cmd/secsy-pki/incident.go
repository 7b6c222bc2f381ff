package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

func newIncident(conn *connection) *cobra.Command {
	cmd := group("incident", "Have certificates replaced sooner", `  secsy-pki acme incident create 2026-05-bad-serials --serials serials.txt --within 24h
  secsy-pki acme incident show 2026-05-bad-serials
  secsy-pki acme incident end 2026-05-bad-serials`)
	cmd.Long = `An incident gives certificates another window to be replaced in, of which their
ACME clients learn when they next ask for renewal information (RFC 9773). It
revokes nothing.`
	cmd.AddCommand(newIncidentCreate(conn), newIncidentList(conn), newIncidentShow(conn), newIncidentEnd(conn))
	return cmd
}

func newIncidentCreate(conn *connection) *cobra.Command {
	var (
		req     client.IncidentRequest
		within  string
		serials string
		asJSON  bool
	)
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Open an incident",
		Long: `Open an incident. It selects the certificates that fulfil all conditions given.
Where its window ends later than a certificate's own, it changes nothing.

A command that was cut off can be given again: the same incident under the same
name is there once. --serials takes a serial number a line, in any form that
other tools print; what follows on the line, empty lines and lines that begin
with # don't count.`,
		Example: `  secsy-pki acme incident create bad-profile --profile tls-server --issued-after 2026-05-01T00:00:00Z --within 24h --dry-run
  secsy-pki acme incident create lost-key --key 0123…ef --within 1h --url https://status.example.org/1
  secsy-pki cert list --name example.org --limit 0 --json | jq -r .serial |
    secsy-pki acme incident create bad-names --serials - --within 5h`,
		Args:              incidentArg,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name, req.Listed = args[0], serials != ""
			if (within == "") == (req.WindowEnd == "") {
				return usagef(cmd, "say when by --within or by --end, and not by both")
			}
			if within != "" {
				d, err := lengthOf(cmd, "within", within)
				if err != nil {
					return err
				}
				req.Within = int64(d / time.Second)
			}
			return createIncident(cmd, conn, req, serials, asJSON)
		},
	}
	f := cmd.Flags()
	f.StringVar(&serials, "serials", "", "those whose serial numbers `FILE` lists; -: standard input")
	f.StringVar(&req.Issuer, "issuer", "", "those of this issuer, by `NAME` or id")
	f.StringVar(&req.Profile, "profile", "", "those of this profile, by `NAME`")
	f.StringVar(&req.SPKIHash, "key", "", "those of the public key with this SHA-256, in `HEX`")
	f.StringVar(&req.Account, "account", "", "those of this ACME account, by `ID` or URL")
	f.StringVar(&req.IssuedAfter, "issued-after", "", "those issued at this `TIME` or later, such as 2026-05-01T12:00:00Z")
	f.StringVar(&req.IssuedBefore, "issued-before", "", "those issued before this `TIME`")
	f.StringVar(&within, "within", "", "replace them within so `LONG` from now, such as 24h or 5d")
	f.StringVar(&req.WindowStart, "start", "", "replace them from this `TIME` on, if not now")
	f.StringVar(&req.WindowEnd, "end", "", "replace them before this `TIME`")
	f.StringVar(&req.URL, "url", "", "`URL` of a page that tells subscribers why")
	f.StringVar(&req.Note, "note", "", "`WHY`, for operators")
	f.BoolVar(&req.DryRun, "dry-run", false, "only count the certificates")
	jsonFlag(cmd, &asJSON)
	_ = cmd.MarkFlagFilename("serials")
	noFileCompletion(cmd, "issuer", "profile", "key", "account", "issued-after", "issued-before", "within", "start", "end", "url", "note")
	return cmd
}

func createIncident(cmd *cobra.Command, conn *connection, req client.IncidentRequest, file string, asJSON bool) error {
	var list []string
	if file != "" {
		var err error
		// All of it is read before anything is done: a typing error in line 9000
		// is found before the first certificate is in the incident.
		if list, err = readSerials(cmd.InOrStdin(), file); err != nil {
			return err
		}
	}
	return conn.ask(cmd.Context(), verifyPatience, func(ctx context.Context, cl *client.Client) error {
		i, err := cl.CreateIncident(ctx, req)
		if err != nil {
			return err
		}
		if i.Existed {
			warn(cmd.ErrOrStderr(), "incident %s was there already", i.Name)
		}
		if len(list) > 0 && !req.DryRun {
			if err := addSerials(ctx, cmd, cl, req.Name, list); err != nil {
				return err
			}
			if i, err = cl.Incident(ctx, req.Name); err != nil {
				return err
			}
		}
		if req.DryRun && file != "" {
			warn(cmd.ErrOrStderr(), "%s lists %d serial numbers; which of them are ours is known once they are in an incident", file, len(list))
		}
		if n := i.Selected; n != nil && n.Certificates == 0 && (file == "" || !req.DryRun) {
			warn(cmd.ErrOrStderr(), "no certificate that could be replaced is selected: are the conditions right?")
		}
		return showIncident(cmd.OutOrStdout(), i, asJSON)
	})
}

// addSerials goes on where an earlier run was cut off: what is listed already
// is listed once.
func addSerials(ctx context.Context, cmd *cobra.Command, cl *client.Client, name string, list []string) error {
	unknown := 0
	for done := 0; done < len(list); done += client.MaxSerials {
		some := list[done:min(done+client.MaxSerials, len(list))]
		out, err := cl.AddIncidentSerials(ctx, name, some)
		if err != nil {
			return fmt.Errorf("after %d of %d serial numbers (give the same command again to go on): %w", done, len(list), err)
		}
		for _, u := range out.Unknown {
			if unknown++; unknown <= 10 {
				warn(cmd.ErrOrStderr(), "%s is not the serial number of a certificate that was issued here", u)
			}
		}
	}
	if unknown > 10 {
		warn(cmd.ErrOrStderr(), "so are %d others", unknown-10)
	}
	return nil
}

const maxSerials = 1_000_000

// readSerials reads a serial number a line.
func readSerials(stdin io.Reader, file string) ([]string, error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	var list []string
	sc := bufio.NewScanner(in)
	for n := 1; sc.Scan(); n++ {
		fields := strings.FieldsFunc(sc.Text(), func(r rune) bool { return r == ' ' || r == '\t' || r == ',' || r == ';' || r == '\r' })
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		serial, err := parseSerial(strings.Trim(fields[0], `"`))
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", file, n, err)
		}
		if list = append(list, serial); len(list) > maxSerials {
			return nil, fmt.Errorf("%s lists more than %d serial numbers; split it", file, maxSerials)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	if len(list) == 0 {
		return nil, errors.New(file + " lists no serial number")
	}
	return list, nil
}

func incidentArg(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef(cmd, "want the name of one incident, got %d arguments", len(args))
	}
	return nil
}

func showIncident(w io.Writer, i client.Incident, asJSON bool) error {
	if asJSON {
		return printJSON(w, i)
	}
	rows := [][]string{
		{"Incident:", i.Name},
		{"Status:", i.Status},
		{"Window:", when(i.WindowStart) + " to " + when(i.WindowEnd)},
	}
	for _, c := range conditions(i) {
		rows = append(rows, []string{"Selects:", c})
	}
	if n := i.Selected; n != nil {
		rows = append(rows, []string{"Certificates:", counted(*n)})
	}
	for _, r := range [][]string{{"Explanation:", i.URL}, {"Note:", i.Note}} {
		if r[1] != "" {
			rows = append(rows, r)
		}
	}
	if i.Status != client.DryRun {
		rows = append(rows, []string{"Created:", when(i.CreatedAt) + " by " + i.CreatedBy})
	}
	if i.EndedAt != nil {
		rows = append(rows, []string{"Ended:", when(*i.EndedAt)})
	}
	return table(w, rows)
}

func counted(n client.Selected) string {
	s := fmt.Sprintf("%d: %d replaced, %d not", n.Certificates, n.Replaced, n.Certificates-n.Replaced)
	if n.AtLeast {
		s = "at least " + s + " (the newest were counted)"
	}
	return s
}

func conditions(i client.Incident) []string {
	var out []string
	for _, c := range [][2]string{{"issuer", i.Issuer}, {"profile", i.Profile}, {"key", i.SPKIHash}, {"requester", i.Requester}} {
		if c[1] != "" {
			out = append(out, c[0]+" "+c[1])
		}
	}
	if i.Listed {
		out = append(out, fmt.Sprintf("%d serial numbers", i.Serials))
	}
	if i.IssuedAfter != nil {
		out = append(out, "issued from "+when(*i.IssuedAfter))
	}
	if i.IssuedBefore != nil {
		out = append(out, "issued before "+when(*i.IssuedBefore))
	}
	return out
}

func newIncidentList(conn *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List incidents, those that are open first",
		Example: `  secsy-pki acme incident list`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				list, err := cl.ListIncidents(ctx)
				if err != nil {
					return err
				}
				rows := [][]string{{"NAME", "STATUS", "WINDOW START", "WINDOW END", "SELECTS"}}
				for _, i := range list {
					if asJSON {
						if err := printJSON(cmd.OutOrStdout(), i); err != nil {
							return err
						}
						continue
					}
					rows = append(rows, []string{i.Name, i.Status, when(i.WindowStart), when(i.WindowEnd), strings.Join(conditions(i), ", ")})
				}
				if asJSON {
					return nil
				}
				return table(cmd.OutOrStdout(), rows)
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newIncidentShow(conn *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "show NAME",
		Short:             "Show an incident, and how many certificates are still to be replaced",
		Example:           `  secsy-pki acme incident show lost-key`,
		Args:              incidentArg,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				i, err := cl.Incident(ctx, args[0])
				if err != nil {
					return err
				}
				return showIncident(cmd.OutOrStdout(), i, asJSON)
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newIncidentEnd(conn *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "end NAME",
		Short: "End an incident, for good",
		Long: `End an incident, for good: its certificates have their own windows again, its
list of serial numbers is forgotten, and its name is not used again.`,
		Example:           `  secsy-pki acme incident end lost-key`,
		Args:              incidentArg,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return conn.ask(cmd.Context(), verifyPatience, func(ctx context.Context, cl *client.Client) error {
				i, err := cl.EndIncident(ctx, args[0])
				if err != nil {
					return err
				}
				return showIncident(cmd.OutOrStdout(), i, asJSON)
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}
