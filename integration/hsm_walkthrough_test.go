package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

var fence = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// walkthrough cuts the commands out of the part of a page between two headings.
func walkthrough(t *testing.T, page, from, to string) []string {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, part, ok := strings.Cut(string(b), "\n"+from+"\n")
	part, _, end := strings.Cut(part, "\n"+to+"\n")
	if !ok || !end {
		t.Fatalf("%s has no part from %q to %q", page, from, to)
	}
	var blocks []string
	for _, m := range fence.FindAllStringSubmatch(part, -1) {
		blocks = append(blocks, m[1])
	}
	return blocks
}

// setVariables gives variables that the first block sets values of the test's
// own. Each must be set there, once.
func setVariables(t *testing.T, block string, values map[string]string) string {
	t.Helper()
	for name, value := range values {
		line := regexp.MustCompile(`(?m)^` + name + `=\S+`)
		if n := len(line.FindAllString(block, -1)); n != 1 {
			t.Fatalf("%s is set %d times at the top", name, n)
		}
		block = line.ReplaceAllLiteralString(block, name+"="+value)
	}
	return block
}

// TestTheWalkThroughWorksWordForWord runs the commands of the page in one shell,
// as a reader does who copies them: only ports are others.
func TestTheWalkThroughWorksWordForWord(t *testing.T) {
	t.Parallel()
	blocks := walkthrough(t, "../docs/hsm.md", "## A walk with SoftHSM", "## How it works")
	if len(blocks) < 8 {
		t.Fatalf("only %d blocks of commands", len(blocks))
	}
	blocks[0] = setVariables(t, blocks[0], map[string]string{
		"HTTP_PORT": strconv.Itoa(freePort(t)), "HTTPS_PORT": strconv.Itoa(freePort(t)),
		"OPERATOR_PORT": strconv.Itoa(freePort(t)), "CHALLENGE_PORT": strconv.Itoa(freePort(t)),
		"MODULE": softHSM(t),
	})
	home := t.TempDir()
	script := "set -eu\n"
	for i, b := range blocks {
		script += fmt.Sprintf("echo '--- %d' >&2\n%s", i+1, b)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Dir = home
	cmd.Env = append(os.Environ(), "HOME="+home, "PATH="+filepath.Dir(secsy(t))+":"+os.Getenv("PATH"))
	// All that the page starts ends with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		t.Fatalf("%v\n%s", err, out)
	}
	for _, said := range []string{
		"sensitive, always sensitive, never extractable, local", // pkcs11-tool
		"demo.pem: OK",       // openssl verify
		"Response verify OK", // openssl ocsp
		"good", "revoked", "verify OK",
	} {
		if !strings.Contains(string(out), said) {
			t.Errorf("nothing said %q", said)
		}
	}
	if t.Failed() {
		t.Logf("the commands said:\n%s", out)
	}
}
