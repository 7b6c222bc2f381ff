package weakkey

import "math/big"

// FingerprintOf makes list lines in tests.
var FingerprintOf = fingerprintOf

// SmallOrderYs are the y coordinates that are refused.
func SmallOrderYs() []*big.Int { return ed25519Curve().smallOrder }

// EdwardsParameters are the field and d of the curve.
func EdwardsParameters() (p, d *big.Int) { return ed25519Curve().p, ed25519Curve().d }
