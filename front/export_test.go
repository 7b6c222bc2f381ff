package front

import "net/http"

// SetServingForTest makes r run its checks without a Front.
func SetServingForTest(r *Readiness) { r.set(serving) }

// HandlersForTest returns what each listener serves, without its sockets.
func HandlersForTest(f *Front) []http.Handler {
	var all []http.Handler
	for _, s := range f.servers {
		all = append(all, s)
	}
	return all
}
