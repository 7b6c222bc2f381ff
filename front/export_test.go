package front

// SetServingForTest makes r run its checks without a Front.
func SetServingForTest(r *Readiness) { r.set(serving) }
