package keys_test

import (
	"bytes"
	"crypto"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
)

const passphrase = "correct horse: battery staple"

func TestFilesAreAStore(t *testing.T) {
	t.Parallel()
	keystest.TestStore(t, func(t *testing.T, place string) keystest.StoreGenerator { return openFiles(t, place, passphrase) })
}

func openFiles(t *testing.T, dir, passphrase string) *keys.Files {
	t.Helper()
	f, err := keys.OpenFiles(keys.FilesConfig{Dir: dir, Passphrase: passphraseFile(t, passphrase)})
	if err != nil {
		t.Fatal(err)
	}
	f.Cheapen()
	return f
}

func passphraseFile(t *testing.T, passphrase string) keys.Passphrase {
	t.Helper()
	path := filepath.Join(t.TempDir(), "passphrase")
	writeFile(t, path, []byte(passphrase+"\n"), 0o600)
	return keys.Passphrase{File: path}
}

func writeFile(t *testing.T, path string, b []byte, mode fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, b, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil { // the umask may have taken bits away
		t.Fatal(err)
	}
}

func openssl(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "openssl", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("openssl %s: %v\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return out
}

func TestOpenSSLReadsOurKeys(t *testing.T) {
	t.Parallel()
	for _, alg := range []keys.Algorithm{keys.ECDSAP256, keys.ECDSAP384, keys.RSA2048, keys.Ed25519} {
		t.Run(string(alg), func(t *testing.T) {
			t.Parallel()
			dir, pass := t.TempDir(), passphraseFile(t, passphrase)
			f, err := keys.OpenFiles(keys.FilesConfig{Dir: dir, Passphrase: pass}) // at the full price
			if err != nil {
				t.Fatal(err)
			}
			k, err := f.Generate(t.Context(), "k", alg)
			if err != nil {
				t.Fatal(err)
			}
			got := openssl(t, "pkey", "-in", filepath.Join(dir, "k.pem"), "-passin", "file:"+pass.File, "-pubout", "-outform", "DER")
			if !bytes.Equal(got, spki(t, k.Public())) {
				t.Error("openssl sees another public key")
			}
		})
	}
}

func TestWeReadOpenSSLsKeys(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"p256":          {"-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"},
		"p384":          {"-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-384"},
		"rsa":           {"-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"},
		"ed25519":       {"-algorithm", "ED25519"},
		"p256-scrypt":   {"-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"},
		"p256-aes128":   {"-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"},
		"p256-hmacsha1": {"-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, pass := t.TempDir(), passphraseFile(t, passphrase)
			plain, path := filepath.Join(t.TempDir(), "plain"), filepath.Join(dir, "theirs.pem")
			openssl(t, append([]string{"genpkey", "-out", plain}, args...)...)
			how := []string{"-v2", "aes-256-cbc", "-iter", "100000"}
			switch {
			case strings.HasSuffix(name, "scrypt"):
				how = []string{"-scrypt"}
			case strings.HasSuffix(name, "aes128"):
				how = []string{"-v2", "aes-128-cbc"}
			case strings.HasSuffix(name, "sha1"):
				how = append(how, "-v2prf", "hmacWithSHA1")
			}
			openssl(t, append([]string{"pkcs8", "-topk8", "-in", plain, "-out", path, "-passout", "file:" + pass.File}, how...)...)
			if err := os.Chmod(path, 0o600); err != nil {
				t.Fatal(err)
			}
			k, err := openFiles(t, dir, passphrase).Key(t.Context(), "theirs")
			if err != nil {
				t.Fatal(err)
			}
			if want := openssl(t, "pkey", "-in", plain, "-pubout", "-outform", "DER"); !bytes.Equal(want, spki(t, k.Public())) {
				t.Error("we see another public key")
			}
		})
	}
}

func TestWrongPassphraseNamesTheFileOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := openFiles(t, dir, passphrase).Generate(t.Context(), "root", keys.ECDSAP256); err != nil {
		t.Fatal(err)
	}
	_, err := openFiles(t, dir, "wrong-guess").Key(t.Context(), "root")
	if !errors.Is(err, keys.ErrPassphrase) || !strings.Contains(err.Error(), filepath.Join(dir, "root.pem")) {
		t.Errorf("error = %v, want ErrPassphrase with the file", err)
	}
	if err != nil && strings.Contains(err.Error(), "guess") {
		t.Errorf("the passphrase is in the error: %v", err)
	}
}

func TestKeyFileOpenToOthersIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := openFiles(t, dir, passphrase).Generate(t.Context(), "k", keys.ECDSAP256); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "k.pem")
	for _, mode := range []fs.FileMode{0o640, 0o604, 0o620, 0o602} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		_, err := openFiles(t, dir, passphrase).Key(t.Context(), "k")
		if err == nil || !strings.Contains(err.Error(), "open to others") || !strings.Contains(err.Error(), "chmod") {
			t.Errorf("mode %04o: error = %v", mode, err)
		}
	}
	if err := os.Chmod(path, 0o400); err != nil {
		t.Fatal(err)
	}
	if _, err := openFiles(t, dir, passphrase).Key(t.Context(), "k"); err != nil {
		t.Errorf("mode 0400: %v", err)
	}
}

func TestRootMayLendASecretToAGroup(t *testing.T) {
	t.Parallel()
	const us = 1000
	for _, c := range []struct {
		owner uint32
		mode  fs.FileMode
		ok    bool
	}{
		{us, 0o600, true},
		{us, 0o640, false},
		{0, 0o440, true},
		{0, 0o640, true},
		{0, 0o660, false},
		{0, 0o644, false},
		{us + 1, 0o600, false},
		{us, 0o600 | fs.ModeNamedPipe, false},
	} {
		err := keys.CheckPrivate("secret", fakeInfo{mode: c.mode, sys: &syscall.Stat_t{Uid: c.owner}}, us)
		if (err == nil) != c.ok {
			t.Errorf("owner %d mode %v: %v", c.owner, c.mode, err)
		}
	}
}

type fakeInfo struct {
	mode fs.FileMode
	sys  any
}

func (fakeInfo) Name() string        { return "secret" }
func (fakeInfo) Size() int64         { return 1 }
func (i fakeInfo) Mode() fs.FileMode { return i.mode }
func (fakeInfo) ModTime() time.Time  { return time.Time{} }
func (fakeInfo) IsDir() bool         { return false }
func (i fakeInfo) Sys() any          { return i.sys }

func TestDirectoryThatOthersWriteIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := keys.OpenFiles(keys.FilesConfig{Dir: dir, Passphrase: passphraseFile(t, passphrase)}); err == nil {
		t.Error("a world-writable key directory was opened")
	}
}

func TestLabelNeverLeavesTheDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	f := openFiles(t, dir, passphrase)
	for _, label := range []string{"", ".", "..", "../evil", "a/b", "/abs", ".hidden", "a\x00b", "a b", "ä", "-rf", strings.Repeat("a", 65)} {
		if _, err := f.Generate(t.Context(), label, keys.ECDSAP256); err == nil {
			t.Errorf("label %q was taken", label)
		}
		if _, err := f.Key(t.Context(), label); !errors.Is(err, keys.ErrNotFound) {
			t.Errorf("label %q: %v, want ErrNotFound", label, err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was made on disk: %v", err)
	}
}

func TestGeneratedFileIsPrivateAndAlone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "keys")
	if _, err := openFiles(t, dir, passphrase).Generate(t.Context(), "ca.root-1_a", keys.Ed25519); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "ca.root-1_a.pem" {
		t.Fatalf("directory holds %v, %v", entries, err)
	}
	for path, want := range map[string]fs.FileMode{dir: 0o700, filepath.Join(dir, "ca.root-1_a.pem"): 0o600} {
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want mode %04o", path, fi.Mode(), err, want)
		}
	}
}

// TestFullDiskLeavesNothing runs itself again under a file size limit of zero:
// every write fails as on a full disk.
func TestFullDiskLeavesNothing(t *testing.T) {
	t.Parallel()
	if dir := os.Getenv("KEYS_TEST_FULL_DISK"); dir != "" {
		f, err := keys.OpenFiles(keys.FilesConfig{Dir: dir, Passphrase: keys.Passphrase{Env: "KEYS_TEST_PASSPHRASE"}})
		if err != nil {
			t.Fatal(err)
		}
		f.Cheapen()
		if _, err := f.Generate(t.Context(), "k", keys.ECDSAP256); !errors.Is(err, syscall.EFBIG) {
			t.Fatalf("Generate: %v, want EFBIG", err)
		}
		if _, err := f.Key(t.Context(), "k"); !errors.Is(err, keys.ErrNotFound) {
			t.Fatalf("Key: %v, want ErrNotFound", err)
		}
		return
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -f 0 && exec "$0" -test.run '^TestFullDiskLeavesNothing$'`, os.Args[0])
	cmd.Env = append(os.Environ(), "KEYS_TEST_FULL_DISK="+dir, "KEYS_TEST_PASSPHRASE="+passphrase)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestKeyIsDecryptedOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := openFiles(t, dir, passphrase).Generate(t.Context(), "k", keys.ECDSAP256); err != nil {
		t.Fatal(err)
	}
	f := openFiles(t, dir, passphrase)
	if _, err := f.Key(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "k.pem")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Key(t.Context(), "k"); err != nil {
		t.Errorf("the key was not kept: %v", err)
	}
}

func TestADestroyedKeyIsGone(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	f := openFiles(t, dir, passphrase)
	if err := f.Destroy(t.Context(), "a"); !errors.Is(err, keys.ErrNotFound) {
		t.Errorf("without a directory: %v", err)
	}
	for _, label := range []string{"a", "b"} {
		if _, err := f.Generate(t.Context(), label, keys.ECDSAP256); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Destroy(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Key(t.Context(), "a"); !errors.Is(err, keys.ErrNotFound) {
		t.Errorf("a destroyed key is found: %v", err)
	}
	for _, label := range []string{"a", "../keys/b", ""} {
		if err := f.Destroy(t.Context(), label); !errors.Is(err, keys.ErrNotFound) {
			t.Errorf("%q: %v", label, err)
		}
	}
	if got, err := f.List(t.Context()); err != nil || len(got) != 1 || got[0] != "b" {
		t.Errorf("left are %q, %v", got, err)
	}
}

func TestListNamesKeysAndNothingElse(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keys")
	f := openFiles(t, dir, passphrase)
	if got, err := f.List(t.Context()); err != nil || got != nil {
		t.Errorf("without a directory: %q, %v", got, err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a.pem", "a-1.pem", "b.txt", ".new-1", ".hidden.pem", "a b.pem", "pem"} {
		writeFile(t, filepath.Join(dir, name), nil, 0o600)
	}
	if got, err := f.List(t.Context()); err != nil || !slices.Equal(got, []string{"a", "a-1"}) {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestFewIterationsEarnAWarning(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := openFiles(t, dir, passphrase).Generate(t.Context(), "k", keys.ECDSAP256); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	f, err := keys.OpenFiles(keys.FilesConfig{Dir: dir, Passphrase: passphraseFile(t, passphrase), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Key(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "iterations=1000") || strings.Contains(log.String(), passphrase) {
		t.Errorf("log: %s", log.String())
	}
}

func TestSignerAndFromSignerAreInverse(t *testing.T) {
	t.Parallel()
	private, err := keys.NewPrivateKey(keys.Ed25519)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := keys.Signer(t.Context(), keys.FromSigner(private)).Sign(nil, []byte("m"), crypto.Hash(0))
	if err != nil {
		t.Fatal(err)
	}
	want, err := private.Sign(nil, []byte("m"), crypto.Hash(0))
	if err != nil || !bytes.Equal(sig, want) {
		t.Errorf("signature %x, want %x (%v)", sig, want, err)
	}
}
