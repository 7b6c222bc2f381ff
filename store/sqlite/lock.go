package sqlite

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// takeLock makes this process the only one to use the database at path, until
// the file is closed. Sharing one commit between writers needs one writer.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, explainPath(path, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("database %s is in use by another secsy-pki (pid %s)", path, owner(f))
		} else {
			err = fmt.Errorf("locking %s: %w", f.Name(), err)
		}
		return nil, errors.Join(err, f.Close())
	}
	if err := writeOwner(f); err != nil {
		return nil, errors.Join(fmt.Errorf("writing %s: %w", f.Name(), err), giveLock(f))
	}
	return f, nil
}

// giveLock ends it at once: a child that was just forked holds the file open, and
// with it the lock, until it becomes another program.
func giveLock(f *os.File) error {
	return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
}

func writeOwner(f *os.File) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func owner(f io.ReaderAt) string {
	buf := make([]byte, 20)
	n, err := f.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "unknown"
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		return "unknown" // it has the lock, and has not written its pid yet
	}
	return strconv.Itoa(pid)
}

// explainPath says in one line why a file beside the database can't be opened.
func explainPath(path string, err error) error {
	dir := filepath.Dir(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("folder %s does not exist: %w", dir, err)
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%s is not a folder: %w", dir, err)
	case errors.Is(err, unix.EISDIR):
		return fmt.Errorf("%s is a folder, not a database: %w", path, err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return fmt.Errorf("folder %s or the database in it is not writable: %w", dir, err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("the disk of %s is full: %w", dir, err)
	}
	return fmt.Errorf("opening database %s: %w", path, err)
}
