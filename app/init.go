package app

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/lint"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/pkcs11pool"
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

	// With Config.Keys.PKCS11 the keys of root and issuing CA are made on its token.
	KeyPrefix         string // put before the labels of the keys
	StoreCertificates bool   // beside the keys on the token
	Prompt            Prompt // for its PIN; nil: nobody can be asked
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
// Whatever goes wrong, nothing half-made stays behind, on a token neither.
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
	if err := checkEmpty(o.Dir); err != nil {
		return err
	}
	device, err := o.openDevice(ctx)
	if err != nil {
		return err
	}
	err = makeFolder(o.Dir, func(tmp string) error {
		if err := o.makeAuthorities(ctx, tmp, device); err != nil {
			return err
		}
		return replaceFile(filepath.Join(tmp, configFile), cfg, 0o600)
	})
	if err != nil {
		return errors.Join(err, device.undo(ctx), device.close())
	}
	o.report()
	return device.close()
}

// A device is the token that keys are made on, and remembers which. Without a
// pool there is none, and they are made in files.
type device struct {
	pool *pkcs11pool.Pool
	made []string // labels, in the order of making
}

// openDevice opens the token, and sees that the labels are free before anything
// is made on it.
func (o *InitOptions) openDevice(ctx context.Context) (*device, error) {
	section := &o.Config.Keys.PKCS11
	if !section.Enabled() {
		return &device{}, nil
	}
	pool, err := openPool(ctx, section, o.Prompt, pkcs11pool.Config{})
	if err != nil {
		return nil, err
	}
	d := &device{pool: pool}
	for _, label := range []string{o.KeyPrefix + rootLabel, o.KeyPrefix + issuingLabel} {
		if _, err := pool.Key(ctx, label); !errors.Is(err, keys.ErrNotFound) {
			return nil, errors.Join(o.taken(label, err), d.close())
		}
	}
	return d, nil
}

// taken explains a label that is not free.
func (o *InitOptions) taken(label string, err error) error {
	if err != nil && !errors.Is(err, keys.ErrExists) {
		return err
	}
	return fmt.Errorf("the token has a key %s already, perhaps of another CA: choose other labels with --key-prefix", label)
}

func (d *device) close() error {
	if d.pool == nil {
		return nil
	}
	return d.pool.Close()
}

// undoPatience bounds the destroying of what was made in vain.
const undoPatience = time.Minute

// undo destroys the keys that were made, also when whoever wanted them has left.
func (d *device) undo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoPatience)
	defer cancel()
	var errs []error
	for _, label := range d.made {
		if err := d.pool.Destroy(ctx, label); err != nil {
			errs = append(errs, fmt.Errorf("key %s is still on the token: %w", label, err))
		}
	}
	return errors.Join(errs...)
}

// generate makes a key on the token, or in files.
func (o *InitOptions) generate(ctx context.Context, d *device, files *keys.Files, label, alg string) (keys.Key, error) {
	if d.pool == nil {
		return files.Generate(ctx, label, keys.Algorithm(alg))
	}
	label = o.KeyPrefix + label
	k, err := d.pool.Generate(ctx, label, keys.Algorithm(alg))
	if errors.Is(err, keys.ErrExists) {
		return nil, o.taken(label, err)
	}
	if err != nil {
		return nil, fmt.Errorf("making key %s on the token: %w", label, err)
	}
	d.made = append(d.made, label)
	return k, nil
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
		Name: issuingLabel, Certificate: issuingFile, Root: rootFile, Key: config.KeyRef(o.KeyPrefix + issuingLabel), Active: true,
		CRL: config.IssuerCRL{Shards: 1},
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

func (o *InitOptions) makeAuthorities(ctx context.Context, dir string, d *device) error {
	pass, err := o.passphrase(dir)
	if err != nil {
		return err
	}
	files, err := keys.OpenFiles(keys.FilesConfig{Dir: filepath.Join(dir, keysFolder), Passphrase: pass})
	if err != nil {
		return err
	}
	policy := ca.Policy(o.Config.Policy)
	linter, err := lint.New(lint.Config{Policy: policy})
	if err != nil {
		return err
	}
	rootKey, err := o.generate(ctx, d, files, rootLabel, o.RootKeyAlgorithm)
	if err != nil {
		return err
	}
	issuingKey, err := o.generate(ctx, d, files, issuingLabel, o.IssuingKeyAlgorithm)
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
	if err := writeCertificate(filepath.Join(dir, issuingFile), issuingDER); err != nil {
		return err
	}
	return o.storeCertificates(ctx, d, map[string][]byte{rootLabel: rootDER, issuingLabel: issuingDER})
}

// storeCertificates puts certificates beside the keys, by their labels.
func (o *InitOptions) storeCertificates(ctx context.Context, d *device, ders map[string][]byte) error {
	if d.pool == nil || !o.StoreCertificates {
		return nil
	}
	for label, der := range ders {
		cert, err := x509.ParseCertificate(der)
		if err == nil {
			err = d.pool.StoreCertificate(ctx, o.KeyPrefix+label, cert)
		}
		if err != nil {
			return fmt.Errorf("storing the certificate of key %s on the token: %w", o.KeyPrefix+label, err)
		}
	}
	return nil
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

// report says what was made and what to do next.
func (o *InitOptions) report() {
	opened := "the passphrase in " + passphraseFile
	if o.Config.Keys.Passphrase.IsSet() {
		opened = "your passphrase"
	}
	file := quoted(filepath.Join(shortPath(o.Dir), configFile))
	made, next := reportFiles(opened)
	if o.Config.Keys.PKCS11.Enabled() {
		made, next = o.reportToken(file)
	}
	made = slices.Concat([][2]string{{rootFile, "the root, for your clients to trust"}, {issuingFile, "the issuing CA"}}, made, [][2]string{{configFile, "the configuration"}})
	if o.Config.Policy == config.PolicyPublic && o.Config.ACME.Enabled {
		next = append(next, "Have a resolver that validates DNSSEC at "+string(o.Config.ACME.Validation.Resolver)+": it alone is believed.",
			"Set up remote perspectives and name them in acme.validation.perspectives\n(docs/perspectives.md): without, nothing is validated under policy public.")
	}
	next = append(next, "secsy-pki config check --config "+file, "secsy-pki serve --config "+file)
	fmt.Fprintf(o.Stdout, "Made a CA in %s:\n", o.Dir)
	for _, m := range made {
		fmt.Fprintf(o.Stdout, "  %-12s %s\n", m[0], m[1])
	}
	fmt.Fprint(o.Stdout, "\nWhat to do next:\n")
	for i, n := range next {
		fmt.Fprintf(o.Stdout, "  %d. %s\n", i+1, strings.ReplaceAll(n, "\n", "\n     "))
	}
}

func reportFiles(opened string) (made [][2]string, next []string) {
	return [][2]string{{keysFolder + "/", "encrypted keys, opened by " + opened}}, []string{
		"Move " + filepath.Join(keysFolder, rootLabel+".pem") + ` off this machine to a safe place: the root's key is needed again
only for a new issuing CA.`,
		"Back up the folder. Whoever has both the keys and the passphrase has the CA.",
	}
}

func (o *InitOptions) reportToken(file string) (made [][2]string, next []string) {
	token := "token " + o.Config.Keys.PKCS11.Tokens[0].Called()
	root, issuing := o.KeyPrefix+rootLabel, o.KeyPrefix+issuingLabel
	made = [][2]string{{token, "the keys " + root + " and " + issuing + ", which never leave it"}}
	if !o.Config.Keys.Passphrase.IsSet() {
		made = append(made, [2]string{passphraseFile, "for the key of the https listener, which will be a file"})
	}
	return made, []string{
		`Back up the token by the means of its vendor, and the folder. Without the token
nothing more can be signed; whoever has it and its PIN has the CA.`,
		`The root's key is needed again only for a new issuing CA. When you have seen it
restored from the backup on another token, take it off this one:
  secsy-pki keys destroy --config ` + file + " --label " + root,
	}
}
