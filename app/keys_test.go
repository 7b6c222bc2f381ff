package app

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/pkcs11pool"
	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

// pinIn is a file with a PIN.
func pinIn(t *testing.T, pin string) config.PIN {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pin")
	if err := os.WriteFile(file, []byte(pin+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return config.PIN{File: config.Path(file)}
}

// sectionOf is the section of a configuration that names a token.
func sectionOf(t *testing.T, token pkcs11test.Token) config.PKCS11 {
	t.Helper()
	section := config.Default().Keys.PKCS11
	section.Module = config.Path(token.Module)
	section.PIN = pinIn(t, pkcs11test.PIN)
	section.Tokens = []config.PKCS11Token{{Label: config.TokenLabel(token.Label)}}
	return section
}

// tokenCA is a CA whose keys are on a token, and the token's section.
func tokenCA(t *testing.T) (dir string, section config.PKCS11) {
	t.Helper()
	section = sectionOf(t, hsm.Take(t))
	dir = filepath.Join(shortDir(t), "ca")
	o := sampleOptions(dir)
	o.Config.Keys.PKCS11 = section
	if err := Init(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return dir, section
}

// labels are those of all keys on a token.
func labels(t *testing.T, section config.PKCS11) []string {
	t.Helper()
	pool, err := openPool(t.Context(), &section, nil, pkcs11pool.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := pool.Close(); err != nil {
			t.Error(err)
		}
	}()
	objects, err := pool.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, o := range objects {
		all = append(all, o.Label)
	}
	slices.Sort(all)
	return all
}

func TestAFailedInitLeavesNoKeyOnTheToken(t *testing.T) {
	t.Parallel()
	section := sectionOf(t, hsm.Take(t))
	o := sampleOptions(filepath.Join(shortDir(t), "ca"))
	o.Config.Keys.PKCS11 = section
	o.RootValidity = 200 * 365 * 24 * time.Hour // found out when both keys are made
	if err := Init(t.Context(), o); err == nil || !strings.Contains(err.Error(), "root: ") {
		t.Fatalf("error = %v", err)
	}
	if left := labels(t, section); left != nil {
		t.Errorf("left are %q", left)
	}
	if _, err := os.Stat(o.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is there: %v", err)
	}
}

// Whoever gives up while keys are made has none either.
func TestKeysMadeInVainAreDestroyedAfterAnInterrupt(t *testing.T) {
	t.Parallel()
	section := sectionOf(t, hsm.Take(t))
	pool, err := openPool(t.Context(), &section, nil, pkcs11pool.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d := &device{pool: pool}
	o := InitOptions{KeyPrefix: "mine-"}
	if _, err := o.generate(ctx, d, nil, rootLabel, string(keys.ECDSAP256)); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Generate(ctx, "yours", keys.ECDSAP256); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := errors.Join(d.undo(ctx), d.close()); err != nil {
		t.Error(err)
	}
	if left := labels(t, section); !slices.Equal(left, []string{"yours"}) {
		t.Errorf("left are %q", left)
	}
}

func TestInitTakesNoLabelThatIsTaken(t *testing.T) {
	t.Parallel()
	section := sectionOf(t, hsm.Take(t))
	pool, err := openPool(t.Context(), &section, nil, pkcs11pool.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Generate(t.Context(), issuingLabel, keys.ECDSAP256); err != nil {
		t.Fatal(err)
	}
	if err := pool.Close(); err != nil {
		t.Fatal(err)
	}
	o := sampleOptions(filepath.Join(shortDir(t), "ca"))
	o.Config.Keys.PKCS11 = section
	if err := Init(t.Context(), o); err == nil || !strings.Contains(err.Error(), "has a key issuing already") || !strings.Contains(err.Error(), "--key-prefix") {
		t.Errorf("error = %v", err)
	}
	if left := labels(t, section); !slices.Equal(left, []string{issuingLabel}) {
		t.Errorf("left are %q", left)
	}
}

func TestWithATokenOnlyTheListenersKeyIsAFile(t *testing.T) {
	t.Parallel()
	dir, section := tokenCA(t)
	r := run(t, dir)
	if err := r.stop(); err != nil {
		t.Errorf("stopping: %v\n%s", err, r.log)
	}
	files, err := filepath.Glob(filepath.Join(dir, keysFolder, "*"))
	if err != nil || len(files) != 1 || filepath.Base(files[0]) != selfKeyLabel+".pem" {
		t.Errorf("files are %q, %v", files, err)
	}
	got := labels(t, section)
	if len(got) != 3 || got[0] != issuingLabel || !strings.HasPrefix(got[1], "ocsp-") || got[2] != rootLabel {
		t.Errorf("on the token are %q", got)
	}
}

func TestAWrapIsPutAroundWhatTheGuardGuards(t *testing.T) {
	t.Parallel()
	onToken, inFiles := load(t, newCA(t)), load(t, newCA(t))
	onToken.Keys.PKCS11 = sectionOf(t, hsm.Take(t))
	for cfg, want := range map[*config.Config]any{onToken: &pkcs11pool.Pool{}, inFiles: &keys.Files{}} {
		var wrapped []KeyStore
		a := newApp(Options{Config: cfg, Stderr: io.Discard, Wrap: Wrap{Keys: func(k KeyStore) KeyStore {
			wrapped = append(wrapped, k)
			return k
		}}})
		err := a.buildAdmission(t.Context())
		if err == nil {
			err = a.openKeys(t.Context())
		}
		if err = errors.Join(err, a.close()); err != nil {
			t.Fatal(err)
		}
		if len(wrapped) != 1 || reflect.TypeOf(wrapped[0]) != reflect.TypeOf(want) {
			t.Errorf("wrapped is %T, want %T", wrapped, want)
		}
		if _, ok := a.listenerKeys.(*keys.Files); !ok {
			t.Errorf("the listener's key is in a %T", a.listenerKeys)
		}
	}
}

func TestARefusedPINEndsTheStart(t *testing.T) {
	t.Parallel()
	cfg := load(t, newCA(t))
	cfg.Keys.PKCS11 = sectionOf(t, hsm.Take(t))
	cfg.Keys.PKCS11.PIN = pinIn(t, "471100")
	var log buffer
	if err := fails(t, cfg, &log); !errors.Is(err, ErrPIN) || strings.Contains(err.Error()+log.String(), "471100") {
		t.Errorf("error = %v\n%s", err, &log)
	}
}

func TestACheckWantsEveryToken(t *testing.T) {
	t.Parallel()
	dir, _ := tokenCA(t)
	var out bytes.Buffer
	if err := Check(t.Context(), load(t, dir), nil, &out); err != nil {
		t.Errorf("error = %v", err)
	}
	for _, want := range []string{"  ok  token token-", ": SoftHSM project SoftHSM v2, serial ", " signs with ecdsa-p256", "  ok  issuer issuing: key issuing, ecdsa-p256, on token-"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	cfg := load(t, dir)
	cfg.Keys.PKCS11.Tokens = append(cfg.Keys.PKCS11.Tokens, config.PKCS11Token{Label: "absent"})
	if err := Check(t.Context(), cfg, nil, io.Discard); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("one of two tokens is not there: %v", err)
	}
	cfg.Keys.PKCS11.Tokens = cfg.Keys.PKCS11.Tokens[1:]
	if err := Check(t.Context(), cfg, nil, io.Discard); err == nil || !strings.HasPrefix(err.Error(), "keys.pkcs11.") || strings.Contains(err.Error(), "issuers[0]") {
		t.Errorf("no token is there: %v", err)
	}
}

func TestAKeyThatIsNotOnAllTokensIsMissed(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Keys.PKCS11 = sectionOf(t, hsm.Take(t))
	ring, err := OpenKeyring(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ring.Generate(t.Context(), "a", string(keys.ECDSAP256), false); err != nil {
		t.Fatal(err)
	}
	key, err := ring.pool.Key(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), keys.Signer(t.Context(), key))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "a.pem")
	if err := errors.Join(writeCertificate(file, der), ring.Close()); err != nil {
		t.Fatal(err)
	}
	cfg.Issuers = []config.Issuer{{Name: "a", Certificate: config.Path(file), Key: "pkcs11:object=a"}}
	second := hsm.Take(t).Label
	for tokens, want := range map[int]string{1: "", 2: "issuers[0] (a): key pkcs11:object=a is on " + cfg.Keys.PKCS11.Tokens[0].Called() + " and not on " + second} {
		if tokens == 2 {
			cfg.Keys.PKCS11.Tokens = append(cfg.Keys.PKCS11.Tokens, config.PKCS11Token{Label: config.TokenLabel(second)})
		} else {
			cfg.Keys.PKCS11.Tokens = cfg.Keys.PKCS11.Tokens[:1]
		}
		ring, err := OpenKeyring(t.Context(), cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		err = ring.Check(t.Context(), io.Discard)
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("%d tokens: error = %v, want %s", tokens, err, want)
		}
		if err := ring.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAKeyURIIsReadBeforeADeviceIsAsked(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"pkcs11:object=a;id=%01": "", "pkcs11:id=%01;type=private": "",
		"pkcs11:":                 "want object, id or both",
		"pkcs11:type=private":     "want object, id or both",
		"pkcs11:object=a;token=b": "and nothing else",
		"pkcs11:objekt=a":         "objekt: there is no such attribute",
		"pkcs11:object=%zz":       "object: want two hexadecimal digits",
	} {
		err := checkKeyURIs([]config.Issuer{{Key: "plain"}, {Key: config.KeyRef(uri)}})
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), "issuers[1].key: ") || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error = %v, want %s", uri, err, want)
		}
	}
}

func TestAPINThatTokensShareIsReadOnce(t *testing.T) {
	t.Parallel()
	var asked []string
	pins := pinReader{read: map[string][]byte{}, ask: func(_ context.Context, what string) ([]byte, error) {
		asked = append(asked, what)
		return []byte(what), nil
	}}
	c := config.PKCS11{PIN: config.PIN{Prompt: true}, Tokens: []config.PKCS11Token{{Label: "a"}, {Label: "b"}, {Label: "c", PIN: config.PIN{Prompt: true}}}}
	for range 2 {
		for i, want := range []string{"PIN of the tokens", "PIN of the tokens", "PIN of token c"} {
			if pin, err := pins.get(t.Context(), &c, i); err != nil || string(pin) != want {
				t.Errorf("token %d: %q, %v", i, pin, err)
			}
		}
	}
	if want := []string{"PIN of the tokens", "PIN of token c"}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}

func TestAPINThatCannotBeReadNamesItsKey(t *testing.T) {
	t.Parallel()
	typed := func(pin string) Prompt {
		return func(context.Context, string) ([]byte, error) { return []byte(pin), nil }
	}
	for _, c := range []struct {
		from config.PIN
		ask  Prompt
		want string
	}{
		{config.PIN{Prompt: true}, nil, "nobody can be asked here"},
		{config.PIN{Prompt: true}, typed(""), "the PIN is empty"},
		{config.PIN{Prompt: true}, typed(strings.Repeat("9", 257)), "the PIN is longer than 256 bytes"},
		{pinIn(t, strings.Repeat("9", 257)), nil, "the PIN is longer than 256 bytes"},
		{config.PIN{Env: "SECSY_TEST_ABSENT"}, nil, "environment variable SECSY_TEST_ABSENT is not set"},
		{config.PIN{Credential: "absent"}, nil, "absent"},
	} {
		for own, key := range map[bool]string{false: "keys.pkcs11.pin: ", true: "keys.pkcs11.tokens[0].pin: "} {
			section := config.PKCS11{PIN: c.from, Tokens: []config.PKCS11Token{{Label: "a"}}}
			if own {
				section.PIN, section.Tokens[0].PIN = config.PIN{}, c.from
			}
			_, err := openPool(t.Context(), &section, c.ask, pkcs11pool.Config{})
			if err == nil || !strings.HasPrefix(err.Error(), key) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "99") {
				t.Errorf("%+v: error = %v, want %s%s", c.from, err, key, c.want)
			}
		}
	}
	if pin, err := readPIN(t.Context(), pinIn(t, strings.Repeat("9", 256)), nil, ""); err != nil || len(pin) != 256 {
		t.Errorf("a PIN of 256 bytes: %d, %v", len(pin), err)
	}
}

func TestAURIOfATokenIsASection(t *testing.T) {
	t.Parallel()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	token := config.PKCS11Token{Label: "my token", Serial: "0a", Slot: "7"}
	const uri = "pkcs11:token=my%20token;serial=0a;slot-id=7?module-path=/m.so"
	for source, want := range map[string]config.PIN{
		"":                           {Prompt: true},
		"&pin-source=file:/etc/pin":  {File: "/etc/pin"},
		"&pin-source=file:///e%2520": {File: "/e "},
		"&pin-source=/etc/p%20n":     {File: "/etc/p n"},
		"&pin-source=file:pin":       {File: config.Path(filepath.Join(wd, "pin"))},
		"&pin-source=pin":            {File: config.Path(filepath.Join(wd, "pin"))},
	} {
		got, err := TokenOfURI(uri+source, config.PIN{})
		if err != nil || got.Module != "/m.so" || got.PIN != want || !reflect.DeepEqual(got.Tokens, []config.PKCS11Token{token}) || got.Sessions.Max == 0 {
			t.Errorf("%q: got %+v, %v", source, got, err)
		}
	}
	if got, err := TokenOfURI(uri, config.PIN{Env: "P"}); err != nil || got.PIN != (config.PIN{Env: "P"}) {
		t.Errorf("got %+v, %v", got.PIN, err)
	}
	for bad, want := range map[string]string{
		uri + "&pin-source=file://other/pin":        "want a file on this machine",
		uri + "&pin-source=file:":                   "it names no file",
		uri + "&pin-source=https://example.org/pin": "want file: and a path, or a path",
		uri + "&pin-source=|cat":                    "no program is run",
		uri + "&module-name=m":                      "module-name=m is of no use here",
		"pkcs11:token=a;model=b?module-path=/m.so":  "model=b is of no use here",
		"pkcs11:model=b?module-path=/m.so":          "names no token",
		"pkcs11:token=a":                            "names no module",
		"token=a":                                   "it does not begin with",
	} {
		if _, err := TokenOfURI(bad, config.PIN{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error = %v, want %s", bad, err, want)
		}
	}
	if _, err := TokenOfURI(uri+"&pin-source=/p", config.PIN{Env: "P"}); err == nil {
		t.Error("two sources of one PIN were taken")
	}
}
