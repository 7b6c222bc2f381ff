package acme

import (
	"context"
	"crypto"
	"encoding/base64"
	"slices"

	"github.com/secsy-pki/secsy-pki/ca"
)

// onionNonce is the challenge's nonce, in the base64 with padding that RFC 9799
// §3.2 wants: the very octets that are the token of other challenges.
func onionNonce(token string) string {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "" // not one of ours, and nothing matches it
	}
	return base64.StdEncoding.EncodeToString(b)
}

func onions(o Order) []ca.Identifier {
	return slices.DeleteFunc(slices.Clone(o.Identifiers), func(id ca.Identifier) bool { return id.Type != ca.DNS || !ca.IsOnion(id.Value) })
}

// checkOnionKey refuses the key of an onion service itself: it is for the
// challenge, and signs nothing else (RFC 9799 §3.2).
func checkOnionKey(o Order, pub crypto.PublicKey) error {
	for _, id := range onions(o) {
		if _, key, ok := ca.OnionService(id.Value); ok && key.Equal(pub) {
			p := aboutName(Problem{Type: BadCSR, Detail: "the CSR's key is that of the onion service itself; make a new one (RFC 9799 §3.2)"}, id)
			return &p
		}
	}
	return nil
}

// checkOnions holds the order against what its onion services say instead of CAA
// records. There is no way into Tor from here to ask them, so the client brings
// their word each time (RFC 9799 §6.4).
func (s *Server) checkOnions(ctx context.Context, o Order, words map[string]OnionCAA) error {
	if len(onions(o)) == 0 {
		return nil
	}
	duties, err := s.caaDuties(ctx, o)
	if err != nil {
		return err
	}
	duties = slices.DeleteFunc(duties, func(d caaDuty) bool { return !ca.IsOnion(d.query.Name) })
	for i, d := range duties {
		if word, ok := wordOf(words, d); ok {
			duties[i].query.Onion = &word
		}
	}
	p, err := s.judgeCAA(ctx, o, s.checkAll(ctx, duties), s.now())
	if err != nil {
		return err
	}
	if p != nil {
		// The order stays ready: the client may come again with what is missing.
		return p
	}
	return nil
}

// wordOf is what the service of a name says. The RFC has one for each name of the
// order, which all names of a service share.
func wordOf(words map[string]OnionCAA, d caaDuty) (OnionCAA, bool) {
	service, _, _ := ca.OnionService(d.query.Name)
	for _, name := range []string{d.id.Value, d.query.Name, service} {
		if w, ok := words[name]; ok {
			return w, true
		}
	}
	return OnionCAA{}, false
}
