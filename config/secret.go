package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// maxSecret bounds a secret read from a file.
const maxSecret = 64 << 10

// IsSet reports whether s names any source.
func (s Secret) IsSet() bool { return s != Secret{} }

// Read fetches the secret. Its errors name the source, never what it holds.
func (s Secret) Read() (string, error) {
	switch {
	case s.sources() != 1:
		return "", errors.New("reading a secret: want exactly one of file, env and credential")
	case s.File != "":
		return readSecretFile(string(s.File))
	case s.Env != "":
		v := os.Getenv(string(s.Env))
		if v == "" {
			return "", fmt.Errorf("reading a secret: environment variable %s is not set", s.Env)
		}
		return v, nil
	}
	dir := os.Getenv("CREDENTIALS_DIRECTORY")
	if dir == "" {
		return "", fmt.Errorf("reading credential %s: systemd gave none; set LoadCredential=%s:… in the unit", s.Credential, s.Credential)
	}
	return readSecretFile(filepath.Join(dir, string(s.Credential)))
}

func (s Secret) sources() int {
	n := 0
	for _, set := range []bool{s.File != "", s.Env != "", s.Credential != ""} {
		if set {
			n++
		}
	}
	return n
}

// IsSet reports whether p names any source.
func (p PIN) IsSet() bool { return p != PIN{} }

// Secret returns where the PIN is read from, if nobody is asked for it.
func (p PIN) Secret() Secret { return Secret{File: p.File, Env: p.Env, Credential: p.Credential} }

func (p PIN) sources() int {
	n := p.Secret().sources()
	if p.Prompt {
		n++
	}
	return n
}

func readSecretFile(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", fmt.Errorf("reading a secret: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return "", fmt.Errorf("reading a secret: %w", err)
	}
	v := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if v == "" || len(b) > maxSecret {
		return "", fmt.Errorf("reading a secret: %s is empty or larger than %d octets", name, maxSecret)
	}
	return v, nil
}
