//go:build !unix

package pkcs11pool

// loadable is left to the binding.
func loadable(string) error { return nil }
