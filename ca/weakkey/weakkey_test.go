package weakkey_test

import (
	"crypto"
	"crypto/dsa" //nolint:staticcheck // a kind of key that must be refused
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/ca/weakkey"
)

// debianKey is a real key from the flawed generator of CVE-2008-0166, as the
// public test data of key checkers has it.
const debianKey = `-----BEGIN RSA PUBLIC KEY-----
MIIBCgKCAQEAwJZTDExKND/DiP+LbhTIi2F0hZZt0PdX897LLwPf3+b1GOCUj1OH
BZvVqhJPJtOPE53W68I0NgVhaJdY6bFOA/cUUIFnN0y/ZOJOJsPNle1aXQTjxAS+
FXu4CQ6a2pzcU+9+gGwed7XxAkIVCiTprfmRCI2vIKdb61S8kf5D3YdVRH/Tq977
nxyYeosEGYJFBOIT+N0mqca37S8hA9hCJyD3p0AM40dD5M5ARAxpAT7+oqOXkPzf
zLtCTaHYJK3+WAce121Br4NuQJPqYPVxniUPohT4YxFTqB7vwX2C4/gZ2ldpHtlg
JVAHT96nOsnlz+EPa5GtwxtALD43CwOlWQIDAQAB
-----END RSA PUBLIC KEY-----`

// debianLine is `openssl rsa -modulus | sha1sum` of it, without the first half.
const debianLine = "b7ead9492dfd921fc4f9"

func parsePKCS1(t testing.TB, text string) *rsa.PublicKey {
	t.Helper()
	block, _ := pem.Decode([]byte(text))
	pub, err := x509.ParsePKCS1PublicKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return pub
}

func wantReason(t *testing.T, err error, want weakkey.Reason) {
	t.Helper()
	var got weakkey.Reason
	if e, ok := errors.AsType[*weakkey.Error](err); ok {
		got = e.Reason
	}
	if got != want {
		t.Errorf("reason %q (%v), want %q", got, err, want)
	}
}

func rsaKey(t testing.TB, bits int) *rsa.PublicKey {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return &k.PublicKey
}

func prime(t testing.TB, bits int) *big.Int {
	t.Helper()
	p, err := rand.Prime(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// nextPrime is the first prime at or above n.
func nextPrime(n *big.Int) *big.Int {
	p := new(big.Int).SetBit(n, 0, 1)
	for !p.ProbablyPrime(1) {
		p.Add(p, big.NewInt(2))
	}
	return p
}

func modulus(factors ...*big.Int) *rsa.PublicKey {
	n := big.NewInt(1)
	for _, f := range factors {
		n.Mul(n, f)
	}
	return &rsa.PublicKey{N: n, E: 65537}
}

func TestGoodKeysPass(t *testing.T) {
	t.Parallel()
	certificates, accounts := weakkey.Certificates(), weakkey.Accounts()
	var err error
	certificates.Debian, err = weakkey.ParseList(strings.NewReader(debianLine))
	if err != nil {
		t.Fatal(err)
	}
	both := []crypto.PublicKey{rsaKey(t, 2048), rsaKey(t, 3072)}
	for _, c := range []elliptic.Curve{elliptic.P256(), elliptic.P384()} {
		k, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, &k.PublicKey)
	}
	for _, pub := range both {
		if err := errors.Join(weakkey.Check(pub, certificates), weakkey.Check(pub, accounts)); err != nil {
			t.Errorf("%T: %v", pub, err)
		}
	}
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	edwards, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, pub := range []crypto.PublicKey{rsaKey(t, 2056), &p521.PublicKey, edwards} {
		if err := weakkey.Check(pub, accounts); err != nil {
			t.Errorf("%T in an account: %v", pub, err)
		}
		if err := weakkey.Check(pub, certificates); err == nil {
			t.Errorf("%T passed for a certificate", pub)
		}
	}
}

func TestEveryEd25519KeyPasses(t *testing.T) {
	t.Parallel()
	for range 50 { // half of all numbers are no y of a point
		pub, _, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if err := weakkey.Check(pub, weakkey.Accounts()); err != nil {
			t.Fatalf("%x: %v", pub, err)
		}
	}
}

func TestWrongRSASizes(t *testing.T) {
	t.Parallel()
	odd := func(bits int) *rsa.PublicKey {
		n := new(big.Int).Lsh(big.NewInt(1), uint(bits-1))
		return &rsa.PublicKey{N: n.SetBit(n, 0, 1), E: 65537}
	}
	for _, bits := range []int{1, 1024, 2047, 2049, 2056, 4095, 4104, 8192, 1 << 20} {
		wantReason(t, weakkey.Check(odd(bits), weakkey.Certificates()), weakkey.Size)
	}
	for _, bits := range []int{1024, 2040, 2047, 2049, 4104, 1 << 20} {
		wantReason(t, weakkey.Check(odd(bits), weakkey.Accounts()), weakkey.Size)
	}
	wantReason(t, weakkey.Check(odd(2048), weakkey.Policy{}), weakkey.Unsupported)
}

func TestOtherExponentsAreRefused(t *testing.T) {
	t.Parallel()
	k := rsaKey(t, 2048)
	for _, e := range []int{-1, 0, 1, 2, 3, 17, 65535, 65536, 65539, 1<<31 - 1} {
		wantReason(t, weakkey.Check(&rsa.PublicKey{N: k.N, E: e}, weakkey.Certificates()), weakkey.Exponent)
	}
}

func TestMalformedRSAKeysAreRefused(t *testing.T) {
	t.Parallel()
	even := new(big.Int).Lsh(big.NewInt(3), 2046)
	for _, pub := range []*rsa.PublicKey{nil, {}, {N: big.NewInt(0), E: 65537}, {N: big.NewInt(-5), E: 65537}, {N: even, E: 65537}} {
		wantReason(t, weakkey.Check(pub, weakkey.Certificates()), weakkey.Malformed)
	}
}

func TestSmallFactorsAreFound(t *testing.T) {
	t.Parallel()
	good := rsaKey(t, 2048)
	for _, f := range []int64{3, 5, 17, 257, 751} {
		factor := big.NewInt(f)
		n := new(big.Int).Sub(good.N, new(big.Int).Mod(good.N, factor))
		if n.Bit(0) == 0 {
			n.Sub(n, factor)
		}
		wantReason(t, weakkey.Check(&rsa.PublicKey{N: n, E: 65537}, weakkey.Certificates()), weakkey.SmallFactor)
	}
}

func TestClosePrimesAreFound(t *testing.T) {
	t.Parallel()
	p := prime(t, 1024)
	// Further apart than neighbours, but still within the first rounds: the
	// distance is 2b, and a − √n is b²/2a.
	far := new(big.Int).Add(p, new(big.Int).Lsh(big.NewInt(1), 514))
	for _, q := range []*big.Int{p, nextPrime(new(big.Int).Add(p, big.NewInt(2))), nextPrime(far)} {
		wantReason(t, weakkey.Check(modulus(p, q), weakkey.Certificates()), weakkey.ClosePrimes)
	}
}

// TestFermatCountsItsRounds builds moduli that give way in exactly the round
// wanted: n = a² − b² with a = ⌈√n⌉ + round.
func TestFermatCountsItsRounds(t *testing.T) {
	t.Parallel()
	for round, want := range map[int64]weakkey.Reason{0: weakkey.ClosePrimes, 1: weakkey.ClosePrimes, 99: weakkey.ClosePrimes, 109: weakkey.ClosePrimes, 112: ""} {
		wantReason(t, weakkey.Check(fallsInRound(t, round), weakkey.Certificates()), want)
	}
}

func fallsInRound(t *testing.T, round int64) *rsa.PublicKey {
	for {
		half := new(big.Int).Lsh(big.NewInt(1), 1023)
		a, err := rand.Int(rand.Reader, half)
		if err != nil {
			t.Fatal(err)
		}
		a.Add(a, half).SetBit(a, 1022, 1) // large enough for a square of 2048 bits
		a.SetBit(a, 0, 0)                 // even, so that an odd b makes n odd
		// b² ≈ 2a·(round + ½) puts √n that far below a.
		b := new(big.Int).Mul(a, big.NewInt(2*round+1))
		b.Sqrt(b).SetBit(b, 0, 1)
		n := new(big.Int).Mul(a, a)
		n.Sub(n, new(big.Int).Mul(b, b))
		root := new(big.Int).Sqrt(n)
		root.Add(root, big.NewInt(1))
		pub := &rsa.PublicKey{N: n, E: 65537}
		if new(big.Int).Sub(a, root).Int64() == round && n.BitLen() == 2048 && coprimeToSmall(n) {
			return pub
		}
	}
}

func coprimeToSmall(n *big.Int) bool {
	for f := int64(3); f < 752; f += 2 {
		if new(big.Int).Mod(n, big.NewInt(f)).Sign() == 0 {
			return false
		}
	}
	return true
}

// TestROCAKeysAreFound makes moduli as the flawed chips did: primes that are a
// power of 65537 modulo the product of the first primes.
func TestROCAKeysAreFound(t *testing.T) {
	t.Parallel()
	wantReason(t, weakkey.Check(modulus(rocaPrime(t), rocaPrime(t)), weakkey.Certificates()), weakkey.ROCA)
}

func rocaPrime(t *testing.T) *big.Int {
	t.Helper()
	m := big.NewInt(1) // the product of the primes up to 701, for keys of 2048 bits
	for n := int64(2); n <= 701; n++ {
		if big.NewInt(n).ProbablyPrime(0) {
			m.Mul(m, big.NewInt(n))
		}
	}
	random := func(below *big.Int) *big.Int {
		n, err := rand.Int(rand.Reader, below)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	quarter := new(big.Int).Lsh(big.NewInt(1), 1022)
	least := new(big.Int).Mul(quarter, big.NewInt(3)) // two such make a full modulus
	for {
		p := new(big.Int).Exp(big.NewInt(65537), random(m), m)
		k := new(big.Int).Add(least, random(quarter))
		p.Add(p, k.Div(k, m).Mul(k, m))
		if p.BitLen() == 1024 && p.Cmp(least) > 0 && p.ProbablyPrime(1) {
			return p
		}
	}
}

func TestDebianKeysAreFound(t *testing.T) {
	t.Parallel()
	pub := parsePKCS1(t, debianKey)
	policy := weakkey.Certificates()
	if err := weakkey.Check(pub, policy); err != nil {
		t.Fatalf("without a list: %v", err)
	}
	list, err := weakkey.ParseList(strings.NewReader("# a comment\n\nffffffffffffffffffff\n" + debianLine + "\n00000000000000000000\n"))
	if err != nil {
		t.Fatal(err)
	}
	policy.Debian = list
	wantReason(t, weakkey.Check(pub, policy), weakkey.Debian)
	if err := weakkey.Check(rsaKey(t, 2048), policy); err != nil {
		t.Errorf("another key: %v", err)
	}
}

func TestListIsReadFromFilesAndDirectories(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one, other := rsaKey(t, 2048), rsaKey(t, 2048)
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	line := func(k *rsa.PublicKey) string { return fmt.Sprintf("%x\n", weakkey.FingerprintOf(k)) }
	write("blacklist.RSA-2048", line(one)+line(one))
	write(".hidden", "not a list")
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	single := filepath.Join(t.TempDir(), "more")
	if err := os.WriteFile(single, []byte(strings.ToUpper(line(other))), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := weakkey.LoadList(dir, single)
	if err != nil {
		t.Fatal(err)
	}
	if list.Len() != 2 || !list.Has(one) || !list.Has(other) || list.Has(rsaKey(t, 2048)) {
		t.Errorf("the list has %d keys", list.Len())
	}
	for name, content := range map[string]string{
		"short":     "abc\n",
		"long":      strings.Repeat("a", 40) + "\n",
		"not hex":   "zzzzzzzzzzzzzzzzzzzz\n",
		"very long": strings.Repeat("#", 1<<20),
		"empty":     "# nothing\n",
	} {
		path := filepath.Join(t.TempDir(), "bad")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := weakkey.LoadList(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error = %v, want one that names the file", name, err)
		}
	}
	if _, err := weakkey.LoadList(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing file was read")
	}
}

func TestBadECKeysAreRefused(t *testing.T) {
	t.Parallel()
	good, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := good.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	x, y, params := new(big.Int).SetBytes(point[1:33]), new(big.Int).SetBytes(point[33:]), elliptic.P256().Params()
	for name, c := range map[string]struct {
		pub  *ecdsa.PublicKey
		want weakkey.Reason
	}{
		"nil":         {nil, weakkey.Malformed},
		"no curve":    {ecPoint(nil, x, y), weakkey.Malformed},
		"no point":    {ecPoint(elliptic.P256(), nil, nil), weakkey.Malformed},
		"infinity":    {ecPoint(elliptic.P256(), new(big.Int), new(big.Int)), weakkey.Malformed},
		"off curve":   {ecPoint(elliptic.P256(), x, new(big.Int).Add(y, big.NewInt(1))), weakkey.Malformed},
		"unreduced":   {ecPoint(elliptic.P256(), new(big.Int).Add(x, params.P), y), weakkey.Malformed},
		"negative":    {ecPoint(elliptic.P256(), new(big.Int).Neg(x), y), weakkey.Malformed},
		"P-224":       {&p224.PublicKey, weakkey.Unsupported},
		"own curve":   {ecPoint(params, x, y), weakkey.Unsupported},
		"other curve": {ecPoint(elliptic.P384(), x, y), weakkey.Malformed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantReason(t, weakkey.Check(c.pub, weakkey.Certificates()), c.want)
		})
	}
}

// ecPoint makes what no parser would.
func ecPoint(c elliptic.Curve, x, y *big.Int) *ecdsa.PublicKey {
	return &ecdsa.PublicKey{Curve: c, X: x, Y: y} //nolint:staticcheck // bad coordinates are the point
}

func TestBadEd25519KeysAreRefused(t *testing.T) {
	t.Parallel()
	p, _ := weakkey.EdwardsParameters()
	encode := func(y *big.Int, sign byte) ed25519.PublicKey {
		b := y.FillBytes(make([]byte, 32))
		slices.Reverse(b)
		b[31] |= sign << 7
		return b
	}
	for _, y := range weakkey.SmallOrderYs() {
		for sign := range byte(2) {
			wantReason(t, weakkey.Check(encode(y, sign), weakkey.Accounts()), weakkey.SmallOrder)
		}
	}
	for _, pub := range []ed25519.PublicKey{
		nil, make([]byte, 31), make([]byte, 33),
		encode(p, 0), encode(new(big.Int).Add(p, big.NewInt(1)), 1), // 0 and 1, unreduced
		encode(big.NewInt(2), 0), // no point has this y
	} {
		wantReason(t, weakkey.Check(pub, weakkey.Accounts()), weakkey.Malformed)
	}
	wantReason(t, weakkey.Check(encode(big.NewInt(4), 0), weakkey.Certificates()), weakkey.Unsupported)
}

// TestSmallOrderPointsAreTheEightTorsion doubles each refused point three times
// and arrives at the neutral one. With −x² + y² = 1 + d·x²·y² the doubled y is
// (y² + x²)/(2 + x² − y²), which needs the square of x only.
func TestSmallOrderPointsAreTheEightTorsion(t *testing.T) {
	t.Parallel()
	p, d := weakkey.EdwardsParameters()
	double := func(y *big.Int) *big.Int {
		y2 := new(big.Int).Mul(y, y)
		v := new(big.Int).Mul(d, y2)
		x2 := new(big.Int).Sub(y2, big.NewInt(1))
		x2.Mul(x2, v.ModInverse(v.Add(v, big.NewInt(1)).Mod(v, p), p))
		above := new(big.Int).Add(y2, x2)
		below := new(big.Int).Add(big.NewInt(2), x2)
		below.Sub(below, y2).Mod(below, p)
		return above.Mul(above, below.ModInverse(below, p)).Mod(above, p)
	}
	ys := weakkey.SmallOrderYs()
	if len(ys) != 5 {
		t.Errorf("%d values of y, want 5: eight points, three pairs of which share theirs", len(ys))
	}
	for _, y := range ys {
		if got := double(double(double(y))); got.Cmp(big.NewInt(1)) != 0 {
			t.Errorf("eight times the point of y=%v is at y=%v", y, got)
		}
	}
}

func TestUnknownKindsAreRefused(t *testing.T) {
	t.Parallel()
	for _, pub := range []crypto.PublicKey{nil, "key", &dsa.PublicKey{}, rsa.PublicKey{}} {
		wantReason(t, weakkey.Check(pub, weakkey.Accounts()), weakkey.Unsupported)
	}
}

func TestSPKIHashIsOfTheDER(t *testing.T) {
	t.Parallel()
	pub := parsePKCS1(t, debianKey)
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := weakkey.SPKIHash(pub); err != nil || got != sha256.Sum256(der) {
		t.Errorf("SPKIHash = %x, %v", got, err)
	}
	if _, err := weakkey.SPKIHash("key"); err == nil {
		t.Error("a string has a hash")
	}
}

// FuzzCheck: no key that parses makes Check panic, and what passes the strict
// policy passes the lenient one.
func FuzzCheck(f *testing.F) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	edwards, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	for _, pub := range []crypto.PublicKey{parsePKCS1(f, debianKey), &k.PublicKey, edwards} {
		der, err := x509.MarshalPKIXPublicKey(pub)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(der)
	}
	f.Fuzz(func(t *testing.T, der []byte) {
		pub, err := x509.ParsePKIXPublicKey(der)
		if err != nil {
			return
		}
		if weakkey.Check(pub, weakkey.Certificates()) != nil {
			return
		}
		if err := weakkey.Check(pub, weakkey.Accounts()); err != nil {
			t.Errorf("good enough for a certificate, not for an account: %v", err)
		}
	})
}

// FuzzParseList: a list that parses has at most as many keys as lines.
func FuzzParseList(f *testing.F) {
	f.Add("# comment\n" + debianLine + "\n\n")
	f.Add("abc\n")
	f.Add(strings.Repeat("f", 20))
	f.Fuzz(func(t *testing.T, text string) {
		list, err := weakkey.ParseList(strings.NewReader(text))
		if err != nil {
			return
		}
		if lines := strings.Count(text, "\n") + 1; list.Len() > lines {
			t.Errorf("%d keys on %d lines", list.Len(), lines)
		}
	})
}

func BenchmarkCheck(b *testing.B) {
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	edwards, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	policy := weakkey.Accounts()
	if policy.Debian, err = weakkey.ParseList(strings.NewReader(debianLine)); err != nil {
		b.Fatal(err)
	}
	for name, pub := range map[string]crypto.PublicKey{
		"rsa2048": rsaKey(b, 2048), "rsa4096": rsaKey(b, 4096), "p256": &ec.PublicKey, "ed25519": edwards,
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := weakkey.Check(pub, policy); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
