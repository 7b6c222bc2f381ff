package integration

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"hash"
)

// bindingScript is for servers that bind new accounts to others (RFC 8555 §7.3.4).
func bindingScript() []probe {
	hashes := map[string]func() hash.Hash{"HS256": sha256.New, "HS384": sha512.New384, "HS512": sha512.New}
	// binding is a right one for the account; more replaces members of its header.
	binding := func(a *acct, more map[string]any, payload any, mac []byte) map[string]any {
		header := merged(map[string]any{"alg": "HS256", "kid": a.p.kid, "url": a.p.urls["newAccount"]}, more)
		if payload == nil {
			payload = jwk(a.key, nil)
		}
		protected, body := b64(encode(a.p.t, header)), b64(encode(a.p.t, payload))
		alg, _ := header["alg"].(string)
		make, ok := hashes[alg]
		if !ok {
			make = sha256.New
		}
		h := hmac.New(make, mac)
		h.Write([]byte(protected + "." + body))
		return map[string]any{"protected": protected, "payload": body, "signature": b64(h.Sum(nil))}
	}
	news := func(name string, make func(a *acct) any) probe {
		return probe{"binding: " + name, func(p *prober) answer {
			a := p.stranger()
			body := map[string]any{"termsOfServiceAgreed": true}
			if v := make(a); v != nil {
				body["externalAccountBinding"] = v
			}
			return a.post(p.urls["newAccount"], body)
		}}
	}
	with := func(name string, more map[string]any) probe {
		return news(name, func(a *acct) any { return binding(a, more, nil, a.p.mac) })
	}
	return []probe{
		with("right", nil),
		with("HS384", map[string]any{"alg": "HS384"}),
		with("HS512", map[string]any{"alg": "HS512"}),
		news("none", func(*acct) any { return nil }),
		news("an empty object", func(*acct) any { return map[string]any{} }),
		news("a string", func(*acct) any { return "x" }),
		news("another MAC key", func(a *acct) any { return binding(a, nil, nil, []byte("another key of at least 32 octets")) }),
		news("another account key", func(a *acct) any { return binding(a, nil, jwk(p256(a.p.t), nil), a.p.mac) }),
		news("an empty payload", func(a *acct) any { return binding(a, nil, "", a.p.mac) }),
		news("signed by the account key", func(a *acct) any {
			return signed(a.p.t, a.key, map[string]any{"alg": "ES256", "kid": a.p.kid, "url": a.p.urls["newAccount"]}, jwk(a.key, nil))
		}),
		with("kid of nobody", map[string]any{"kid": "nobody"}),
		with("kid absent", map[string]any{"kid": nil}),
		with("alg none", map[string]any{"alg": "none"}),
		with("alg of a signature", map[string]any{"alg": "ES256"}),
		with("with a nonce", map[string]any{"nonce": "AAAA"}),
		with("url of another resource", map[string]any{"url": "https://other.example/"}),
		with("url absent", map[string]any{"url": nil}),
		{"binding: none, of an account that is there", func(p *prober) answer {
			a := p.stranger()
			a.post(p.urls["newAccount"], map[string]any{"termsOfServiceAgreed": true, "externalAccountBinding": binding(a, nil, nil, p.mac)})
			return a.post(p.urls["newAccount"], map[string]any{"termsOfServiceAgreed": true})
		}},
		{"binding: newOrder by a bare key", func(p *prober) answer { return p.stranger().post(p.urls["newOrder"], names(p.fresh())) }},
	}
}
