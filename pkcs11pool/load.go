package pkcs11pool

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/miekg/pkcs11"
)

// loaded has the modules of this process: a library is loaded and initialized
// once, whoever uses it, and stays loaded.
var loaded struct {
	mu      sync.Mutex
	modules map[string]*module // by real path
}

// load returns the module at path.
func load(path string) (*module, error) {
	file, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w: want the full path of one", ErrModule, err)
	}
	if file, err = filepath.Abs(file); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrModule, err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrModule, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is not a file", ErrModule, path)
	}
	loaded.mu.Lock()
	defer loaded.mu.Unlock()
	if m := loaded.modules[file]; m != nil {
		return m, nil
	}
	if err := intact(file, info.Size()); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrModule, path, err)
	}
	functions, err := loadable(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrModule, path, err)
	}
	lib := pkcs11.New(file)
	if lib == nil {
		return nil, fmt.Errorf("%w: %s can't be loaded", ErrModule, path)
	}
	if loaded.modules == nil {
		loaded.modules = map[string]*module{}
	}
	m := newModule(path, bind(lib, functions))
	loaded.modules[file] = m
	return m, nil
}

// intact says why a file is no library of this machine where the loader would
// kill the process, as it does for one that was cut off, or say something else.
func intact(path string, size int64) error {
	if runtime.GOOS != "linux" {
		return nil // there are other kinds of files
	}
	f, err := elf.Open(path)
	if err != nil {
		return errors.New("it is no shared library, or was cut off")
	}
	defer func() { _ = f.Close() }() // only read
	own, err := elf.Open("/proc/self/exe")
	if err == nil {
		defer func() { _ = own.Close() }() // only read
		if f.Machine != own.Machine || f.Class != own.Class {
			return fmt.Errorf("it is for another machine: %v, not %v", f.Machine, own.Machine)
		}
	}
	for _, p := range f.Progs {
		if p.Filesz > 0 && (p.Off > uint64(size) || p.Filesz > uint64(size)-p.Off) {
			return errors.New("the file is cut off")
		}
	}
	return nil
}
