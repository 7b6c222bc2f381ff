package front_test

import (
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/front"
	"github.com/secsy-pki/secsy-pki/peer"
)

func operator(path string) front.Listener {
	return front.Listener{Name: "operator", Socket: path, Operator: true}
}

func socketFront(t *testing.T, path string) *front.Front {
	t.Helper()
	f, err := front.New(front.Config{Listeners: []front.Listener{operator(path)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	i, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return i.Mode()
}

func TestALocalSocketIsOursAloneAndNamesItsCaller(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "run", "op.sock")
	h := open(t, one(operator(path), func(w http.ResponseWriter, r *http.Request) {
		c, ok := peer.CredFrom(r.Context())
		p := peer.From(r.Context())
		_, _ = fmt.Fprintf(w, "uid=%d pid=%d %v addr=%v", c.UID, c.PID, ok, p.Addr.IsValid())
	}))
	if m := mode(t, path); m != fs.ModeSocket|0o600 {
		t.Errorf("socket has mode %v, want 0600", m)
	}
	if m := mode(t, filepath.Dir(path)).Perm(); m != 0o700 {
		t.Errorf("directory has mode %v, want 0700", m)
	}
	_, got := ask(t, path, "/", "X-Forwarded-For: 6.6.6.6")
	if want := fmt.Sprintf("uid=%d pid=%d true addr=false", os.Getuid(), os.Getpid()); got != want {
		t.Errorf("caller is %q, want %q", got, want)
	}
	line := h.log.next(t, "request")
	if line["client"] != "local" || line["local"].(map[string]any)["uid"] != float64(os.Getuid()) {
		t.Errorf("access line %v", line)
	}
	h.stop()
	if err := <-h.done; err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket stays after the end: %v", err)
	}
}

func TestANetworkCallerHasNoCredentials(t *testing.T) {
	t.Parallel()
	h := open(t, one(front.Listener{}, func(w http.ResponseWriter, r *http.Request) {
		_, ok := peer.CredFrom(r.Context())
		_, _ = fmt.Fprint(w, ok)
	}))
	if _, got := ask(t, h.address(), "/"); got != "false" {
		t.Errorf("credentials over TCP: %s", got)
	}
}

func TestAStaleSocketIsReplaced(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "run", "op.sock")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	var lc net.ListenConfig
	dead, err := lc.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false) // as a killed process leaves it
	if err := dead.Close(); err != nil {
		t.Fatal(err)
	}
	if err := socketFront(t, path).Listen(t.Context()); err != nil {
		t.Errorf("a stale socket stands in the way: %v", err)
	}
	dial(t, path)
}

func TestALiveSocketIsNotTaken(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "run", "op.sock")
	first := socketFront(t, path)
	if err := first.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	err := socketFront(t, path).Listen(t.Context())
	if err == nil || !strings.Contains(err.Error(), "another process") || !strings.Contains(err.Error(), path) {
		t.Errorf("second Listen = %v, want an error that names the socket", err)
	}
	dial(t, path) // the first one still answers

	foreign := filepath.Join(filepath.Dir(path), "foreign.sock") // its owner knows no lock
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "unix", foreign)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	if err := socketFront(t, foreign).Listen(t.Context()); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("Listen on a foreign live socket = %v", err)
	}
	dial(t, foreign)
}

func TestASocketIsNotPutWhereOthersReach(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	err := socketFront(t, filepath.Join(dir, "op.sock")).Listen(t.Context())
	if err == nil || !strings.Contains(err.Error(), "chmod 700 "+dir) {
		t.Errorf("Listen in an open directory = %v", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "precious")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := socketFront(t, file).Listen(t.Context()); err == nil {
		t.Error("a file that is no socket was replaced")
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "x" {
		t.Errorf("the file is %q, %v", b, err)
	}
}
