//go:build !race

package pkcs11pool

// raceDetector says that the tests run under it.
const raceDetector = false
