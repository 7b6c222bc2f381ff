package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

func newEnrol() *cobra.Command {
	var conn connection
	cmd := group("enrol", "Look after devices that enrol: users, challenges and requests", `  secsy-pki enrol user add gateway-7 --endpoint devices
  secsy-pki enrol challenge create --endpoint devices --name common-name:pump-7
  secsy-pki enrol request list --state waiting`)
	conn.flags(cmd)
	user := group("user", "Add, list, disable and remove users, who enrol by password", `  secsy-pki enrol user add gateway-7 --endpoint devices
  secsy-pki enrol user disable gateway-7`)
	user.AddCommand(newUserAdd(&conn), newUserList(&conn), newUserPassword(&conn),
		newUserChange(&conn, "disable", "Keep a user from enrolling", "is disabled", func(ctx context.Context, cl *client.Client, name string) error {
			return cl.DisableUser(ctx, name, false)
		}),
		newUserChange(&conn, "enable", "Let a user enrol again", "is enabled", func(ctx context.Context, cl *client.Client, name string) error {
			return cl.DisableUser(ctx, name, true)
		}),
		newUserChange(&conn, "remove", "Forget a user", "is removed", func(ctx context.Context, cl *client.Client, name string) error { return cl.RemoveUser(ctx, name) }))
	challenge := group("challenge", "Make, list and revoke secrets by which devices enrol", `  secsy-pki enrol challenge create --endpoint devices --name common-name:pump-7
  secsy-pki enrol challenge list`)
	challenge.AddCommand(newChallengeCreate(&conn), newChallengeList(&conn), newChallengeRevoke(&conn))
	request := group("request", "List requests, and approve or deny those that wait", `  secsy-pki enrol request list --state waiting
  secsy-pki enrol request approve 5f0c…`)
	request.AddCommand(newRequestList(&conn), newRequestShow(&conn),
		newRequestDecide(&conn, "approve", "Approve a request that waits: it is issued when its device comes back", true),
		newRequestDecide(&conn, "deny", "Deny a request that waits", false))
	cmd.AddCommand(user, challenge, request)
	return cmd
}

func userArg(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return usagef(cmd, "want the name of one user")
	}
	return nil
}

// newPassword reads one from standard input, or asks for it.
func newPassword(cmd *cobra.Command, name string, fromStdin bool) (string, error) {
	if !fromStdin {
		b, err := prompt(cmd.Context(), "new password of "+name)
		return string(b), err
	}
	line, err := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), 1024)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("reading the password: %w", err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}

// passwordFlags say where a password comes from.
func passwordFlags(cmd *cobra.Command, hash *string, fromStdin *bool) {
	cmd.Flags().BoolVar(fromStdin, "password-stdin", false, "read the password from standard input instead of the terminal")
	cmd.Flags().StringVar(hash, "hash", "", "the password's `HASH`, made elsewhere by argon2id or bcrypt")
	cmd.MarkFlagsMutuallyExclusive("password-stdin", "hash")
	noFileCompletion(cmd, "hash")
}

func newUserAdd(conn *connection) *cobra.Command {
	var (
		n                 client.NewUser
		fromStdin, asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "Add a user, who enrols by password",
		Long: `Add a user, who enrols devices by name and password. The password has 12 to 72
octets; it is asked for on the terminal, or read with --password-stdin.`,
		Example: `  secsy-pki enrol user add gateway-7 --endpoint devices --comment "hall 3"
  pwgen -s 24 1 | secsy-pki enrol user add gateway-7 --password-stdin`,
		Args:              userArg,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			n.Name = args[0]
			if n.PasswordHash == "" {
				if n.Password, err = newPassword(cmd, n.Name, fromStdin); err != nil {
					return err
				}
			}
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				u, err := cl.AddUser(ctx, n)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(cmd.OutOrStdout(), u)
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "user %s is added\n", safe(u.Name))
				return err
			})
		},
	}
	passwordFlags(cmd, &n.PasswordHash, &fromStdin)
	cmd.Flags().StringArrayVar(&n.Endpoints, "endpoint", nil, "`ENDPOINT` that the user may enrol at; may come several times (default: all)")
	cmd.Flags().StringVar(&n.Comment, "comment", "", "a `NOTE` on whom it is for")
	jsonFlag(cmd, &asJSON)
	noFileCompletion(cmd, "endpoint", "comment")
	return cmd
}

func newUserPassword(conn *connection) *cobra.Command {
	var (
		n         client.NewPassword
		fromStdin bool
	)
	cmd := &cobra.Command{
		Use:   "password NAME",
		Short: "Set a user's password",
		Example: `  secsy-pki enrol user password gateway-7
  secsy-pki enrol user password gateway-7 --hash '$2b$12$…'`,
		Args:              userArg,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			n.Name = args[0]
			if n.PasswordHash == "" {
				if n.Password, err = newPassword(cmd, n.Name, fromStdin); err != nil {
					return err
				}
			}
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				if err := cl.SetPassword(ctx, n); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "user %s has the new password\n", safe(n.Name))
				return err
			})
		},
	}
	passwordFlags(cmd, &n.PasswordHash, &fromStdin)
	return cmd
}

func newUserChange(conn *connection, verb, short, done string, do func(ctx context.Context, cl *client.Client, name string) error) *cobra.Command {
	return &cobra.Command{
		Use:               verb + " NAME",
		Short:             short,
		Example:           "  secsy-pki enrol user " + verb + " gateway-7",
		Args:              userArg,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				if err := do(ctx, cl, args[0]); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "user %s %s\n", safe(args[0]), done)
				return err
			})
		},
	}
}

// listOf is a command that lists page by page.
func listOf[T any](conn *connection, cmd *cobra.Command, rows func(list []T, head bool) [][]string, page func(ctx context.Context, cl *client.Client, size int, cursor string) ([]T, string, error)) *cobra.Command {
	var (
		limit  int
		asJSON bool
	)
	cmd.Use, cmd.Args = "list", noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkList(cmd, limit); err != nil {
			return err
		}
		return conn.ask(cmd.Context(), patienceFor(limit), func(ctx context.Context, cl *client.Client) error {
			return listPages(cmd, limit, asJSON, rows, func(size int, cursor string) ([]T, string, error) { return page(ctx, cl, size, cursor) })
		})
	}
	limitFlag(cmd, &limit)
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newUserList(conn *connection) *cobra.Command {
	return listOf(conn, &cobra.Command{Short: "List users by name", Example: "  secsy-pki enrol user list"},
		func(list []client.User, head bool) (rows [][]string) {
			if head {
				rows = append(rows, []string{"NAME", "STATUS", "ENDPOINTS", "CREATED", "COMMENT"})
			}
			for _, u := range list {
				status, at := "enabled", "all"
				if u.DisabledAt != nil {
					status = "disabled"
				}
				if len(u.Endpoints) > 0 {
					at = strings.Join(u.Endpoints, " ")
				}
				rows = append(rows, []string{u.Name, status, at, when(u.CreatedAt), u.Comment})
			}
			return rows
		},
		func(ctx context.Context, cl *client.Client, size int, cursor string) ([]client.User, string, error) {
			p, err := cl.ListUsers(ctx, size, cursor)
			return p.Users, p.Next, err
		})
}

func newChallengeCreate(conn *connection) *cobra.Command {
	var (
		n        client.NewChallenge
		validFor string
		asJSON   bool
	)
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a secret by which a device enrols",
		Long: `Make a secret by which a device enrols (the challengePassword of SCEP). It is
printed this once and can't be had again. With --name it is for these names,
exactly, whatever the endpoint's rules allow; without, for what they allow. It is
good for one certificate unless --uses says otherwise.`,
		Example: `  secsy-pki enrol challenge create --endpoint devices --name common-name:pump-7
  secsy-pki enrol challenge create --endpoint devices --subject hall-3 --uses 20 --valid-for 7d`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := lengthOf(cmd, "valid-for", validFor)
			if err != nil {
				return err
			}
			n.ValidSeconds = int64(d / time.Second)
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				c, err := cl.CreateChallenge(ctx, n)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(cmd.OutOrStdout(), c)
				}
				rows := [][]string{{"ID:", c.ID}, {"Challenge:", c.Secret}, {"Endpoint:", c.Endpoint}, {"Names:", strings.Join(c.Names, " ")}, {"Expires:", whenOr(c.Expires, "-")}}
				if err := table(cmd.OutOrStdout(), rows); err != nil {
					return err
				}
				warn(cmd.ErrOrStderr(), "keep the challenge as the secret that it is: it is not shown again")
				return nil
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&n.Endpoint, "endpoint", "", "the `ENDPOINT` that it is for")
	f.StringArrayVar(&n.Names, "name", nil, "`TYPE:VALUE` that the certificate is to have; may come several times")
	f.StringVar(&n.Subject, "subject", "", "`TEXT` that rules put in the place of {name}")
	f.IntVar(&n.MaxUses, "uses", 1, "`MANY` requests that it is good for; 0: any number")
	f.StringVar(&validFor, "valid-for", "1d", "how `LONG` it can be used")
	f.StringVar(&n.Comment, "comment", "", "a `NOTE` on whom it is for")
	_ = cmd.MarkFlagRequired("endpoint")
	jsonFlag(cmd, &asJSON)
	noFileCompletion(cmd, "endpoint", "name", "subject", "uses", "valid-for", "comment")
	return cmd
}

func newChallengeList(conn *connection) *cobra.Command {
	return listOf(conn, &cobra.Command{Short: "List challenges, newest first, without their secrets", Example: "  secsy-pki enrol challenge list"},
		func(list []client.Challenge, head bool) (rows [][]string) {
			if head {
				rows = append(rows, []string{"ID", "STATUS", "USES", "EXPIRES", "ENDPOINT", "NAMES", "COMMENT"})
			}
			for _, c := range list {
				uses := fmt.Sprint(c.Uses)
				if c.MaxUses > 0 {
					uses = fmt.Sprintf("%d of %d", c.Uses, c.MaxUses)
				}
				rows = append(rows, []string{c.ID, c.Status, uses, whenOr(c.Expires, "-"), c.Endpoint, strings.Join(c.Names, " "), c.Comment})
			}
			return rows
		},
		func(ctx context.Context, cl *client.Client, size int, cursor string) ([]client.Challenge, string, error) {
			p, err := cl.ListChallenges(ctx, size, cursor)
			return p.Challenges, p.Next, err
		})
}

func newChallengeRevoke(conn *connection) *cobra.Command {
	return &cobra.Command{
		Use:               "revoke CHALLENGE-ID",
		Short:             "Make a challenge good for nothing more",
		Example:           "  secsy-pki enrol challenge revoke 5f0c…",
		Args:              idArg("challenge id"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				if err := cl.RevokeChallenge(ctx, args[0]); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "challenge %s is revoked\n", args[0])
				return err
			})
		},
	}
}

func newRequestList(conn *connection) *cobra.Command {
	var state string
	cmd := listOf(conn, &cobra.Command{Short: "List requests of devices, newest first", Example: "  secsy-pki enrol request list --state waiting"},
		func(list []client.Request, head bool) (rows [][]string) {
			if head {
				rows = append(rows, []string{"ID", "STATE", "CREATED", "ENDPOINT", "BY", "NAMES", "SERIAL"})
			}
			for _, q := range list {
				rows = append(rows, []string{q.ID, q.State, when(q.CreatedAt), q.Endpoint, q.Principal, strings.Join(q.Names, " "), q.Serial})
			}
			return rows
		},
		func(ctx context.Context, cl *client.Client, size int, cursor string) ([]client.Request, string, error) {
			p, err := cl.ListRequests(ctx, state, size, cursor)
			return p.Requests, p.Next, err
		})
	cmd.Flags().StringVar(&state, "state", "", "only those of this `STATE`: "+strings.Join(client.RequestStates(), ", "))
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(client.RequestStates(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func newRequestShow(conn *connection) *cobra.Command {
	return &cobra.Command{
		Use:               "show REQUEST-ID",
		Short:             "Show a request as JSON, its CSR included",
		Example:           "  secsy-pki enrol request show 5f0c… | jq -r .csr | base64 -d | openssl req -inform der -text",
		Args:              idArg("request id"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				q, err := cl.Request(ctx, args[0])
				if err != nil {
					return err
				}
				return printJSON(cmd.OutOrStdout(), q)
			})
		},
	}
}

func newRequestDecide(conn *connection, verb, short string, approve bool) *cobra.Command {
	return &cobra.Command{
		Use:               verb + " REQUEST-ID",
		Short:             short,
		Example:           "  secsy-pki enrol request " + verb + " 5f0c…",
		Args:              idArg("request id"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				q, err := cl.DecideRequest(ctx, args[0], approve)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "request %s is %s\n", q.ID, q.State)
				return err
			})
		},
	}
}
