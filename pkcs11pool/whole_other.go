//go:build !unix

package pkcs11pool

import (
	"unsafe"

	"github.com/miekg/pkcs11"
)

// bind returns what calls a module.
func bind(lib *pkcs11.Ctx, _ unsafe.Pointer) cryptoki { return lib }
