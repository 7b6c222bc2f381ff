package front

import "net"

// SetServingForTest makes r run its checks without a Front.
func SetServingForTest(r *Readiness) { r.set(serving) }

// ListenOnForTest gives each listener what it accepts from, by name, in place of
// Listen.
func ListenOnForTest(f *Front, listeners map[string]net.Listener) {
	for _, s := range f.servers {
		s.ln = s.bound(listeners[s.cfg.Name])
	}
}
