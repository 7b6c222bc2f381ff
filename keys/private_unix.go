//go:build unix

package keys

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// openPrivate opens a regular file for reading if nobody but its owner, or a
// group chosen by root, has access to it. It judges the open file, so that
// nobody can put another in its place meanwhile.
func openPrivate(path string) (*os.File, error) {
	// Without O_NONBLOCK a pipe of that name would hang the program.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil {
		err = checkPrivate(path, fi, os.Geteuid())
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func checkPrivate(path string, fi fs.FileInfo, uid int) error {
	if !fi.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	owner, err := ownerOf(path, fi)
	if err != nil {
		return err
	}
	forbidden := fs.FileMode(0o077)
	switch owner {
	case uid:
	case 0:
		// A secret laid out by root (Kubernetes, systemd, configuration
		// management) reaches an unprivileged service through its group.
		forbidden = 0o037
	default:
		return fmt.Errorf("%s belongs to user %d, neither to the running user %d nor to root", path, owner, uid)
	}
	if mode := fi.Mode().Perm(); mode&forbidden != 0 {
		return fmt.Errorf("%s is open to others (mode %04o): chmod it to %04o", path, mode, mode&^forbidden)
	}
	return nil
}

// checkDir refuses a directory in which others could exchange files.
func checkDir(dir string) error {
	fi, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	owner, err := ownerOf(dir, fi)
	if err != nil {
		return err
	}
	if uid := os.Geteuid(); owner != uid && owner != 0 {
		return fmt.Errorf("%s belongs to user %d, neither to the running user %d nor to root", dir, owner, uid)
	}
	forbidden := fs.FileMode(0o022)
	if owner == 0 {
		forbidden = 0o002 // a volume that root lends to a group (Kubernetes fsGroup)
	}
	if mode := fi.Mode().Perm(); mode&forbidden != 0 {
		return fmt.Errorf("%s can be written by others (mode %04o): chmod it to 0700", dir, mode)
	}
	return nil
}

func ownerOf(path string, fi fs.FileInfo) (int, error) {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("%s: the owner is unknown", path)
	}
	return int(st.Uid), nil
}
