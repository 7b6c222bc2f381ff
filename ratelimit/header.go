package ratelimit

import "strconv"

// readySeconds are the values that headers usually have, made once.
var readySeconds = func() (t [601][]string) {
	for i := range t {
		t[i] = []string{strconv.Itoa(i)}
	}
	return t
}()

// SecondsHeader is n seconds, at least one, as the values of a Retry-After. It is
// shared by all answers, and nobody changes it: who appends makes a copy. Up to
// ten minutes it allocates nothing.
func SecondsHeader(n int64) []string {
	n = max(n, 1)
	if n < int64(len(readySeconds)) {
		return readySeconds[n]
	}
	return []string{strconv.FormatInt(n, 10)}
}
