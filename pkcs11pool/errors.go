package pkcs11pool

import (
	"errors"
	"fmt"
	"strings"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

var (
	// ErrPIN says that a token does not accept the PIN, or that one more wrong PIN
	// would lock it. It is not tried again.
	ErrPIN = errors.New("pkcs11pool: the token does not accept the PIN")

	// ErrModule says that a file is no PKCS#11 module that can be used here.
	ErrModule = errors.New("no PKCS#11 module")

	errClosed = errors.New("pkcs11pool: the pool is closed")
	// errStale says that a session was not used, because its handle may be
	// another's by now.
	errStale = errors.New("the session is of the time before the module was initialized anew")
	// errAbandoned says that a call was not made: nobody waits for it any more, or
	// the session is gone.
	errAbandoned = errors.New("the session is given up")
	errPanic     = errors.New("panic")
	// errNonsense says that a call succeeded with what can't be its result.
	errNonsense = errors.New("the device answered nonsense")
	errNoToken  = errors.New("no such token")
	errKeyLost  = errors.New("the token has not the key any more that it had")
)

// A callError is what one call of the device returned.
type callError struct {
	call string
	code pkcs11.Error
}

func (e *callError) Error() string {
	text := e.code.Error() // "pkcs11: 0x30: CKR_DEVICE_ERROR"
	name := text[strings.LastIndexByte(text, ' ')+1:]
	switch {
	case name != "":
	case uint(e.code) >= pkcs11.CKR_VENDOR_DEFINED:
		name = "a code of the vendor's"
	default:
		name = "an unknown code"
	}
	return fmt.Sprintf("%s: %s (0x%X)", e.call, name, uint(e.code))
}

func (e *callError) Unwrap() error { return e.code }

// A class is what an error says about what it came from.
type class uint8

// From the least to the worst.
const (
	classNone    class = iota
	classData          // of the question: the session has nothing
	classHandle        // of an object, which has another handle by now
	classLimit         // there are as many sessions as there may be
	classSession       // the session is of no use any more
	classSuspect       // the session is not to be trusted, and perhaps the token
	classToken         // the token can't be used as it is
	classPIN           // it must not be logged in to again
	classes
)

func (c class) String() string {
	return [...]string{"none", "data", "handle", "limit", "session", "suspect", "token", "pin"}[c]
}

// A meaning is what the standard says of a return code.
type meaning struct {
	class class
	// idle says that nothing was done: the code is returned before the work
	// begins, or instead of it.
	idle bool
}

// meanings has the codes that are more than suspicious, or less. All others may
// mean anything, those of vendors first of all.
var meanings = map[pkcs11.Error]meaning{
	pkcs11.CKR_SESSION_HANDLE_INVALID:    {classSession, true},
	pkcs11.CKR_SESSION_CLOSED:            {classSession, false}, // "during the execution"
	pkcs11.CKR_OPERATION_ACTIVE:          {classSession, true},
	pkcs11.CKR_OPERATION_NOT_INITIALIZED: {classSession, true},
	pkcs11.CKR_SESSION_COUNT:             {classLimit, true},
	pkcs11.CKR_KEY_HANDLE_INVALID:        {classHandle, true},
	pkcs11.CKR_OBJECT_HANDLE_INVALID:     {classHandle, true},

	pkcs11.CKR_TOKEN_NOT_PRESENT:              {classToken, true}, // "at the time that the function was invoked"
	pkcs11.CKR_TOKEN_NOT_RECOGNIZED:           {classToken, true},
	pkcs11.CKR_SLOT_ID_INVALID:                {classToken, true},
	pkcs11.CKR_USER_NOT_LOGGED_IN:             {classToken, true},
	pkcs11.CKR_CRYPTOKI_NOT_INITIALIZED:       {classToken, true},
	pkcs11.CKR_USER_ANOTHER_ALREADY_LOGGED_IN: {classToken, true},
	pkcs11.CKR_USER_TOO_MANY_TYPES:            {classToken, true},
	pkcs11.CKR_DEVICE_REMOVED:                 {classToken, false}, // "during its execution"
	pkcs11.CKR_FIPS_SELF_TEST_FAILED:          {classToken, false},
	pkcs11.CKR_LIBRARY_LOAD_FAILED:            {classToken, false},

	pkcs11.CKR_PIN_INCORRECT:            {classPIN, true},
	pkcs11.CKR_PIN_INVALID:              {classPIN, true},
	pkcs11.CKR_PIN_LEN_RANGE:            {classPIN, true},
	pkcs11.CKR_PIN_LOCKED:               {classPIN, true},
	pkcs11.CKR_PIN_EXPIRED:              {classPIN, true},
	pkcs11.CKR_USER_PIN_NOT_INITIALIZED: {classPIN, true},

	pkcs11.CKR_ARGUMENTS_BAD:              {classData, true},
	pkcs11.CKR_DATA_INVALID:               {classData, true},
	pkcs11.CKR_DATA_LEN_RANGE:             {classData, true},
	pkcs11.CKR_ENCRYPTED_DATA_INVALID:     {classData, true},
	pkcs11.CKR_ENCRYPTED_DATA_LEN_RANGE:   {classData, true},
	pkcs11.CKR_MECHANISM_INVALID:          {classData, true},
	pkcs11.CKR_MECHANISM_PARAM_INVALID:    {classData, true},
	pkcs11.CKR_KEY_SIZE_RANGE:             {classData, true},
	pkcs11.CKR_KEY_TYPE_INCONSISTENT:      {classData, true},
	pkcs11.CKR_KEY_FUNCTION_NOT_PERMITTED: {classData, true},
	pkcs11.CKR_KEY_UNEXTRACTABLE:          {classData, true},
	pkcs11.CKR_ATTRIBUTE_READ_ONLY:        {classData, true},
	pkcs11.CKR_ATTRIBUTE_SENSITIVE:        {classData, true},
	pkcs11.CKR_ATTRIBUTE_TYPE_INVALID:     {classData, true},
	pkcs11.CKR_ATTRIBUTE_VALUE_INVALID:    {classData, true},
	pkcs11.CKR_ACTION_PROHIBITED:          {classData, true},
	pkcs11.CKR_TEMPLATE_INCOMPLETE:        {classData, true},
	pkcs11.CKR_TEMPLATE_INCONSISTENT:      {classData, true},
	pkcs11.CKR_TOKEN_WRITE_PROTECTED:      {classData, true},
	pkcs11.CKR_SESSION_READ_ONLY:          {classData, true},
	pkcs11.CKR_CURVE_NOT_SUPPORTED:        {classData, true},
	pkcs11.CKR_DOMAIN_PARAMS_INVALID:      {classData, true},
	pkcs11.CKR_FUNCTION_NOT_SUPPORTED:     {classData, true},
	pkcs11.CKR_PUBLIC_KEY_INVALID:         {classData, true},
	pkcs11.CKR_INFORMATION_SENSITIVE:      {classData, true},
	pkcs11.CKR_RANDOM_SEED_NOT_SUPPORTED:  {classData, true},
	pkcs11.CKR_KEY_INDIGESTIBLE:           {classData, true},
	pkcs11.CKR_KEY_NEEDED:                 {classData, true},
	pkcs11.CKR_KEY_NOT_NEEDED:             {classData, true},
	pkcs11.CKR_SIGNATURE_INVALID:          {classData, true},
	pkcs11.CKR_SIGNATURE_LEN_RANGE:        {classData, true},
	pkcs11.CKR_USER_ALREADY_LOGGED_IN:     {classData, true},
}

// meaningOf says what an error of a job or a call means. An error that no call
// returned is the job's own, which says nothing about the device.
func meaningOf(err error) meaning {
	switch code, ok := errors.AsType[pkcs11.Error](err); {
	case err == nil:
		return meaning{}
	case errors.Is(err, ErrPIN):
		return meaning{class: classPIN, idle: true}
	case ok:
		if m, known := meanings[code]; known {
			return m
		}
		return meaning{class: classSuspect}
	case errors.Is(err, errStale), errors.Is(err, errNoToken), errors.Is(err, errKeyLost):
		return meaning{class: classToken, idle: true}
	case errors.Is(err, errNonsense):
		return meaning{class: classSuspect}
	case errors.Is(err, errPanic), errors.Is(err, errAbandoned):
		return meaning{class: classSession}
	default:
		return meaning{}
	}
}

// isCode reports whether a call returned that code.
func isCode(err error, code uint) bool { return errors.Is(err, pkcs11.Error(code)) }

// isHung reports whether an error is of a call that has not returned.
func isHung(err error) bool {
	_, yes := errors.AsType[*keys.HungError](err)
	return yes
}
