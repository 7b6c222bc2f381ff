// Package pkcs11pool is a key store on PKCS#11 tokens: its keys never leave the
// device, which is called through a bounded number of sessions.
//
// A session belongs to a goroutine of its own, which alone calls the device with
// it. Whoever wants something done borrows the session, hands the work over and
// waits: a call that never returns costs its session and its thread, and not
// whoever waited. No lock is held while the device is called. A goroutine that is
// locked to its thread by runtime.LockOSThread must not use a Pool.
//
// A token is up, or down and being brought back by one goroutine with growing
// pauses. What the device can't have done is tried again on another session or
// token; what it may have done is tried again only if doing it twice is
// harmless. While no token is up, everything is refused at once with a
// *keys.BusyError that says when the next attempt is.
package pkcs11pool
