package app

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/lint"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/keys"
)

// The files of a folder that Init makes.
const (
	configFile     = "config.yaml"
	passphraseFile = "passphrase"
	rootFile       = "root.pem"
	issuingFile    = "issuing.pem"
	keysFolder     = "keys"
	rootLabel      = "root"
	issuingLabel   = "issuing"
)

// InitOptions say what CA to make. Zero values mean what the comments say.
type InitOptions struct {
	Dir                 string         // must not be there yet, or be empty
	Config              *config.Config // where it listens, its policy and so on; issuers and paths are filled in
	Organization        string         // in both subjects; "" leaves it out
	Country             string         // likewise, by its two letters; the public policy wants it
	RootKeyAlgorithm    string         // ecdsa-p384
	IssuingKeyAlgorithm string         // ecdsa-p256
	RootValidity        time.Duration  // 20 years
	IssuingValidity     time.Duration  // 10 years
	RootCRLURL          string         // where the root's own CRL will be; the public policy wants it
	RootCertURL         string         // where the root's certificate will be; likewise
	Stdout              io.Writer      // told what was made and what to do next; nil: nobody
}

func (o *InitOptions) setDefaults() (err error) {
	if o.RootKeyAlgorithm == "" {
		o.RootKeyAlgorithm = string(keys.ECDSAP384)
	}
	if o.IssuingKeyAlgorithm == "" {
		o.IssuingKeyAlgorithm = string(keys.ECDSAP256)
	}
	if o.Stdout == nil {
		o.Stdout = io.Discard
	}
	o.Dir, err = filepath.Abs(o.Dir)
	return err
}

// Init makes a new CA in a folder: keys, certificates and a configuration.
// Whatever goes wrong, nothing half-made stays behind.
func Init(ctx context.Context, o InitOptions) error {
	if err := o.setDefaults(); err != nil {
		return err
	}
	cfg, err := o.config()
	if err != nil {
		return err
	}
	if p := o.Config.Keys.Passphrase; p.IsSet() {
		if _, err := passphrase(p).Read(); err != nil {
			return fmt.Errorf("the keys' passphrase: %w", err)
		}
	}
	err = makeFolder(o.Dir, func(tmp string) error {
		if err := o.makeAuthorities(ctx, tmp); err != nil {
			return err
		}
		return replaceFile(filepath.Join(tmp, configFile), cfg, 0o600)
	})
	if err != nil {
		return err
	}
	o.report()
	return nil
}

// config writes the configuration and holds it against its own rules, as if
// it stood in the folder already.
func (o *InitOptions) config() ([]byte, error) {
	c := *o.Config
	c.DataDir = "."
	if !c.Keys.Passphrase.IsSet() {
		c.Keys.Passphrase = config.Secret{File: passphraseFile}
	}
	c.Issuers = []config.Issuer{{
		Name: issuingLabel, Certificate: issuingFile, Root: rootFile, Key: issuingLabel, Active: true,
	}}
	b := c.MarshalCommented()
	parsed, err := config.Parse(filepath.Join(o.Dir, configFile), b)
	if err == nil {
		err = parsed.ValidateServe()
	}
	return b, err
}

// passphrase is where the keys that are made in dir have theirs from: where the
// configuration says, or a file of our own making.
func (o *InitOptions) passphrase(dir string) (keys.Passphrase, error) {
	if p := o.Config.Keys.Passphrase; p.IsSet() {
		return passphrase(p), nil
	}
	file := filepath.Join(dir, passphraseFile)
	return keys.Passphrase{File: file}, replaceFile(file, []byte(rand.Text()+rand.Text()+"\n"), 0o600)
}

func (o *InitOptions) makeAuthorities(ctx context.Context, dir string) error {
	pass, err := o.passphrase(dir)
	if err != nil {
		return err
	}
	store, err := keys.OpenFiles(keys.FilesConfig{Dir: filepath.Join(dir, keysFolder), Passphrase: pass})
	if err != nil {
		return err
	}
	policy := ca.Policy(o.Config.Policy)
	linter, err := lint.New(lint.Config{Policy: policy})
	if err != nil {
		return err
	}
	rootKey, err := store.Generate(ctx, rootLabel, keys.Algorithm(o.RootKeyAlgorithm))
	if err != nil {
		return err
	}
	issuingKey, err := store.Generate(ctx, issuingLabel, keys.Algorithm(o.IssuingKeyAlgorithm))
	if err != nil {
		return err
	}
	rootDER, err := ca.CreateRoot(ctx, ca.RootRequest{
		Subject: o.subject("Root CA"), Key: rootKey, Validity: o.RootValidity, Linter: linter,
	})
	if err != nil {
		return err
	}
	root, err := x509.ParseCertificate(rootDER)
	if err != nil {
		return err
	}
	issuingDER, err := ca.CreateIssuing(ctx, ca.IssuingRequest{
		Root: root, RootKey: rootKey, Subject: o.subject("Issuing CA"), PublicKey: issuingKey.Public(),
		Validity: o.IssuingValidity, Policy: policy, CRLURL: o.RootCRLURL, CertURL: o.RootCertURL, Linter: linter,
	})
	if err != nil {
		return err
	}
	if err := writeCertificate(filepath.Join(dir, rootFile), rootDER); err != nil {
		return err
	}
	return writeCertificate(filepath.Join(dir, issuingFile), issuingDER)
}

func writeCertificate(path string, der []byte) error {
	return replaceFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

func (o *InitOptions) subject(what string) pkix.Name {
	if o.Organization == "" {
		// Two CAs of one name confuse whoever trusts both.
		return pkix.Name{CommonName: "secsy-pki " + what + " " + rand.Text()[:6]}
	}
	name := pkix.Name{Organization: []string{o.Organization}, CommonName: o.Organization + " " + what}
	if o.Country != "" {
		name.Country = []string{o.Country}
	}
	return name
}

func (o *InitOptions) report() {
	pass := o.Config.Keys.Passphrase
	opened := "the passphrase in " + passphraseFile
	if pass.IsSet() {
		opened = "your passphrase"
	}
	file := filepath.Join(shortPath(o.Dir), configFile)
	fmt.Fprintf(o.Stdout, `Made a CA in %s:
  %-12s the root, for your clients to trust
  %-12s the issuing CA
  %-12s encrypted keys, opened by %s
  %-12s the configuration

What to do next:
  1. Move %s off this machine to a safe place: the root's key is needed again
     only for a new issuing CA.
  2. Back up the folder. Whoever has both the keys and the passphrase has the CA.
  3. secsy-pki config check --config %s
  4. secsy-pki serve --config %s
`, o.Dir, rootFile, issuingFile, keysFolder+"/", opened, configFile, filepath.Join(keysFolder, rootLabel+".pem"), quoted(file), quoted(file))
}
