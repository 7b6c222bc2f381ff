package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/app"
	"github.com/secsy-pki/secsy-pki/config"
)

// defaultDir is where a CA is made, and looked for, if nobody says otherwise.
const defaultDir = "secsy-data"

// postgresEnv is the environment variable of the database's URL, which holds a
// password and so never comes as an argument.
const postgresEnv = "SECSY_POSTGRES_URL"

func newServe() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve until stopped",
		Long: `Serve until stopped.

SIGTERM and SIGINT end it once the requests under way are answered; a second
one ends it at once. SIGHUP makes it read the configuration again.

Exit codes: 0 when it was stopped, 1 for an error, 2 for a mistake in the command
line, 3 when a token refused its PIN. Then it must not be started again before
somebody has looked: tokens lock themselves.`,
		Example: `  secsy-pki serve --config /etc/secsy-pki/config.yaml`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := loadForServe(path)
			if err != nil {
				return err
			}
			return app.Run(cmd.Context(), app.Options{
				Config:     cfg,
				ConfigPath: path,
				Version:    thisBuild().Version,
				Stdout:     cmd.OutOrStdout(),
				Stderr:     cmd.ErrOrStderr(),
				Reload:     hangups(cmd.Context()),
				Prompt:     prompt,
			})
		},
	}
	configFlag(cmd, &path)
	return cmd
}

func newMigrate() *cobra.Command {
	var path string
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database to this version's schema",
		Long: `Bring the database to this version's schema.

It only goes forward, and the version before keeps working on the new schema:
migrate first, then restart one replica after the other.`,
		Example: `  secsy-pki migrate --config /etc/secsy-pki/config.yaml`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := load(path)
			if err != nil {
				return err
			}
			return app.Migrate(cmd.Context(), cfg, cmd.OutOrStdout())
		},
	}
	configFlag(cmd, &path)
	return cmd
}

func newQuickstart() *cobra.Command {
	opts := app.QuickstartOptions{}
	var postgresFile string
	cmd := &cobra.Command{
		Use:   "quickstart",
		Short: "Make a CA to try things with, and serve it",
		Long: `Make a CA to try things with, and serve it.

The first run makes a root, an issuing CA and a configuration file in the
folder. Later runs serve what is there; what flags say then is for that run
only. Names may resolve to private addresses.`,
		Example: `  secsy-pki quickstart
  secsy-pki quickstart --dir /tmp/ca --listen-https 127.0.0.1:14000 --http01-port 5002 --dns 127.0.0.1:8053

  # With PostgreSQL, whose URL holds a password and is never an argument:
  SECSY_POSTGRES_URL=postgres://… secsy-pki quickstart`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkQuickstart(cmd, opts); err != nil {
				return err
			}
			opts.PostgresURL = postgresSource(postgresFile)
			opts.Program = os.Args[0]
			opts.Version = thisBuild().Version
			opts.Stdout, opts.Stderr = cmd.OutOrStdout(), cmd.ErrOrStderr()
			opts.Reload = hangups(cmd.Context())
			return app.Quickstart(cmd.Context(), opts)
		},
	}
	f := cmd.Flags()
	f.StringVar(&opts.Dir, "dir", defaultDir, "`FOLDER` of the CA")
	f.StringVar(&opts.ListenHTTP, "listen-http", "", "`HOST:PORT` for OCSP and CRLs (at first 127.0.0.1:8080)")
	f.StringVar(&opts.ListenHTTPS, "listen-https", "", "`HOST:PORT` for ACME (at first 127.0.0.1:8443)")
	f.StringVar(&opts.ListenOperator, "listen-operator", "", "`HOST:PORT` for metrics and health (at first 127.0.0.1:8081)")
	f.StringVar(&opts.ExternalHost, "external-host", "", "`HOST` by which clients reach this machine (at first localhost)")
	f.IntVar(&opts.HTTP01Port, "http01-port", 0, "`PORT` that http-01 connects to (at first 5002)")
	f.IntVar(&opts.TLSALPN01Port, "tls-alpn01-port", 0, "`PORT` that tls-alpn-01 connects to (at first 5001)")
	f.StringVar(&opts.DNS, "dns", "", "`HOST:PORT` of the resolver (at first the system's)")
	f.StringVar(&postgresFile, "postgres-url-file", "", "`FILE` with the URL of a PostgreSQL database, instead of SQLite; or set "+postgresEnv)
	noFileCompletion(cmd, "listen-http", "listen-https", "listen-operator", "external-host", "http01-port", "tls-alpn01-port", "dns")
	return cmd
}

func checkQuickstart(cmd *cobra.Command, opts app.QuickstartOptions) error {
	listen := map[string]string{"listen-http": opts.ListenHTTP, "listen-https": opts.ListenHTTPS, "listen-operator": opts.ListenOperator}
	if err := checkListen(cmd, listen); err != nil {
		return err
	}
	if err := new(config.HostPort).UnmarshalText([]byte(opts.DNS)); err != nil {
		return usagef(cmd, "--dns %q: %w", opts.DNS, err)
	}
	if err := new(config.Host).UnmarshalText([]byte(opts.ExternalHost)); err != nil && opts.ExternalHost != "" {
		return usagef(cmd, "--external-host %q: %w", opts.ExternalHost, err)
	}
	if opts.HTTP01Port < 0 || opts.HTTP01Port > 65535 {
		return usagef(cmd, "--http01-port %d: want 1 to 65535", opts.HTTP01Port)
	}
	if opts.TLSALPN01Port < 0 || opts.TLSALPN01Port > 65535 {
		return usagef(cmd, "--tls-alpn01-port %d: want 1 to 65535", opts.TLSALPN01Port)
	}
	return nil
}

// postgresSource says where the database's URL comes from; the flag wins. The
// result may be of no source.
func postgresSource(file string) config.Secret {
	switch {
	case file != "":
		return config.Secret{File: absolute(file)}
	case os.Getenv(postgresEnv) != "":
		return config.Secret{Env: postgresEnv}
	}
	return config.Secret{}
}

// absolute makes a path of the command line, which starts at the working
// folder, one for a configuration file, where it would start at that file.
func absolute(path string) config.Path {
	abs, err := filepath.Abs(path)
	if err != nil {
		return config.Path(path)
	}
	return config.Path(abs)
}

// initFlags are what init is told.
type initFlags struct {
	dir, organization, host, policy string
	country                         string
	listenHTTP, listenHTTPS         string
	listenOperator                  string
	rootAlg, issuingAlg             string
	rootValidity, issuingValidity   durationFlag
	passphraseFile, postgresFile    string
	rootCRL, rootCert               string
	keysURI, keyPrefix, pinEnv      string
	resolver                        string
	storeCertificates               bool
}

func newInit() *cobra.Command {
	in := initFlags{rootValidity: days(7300), issuingValidity: days(3650)}
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Make a CA to keep: root, issuing CA, keys and configuration file",
		Long: `Make a CA to keep: root, issuing CA, keys and configuration file.

The folder must be empty, or not be there yet. Keys are encrypted with the
passphrase of --passphrase-file; without it, one is made and stored in the
folder, readable by its owner only.

With --keys, the keys of root and issuing CA are made on an HSM, which they never
leave, with the labels root and issuing. The passphrase is then for the key of
the https listener alone. If anything fails, they are destroyed again.`,
		Example: `  secsy-pki init --organization "Example Org" --external-host pki.example.org
  secsy-pki init --dir /var/lib/secsy-pki --organization "Example Org" --external-host pki.example.org \
    --root-key-algorithm rsa-4096 --passphrase-file /etc/secsy-pki/passphrase

  # Keys on an HSM, by PKCS#11:
  secsy-pki init --dir /etc/secsy-pki/ca --organization "Example Org" --external-host pki.example.org \
    --keys 'pkcs11:token=secsy?module-path=/usr/lib/softhsm/libsofthsm2.so&pin-source=file:/etc/secsy-pki/pin'

  # Under the limits of the CA/Browser Forum:
  secsy-pki init --policy public --organization "Example Org" --country DE --external-host pki.example.org \
    --root-crl-url http://pki.example.org/root.crl --root-cert-url http://pki.example.org/root.cer`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := in.config(cmd)
			if err != nil {
				return err
			}
			return app.Init(cmd.Context(), app.InitOptions{
				Dir:                 in.dir,
				Config:              cfg,
				Organization:        in.organization,
				Country:             in.country,
				RootKeyAlgorithm:    in.rootAlg,
				IssuingKeyAlgorithm: in.issuingAlg,
				RootValidity:        in.rootValidity.Std(),
				IssuingValidity:     in.issuingValidity.Std(),
				RootCRLURL:          in.rootCRL,
				RootCertURL:         in.rootCert,
				Stdout:              cmd.OutOrStdout(),
				KeyPrefix:           in.keyPrefix,
				StoreCertificates:   in.storeCertificates,
				Prompt:              prompt,
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&in.dir, "dir", defaultDir, "`FOLDER` to make the CA in")
	f.StringVar(&in.organization, "organization", "", "`NAME` of the organization in the CA certificates (required)")
	f.StringVar(&in.country, "country", "", "`CC`, the organization's country by its two letters (required under policy public)")
	f.StringVar(&in.host, "external-host", "", "`HOST` by which the world reaches the CA; it goes into certificates (required)")
	f.StringVar(&in.listenHTTP, "listen-http", ":80", "`HOST:PORT` for OCSP and CRLs")
	f.StringVar(&in.listenHTTPS, "listen-https", ":443", "`HOST:PORT` for ACME")
	f.StringVar(&in.listenOperator, "listen-operator", "127.0.0.1:8081", "`HOST:PORT` for metrics and health")
	f.StringVar(&in.policy, "policy", config.PolicyInternal, "rule `BOOK`: internal or public")
	f.StringVar(&in.rootAlg, "root-key-algorithm", "ecdsa-p384", "`KIND` of the root's key: "+strings.Join(keyAlgorithms, ", "))
	f.StringVar(&in.issuingAlg, "issuing-key-algorithm", "ecdsa-p256", "`KIND` of the issuing CA's key, likewise")
	f.StringVar(&in.resolver, "resolver", "", "`HOST:PORT` of the resolver that validation asks; under policy public it must validate DNSSEC, and is 127.0.0.1:53 if not given")
	f.Var(&in.rootValidity, "root-validity", "life of the root")
	f.Var(&in.issuingValidity, "issuing-validity", "life of the issuing CA")
	f.StringVar(&in.rootCRL, "root-crl-url", "", "`URL` of the root's own CRL, which you publish (required under policy public)")
	f.StringVar(&in.rootCert, "root-cert-url", "", "`URL` of the root's certificate, likewise (required under policy public)")
	f.StringVar(&in.passphraseFile, "passphrase-file", "", "`FILE` with the passphrase for the keys; empty: make one")
	f.StringVar(&in.postgresFile, "postgres-url-file", "", "`FILE` with the URL of a PostgreSQL database, instead of SQLite; or set "+postgresEnv)
	choices(cmd, "policy", config.PolicyInternal, config.PolicyPublic)
	choices(cmd, "root-key-algorithm", keyAlgorithms...)
	choices(cmd, "issuing-key-algorithm", keyAlgorithms...)
	f.StringVar(&in.keysURI, "keys", "", "PKCS#11 `URI` of the token to make the keys on (RFC 7512)")
	f.StringVar(&in.keyPrefix, "key-prefix", "", "`TEXT` before the labels of the keys, where many CAs share a token")
	f.BoolVar(&in.storeCertificates, "store-certificates", false, "store the certificates beside the keys on the token")
	pinEnvFlag(cmd, &in.pinEnv)
	noFileCompletion(cmd, "keys", "key-prefix", "organization", "country", "external-host", "listen-http", "listen-https", "listen-operator", "resolver", "root-validity", "issuing-validity", "root-crl-url", "root-cert-url")
	return cmd
}

// config turns the flags into the part of the configuration that they decide.
func (in *initFlags) config(cmd *cobra.Command) (*config.Config, error) {
	if err := in.check(cmd); err != nil {
		return nil, err
	}
	cfg := config.Default()
	cfg.Policy = in.policy
	cfg.Listen.HTTP.Address = config.Address(in.listenHTTP)
	cfg.Listen.HTTPS.Address = config.Address(in.listenHTTPS)
	cfg.Listen.Operator.Address = config.Address(in.listenOperator)
	cfg.Listen.HTTP.ExternalURL = externalURL("http", in.host, in.listenHTTP, "80")
	cfg.Listen.HTTPS.ExternalURL = externalURL("https", in.host, in.listenHTTPS, "443")
	cfg.RateLimit.Enabled = true
	cfg.ACME.Validation.Resolver = config.HostPort(in.resolver)
	if in.policy == config.PolicyPublic {
		cfg.ACME.CAAIdentities = []config.Domain{config.Domain(in.host)}
		cfg.ACME.Validation.DNSSEC = config.DNSSECAD
		cfg.ACME.Validation.Resolver = config.HostPort(cmp.Or(in.resolver, "127.0.0.1:53"))
	}
	if in.keysURI != "" {
		section, err := tokenOf(cmd, in.keysURI, in.pinEnv)
		if err != nil {
			return nil, err
		}
		cfg.Keys.PKCS11 = section
	}
	if in.passphraseFile != "" {
		cfg.Keys.Passphrase.File = absolute(in.passphraseFile)
	}
	if url := postgresSource(in.postgresFile); url.IsSet() {
		cfg.Store.Engine = config.EnginePostgres
		cfg.Store.Postgres.URL = url
	}
	return cfg, cfg.Validate()
}

// maxOrganization leaves room for " Issuing CA" in a common name, of which
// RFC 5280 allows 64 characters.
const maxOrganization = 64 - len(" Issuing CA")

func (in *initFlags) check(cmd *cobra.Command) error {
	if in.organization == "" || in.host == "" {
		return usagef(cmd, "both --organization and --external-host are needed")
	}
	if n := utf8.RuneCountInString(in.organization); n > maxOrganization {
		return usagef(cmd, "--organization: %d characters, at most %d fit into the CA's name", n, maxOrganization)
	}
	if in.country != "" && (len(in.country) != 2 || strings.Trim(in.country, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "") {
		return usagef(cmd, "--country %q: want two capital letters such as DE", in.country)
	}
	if err := new(config.Host).UnmarshalText([]byte(in.host)); err != nil {
		return usagef(cmd, "--external-host %q: %w", in.host, err)
	}
	if err := new(config.HostPort).UnmarshalText([]byte(in.resolver)); err != nil {
		return usagef(cmd, "--resolver %q: %w", in.resolver, err)
	}
	if in.policy != config.PolicyInternal && in.policy != config.PolicyPublic {
		return usagef(cmd, "--policy %q: want internal or public", in.policy)
	}
	if err := checkListen(cmd, map[string]string{"listen-http": in.listenHTTP, "listen-https": in.listenHTTPS, "listen-operator": in.listenOperator}); err != nil {
		return err
	}
	if err := in.checkKeys(cmd); err != nil {
		return err
	}
	return in.checkAuthorities(cmd)
}

// checkKeys looks at what is said of keys on a token.
func (in *initFlags) checkKeys(cmd *cobra.Command) error {
	if in.keysURI == "" && (in.keyPrefix != "" || in.pinEnv != "" || in.storeCertificates) {
		return usagef(cmd, "--key-prefix, --pin-env and --store-certificates go with --keys")
	}
	if err := new(config.Name).UnmarshalText([]byte(in.keyPrefix + "issuing")); err != nil {
		return usagef(cmd, "--key-prefix %q: as the beginning of a label, %w", in.keyPrefix, err)
	}
	return nil
}

// checkAuthorities looks at what is said of root and issuing CA.
func (in *initFlags) checkAuthorities(cmd *cobra.Command) error {
	if in.policy == config.PolicyPublic && (in.rootCRL == "" || in.rootCert == "" || in.country == "") {
		return usagef(cmd, "policy public needs --country, --root-crl-url and --root-cert-url")
	}
	for flag, url := range map[string]string{"root-crl-url": in.rootCRL, "root-cert-url": in.rootCert} {
		var u config.URL
		if err := u.UnmarshalText([]byte(url)); err != nil || url != "" && u.Parsed().Scheme != "http" {
			return usagef(cmd, "--%s %q: want a URL such as http://pki.example.org/root.crl", flag, url)
		}
	}
	for flag, alg := range map[string]string{"root-key-algorithm": in.rootAlg, "issuing-key-algorithm": in.issuingAlg} {
		if !slices.Contains(keyAlgorithms, alg) {
			return usagef(cmd, "--%s %q: want one of %s", flag, alg, strings.Join(keyAlgorithms, ", "))
		}
	}
	if in.issuingValidity.Duration > in.rootValidity.Duration {
		return usagef(cmd, "--issuing-validity %s: longer than --root-validity, %s", in.issuingValidity, in.rootValidity)
	}
	return nil
}

// externalURL is how the world reaches a listener on host. The port is left out
// where it is the scheme's own.
func externalURL(scheme, host, listen, port string) config.URL {
	if _, p, err := net.SplitHostPort(listen); err == nil && p != port {
		return config.URL(scheme + "://" + net.JoinHostPort(host, p))
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return config.URL(scheme + "://" + host)
}

// checkListen holds the flags that name listeners against what the
// configuration takes.
func checkListen(cmd *cobra.Command, flags map[string]string) error {
	for _, flag := range slices.Sorted(maps.Keys(flags)) {
		if err := new(config.Address).UnmarshalText([]byte(flags[flag])); err != nil {
			return usagef(cmd, "--%s %q: want host and port such as 127.0.0.1:8080", flag, flags[flag])
		}
	}
	return nil
}

// A durationFlag is a flag in the configuration's way of writing durations.
type durationFlag struct{ config.Duration }

func days(n int) durationFlag { return durationFlag{config.Duration(n) * 24 * hour} }

const hour = config.Duration(3600 * 1e9)

func (d *durationFlag) Set(s string) error { return d.UnmarshalText([]byte(s)) }
func (d *durationFlag) Type() string       { return "DURATION" }

// configFlag adds --config.
func configFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "config", filepath.Join(defaultDir, "config.yaml"), "configuration `FILE`")
	_ = cmd.MarkFlagFilename("config", "yaml", "yml")
}

// choices completes a flag of few values.
func choices(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

func noFileCompletion(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		_ = cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions)
	}
}

// load reads a configuration, and says where one comes from if there is none.
func load(path string) (*config.Config, error) {
	cfg, err := config.Load(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no configuration file %s: name it with --config, or make one with \"secsy-pki init\"", path)
	}
	return cfg, err
}

// loadForServe reads a configuration that is meant to be served.
func loadForServe(path string) (*config.Config, error) {
	cfg, err := load(path)
	if err != nil {
		return nil, err
	}
	if err := cfg.ValidateServe(); err != nil {
		return nil, fmt.Errorf("%s can't be served:\n%w", path, err)
	}
	return cfg, nil
}
