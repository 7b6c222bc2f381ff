package integration

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net"
	"slices"
	"strings"
	"time"
)

// A probe is one request, with what has to come before it.
type probe struct {
	name string
	send func(p *prober) answer
}

// probes is the script, the same for every server.
func probes() []probe {
	return slices.Concat(
		envelopeProbes(), algorithmProbes(), signerProbes(), bindingProbes(), httpProbes(), accountProbes(), newOrderProbes(),
		orderProbes(), authorizationProbes(), csrProbes(), certificateProbes(), revocationProbes(), keyChangeProbes(),
	)
}

// raw sends bytes to newOrder as the shared account would.
func raw(name string, body string) probe {
	return probe{name, func(p *prober) answer {
		return p.do("POST", p.urls["newOrder"], "application/jose+json", []byte(body))
	}}
}

// edits sends a newOrder that was changed after it was signed.
func edits(name string, edit func(p *prober, m map[string]any)) probe {
	return probe{name, func(p *prober) answer {
		return p.shared.edited(p.urls["newOrder"], names(p.fresh()), func(m map[string]any) { edit(p, m) })
	}}
}

// heads sends a newOrder with another protected header.
func heads(name string, more map[string]any) probe {
	return probe{name, func(p *prober) answer { return p.shared.with(p.urls["newOrder"], more, names(p.fresh())) }}
}

// The envelope: RFC 8555 §6.2 wants flattened JSON serialization, and nothing else.
func envelopeProbes() []probe {
	return []probe{
		{"JWS: right", func(p *prober) answer { return p.shared.post(p.urls["newOrder"], names(p.fresh())) }},
		raw("JWS: nothing", ""),
		raw("JWS: no JSON", "hello"),
		raw("JWS: a list", "[]"),
		raw("JWS: null", "null"),
		raw("JWS: an empty object", "{}"),
		raw("JWS: cut short", `{"protected":"e30`),
		{"JWS: compact serialization", func(p *prober) answer {
			m := signed(p.t, p.shared.key, p.shared.header(p.urls["newOrder"], nil), names(p.fresh()))
			return p.send(p.urls["newOrder"], m["protected"].(string)+"."+m["payload"].(string)+"."+m["signature"].(string))
		}},
		edits("JWS: general serialization", func(_ *prober, m map[string]any) {
			m["signatures"] = []any{map[string]any{"protected": m["protected"], "signature": m["signature"]}}
			delete(m, "protected")
			delete(m, "signature")
		}),
		edits("JWS: signatures beside signature", func(_ *prober, m map[string]any) {
			m["signatures"] = []any{map[string]any{"protected": m["protected"], "signature": m["signature"]}}
		}),
		edits("JWS: unprotected header with kid", func(p *prober, m map[string]any) { m["header"] = map[string]any{"kid": p.shared.kid} }),
		edits("JWS: empty unprotected header", func(_ *prober, m map[string]any) { m["header"] = map[string]any{} }),
		edits("JWS: no protected", func(_ *prober, m map[string]any) { delete(m, "protected") }),
		edits("JWS: no payload", func(_ *prober, m map[string]any) { delete(m, "payload") }),
		edits("JWS: no signature", func(_ *prober, m map[string]any) { delete(m, "signature") }),
		edits("JWS: empty signature", func(_ *prober, m map[string]any) { m["signature"] = "" }),
		edits("JWS: signature of zeros", func(_ *prober, m map[string]any) { m["signature"] = b64(make([]byte, 64)) }),
		edits("JWS: signature that is a number", func(_ *prober, m map[string]any) { m["signature"] = 1 }),
		edits("JWS: protected that is an object", func(_ *prober, m map[string]any) { m["protected"] = map[string]any{} }),
		edits("JWS: protected in plain text", func(_ *prober, m map[string]any) { m["protected"] = `{"alg":"ES256"}` }),
		edits("JWS: protected that is a list", func(_ *prober, m map[string]any) { m["protected"] = b64([]byte("[]")) }),
		edits("JWS: payload changed", func(p *prober, m map[string]any) { m["payload"] = b64(encode(p.t, names(p.fresh()))) }),
		edits("JWS: payload padded", func(_ *prober, m map[string]any) { m["payload"] = m["payload"].(string) + "=" }),
		edits("JWS: payload not encoded", func(p *prober, m map[string]any) { m["payload"] = names(p.fresh()) }),
		edits("JWS: unknown member", func(_ *prober, m map[string]any) { m["extra"] = "x" }),
		{"JWS: a member twice", func(p *prober) answer {
			m := encode(p.t, signed(p.t, p.shared.key, p.shared.header(p.urls["newOrder"], nil), names(p.fresh())))
			return p.send(p.urls["newOrder"], append([]byte(`{"payload":"e30",`), m[1:]...))
		}},
		{"JWS: something follows", func(p *prober) answer {
			m := encode(p.t, signed(p.t, p.shared.key, p.shared.header(p.urls["newOrder"], nil), names(p.fresh())))
			return p.send(p.urls["newOrder"], append(m, []byte(`{"more":1}`)...))
		}},
		edits("JWS: ECDSA signature in DER", func(p *prober, m map[string]any) {
			r, s := ecdsaSign(p.t, p.shared.key, m["protected"].(string)+"."+m["payload"].(string))
			der, _ := asn1.Marshal([]any{r, s})
			m["signature"] = b64(der)
		}),
		edits("JWS: ECDSA signature of 63 octets", func(p *prober, m map[string]any) {
			for {
				r, s := ecdsaSign(p.t, p.shared.key, m["protected"].(string)+"."+m["payload"].(string))
				if r.BitLen() <= 248 { // its leading octet is zero, and left out
					sig := make([]byte, 63)
					r.FillBytes(sig[:31])
					s.FillBytes(sig[31:])
					m["signature"] = b64(sig)
					return
				}
			}
		}),
		heads("JWS: crit", map[string]any{"crit": []string{"exp"}, "exp": 1}),
		heads("JWS: b64 false", map[string]any{"b64": false}),
		heads("JWS: unknown header parameter", map[string]any{"x-more": "x"}),
		{"JWS: too large", func(p *prober) answer {
			return p.shared.post(p.urls["newOrder"], map[string]any{"identifiers": []any{}, "x": strings.Repeat("x", 100<<10)})
		}},
	}
}

func algorithmProbes() []probe {
	var out []probe
	for _, alg := range []any{"none", "None", "HS256", "RS256", "PS256", "ES384", "ES512", "EdDSA", "XX999", "", 1, nil} {
		name := "alg: absent"
		if alg != nil {
			name = "alg: " + string(must(json.Marshal(alg)))
		}
		out = append(out, heads(name, map[string]any{"alg": alg}))
	}
	return append(out,
		probe{"alg: none without signature", func(p *prober) answer {
			m := signed(p.t, p.shared.key, p.shared.header(p.urls["newOrder"], map[string]any{"alg": "none"}), names(p.fresh()))
			m["signature"] = ""
			return p.send(p.urls["newOrder"], m)
		}},
		probe{"alg: HS256 with a symmetric key", func(p *prober) answer {
			s := p.stranger()
			return s.with(p.urls["newAccount"], map[string]any{"alg": "HS256", "jwk": map[string]any{"kty": "oct", "k": b64([]byte("secret"))}}, map[string]any{"termsOfServiceAgreed": true})
		}},
	)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Who signed: RFC 8555 §6.2.
func signerProbes() []probe {
	// news makes an account with another jwk in the header.
	news := func(name string, change func(p *prober, a *acct) map[string]any) probe {
		return probe{name, func(p *prober) answer {
			s := p.stranger()
			return s.with(p.urls["newAccount"], change(p, s), map[string]any{"termsOfServiceAgreed": true})
		}}
	}
	key := func(name string, more map[string]any) probe {
		return news(name, func(_ *prober, a *acct) map[string]any { return map[string]any{"jwk": jwk(a.key, more)} })
	}
	kid := func(name string, change func(p *prober) any) probe {
		return probe{name, func(p *prober) answer {
			return p.shared.with(p.urls["newOrder"], map[string]any{"kid": change(p)}, names(p.fresh()))
		}}
	}
	return []probe{
		{"signer: another key", func(p *prober) answer {
			return (&acct{p: p, key: p256(p.t), kid: p.shared.kid}).post(p.urls["newOrder"], names(p.fresh()))
		}},
		{"signer: jwk and kid", func(p *prober) answer {
			return p.shared.with(p.urls["newOrder"], map[string]any{"jwk": jwk(p.shared.key, nil)}, names(p.fresh()))
		}},
		heads("signer: neither jwk nor kid", map[string]any{"kid": nil}),
		{"signer: jwk for newOrder", func(p *prober) answer { return p.stranger().post(p.urls["newOrder"], names(p.fresh())) }},
		{"signer: jwk of an account for newOrder", func(p *prober) answer {
			return (&acct{p: p, key: p.shared.key}).post(p.urls["newOrder"], names(p.fresh()))
		}},
		{"signer: jwk for an account", func(p *prober) answer { return (&acct{p: p, key: p.shared.key}).get(p.shared.kid) }},
		{"signer: kid for newAccount", func(p *prober) answer {
			return p.shared.post(p.urls["newAccount"], map[string]any{"termsOfServiceAgreed": true})
		}},
		kid("signer: kid without its URL", func(p *prober) any { return p.shared.kid[strings.LastIndexByte(p.shared.kid, '/')+1:] }),
		kid("signer: kid at another host", func(p *prober) any { return "https://other.example/account/1" }),
		kid("signer: kid of nobody", func(p *prober) any {
			i := strings.LastIndexByte(p.shared.kid, '/') + 1
			return p.shared.kid[:i] + strings.Repeat("0", len(p.shared.kid)-i)
		}),
		kid("signer: kid with a slash at its end", func(p *prober) any { return p.shared.kid + "/" }),
		kid("signer: kid with a query", func(p *prober) any { return p.shared.kid + "?x" }),
		kid("signer: kid that is empty", func(*prober) any { return "" }),
		kid("signer: kid that is a number", func(*prober) any { return 7 }),
		kid("signer: kid of an order", func(p *prober) any { return p.shared.order().url }),
		key("signer: jwk with its private part", map[string]any{"d": b64(make([]byte, 32))}),
		key("signer: jwk off the curve", map[string]any{"y": b64(make([]byte, 32))}),
		key("signer: jwk without y", map[string]any{"y": nil}),
		key("signer: jwk of an unknown curve", map[string]any{"crv": "P-224"}),
		key("signer: jwk of an unknown kind", map[string]any{"kty": "XX"}),
		key("signer: jwk without kind", map[string]any{"kty": nil}),
		news("signer: jwk that is a string", func(*prober, *acct) map[string]any { return map[string]any{"jwk": "key"} }),
		news("signer: jwk that is empty", func(*prober, *acct) map[string]any { return map[string]any{"jwk": map[string]any{}} }),
		news("signer: symmetric jwk", func(*prober, *acct) map[string]any {
			return map[string]any{"jwk": map[string]any{"kty": "oct", "k": b64([]byte("secret"))}}
		}),
		news("signer: RSA key of 1024 bits", func(p *prober, _ *acct) map[string]any {
			return map[string]any{"alg": "RS256", "jwk": map[string]any{"kty": "RSA", "n": b64(rsaKey(p.t, 1024).N.Bytes()), "e": "AQAB"}}
		}),
		{"signer: jwk of a deactivated account", func(p *prober) answer {
			a := p.account()
			a.post(a.kid, map[string]any{"status": "deactivated"})
			return (&acct{p: p, key: a.key}).post(p.urls["newAccount"], map[string]any{"onlyReturnExisting": true})
		}},
	}
}

// What binds a message to one request: RFC 8555 §6.4, §6.5.
func bindingProbes() []probe {
	url := func(name string, change func(p *prober) any) probe {
		return probe{name, func(p *prober) answer {
			return p.shared.with(p.urls["newOrder"], map[string]any{"url": change(p)}, names(p.fresh()))
		}}
	}
	return []probe{
		heads("url: absent", map[string]any{"url": nil}),
		heads("url: empty", map[string]any{"url": ""}),
		heads("url: a number", map[string]any{"url": 1}),
		url("url: of another resource", func(p *prober) any { return p.urls["newAccount"] }),
		url("url: at another host", func(*prober) any { return "https://other.example/new-order" }),
		url("url: http", func(p *prober) any { return strings.Replace(p.urls["newOrder"], "https://", "http://", 1) }),
		url("url: with a slash at its end", func(p *prober) any { return p.urls["newOrder"] + "/" }),
		url("url: with a query", func(p *prober) any { return p.urls["newOrder"] + "?x=1" }),
		url("url: upper case", func(p *prober) any { return strings.ToUpper(p.urls["newOrder"]) }),
		{"url: with the request's query", func(p *prober) answer {
			u := p.urls["newOrder"] + "?x=1"
			return p.send(u, signed(p.t, p.shared.key, p.shared.header(u, nil), names(p.fresh())))
		}},
		heads("nonce: absent", map[string]any{"nonce": nil}),
		heads("nonce: empty", map[string]any{"nonce": ""}),
		heads("nonce: foreign", map[string]any{"nonce": "AAAAAAAAAAAAAAAAAAAAAA"}),
		heads("nonce: no base64url", map[string]any{"nonce": "!!"}),
		heads("nonce: a number", map[string]any{"nonce": 1}),
		{"nonce: used", func(p *prober) answer {
			h := p.shared.header(p.urls["newOrder"], nil)
			p.send(p.urls["newOrder"], signed(p.t, p.shared.key, h, names(p.fresh())))
			return p.send(p.urls["newOrder"], signed(p.t, p.shared.key, h, names(p.fresh())))
		}},
		{"nonce: the one of a badNonce", func(p *prober) answer {
			r := p.shared.with(p.urls["newOrder"], map[string]any{"nonce": "AAAA"}, names(p.fresh()))
			return p.shared.with(p.urls["newOrder"], map[string]any{"nonce": r.header.Get("Replay-Nonce")}, names(p.fresh()))
		}},
	}
}

func httpProbes() []probe {
	typed := func(typ string) probe {
		return probe{"Content-Type: " + typ, func(p *prober) answer {
			return p.do("POST", p.urls["newOrder"], typ, encode(p.t, signed(p.t, p.shared.key, p.shared.header(p.urls["newOrder"], nil), names(p.fresh()))))
		}}
	}
	plain := func(method, resource string) probe {
		return probe{method + " " + resource, func(p *prober) answer { return p.do(method, p.urls[resource], "", nil) }}
	}
	out := []probe{
		typed(""), typed("application/json"), typed("text/plain"), typed("application/jose"), typed("application/jose+json; charset=utf-8"),
		{"GET directory", func(p *prober) answer { return p.do("GET", p.directory, "", nil) }},
		{"HEAD directory", func(p *prober) answer { return p.do("HEAD", p.directory, "", nil) }},
		{"POST directory, unsigned", func(p *prober) answer { return p.do("POST", p.directory, "application/jose+json", []byte("{}")) }},
		{"POST-as-GET directory", func(p *prober) answer { return p.shared.get(p.directory) }},
		{"POST-as-GET newNonce", func(p *prober) answer { return p.shared.get(p.urls["newNonce"]) }},
		{"GET nothing", func(p *prober) answer { return p.do("GET", p.urls["newOrder"]+"-not", "", nil) }},
		{"POST nothing", func(p *prober) answer { return p.shared.post(p.urls["newOrder"]+"-not", "") }},
		{"GET account", func(p *prober) answer { return p.do("GET", p.shared.kid, "", nil) }},
		{"DELETE account", func(p *prober) answer { return p.do("DELETE", p.shared.kid, "", nil) }},
		{"GET order", func(p *prober) answer { return p.do("GET", p.shared.order().url, "", nil) }},
		{"GET authorization", func(p *prober) answer { return p.do("GET", p.shared.order().authz, "", nil) }},
		{"GET challenge", func(p *prober) answer { return p.do("GET", p.shared.order().challenge, "", nil) }},
	}
	for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "PATCH"} {
		for _, resource := range []string{"newNonce", "newOrder", "revokeCert"} {
			out = append(out, plain(method, resource))
		}
	}
	return out
}

func accountProbes() []probe {
	news := func(name string, payload any) probe {
		return probe{"newAccount: " + name, func(p *prober) answer { return p.stranger().post(p.urls["newAccount"], payload) }}
	}
	with := func(name string, more map[string]any) probe {
		return news(name, merged(map[string]any{"termsOfServiceAgreed": true}, more))
	}
	update := func(name string, payload any) probe {
		return probe{"account: " + name, func(p *prober) answer { a := p.account(); return a.post(a.kid, payload) }}
	}
	return []probe{
		with("right", nil),
		with("with contact", map[string]any{"contact": []string{"mailto:a@example.com"}}),
		with("unknown member", map[string]any{"x": 1}),
		with("with status and orders", map[string]any{"status": "revoked", "orders": "https://x.example"}),
		with("contact tel", map[string]any{"contact": []string{"tel:+1"}}),
		with("contact http", map[string]any{"contact": []string{"https://x.example"}}),
		with("contact without scheme", map[string]any{"contact": []string{"a@example.com"}}),
		with("contact no address", map[string]any{"contact": []string{"mailto:nobody"}}),
		with("contact two addresses", map[string]any{"contact": []string{"mailto:a@example.com,b@example.com"}}),
		with("contact with hfields", map[string]any{"contact": []string{"mailto:a@example.com?subject=x"}}),
		with("contact empty", map[string]any{"contact": []string{""}}),
		with("contact a string", map[string]any{"contact": "mailto:a@example.com"}),
		with("contact of numbers", map[string]any{"contact": []int{1}}),
		with("binding not asked for, junk", map[string]any{"externalAccountBinding": map[string]any{}}),
		news("terms not agreed to", map[string]any{}),
		news("payload empty", ""),
		news("payload null", "null"),
		news("payload a list", "[]"),
		news("payload no JSON", "hello"),
		news("onlyReturnExisting of nobody", map[string]any{"onlyReturnExisting": true}),
		{"newAccount: existing", func(p *prober) answer {
			return (&acct{p: p, key: p.shared.key}).post(p.urls["newAccount"], map[string]any{"termsOfServiceAgreed": true})
		}},
		{"newAccount: existing, onlyReturnExisting", func(p *prober) answer {
			return (&acct{p: p, key: p.shared.key}).post(p.urls["newAccount"], map[string]any{"onlyReturnExisting": true})
		}},
		update("read", ""),
		update("empty update", map[string]any{}),
		update("contact", map[string]any{"contact": []string{"mailto:b@example.com"}}),
		update("contact removed", map[string]any{"contact": []string{}}),
		update("bad contact", map[string]any{"contact": []string{"tel:1"}}),
		update("status valid", map[string]any{"status": "valid"}),
		update("status revoked", map[string]any{"status": "revoked"}),
		update("status a number", map[string]any{"status": 1}),
		update("deactivated", map[string]any{"status": "deactivated"}),
		update("a list", "[]"),
		{"account: read after deactivation", func(p *prober) answer {
			a := p.account()
			a.post(a.kid, map[string]any{"status": "deactivated"})
			return a.get(a.kid)
		}},
		{"account: newOrder after deactivation", func(p *prober) answer {
			a := p.account()
			a.post(a.kid, map[string]any{"status": "deactivated"})
			return a.post(p.urls["newOrder"], names(p.fresh()))
		}},
		{"account: another's", func(p *prober) answer { return p.account().get(p.shared.kid) }},
		{"account: orders", func(p *prober) answer {
			a := p.account()
			a.order()
			return a.get(a.get(a.kid).str("orders"))
		}},
		{"account: another's orders", func(p *prober) answer { return p.account().get(p.shared.get(p.shared.kid).str("orders")) }},
	}
}

func newOrderProbes() []probe {
	payload := func(name string, v any) probe {
		return probe{"newOrder: " + name, func(p *prober) answer { return p.account().post(p.urls["newOrder"], v) }}
	}
	name := func(n string) probe { return payload("name "+n[:min(len(n), 20)], names(n)) }
	id := func(what string, v any) probe { return payload(what, map[string]any{"identifiers": v}) }
	with := func(what string, more map[string]any) probe {
		return payload(what, merged(names("with.example.com"), more))
	}
	many := make([]string, 101)
	for i := range many {
		many[i] = strings.Repeat("a", 1+i%50) + strings.Repeat("b", 1+i/50) + ".example.com"
	}
	return []probe{
		payload("payload empty", ""), payload("payload null", "null"), payload("payload a list", "[]"), payload("payload {}", map[string]any{}), payload("payload no JSON", "hello"),
		id("identifiers null", nil), id("identifiers a string", "a.example.com"), id("identifiers empty", []any{}), id("identifiers of strings", []string{"a.example.com"}),
		id("without type", []any{map[string]string{"value": "a.example.com"}}),
		id("without value", []any{map[string]string{"type": "dns"}}),
		id("type email", []any{map[string]string{"type": "email", "value": "a@example.com"}}),
		id("type ip, a name", []any{map[string]string{"type": "ip", "value": "example.com"}}),
		id("type ip, with a zone", []any{map[string]string{"type": "ip", "value": "fe80::1%eth0"}}),
		id("type DNS", []any{map[string]string{"type": "DNS", "value": "a.example.com"}}),
		name("two.example.com"), name("UPPER.example.com"), name("*.wild.example.com"), name("trailing.example.com."), name(".leading.example.com"), name("under_score.example.com"),
		name("bücher.example.com"), name("xn--bcher-kva.example.com"), name("xn--\u00fc.example.com"), name("*.*.example.com"), name("a.*.example.com"), name("*a.example.com"), name("*."), name("*"),
		name("127.0.0.1"), name("::1"), name("localhost"), name("com"), name("-a.example.com"), name("a-.example.com"), name("a..example.com"), name("a b.example.com"), name("a.example.com:80"), name("https://a.example.com"),
		name("a@example.com"), name("a.example.com/"), name("a\x00.example.com"), name(strings.Repeat("a", 64) + ".example.com"), name(strings.Repeat("abcdefg.", 32) + "example.com"), name("1.0.0.127.in-addr.arpa"),
		payload("one name twice", names("dup.example.com", "DUP.example.com")),
		payload("a name and its wildcard", names("both.example.com", "*.both.example.com")),
		payload("101 names", names(many...)),
		payload("one bad of two", names("good.example.com", "bad_name.example.com")),
		with("unknown member", map[string]any{"x": 1}),
		with("notBefore junk", map[string]any{"notBefore": "tomorrow"}),
		with("notAfter junk", map[string]any{"notAfter": "never"}),
		with("notAfter past", map[string]any{"notAfter": time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)}),
		with("notAfter before notBefore", map[string]any{"notBefore": time.Now().Add(20 * time.Hour).UTC().Format(time.RFC3339), "notAfter": time.Now().Add(10 * time.Hour).UTC().Format(time.RFC3339)}),
		with("notAfter soon", map[string]any{"notAfter": time.Now().Add(48 * time.Hour).UTC().Format(time.RFC3339)}),
		with("notAfter in a hundred years", map[string]any{"notAfter": time.Now().AddDate(100, 0, 0).UTC().Format(time.RFC3339)}),
		with("notBefore a number", map[string]any{"notBefore": 1}),
	}
}

func orderProbes() []probe {
	return []probe{
		{"order: read", func(p *prober) answer { a := p.account(); return a.get(a.order().url) }},
		{"order: with a payload", func(p *prober) answer { a := p.account(); return a.post(a.order().url, map[string]any{}) }},
		{"order: another's", func(p *prober) answer { return p.account().get(p.shared.order().url) }},
		{"order: nobody's", func(p *prober) answer {
			a := p.account()
			u := a.order().url
			i := strings.LastIndexByte(u, '/') + 1
			return a.get(u[:i] + strings.Repeat("0", len(u)-i))
		}},
		{"order: no id", func(p *prober) answer {
			a := p.account()
			u := a.order().url
			return a.get(u[:strings.LastIndexByte(u, '/')+1] + "x")
		}},
		{"order: ready", func(p *prober) answer { return p.account().ready().answer }},
		{"order: valid", func(p *prober) answer { return p.account().issued().answer }},
		{"order: after a failed challenge", func(p *prober) answer {
			a := p.account()
			o := a.order().prove(false)
			return a.await(o.url, "invalid")
		}},
		{"order: after its authorization was deactivated", func(p *prober) answer {
			a := p.account()
			o := a.order()
			a.post(o.authz, map[string]any{"status": "deactivated"})
			return a.get(o.url)
		}},
		{"finalize: pending", func(p *prober) answer {
			o := p.account().order()
			return o.finalizes(o.csr(x509.CertificateRequest{DNSNames: []string{o.name}}))
		}},
		{"finalize: pending, and read", func(p *prober) answer {
			o := p.account().order()
			o.finalizes(o.csr(x509.CertificateRequest{DNSNames: []string{o.name}}))
			return o.a.get(o.url)
		}},
		{"finalize: another's", func(p *prober) answer {
			o := p.account().ready()
			o.a = p.account()
			return o.finalizes(o.csr(x509.CertificateRequest{DNSNames: []string{o.name}}))
		}},
		{"finalize: as POST-as-GET", func(p *prober) answer { o := p.account().ready(); return o.a.get(o.finalize) }},
		{"finalize: again with the same CSR", func(p *prober) answer {
			o := p.account().ready()
			csr := o.csr(x509.CertificateRequest{DNSNames: []string{o.name}})
			o.finalizes(csr)
			o.a.await(o.url, "valid")
			return o.finalizes(csr)
		}},
		{"finalize: again with another CSR", func(p *prober) answer {
			o := p.account().issued()
			o.key = nil
			return o.finalizes(o.csr(x509.CertificateRequest{DNSNames: []string{o.name}}))
		}},
		{"finalize: invalid", func(p *prober) answer {
			o := p.account().order().prove(false)
			o.a.await(o.url, "invalid")
			return o.finalizes(o.csr(x509.CertificateRequest{DNSNames: []string{o.name}}))
		}},
	}
}

func authorizationProbes() []probe {
	return []probe{
		{"authorization: read", func(p *prober) answer { o := p.account().order(); return o.a.get(o.authz) }},
		{"authorization: another's", func(p *prober) answer { return p.account().get(p.shared.order().authz) }},
		{"authorization: valid", func(p *prober) answer { return p.account().order().prove(true).answer }},
		{"authorization: invalid", func(p *prober) answer { return p.account().order().prove(false).answer }},
		{"authorization: status valid", func(p *prober) answer {
			o := p.account().order()
			return o.a.post(o.authz, map[string]any{"status": "valid"})
		}},
		{"authorization: payload {}", func(p *prober) answer { o := p.account().order(); return o.a.post(o.authz, map[string]any{}) }},
		{"authorization: payload a list", func(p *prober) answer { o := p.account().order(); return o.a.post(o.authz, "[]") }},
		{"authorization: deactivated", func(p *prober) answer {
			o := p.account().order()
			return o.a.post(o.authz, map[string]any{"status": "deactivated"})
		}},
		{"authorization: deactivated while valid", func(p *prober) answer {
			o := p.account().ready()
			return o.a.post(o.authz, map[string]any{"status": "deactivated"})
		}},
		{"authorization: deactivated twice", func(p *prober) answer {
			o := p.account().order()
			o.a.post(o.authz, map[string]any{"status": "deactivated"})
			return o.a.post(o.authz, map[string]any{"status": "deactivated"})
		}},
		{"authorization: another's, deactivated", func(p *prober) answer {
			return p.account().post(p.shared.order().authz, map[string]any{"status": "deactivated"})
		}},
		{"challenge: read", func(p *prober) answer { o := p.account().order(); return o.a.get(o.challenge) }},
		{"challenge: another's", func(p *prober) answer { return p.account().get(p.shared.order().challenge) }},
		{"challenge: another's, answered", func(p *prober) answer { return p.account().post(p.shared.order().challenge, map[string]any{}) }},
		{"challenge: payload a list", func(p *prober) answer { o := p.account().order(); return o.a.post(o.challenge, "[]") }},
		{"challenge: payload a string", func(p *prober) answer { o := p.account().order(); return o.a.post(o.challenge, `"x"`) }},
		{"challenge: payload no JSON", func(p *prober) answer { o := p.account().order(); return o.a.post(o.challenge, "hello") }},
		{"challenge: unknown", func(p *prober) answer { o := p.account().order(); return o.a.post(o.challenge+"x", map[string]any{}) }},
		{"challenge: with a key authorization of old", func(p *prober) answer {
			o := p.account().order()
			p.answers.set(o.token, o.token+"."+thumbprint(o.a.key))
			return o.a.post(o.challenge, map[string]any{"keyAuthorization": o.token + "." + thumbprint(o.a.key)})
		}},
		{"challenge: valid, answered again", func(p *prober) answer {
			o := p.account().order().prove(true)
			return o.a.post(o.challenge, map[string]any{})
		}},
		{"challenge: invalid, answered again", func(p *prober) answer {
			o := p.account().order().prove(false)
			return o.a.post(o.challenge, map[string]any{})
		}},
	}
}

var (
	oidBasicConstraints = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidExtKeyUsage      = asn1.ObjectIdentifier{2, 5, 29, 37}
)

func csrProbes() []probe {
	// sends finalizes a ready order with what make made of it, and looks at the order then.
	sends := func(name string, make func(o *order) any) probe {
		return probe{"CSR: " + name, func(p *prober) answer { o := p.shared.ready(); return o.finalizes(make(o)) }}
	}
	template := func(name string, fill func(o *order, c *x509.CertificateRequest)) probe {
		return sends(name, func(o *order) any {
			c := x509.CertificateRequest{DNSNames: []string{o.name}}
			fill(o, &c)
			return o.csr(c)
		})
	}
	extension := func(name string, id asn1.ObjectIdentifier, critical bool, value any) probe {
		return template(name, func(_ *order, c *x509.CertificateRequest) {
			c.ExtraExtensions = []pkix.Extension{{Id: id, Critical: critical, Value: must(asn1.Marshal(value))}}
		})
	}
	type constraints struct {
		IsCA bool `asn1:"optional"`
	}
	return []probe{
		template("right", func(*order, *x509.CertificateRequest) {}),
		template("name as CN, too", func(o *order, c *x509.CertificateRequest) { c.Subject.CommonName = o.name }),
		template("name as CN alone", func(o *order, c *x509.CertificateRequest) { c.Subject.CommonName, c.DNSNames = o.name, nil }),
		template("other CN", func(o *order, c *x509.CertificateRequest) { c.Subject.CommonName = "other.example.com" }),
		template("upper case", func(o *order, c *x509.CertificateRequest) { c.DNSNames = []string{strings.ToUpper(o.name)} }),
		template("no name", func(_ *order, c *x509.CertificateRequest) { c.DNSNames = nil }),
		template("other name", func(_ *order, c *x509.CertificateRequest) { c.DNSNames = []string{"other.example.com"} }),
		template("one name more", func(_ *order, c *x509.CertificateRequest) { c.DNSNames = append(c.DNSNames, "more.example.com") }),
		template("wildcard more", func(o *order, c *x509.CertificateRequest) { c.DNSNames = append(c.DNSNames, "*."+o.name) }),
		template("the name twice", func(o *order, c *x509.CertificateRequest) { c.DNSNames = append(c.DNSNames, o.name) }),
		template("address more", func(_ *order, c *x509.CertificateRequest) { c.IPAddresses = []net.IP{{192, 0, 2, 1}} }),
		template("e-mail more", func(_ *order, c *x509.CertificateRequest) { c.EmailAddresses = []string{"a@example.com"} }),
		template("with a subject", func(o *order, c *x509.CertificateRequest) {
			c.Subject = pkix.Name{CommonName: o.name, Organization: []string{"Other"}, Country: []string{"XX"}}
		}),
		extension("asks for a CA", oidBasicConstraints, true, constraints{true}),
		extension("says that it is no CA", oidBasicConstraints, true, constraints{}),
		extension("with key usages", oidExtKeyUsage, false, []asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 1}, {1, 3, 6, 1, 5, 5, 7, 3, 2}}),
		extension("unknown critical extension", asn1.ObjectIdentifier{1, 2, 3, 4}, true, "x"),
		extension("must-staple", asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}, false, []int{5}),
		sends("absent", func(*order) any { return nil }),
		sends("empty", func(*order) any { return "" }),
		sends("a number", func(*order) any { return 1 }),
		sends("no base64url", func(*order) any { return "!!" }),
		sends("no DER", func(*order) any { return []byte("hello") }),
		sends("padded", func(o *order) any {
			for {
				if s := base64.URLEncoding.EncodeToString(o.csr(x509.CertificateRequest{DNSNames: []string{o.name}})); strings.HasSuffix(s, "=") {
					return s
				}
			}
		}),
		sends("base64 instead of base64url", func(o *order) any {
			for {
				if s := base64.RawStdEncoding.EncodeToString(o.csr(x509.CertificateRequest{DNSNames: []string{o.name}})); strings.ContainsAny(s, "+/") {
					return s
				}
			}
		}),
		sends("PEM", func(o *order) any {
			return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: o.csr(x509.CertificateRequest{DNSNames: []string{o.name}})})
		}),
		sends("something follows", func(o *order) any { return append(o.csr(x509.CertificateRequest{DNSNames: []string{o.name}}), 5, 0) }),
		sends("wrong signature", func(o *order) any {
			der := o.csr(x509.CertificateRequest{DNSNames: []string{o.name}})
			return bytes.Replace(der, []byte(o.name), []byte(strings.Replace(o.name, "probe", "qrobe", 1)), 1)
		}),
		sends("the account's key", func(o *order) any { o.key = o.a.key; return o.csr(x509.CertificateRequest{DNSNames: []string{o.name}}) }),
		sends("another account's key", func(o *order) any {
			o.key = o.a.p.account().key
			return o.csr(x509.CertificateRequest{DNSNames: []string{o.name}})
		}),
		sends("RSA of 1024 bits", func(o *order) any {
			return csrOf(o.a.p.t, rsaKey(o.a.p.t, 1024), x509.CertificateRequest{DNSNames: []string{o.name}})
		}),
		sends("RSA of 2048 bits", func(o *order) any {
			return csrOf(o.a.p.t, rsaKey(o.a.p.t, 2048), x509.CertificateRequest{DNSNames: []string{o.name}})
		}),
		sends("P-224", func(o *order) any {
			return csrOf(o.a.p.t, must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader)), x509.CertificateRequest{DNSNames: []string{o.name}})
		}),
		sends("P-521", func(o *order) any {
			return csrOf(o.a.p.t, must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader)), x509.CertificateRequest{DNSNames: []string{o.name}})
		}),
		{"CSR: a right one after a wrong one", func(p *prober) answer {
			o := p.shared.ready()
			o.finalizes([]byte("hello"))
			return o.finalizes(o.csr(x509.CertificateRequest{DNSNames: []string{o.name}}))
		}},
	}
}

func certificateProbes() []probe {
	return []probe{
		{"certificate: read", func(p *prober) answer { return p.shared.get(p.shared.issued().cert) }},
		{"certificate: GET", func(p *prober) answer { return p.do("GET", p.shared.issued().cert, "", nil) }},
		{"certificate: another's", func(p *prober) answer { return p.account().get(p.shared.issued().cert) }},
		{"certificate: with a payload", func(p *prober) answer { return p.shared.post(p.shared.issued().cert, map[string]any{}) }},
		{"certificate: nobody's", func(p *prober) answer { return p.account().get(p.shared.issued().cert + "0") }},
	}
}

func revocationProbes() []probe {
	// sends revokes a new certificate of the shared account.
	sends := func(name string, send func(p *prober, o *order) answer) probe {
		return probe{"revocation: " + name, func(p *prober) answer { return send(p, p.shared.issued()) }}
	}
	reason := func(name string, v any) probe {
		return sends("reason "+name, func(p *prober, o *order) answer {
			return p.shared.post(p.urls["revokeCert"], map[string]any{"certificate": b64(o.der), "reason": v})
		})
	}
	body := func(name string, v any) probe {
		return probe{"revocation: " + name, func(p *prober) answer { return p.shared.post(p.urls["revokeCert"], v) }}
	}
	return []probe{
		sends("by the account", func(p *prober, o *order) answer {
			return p.shared.post(p.urls["revokeCert"], map[string]any{"certificate": b64(o.der)})
		}),
		sends("again", func(p *prober, o *order) answer {
			p.shared.post(p.urls["revokeCert"], map[string]any{"certificate": b64(o.der)})
			return p.shared.post(p.urls["revokeCert"], map[string]any{"certificate": b64(o.der)})
		}),
		sends("by the certificate's key", func(p *prober, o *order) answer {
			return (&acct{p: p, key: o.key}).post(p.urls["revokeCert"], map[string]any{"certificate": b64(o.der)})
		}),
		sends("by another key", func(p *prober, o *order) answer {
			return p.stranger().post(p.urls["revokeCert"], map[string]any{"certificate": b64(o.der)})
		}),
		sends("by another account", func(p *prober, o *order) answer {
			return p.account().post(p.urls["revokeCert"], map[string]any{"certificate": b64(o.der)})
		}),
		sends("by another account that proved the name", func(p *prober, o *order) answer {
			b := p.account()
			other := &order{a: b, name: o.name}
			r := b.post(p.urls["newOrder"], names(o.name))
			other.authz = r.strs("authorizations")[0]
			list, _ := b.get(other.authz).json["challenges"].([]any)
			for _, v := range list {
				if m, _ := v.(map[string]any); m["type"] == "http-01" {
					other.challenge, _ = m["url"].(string)
					other.token, _ = m["token"].(string)
				}
			}
			other.prove(true)
			return b.post(p.urls["revokeCert"], map[string]any{"certificate": b64(o.der)})
		}),
		reason("0", 0), reason("1", 1), reason("2", 2), reason("4", 4), reason("6", 6), reason("7", 7), reason("8", 8), reason("-1", -1), reason("100", 100), reason("text", "1"), reason("1.5", 1.5), reason("null", nil),
		sends("padded", func(p *prober, o *order) answer {
			return p.shared.post(p.urls["revokeCert"], map[string]any{"certificate": base64.URLEncoding.EncodeToString(o.der)})
		}),
		body("nothing", ""), body("{}", map[string]any{}), body("no base64url", map[string]any{"certificate": "!!"}), body("no DER", map[string]any{"certificate": b64([]byte("hello"))}),
		body("a number", map[string]any{"certificate": 1}),
		{"revocation: of another CA's certificate", func(p *prober) answer {
			t := &x509.Certificate{SerialNumber: must(rand.Int(rand.Reader, p256(p.t).X)), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"a.example.com"}}
			k := p256(p.t)
			return p.shared.post(p.urls["revokeCert"], map[string]any{"certificate": b64(must(x509.CreateCertificate(rand.Reader, t, t, &k.PublicKey, k)))})
		}},
	}
}

func keyChangeProbes() []probe {
	// change sends a change of a new account's key, its inner message made by make.
	change := func(name string, make func(a *acct, next *ecdsa.PrivateKey) any) probe {
		return probe{"key change: " + name, func(p *prober) answer {
			a := p.account()
			return a.post(p.urls["keyChange"], make(a, p256(p.t)))
		}}
	}
	inner := func(name string, header, payload func(a *acct) map[string]any) probe {
		return change(name, func(a *acct, next *ecdsa.PrivateKey) any {
			h := map[string]any{"alg": "ES256", "jwk": jwk(next, nil), "url": a.p.urls["keyChange"]}
			b := map[string]any{"account": a.kid, "oldKey": jwk(a.key, nil)}
			if header != nil {
				h = merged(h, header(a))
			}
			if payload != nil {
				b = merged(b, payload(a))
			}
			return signed(a.p.t, next, h, b)
		})
	}
	fixed := func(more map[string]any) func(*acct) map[string]any {
		return func(*acct) map[string]any { return more }
	}
	to := func(a *acct, key *ecdsa.PrivateKey) any {
		return signed(a.p.t, key, map[string]any{"alg": "ES256", "jwk": jwk(key, nil), "url": a.p.urls["keyChange"]}, map[string]any{"account": a.kid, "oldKey": jwk(a.key, nil)})
	}
	return []probe{
		inner("right", nil, nil),
		inner("inner with a nonce", func(a *acct) map[string]any { return map[string]any{"nonce": a.p.nonce()} }, nil),
		inner("inner without url", fixed(map[string]any{"url": nil}), nil),
		inner("inner with another url", func(a *acct) map[string]any { return map[string]any{"url": a.p.urls["newOrder"]} }, nil),
		inner("inner without jwk", fixed(map[string]any{"jwk": nil}), nil),
		inner("inner with kid", func(a *acct) map[string]any { return map[string]any{"jwk": nil, "kid": a.kid} }, nil),
		inner("another account", nil, func(a *acct) map[string]any { return map[string]any{"account": a.p.shared.kid} }),
		inner("no account", nil, fixed(map[string]any{"account": nil})),
		inner("another old key", nil, func(a *acct) map[string]any { return map[string]any{"oldKey": jwk(a.p.shared.key, nil)} }),
		inner("no old key", nil, fixed(map[string]any{"oldKey": nil})),
		inner("old key that is none", nil, fixed(map[string]any{"oldKey": "x"})),
		change("inner signed by the old key", func(a *acct, next *ecdsa.PrivateKey) any {
			return signed(a.p.t, a.key, map[string]any{"alg": "ES256", "jwk": jwk(next, nil), "url": a.p.urls["keyChange"]}, map[string]any{"account": a.kid, "oldKey": jwk(a.key, nil)})
		}),
		change("to the same key", func(a *acct, _ *ecdsa.PrivateKey) any { return to(a, a.key) }),
		change("to another account's key", func(a *acct, _ *ecdsa.PrivateKey) any { return to(a, a.p.shared.key) }),
		change("inner no JWS", func(*acct, *ecdsa.PrivateKey) any { return "hello" }),
		change("inner empty", func(*acct, *ecdsa.PrivateKey) any { return "" }),
		change("inner {}", func(*acct, *ecdsa.PrivateKey) any { return map[string]any{} }),
		{"key change: outer by jwk", func(p *prober) answer {
			a := p.account()
			return (&acct{p: p, key: a.key}).post(p.urls["keyChange"], to(a, p256(p.t)))
		}},
		{"key change: the old key afterwards", func(p *prober) answer {
			a := p.account()
			a.post(p.urls["keyChange"], to(a, p256(p.t)))
			return a.get(a.kid)
		}},
		{"key change: the new key afterwards", func(p *prober) answer {
			a := p.account()
			next := p256(p.t)
			a.post(p.urls["keyChange"], to(a, next))
			a.key = next
			return a.get(a.kid)
		}},
	}
}
