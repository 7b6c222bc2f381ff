package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

func newIssuer() *cobra.Command {
	var conn connection
	cmd := group("issuer", "List the issuers", `  secsy-pki issuer list`)
	conn.flags(cmd)
	cmd.AddCommand(newIssuerList(&conn))
	return cmd
}

func newIssuerList(conn *connection) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the issuers, each with its last CRL",
		Example: `  secsy-pki issuer list
  secsy-pki issuer list --json | jq -r .pem`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return conn.ask(cmd.Context(), patience, func(ctx context.Context, cl *client.Client) error {
				list, err := cl.ListIssuers(ctx)
				if err != nil {
					return err
				}
				if !asJSON {
					return table(cmd.OutOrStdout(), issuerRows(list))
				}
				for _, i := range list {
					if err := printJSON(cmd.OutOrStdout(), i); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func issuerRows(list []client.Issuer) [][]string {
	rows := [][]string{{"NAME", "ACTIVE", "NOT AFTER", "KEY", "CRL UNTIL", "SUBJECT", "ID"}}
	for _, i := range list {
		active, crl := "no", ""
		if i.Active {
			active = "yes"
		}
		if i.CRL != nil {
			crl = when(i.CRL.NextUpdate)
		}
		rows = append(rows, []string{i.Name, active, when(i.NotAfter), i.KeyAlgorithm, crl, i.Subject, i.ID})
	}
	return rows
}
