package pkcs11pool

import (
	"fmt"
	"os"
	"path/filepath"
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
		return nil, fmt.Errorf("module: %w", err)
	}
	if file, err = filepath.Abs(file); err != nil {
		return nil, fmt.Errorf("module: %w", err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("module: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("module %s: not a file", path)
	}
	loaded.mu.Lock()
	defer loaded.mu.Unlock()
	if m := loaded.modules[file]; m != nil {
		return m, nil
	}
	functions, err := loadable(file)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", path, err)
	}
	lib := pkcs11.New(file)
	if lib == nil {
		return nil, fmt.Errorf("module %s: can't be loaded", path)
	}
	if loaded.modules == nil {
		loaded.modules = map[string]*module{}
	}
	m := newModule(path, bind(lib, functions))
	loaded.modules[file] = m
	return m, nil
}
