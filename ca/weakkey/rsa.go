package weakkey

import (
	"crypto/rsa"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/titanous/rocacheck"
)

func checkRSA(pub *rsa.PublicKey, p Policy) *Error {
	if pub == nil || pub.N == nil || pub.N.Sign() <= 0 {
		return refuse(Malformed, "the RSA key has no modulus")
	}
	// The size comes first: what follows costs more the larger the key.
	if e := checkRSASize(pub.N.BitLen(), p); e != nil {
		return e
	}
	if pub.E != 65537 {
		return refuse(Exponent, "the RSA public exponent must be 65537")
	}
	switch {
	case pub.N.Bit(0) == 0:
		return refuse(Malformed, "the RSA modulus is even")
	case hasSmallFactor(pub.N):
		return refuse(SmallFactor, "the RSA modulus has a small prime factor")
	case rocacheck.IsWeak(pub):
		return refuse(ROCA, "the RSA key was made by a flawed chip (ROCA, CVE-2017-15361)")
	case primesAreClose(pub.N):
		return refuse(ClosePrimes, "the primes of the RSA key are too close to each other")
	case p.Debian.Has(pub):
		return refuse(Debian, "the RSA key was made by a flawed random number generator (CVE-2008-0166)")
	}
	return nil
}

func checkRSASize(bits int, p Policy) *Error {
	if p.RSASizes != nil {
		if !slices.Contains(p.RSASizes, bits) {
			return refuse(Size, "RSA keys of %d bits are not allowed: use %s", bits, orList(p.RSASizes))
		}
		return nil
	}
	switch {
	case p.RSAMax == 0:
		return refuse(Unsupported, "RSA keys are not allowed")
	case bits < p.RSAMin || bits > p.RSAMax || bits%8 != 0:
		return refuse(Size, "RSA keys of %d bits are not allowed: use %d to %d, in whole bytes", bits, p.RSAMin, p.RSAMax)
	}
	return nil
}

func orList(sizes []int) string {
	var words []string
	for _, n := range sizes {
		words = append(words, strconv.Itoa(n))
	}
	return strings.Join(words, " or ")
}

// smallPrimes is the product of the odd primes below 752.
var smallPrimes = sync.OnceValue(func() *big.Int {
	product, p := big.NewInt(1), new(big.Int)
	for n := int64(3); n < 752; n += 2 {
		if p.SetInt64(n).ProbablyPrime(0) { // exact for small numbers
			product.Mul(product, p)
		}
	}
	return product
})

func hasSmallFactor(n *big.Int) bool {
	gcd := new(big.Int).GCD(nil, nil, n, smallPrimes())
	return gcd.BitLen() > 1
}

// fermatRounds is how long close primes are looked for; the Baseline
// Requirements (§6.1.1.3) want 100 at least.
const fermatRounds = 110

// primesAreClose tries Fermat's factorization: n = a² − b² with a from √n up.
//
// Only the first square is computed in full. From then on a²−n is followed
// modulo a product of small numbers, which tells nearly all non-squares.
func primesAreClose(n *big.Int) bool {
	a := new(big.Int).Sqrt(n)
	rest := new(big.Int).Mul(a, a)
	if rest.Cmp(n) != 0 { // round the root up
		a.Add(a, big.NewInt(1))
		rest.Mul(a, a)
	}
	rest.Sub(rest, n)

	sieve := squares()
	modulus := new(big.Int).SetUint64(sieve.modulus)
	am := new(big.Int).Mod(a, modulus).Uint64()
	rm := new(big.Int).Mod(rest, modulus).Uint64()
	for i := range uint64(fermatRounds) {
		if sieve.maybeSquare(rm) && isSquare(restAfter(a, rest, i)) {
			return true
		}
		// (a+1)² − n = (a² − n) + 2a + 1; the modulus is far below 2^62.
		rm = (rm + 2*am + 1) % sieve.modulus
		am = (am + 1) % sieve.modulus
	}
	return false
}

// restAfter is (a+i)² − n for rest = a² − n.
func restAfter(a, rest *big.Int, i uint64) *big.Int {
	step := new(big.Int).SetUint64(i)
	sum := new(big.Int).Lsh(a, 1)
	sum.Add(sum, step).Mul(sum, step) // 2ai + i²
	return sum.Add(sum, rest)
}

func isSquare(n *big.Int) bool {
	root := new(big.Int).Sqrt(n)
	return root.Mul(root, root).Cmp(n) == 0
}

// A squareSieve knows the squares modulo small numbers, and so tells most
// numbers that are no squares from their remainder modulo the product of these.
type squareSieve struct {
	modulus uint64
	factors []uint64
	residue [][]bool // by factor, then remainder
}

var squares = sync.OnceValue(func() squareSieve {
	s := squareSieve{modulus: 1, factors: []uint64{64, 63, 65, 11, 17, 19, 23, 29, 31}}
	for _, f := range s.factors { // coprime in pairs
		s.modulus *= f
		residue := make([]bool, f)
		for x := range f {
			residue[x*x%f] = true
		}
		s.residue = append(s.residue, residue)
	}
	return s
})

func (s squareSieve) maybeSquare(n uint64) bool {
	for i, f := range s.factors {
		if !s.residue[i][n%f] {
			return false
		}
	}
	return true
}
