package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/config"
)

func newACME() *cobra.Command {
	var conn connection
	cmd := group("acme", "Look after ACME accounts, the keys that let clients have one, and incidents", `  secsy-pki acme eab create --dns example.org --comment "team web"
  secsy-pki acme account list --status valid
  secsy-pki acme incident create lost-key --key 0123…ef --within 1h`)
	conn.flags(cmd)
	cmd.AddCommand(newEAB(&conn), newAccount(&conn), newIncident(&conn))
	return cmd
}

func newEAB(conn *connection) *cobra.Command {
	cmd := group("eab", "Make, list and revoke keys for external account binding", `  secsy-pki acme eab create --dns example.org --comment "team web"
  secsy-pki acme eab list
  secsy-pki acme eab revoke 5f0c…`)
	cmd.AddCommand(newEABCreate(conn), newEABList(conn), newEABRevoke(conn))
	return cmd
}

func newEABCreate(conn *connection) *cobra.Command {
	var (
		n        client.NewExternalKey
		validFor string
		asJSON   bool
	)
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a key that binds a new ACME account",
		Long: `Make a key that binds new ACME accounts to somebody you know (external account
binding, RFC 8555 section 7.3.4). Give both parts of it to that client, over a
channel that you trust. The HMAC key is printed this once and can't be had again;
whoever loses it gets another key.

The key is good for one account unless --uses says otherwise. With --dns or --ip
its accounts can order these names and addresses only, with --profile these
profiles only.`,
		Example: `  secsy-pki acme eab create --comment "web-1"
  secsy-pki acme eab create --dns example.org --profile tls-server --valid-for 30d
  secsy-pki acme eab create --directory devices --uses 0 --ip 10.0.0.0/8 --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n.MaxUses < 0 {
				return usagef(cmd, "--uses %d: want a number of accounts, or 0 for any number", n.MaxUses)
			}
			if validFor != "" {
				d, err := lengthOf(cmd, "valid-for", validFor)
				if err != nil {
					return err
				}
				until := time.Now().Add(d).UTC().Truncate(time.Second)
				n.Expires = &until
			}
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				k, err := cl.CreateExternalKey(ctx, n)
				if err != nil {
					return err
				}
				return showNewKey(cmd, k, asJSON)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&n.Directory, "directory", "", "for accounts in this ACME `DIRECTORY` (default \""+client.DefaultDirectory+"\")")
	f.IntVar(&n.MaxUses, "uses", 1, "`MANY` accounts that it can bind; 0: any number")
	f.StringVar(&validFor, "valid-for", "", "how `LONG` it can be used, such as 30d (default: until it is used up or revoked)")
	f.StringArrayVar(&n.DNS, "dns", nil, "`DOMAIN` that its accounts may order, with all below; may come several times")
	f.StringArrayVar(&n.IP, "ip", nil, "address or `RANGE` that its accounts may order; may come several times")
	f.StringArrayVar(&n.Profiles, "profile", nil, "`PROFILE` that its accounts may order; may come several times")
	f.StringVar(&n.Comment, "comment", "", "a `NOTE` on whom it is for")
	jsonFlag(cmd, &asJSON)
	noFileCompletion(cmd, "directory", "uses", "valid-for", "dns", "ip", "profile", "comment")
	return cmd
}

func showNewKey(cmd *cobra.Command, k client.ExternalKey, asJSON bool) error {
	if asJSON {
		return printJSON(cmd.OutOrStdout(), k)
	}
	rows := [][]string{
		{"Key ID:", k.KID},
		{"HMAC key:", k.MACKey},
		{"Directory:", k.Directory},
		{"Good for:", usesLeft(k)},
		{"Expires:", whenOr(k.Expires, "never")},
		{"May order:", scopeOf(k)},
	}
	if err := table(cmd.OutOrStdout(), rows); err != nil {
		return err
	}
	warn(cmd.ErrOrStderr(), "keep the HMAC key as the secret that it is: it is not shown again")
	return nil
}

func usesLeft(k client.ExternalKey) string {
	switch k.MaxUses {
	case 0:
		return "any number of accounts"
	case 1:
		return "1 account"
	}
	return strconv.Itoa(k.MaxUses) + " accounts"
}

func scopeOf(k client.ExternalKey) string {
	names := slices.Concat(k.DNS, k.IP)
	text := "all names"
	if len(names) > 0 {
		text = strings.Join(names, " ")
	}
	if len(k.Profiles) > 0 {
		text += "; profiles " + strings.Join(k.Profiles, " ")
	}
	return text
}

func whenOr(t *time.Time, otherwise string) string {
	if t == nil {
		return otherwise
	}
	return when(*t)
}

func newEABList(conn *connection) *cobra.Command {
	var (
		filter client.ExternalKeyFilter
		limit  int
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List keys for external account binding, newest first",
		Long: `List keys for external account binding, newest first, without the HMAC keys.

A key is usable, used (as often as it may be), expired or revoked.`,
		Example: `  secsy-pki acme eab list
  secsy-pki acme eab list --directory devices --limit 0 --json | jq -r 'select(.status == "usable").kid'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkList(cmd, limit); err != nil {
				return err
			}
			return conn.ask(cmd.Context(), patienceFor(limit), func(ctx context.Context, cl *client.Client) error {
				return listPages(cmd, limit, asJSON, externalKeyRows, func(size int, cursor string) ([]client.ExternalKey, string, error) {
					filter.Limit, filter.Cursor = size, cursor
					page, err := cl.ListExternalKeys(ctx, filter)
					return page.Keys, page.Next, err
				})
			})
		},
	}
	cmd.Flags().StringVar(&filter.Directory, "directory", "", "only those of this ACME `DIRECTORY`")
	limitFlag(cmd, &limit)
	jsonFlag(cmd, &asJSON)
	noFileCompletion(cmd, "directory")
	return cmd
}

func externalKeyRows(list []client.ExternalKey, head bool) [][]string {
	var rows [][]string
	if head {
		rows = append(rows, []string{"KEY ID", "STATUS", "USES", "EXPIRES", "DIRECTORY", "MAY ORDER", "COMMENT"})
	}
	for _, k := range list {
		uses := strconv.Itoa(k.Uses)
		if k.MaxUses > 0 {
			uses += " of " + strconv.Itoa(k.MaxUses)
		}
		rows = append(rows, []string{k.KID, k.Status, uses, whenOr(k.Expires, "never"), k.Directory, scopeOf(k), k.Comment})
	}
	return rows
}

// listPages prints a list page by page, up to a limit.
func listPages[T any](cmd *cobra.Command, limit int, asJSON bool, rows func(list []T, head bool) [][]string, ask func(size int, cursor string) ([]T, string, error)) error {
	out := cmd.OutOrStdout()
	l := lister{limit: limit, cmd: cmd}
	cursor := ""
	for l.more() {
		list, next, err := ask(l.size(), cursor)
		if err != nil {
			return err
		}
		cursor = next
		first := l.took(len(list), next)
		if asJSON {
			for _, v := range list {
				if err := printJSON(out, v); err != nil {
					return err
				}
			}
			continue
		}
		if err := table(out, rows(list, first)); err != nil {
			return err
		}
	}
	return nil
}

func newEABRevoke(conn *connection) *cobra.Command {
	var accounts, yes, asJSON bool
	cmd := &cobra.Command{
		Use:   "revoke KEY-ID",
		Short: "Make a key bind no more accounts",
		Long: `Make a key bind no more accounts. Those that it bound stay as they are; with
--revoke-accounts they are revoked, too, as "acme account revoke" does it. On a
terminal that is asked for first; elsewhere it needs --yes.`,
		Example: `  secsy-pki acme eab revoke 5f0c…
  secsy-pki acme eab revoke 5f0c… --revoke-accounts --yes`,
		Args:              idArg("key id"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if accounts {
				if err := sure(cmd, yes, "all ACME accounts that key %s bound will be revoked, for good", args[0]); err != nil {
					return err
				}
			}
			return conn.ask(cmd.Context(), verifyPatience, func(ctx context.Context, cl *client.Client) error {
				k, err := cl.RevokeExternalKey(ctx, args[0], accounts)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(cmd.OutOrStdout(), k)
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "key %s is revoked; it bound %d, of which %d were revoked now\n", k.KID, k.Uses, k.AccountsRevoked)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&accounts, "revoke-accounts", false, "revoke the accounts that it bound, too")
	cmd.Flags().BoolVar(&yes, "yes", false, "don't ask")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// sure asks a person whether to go on, unless somebody has said yes already.
func sure(cmd *cobra.Command, yes bool, format string, args ...any) error {
	if yes {
		return nil
	}
	if !isTerminal(cmd.InOrStdin()) {
		return usagef(cmd, "nobody to ask whether to revoke: say --yes")
	}
	warn(cmd.ErrOrStderr(), format, args...)
	return confirm(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr(), "nothing was revoked")
}

// lengthOf reads a length of time as the configuration has them, days included.
func lengthOf(cmd *cobra.Command, flag, value string) (time.Duration, error) {
	var d config.Duration
	if err := d.UnmarshalText([]byte(value)); err != nil || d.Std() < time.Second {
		return 0, usagef(cmd, "--%s %q: want a duration of a second or more, such as 12h or 30d", flag, value)
	}
	return d.Std(), nil
}

// idArg takes exactly one id, as the server makes them.
func idArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef(cmd, "want one %s, got %d arguments", what, len(args))
		}
		if len(args[0]) != 32 || strings.Trim(args[0], "0123456789abcdef") != "" {
			return usagef(cmd, "%q is no %s: want 32 hex digits", args[0], what)
		}
		return nil
	}
}

func newAccount(conn *connection) *cobra.Command {
	cmd := group("account", "List, show and revoke ACME accounts", `  secsy-pki acme account list --status valid
  secsy-pki acme account show 5f0c…
  secsy-pki acme account revoke 5f0c…`)
	cmd.AddCommand(newAccountList(conn), newAccountShow(conn), newAccountRevoke(conn))
	return cmd
}

func newAccountList(conn *connection) *cobra.Command {
	var (
		filter client.AccountFilter
		limit  int
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List ACME accounts, newest first",
		Long: `List ACME accounts, newest first. An account's id is the last part of its URL.

An account is valid, deactivated (by itself) or revoked (by an operator).`,
		Example: `  secsy-pki acme account list
  secsy-pki acme account list --key-id 5f0c… --status valid
  secsy-pki acme account list --limit 0 --json | jq -r .id`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkList(cmd, limit); err != nil {
				return err
			}
			if filter.Status != "" && !slices.Contains(client.AccountStatuses(), filter.Status) {
				return usagef(cmd, "--status %q: want one of %s", filter.Status, strings.Join(client.AccountStatuses(), ", "))
			}
			return conn.ask(cmd.Context(), patienceFor(limit), func(ctx context.Context, cl *client.Client) error {
				return listPages(cmd, limit, asJSON, accountRows, func(size int, cursor string) ([]client.Account, string, error) {
					filter.Limit, filter.Cursor = size, cursor
					page, err := cl.ListAccounts(ctx, filter)
					return page.Accounts, page.Next, err
				})
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&filter.Directory, "directory", "", "only those of this ACME `DIRECTORY`")
	f.StringVar(&filter.Status, "status", "", "only those of this `STATUS`: "+strings.Join(client.AccountStatuses(), ", "))
	f.StringVar(&filter.ExternalKey, "key-id", "", "only those that the key with this `ID` bound")
	limitFlag(cmd, &limit)
	jsonFlag(cmd, &asJSON)
	choices(cmd, "status", client.AccountStatuses()...)
	noFileCompletion(cmd, "directory", "key-id")
	return cmd
}

func accountRows(list []client.Account, head bool) [][]string {
	var rows [][]string
	if head {
		rows = append(rows, []string{"ID", "STATUS", "CREATED", "DIRECTORY", "BOUND BY", "CONTACTS"})
	}
	for _, a := range list {
		rows = append(rows, []string{a.ID, a.Status, when(a.CreatedAt), a.Directory, a.ExternalKey, strings.Join(a.Contacts, " ")})
	}
	return rows
}

func newAccountShow(conn *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "show ACCOUNT-ID",
		Short:             "Show one ACME account",
		Example:           `  secsy-pki acme account show 5f0c…`,
		Args:              idArg("account id"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				a, err := cl.Account(ctx, args[0])
				if err != nil {
					return err
				}
				return showAccount(cmd.OutOrStdout(), a, asJSON)
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func showAccount(w io.Writer, a client.Account, asJSON bool) error {
	if asJSON {
		return printJSON(w, a)
	}
	rows := [][]string{
		{"ID:", a.ID},
		{"Status:", a.Status},
	}
	if a.RevokedAt != nil {
		rows = append(rows, []string{"Revoked:", when(*a.RevokedAt)})
	}
	for _, c := range a.Contacts {
		rows = append(rows, []string{"Contact:", c})
	}
	rows = append(
		rows,
		[]string{"Directory:", a.Directory},
		[]string{"Created:", when(a.CreatedAt)},
		[]string{"Key thumbprint:", a.Thumbprint},
		[]string{"Bound by key:", a.ExternalKey},
	)
	if a.OpenOrders != nil {
		rows = append(rows, []string{"Open orders:", strconv.Itoa(*a.OpenOrders)})
	}
	return table(w, rows)
}

func newAccountRevoke(conn *connection) *cobra.Command {
	var yes, asJSON bool
	cmd := &cobra.Command{
		Use:   "revoke ACCOUNT-ID",
		Short: "Revoke one ACME account",
		Long: `Revoke one ACME account, for good: none of its requests is answered from then on,
its open orders end, and its key can't register again. Its certificates stay
valid: see "secsy-pki cert revoke". On a terminal it asks first; elsewhere it
needs --yes.`,
		Example: `  secsy-pki acme account revoke 5f0c…
  secsy-pki acme account revoke 5f0c… --yes`,
		Args:              idArg("account id"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := sure(cmd, yes, "ACME account %s will be revoked, for good", args[0]); err != nil {
				return err
			}
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				a, err := cl.RevokeAccount(ctx, args[0])
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(cmd.OutOrStdout(), a)
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "ACME account %s is revoked\n", a.ID)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "don't ask")
	jsonFlag(cmd, &asJSON)
	return cmd
}
