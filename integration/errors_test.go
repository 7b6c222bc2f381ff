package integration

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// oneLine holds an operator's error to its form: one line on standard error that
// begins with the program's name and holds all of want, a non-zero exit.
func oneLine(t *testing.T, stderr string, code int, want ...string) {
	t.Helper()
	if code == 0 {
		t.Errorf("exit status 0; stderr: %s", stderr)
	}
	line := strings.TrimRight(stderr, "\n")
	if strings.Contains(line, "\n") || !strings.HasPrefix(line, "secsy-pki: ") {
		t.Errorf("not one line of ours:\n%s", stderr)
	}
	for _, w := range want {
		if !strings.Contains(line, w) {
			t.Errorf("%q does not say %q", line, w)
		}
	}
}

// flags are listen addresses of the test's own.
func flags(t *testing.T) []string {
	t.Helper()
	return []string{
		"--listen-http", fmt.Sprintf("127.0.0.1:%d", freePort(t)),
		"--listen-https", fmt.Sprintf("127.0.0.1:%d", freePort(t)),
		"--listen-operator", fmt.Sprintf("127.0.0.1:%d", freePort(t)),
	}
}

// initialised makes a data folder by init and returns it.
func initialised(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	if out, errs, code := run(t, append(initArgs(dir), flags(t)...)...); code != 0 {
		t.Fatalf("init: exit %d\n%s%s", code, out, errs)
	}
	return dir
}

func initArgs(dir string) []string {
	return []string{"init", "--dir", dir, "--organization", "Example", "--external-host", "pki.example.com"}
}

func configOf(dir string) string { return filepath.Join(dir, "config.yaml") }

func TestABadConfigIsOneClearLine(t *testing.T) {
	t.Parallel()
	dir := initialised(t)
	good, err := os.ReadFile(configOf(dir))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		add  string
		want []string
	}{
		"unknown key": {"acme_servr:\n  enabled: true\n", []string{"acme_servr", "unknown"}},
		"wrong type":  {"serials:\n  shard: many\n", []string{"serials.shard"}},
		"bad value":   {"policy: lax\n", []string{"policy", "internal", "public"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".yaml")
			key, _, _ := strings.Cut(c.add, ":")
			text := withoutTopLevel(string(good), key) + "\n" + c.add
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, cmd := range [][]string{{"config", "check", "--config", file}, {"serve", "--config", file}} {
				_, errs, code := run(t, cmd...)
				oneLine(t, errs, code, append(c.want, file+":")...)
			}
		})
	}
}

// withoutTopLevel drops a top-level key and what is below it.
func withoutTopLevel(text, key string) string {
	var out []string
	skip := false
	for line := range strings.SplitSeq(text, "\n") {
		if line != "" && line[0] != ' ' && line[0] != '#' && line[0] != '-' {
			skip = strings.HasPrefix(line, key+":")
		}
		if !skip {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

func TestAnUnreadableKeyIsOneClearLine(t *testing.T) {
	t.Parallel()
	dir := initialised(t)
	file := filepath.Join(dir, "keys", "issuing.pem")
	if err := os.WriteFile(file, []byte("no key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, code := run(t, "serve", "--config", configOf(dir))
	oneLine(t, errs, code, "issuing.pem")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	_, errs, code = run(t, "serve", "--config", configOf(dir))
	oneLine(t, errs, code, "issuing")
}

func TestAWrongPassphraseIsOneClearLine(t *testing.T) {
	t.Parallel()
	dir := initialised(t)
	const wrong = "an entirely different passphrase"
	if err := os.WriteFile(filepath.Join(dir, "passphrase"), []byte(wrong+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, errs, code := run(t, "serve", "--config", configOf(dir))
	oneLine(t, errs, code, "passphrase", "issuing")
	if strings.Contains(errs, wrong) {
		t.Error("the passphrase is in the error")
	}
}

func TestATakenPortIsOneClearLine(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dir := filepath.Join(t.TempDir(), "data")
	args := flags(t)
	args[3] = l.Addr().String()
	_, errs, code := run(t, append([]string{"quickstart", "--dir", dir}, args...)...)
	oneLine(t, errs, code, l.Addr().String(), "https")
}

// unprivileged runs the program as nobody where the test is root, whom no
// permission stops.
func unprivileged(t *testing.T, args ...string) (stderr string, code int) {
	t.Helper()
	cmd := exec.Command(secsy(t), args...)
	if os.Getuid() == 0 {
		cmd = exec.Command("setpriv", append([]string{"--reuid=nobody", "--regid=nogroup", "--clear-groups", "--", secsyCopy(t)}, args...)...)
	}
	var b strings.Builder
	cmd.Stderr = &b
	_ = cmd.Run()
	return b.String(), cmd.ProcessState.ExitCode()
}

// secsyCopy is the program where nobody may run it.
func secsyCopy(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "secsy-bin-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b, err := os.ReadFile(secsy(t))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "secsy-pki")
	if err := os.WriteFile(file, b, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAReadOnlyFolderIsOneClearLineAndNothingIsMade(t *testing.T) {
	t.Parallel()
	parent, err := os.MkdirTemp("", "secsy-ro-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o555); err != nil {
		t.Fatal(err)
	}
	errs, code := unprivileged(t, append([]string{"quickstart", "--dir", filepath.Join(parent, "data")}, flags(t)...)...)
	oneLine(t, errs, code, parent, "permission denied")
	left, err := os.ReadDir(parent)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

// TestAFullDiskIsOneClearLineAndNothingIsHalfMade gives init a file system with
// room for a part of what it makes, in a mount namespace of the test's own.
func TestAFullDiskIsOneClearLineAndNothingIsHalfMade(t *testing.T) {
	t.Parallel()
	ns := []string{"--mount", "--propagation", "private"}
	if os.Getuid() != 0 {
		ns = append(ns, "--map-root-user")
	}
	for _, blocks := range []string{"4k", "12k", "20k"} {
		t.Run(blocks, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			script := `mount -t tmpfs -o size=` + blocks + ` tmpfs "$1" || exit 99
				shift 1; "$@"; code=$?
				ls -A "$MNT" | sed 's/^/left: /'
				exit $code`
			args := slices.Concat(ns, []string{"sh", "-c", script, "sh", parent, secsy(t)}, initArgs(filepath.Join(parent, "data")), flags(t))
			cmd := exec.Command("unshare", args...)
			cmd.Env = append(os.Environ(), "MNT="+parent)
			var out, errs strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &errs
			_ = cmd.Run()
			if cmd.ProcessState.ExitCode() == 99 {
				t.Fatalf("no tmpfs to be had: %s", errs.String())
			}
			oneLine(t, errs.String(), cmd.ProcessState.ExitCode(), "no space left on device")
			if strings.Contains(out.String(), "left: ") {
				t.Errorf("left behind: %s", out.String())
			}
		})
	}
}

func TestASecondServerOnTheSameDataIsOneClearLine(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{})
	_, errs, code := run(t, append([]string{"quickstart", "--dir", s.dir}, flags(t)...)...)
	oneLine(t, errs, code, "in use")
}
