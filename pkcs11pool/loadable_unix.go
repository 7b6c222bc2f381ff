//go:build unix

package pkcs11pool

/*
#cgo linux LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

// loadable loads a module, which stays so, and has it give its functions. It
// returns what is wrong, or NULL, and the module's return code.
static const char *loadable(const char *path, unsigned long *rv, void **functions, void **again) {
	void *module = dlopen(path, RTLD_LAZY);
	if (module == NULL) {
		return dlerror();
	}
	unsigned long (*get)(void **) = (unsigned long (*)(void **))dlsym(module, "C_GetFunctionList");
	if (get == NULL) {
		return dlerror();
	}
	*rv = get(functions);
	if (*rv == 0) {
		*rv = get(again);
	}
	return NULL;
}
*/
import "C"

import (
	"errors"
	"runtime"
	"strings"
	"unsafe"

	"github.com/miekg/pkcs11"
)

// loadable returns a module's functions, none if they are others for each who asks,
// as those of p11-kit's client are: the binding has its own then. Or it says why a file is no PKCS#11 module
// of this machine. The binding would call a function that is not there.
func loadable(path string) (functions unsafe.Pointer, err error) {
	runtime.LockOSThread() // dlerror is of the thread
	defer runtime.UnlockOSThread()
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	var rv C.ulong
	var again unsafe.Pointer
	if wrong := C.loadable(name, &rv, &functions, &again); wrong != nil {
		return nil, errors.New(strings.TrimPrefix(C.GoString(wrong), path+": "))
	}
	if rv != pkcs11.CKR_OK {
		return nil, &callError{call: "C_GetFunctionList", code: pkcs11.Error(rv)}
	}
	if functions == nil {
		return nil, errors.New("C_GetFunctionList gave none")
	}
	if again != functions {
		return nil, nil
	}
	return functions, nil
}
