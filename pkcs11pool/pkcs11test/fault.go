package pkcs11test

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

//go:embed faultmodule/faultmodule.c
var faultSource []byte

// A Fault is a PKCS#11 module that stands before another one and fails as its
// script says. The language of scripts is described in faultmodule/faultmodule.c.
//
// Its Module is a copy, and so is the module behind it: whoever loads it has it
// to himself, also in one process with others, and any number of processes that
// load it play the same script and share one book.
type Fault struct {
	Module string
	dir    string
}

// MakeFault puts a Fault before the module real, in dir.
func MakeFault(dir, real string) (*Fault, error) {
	f := &Fault{Module: filepath.Join(dir, "faultmodule.so"), dir: dir}
	source := filepath.Join(dir, "faultmodule.c")
	if err := os.WriteFile(source, faultSource, 0o600); err != nil {
		return nil, err
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o", f.Module, source, "-ldl", "-lpthread").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cc: %w\n%s", err, out)
	}
	return f, f.lay(real, f.Behind())
}

// Again is another Fault like f, in a folder of its own, without compiling.
func (f *Fault) Again(dir string) (*Fault, error) {
	g := &Fault{Module: filepath.Join(dir, "faultmodule.so"), dir: dir}
	if err := copyFile(f.Module, g.Module); err != nil {
		return nil, err
	}
	return g, g.lay(f.Behind(), g.Behind())
}

func (f *Fault) lay(real, behind string) error {
	if err := copyFile(real, behind); err != nil {
		return err
	}
	conf := fmt.Sprintf("module %s\nscript %s\nbook %s\n", behind, f.script(), f.book())
	if err := os.WriteFile(f.Module+".conf", []byte(conf), 0o600); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(f.book(), make([]byte, ringStart+8*ringLength), 0o600), f.Play())
}

func (f *Fault) script() string { return filepath.Join(f.dir, "script") }
func (f *Fault) book() string   { return filepath.Join(f.dir, "book") }

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o700) //nolint:gosec // a module is loaded
}

// scriptTime makes the time of each script another one: inode and size may be
// those of the one before.
var scriptTime atomic.Int64

// Play has each call that begins from now on play these lines, counted from 1,
// and no others. Nothing fails without lines.
func (f *Fault) Play(lines ...string) error {
	tmp, err := os.CreateTemp(f.dir, "script-")
	if err != nil {
		return err
	}
	_, err = io.WriteString(tmp, strings.Join(append(lines, ""), "\n"))
	now := time.Now().Truncate(time.Second).Add(time.Duration(scriptTime.Add(1)))
	err = errors.Join(err, tmp.Close(), os.Chtimes(tmp.Name(), now, now))
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), f.script())
}

// The layout of struct book in the module's source.
const (
	bookMagic    = 0x46415553
	counters     = 16 * 8
	violationLen = 256
	functionLen  = 32 + 2*8
	functions    = 70
	tokenLen     = 32 + 8*8
	tokens       = 64
	ringStart    = counters + violationLen + functions*functionLen + tokens*tokenLen
	ringLength   = 1 << 18
)

// A Book is what a Fault has counted.
type Book struct {
	Calls, InFlight, PeakInFlight int
	Open, PeakOpen                int // sessions that are open on the device
	Hung                          int // calls that hang now
	Initialized, Finalized        int
	Logins, WrongPINs             int // that reached the module behind
	Signatures                    int // that were made, whatever the caller was told
	Scripts                       int // that were read
	Violations                    int
	Violation                     string // the first

	Functions map[string]FunctionBook // by name, such as C_Sign or C_Sign?length
	Tokens    map[string]TokenBook    // by label
}

// A FunctionBook is the part of one function.
type FunctionBook struct{ Calls, Injected int }

// A TokenBook is the part of one token.
type TokenBook struct {
	Calls, Open, PeakOpen, InFlight, PeakInFlight, Logins, WrongPINs, Signatures int
}

// Read reads the book.
func (f *Fault) Read() (Book, error) {
	file, err := os.Open(f.book())
	if err != nil {
		return Book{}, err
	}
	defer func() { _ = file.Close() }()
	b := make([]byte, ringStart)
	if _, err := io.ReadFull(file, b); err != nil {
		return Book{}, err
	}
	var book Book
	var magic, signedNext, spare int
	numbers(b, &magic, &book.Calls, &book.InFlight, &book.PeakInFlight, &book.Open, &book.PeakOpen, &book.Hung, &book.Initialized,
		&book.Finalized, &book.Logins, &book.WrongPINs, &book.Signatures, &signedNext, &book.Violations, &book.Scripts, &spare)
	if magic != 0 && magic != bookMagic {
		return Book{}, fmt.Errorf("%s is no book of a fault module", f.book())
	}
	book.Violation = text(b[counters:][:violationLen])
	book.Functions, book.Tokens = map[string]FunctionBook{}, map[string]TokenBook{}
	b = b[counters+violationLen:]
	for ; len(b) > tokens*tokenLen; b = b[functionLen:] {
		var n FunctionBook
		numbers(b[32:], &n.Calls, &n.Injected)
		book.Functions[text(b[:32])] = n
	}
	for ; len(b) > 0 && b[0] != 0; b = b[tokenLen:] {
		var n TokenBook
		numbers(b[32:], &n.Calls, &n.Open, &n.PeakOpen, &n.InFlight, &n.PeakInFlight, &n.Logins, &n.WrongPINs, &n.Signatures)
		book.Tokens[text(b[:32])] = n
	}
	return book, nil
}

func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

func numbers(b []byte, to ...*int) {
	for i, n := range to {
		*n = int(binary.NativeEndian.Uint64(b[8*i:])) //nolint:gosec // counts
	}
}

// A Signed tells how often the device has signed something.
type Signed map[uint64]int

// Times is how often it was data: what C_Sign was given, to the octet.
func (s Signed) Times(data []byte) int {
	h := fnv.New64a()
	_, _ = h.Write(data)
	return s[h.Sum64()]
}

// Signed reads what the device has signed, the last 2^18 of it.
func (f *Fault) Signed() (Signed, error) {
	file, err := os.Open(f.book())
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	b := make([]byte, 8*13)
	if _, err := io.ReadFull(file, b); err != nil {
		return nil, err
	}
	var n int
	numbers(b[12*8:], &n)
	b = make([]byte, 8*min(n, ringLength))
	if _, err := file.ReadAt(b, ringStart); err != nil {
		return nil, err
	}
	s := Signed{}
	for ; len(b) > 0; b = b[8:] {
		s[binary.NativeEndian.Uint64(b)]++
	}
	return s, nil
}

// maxFaults is how many a process can have, each time that its tests run.
const maxFaults = 64

// confVariable is where SoftHSM finds its configuration, and faultVariable where
// the one behind the nth Fault does. It is as long.
const confVariable = "SOFTHSM2_CONF"

func faultVariable(n int) string { return fmt.Sprintf("SOFTHSM2_%04d", n) }

func (h *HSM) faultDir(n int) string {
	return filepath.Join(filepath.Dir(h.Conf), fmt.Sprintf("fault-%04d", n))
}

// setFaultVariables is called before anything else runs: C's getenv may read
// while nobody changes the environment.
func (h *HSM) setFaultVariables(count int) error {
	for n := range maxFaults * count {
		if err := os.Setenv(faultVariable(n), filepath.Join(h.faultDir(n), "softhsm2.conf")); err != nil {
			return err
		}
	}
	return nil
}

// Fault gives a test a Fault with tokens of its own. At the end of the test
// nothing hangs any more, and the contract of PKCS#11 must not have been broken.
//
// The tokens are in a folder of their own, since SoftHSM guards its files against
// other processes and not against a second SoftHSM in its own. The variable that
// leads the one behind this Fault there has another name, which is changed in the
// copy.
func (h *HSM) Fault(tb testing.TB, tokens int) (*Fault, []Token) {
	tb.Helper()
	f, labels, err := h.fault(tokens)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		f.Script(tb)
		if b := f.Book(tb); b.Violations > 0 {
			tb.Errorf("the contract of PKCS#11 was broken %d times, first by %s", b.Violations, b.Violation)
		}
	})
	var of []Token
	for _, l := range labels {
		of = append(of, Token{Module: f.Module, Label: l})
	}
	return f, of
}

func (h *HSM) fault(tokens int) (*Fault, []string, error) {
	first, n, err := h.nextFault()
	if err != nil {
		return nil, nil, err
	}
	own, err := New(h.faultDir(n), tokens)
	if err != nil {
		return nil, nil, err
	}
	f, err := first.Again(h.faultDir(n))
	if err != nil {
		return nil, nil, err
	}
	return f, own.free, f.rename(n)
}

// nextFault returns the Fault that others are copies of, and the number of the
// next.
func (h *HSM) nextFault() (first *Fault, n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if os.Getenv(faultVariable(h.faults)) == "" {
		return nil, 0, fmt.Errorf("there have been %d faults: raise maxFaults", h.faults)
	}
	if h.first == nil {
		dir, err := os.MkdirTemp(filepath.Dir(h.Conf), "first-")
		if err != nil {
			return nil, 0, err
		}
		if h.first, err = MakeFault(dir, h.Module); err != nil {
			return nil, 0, err
		}
	}
	h.faults++
	return h.first, h.faults - 1, nil
}

// rename has the SoftHSM behind f look for its configuration in another variable.
func (f *Fault) rename(n int) error {
	behind := f.Behind()
	b, err := os.ReadFile(behind)
	if err != nil {
		return err
	}
	if found := bytes.Count(b, []byte(confVariable+"\x00")); found != 1 {
		return fmt.Errorf("%s names %s %d times, want once", behind, confVariable, found)
	}
	b = bytes.Replace(b, []byte(confVariable+"\x00"), []byte(faultVariable(n)+"\x00"), 1)
	return os.WriteFile(behind, b, 0o700) //nolint:gosec // a module is loaded
}

// Behind is the module behind f: the same one, also for what it knows and what
// it is logged in to, if both are loaded in one process.
func (f *Fault) Behind() string { return filepath.Join(f.dir, "behind.so") }

// Script is Play in a test.
func (f *Fault) Script(tb testing.TB, lines ...string) {
	tb.Helper()
	if err := f.Play(lines...); err != nil {
		tb.Fatal(err)
	}
}

// Book is Read in a test.
func (f *Fault) Book(tb testing.TB) Book {
	tb.Helper()
	b, err := f.Read()
	if err != nil {
		tb.Fatal(err)
	}
	return b
}
