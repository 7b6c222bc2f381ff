package admin

import (
	"encoding/base64"
	"testing"
)

// Clients take the key as an argument of their command line.
func TestNoKeyLooksLikeAnOption(t *testing.T) {
	t.Parallel()
	for range 2000 { // one of 64 would
		k := newMACKey()
		if text := base64.RawURLEncoding.EncodeToString(k); len(k) != macKeySize || text[0] == '-' {
			t.Fatalf("%d octets, %s", len(k), text)
		}
	}
}
