package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

func newAudit() *cobra.Command {
	var conn connection
	cmd := group("audit", "List and verify the audit log", `  secsy-pki audit list --newest
  secsy-pki audit verify`)
	conn.flags(cmd)
	cmd.AddCommand(newAuditList(&conn), newAuditVerify(&conn))
	return cmd
}

func newAuditList(conn *connection) *cobra.Command {
	var (
		filter client.AuditFilter
		limit  int
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List entries of the audit log",
		Example: `  secsy-pki audit list --newest --limit 20
  secsy-pki audit list --action certificate.revoked
  secsy-pki audit list --after 1000 --limit 0 --json >> audit.jsonl`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkList(cmd, limit); err != nil {
				return err
			}
			if filter.After < 0 {
				return usagef(cmd, "--after %d: want the number of an entry", filter.After)
			}
			return conn.ask(cmd.Context(), patienceFor(limit), func(ctx context.Context, cl *client.Client) error {
				return listAudit(ctx, cmd, cl, filter, limit, asJSON)
			})
		},
	}
	f := cmd.Flags()
	f.Int64Var(&filter.After, "after", 0, "only entries after this `NUMBER`")
	f.BoolVar(&filter.Newest, "newest", false, "last first")
	f.StringVar(&filter.Action, "action", "", "only this `ACTION`")
	f.StringVar(&filter.Object, "object", "", "only this `OBJECT`, such as certificate/SERIAL")
	limitFlag(cmd, &limit)
	jsonFlag(cmd, &asJSON)
	noFileCompletion(cmd, "after", "action", "object")
	return cmd
}

func listAudit(ctx context.Context, cmd *cobra.Command, cl *client.Client, filter client.AuditFilter, limit int, asJSON bool) error {
	out := cmd.OutOrStdout()
	l := lister{limit: limit, cmd: cmd}
	for l.more() {
		filter.Limit = l.size()
		page, err := cl.ListAudit(ctx, filter)
		if err != nil {
			return err
		}
		filter.Cursor = page.Next
		first := l.took(len(page.Entries), page.Next)
		if asJSON {
			for _, e := range page.Entries {
				if err := printJSON(out, e); err != nil {
					return err
				}
			}
			continue
		}
		if err := table(out, auditRows(page.Entries, first)); err != nil {
			return err
		}
	}
	return nil
}

func auditRows(list []client.AuditEntry, head bool) [][]string {
	var rows [][]string
	if head {
		rows = append(rows, []string{"SEQ", "AT", "ACTION", "OBJECT", "ACTOR", "REMOTE"})
	}
	for _, e := range list {
		rows = append(rows, []string{strconv.FormatInt(e.Seq, 10), e.At, e.Action, e.Object, e.Actor, e.Remote})
	}
	return rows
}

// verifyPatience is for a chain of many millions of entries.
const verifyPatience = time.Hour

func newAuditVerify(conn *connection) *cobra.Command {
	var (
		expect string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Verify that no entry of the audit log was changed, dropped or put in",
		Long: `Verify that no entry of the audit log was changed, dropped or put in.

It prints the head of the chain. Keep it in another place, and give it to
--expect later: then even a chain made anew from the beginning is found out.
The exit code is 1 if something is wrong.`,
		Example: `  secsy-pki audit verify
  secsy-pki audit verify --expect 1234:9f86d081…`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return conn.ask(cmd.Context(), verifyPatience, func(ctx context.Context, cl *client.Client) error {
				v, err := cl.VerifyAudit(ctx, expect)
				if err != nil {
					return err
				}
				return showVerification(cmd.OutOrStdout(), v, asJSON)
			})
		},
	}
	cmd.Flags().StringVar(&expect, "expect", "", "the `HEAD` that an earlier verification printed, SEQ:HASH")
	jsonFlag(cmd, &asJSON)
	noFileCompletion(cmd, "expect")
	return cmd
}

func showVerification(w io.Writer, v client.Verification, asJSON bool) error {
	var err error
	if asJSON {
		err = printJSON(w, v)
	} else {
		_, err = fmt.Fprintf(w, "%d entries, head %s, %d waiting for their place\n", v.Entries, v.Head, v.Backlog)
		for _, f := range v.Findings {
			if err == nil {
				_, err = fmt.Fprintf(w, "entry %d: %s: %s\n", f.Seq, safe(f.Kind), safe(f.Detail))
			}
		}
	}
	if err == nil && !v.OK {
		return fmt.Errorf("the audit log is not intact: %d findings; keep the database as it is and compare it with a backup", v.FindingCount)
	}
	return err
}
