//go:build unix

package pkcs11pool

/*
typedef unsigned long word;

// The part of a list of functions that is called here. Before the functions are
// two octets for the version, padded. They are as wide as a word.
enum { SIGN_INIT = 42, SIGN = 43 };
struct functions {
	unsigned char version[2];
	word f[68];
};

struct mechanism {
	word kind;
	void *parameter;
	word length;
};

// What the last call returned, which one that was, and how long the signature is.
struct outcome {
	word rv;
	word size;
	enum { BEGIN, HALTED, END } last;
};

// No type of the parameters has pointers in it: cgo has no need to look for Go's
// at each call.
static struct outcome sign_whole(struct functions *functions, unsigned int *halt, word session, word kind, unsigned char *parameter,
	word parameter_length, word key, unsigned char *message, word length, unsigned char *signature, word size)
{
	word *f = functions->f;
	struct mechanism m = {kind, parameter, parameter_length};
	struct outcome o = {0, size, BEGIN};
	o.rv = ((word (*)(word, struct mechanism *, word))f[SIGN_INIT])(session, &m, key);
	if (o.rv != 0) {
		return o;
	}
	if (__atomic_load_n(halt, __ATOMIC_SEQ_CST) != 0) {
		o.last = HALTED;
		return o;
	}
	o.last = END;
	o.rv = ((word (*)(word, void *, word, void *, word *))f[SIGN])(session, message, length, signature, &o.size);
	return o;
}
*/
import "C"

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/miekg/pkcs11"
)

// A library is the binding and, for what that is not good at, the module's list
// of functions.
type library struct {
	*pkcs11.Ctx
	functions unsafe.Pointer
}

// bind returns what calls a module.
func bind(lib *pkcs11.Ctx, functions unsafe.Pointer) cryptoki {
	if functions == nil {
		return lib
	}
	return library{lib, functions}
}

// SignWhole implements wholeSigner.
func (l library) SignWhole(halt *atomic.Uint32, s pkcs11.SessionHandle, m *pkcs11.Mechanism, key pkcs11.ObjectHandle,
	message, signature []byte,
) (n int, begin, end error) {
	o := C.sign_whole((*C.struct_functions)(l.functions), (*C.uint)(unsafe.Pointer(halt)), C.word(s),
		C.word(m.Mechanism), uchars(m.Parameter), C.word(len(m.Parameter)), C.word(key),
		uchars(message), C.word(len(message)), uchars(signature), C.word(len(signature)))
	switch {
	case o.last == C.HALTED:
		return 0, errAbandoned, nil
	case o.last == C.BEGIN:
		return 0, pkcs11.Error(o.rv), nil
	case o.rv != pkcs11.CKR_OK:
		return 0, nil, pkcs11.Error(o.rv)
	case o.size > C.word(len(signature)):
		return 0, nil, fmt.Errorf("%w: a signature of %d bytes where %d have room", errNonsense, uint64(o.size), len(signature))
	}
	return int(o.size), nil, nil
}

func uchars(b []byte) *C.uchar { return (*C.uchar)(unsafe.SliceData(b)) }
