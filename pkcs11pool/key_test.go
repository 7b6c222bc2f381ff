package pkcs11pool

import (
	"sync"
	"testing"

	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

// openTokens opens a pool on tokens, in that order.
func openTokens(tb testing.TB, tokens ...pkcs11test.Token) *Pool {
	tb.Helper()
	var cfg Config
	for _, t := range tokens {
		cfg.Tokens = append(cfg.Tokens, TokenConfig{
			Module: t.Module, Label: t.Label,
			PIN: func() ([]byte, error) { return []byte(pkcs11test.PIN), nil },
		})
	}
	p, err := Open(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Errorf("closing: %v", err)
		}
	})
	return p
}

func TestTokensAreAStore(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	places := make(map[string]pkcs11test.Token)
	keystest.TestStore(t, func(t *testing.T, place string) keystest.StoreGenerator {
		mu.Lock()
		token, ok := places[place]
		if !ok {
			token = hsm.Take(t)
			places[place] = token
		}
		mu.Unlock()
		return openTokens(t, token)
	}, keys.ECDSAP256, keys.ECDSAP384, keys.ECDSAP521, keys.RSA2048, keys.RSA3072, keys.RSA4096, keys.Ed25519)
}
