package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/ocsp"
)

// sharedLibrary finds a module of a Debian package.
func sharedLibrary(t testing.TB, name string) string {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/*/pkcs11/" + name)
	if len(found) == 0 {
		t.Fatalf("%s is not installed: run scripts/test-deps", name)
	}
	return found[0]
}

// A remote is a token of SoftHSM that p11-kit serves on a socket.
type remote struct {
	token   // as it is reached by the socket
	behind  token
	socket  string
	process *process
}

func newRemote(t testing.TB) *remote {
	t.Helper()
	r := &remote{behind: newSoftHSM(t), socket: filepath.Join(t.TempDir(), "s")}
	r.token = r.behind
	r.module = sharedLibrary(t, "p11-kit-client.so")
	r.environ = []string{"P11_KIT_SERVER_ADDRESS=unix:path=" + r.socket}
	r.start(t)
	return r
}

func (r *remote) start(t testing.TB) {
	t.Helper()
	cmd := exec.Command("setsid", "p11-kit", "server", "--foreground", "--name", r.socket, "--provider", r.behind.module, "pkcs11:token="+r.label)
	cmd.Env = append(os.Environ(), r.behind.environ...)
	// A group of its own, which ends together.
	r.process = start(t, "p11-kit server", cmd)
	group := r.process.cmd.Process.Pid
	t.Cleanup(func() { _ = syscall.Kill(-group, syscall.SIGKILL) })
	waitFor(t, "p11-kit server", func() error { _, err := os.Stat(r.socket); return err })
}

// crash ends the server and its processes for each connection at once.
func (r *remote) crash(t testing.TB) {
	t.Helper()
	if err := syscall.Kill(-r.process.cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-r.process.done
	if err := os.RemoveAll(r.socket); err != nil {
		t.Fatal(err)
	}
}

// A module whose other end dies and comes back is the commonest trouble of all.
func TestAModuleWhoseServerDiesIsOutlived(t *testing.T) {
	t.Parallel()
	r := newRemote(t)
	s := startHSM(t, dnsMock{}, r.token)
	u := newSubscriber(t, s)
	serveChallenges(t, s.http01, u.client)
	known := u.mustObtain(nil)
	answer, order := s.askOCSP(t, known), u.ready()

	r.crash(t)
	done := make(chan error, 1)
	go func() {
		_, _, err := u.finalize(t.Context(), order)
		done <- err
	}()
	u.becomes(order.URI, acme.StatusProcessing)
	if string(s.askOCSP(t, known)) != string(answer) {
		t.Error("another answer than the one that was ready")
	}
	r.start(t)
	if err := <-done; err != nil {
		t.Errorf("the order: %v", err)
	}
	s.says(t, u.mustObtain(nil), ocsp.Good)
	s.waitReady(t)
	s.everyKeyStays(t, r.behind)
}
