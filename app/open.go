package app

import (
	"bytes"
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/postgres"
	"github.com/secsy-pki/secsy-pki/store/sqlite"
)

// A migrator is an engine that can bring its schema up to date.
type migrator interface {
	store.Engine
	Migrate(ctx context.Context) (applied []string, err error)
}

func (a *app) openStore(ctx context.Context) error {
	engine, err := openEngine(ctx, a.cfg, a)
	if err != nil {
		return err
	}
	a.onClose(engine.Close)
	applied, err := engine.Migrate(ctx)
	if errors.Is(err, store.ErrNewerSchema) {
		// Each migration leaves a schema that the version before can work on,
		// so that replicas can be upgraded, and taken back, one by one.
		a.log.WarnContext(ctx, "going on with a database that a newer version has migrated", "error", err)
		err = nil
	}
	if err != nil {
		return fmt.Errorf("migrating the database: %w", err)
	}
	if len(applied) > 0 {
		a.log.InfoContext(ctx, "migrated the database", "applied", strings.Join(applied, " "))
	}
	a.engine = engine
	if a.opts.Wrap.Engine != nil {
		a.engine = a.opts.Wrap.Engine(engine)
	}
	a.db = store.New(a.engine)
	return a.registry.Register(storeMetrics{a.db})
}

// openEngine opens the database that cfg names.
func openEngine(ctx context.Context, cfg *config.Config, a *app) (migrator, error) {
	log := a.log.With("room", "store")
	if cfg.Store.Engine == config.EnginePostgres {
		url, err := cfg.Store.Postgres.URL.Read()
		if err != nil {
			return nil, fmt.Errorf("store.postgres.url: %w", err)
		}
		return postgres.Open(ctx, postgres.Config{URL: url, MaxConns: cfg.Store.Postgres.MaxConnections, Logger: log})
	}
	return sqlite.Open(ctx, sqlite.Config{Path: string(cfg.Store.SQLite.Path), Logger: log})
}

// openIssuers opens all issuers. One that has expired, or is not valid yet, is
// no reason not to start as long as another can issue: status goes on.
func (a *app) openIssuers(ctx context.Context) error {
	var errs, outside []error
	usable := false
	for i, c := range a.cfg.Issuers {
		key := fmt.Sprintf("issuers[%d] (%s)", i, c.Name)
		is, err := a.openIssuer(ctx, c)
		if errors.Is(err, keys.ErrPassphrase) {
			err = fmt.Errorf("%w; keys.passphrase does not open it", err)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
			continue
		}
		a.issuers = append(a.issuers, is)
		if err := validNow(is.Cert); err != nil && is.Active {
			outside = append(outside, fmt.Errorf("%s: %s: %w", key, c.Certificate, err))
		}
		usable = usable || is.Active && validNow(is.Cert) == nil
	}
	if len(errs) == 0 && !usable {
		return errors.Join(outside...)
	}
	if len(errs) == 0 {
		var err error
		a.preferred, err = a.preferredChains()
		errs = append(errs, err)
	}
	for _, err := range outside {
		a.log.WarnContext(ctx, "an active issuer can't issue", "error", err)
	}
	return errors.Join(errs...)
}

// validNow holds a certificate against the clock, and says what both say, as
// either may be the one that is wrong.
func validNow(cert *x509.Certificate) error {
	now := time.Now()
	if now.Before(cert.NotBefore) || now.After(cert.NotAfter) {
		return fmt.Errorf("valid from %s to %s, and this machine's clock says %s", moment(cert.NotBefore), moment(cert.NotAfter), moment(now))
	}
	return nil
}

func (a *app) openIssuer(ctx context.Context, c config.Issuer) (*ca.Issuer, error) {
	cert, err := readCertificate(string(c.Certificate))
	if err != nil {
		return nil, err
	}
	if !cert.IsCA || cert.KeyUsage&x509.KeyUsageCertSign == 0 || cert.KeyUsage&x509.KeyUsageCRLSign == 0 {
		return nil, fmt.Errorf("%s is not the certificate of a CA that may sign certificates and CRLs", c.Certificate)
	}
	chain, err := readChain(cert, paths(c.Chain))
	if err != nil {
		return nil, err
	}
	alternates, err := readAlternates(cert, chain, paths(c.AlternateChains))
	if err != nil {
		return nil, err
	}
	root, err := readRoot(cert, chain, string(c.Root))
	if err != nil {
		return nil, err
	}
	key, err := a.openIssuerKey(ctx, string(c.Key), cert.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("opening key %s: %w", c.Key, err)
	}
	if pub, ok := cert.PublicKey.(interface{ Equal(x crypto.PublicKey) bool }); !ok || !pub.Equal(key.Public()) {
		return nil, fmt.Errorf("key %s is not the key of %s", c.Key, c.Certificate)
	}
	is := &ca.Issuer{ID: ca.IDOf(cert), Name: string(c.Name), Cert: cert, Chain: chain, Root: root, Alternates: alternates, Key: key, Active: c.Active, Hold: c.Hold}
	if base := strings.TrimSuffix(string(a.cfg.Listen.HTTP.ExternalURL), "/"); base != "" {
		if a.cfg.OCSP.Enabled {
			is.OCSPURL = base + ocspPath
		}
		is.CRLURL = base + crlPath + "/" + string(is.ID) + ".crl"
		is.CertURL = base + aiaPath + "/" + string(is.ID) + ".cer"
	}
	return is, nil
}

// readChain reads what stands above cert, each one signing the one before it.
func readChain(cert *x509.Certificate, files []string) ([]*x509.Certificate, error) {
	var chain []*x509.Certificate
	below, name := cert, "the issuer"
	for i, file := range files {
		above, err := readCertificate(file)
		switch {
		case err != nil:
			return nil, fmt.Errorf("chain[%d]: %w", i, err)
		case bytes.Equal(above.RawSubject, above.RawIssuer):
			return nil, fmt.Errorf("chain[%d]: %s is a root: leave it out, clients have it or don't trust it", i, file)
		case below.CheckSignatureFrom(above) != nil:
			return nil, fmt.Errorf("chain[%d]: %s didn't sign %s: want the certificates above the issuer, nearest first", i, file, name)
		}
		chain = append(chain, above)
		below, name = above, file
	}
	return chain, nil
}

// readRoot reads the root above chain, nil if it is not known or is cert itself.
func readRoot(cert *x509.Certificate, chain []*x509.Certificate, file string) (*x509.Certificate, error) {
	if file == "" {
		return nil, nil
	}
	root, err := readCertificate(file)
	if err != nil {
		return nil, fmt.Errorf("root: %w", err)
	}
	if root.Equal(cert) {
		return nil, nil
	}
	top := cert
	if len(chain) > 0 {
		top = chain[len(chain)-1]
	}
	if !bytes.Equal(root.RawSubject, root.RawIssuer) || top.CheckSignatureFrom(root) != nil {
		return nil, fmt.Errorf("root: %s is no root, or didn't sign the topmost certificate of the chain", file)
	}
	return root, nil
}

// maxChain is how many certificates one chain may have: some clients take no more.
const maxChain = 4

// readAlternates reads further chains of the issuer, each from a certificate of
// its name and key on.
func readAlternates(cert *x509.Certificate, chain []*x509.Certificate, files []string) ([][]*x509.Certificate, error) {
	all := [][]*x509.Certificate{append([]*x509.Certificate{cert}, chain...)}
	for i, file := range files {
		bad := func(format string, args ...any) error {
			return fmt.Errorf("alternate_chains[%d]: %s: %s", i, file, fmt.Sprintf(format, args...))
		}
		list, err := readCertificates(file)
		if err != nil {
			return nil, fmt.Errorf("alternate_chains[%d]: %w", i, err)
		}
		if len(list) > maxChain {
			return nil, bad("has %d certificates; at most %d", len(list), maxChain)
		}
		if err := standsFor(list[0], cert); err != nil {
			return nil, bad("the first certificate %s", err)
		}
		for j, c := range list {
			if bytes.Equal(c.RawSubject, c.RawIssuer) {
				return nil, bad("certificate %d is a root: leave it out, clients have it or don't trust it", j+1)
			}
			if j > 0 && list[j-1].CheckSignatureFrom(c) != nil {
				return nil, bad("certificate %d didn't sign the one before it: want the certificates above the issuer, nearest first", j+1)
			}
		}
		same := func(have []*x509.Certificate) bool { return slices.EqualFunc(have, list, (*x509.Certificate).Equal) }
		if slices.ContainsFunc(all, same) {
			return nil, bad("the issuer has this chain already")
		}
		all = append(all, list)
	}
	return all[1:], nil
}

// standsFor finds out why other can't take the place of an issuer's certificate
// in a chain.
func standsFor(other, issuer *x509.Certificate) error {
	const not = "is not one of the issuer's name and key"
	sameKey := bytes.Equal(other.RawSubjectPublicKeyInfo, issuer.RawSubjectPublicKeyInfo)
	switch {
	case ca.IDOf(other) == ca.IDOf(issuer):
	case sameKey && other.Subject.String() == issuer.Subject.String():
		// Programs that build chains compare octets.
		return errors.New(not + ": its subject reads the same, but in strings of other types; " +
			"have it made from a request with the issuer's own subject (openssl x509 -x509toreq)")
	default:
		return fmt.Errorf("%s, but of %s", not, other.Subject)
	}
	if !other.IsCA || other.KeyUsage&x509.KeyUsageCertSign == 0 {
		return errors.New("is not that of a CA that may sign certificates")
	}
	if id := other.SubjectKeyId; len(id) > 0 && !bytes.Equal(id, issuer.SubjectKeyId) {
		// RFC 5280 §4.2.1.1: certificates name their issuer's key by it, and OpenSSL
		// builds no chain where it differs.
		return fmt.Errorf("has the subject key identifier %X, and not the issuer's, %X, by which clients look for it", id, issuer.SubjectKeyId)
	}
	return nil
}

// readCertificate reads a PEM file of one certificate.
func readCertificate(path string) (*x509.Certificate, error) {
	list, err := readCertificates(path)
	if err != nil {
		return nil, err
	}
	if len(list) > 1 {
		return nil, fmt.Errorf("reading certificate %s: more than one in it: want each in a file of its own", path)
	}
	return list[0], nil
}

// readCertificates reads a PEM file of one certificate or more.
func readCertificates(path string) ([]*x509.Certificate, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading certificate: %w", err)
	}
	var list []*x509.Certificate
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("reading certificate %s: %w", path, err)
		}
		list = append(list, cert)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("reading certificate %s: no CERTIFICATE block in PEM", path)
	}
	return list, nil
}

func issuerID(cert *x509.Certificate) string { return string(ca.IDOf(cert)) }
