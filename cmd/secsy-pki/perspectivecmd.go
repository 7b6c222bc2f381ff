package main

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/app"
	"github.com/secsy-pki/secsy-pki/config"
)

func newPerspective() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "perspective",
		Short: "Serve a remote perspective: look, from here, at what a CA elsewhere asks",
		Long: `Serve a remote perspective: look, from here, at what a CA elsewhere asks.

A CA that has names proven from several places (acme.validation.perspectives)
asks each of them by mutually authenticated TLS. A perspective has no keys of
the CA and no database. It has a configuration file of its own, which
"secsy-pki perspective reference" explains.

SIGTERM and SIGINT end it once the questions under way are answered; a second
one ends it at once. SIGHUP makes it read its file and its certificate again.`,
		Example: `  secsy-pki perspective --config /etc/secsy-pki/perspective.yaml
  secsy-pki perspective check --config /etc/secsy-pki/perspective.yaml
  secsy-pki perspective reference > perspective.yaml`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadPerspective(cmd, path)
			if err != nil {
				return err
			}
			return app.RunPerspective(cmd.Context(), app.PerspectiveOptions{
				Config: cfg, ConfigPath: path, Version: thisBuild().Version, Stderr: cmd.ErrOrStderr(), Reload: hangups(cmd.Context()),
			})
		},
	}
	perspectiveFlag(cmd, &path)
	cmd.AddCommand(newPerspectiveCheck(), newPerspectiveReference())
	return cmd
}

func newPerspectiveCheck() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say what is wrong with a perspective's configuration file",
		Long: `Say what is wrong with a perspective's configuration file, everything at once,
each with its line and column. If nothing is, open the certificates and the key
that it names. Nothing is asked of the network. Run it as the user that serves.`,
		Example: `  secsy-pki perspective check --config /etc/secsy-pki/perspective.yaml`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadPerspective(cmd, path)
			if err != nil {
				return err
			}
			if err := app.CheckPerspective(cfg, cmd.OutOrStdout()); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is right\n", path)
			return err
		},
	}
	perspectiveFlag(cmd, &path)
	return cmd
}

func newPerspectiveReference() *cobra.Command {
	return &cobra.Command{
		Use:     "reference",
		Short:   "Print every key of a perspective's configuration, explained",
		Example: `  secsy-pki perspective reference > perspective.yaml`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), config.PerspectiveReference())
			return err
		},
	}
}

func perspectiveFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "config", "", "configuration `FILE` of the perspective (required)")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
}

func loadPerspective(cmd *cobra.Command, path string) (*config.PerspectiveServer, error) {
	if path == "" {
		return nil, usagef(cmd, "--config is needed: the file of a perspective, which is not that of a CA")
	}
	cfg, err := config.LoadPerspectiveServer(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no configuration file %s: \"secsy-pki perspective reference\" shows what is in one", path)
	}
	return cfg, err
}
