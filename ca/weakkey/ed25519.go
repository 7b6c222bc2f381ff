package weakkey

import (
	"crypto/ed25519"
	"math/big"
	"slices"
	"sync"
)

// edwards is the curve −x² + y² = 1 + d·x²·y² over the field of 2^255−19
// elements (RFC 8032 §5.1).
type edwards struct {
	p, d *big.Int
	// smallOrder holds the y of the points whose order divides 8: 0 (order 4),
	// 1 (the neutral point), −1 (order 2) and two of order 8.
	smallOrder []*big.Int
}

var ed25519Curve = sync.OnceValue(func() edwards {
	p := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 255), big.NewInt(19))
	d := big.NewInt(-121665)
	d.Mul(d, new(big.Int).ModInverse(big.NewInt(121666), p)).Mod(d, p)
	c := edwards{p: p, d: d, smallOrder: []*big.Int{
		big.NewInt(0), big.NewInt(1), new(big.Int).Sub(p, big.NewInt(1)),
	}}
	// A point of order 8 doubles to one with y = 0, which is x² = −y², so that
	// d·y⁴ + 2·y² − 1 = 0 and y² = (−1 ± √(1+d)) / d.
	root := new(big.Int).ModSqrt(new(big.Int).Add(d, big.NewInt(1)), p)
	for _, r := range []*big.Int{root, new(big.Int).Neg(root)} {
		y2 := new(big.Int).Sub(r, big.NewInt(1))
		y2.Mul(y2, new(big.Int).ModInverse(d, p)).Mod(y2, p)
		if y := new(big.Int).ModSqrt(y2, p); y != nil {
			c.smallOrder = append(c.smallOrder, y, new(big.Int).Sub(p, y))
		}
	}
	return c
})

func checkEd25519(pub ed25519.PublicKey, p Policy) *Error {
	if !p.Ed25519 {
		return refuse(Unsupported, "Ed25519 keys are not allowed")
	}
	if len(pub) != ed25519.PublicKeySize {
		return refuse(Malformed, "the Ed25519 key is not %d bytes long", ed25519.PublicKeySize)
	}
	le := slices.Clone(pub)
	le[31] &= 0x7f // the sign of x
	slices.Reverse(le)
	y := new(big.Int).SetBytes(le)
	c := ed25519Curve()
	switch {
	case y.Cmp(c.p) >= 0:
		return refuse(Malformed, "the Ed25519 key is not in its canonical form")
	case c.isSmallOrder(y):
		// With such a key, anybody's signature verifies over anything.
		return refuse(SmallOrder, "the Ed25519 key is a point of small order")
	case !c.has(y):
		return refuse(Malformed, "the Ed25519 key is not a point on its curve")
	}
	return nil
}

func (c edwards) isSmallOrder(y *big.Int) bool {
	return slices.ContainsFunc(c.smallOrder, func(s *big.Int) bool { return s.Cmp(y) == 0 })
}

// has reports whether there is a point with this y: whether x² = (y²−1)/(d·y²+1)
// is a square, which it is if the product of the two is. The divisor is never
// zero, because −1/d is no square.
func (c edwards) has(y *big.Int) bool {
	y2 := new(big.Int).Mul(y, y)
	u := new(big.Int).Sub(y2, big.NewInt(1))
	v := new(big.Int).Mul(y2, c.d)
	v.Add(v, big.NewInt(1)).Mul(v, u).Mod(v, c.p)
	return big.Jacobi(v, c.p) >= 0
}
