package keys

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// maxPassphrase is also the most that openssl reads of a passphrase file.
const maxPassphrase = 1024

// A Passphrase says where a passphrase or PIN is to be found; it never holds
// one. Exactly one field is set.
type Passphrase struct {
	// File is a file with the passphrase on its only line. It must belong to
	// the running user and be closed to everybody else (mode 0600 or 0400), or
	// belong to root and be closed to all but a group that may read it (0640).
	File string
	// Env is an environment variable. Prefer the others: a process's
	// environment shows in more places than a file does.
	Env string
	// Credential is the name of a systemd credential
	// (LoadCredential=, LoadCredentialEncrypted=): a file in
	// $CREDENTIALS_DIRECTORY, under the same rules as File.
	Credential string
}

// Read fetches the passphrase, without the line's end. Its errors name the
// source and never what was in it.
func (p Passphrase) Read() ([]byte, error) {
	switch {
	case p.File != "" && p.Env == "" && p.Credential == "":
		return readPassphraseFile(p.File)
	case p.Env != "" && p.File == "" && p.Credential == "":
		return readPassphraseEnv(p.Env)
	case p.Credential != "" && p.File == "" && p.Env == "":
		return readPassphraseCredential(p.Credential)
	case p == Passphrase{}:
		return nil, errors.New("keys: no passphrase source given: set a file, an environment variable or a systemd credential")
	}
	return nil, errors.New("keys: more than one passphrase source given")
}

func readPassphraseFile(path string) ([]byte, error) {
	b, err := readPrivate(path, maxPassphrase+len("\r\n"))
	if err != nil {
		return nil, fmt.Errorf("reading passphrase file: %w", err)
	}
	return tidyPassphrase("passphrase file "+path, b)
}

func readPassphraseEnv(name string) ([]byte, error) {
	v, ok := os.LookupEnv(name)
	if !ok {
		return nil, fmt.Errorf("keys: environment variable %s is not set", name)
	}
	return tidyPassphrase("environment variable "+name, []byte(v))
}

func readPassphraseCredential(name string) ([]byte, error) {
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return nil, fmt.Errorf("keys: %q is not the name of a systemd credential", name)
	}
	dir := os.Getenv("CREDENTIALS_DIRECTORY")
	if dir == "" {
		return nil, fmt.Errorf("keys: systemd credential %q: CREDENTIALS_DIRECTORY is not set; is the unit's LoadCredential= there?", name)
	}
	b, err := readPrivate(filepath.Join(dir, name), maxPassphrase+len("\r\n"))
	if err != nil {
		return nil, fmt.Errorf("reading systemd credential: %w", err)
	}
	return tidyPassphrase("systemd credential "+name, b)
}

func tidyPassphrase(source string, b []byte) ([]byte, error) {
	b = bytes.TrimSuffix(b, []byte("\n"))
	b = bytes.TrimSuffix(b, []byte("\r"))
	switch {
	case len(b) == 0:
		return nil, fmt.Errorf("keys: %s is empty", source)
	case len(b) > maxPassphrase:
		return nil, fmt.Errorf("keys: %s is longer than %d bytes", source, maxPassphrase)
	case bytes.ContainsAny(b, "\x00\r\n"):
		// Other programs would take the first line only, and the key could be
		// opened by us alone.
		return nil, fmt.Errorf("keys: %s has more than one line", source)
	}
	return b, nil
}

// readPrivate reads a small secret file, and refuses one that others could read
// or have written.
func readPrivate(path string, limit int) ([]byte, error) {
	f, err := openPrivate(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only: nothing to lose
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, err
	}
	if len(b) > limit {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return b, nil
}
