package acme_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	xacme "golang.org/x/crypto/acme"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
	"github.com/secsy-pki/secsy-pki/store"
)

func TestIssuesToTheCommonGoClient(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	c := &xacme.Client{Key: newKey(t), DirectoryURL: w.url("directory"), HTTPClient: w.http}
	if _, err := c.Register(ctx, &xacme.Account{Contact: []string{"mailto:a@example.com"}}, xacme.AcceptTOS); err != nil {
		t.Fatal(err)
	}
	o, err := c.AuthorizeOrder(ctx, xacme.DomainIDs("a.example.com", "*.a.example.com"))
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range o.AuthzURLs {
		z, err := c.GetAuthorization(ctx, u)
		if err != nil {
			t.Fatal(err)
		}
		for _, ch := range z.Challenges {
			if ch.Type == "dns-01" {
				if _, err := c.Accept(ctx, ch); err != nil {
					t.Fatal(err)
				}
			}
		}
		if _, err := c.WaitAuthorization(ctx, u); err != nil {
			t.Fatal(err)
		}
	}
	if o, err = c.WaitOrder(ctx, o.URI); err != nil {
		t.Fatal(err)
	}
	key := newKey(t)
	chain, certURL, err := c.CreateOrderCert(ctx, o.FinalizeURL, catest.CSR(t, key, "a.example.com", "*.a.example.com"), true)
	if err != nil {
		t.Fatal(err)
	}
	if len(chain) != 2 || !strings.HasPrefix(certURL, w.url("cert/")) {
		t.Errorf("%d certificates from %s", len(chain), certURL)
	}
	if err := c.RevokeCert(ctx, key, chain[0], xacme.CRLReasonKeyCompromise); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ListCertAlternates(ctx, certURL); err != nil {
		t.Error(err)
	}
	if err := c.AccountKeyRollover(ctx, newKey(t)); err != nil {
		t.Fatal(err)
	}
	if err := c.DeactivateReg(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestEveryAnswerHasTheHeaders is the golden table of what all clients of the
// field need, taken together.
func TestEveryAnswerHasTheHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	orderURL, order := c.order("a.example.com")
	authz := order.strs("authorizations")[0]
	chall := c.challengeURL(authz, "http-01")
	_, ready := c.ready("b.example.com")
	done := c.post(ready.str("finalize"), csrBody(catest.CSR(t, newKey(t), "b.example.com"))).want(200)

	for name, row := range map[string]struct {
		r          *reply
		status     int
		typ        string
		location   string
		links      []string
		retryAfter string
	}{
		"directory":    {r: c.do("GET", w.url("directory"), "", nil), status: 200, typ: "application/json"},
		"GET nonce":    {r: c.do("GET", w.url("new-nonce"), "", nil), status: 204},
		"HEAD nonce":   {r: c.do("HEAD", w.url("new-nonce"), "", nil), status: 200},
		"account":      {r: c.get(c.kid), status: 200, typ: "application/json", location: c.kid},
		"update":       {r: c.post(c.kid, map[string]any{"contact": []string{"mailto:x@example.com"}}), status: 200, typ: "application/json", location: c.kid},
		"orders":       {r: c.get(c.kid + "/orders"), status: 200, typ: "application/json"},
		"order":        {r: c.get(orderURL), status: 200, typ: "application/json", location: orderURL, retryAfter: "1"},
		"authz":        {r: c.get(authz), status: 200, typ: "application/json", location: authz, retryAfter: "1"},
		"challenge":    {r: c.get(chall), status: 200, typ: "application/json", location: chall, links: []string{"<" + authz + `>;rel="up"`}, retryAfter: "1"},
		"finalize":     {r: done, status: 200, typ: "application/json", location: done.location()},
		"certificate":  {r: c.get(done.str("certificate")), status: 200, typ: "application/pem-certificate-chain"},
		"not found":    {r: c.do("GET", w.url("none"), "", nil), status: 404, typ: "application/problem+json"},
		"wrong method": {r: c.do("GET", orderURL, "", nil), status: 405, typ: "application/problem+json"},
		"wrong type":   {r: c.do("POST", orderURL, "application/json", []byte("{}")), status: 415, typ: "application/problem+json"},
		"preflight":    {r: c.do("OPTIONS", orderURL, "", nil), status: 204},
	} {
		h := row.r.header
		if row.r.status != row.status {
			t.Errorf("%s: status %d; want %d: %s", name, row.r.status, row.status, row.r.body)
		}
		want := append([]string{"<" + w.url("directory") + `>;rel="index"`}, row.links...)
		if !slices.Equal(h["Link"], want) {
			t.Errorf("%s: Link is %q; want %q", name, h["Link"], want)
		}
		if n := h["Replay-Nonce"]; len(n) != 1 || strings.ContainsAny(n[0], ",= +/") {
			t.Errorf("%s: Replay-Nonce is %q", name, n)
		}
		for k, v := range map[string]string{
			"Cache-Control": "no-store", "Content-Type": row.typ, "Location": row.location, "Retry-After": row.retryAfter,
			"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": "Link, Location, Replay-Nonce, Retry-After",
		} {
			if got := h.Get(k); got != v {
				t.Errorf("%s: %s is %q; want %q", name, k, got, v)
			}
		}
	}
}

// Servers were seen that set no-store after the status line was out.
func TestNoStoreIsOnTheWire(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, method := range []string{"GET", "HEAD"} {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(w.base, "https://"), w.http.Transport.(*http.Transport).TLSClientConfig)
		if err != nil {
			t.Fatal(err)
		}
		defer func(c net.Conn) { _ = c.Close() }(conn)
		if _, err := fmt.Fprintf(conn, "%s /acme/new-nonce HTTP/1.1\r\nHost: evil.example\r\n\r\n", method); err != nil {
			t.Fatal(err)
		}
		r := bufio.NewReader(conn)
		var head strings.Builder
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if line == "\r\n" {
				break
			}
			head.WriteString(line)
		}
		status := map[string]string{"GET": "HTTP/1.1 204", "HEAD": "HTTP/1.1 200"}[method]
		if !strings.HasPrefix(head.String(), status) || !strings.Contains(head.String(), "Cache-Control: no-store\r\n") {
			t.Errorf("%s new-nonce:\n%s", method, head.String())
		}
		if strings.Contains(head.String(), "evil") {
			t.Error("the Host header got into a link")
		}
	}
}

func TestDirectoryNamesWhatThereIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) {
		c.TermsOfService = "https://ca.example/terms"
		c.Profiles = map[string]string{"server": "TLS servers"}
	})
	r := w.stranger().do("GET", w.url("directory"), "", nil).want(200)
	for _, k := range []string{"newNonce", "newAccount", "newOrder", "revokeCert", "keyChange"} {
		if !strings.HasPrefix(r.str(k), w.base+"/acme/") {
			t.Errorf("%s is %q", k, r.str(k))
		}
	}
	want := `"meta":{"termsOfService":"https://ca.example/terms","website":"https://ca.example/","caaIdentities":["ca.example"],"profiles":{"server":"TLS servers"}}`
	if !bytes.Contains(r.body, []byte(want)) {
		t.Errorf("directory: %s", r.body)
	}
}

func TestNewAccountFindsTheOneOfTheKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.stranger()
	url := w.url("new-account")
	c.post(url, map[string]any{"onlyReturnExisting": true}).problem(400, "accountDoesNotExist")
	first := c.post(url, map[string]any{"contact": []string{"mailto:a@example.com"}, "termsOfServiceAgreed": true}).want(201)
	again := c.post(url, map[string]any{"onlyReturnExisting": true}).want(200)
	if again.location() != first.location() || again.str("status") != "valid" || !bytes.Equal(again.body, first.body) {
		t.Errorf("first %s %s\nagain %s %s", first.location(), first.body, again.location(), again.body)
	}
	c.post(url, map[string]any{"termsOfServiceAgreed": true}).want(200)
}

func TestTermsMustBeAgreedTo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.TermsOfService = "https://ca.example/terms" })
	r := w.stranger().post(w.url("new-account"), map[string]any{}).problem(403, "userActionRequired")
	if !slices.Contains(r.header["Link"], `<https://ca.example/terms>;rel="terms-of-service"`) {
		t.Errorf("Link is %q", r.header["Link"])
	}
	if got := r.str("instance"); got != "https://ca.example/terms" {
		t.Errorf("instance is %q", got)
	}
	w.client()
}

func TestContactsAreChecked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	for contact, typ := range map[string]string{
		"tel:+123":                               "unsupportedContact",
		"https://example.com":                    "unsupportedContact",
		"":                                       "unsupportedContact",
		"mailto:":                                "invalidContact",
		"mailto:a":                               "invalidContact",
		"mailto:a@localhost":                     "invalidContact",
		"mailto:a@example.com?subject=x":         "invalidContact",
		"mailto:a@example.com,b@example.com":     "invalidContact",
		"mailto:A <a@example.com>":               "invalidContact",
		"mailto:a@exa mple.com":                  "invalidContact",
		"mailto:ä@example.com":                   "invalidContact",
		"mailto:a@" + strings.Repeat("x.", 200):  "invalidContact",
		"mailto:a@-example.com":                  "invalidContact",
		"mailto:" + strings.Repeat("@", 3) + "x": "invalidContact",
	} {
		c.post(c.kid, map[string]any{"contact": []string{contact}}).problem(400, typ)
	}
	c.post(c.kid, map[string]any{"contact": []string{"mailto:a@example.com", "MAILTO:b@xn--bcher-kva.example"}}).want(200)
	if got := c.get(c.kid).strs("contact"); len(got) != 2 {
		t.Errorf("contacts are %q", got)
	}
	c.post(c.kid, map[string]any{"contact": []string{}}).want(200)
	if got := c.get(c.kid); got.json["contact"] != nil {
		t.Errorf("contacts are still there: %s", got.body)
	}
	many := slices.Repeat([]string{"mailto:a@example.com"}, 11)
	c.post(c.kid, map[string]any{"contact": many}).problem(400, "invalidContact")
	c.post(c.kid, map[string]any{"contact": "mailto:a@example.com"}).problem(400, "malformed")
}

// letsencrypt/boulder 3971.
func TestDeactivatedAccountStaysOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	orderURL, _ := c.order("a.example.com")
	if got := c.post(c.kid, map[string]any{"status": "deactivated"}).want(200).str("status"); got != "deactivated" {
		t.Errorf("status is %s", got)
	}
	c.get(c.kid).problem(403, "unauthorized")
	c.get(orderURL).problem(403, "unauthorized")
	c.post(w.url("new-order"), dns("a.example.com")).problem(403, "unauthorized")
	bare := &client{t: t, w: w, key: c.key}
	bare.post(w.url("new-account"), map[string]any{"onlyReturnExisting": true}).problem(403, "unauthorized")
	bare.post(w.url("new-account"), map[string]any{"termsOfServiceAgreed": true}).problem(403, "unauthorized")
}

func TestStaleNonceBringsAFreshOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	used := c.takeNonce()
	c.send(c.kid, jws(t, c.key, c.header(c.kid, map[string]any{"nonce": used}), "")).want(200)
	for name, nonce := range map[string]any{"used": used, "foreign": "abc", "none": nil, "empty": ""} {
		r := c.send(c.kid, jws(t, c.key, c.header(c.kid, map[string]any{"nonce": nonce}), "")).problem(400, "badNonce")
		if !strings.Contains(r.str("detail"), "JWS has an invalid anti-replay nonce") {
			t.Errorf("%s: detail is %q", name, r.str("detail"))
		}
		c.get(c.kid).want(200)
	}
}

func TestWrongSignatureSpendsNoNonce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	nonce := c.takeNonce()
	m := jws(t, newKey(t), map[string]any{"alg": "ES256", "kid": c.kid, "nonce": nonce, "url": c.kid}, "")
	c.send(c.kid, m).problem(400, "malformed")
	c.send(c.kid, jws(t, c.key, c.header(c.kid, map[string]any{"nonce": nonce, "url": w.url("new-order")}), "")).problem(403, "unauthorized")
	c.send(c.kid, jws(t, c.key, map[string]any{"alg": "ES256", "kid": c.kid, "nonce": nonce, "url": c.kid}, "")).want(200)
}

// boulder 259 and 2935, smallstep 1631, VaulTLS 197 and their like.
func TestOddSignaturesAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	with := func(more map[string]any) map[string]any { return jws(t, c.key, c.header(c.kid, more), "") }
	edit := func(f func(m map[string]any)) map[string]any {
		m := with(nil)
		f(m)
		return m
	}
	hs256 := func() map[string]any {
		h, _ := json.Marshal(c.header(c.kid, map[string]any{"alg": "HS256", "kid": nil, "jwk": map[string]any{"kty": "oct", "k": "c2VjcmV0"}}))
		mac := hmac.New(sha256.New, []byte("secret"))
		mac.Write([]byte(b64(h) + "."))
		return map[string]any{"protected": b64(h), "payload": "", "signature": b64(mac.Sum(nil))}
	}
	der := func() map[string]any {
		m := with(nil)
		d := sha256.Sum256([]byte(m["protected"].(string) + "."))
		sig, _ := ecdsa.SignASN1(rand.Reader, c.key.(*ecdsa.PrivateKey), d[:])
		m["signature"] = b64(sig)
		return m
	}
	// R with a leading zero, sent short.
	short := func() map[string]any {
		h := c.header(c.kid, nil)
		for {
			m := jws(t, c.key, h, "")
			sig := mustDecode(t, m["signature"].(string))
			if sig[0] == 0 {
				m["signature"] = b64(sig[1:])
				return m
			}
		}
	}
	for name, row := range map[string]struct {
		message any
		typ     string
	}{
		"alg none":             {with(map[string]any{"alg": "none"}), "badSignatureAlgorithm"},
		"HS256":                {hs256(), "badSignatureAlgorithm"},
		"PS256":                {with(map[string]any{"alg": "PS256"}), "badSignatureAlgorithm"},
		"alg of another curve": {with(map[string]any{"alg": "ES384"}), "badSignatureAlgorithm"},
		"alg of another kind":  {with(map[string]any{"alg": "RS256"}), "badSignatureAlgorithm"},
		"no alg":               {with(map[string]any{"alg": nil}), "malformed"},
		"alg is a number":      {with(map[string]any{"alg": 1}), "malformed"},
		"jwk and kid":          {with(map[string]any{"jwk": jwkOf(c.key.Public())}), "malformed"},
		"neither":              {with(map[string]any{"kid": nil}), "malformed"},
		"jwk where kid is due": {with(map[string]any{"kid": nil, "jwk": jwkOf(c.key.Public())}), "malformed"},
		"crit":                 {with(map[string]any{"crit": []string{"exp"}, "exp": 1}), "malformed"},
		"b64":                  {with(map[string]any{"b64": false, "crit": []string{"b64"}}), "malformed"},
		"no url":               {with(map[string]any{"url": nil}), "malformed"},
		"unprotected header":   {edit(func(m map[string]any) { m["header"] = map[string]any{"kid": c.kid} }), "malformed"},
		"signatures":           {edit(func(m map[string]any) { m["signatures"] = []any{} }), "malformed"},
		"no payload":           {edit(func(m map[string]any) { delete(m, "payload") }), "malformed"},
		"padded payload":       {edit(func(m map[string]any) { m["payload"] = "e30=" }), "malformed"},
		"changed payload":      {edit(func(m map[string]any) { m["payload"] = "e30" }), "malformed"},
		"empty signature":      {edit(func(m map[string]any) { m["signature"] = "" }), "malformed"},
		"DER signature":        {der(), "malformed"},
		"short signature":      {short(), "malformed"},
		"kid of elsewhere":     {with(map[string]any{"kid": "https://evil.example/acme/account/1"}), "malformed"},
		"kid too deep":         {with(map[string]any{"kid": c.kid + "/orders"}), "malformed"},
		"unknown kid":          {with(map[string]any{"kid": w.url("account/0123")}), "accountDoesNotExist"},
		"no JSON":              {[]byte("eyJ.e30.abc"), "malformed"},
		"empty":                {[]byte(""), "malformed"},
		"null":                 {[]byte("null"), "malformed"},
		"a list":               {[]byte("[]"), "malformed"},
		"something after":      {[]byte("{}{}"), "malformed"},
		"a member twice":       {[]byte(`{"protected":"e30","protected":"e30","payload":"","signature":""}`), "malformed"},
		"header no object":     {[]byte(`{"protected":"W10","payload":"","signature":""}`), "malformed"},
	} {
		r := c.send(c.kid, row.message)
		if r.status != 400 || !strings.HasSuffix(r.str("type"), ":"+row.typ) {
			t.Errorf("%s: %d %s; want 400 %s", name, r.status, r.body, row.typ)
			continue
		}
		r.problem(400, row.typ)
		if row.typ == "badSignatureAlgorithm" && !slices.Contains(r.strs("algorithms"), "ES256") {
			t.Errorf("%s: algorithms are %q", name, r.strs("algorithms"))
		}
	}
	c.get(c.kid).want(200)
}

func TestWeakAccountKeysAreRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.stranger()
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.key = small
	c.post(w.url("new-account"), map[string]any{}).problem(400, "badPublicKey")
	jwk := jwkOf(p224.Public())
	c.key = newKey(t)
	for name, jwk := range map[string]map[string]any{
		"P-224":        jwk,
		"no point":     {"kty": "EC", "crv": "P-256", "x": b64(make([]byte, 32)), "y": b64(make([]byte, 32))},
		"unknown kind": {"kty": "XYZ"},
		"empty":        {},
	} {
		r := c.send(w.url("new-account"), jws(t, c.key, c.header(w.url("new-account"), map[string]any{"jwk": jwk}), map[string]any{}))
		if r.status != 400 || !strings.HasSuffix(r.str("type"), ":badPublicKey") {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
	private := jwkOf(c.key.Public())
	private["d"] = "AQAB"
	c.send(w.url("new-account"), jws(t, c.key, c.header(w.url("new-account"), map[string]any{"jwk": private}), map[string]any{})).problem(400, "malformed")
}

func TestEveryAlgorithmWorks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	list := []crypto.Signer{ed, rsaKey}
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		k, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, k)
	}
	for _, key := range list {
		c := &client{t: t, w: w, key: key}
		r := c.post(w.url("new-account"), map[string]any{})
		if r.status != 201 {
			t.Errorf("%s: %d %s", algOf(key), r.status, r.body)
			continue
		}
		c.kid = r.location()
		c.get(c.kid).want(200)
	}
}

func TestBodiesAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	c.send(c.kid, bytes.Repeat([]byte(" "), 64<<10+1)).problem(413, "malformed")
	c.do("POST", c.kid, "text/plain", []byte("{}")).problem(415, "malformed")
	c.do("POST", c.kid, "application/jose+json; charset=utf-8", []byte("{}")).problem(400, "malformed")
}

func TestWrongMethodsAndPaths(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	for _, row := range []struct{ method, path, allow string }{
		{"PUT", "directory", "GET, HEAD, OPTIONS, POST"},
		{"DELETE", "new-nonce", "GET, HEAD, OPTIONS, POST"},
		{"POST", "help/rate-limits", "GET, HEAD, OPTIONS"},
		{"GET", "new-order", "OPTIONS, POST"},
		{"DELETE", "account/1", "OPTIONS, POST"},
	} {
		r := c.do(row.method, w.url(row.path), "", nil).problem(405, "malformed")
		if got := r.header.Get("Allow"); got != row.allow {
			t.Errorf("%s %s: Allow is %q", row.method, row.path, got)
		}
	}
	for _, path := range []string{"", "directory/", "new-order/x", "nothing", "order/1/finalize/2"} {
		c.do("GET", w.url(path), "", nil).problem(404, "malformed")
	}
	c.post(w.url("order/none"), "").problem(404, "malformed")
}

// node-acme-client 57, Posh-ACME 567, boulder 3572.
func TestNamesAreOneEachAndKeepTheirStar(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	_, r := c.order("A.Example.com", "a.example.com", "*.A.example.COM", "*.a.example.com")
	ids, _ := json.Marshal(r.json["identifiers"])
	if string(ids) != `[{"type":"dns","value":"a.example.com"},{"type":"dns","value":"*.a.example.com"}]` {
		t.Errorf("identifiers: %s", ids)
	}
	authzs := r.strs("authorizations")
	if len(authzs) != 2 || authzs[0] == authzs[1] {
		t.Fatalf("authorizations: %q", authzs)
	}
	plain, wild := c.get(authzs[0]).want(200), c.get(authzs[1]).want(200)
	for _, z := range []*reply{plain, wild} {
		id, _ := json.Marshal(z.json["identifier"])
		if string(id) != `{"type":"dns","value":"a.example.com"}` {
			t.Errorf("identifier: %s", id)
		}
		for _, v := range z.json["challenges"].([]any) {
			ch := v.(map[string]any)
			token, _ := ch["token"].(string)
			if ch["status"] != "pending" || len(token) < 22 || strings.Trim(token, tokenChars) != "" || ch["url"] == "" {
				t.Errorf("challenge: %v", ch)
			}
		}
	}
	if plain.json["wildcard"] != nil || wild.json["wildcard"] != true {
		t.Errorf("wildcard: %v, %v", plain.json["wildcard"], wild.json["wildcard"])
	}
	if n := len(wild.json["challenges"].([]any)); n != 1 {
		t.Errorf("a wildcard has %d challenges; want dns-01 only", n)
	}
	c.prove(authzs[0], "dns-01")
	c.prove(authzs[1], "dns-01")
	if got := c.get(r.location()).str("status"); got != "ready" {
		t.Errorf("order is %s", got)
	}
}

const tokenChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

func TestBadNamesAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	for _, bad := range []string{"a.example.com.", "10.0.0.1", "bücher.example", "a_b.example.com", "*.*.example.com", "a.*.example.com", "", "-a.example.com", "::1"} {
		r := c.post(w.url("new-order"), dns("ok.example.com", bad)).problem(400, "rejectedIdentifier")
		subs, _ := r.json["subproblems"].([]any)
		if len(subs) != 1 || subs[0].(map[string]any)["identifier"].(map[string]any)["value"] != bad {
			t.Errorf("%q: %s", bad, r.body)
		}
		if r.json["identifier"] != nil {
			t.Errorf("%q: an identifier at the top: %s", bad, r.body)
		}
	}
	r := c.post(w.url("new-order"), dns("a_.example.com", "b_.example.com")).problem(400, "rejectedIdentifier")
	if n := len(r.json["subproblems"].([]any)); n != 2 {
		t.Errorf("%d subproblems; want 2: %s", n, r.body)
	}
	c.post(w.url("new-order"), map[string]any{"identifiers": []map[string]string{{"type": "email", "value": "a@example.com"}}}).problem(400, "unsupportedIdentifier")
	c.post(w.url("new-order"), map[string]any{"identifiers": []map[string]string{{"type": "x", "value": "y"}}}).problem(400, "unsupportedIdentifier")
	c.post(w.url("new-order"), map[string]any{}).problem(400, "malformed")
	c.post(w.url("new-order"), map[string]any{"identifiers": "a"}).problem(400, "malformed")
	c.post(w.url("new-order"), "[]").problem(400, "malformed")
	many := make([]string, 101)
	for i := range many {
		many[i] = fmt.Sprintf("n%d.example.com", i)
	}
	c.post(w.url("new-order"), dns(many...)).problem(400, "rejectedIdentifier")
}

func TestOrderKeepsDatesAndProfile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.Profiles = map[string]string{catest.ProfileName: "TLS servers"} })
	c := w.client()
	body := dns("a.example.com")
	body["profile"] = "none"
	c.post(w.url("new-order"), body).problem(400, "invalidProfile")
	body["profile"] = catest.ProfileName
	for _, bad := range []string{"tomorrow", "2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z"} {
		body["notAfter"] = bad
		c.post(w.url("new-order"), body).problem(400, "malformed")
	}
	until := time.Now().Add(24 * time.Hour).UTC().Truncate(time.Second)
	body["notAfter"] = until.Format(time.RFC3339)
	r := c.post(w.url("new-order"), body).want(201)
	if r.str("profile") != catest.ProfileName || r.str("notAfter") != until.Format(time.RFC3339) {
		t.Errorf("order: %s", r.body)
	}
	c.prove(r.strs("authorizations")[0], "http-01")
	r = c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).want(200)
	if cert := leaf(t, c.get(r.str("certificate")).body); !cert.NotAfter.Equal(until) {
		t.Errorf("certificate ends %s; want %s", cert.NotAfter, until)
	}
}

// smallstep 601.
func TestOpenOrdersAreCapped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.MaxOpenOrders = 2 })
	c := w.client()
	_, first := c.order("a.example.com")
	c.order("b.example.com")
	r := c.post(w.url("new-order"), dns("c.example.com")).problem(429, "rateLimited")
	if s, err := strconv.Atoi(r.header.Get("Retry-After")); err != nil || s < 1 || s > 600 {
		t.Errorf("Retry-After is %q", r.header.Get("Retry-After"))
	}
	if !slices.Contains(r.header["Link"], `<https://ca.example/>;rel="help"`) {
		t.Errorf("Link is %q", r.header["Link"])
	}
	c.post(first.strs("authorizations")[0], map[string]any{"status": "deactivated"}).want(200)
	c.order("c.example.com")
}

func TestOrdersAreListedInPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.PageSize = 2 })
	c := w.client()
	var want []string
	for i := range 5 {
		u, r := c.order(fmt.Sprintf("n%d.example.com", i))
		if i == 0 {
			c.post(r.strs("authorizations")[0], map[string]any{"status": "deactivated"}).want(200)
			continue
		}
		want = append(want, u)
	}
	var got []string
	pages := 0
	for next := c.kid + "/orders"; next != ""; pages++ {
		r := c.get(next).want(200)
		got = append(got, r.strs("orders")...)
		next = ""
		for _, l := range r.header["Link"] {
			if u, ok := strings.CutSuffix(l, `>;rel="next"`); ok {
				next = u[1:]
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || pages != 2 {
		t.Errorf("%d pages: %q; want %q", pages, got, want)
	}
}

// boulder 4075: and the order is none the worse for it.
func TestFinalizeBeforeReadyChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	u, r := c.order("a.example.com")
	csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
	c.post(r.str("finalize"), csr).problem(403, "orderNotReady")
	if got := c.get(u).str("status"); got != "pending" {
		t.Errorf("order is %s", got)
	}
	c.prove(r.strs("authorizations")[0], "http-01")
	if got := c.post(r.str("finalize"), csr).want(200).str("status"); got != "valid" {
		t.Errorf("order is %s", got)
	}
}

// certbot, acmez and others send finalize twice.
func TestFinalizeAgainTellsTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	u, r := c.ready("a.example.com")
	finalize := r.str("finalize")
	csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
	first := c.post(finalize, csr).want(200)
	again := c.post(finalize, csr).want(200)
	if !bytes.Equal(first.body, again.body) || again.location() != u {
		t.Errorf("first %s\nagain %s", first.body, again.body)
	}
	c.post(finalize, csrBody(catest.CSR(t, newKey(t), "a.example.com"))).problem(403, "orderNotReady")
	if n := w.certificates(ca.Issued); n != 1 {
		t.Errorf("%d certificates; want 1", n)
	}
}

// boulder 4672: exactly one issuance, and no error written over the winner's.
func TestConcurrentFinalizesMakeOneCertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner := w.client()
	u, r := owner.ready("a.example.com")
	finalize := r.str("finalize")
	bodies := []map[string]any{csrBody(catest.CSR(t, newKey(t), "a.example.com")), csrBody(catest.CSR(t, newKey(t), "a.example.com"))}
	before := w.ca.Keys.Signatures()
	var wg sync.WaitGroup
	for i := range 16 {
		c := &client{t: t, w: w, key: owner.key, kid: owner.kid}
		c.takeNonce()
		wg.Go(func() {
			m := jws(t, c.key, c.header(finalize, nil), bodies[i%2])
			r := c.send(finalize, m)
			switch {
			case r.status == 200 && (r.str("status") == "valid" || r.str("status") == "processing") && r.location() == u:
			case r.status == 403 && strings.HasSuffix(r.str("type"), ":orderNotReady"):
			default:
				t.Errorf("%d %s", r.status, r.body)
			}
		})
	}
	wg.Wait()
	got := owner.await(u, "valid", "invalid")
	if got.str("status") != "valid" || got.json["error"] != nil {
		t.Errorf("order: %s", got.body)
	}
	if n := w.ca.Keys.Signatures() - before; n != 1 {
		t.Errorf("%d signatures; want 1", n)
	}
	if issued, pending := w.certificates(ca.Issued), w.certificates(ca.Pending); issued != 1 || pending != 0 {
		t.Errorf("%d certificates, %d intents; want 1 and 0", issued, pending)
	}
}

// publishlab and others; RFC 8555 §7.4, §11.1.
func TestCSRs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	other := w.client()
	u, r := c.ready("a.example.com", "b.example.com")
	finalize := r.str("finalize")
	names := []string{"a.example.com", "b.example.com"}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	caTrue, err := asn1.Marshal(struct {
		CA bool
	}{true})
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]any{
		"account's key":         csrBody(catest.CSR(t, c.key, names...)),
		"another account's key": csrBody(catest.CSR(t, other.key, names...)),
		"weak key":              csrBody(catest.CSR(t, weak, names...)),
		"a name less":           csrBody(catest.CSR(t, newKey(t), "a.example.com")),
		"a name more":           csrBody(catest.CSR(t, newKey(t), "a.example.com", "b.example.com", "c.example.com")),
		"foreign CN":            csrBody(csrOf(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "evil.example.com"}, DNSNames: names})),
		"CA true":               csrBody(csrOf(t, &x509.CertificateRequest{DNSNames: names, ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: caTrue}}})),
		"garbage":               map[string]any{"csr": "AAAA"},
		"no base64":             map[string]any{"csr": "!"},
		"none":                  map[string]any{},
	} {
		got := c.post(finalize, body)
		if got.status != 400 || !strings.HasSuffix(got.str("type"), ":badCSR") {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	if got := c.get(u).str("status"); got != "ready" {
		t.Fatalf("order is %s after bad CSRs", got)
	}
	// acme.sh asks for usages, too, and some clients pad.
	eku, err := asn1.Marshal([]asn1.ObjectIdentifier{{1, 3, 6, 1, 5, 5, 7, 3, 2}})
	if err != nil {
		t.Fatal(err)
	}
	der := csrOf(t, &x509.CertificateRequest{
		DNSNames:        []string{"B.example.com", "A.EXAMPLE.com"},
		ExtraExtensions: []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 37}, Critical: true, Value: eku}},
	})
	for len(b64(der))%4 == 0 {
		der = csrOf(t, &x509.CertificateRequest{DNSNames: []string{"B.example.com", "A.EXAMPLE.com"}})
	}
	padded := b64(der) + strings.Repeat("=", 4-len(b64(der))%4)
	got := c.post(finalize, map[string]any{"csr": padded}).want(200)
	cert := leaf(t, c.get(got.str("certificate")).body)
	if !slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth) || slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
		t.Errorf("usages are %v", cert.ExtKeyUsage)
	}
}

// boulder 3367.
func TestNameInTheCommonNameAloneIsEnough(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	_, r := c.ready("a.example.com")
	got := c.post(r.str("finalize"), csrBody(csrOf(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "a.example.com"}}))).want(200)
	if cert := leaf(t, c.get(got.str("certificate")).body); !slices.Equal(cert.DNSNames, []string{"a.example.com"}) {
		t.Errorf("names are %q", cert.DNSNames)
	}
}

func csrOf(t *testing.T, r *x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, r, newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func TestFailedValidationEndsTheOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	w.validator.fail("bad.example.com", &acme.Problem{Type: acme.DNSError, Detail: "no TXT record", Err: fmt.Errorf("secret inside")})
	u, r := c.order("good.example.com", "bad.example.com")
	good := c.prove(r.strs("authorizations")[0], "http-01")
	bad := c.prove(r.strs("authorizations")[1], "dns-01")
	chs := good.json["challenges"].([]any)
	if len(chs) != 1 || chs[0].(map[string]any)["status"] != "valid" || bytes.Contains(good.body, []byte("invalid")) || good.header.Get("Retry-After") != "" {
		t.Errorf("a valid authorization shows more than what succeeded: %s", good.body)
	}
	if !bytes.Contains(bad.body, []byte("no TXT record")) || bytes.Contains(bad.body, []byte("secret")) {
		t.Errorf("failed authorization: %s", bad.body)
	}
	order := c.get(u).want(200)
	if order.str("status") != "invalid" || !bytes.Contains(order.body, []byte(`"type":"urn:ietf:params:acme:error:dns"`)) ||
		!bytes.Contains(order.body, []byte(`"identifier":{"type":"dns","value":"bad.example.com"}`)) {
		t.Errorf("order: %s", order.body)
	}
	c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "good.example.com", "bad.example.com"))).problem(403, "orderNotReady")
}

func TestChallengeIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	held := w.validator.holdBack("a.example.com")
	_, r := c.order("a.example.com")
	authz := r.strs("authorizations")[0]
	ch := c.challengeURL(authz, "http-01")
	first := c.post(ch, map[string]any{}).want(200)
	if first.str("status") != "processing" || first.header.Get("Retry-After") != "1" || first.str("url") != ch {
		t.Errorf("challenge: %v %s", first.header, first.body)
	}
	if again := c.post(ch, map[string]any{"keyAuthorization": "x"}).want(200).str("status"); again != "processing" {
		t.Errorf("challenge is %s", again)
	}
	c.post(c.challengeURL(authz, "dns-01"), map[string]any{}).problem(400, "malformed")
	close(held.released)
	c.await(authz, "valid")
	c.post(ch, map[string]any{}).want(200)
	if n := w.validator.seen("a.example.com"); n != 1 {
		t.Errorf("%d validations; want 1", n)
	}
	if got := w.validator.calls[0]; got.KeyAuthorization != got.Token+"."+thumbprintOf(t, c.key.Public()) || !strings.HasSuffix(c.kid, "/"+got.AccountID) {
		t.Errorf("validation: %+v", got)
	}
	c.get(w.url("challenge/none/http-01")).problem(404, "malformed")
	c.get(strings.TrimSuffix(ch, "http-01")+"tls-x").problem(404, "malformed")
}

// pebble 300.
func TestDeactivatedAuthorizationEndsTheOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	for _, prove := range []bool{false, true} {
		u, r := c.order("a.example.com")
		authz := r.strs("authorizations")[0]
		if prove {
			c.prove(authz, "http-01")
		}
		c.post(authz, map[string]any{"status": "valid"}).problem(400, "malformed")
		if got := c.post(authz, map[string]any{"status": "deactivated"}).want(200).str("status"); got != "deactivated" {
			t.Errorf("authorization is %s", got)
		}
		if got := c.get(u).str("status"); got != "invalid" {
			t.Errorf("order is %s", got)
		}
		c.post(authz, map[string]any{"status": "deactivated"}).problem(400, "malformed")
		c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).problem(403, "orderNotReady")
	}
}

// boulder 3500 and 3843.
func TestExpiredOrderIsInvalidAndPurgedOneIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	u, r := c.ready("a.example.com")
	pendingURL, pending := c.order("b.example.com")
	w.clock.advance(8 * 24 * time.Hour)
	csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
	for range 2 { // before and after the sweeper
		got := c.get(u).want(200)
		if got.str("status") != "invalid" || got.json["error"] == nil {
			t.Errorf("order: %s", got.body)
		}
		c.post(r.str("finalize"), csr).problem(403, "orderNotReady")
		if got := c.get(pending.strs("authorizations")[0]).want(200).str("status"); got != "invalid" {
			t.Errorf("authorization is %s", got)
		}
		if err := w.server.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.clock.advance(60 * 24 * time.Hour)
	for range 2 {
		if err := w.server.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.get(u).problem(404, "malformed")
	c.get(pendingURL).problem(404, "malformed")
	c.post(r.str("finalize"), csr).problem(404, "malformed")
	c.get(pending.strs("authorizations")[0]).problem(404, "malformed")
}

// ultimate-ca-manager 260: nothing tells another's object from none.
func TestOthersObjectsLookLikeNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner, other := w.client(), w.client()
	u, r := owner.ready("a.example.com")
	authz := r.strs("authorizations")[0]
	ch := owner.challengeURL(authz, "dns-01")
	csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
	done := owner.post(r.str("finalize"), csr).want(200)
	_, openOrder := owner.order("b.example.com")
	for _, row := range []struct {
		url, none string
		payload   any
	}{
		{owner.kid, w.url("account/none"), ""},
		{owner.kid, w.url("account/none"), map[string]any{"status": "deactivated"}},
		{owner.kid + "/orders", w.url("account/none/orders"), ""},
		{u, w.url("order/none"), ""},
		{r.str("finalize"), w.url("order/none/finalize"), csr},
		{authz, w.url("authz/none"), ""},
		{openOrder.strs("authorizations")[0], w.url("authz/none"), map[string]any{"status": "deactivated"}},
		{ch, w.url("challenge/none/dns-01"), ""},
		{strings.Replace(openOrder.strs("authorizations")[0], "/authz/", "/challenge/", 1) + "/dns-01", w.url("challenge/none/dns-01"), map[string]any{}},
		{done.str("certificate"), w.url("cert/none"), ""},
	} {
		his, none := other.post(row.url, row.payload), other.post(row.none, row.payload)
		if his.status != 404 || none.status != 404 || !bytes.Equal(his.body, none.body) {
			t.Errorf("%s: %d %s\n%s: %d %s", row.url, his.status, his.body, row.none, none.status, none.body)
		}
	}
	if got := owner.get(openOrder.location()).str("status"); got != "pending" {
		t.Errorf("order is %s after another's requests", got)
	}
}

// An askedStore fails where it is asked for what cannot be an id, as a database
// does that takes no NUL in a text.
type askedStore struct{ acme.Store }

func askedFor(id string) error {
	if b, err := hex.DecodeString(id); err != nil || len(b) != 16 {
		return fmt.Errorf("the store was asked for %q", id)
	}
	return nil
}

func (s askedStore) Account(ctx context.Context, id string) (acme.Account, error) {
	if err := askedFor(id); err != nil {
		return acme.Account{}, err
	}
	return s.Store.Account(ctx, id)
}

func (s askedStore) OrderOf(ctx context.Context, by acme.Signer, id string) (acme.Order, error) {
	if err := askedFor(id); err != nil {
		return acme.Order{}, err
	}
	return s.Store.OrderOf(ctx, by, id)
}

func (s askedStore) AuthorizationOf(ctx context.Context, by acme.Signer, id string) (acme.Authorization, error) {
	if err := askedFor(id); err != nil {
		return acme.Authorization{}, err
	}
	return s.Store.AuthorizationOf(ctx, by, id)
}

func (s askedStore) CertificateBy(ctx context.Context, by acme.Signer, id string) (ca.Record, error) {
	if err := askedFor(id); err != nil {
		return ca.Record{}, err
	}
	return s.Store.CertificateBy(ctx, by, id)
}

func (s askedStore) ListOrders(ctx context.Context, account, after string, limit int) ([]acme.OrderRef, error) {
	if err := errors.Join(askedFor(account), askedFor(cmp.Or(after, account))); err != nil {
		return nil, err
	}
	return s.Store.ListOrders(ctx, account, after, limit)
}

func TestWhatCannotBeAnIDNamesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.Store = askedStore{c.Store} })
	c := w.client()
	for _, id := range []string{"%00", "%ff", "none", "%27", "..%2f", strings.Repeat("a", 31), strings.Repeat("A", 32), strings.Repeat("a", 33)} {
		for _, path := range []string{"order/" + id, "order/" + id + "/finalize", "authz/" + id, "challenge/" + id + "/http-01", "cert/" + id, "account/" + id, "account/" + id + "/orders"} {
			payload := ""
			if strings.HasSuffix(path, "finalize") {
				payload = `{"csr":"AAAA"}`
			}
			c.post(w.url(path), payload).problem(404, "malformed")
		}
		c.get(c.kid+"/orders?cursor="+id).problem(400, "malformed")
	}
	for _, id := range []string{"\x00", "none", "'", "\u00e9"} {
		kid := w.url("account/" + id)
		c.send(c.kid, jws(t, c.key, c.header(c.kid, map[string]any{"kid": kid}), "")).problem(400, "accountDoesNotExist")
	}
}

// encoding/json takes "Value" for "value", and the last of two for both.
func TestNoPayloadCanBeReadInTwoWays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	for _, payload := range []string{
		`{"identifiers":[{"type":"dns","value":"a.example.com"}],"IDENTIFIERS":[{"type":"dns","value":"b.example.com"}]}`,
		`{"identifiers":[{"type":"dns","value":"a.example.com"}],"identifier\u017f":[]}`,
		`{"identifiers":[{"type":"dns","value":"a.example.com","value":"b.example.com"}]}`,
		`{"identifiers":[{"type":"dns","value":"a.example.com","Value":"b.example.com"}]}`,
		`{"identifiers":[{"type":"dns","value":"a.example.com"}],"x":[[{"y":{}},{"y":{"z":1,"z":2}}]]}`,
	} {
		c.post(w.url("new-order"), payload).problem(400, "malformed")
	}
	c.post(w.url("new-order"), `{"identifiers":[{"type":"dns","value":"a.example.com"},{"type":"dns","value":"b.example.com"}],"x":[{"type":"x"},"type",{"y":{"type":1}}]}`).want(201)
}

func TestOnlyReadResourcesWantAnEmptyPayload(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	u, r := c.order("a.example.com")
	for _, url := range []string{u, c.kid + "/orders", w.url("cert/none")} {
		c.post(url, map[string]any{}).problem(400, "malformed")
	}
	c.post(r.strs("authorizations")[0], "null").problem(400, "malformed")
	c.post(c.kid, `{"status":"deactivated","status":"valid"}`).problem(400, "malformed")
}

func TestRevocationByAccountKeyAndStranger(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner, other := w.client(), w.client()
	cert, key := owner.issue("a.example.com", "*.a.example.com")
	url := w.url("revoke-cert")
	body := func(reason any) map[string]any {
		m := map[string]any{"certificate": b64(cert.Raw)}
		if reason != nil {
			m["reason"] = reason
		}
		return m
	}
	otherCA := catest.New(t)
	unknown := otherCA.Certificate(t, "a.example.com")

	not := other.post(url, body(0)).problem(403, "unauthorized")
	none := other.post(url, map[string]any{"certificate": b64(unknown.DER)}).problem(403, "unauthorized")
	if !bytes.Equal(not.body, none.body) {
		t.Errorf("not his: %s\nnone: %s", not.body, none.body)
	}
	(&client{t: t, w: w, key: newKey(t)}).post(url, body(0)).problem(403, "unauthorized")
	for _, reason := range []any{2, 6, 7, 8, 9, 10, 11, -1, "x", 1.5, true} {
		owner.post(url, body(reason)).problem(400, "badRevocationReason")
	}
	owner.post(url, map[string]any{"certificate": "AAAA"}).problem(400, "malformed")
	owner.post(url, map[string]any{"certificate": "!"}).problem(400, "malformed")
	tampered := slices.Clone(cert.Raw)
	tampered[len(tampered)-1] ^= 1
	owner.post(url, map[string]any{"certificate": b64(tampered)}).problem(403, "unauthorized")

	r := owner.post(url, body(4)).want(200)
	if len(r.body) != 0 {
		t.Errorf("body: %s", r.body)
	}
	owner.post(url, body(nil)).problem(400, "alreadyRevoked")

	// The key's owner may still say that it is lost.
	holder := &client{t: t, w: w, key: key}
	holder.post(url, body(1)).want(200)
	rec, err := w.ca.Record(t.Context(), ca.SerialOf(cert.SerialNumber))
	if err != nil || rec.Reason != ca.KeyCompromise {
		t.Errorf("record: %+v, %v", rec, err)
	}
	_, ready := owner.ready("b.example.com")
	owner.post(ready.str("finalize"), csrBody(catest.CSR(t, key, "b.example.com"))).problem(400, "badCSR")
}

func TestRevocationByWhoeverControlsAllNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	owner, other := w.client(), w.client()
	cert, _ := owner.issue("a.example.com", "b.example.com")
	body := map[string]any{"certificate": b64(cert.Raw)}
	other.ready("a.example.com")
	other.post(w.url("revoke-cert"), body).problem(403, "unauthorized")
	other.ready("b.example.com")
	other.post(w.url("revoke-cert"), map[string]any{"certificate": b64(cert.Raw), "reason": 1}).problem(400, "badRevocationReason")
	other.post(w.url("revoke-cert"), body).want(200)
}

func TestKeyChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c, other := w.client(), w.client()
	url := w.url("key-change")
	next := newKey(t)
	inner := func(key crypto.Signer, more map[string]any, payload map[string]any) map[string]any {
		h := map[string]any{"alg": "ES256", "jwk": jwkOf(key.Public()), "url": url}
		for k, v := range more {
			h[k] = v
			if v == nil {
				delete(h, k)
			}
		}
		p := map[string]any{"account": c.kid, "oldKey": jwkOf(c.key.Public())}
		for k, v := range payload {
			p[k] = v
		}
		return jws(t, key, h, p)
	}
	forged := inner(next, nil, nil)
	forged["signature"] = inner(newKey(t), nil, nil)["signature"]
	for name, m := range map[string]map[string]any{
		"nonce inside":     inner(next, map[string]any{"nonce": "x"}, nil),
		"kid inside":       inner(next, map[string]any{"jwk": nil, "kid": c.kid}, nil),
		"another url":      inner(next, map[string]any{"url": w.url("new-order")}, nil),
		"another account":  inner(next, nil, map[string]any{"account": other.kid}),
		"another old key":  inner(next, nil, map[string]any{"oldKey": jwkOf(other.key.Public())}),
		"wrong signature":  forged,
		"no inner message": {"a": 1},
	} {
		r := c.post(url, m)
		if r.status != 400 || !strings.HasSuffix(r.str("type"), ":malformed") {
			t.Errorf("%s: %d %s", name, r.status, r.body)
		}
	}
	for _, taken := range []*client{other, c} {
		r := c.post(url, inner(taken.key, nil, nil)).problem(409, "malformed")
		if r.location() != taken.kid {
			t.Errorf("Location is %q; want %q", r.location(), taken.kid)
		}
	}
	c.post(url, inner(next, nil, nil)).want(200)
	c.get(c.kid).problem(400, "malformed") // the old key signs no more
	old := c.key
	c.key = next
	c.get(c.kid).want(200)
	(&client{t: t, w: w, key: old}).post(w.url("new-account"), map[string]any{"onlyReturnExisting": true}).problem(400, "accountDoesNotExist")
}

// A busy device never makes an order invalid, and the answer is never "ready".
func TestBusyDeviceLeavesTheOrderProcessing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	u, r := c.ready("a.example.com")
	w.ca.Keys.Fail(keys.ErrBusy)
	csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
	for range 2 {
		got := c.post(r.str("finalize"), csr).want(200)
		if got.str("status") != "processing" || got.header.Get("Retry-After") == "" || got.location() != u {
			t.Fatalf("%v %s", got.header, got.body)
		}
	}
	for range 8 {
		w.clock.advance(time.Hour)
		if err := w.server.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.get(u).str("status"); got != "processing" {
		t.Fatalf("order is %s after many busy tries", got)
	}
	w.ca.Keys.Fail(nil)
	w.clock.advance(time.Hour)
	if err := w.server.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.await(u, "valid")
	if n := w.certificates(ca.Issued); n != 1 {
		t.Errorf("%d certificates", n)
	}
}

func TestBrokenDeviceEndsTheOrderAfterSomeTries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.MaxIssueAttempts = 3 })
	c := w.client()
	u, r := c.ready("a.example.com")
	w.ca.Keys.Fail(keystest.ErrDevice)
	got := c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).want(200)
	if got.str("status") != "processing" {
		t.Fatalf("order is %s", got.str("status"))
	}
	for range 3 {
		w.clock.advance(time.Hour)
		if err := w.server.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	got = c.await(u, "invalid")
	if !bytes.Contains(got.body, []byte("serverInternal")) || bytes.Contains(got.body, []byte("device")) {
		t.Errorf("order: %s", got.body)
	}
	if issued, gone := w.certificates(ca.Issued), w.certificates(ca.Abandoned); issued != 0 || gone != 3 {
		t.Errorf("%d issued, %d abandoned; want 0 and 3", issued, gone)
	}
}

func TestDeviceThatComesBackFinishesTheOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	u, r := c.ready("a.example.com")
	w.ca.Keys.FailNext(1, keystest.ErrDevice)
	c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).want(200)
	w.clock.advance(time.Hour)
	if err := w.server.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.await(u, "valid")
}

// boulder 3403: a process that ends between the intent and the certificate.
func TestOrderSurvivesTheEndOfItsProcess(t *testing.T) {
	t.Parallel()
	var crash *crashing
	w := newWorld(t, func(c *acme.Config) {
		crash = &crashing{CA: c.CA, times: 1}
		c.CA = crash
	})
	c := w.client()
	u, r := c.ready("a.example.com")
	got := c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).want(200)
	if got.str("status") != "processing" {
		t.Fatalf("order is %s", got.str("status"))
	}
	w.clock.advance(time.Hour)
	if err := w.server.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	got = c.await(u, "valid", "invalid")
	if got.str("status") != "valid" || w.certificates(ca.Issued) != 1 {
		t.Errorf("order: %s; %d certificates", got.body, w.certificates(ca.Issued))
	}
}

func TestSlowDeviceIsNotWaitedForLongerThanSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.FinalizeWait = 20 * time.Millisecond; c.FinalizeSlots = 1 })
	c := w.client()
	u, r := c.ready("a.example.com")
	u2, r2 := c.ready("b.example.com")
	hold := w.ca.Keys.Hold()
	got := c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).want(200)
	if got.str("status") != "processing" {
		t.Errorf("order is %s", got.str("status"))
	}
	// The only slot is taken: accepted all the same.
	got = c.post(r2.str("finalize"), csrBody(catest.CSR(t, newKey(t), "b.example.com"))).want(200)
	if got.str("status") != "processing" {
		t.Errorf("order is %s", got.str("status"))
	}
	hold.Release()
	c.await(u, "valid")
	c.await(u2, "valid")
	if n := w.certificates(ca.Issued); n != 2 {
		t.Errorf("%d certificates", n)
	}
}

func TestRunFinishesIssuancesAndGivesValidationsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.FinalizeWait = 20 * time.Millisecond })
	c := w.client()
	u, r := c.ready("a.example.com")
	hold := w.ca.Keys.Hold()
	c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).want(200)
	held := w.validator.holdBack("slow.example.com")
	_, slow := c.order("slow.example.com")
	authz := slow.strs("authorizations")[0]
	c.post(c.challengeURL(authz, "http-01"), map[string]any{}).want(200)
	<-held.entered
	go hold.Release()
	w.stop()
	if got := c.get(u).str("status"); got != "valid" {
		t.Errorf("order is %s after Run ended", got)
	}
	due, err := w.store.DueValidations(t.Context(), w.clock.now(), "", 10)
	if err != nil || len(due) != 1 || !strings.HasSuffix(authz, due[0].ID) {
		t.Errorf("due: %+v, %v", due, err)
	}
}

func TestProxyHeadersDoNotMoveTheLinks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	url := c.kid
	m := jws(t, c.key, c.header(url, map[string]any{"url": strings.Replace(url, w.base, "https://evil.example", 1)}), "")
	b, _ := json.Marshal(m)
	req, err := http.NewRequestWithContext(t.Context(), "POST", url, bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/jose+json")
	req.Header.Set("X-Forwarded-Host", "evil.example")
	req.Header.Set("Forwarded", "host=evil.example;proto=https")
	req.Host = "evil.example"
	resp, err := w.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 403 || strings.Contains(fmt.Sprint(resp.Header), "evil") {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
}

// panickingCA fails in the worst way, once.
type panickingCA struct {
	acme.CA
	once sync.Once
}

func (p *panickingCA) Issue(ctx context.Context, req ca.Request, led ca.Ledger) (ca.Certificate, error) {
	p.once.Do(func() { panic("in the middle") })
	return p.CA.Issue(ctx, req, led)
}

func TestPanicInIssuanceIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.CA = &panickingCA{CA: c.CA} })
	c := w.client()
	u, r := c.ready("a.example.com")
	got := c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).want(200)
	if got.str("status") != "processing" {
		t.Errorf("order is %s", got.str("status"))
	}
	w.clock.advance(time.Hour)
	if err := w.server.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.await(u, "valid")
}

// panicking is a store with a fault of ours.
type panicking struct{ acme.Store }

func (panicking) AccountByKey(context.Context, string) (acme.Account, error) { panic("secret inside") }

func TestFaultsOfOursSayNothingToStrangers(t *testing.T) {
	t.Parallel()
	var logged safeBuffer
	w := newWorld(t, func(c *acme.Config) {
		c.Store = panicking{c.Store}
		c.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	})
	r := w.stranger().post(w.url("new-account"), map[string]any{}).problem(500, "serverInternal")
	if bytes.Contains(r.body, []byte("secret")) || !strings.Contains(logged.String(), "secret inside") {
		t.Errorf("body: %s\nlog: %s", r.body, logged.String())
	}
}

type safeBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// What a validation, a refusal or a change leaves behind is in the audit log.
func TestFactsAreInTheAuditLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	w.validator.fail("bad.example.com", &acme.Problem{Type: acme.Connection, Detail: "refused"})
	_, r := c.order("bad.example.com")
	c.prove(r.strs("authorizations")[0], "http-01") // fails, which anyone can make it do
	c.issue("a.example.com")
	_, open := c.order("b.example.com") // as is giving up what was never proven
	c.post(open.strs("authorizations")[0], map[string]any{"status": "deactivated"}).want(200)
	_, proven := c.ready("c.example.com")
	c.post(proven.strs("authorizations")[0], map[string]any{"status": "deactivated"}).want(200)
	c.post(c.kid, map[string]any{"contact": []string{"mailto:a@example.com"}}).want(200)
	c.post(c.kid, map[string]any{"status": "deactivated"}).want(200)
	got := map[string]int{}
	entries, err := store.NewAudit(w.db).Pending(t.Context(), 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Actor, "acme:account/") {
			t.Errorf("actor of %s is %s", e.Action, e.Actor)
		}
		got[e.Action]++
	}
	want := map[string]int{
		"account.created": 1, "account.updated": 1, "account.deactivated": 1,
		"authorization.validated": 2, "authorization.deactivated": 1,
		ca.ActionIntended: 1, ca.ActionIssued: 1,
	}
	if !maps.Equal(got, want) {
		t.Errorf("entries: %v; want %v", got, want)
	}
}
