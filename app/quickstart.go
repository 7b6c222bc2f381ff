package app

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/config"
)

// QuickstartOptions say where to try the program out. Zero values mean what the
// first run chose, and on the first run what the comments say.
type QuickstartOptions struct {
	Dir            string        // ./secsy-data
	ListenHTTP     string        // 127.0.0.1:8080
	ListenHTTPS    string        // 127.0.0.1:8443
	ListenOperator string        // 127.0.0.1:8081
	HTTP01Port     int           // 5002: no privileges are needed to answer there
	TLSALPN01Port  int           // 5001, likewise
	DNS            string        // host:port of the resolver; the machine's own
	ExternalHost   string        // how clients reach this machine; localhost
	PostgresURL    config.Secret // the URL of a PostgreSQL database; SQLite if not set

	Program string // how the commands that are printed call this program
	Version string
	Stdout  io.Writer
	Stderr  io.Writer
	Reload  <-chan struct{}
}

const (
	quickstartHTTP01Port    = 5002
	quickstartTLSALPN01Port = 5001
)

// Quickstart serves a CA that it makes on its first run, and prints what to try.
func Quickstart(ctx context.Context, o QuickstartOptions) error {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return err
	}
	o.Dir = dir
	file := filepath.Join(dir, configFile)
	first := false
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		first = true
		if err := o.init(ctx); err != nil {
			return err
		}
	} else if err != nil {
		return fmt.Errorf("reading %s: %w", file, err)
	}
	cfg, err := config.Load(file)
	if err != nil {
		return err
	}
	var adjust func(*config.Config) error
	if !first {
		if err := o.fixPorts(ctx); err != nil {
			return err
		}
		adjust = o.override
		if err := adjust(cfg); err != nil {
			return err
		}
	}
	return Run(ctx, Options{
		Config: cfg, ConfigPath: file, Version: o.Version, Stdout: o.Stdout, Stderr: o.Stderr, Reload: o.Reload, Adjust: adjust,
		Ready: func(Addresses) { o.ready(cfg, first) },
	})
}

// init makes the folder of the first run. What would keep the program from
// starting there is found before anything is made.
func (o *QuickstartOptions) init(ctx context.Context) error {
	c := config.Default()
	for _, l := range []struct {
		name, flag, def string
		addr            *config.Address
	}{
		{listenHTTP, o.ListenHTTP, "127.0.0.1:8080", &c.Listen.HTTP.Address},
		{listenHTTPS, o.ListenHTTPS, "127.0.0.1:8443", &c.Listen.HTTPS.Address},
		{listenOperator, o.ListenOperator, "127.0.0.1:8081", &c.Listen.Operator.Address},
	} {
		addr, err := probe(ctx, l.name, cmp.Or(l.flag, l.def))
		if err != nil {
			return err
		}
		*l.addr = config.Address(addr)
	}
	host := cmp.Or(o.ExternalHost, "localhost")
	c.Listen.HTTPS.Certificate.Names = httpsNames(host)
	c.ACME.Validation.HTTP01Port = quickstartHTTP01Port
	c.ACME.Validation.TLSALPN01Port = quickstartTLSALPN01Port
	c.ACME.Validation.AllowPrivateAddresses = true
	c.Profiles[0].Identifiers.IP = true // 127.0.0.1 can be tried as well as a name
	c.ACME.Validation.Allow = []config.CIDR{
		{Prefix: netip.MustParsePrefix("127.0.0.0/8")}, {Prefix: netip.MustParsePrefix("::1/128")},
	}
	c.CRL.AfterRevocation = config.Duration(2 * time.Second)
	c.RateLimit.Enabled = true
	o.adjust(c)
	if err := setExternal(c, host); err != nil {
		return err
	}
	return Init(ctx, InitOptions{Dir: o.Dir, Config: c})
}

// setExternal derives how clients reach the listeners.
func setExternal(c *config.Config, host string) (err error) {
	if c.Listen.HTTP.ExternalURL, err = externalURL("http", host, string(c.Listen.HTTP.Address)); err != nil {
		return err
	}
	c.Listen.HTTPS.ExternalURL, err = externalURL("https", host, string(c.Listen.HTTPS.Address))
	return err
}

// externalURL leaves the port out where it is the scheme's own.
func externalURL(scheme, host, address string) (config.URL, error) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("listen address %q: want host:port or :port", address)
	}
	at := net.JoinHostPort(host, port)
	if scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		at = strings.TrimSuffix(at, ":"+port)
	}
	return config.URL(scheme + "://" + at), nil
}

// probe tries a listen address, and turns port 0 into a free one: addresses
// go into certificates, so they must stay the same.
func probe(ctx context.Context, name, addr string) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return "", fmt.Errorf("listener %s on %s: %w; choose another address with --listen-%s", name, addr, err, name)
	}
	host, _, err := net.SplitHostPort(addr)
	if err == nil {
		_, port, _ := net.SplitHostPort(l.Addr().String()) // a listener's own address has one
		addr = net.JoinHostPort(host, port)
	}
	return addr, errors.Join(err, l.Close())
}

func httpsNames(host string) []config.Host {
	names := []config.Host{"localhost", "127.0.0.1", "::1"}
	if host != "localhost" && host != "127.0.0.1" && host != "::1" {
		names = append(names, config.Host(host))
	}
	return names
}

// adjust puts flags that were given into the configuration.
func (o *QuickstartOptions) adjust(c *config.Config) {
	if o.HTTP01Port != 0 {
		c.ACME.Validation.HTTP01Port = o.HTTP01Port
	}
	if o.TLSALPN01Port != 0 {
		c.ACME.Validation.TLSALPN01Port = o.TLSALPN01Port
	}
	if o.DNS != "" {
		c.ACME.Validation.Resolver = config.HostPort(o.DNS)
	}
	if o.PostgresURL.IsSet() {
		c.Store.Engine = config.EnginePostgres
		c.Store.Postgres.URL = o.PostgresURL
	}
}

// fixPorts turns port 0 into a free one, once for the run.
func (o *QuickstartOptions) fixPorts(ctx context.Context) error {
	for name, flag := range map[string]*string{listenHTTP: &o.ListenHTTP, listenHTTPS: &o.ListenHTTPS, listenOperator: &o.ListenOperator} {
		if _, port, err := net.SplitHostPort(*flag); err != nil || port != "0" {
			continue // not given, or fixed already
		}
		addr, err := probe(ctx, name, *flag)
		if err != nil {
			return err
		}
		*flag = addr
	}
	return nil
}

// override puts flags of a later run over what is in the configuration, for
// this run only. Certificates issued from then on have the new addresses.
func (o *QuickstartOptions) override(c *config.Config) (err error) {
	o.adjust(c)
	if o.ListenOperator != "" {
		c.Listen.Operator.Address = config.Address(o.ListenOperator)
	}
	if o.ExternalHost != "" {
		c.Listen.HTTPS.Certificate.Names = httpsNames(o.ExternalHost)
	}
	for _, l := range []struct {
		scheme, flag string
		addr         *config.Address
		url          *config.URL
	}{
		{"http", o.ListenHTTP, &c.Listen.HTTP.Address, &c.Listen.HTTP.ExternalURL},
		{"https", o.ListenHTTPS, &c.Listen.HTTPS.Address, &c.Listen.HTTPS.ExternalURL},
	} {
		if l.flag == "" && o.ExternalHost == "" {
			continue
		}
		*l.addr = cmp.Or(config.Address(l.flag), *l.addr)
		host := cmp.Or(o.ExternalHost, l.url.Parsed().Hostname())
		if *l.url, err = externalURL(l.scheme, host, string(*l.addr)); err != nil {
			return err
		}
	}
	return c.Validate()
}

// ready writes what scripts need to know and prints what a person may try.
func (o *QuickstartOptions) ready(c *config.Config, first bool) {
	env := o.environment(c)
	if err := replaceFile(filepath.Join(o.Dir, "quickstart.env"), env, 0o600); err != nil {
		fmt.Fprintf(o.Stderr, "secsy-pki: writing quickstart.env: %v\n", err)
	}
	fmt.Fprint(o.Stdout, o.guide(c, first))
}

// environment holds the settings that the client scripts of the tests take.
func (o *QuickstartOptions) environment(c *config.Config) []byte {
	var b bytes.Buffer
	set := func(name, value string) { fmt.Fprintf(&b, "%s=%s\n", name, quoted(value)) }
	web := string(c.Listen.HTTP.ExternalURL)
	set("ACME_DIRECTORY", string(c.Listen.HTTPS.ExternalURL)+acmePath+"/directory")
	set("CA_BUNDLE", filepath.Join(o.Dir, rootFile))
	set("ROOT_PEM", filepath.Join(o.Dir, rootFile))
	set("ISSUER_PEM", filepath.Join(o.Dir, issuingFile))
	set("HTTP01_PORT", strconv.Itoa(c.ACME.Validation.HTTP01Port))
	set("TLSALPN01_PORT", strconv.Itoa(c.ACME.Validation.TLSALPN01Port))
	set("OCSP_URL", web+ocspPath)
	if cert, err := readCertificate(filepath.Join(o.Dir, issuingFile)); err == nil {
		set("CRL_URL", web+crlPath+"/"+issuerID(cert)+".crl")
	}
	set("OPERATOR_URL", operatorURL(c))
	set("SECSY_SOCKET", string(c.Listen.Operator.Socket))
	if r := string(c.ACME.Validation.Resolver); r != "" {
		set("DNS_RESOLVER", r)
	}
	return b.Bytes()
}

// operatorURL is where a person at this machine reaches the operator listener.
func operatorURL(c *config.Config) string {
	host, port, err := net.SplitHostPort(string(c.Listen.Operator.Address))
	if err != nil {
		return "" // off
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port)
}

// quoted makes s one word for a shell, without quotes where none are needed.
func quoted(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/.:_-@%+,=", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// guide is what to try, with commands to copy word for word.
func (o *QuickstartOptions) guide(c *config.Config, first bool) string {
	did := "Serving the CA that is in"
	if first {
		did = "Made a CA in"
	}
	data := shortPath(o.Dir)
	root := quoted(filepath.Join(data, rootFile))
	dir := quoted(string(c.Listen.HTTPS.ExternalURL) + acmePath + "/directory")
	port := strconv.Itoa(c.ACME.Validation.HTTP01Port)
	program := quoted(cmp.Or(o.Program, "secsy-pki"))
	socket := ""
	if data != "secsy-data" {
		socket = " --socket " + quoted(string(c.Listen.Operator.Socket))
	}
	var b strings.Builder
	fmt.Fprintf(&b, `
%s %s. It answers at
  ACME       %s
  OCSP, CRL  %s
  operators  %s
  limits     %s: rate_limit in %s, explained in docs/admission.md

Try it, in a second terminal:

  # what ACME clients ask first
  curl --cacert %s %s

  # a certificate by certbot (apt install certbot), validated by http-01 on port %s
  REQUESTS_CA_BUNDLE=%s certbot certonly --standalone --http-01-port %s \
    --server %s -d demo.localhost \
    --agree-tos --register-unsafely-without-email --non-interactive \
    --config-dir certbot --work-dir certbot --logs-dir certbot

  # the same by lego (apt install lego)
  LEGO_CA_CERTIFICATES=%s lego --server %s \
    --email you@example.com --accept-tos --http --http.port :%s \
    --domains demo.localhost --path lego run

  # what was issued; the status of one; the audit log, verified
  %s cert list%s
  openssl ocsp -no_nonce -issuer %s -CAfile %s \
    -url %s -cert certbot/live/demo.localhost/cert.pem
  %s audit verify%s

`, did, o.Dir, string(c.Listen.HTTPS.ExternalURL)+acmePath+"/directory", c.Listen.HTTP.ExternalURL, operators(c),
		onOff(c.RateLimit.Enabled), filepath.Join(data, configFile),
		root, dir, port, root, port, dir, root, dir, port, program, socket,
		quoted(filepath.Join(data, issuingFile)), root, quoted(string(c.Listen.HTTP.ExternalURL)+ocspPath), program, socket)
	if missing := notInstalled("certbot", "lego"); missing != "" {
		fmt.Fprintf(&b, "Not installed here: %s. Ctrl-C stops the CA; the next run goes on with the same data.\n\n", missing)
	} else {
		b.WriteString("Ctrl-C stops the CA; the next run goes on with the same data.\n\n")
	}
	return b.String()
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// operators says where operators ask.
func operators(c *config.Config) string {
	var at []string
	if url := operatorURL(c); url != "" {
		at = append(at, url+" (health, readiness, metrics)")
	}
	if s := string(c.Listen.Operator.Socket); s != "" {
		at = append(at, s)
	}
	return strings.Join(at, " and ")
}

func notInstalled(programs ...string) string {
	var missing []string
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	return strings.Join(missing, ", ")
}

// shortPath is a path as a person in the current folder would write it.
func shortPath(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(wd, path); err == nil && !strings.HasPrefix(rel, "..") {
		return rel
	}
	return path
}
