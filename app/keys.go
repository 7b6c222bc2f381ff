package app

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/pkcs11pool"
)

// ErrPIN says that a token did not accept its PIN. It must not be tried again
// before somebody has looked: tokens lock.
var ErrPIN = pkcs11pool.ErrPIN

// A Prompt asks a person for a secret, and says what for.
type Prompt func(ctx context.Context, what string) ([]byte, error)

// maxPIN bounds a PIN. Tokens take far less.
const maxPIN = 256

// openKeys opens the keys of the CA, behind the guard, and the one of the https
// listener, which is always in a file.
func (a *app) openKeys(ctx context.Context) error {
	var err error
	if a.cfg.NeedsKeyFiles() {
		if a.listenerKeys, err = openFiles(a.cfg, a.log.With("room", "keys")); err != nil {
			return err
		}
	}
	if !a.cfg.Keys.PKCS11.Enabled() {
		a.listenerKeys = a.wrapped(a.listenerKeys)
		a.keys, err = a.guarded(a.listenerKeys)
		return err
	}
	if err := checkKeyURIs(a.cfg.Issuers); err != nil {
		return err
	}
	a.pool, err = openPool(ctx, &a.cfg.Keys.PKCS11, a.opts.Prompt, pkcs11pool.Config{
		Lenient: !a.strict, Logger: a.log.With("room", "pkcs11pool"), Registerer: a.registry, Resized: a.resized,
	})
	if err != nil {
		return err
	}
	a.onClose(a.pool.Close)
	a.keys, err = a.guarded(a.wrapped(a.pool))
	return err
}

func (a *app) wrapped(k KeyStore) KeyStore {
	if a.opts.Wrap.Keys != nil {
		return a.opts.Wrap.Keys(k)
	}
	return k
}

func openFiles(cfg *config.Config, log *slog.Logger) (*keys.Files, error) {
	k, err := keys.OpenFiles(keys.FilesConfig{Dir: string(cfg.Keys.Directory), Passphrase: passphrase(cfg.Keys.Passphrase), Logger: log})
	if err != nil {
		return nil, fmt.Errorf("keys.passphrase: %w", err)
	}
	return k, nil
}

func passphrase(s config.Secret) keys.Passphrase {
	return keys.Passphrase{File: string(s.File), Env: string(s.Env), Credential: string(s.Credential)}
}

// openPool opens the tokens of c; base says what c does not. All PINs are read
// before: what keeps one from being read is found while somebody looks.
func openPool(ctx context.Context, c *config.PKCS11, ask Prompt, base pkcs11pool.Config) (*pkcs11pool.Pool, error) {
	pins := pinReader{ask: ask, read: map[string][]byte{}}
	for i, t := range c.Effective() {
		pin, err := pins.get(ctx, c, i)
		if err != nil {
			return nil, err
		}
		base.Tokens = append(base.Tokens, pkcs11pool.TokenConfig{
			Name: string(t.Name), Module: string(t.Module), Label: string(t.Label), Serial: string(t.Serial), Slot: t.Slot.Number(),
			PIN: func() ([]byte, error) { return bytes.Clone(pin), nil },
		})
	}
	base.MinSessions, base.MaxSessions, base.IdleTime = c.Sessions.Min, c.Sessions.Max, c.Sessions.Idle.Std()
	base.CallTimeout, base.MaxHung = c.CallTimeout.Std(), c.MaxHung
	p, err := pkcs11pool.Open(ctx, base)
	switch {
	case errors.Is(err, ErrPIN):
		return nil, fmt.Errorf("keys.pkcs11.pin, or that of the token: %w", err)
	case errors.Is(err, pkcs11pool.ErrModule):
		return nil, fmt.Errorf("keys.pkcs11.module, or that of the token: %w", err)
	case err != nil:
		return nil, fmt.Errorf("keys.pkcs11.tokens: %w", err)
	}
	return p, nil
}

// A pinReader reads each PIN once, however many tokens have it.
type pinReader struct {
	ask  Prompt
	read map[string][]byte // by the key of the configuration
}

// get returns the PIN of the i-th token.
func (r *pinReader) get(ctx context.Context, c *config.PKCS11, i int) ([]byte, error) {
	key, from, what := "keys.pkcs11.pin", c.PIN, "the tokens"
	if len(c.Tokens) == 1 || c.Tokens[i].PIN.IsSet() {
		what = "token " + c.Tokens[i].Called()
	}
	if own := c.Tokens[i].PIN; own.IsSet() {
		key, from = fmt.Sprintf("keys.pkcs11.tokens[%d].pin", i), own
	}
	if pin, ok := r.read[key]; ok {
		return pin, nil
	}
	pin, err := readPIN(ctx, from, r.ask, what)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	r.read[key] = pin
	return pin, nil
}

func readPIN(ctx context.Context, from config.PIN, ask Prompt, what string) (pin []byte, err error) {
	switch {
	case !from.Prompt:
		pin, err = passphrase(from.Secret()).Read()
	case ask == nil:
		err = errors.New("nobody can be asked here: set file, env or credential in place of prompt")
	default:
		pin, err = ask(ctx, "PIN of "+what)
	}
	switch {
	case err != nil:
		return nil, err
	case len(pin) == 0:
		return nil, errors.New("the PIN is empty")
	case len(pin) > maxPIN:
		return nil, fmt.Errorf("the PIN is longer than %d bytes", maxPIN)
	}
	return pin, nil
}

// checkKeyURIs finds what is wrong with the names of keys before a device is asked.
func checkKeyURIs(issuers []config.Issuer) error {
	var errs []error
	for i, is := range issuers {
		if !is.Key.IsURI() {
			continue
		}
		if err := checkKeyURI(string(is.Key)); err != nil {
			errs = append(errs, fmt.Errorf("issuers[%d].key: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

// checkKeyURI wants a URI that names a key and no token: any of them will do.
func checkKeyURI(s string) error {
	u, err := pkcs11pool.ParseURI(s)
	if err != nil {
		return err
	}
	named := u.Object != "" || len(u.ID) > 0
	u.Object, u.ID, u.Type = "", nil, ""
	if !named || u.String() != pkcs11pool.URIScheme {
		return errors.New("want object, id or both, and nothing else: tokens are named in keys.pkcs11.tokens")
	}
	return nil
}

// TokenOfURI turns a PKCS#11 URI that names one token into the section of a
// configuration that does. The PIN is where the URI says, or else where pin does,
// or else a person is asked.
func TokenOfURI(s string, pin config.PIN) (config.PKCS11, error) {
	section := config.Default().Keys.PKCS11
	u, err := pkcs11pool.ParseURI(s)
	if err != nil {
		return section, err
	}
	token := config.PKCS11Token{Label: config.TokenLabel(u.Token), Serial: config.TokenSerial(u.Serial)}
	if u.SlotID != nil {
		token.Slot = config.SlotID(strconv.FormatUint(uint64(*u.SlotID), 10))
	}
	switch {
	case u.ModulePath == "":
		return section, errors.New("the URI names no module: put ?module-path=/path/of/module.so after it")
	case token == (config.PKCS11Token{}):
		return section, errors.New("the URI names no token: set token, serial or slot-id in it")
	case u.PINSource != "" && pin.IsSet():
		return section, errors.New("the URI has a pin-source: set no other source of the PIN")
	case u.PINSource != "":
		if pin.File, err = pinFile(u.PINSource); err != nil {
			return section, err
		}
	}
	if !pin.IsSet() {
		pin.Prompt = true
	}
	module, err := filepath.Abs(u.ModulePath)
	if err != nil {
		return section, err
	}
	section.Module, section.PIN, section.Tokens = config.Path(module), pin, []config.PKCS11Token{token}
	return section, unusedInURI(u)
}

// unusedInURI refuses what a token is not found by, and what is no token.
func unusedInURI(u pkcs11pool.URI) error {
	u.Token, u.Serial, u.SlotID, u.ModulePath, u.PINSource = "", "", nil, "", ""
	if rest := u.String(); rest != pkcs11pool.URIScheme {
		return fmt.Errorf("%s is of no use here: a token is named by token, serial and slot-id, its module by module-path", strings.TrimPrefix(strings.TrimPrefix(rest, pkcs11pool.URIScheme), "?"))
	}
	return nil
}

// pinFile is the file that a pin-source names: a file: URI, or a path (RFC 7512 §2.4).
func pinFile(source string) (config.Path, error) {
	if strings.HasPrefix(source, "|") {
		return "", errors.New("pin-source: no program is run for the PIN: name a file")
	}
	path := source
	if strings.HasPrefix(source, "file:") {
		u, err := url.Parse(source)
		if err != nil || u.Host != "" && u.Host != "localhost" || u.RawQuery != "" || u.Fragment != "" {
			return "", errors.New("pin-source: want a file on this machine, such as file:/etc/secsy-pki/pin")
		}
		path = cmp.Or(u.Path, u.Opaque) // file:pin is opaque, and as good as a path
	} else if scheme, _, _ := strings.Cut(source, "/"); strings.Contains(scheme, ":") {
		return "", errors.New("pin-source: want file: and a path, or a path")
	}
	abs, err := filepath.Abs(path)
	if err != nil || path == "" {
		return "", errors.New("pin-source: it names no file")
	}
	return config.Path(abs), nil
}
