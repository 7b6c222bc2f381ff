package crl

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// spoolInMemory is how long a body may grow before it moves to a file. Most
// lists are shorter, and need neither a file descriptor nor a folder to write to.
const spoolInMemory = 1 << 20

// A spool is a body that is written once, from its start to its end, and then
// read by many. A long one is in a file that has no name: whatever becomes of
// the program, nothing of it stays behind.
type spool struct {
	mem  []byte
	file *os.File // nil: all is in mem
	size int64
}

// Write appends to the spool.
func (s *spool) Write(p []byte) (int, error) {
	if s.file == nil && len(s.mem)+len(p) <= spoolInMemory {
		s.mem = append(s.mem, p...)
		s.size += int64(len(p))
		return len(p), nil
	}
	if s.file == nil {
		if err := s.spill(); err != nil {
			return 0, err
		}
	}
	n, err := s.file.WriteAt(p, s.size)
	s.size += int64(n)
	return n, err
}

func (s *spool) spill() error {
	f, err := os.CreateTemp("", "secsy-pki-crl-")
	if err != nil {
		return fmt.Errorf("making a temporary file (TMPDIR says where): %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return errors.Join(err, f.Close())
	}
	if _, err := f.WriteAt(s.mem, 0); err != nil {
		return errors.Join(err, f.Close())
	}
	s.file, s.mem = f, nil
	return nil
}

// overwrite replaces what was written at off.
func (s *spool) overwrite(p []byte, off int64) error {
	if s.file == nil {
		copy(s.mem[off:], p)
		return nil
	}
	_, err := s.file.WriteAt(p, off)
	return err
}

// ReadAt implements io.ReaderAt.
func (s *spool) ReadAt(p []byte, off int64) (int, error) {
	if s.file != nil {
		return s.file.ReadAt(p, off)
	}
	if off >= int64(len(s.mem)) {
		return 0, io.EOF
	}
	n := copy(p, s.mem[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// close frees the spool, of which nothing may be read any more.
func (s *spool) close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
