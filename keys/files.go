package keys

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// FilesConfig is what Files needs.
type FilesConfig struct {
	Dir        string       // made by the first Generate; closed to other users
	Passphrase Passphrase   // of all the keys in Dir
	Logger     *slog.Logger // nil: silent
}

// Files keeps keys in a directory, each in a file LABEL.pem as encrypted PKCS#8
// that openssl reads too. A key is decrypted once, when it is first asked for,
// and lives in memory from then on. It is safe for concurrent use, also by
// several processes on one directory.
type Files struct {
	dir        string
	passphrase []byte
	iterations int
	log        *slog.Logger

	loading chan struct{} // one slot: a key is decrypted once, and one at a time

	mu   sync.Mutex
	keys map[string]Key // guarded by mu; as many as there are files
}

// OpenFiles reads the passphrase; no key is touched before it is asked for.
func OpenFiles(cfg FilesConfig) (*Files, error) {
	if cfg.Dir == "" {
		return nil, errors.New("keys: no directory given")
	}
	if err := checkDir(cfg.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("opening key directory: %w", err)
	}
	passphrase, err := cfg.Passphrase.Read()
	if err != nil {
		return nil, fmt.Errorf("opening key directory %s: %w", cfg.Dir, err)
	}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Files{
		dir:        cfg.Dir,
		passphrase: passphrase,
		iterations: pbkdf2Iterations,
		log:        log,
		loading:    make(chan struct{}, 1),
		keys:       make(map[string]Key),
	}, nil
}

// Key implements Store. A key that the passphrase does not open gives an error
// matching ErrPassphrase.
func (f *Files) Key(ctx context.Context, label string) (Key, error) {
	if err := checkLabel(label); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if k, ok := f.cached(label); ok {
		return k, nil
	}
	select {
	case f.loading <- struct{}{}:
		defer func() { <-f.loading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if k, ok := f.cached(label); ok {
		return k, nil
	}
	signer, err := f.load(ctx, label)
	if err != nil {
		return nil, err
	}
	return f.keep(label, signer), nil
}

// Generate implements Generator.
func (f *Files) Generate(ctx context.Context, label string, alg Algorithm) (Key, error) {
	if err := checkLabel(label); err != nil {
		return nil, err
	}
	path := f.path(label)
	if err := f.prepare(path); err != nil {
		return nil, err
	}
	signer, err := NewPrivateKey(alg)
	if err != nil {
		return nil, fmt.Errorf("generating key %q: %w", label, err)
	}
	sealed, err := sealKey(signer, f.passphrase, f.iterations)
	if err != nil {
		return nil, fmt.Errorf("encrypting key %q: %w", label, err)
	}
	if err := ctx.Err(); err != nil { // the last moment at which nothing has happened
		return nil, err
	}
	if err := writeNew(path, sealed); err != nil {
		return nil, fmt.Errorf("writing key file: %w", err)
	}
	f.log.InfoContext(ctx, "key made", "label", label, "algorithm", string(alg), "file", path)
	return f.keep(label, signer), nil
}

// Destroy implements Destroyer. Another process that has opened the key keeps it
// until it ends.
func (f *Files) Destroy(ctx context.Context, label string) error {
	if err := checkLabel(label); err != nil {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	if err := checkDir(f.dir); err != nil {
		return fmt.Errorf("opening key directory: %w", absent(err))
	}
	if err := os.Remove(f.path(label)); err != nil {
		return fmt.Errorf("removing key file: %w", absent(err))
	}
	f.mu.Lock()
	delete(f.keys, label)
	f.mu.Unlock()
	f.log.InfoContext(ctx, "key destroyed", "label", label, "file", f.path(label))
	return syncDir(f.dir)
}

// maxFiles bounds a list of keys.
const maxFiles = 4096

// List names the keys that there are, sorted. None of them is opened.
func (f *Files) List(context.Context) ([]string, error) {
	entries, err := os.ReadDir(f.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the first Generate makes it
	}
	if err != nil {
		return nil, fmt.Errorf("listing key directory: %w", err)
	}
	var labels []string
	for _, e := range entries {
		if label, ok := strings.CutSuffix(e.Name(), ".pem"); ok && checkLabel(label) == nil {
			labels = append(labels, label)
		}
	}
	if len(labels) > maxFiles {
		return nil, fmt.Errorf("keys: there are %d keys in %s, at most %d are listed", len(labels), f.dir, maxFiles)
	}
	slices.Sort(labels)
	return labels, nil
}

// prepare fails early what would fail late, after the work of making a key.
func (f *Files) prepare(path string) error {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return fmt.Errorf("making key directory: %w", err)
	}
	if err := checkDir(f.dir); err != nil {
		return fmt.Errorf("opening key directory: %w", err)
	}
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%w: %s", ErrExists, path)
	}
	return nil
}

func (f *Files) load(ctx context.Context, label string) (crypto.Signer, error) {
	path := f.path(label)
	if err := checkDir(f.dir); err != nil {
		return nil, fmt.Errorf("opening key directory: %w", absent(err))
	}
	file, err := readPrivate(path, maxKeyFile)
	if err != nil {
		return nil, fmt.Errorf("opening key file: %w", absent(err))
	}
	signer, iterations, err := openKey(file, f.passphrase)
	if err != nil {
		return nil, fmt.Errorf("opening key file %s: %w", path, err)
	}
	if iterations != 0 && iterations < fewIterations {
		f.log.WarnContext(ctx, "key file is encrypted with few PBKDF2 iterations: a stolen copy is easier to guess at",
			"file", path, "iterations", iterations, "advised", pbkdf2Iterations)
	}
	return signer, nil
}

// absent gives a missing file its meaning in this room.
func absent(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	return err
}

func (f *Files) path(label string) string { return filepath.Join(f.dir, label+".pem") }

func (f *Files) cached(label string) (Key, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, ok := f.keys[label]
	return k, ok
}

func (f *Files) keep(label string, signer crypto.Signer) Key {
	k := FromSigner(signer)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keys[label] = k
	return k
}

// checkLabel keeps labels to what is a plain file name everywhere. The first
// character is no dot, so that a label meets neither "..", nor a temporary file.
func checkLabel(label string) error {
	const maxLabel = 64
	if label == "" || len(label) > maxLabel {
		return fmt.Errorf("keys: a label has 1 to %d characters", maxLabel)
	}
	for i, c := range []byte(label) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || c != '.' && c != '-' && c != '_') {
			return fmt.Errorf("keys: label %q: only letters, digits, '.', '-' and '_' are allowed, and a letter or digit first", label)
		}
	}
	return nil
}

// writeNew makes the file path with content b, durable on return, or fails and
// leaves nothing. It never replaces a file: that is ErrExists.
func writeNew(path string, b []byte) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(tmp.Name())) }()
	_, err = tmp.Write(b)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	// A link, unlike a rename, fails if the name is taken.
	if err := os.Link(tmp.Name(), path); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%w: %s", ErrExists, path)
		}
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
