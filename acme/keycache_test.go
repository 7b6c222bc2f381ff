package acme

import (
	"fmt"
	"testing"

	jose "github.com/go-jose/go-jose/v4"
)

// What is asked for stays; what is not goes, and there is an end to what is kept.
func TestKeysOfAccountsAreRememberedWithinBounds(t *testing.T) {
	t.Parallel()
	c := newKeyCache()
	wanted := new(jose.JSONWebKey)
	c.put("wanted", wanted)
	for i := range 5 * keysCached {
		c.put(fmt.Sprint(i), new(jose.JSONWebKey))
		if i%1000 == 0 && !has(c, "wanted", wanted) {
			t.Fatalf("forgotten after %d others", i)
		}
		if n := len(c.now) + len(c.old); n > 2*keysCached {
			t.Fatalf("%d keys are kept", n)
		}
	}
	if _, ok := c.get("0"); ok {
		t.Error("one that nobody asked for is still there")
	}
}

func has(c *keyCache, id string, want *jose.JSONWebKey) bool {
	got, ok := c.get(id)
	return ok && got == want
}

// The key that the row has now is the one that counts.
func TestARememberedKeyIsThatOfTheRow(t *testing.T) {
	t.Parallel()
	c := newKeyCache()
	var as [2]Account
	for i := range as {
		_, key := signedOrder(t, 1, 1)
		jwk, err := canonicalKey(key)
		if err != nil {
			t.Fatal(err)
		}
		th, err := thumbprint(key)
		if err != nil {
			t.Fatal(err)
		}
		as[i] = Account{ID: "same", Key: jwk, Thumbprint: th}
	}
	for i := range 4 {
		k, err := c.of(as[i%2])
		if err != nil {
			t.Fatal(err)
		}
		if th, err := thumbprint(k); err != nil || th != as[i%2].Thumbprint {
			t.Errorf("account with key %s has %s (%v)", as[i%2].Thumbprint, th, err)
		}
	}
	if _, err := c.of(Account{ID: "broken", Thumbprint: "x", Key: []byte("{}")}); err == nil {
		t.Error("a broken row has a key")
	}
}
