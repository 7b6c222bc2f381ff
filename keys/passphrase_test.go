package keys_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/keys"
)

func TestPassphraseComesFromExactlyOneSource(t *testing.T) {
	t.Parallel()
	file := passphraseFile(t, "p").File
	for _, p := range []keys.Passphrase{
		{},
		{File: file, Env: "X"},
		{File: file, Credential: "c"},
		{Env: "X", Credential: "c"},
		{File: file, Env: "X", Credential: "c"},
	} {
		if _, err := p.Read(); err == nil {
			t.Errorf("%+v was accepted", p)
		}
	}
}

func TestPassphraseFileIsReadWithoutItsLineEnd(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"secret":                           "secret",
		"secret\n":                         "secret",
		"secret\r\n":                       "secret",
		" with spaces \n":                  " with spaces ",
		strings.Repeat("x", 1024) + "\r\n": strings.Repeat("x", 1024),
		"":                                 "",
		"\n":                               "",
		"two\nlines\n":                     "",
		"nul\x00byte":                      "",
		strings.Repeat("x", 1025):          "",
		strings.Repeat("x", 1<<20):         "",
		"secret\n\n":                       "",
	} {
		path := filepath.Join(t.TempDir(), "p")
		writeFile(t, path, []byte(content), 0o600)
		got, err := keys.Passphrase{File: path}.Read()
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("%.20q: got %.20q, %v", content, got, err)
		}
		if err != nil && (strings.Contains(err.Error(), "lines\n") || strings.Contains(err.Error(), "byte\"")) {
			t.Errorf("the content is in the error: %v", err)
		}
	}
}

func TestPassphraseFileOpenToOthersIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p")
	writeFile(t, path, []byte("secret\n"), 0o644)
	if _, err := (keys.Passphrase{File: path}).Read(); err == nil || strings.Contains(err.Error(), "secret\n") {
		t.Errorf("error = %v", err)
	}
	if _, err := (keys.Passphrase{File: t.TempDir()}).Read(); err == nil {
		t.Error("a directory was read")
	}
}

func TestPassphraseFromTheEnvironment(t *testing.T) {
	t.Setenv("KEYS_TEST_P", "from-env")
	if got, err := (keys.Passphrase{Env: "KEYS_TEST_P"}).Read(); err != nil || string(got) != "from-env" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := (keys.Passphrase{Env: "KEYS_TEST_UNSET"}).Read(); err == nil {
		t.Error("an unset variable was read")
	}
}

func TestPassphraseFromSystemd(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "ca-pin"), []byte("from-systemd"), 0o400)
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	if got, err := (keys.Passphrase{Credential: "ca-pin"}).Read(); err != nil || string(got) != "from-systemd" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, name := range []string{"../ca-pin", "..", "/etc/passwd", "missing"} {
		if _, err := (keys.Passphrase{Credential: name}).Read(); err == nil {
			t.Errorf("credential %q was read", name)
		}
	}
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	if _, err := (keys.Passphrase{Credential: "ca-pin"}).Read(); err == nil || !strings.Contains(err.Error(), "LoadCredential") {
		t.Errorf("error = %v, want advice", err)
	}
}
