package pkcs11pool

import (
	"slices"
	"testing"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

func TestWhatATokenLacksIsNamed(t *testing.T) {
	t.Parallel()
	sign, generate := uint(pkcs11.CKF_SIGN), uint(pkcs11.CKF_GENERATE_KEY_PAIR)
	for name, c := range map[string]struct {
		mechanisms map[uint]pkcs11.MechanismInfo
		alg        keys.Algorithm
		lacks      []string
	}{
		"nothing there": {nil, keys.ECDSAP256, []string{"CKM_EC_KEY_PAIR_GEN", "CKM_ECDSA"}},
		"another use": {map[uint]pkcs11.MechanismInfo{
			pkcs11.CKM_ECDSA: {Flags: pkcs11.CKF_VERIFY, MaxKeySize: 521}, pkcs11.CKM_EC_KEY_PAIR_GEN: {Flags: generate, MaxKeySize: 521},
		}, keys.ECDSAP256, []string{"CKM_ECDSA"}},
		"too small": {map[uint]pkcs11.MechanismInfo{
			pkcs11.CKM_ECDSA: {Flags: sign, MinKeySize: 112, MaxKeySize: 384}, pkcs11.CKM_EC_KEY_PAIR_GEN: {Flags: generate, MaxKeySize: 521},
		}, keys.ECDSAP521, []string{"CKM_ECDSA"}},
		"too large": {map[uint]pkcs11.MechanismInfo{
			pkcs11.CKM_RSA_PKCS: {Flags: sign, MinKeySize: 512, MaxKeySize: 4096}, pkcs11.CKM_RSA_PKCS_KEY_PAIR_GEN: {Flags: generate, MinKeySize: 3072, MaxKeySize: 4096},
		}, keys.RSA2048, []string{"CKM_RSA_PKCS_KEY_PAIR_GEN"}},
		"sizes in bytes, and enough": {map[uint]pkcs11.MechanismInfo{
			pkcs11.CKM_RSA_PKCS: {Flags: sign, MinKeySize: 64, MaxKeySize: 512}, pkcs11.CKM_RSA_PKCS_KEY_PAIR_GEN: {Flags: generate, MinKeySize: 64, MaxKeySize: 512},
		}, keys.RSA4096, nil},
		"sizes in bytes, and too small": {map[uint]pkcs11.MechanismInfo{
			pkcs11.CKM_ECDSA: {Flags: sign, MinKeySize: 32, MaxKeySize: 48}, pkcs11.CKM_EC_KEY_PAIR_GEN: {Flags: generate, MinKeySize: 32, MaxKeySize: 66},
		}, keys.ECDSAP521, []string{"CKM_ECDSA"}},
		"sizes and uses not told": {map[uint]pkcs11.MechanismInfo{
			pkcs11.CKM_ECDSA: {}, pkcs11.CKM_EC_KEY_PAIR_GEN: {Flags: pkcs11.CKF_HW},
		}, keys.ECDSAP521, nil},
		"Ed25519 of 255 bits": {map[uint]pkcs11.MechanismInfo{
			ckmEdDSA: {Flags: sign, MinKeySize: 255, MaxKeySize: 255}, ckmECEdwardsKeyPair: {Flags: generate, MinKeySize: 255, MaxKeySize: 448},
		}, keys.Ed25519, nil},
	} {
		s := newShelf()
		s.mechanisms = c.mechanisms
		p, _ := loggingPool()
		able, err := p.abilities(s.conn())
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(able.capability("shelf").Algorithms, func(a AlgorithmCapability) bool { return a.Algorithm == c.alg })
		got := able.capability("shelf").Algorithms[i]
		if !slices.Equal(got.Lacks, c.lacks) || (got.Generate && got.Sign) != (len(c.lacks) == 0) {
			t.Errorf("%s: %+v, want %q", name, got, c.lacks)
		}
	}
}

func TestATokenIsAskedForItsMechanismsOnceAnEpoch(t *testing.T) {
	t.Parallel()
	s := newShelf()
	p, _ := loggingPool()
	c := s.conn()
	for epoch := range uint64(3) {
		c.epoch = epoch
		for range 3 {
			if _, err := p.abilities(c); err != nil {
				t.Fatal(err)
			}
		}
		if got := s.calls["GetMechanismList"]; got != int(epoch)+1 {
			t.Errorf("asked %d times in %d epochs", got, epoch+1)
		}
	}
}

// What such a token can't do shows when it is tried.
func TestATokenThatListsNoMechanismsIsTakenAtItsWord(t *testing.T) {
	t.Parallel()
	s := newShelf()
	s.fails["GetMechanismList"] = pkcs11.Error(pkcs11.CKR_FUNCTION_NOT_SUPPORTED)
	p, _ := loggingPool()
	able, err := p.abilities(s.conn())
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range able.capability("shelf").Algorithms {
		if !a.Generate || !a.Sign {
			t.Errorf("%+v", a)
		}
	}
}

func TestFreeSessionsAreKnownOrSaidNotToBe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		most, open uint
		want       int
	}{{10, 3, 7}, {10, 12, 0}, {0, 3, -1}, {^uint(0), 3, -1}, {10, ^uint(0), -1}} {
		if got := freeSessions(pkcs11.TokenInfo{MaxSessionCount: c.most, SessionCount: c.open}); got != c.want {
			t.Errorf("%d of %d open: %d free, want %d", c.open, c.most, got, c.want)
		}
	}
}
