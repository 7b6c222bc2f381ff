//go:build !unix

package pkcs11pool

import "unsafe"

// loadable is left to the binding.
func loadable(string) (unsafe.Pointer, error) { return nil, nil }
