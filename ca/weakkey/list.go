package weakkey

import (
	"bufio"
	"bytes"
	"crypto/rsa"
	"crypto/sha1" // the published lists are of SHA-1 fingerprints
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Bounds on what the lists may hold. All the published ones together are a
// little over a million lines.
const (
	maxListEntries = 8 << 20
	maxListFiles   = 256
	maxListLine    = 256
)

// fingerprint is the lower half of the SHA-1 over "Modulus=", the modulus in
// upper-case hex and a newline, as `openssl rsa -modulus | sha1sum` has it.
type fingerprint [10]byte

// A List holds the fingerprints of RSA keys known to be broken, in the form of
// the openssl-blacklist packages: keys from the Debian generator of 2006–2008,
// and any others that an operator adds. It does not change, and is safe for
// concurrent use. The nil List is empty.
type List struct{ sorted []fingerprint }

// Len counts the keys on the list.
func (l *List) Len() int {
	if l == nil {
		return 0
	}
	return len(l.sorted)
}

// Has reports whether a key is on the list.
func (l *List) Has(pub *rsa.PublicKey) bool {
	if l.Len() == 0 {
		return false
	}
	fp := fingerprintOf(pub)
	_, found := slices.BinarySearchFunc(l.sorted, fp, compare)
	return found
}

func compare(a, b fingerprint) int { return bytes.Compare(a[:], b[:]) }

func fingerprintOf(pub *rsa.PublicKey) fingerprint {
	sum := sha1.Sum(fmt.Appendf(nil, "Modulus=%X\n", pub.N))
	return fingerprint(sum[10:])
}

// LoadList reads lists from files, and from all files of directories but hidden
// ones. An empty result is an error: whoever names a list wants one.
func LoadList(paths ...string) (*List, error) {
	files, err := listFiles(paths)
	if err != nil {
		return nil, fmt.Errorf("looking for lists of weak keys: %w", err)
	}
	var all []fingerprint
	for _, path := range files {
		if all, err = readListFile(path, all); err != nil {
			return nil, fmt.Errorf("reading list of weak keys %s: %w", path, err)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no weak keys are listed in %s", strings.Join(paths, ", "))
	}
	return newList(all), nil
}

// ParseList reads one list.
func ParseList(r io.Reader) (*List, error) {
	all, err := readList(r, nil)
	if err != nil {
		return nil, err
	}
	return newList(all), nil
}

func newList(all []fingerprint) *List {
	slices.SortFunc(all, compare)
	return &List{slices.Clip(slices.Compact(all))}
}

func listFiles(paths []string) ([]string, error) {
	var files []string
	for _, path := range paths {
		fi, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !fi.IsDir() {
			files = append(files, path)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
				files = append(files, filepath.Join(path, e.Name()))
			}
		}
	}
	if len(files) > maxListFiles {
		return nil, fmt.Errorf("%d files, more than %d", len(files), maxListFiles)
	}
	return files, nil
}

func readListFile(path string, into []fingerprint) ([]fingerprint, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only: nothing to lose
	return readList(f, into)
}

// readList appends a list's fingerprints. A line is twenty hex digits, or
// empty, or begins with '#'.
func readList(r io.Reader, into []fingerprint) ([]fingerprint, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 4<<10), maxListLine)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		var fp fingerprint
		if len(line) != hex.EncodedLen(len(fp)) {
			return nil, fmt.Errorf("line %d: not 20 hex digits", n)
		}
		if _, err := hex.Decode(fp[:], line); err != nil {
			return nil, fmt.Errorf("line %d: not 20 hex digits", n)
		}
		if len(into) == maxListEntries {
			return nil, fmt.Errorf("line %d: more than %d keys in all", n, maxListEntries)
		}
		into = append(into, fp)
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return nil, fmt.Errorf("a line is longer than %d bytes", maxListLine)
	}
	return into, lines.Err()
}
