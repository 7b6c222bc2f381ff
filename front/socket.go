package front

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// A socketListener is a local socket that only our own user can reach. Beside
// it lies a lock file, held as long as we live: two programs that start at once
// can't both find the socket of a dead one and take it from each other.
type socketListener struct {
	*net.UnixListener
	path string
	lock *os.File
	once sync.Once
}

// bindSocket opens the socket at path, mode 0600, in a directory of mode 0700.
// It makes the directory if there is none, and replaces a socket that nobody
// listens on.
func bindSocket(ctx context.Context, path string) (net.Listener, error) {
	if err := privateDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	ln, err := listenSocket(ctx, path)
	if err != nil {
		_ = unlock(lock)
		return nil, err
	}
	return &socketListener{UnixListener: ln, path: path, lock: lock}, nil
}

// Close also removes the socket, before the lock is let go.
func (s *socketListener) Close() error {
	err := s.UnixListener.Close()
	s.once.Do(func() { err = errors.Join(err, unlock(s.lock)) })
	return err
}

func listenSocket(ctx context.Context, path string) (*net.UnixListener, error) {
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening on socket %s: %w", path, err)
	}
	// Until here the mode is the umask's; the directory keeps others out.
	if err := os.Chmod(path, 0o600); err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("restricting socket %s: %w", path, err)
	}
	return ln.(*net.UnixListener), nil
}

func privateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the directory of a socket: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("checking the directory of a socket: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("directory %s of a socket is open to others: run chmod 700 %s", dir, dir)
	}
	return nil
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening its lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.New("another process serves it: stop that one or set another path")
		}
		return nil, fmt.Errorf("locking: %w", err)
	}
	return f, nil
}

// unlock ends the lock at once: a child that was just forked holds the file
// open, and with it the lock, until it becomes another program.
func unlock(f *os.File) error {
	return errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close())
}

// removeStale removes a socket whose process is dead. It asks by dialing, as
// the program that made it may know nothing of our lock.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("checking socket %s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("socket %s: a file that is no socket has this name: remove it or set another path", path)
	}
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		_ = c.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("socket %s: another process serves it: stop that one or set another path", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("removing stale socket: %w", err)
	}
	return nil
}
