package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/app"
	"github.com/secsy-pki/secsy-pki/config"
)

// keyPatience bounds what a command has a token do. Some take minutes to make an
// RSA key.
const keyPatience = 10 * time.Minute

// The kinds of keys that can be made.
var keyAlgorithms = []string{"ecdsa-p256", "ecdsa-p384", "ecdsa-p521", "rsa-2048", "rsa-3072", "rsa-4096", "ed25519"}

// A keySource says which keys a command looks after.
type keySource struct{ config, uri, pinEnv string }

func (s *keySource) flags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&s.config, "config", "", "configuration `FILE` that says where the keys are (default \"secsy-data/config.yaml\")")
	f.StringVar(&s.uri, "keys", "", "PKCS#11 `URI` of a token, in place of a configuration (RFC 7512)")
	pinEnvFlag(cmd, &s.pinEnv)
	_ = cmd.MarkPersistentFlagFilename("config", "yaml", "yml")
	noFileCompletion(cmd, "keys")
}

// pinEnvFlag adds where the PIN of --keys is if its URI does not say.
func pinEnvFlag(cmd *cobra.Command, name *string) {
	f := cmd.PersistentFlags()
	f.StringVar(name, "pin-env", "", "`NAME` of an environment variable with the PIN for --keys; without it and a\npin-source in the URI, the terminal is asked")
	_ = cmd.RegisterFlagCompletionFunc("pin-env", cobra.NoFileCompletions)
}

// configuration reads, or makes up, what says where the keys are.
func (s *keySource) configuration(cmd *cobra.Command) (*config.Config, error) {
	if s.uri == "" {
		if s.pinEnv != "" {
			return nil, usagef(cmd, "--pin-env goes with --keys; a configuration says itself where the PIN is")
		}
		return load(cmp.Or(s.config, filepath.Join(defaultDir, "config.yaml")))
	}
	if s.config != "" {
		return nil, usagef(cmd, "--config and --keys can't both be had")
	}
	section, err := tokenOf(cmd, s.uri, s.pinEnv)
	if err != nil {
		return nil, err
	}
	cfg := config.Default()
	cfg.Keys.PKCS11 = section
	return cfg, cfg.Validate()
}

// tokenOf reads a token's URI.
func tokenOf(cmd *cobra.Command, uri, pinEnv string) (config.PKCS11, error) {
	var pin config.PIN
	if err := pin.Env.UnmarshalText([]byte(pinEnv)); err != nil {
		return config.PKCS11{}, usagef(cmd, "--pin-env: %w", err)
	}
	section, err := app.TokenOfURI(uri, pin)
	if err != nil {
		return section, usagef(cmd, "--keys: %w", err)
	}
	return section, nil
}

// open opens the keys for fn. The person who is asked for a PIN may take any
// time, the token may not.
func (s *keySource) open(cmd *cobra.Command, fn func(context.Context, *app.Keyring) error) (err error) {
	cfg, err := s.configuration(cmd)
	if err != nil {
		return err
	}
	ring, err := app.OpenKeyring(cmd.Context(), cfg, prompt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ring.Close()) }()
	ctx, cancel := context.WithTimeout(cmd.Context(), keyPatience)
	defer cancel()
	return fn(ctx, ring)
}

func newKeys() *cobra.Command {
	var from keySource
	cmd := group("keys", "Make, list and check private keys", `  secsy-pki keys list --config /etc/secsy-pki/config.yaml

  # A token that no configuration knows yet:
  secsy-pki keys check --keys 'pkcs11:token=secsy?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/secsy-pki/pin'`)
	from.flags(cmd)
	cmd.AddCommand(newKeysGenerate(&from), newKeysList(&from), newKeysCheck(&from), newKeysStoreCertificate(&from), newKeysDestroy(&from))
	return cmd
}

func labelFlag(cmd *cobra.Command, label *string) {
	cmd.Flags().StringVar(label, "label", "", "`LABEL` of the key, or a PKCS#11 URI of object, id or both (required)")
	noFileCompletion(cmd, "label")
}

func newKeysGenerate(from *keySource) *cobra.Command {
	var (
		label, algorithm string
		decrypt, asJSON  bool
	)
	cmd := &cobra.Command{
		Use:   "generate --label LABEL --algorithm KIND",
		Short: "Make a private key",
		Long: `Make a private key: on the token, which it never leaves, or as an encrypted
file. It can sign and do nothing else, unless --decrypt says so. The server may
be running.

Where several tokens are configured, the key is made on the first; carry it over
to the others by the means of their vendor.`,
		Example: `  secsy-pki keys generate --label issuing-2 --algorithm ecdsa-p384 --config /etc/secsy-pki/config.yaml
  secsy-pki keys generate --label scep --algorithm rsa-3072 --decrypt`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if label == "" {
				return usagef(cmd, "--label is needed")
			}
			if !slices.Contains(keyAlgorithms, algorithm) {
				return usagef(cmd, "--algorithm %q: want one of %s", algorithm, strings.Join(keyAlgorithms, ", "))
			}
			if decrypt && !strings.HasPrefix(algorithm, "rsa-") {
				return usagef(cmd, "--decrypt: only RSA keys can")
			}
			return from.open(cmd, func(ctx context.Context, ring *app.Keyring) error {
				k, err := ring.Generate(ctx, label, algorithm, decrypt)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(cmd.OutOrStdout(), k)
				}
				return printKey(cmd.OutOrStdout(), k)
			})
		},
	}
	labelFlag(cmd, &label)
	cmd.Flags().StringVar(&algorithm, "algorithm", "", "`KIND` of key (required): "+strings.Join(keyAlgorithms, ", "))
	cmd.Flags().BoolVar(&decrypt, "decrypt", false, "it may decrypt too; RSA on a token only")
	jsonFlag(cmd, &asJSON)
	choices(cmd, "algorithm", keyAlgorithms...)
	return cmd
}

func printKey(w io.Writer, k app.KeyInfo) error {
	rows := [][]string{{"Label:", k.Label}, {"Algorithm:", k.Algorithm}}
	if k.Token != "" {
		rows = append(rows, []string{"Token:", k.Token}, []string{"ID:", k.ID}, []string{"Use:", use(k)}, []string{"Protection:", protection(k)})
	} else {
		rows = append(rows, []string{"File:", k.File})
	}
	return table(w, append(rows, []string{"Key SHA-256:", k.SPKIHash}))
}

func use(k app.KeyInfo) string {
	var uses []string
	if k.Sign {
		uses = append(uses, "sign")
	}
	if k.Decrypt {
		uses = append(uses, "decrypt")
	}
	return strings.Join(uses, ",")
}

// protection is what keeps a key where it is.
func protection(k app.KeyInfo) string {
	switch {
	case k.File != "":
		return "encrypted file"
	case k.Doubt != "":
		return k.Doubt
	case k.Bound:
		return "never extractable"
	}
	return ""
}

func newKeysList(from *keySource) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the private keys",
		Long: `List the private keys: all on the tokens, or those in files. What can't be read
is an error, after the rest is listed.`,
		Example: `  secsy-pki keys list --config /etc/secsy-pki/config.yaml
  secsy-pki keys list --json | jq -r 'select(.never_extractable | not) | .label'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return from.open(cmd, func(ctx context.Context, ring *app.Keyring) error {
				list, err := ring.List(ctx)
				return errors.Join(printKeys(cmd.OutOrStdout(), list, asJSON), err)
			})
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func printKeys(w io.Writer, list []app.KeyInfo, asJSON bool) error {
	if !asJSON {
		return table(w, keyRows(list))
	}
	for _, k := range list {
		if err := printJSON(w, k); err != nil {
			return err
		}
	}
	return nil
}

func keyRows(list []app.KeyInfo) [][]string {
	rows := [][]string{{"LABEL", "ALGORITHM", "WHERE", "ID", "USE", "PROTECTION", "CERTIFICATE"}}
	for _, k := range list {
		where := k.Token
		if where == "" {
			where = k.File
		}
		rows = append(rows, []string{k.Label, k.Algorithm, where, k.ID, use(k), protection(k), k.Certificate})
	}
	return rows
}

func newKeysCheck(from *keySource) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "See what the tokens can do and whether all keys are there",
		Long: `See what the tokens can do, and whether the key of each issuer of the
configuration is there, belongs to its certificate and can't leave its token.
Nothing is signed: a CA's key signs nothing that is not on record.`,
		Example: `  secsy-pki keys check --config /etc/secsy-pki/config.yaml
  secsy-pki keys check --keys 'pkcs11:token=secsy?module-path=/usr/lib/softhsm/libsofthsm2.so' --pin-env PIN`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return from.open(cmd, func(ctx context.Context, ring *app.Keyring) error {
				if err := ring.Check(ctx, cmd.OutOrStdout()); err != nil {
					return err
				}
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "the keys are right; nothing was signed")
				return err
			})
		},
	}
}

func newKeysStoreCertificate(from *keySource) *cobra.Command {
	var label, file string
	cmd := &cobra.Command{
		Use:   "store-certificate --label LABEL --certificate FILE",
		Short: "Store a certificate beside its key on the token",
		Long: `Store a certificate beside its key on the token, in place of one that is there.
This program has no need of it; others that use the token may.`,
		Example: `  secsy-pki keys store-certificate --label issuing --certificate issuing.pem --config /etc/secsy-pki/config.yaml`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if label == "" || file == "" {
				return usagef(cmd, "both --label and --certificate are needed")
			}
			return from.open(cmd, func(ctx context.Context, ring *app.Keyring) error {
				cert, err := ring.StoreCertificate(ctx, label, file)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "stored the certificate of %s beside key %s\n", safe(cert.Subject.String()), label)
				return err
			})
		},
	}
	labelFlag(cmd, &label)
	cmd.Flags().StringVar(&file, "certificate", "", "PEM `FILE` of the certificate (required)")
	_ = cmd.MarkFlagFilename("certificate", "pem", "crt", "cer")
	return cmd
}

func newKeysDestroy(from *keySource) *cobra.Command {
	var (
		label string
		yes   bool
	)
	cmd := &cobra.Command{
		Use:   "destroy --label LABEL",
		Short: "Destroy a private key for good",
		Long: `Destroy a private key for good, on all tokens, with its public key and the
certificates beside it. That of a configured issuer is refused. On a terminal it
asks first; elsewhere it needs --yes.`,
		Example: `  secsy-pki keys destroy --label root --config /etc/secsy-pki/config.yaml
  secsy-pki keys destroy --label old --yes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if label == "" {
				return usagef(cmd, "--label is needed")
			}
			if !yes && !isTerminal(cmd.InOrStdin()) {
				return usagef(cmd, "nobody to ask whether to destroy: say --yes")
			}
			if !yes {
				warn(cmd.ErrOrStderr(), "key %s will be destroyed for good: what it signed can't be signed anew", safe(label))
				if err := confirm(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr(), "nothing was destroyed"); err != nil {
					return err
				}
			}
			return from.open(cmd, func(ctx context.Context, ring *app.Keyring) error {
				if err := ring.Destroy(ctx, label); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "key %s is destroyed\n", safe(label))
				return err
			})
		},
	}
	labelFlag(cmd, &label)
	cmd.Flags().BoolVar(&yes, "yes", false, "don't ask")
	return cmd
}
