// Package pkcs11test gives tests real PKCS#11 tokens: of SoftHSM, in a folder
// that is gone afterwards.
package pkcs11test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

// PIN opens all tokens, SOPIN is that of their security officers.
const (
	PIN   = "1234"
	SOPIN = "5678"
)

// Module finds SoftHSM's PKCS#11 module. It is an error that a package is
// missing, and never a reason to skip a test.
func Module() (string, error) {
	if m := os.Getenv("SECSY_TEST_PKCS11_MODULE"); m != "" {
		return m, nil
	}
	for _, pattern := range []string{"/usr/lib/softhsm/libsofthsm2.so", "/usr/lib/*/softhsm/libsofthsm2.so", "/usr/lib64/pkcs11/libsofthsm2.so", "/opt/homebrew/lib/softhsm/libsofthsm2.so"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[0], nil
		}
	}
	return "", errors.New("SoftHSM's module is not installed: run scripts/test-deps (Debian package softhsm2)")
}

// A Token is one token of SoftHSM.
type Token struct {
	Module string
	Label  string
}

// An HSM is a folder of tokens. SoftHSM reads the list of its tokens when a
// process initializes it, so all that a process wants are made before.
type HSM struct {
	Module string
	Conf   string // for SOFTHSM2_CONF

	mu     sync.Mutex
	free   []string // guarded by mu
	first  *Fault   // guarded by mu; others are copies of it
	faults int      // guarded by mu
}

// New makes an HSM of n tokens labelled token-1 … in dir.
func New(dir string, n int) (*HSM, error) {
	module, err := Module()
	if err != nil {
		return nil, err
	}
	tokens := filepath.Join(dir, "tokens")
	if err := os.MkdirAll(tokens, 0o700); err != nil {
		return nil, err
	}
	h := &HSM{Module: module, Conf: filepath.Join(dir, "softhsm2.conf")}
	conf := fmt.Sprintf("directories.tokendir = %s\nobjectstore.backend = file\nlog.level = ERROR\n", tokens)
	if err := os.WriteFile(h.Conf, []byte(conf), 0o600); err != nil {
		return nil, err
	}
	for i := range n {
		label := "token-" + strconv.Itoa(i+1)
		if err := h.Init(label); err != nil {
			return nil, err
		}
		h.free = append(h.free, label)
	}
	return h, nil
}

// Init makes one more token.
func (h *HSM) Init(label string) error {
	cmd := exec.Command("softhsm2-util", "--init-token", "--free", "--label", label, "--so-pin", SOPIN, "--pin", PIN)
	cmd.Env = append(os.Environ(), confVariable+"="+h.Conf)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("softhsm2-util: %w\n%s", err, out)
	}
	return nil
}

// Take gives a test a token that no other test has.
func (h *HSM) Take(tb testing.TB) Token {
	tb.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.free) == 0 {
		tb.Fatal("no token left: have Main make more")
	}
	label := h.free[0]
	h.free = h.free[1:]
	return Token{Module: h.Module, Label: label}
}

// Main runs the tests of a package, m, with n tokens in *hsm, as many again for each
// time that they run (-count), and the environment set for SoftHSM in this
// process and those it starts.
func Main(m interface{ Run() int }, hsm **HSM, n int) {
	flag.Parse()
	count, _ := strconv.Atoi(flag.Lookup("test.count").Value.String())
	os.Exit(run(m, hsm, n, max(1, count)))
}

func run(m interface{ Run() int }, hsm **HSM, n, count int) int {
	dir, err := os.MkdirTemp("", "pkcs11test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	*hsm, err = New(dir, n*count)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := os.Setenv(confVariable, (*hsm).Conf); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := (*hsm).setFaultVariables(count); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
