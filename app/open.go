package app

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"strings"

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
	return nil
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

func (a *app) openKeys(context.Context) error {
	k, err := keys.OpenFiles(keys.FilesConfig{
		Dir: string(a.cfg.Keys.Directory), Passphrase: passphrase(a.cfg.Keys.Passphrase), Logger: a.log.With("room", "keys"),
	})
	if err != nil {
		return fmt.Errorf("keys.passphrase: %w", err)
	}
	a.keys = k
	if a.opts.Wrap.Keys != nil {
		a.keys = a.opts.Wrap.Keys(k)
	}
	return nil
}

func passphrase(s config.Secret) keys.Passphrase {
	return keys.Passphrase{File: string(s.File), Env: string(s.Env), Credential: string(s.Credential)}
}

func (a *app) openIssuers(ctx context.Context) error {
	for i, c := range a.cfg.Issuers {
		is, err := a.openIssuer(ctx, c)
		if err != nil {
			return fmt.Errorf("issuers[%d] (%s): %w", i, c.Name, err)
		}
		a.issuers = append(a.issuers, is)
	}
	return nil
}

func (a *app) openIssuer(ctx context.Context, c config.Issuer) (*ca.Issuer, error) {
	cert, err := readCertificate(string(c.Certificate))
	if err != nil {
		return nil, err
	}
	key, err := a.keys.Key(ctx, string(c.Key))
	if err != nil {
		return nil, fmt.Errorf("opening key %s: %w", c.Key, err)
	}
	if pub, ok := cert.PublicKey.(interface{ Equal(x crypto.PublicKey) bool }); !ok || !pub.Equal(key.Public()) {
		return nil, fmt.Errorf("key %s is not the key of %s", c.Key, c.Certificate)
	}
	is := &ca.Issuer{ID: ca.IDOf(cert), Name: string(c.Name), Cert: cert, Key: key, Active: c.Active}
	for _, path := range c.Chain {
		above, err := readCertificate(string(path))
		if err != nil {
			return nil, err
		}
		is.Chain = append(is.Chain, above)
	}
	if base := strings.TrimSuffix(string(a.cfg.Listen.HTTP.ExternalURL), "/"); base != "" {
		if a.cfg.OCSP.Enabled {
			is.OCSPURL = base + ocspPath
		}
		is.CRLURL = base + crlPath + "/" + string(is.ID) + ".crl"
		is.CertURL = base + aiaPath + "/" + string(is.ID) + ".cer"
	}
	return is, nil
}

// readCertificate reads the first certificate of a PEM file.
func readCertificate(path string) (*x509.Certificate, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading certificate: %w", err)
	}
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("reading certificate %s: %w", path, err)
		}
		return cert, nil
	}
	return nil, fmt.Errorf("reading certificate %s: no CERTIFICATE block in PEM", path)
}

func issuerID(cert *x509.Certificate) string { return string(ca.IDOf(cert)) }
