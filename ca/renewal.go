package ca

import "time"

// A Window is when a certificate is best renewed (RFC 9773 §4.2). Start is
// before End, both in whole seconds.
type Window struct{ Start, End time.Time }

// Contains reports whether t is in the window, both ends included.
func (w Window) Contains(t time.Time) bool { return !t.Before(w.Start) && !t.After(w.End) }

// SuggestedWindow is when a certificate of this validity is best renewed: from
// three fifths of its lifetime to two thirds. It ends where the clients that ask
// nobody begin, and leaves a third for what may go wrong; a fifteenth is wide
// enough to spread what was issued on one day over some.
func SuggestedWindow(notBefore, notAfter time.Time) Window {
	// notAfter is the last second of the period (RFC 5280 §4.1.2.5).
	life := notAfter.Sub(notBefore) + time.Second
	w := Window{
		Start: notBefore.Add(life / 5 * 3).UTC().Truncate(time.Second),
		End:   notBefore.Add(life / 3 * 2).UTC().Truncate(time.Second),
	}
	if !w.End.After(w.Start) {
		w.End = w.Start.Add(time.Second)
	}
	return w
}

// revokedLead is how far in the past the window of a revoked certificate begins.
const revokedLead = time.Hour

// RenewalWindow is when the certificate of r is best renewed if nobody says
// otherwise. That of a revoked one is over: renew now.
func (r Record) RenewalWindow() Window {
	if !r.Revoked() {
		return SuggestedWindow(r.NotBefore, r.NotAfter)
	}
	end := r.RevokedAt.UTC().Truncate(time.Second)
	return Window{Start: end.Add(-revokedLead), End: end}
}
