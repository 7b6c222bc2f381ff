package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/app"
	"github.com/secsy-pki/secsy-pki/config"
)

func newConfig() *cobra.Command {
	cmd := group("config", "Check a configuration file, or show what may be in one", `  secsy-pki config check --config /etc/secsy-pki/config.yaml
  secsy-pki config reference | less`)
	cmd.AddCommand(newConfigCheck(), newConfigDefaults(), newConfigReference())
	return cmd
}

func newConfigCheck() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say what is wrong with a configuration file",
		Long: `Say what is wrong with a configuration file, everything at once, each with
its line and column. If nothing is, open the certificates, keys and secrets that
it names, and see whether each profile can be issued. Nothing is made or signed,
and neither the database nor the network is asked, but for tokens that are behind
one. Run it as the user that serves.`,
		Example: `  secsy-pki config check --config /etc/secsy-pki/config.yaml && systemctl reload secsy-pki`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadForServe(path)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if err := app.Check(cmd.Context(), cfg, prompt, out); err != nil {
				return err
			}
			_, err = fmt.Fprintf(out, "%s is right\n", path)
			return err
		},
	}
	configFlag(cmd, &path)
	return cmd
}

func newConfigDefaults() *cobra.Command {
	return &cobra.Command{
		Use:     "print-defaults",
		Short:   "Print the configuration that an empty file means",
		Example: `  secsy-pki config print-defaults`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(config.Default().Marshal())
			return err
		},
	}
}

func newConfigReference() *cobra.Command {
	return &cobra.Command{
		Use:     "reference",
		Short:   "Print every key of the configuration, explained",
		Example: `  secsy-pki config reference > config.yaml`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), config.Reference())
			return err
		},
	}
}
