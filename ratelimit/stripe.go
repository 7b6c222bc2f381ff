package ratelimit

import "unsafe"

// stripes are the parts of a counter, so that processors that count at the same
// time seldom write to the same cache line. One part for each source would not
// do: it is a single source that a flood comes from.
const stripes = 8

// stripeOf picks a part by where the caller's stack lies, which goroutines that
// run at the same time have apart. Any part is right; a poor choice costs time.
func stripeOf() uint {
	var here byte
	// Only its number counts; it is never made a pointer again.
	a := uint64(uintptr(unsafe.Pointer(&here))) >> 11 // the size of the smallest stack
	return uint(a * 0x9e3779b97f4a7c15 >> (64 - 3))
}
