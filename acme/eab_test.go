package acme_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/json"
	"hash"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/admin"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/store"
)

// eabKey makes a key of an external account and stores it.
func (w *world) eabKey(change func(*admin.ExternalKey)) admin.ExternalKey {
	w.t.Helper()
	k := admin.ExternalKey{KID: audit.NewID(), MAC: bytes.Repeat([]byte{7}, 64), CreatedBy: "test", CreatedAt: w.clock.now().Truncate(time.Microsecond), MaxUses: 1}
	if change != nil {
		change(&k)
	}
	if err := store.NewACMEOperator(w.db).CreateExternalKey(context.Background(), k, audit.New("test", "test", "test", nil)); err != nil {
		w.t.Fatal(err)
	}
	return k
}

func macOf(alg string, key []byte, input string) []byte {
	h := hmac.New(map[string]func() hash.Hash{"HS256": sha256.New, "HS384": sha512.New384, "HS512": sha512.New}[alg], key)
	h.Write([]byte(input))
	return h.Sum(nil)
}

// bind makes an inner JWS the way RFC 8555 §7.3.4 wants it; more replaces
// members of its header, nil removes.
func (c *client) bind(kid string, key []byte, more map[string]any) map[string]any {
	c.t.Helper()
	h := map[string]any{"alg": "HS256", "kid": kid, "url": c.w.url("new-account")}
	maps.Copy(h, more)
	maps.DeleteFunc(h, func(_ string, v any) bool { return v == nil })
	header, err := json.Marshal(h)
	if err != nil {
		c.t.Fatal(err)
	}
	jwk, err := json.Marshal(jwkOf(c.key.Public()))
	if err != nil {
		c.t.Fatal(err)
	}
	protected, payload := b64(header), b64(jwk)
	alg, _ := h["alg"].(string)
	if _, ok := map[string]bool{"HS256": true, "HS384": true, "HS512": true}[alg]; !ok {
		alg = "HS256"
	}
	return map[string]any{"protected": protected, "payload": payload, "signature": b64(macOf(alg, key, protected+"."+payload))}
}

func (c *client) register(binding any) *reply {
	c.t.Helper()
	body := map[string]any{"termsOfServiceAgreed": true}
	if binding != nil {
		body["externalAccountBinding"] = binding
	}
	return c.post(c.w.url("new-account"), body)
}

func binds(m acme.BindingMode) func(*acme.Config) {
	return func(c *acme.Config) { c.Binding = m }
}

func TestAccountsAreBoundAsTheDirectorySays(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		mode             acme.BindingMode
		required         any // in the directory's meta
		without, foreign int
	}{
		{acme.BindingOff, nil, 201, 201},
		{acme.BindingOptional, nil, 201, 403},
		{acme.BindingRequired, true, 403, 403},
	} {
		w := newWorld(t, binds(row.mode))
		meta, _ := w.stranger().do("GET", w.url("directory"), "", nil).json["meta"].(map[string]any)
		if meta["externalAccountRequired"] != row.required {
			t.Errorf("%q: externalAccountRequired is %v", row.mode, meta["externalAccountRequired"])
		}
		if r := w.stranger().register(nil).want(row.without); row.without == 403 {
			r.problem(403, "externalAccountRequired")
		}
		c := w.stranger()
		if r := c.register(c.bind(audit.NewID(), []byte("k"), nil)).want(row.foreign); row.foreign == 403 {
			r.problem(403, "unauthorized")
		}
		if row.mode == acme.BindingOff {
			continue
		}
		for _, alg := range []string{"HS256", "HS384", "HS512"} {
			k, c := w.eabKey(nil), w.stranger()
			u := c.register(c.bind(k.KID, k.MAC, map[string]any{"alg": alg})).want(201).location()
			a, err := w.store.Account(t.Context(), u[strings.LastIndex(u, "/")+1:])
			if err != nil || a.EAB != k.KID {
				t.Errorf("%s: account is bound by %q, %v", alg, a.EAB, err)
			}
		}
	}
}

// What strangers may not learn of keys: whether there is one, and what is wrong with it.
func TestAKeyThatBindsNobodyLooksLikeNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, binds(acme.BindingRequired))
	past := time.Now().Add(-time.Hour)
	expired := w.eabKey(func(k *admin.ExternalKey) { k.Expires = past })
	used := w.eabKey(nil)
	c := w.stranger()
	c.register(c.bind(used.KID, used.MAC, nil)).want(201)
	revoked := w.eabKey(nil)
	if _, err := store.NewACMEOperator(w.db).RevokeExternalKey(t.Context(), revoked.KID, past, audit.New("test", "test", "test", nil)); err != nil {
		t.Fatal(err)
	}
	good := w.eabKey(nil)
	elsewhere := w.eabKey(func(k *admin.ExternalKey) { k.Directory = "other" })
	short := w.eabKey(func(k *admin.ExternalKey) { k.MAC = k.MAC[:32] })
	var first []byte
	for name, b := range map[string]func(c *client) any{
		"unknown":                func(c *client) any { return c.bind(audit.NewID(), good.MAC, nil) },
		"no id at all":           func(c *client) any { return c.bind("my key\x00", good.MAC, nil) },
		"expired":                func(c *client) any { return c.bind(expired.KID, expired.MAC, nil) },
		"used up":                func(c *client) any { return c.bind(used.KID, used.MAC, nil) },
		"revoked":                func(c *client) any { return c.bind(revoked.KID, revoked.MAC, nil) },
		"wrong MAC":              func(c *client) any { return c.bind(good.KID, []byte("wrong"), nil) },
		"of another directory":   func(c *client) any { return c.bind(elsewhere.KID, elsewhere.MAC, nil) },
		"too short for its hash": func(c *client) any { return c.bind(short.KID, short.MAC, map[string]any{"alg": "HS512"}) },
		"the key of nothing":     func(c *client) any { return c.bind(used.KID, nil, nil) },
	} {
		c := w.stranger()
		r := c.register(b(c)).problem(403, "unauthorized")
		if first == nil {
			first = r.body
		}
		if !bytes.Equal(r.body, first) {
			t.Errorf("%s: %s, another: %s", name, r.body, first)
		}
	}
	// And none of them was used by it.
	c = w.stranger()
	c.register(c.bind(good.KID, good.MAC, nil)).want(201)
}

func TestABindingIsExactlyWhatItHasToBe(t *testing.T) {
	t.Parallel()
	w := newWorld(t, binds(acme.BindingOptional))
	k := w.eabKey(nil)
	other := w.stranger()
	for name, b := range map[string]func(c *client) any{
		"a nonce":                 func(c *client) any { return c.bind(k.KID, k.MAC, map[string]any{"nonce": c.takeNonce()}) },
		"a jwk":                   func(c *client) any { return c.bind(k.KID, k.MAC, map[string]any{"jwk": jwkOf(c.key.Public())}) },
		"crit":                    func(c *client) any { return c.bind(k.KID, k.MAC, map[string]any{"crit": []string{"exp"}}) },
		"no kid":                  func(c *client) any { return c.bind(k.KID, k.MAC, map[string]any{"kid": nil}) },
		"a kid that is a number":  func(c *client) any { return c.bind(k.KID, k.MAC, map[string]any{"kid": 1}) },
		"no url":                  func(c *client) any { return c.bind(k.KID, k.MAC, map[string]any{"url": nil}) },
		"another url":             func(c *client) any { return c.bind(k.KID, k.MAC, map[string]any{"url": w.url("new-order")}) },
		"a signature's algorithm": func(c *client) any { return c.bind(k.KID, k.MAC, map[string]any{"alg": "ES256"}) },
		"none":                    func(c *client) any { return c.bind(k.KID, k.MAC, map[string]any{"alg": "none"}) },
		"another's key":           func(*client) any { return other.bind(k.KID, k.MAC, nil) },
		"a list":                  func(*client) any { return []string{} },
		"a text":                  func(*client) any { return "x" },
		"nothing in it":           func(*client) any { return map[string]any{} },
		"an unprotected header": func(c *client) any {
			b := c.bind(k.KID, k.MAC, nil)
			b["header"] = map[string]any{}
			return b
		},
		"a MAC that is cut": func(c *client) any {
			b := c.bind(k.KID, k.MAC, nil)
			s, _ := b["signature"].(string)
			b["signature"] = s[:len(s)-4]
			return b
		},
		"a payload that is no key": func(c *client) any {
			b := c.bind(k.KID, k.MAC, nil)
			b["payload"] = b64([]byte("{}"))
			return b
		},
	} {
		c := w.stranger()
		if r := c.register(b(c)).problem(400, "malformed"); !strings.Contains(r.str("detail"), "externalAccountBinding: ") {
			t.Errorf("%s: %s", name, r.body)
		}
	}
	c := w.stranger()
	c.register(c.bind(k.KID, k.MAC, nil)).want(201)
}

func TestAKeyThatIsUsedUpBindsNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, binds(acme.BindingRequired))
	one, two, any := w.eabKey(nil), w.eabKey(func(k *admin.ExternalKey) { k.MaxUses = 2 }), w.eabKey(func(k *admin.ExternalKey) { k.MaxUses = 0 })
	for _, row := range []struct {
		key  admin.ExternalKey
		good int
	}{{one, 1}, {two, 2}, {any, 4}} {
		for i := range 5 {
			c := w.stranger()
			want := 201
			if i >= row.good && row.key.MaxUses > 0 {
				want = 403
			}
			c.register(c.bind(row.key.KID, row.key.MAC, nil)).want(want)
		}
	}
	// What can bind nobody any more is not kept.
	k, err := w.store.BindingKey(t.Context(), one.KID)
	if err != nil || len(k.MAC) != 0 || k.Uses != 1 {
		t.Errorf("%+v, %v", k, err)
	}
}

func TestOfTwoAtOnceOneIsBound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, binds(acme.BindingRequired))
	k := w.eabKey(nil)
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		statuses = map[int]int{}
		refused  []byte
	)
	for range 8 {
		c := w.stranger()
		h, b := c.header(w.url("new-account"), nil), c.bind(k.KID, k.MAC, nil)
		wg.Go(func() {
			r := c.send(w.url("new-account"), jws(t, c.key, h, map[string]any{"externalAccountBinding": b}))
			mu.Lock()
			defer mu.Unlock()
			statuses[r.status]++
			if r.status == 403 {
				if refused != nil && !bytes.Equal(refused, r.body) {
					t.Errorf("%s and %s", refused, r.body)
				}
				refused = r.body
			}
		})
	}
	wg.Wait()
	if statuses[201] != 1 || statuses[403] != 7 {
		t.Errorf("statuses %v", statuses)
	}
}

func TestAnAccountThatIsThereUsesNoKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, binds(acme.BindingRequired))
	k := w.eabKey(nil)
	c := w.stranger()
	at := c.register(c.bind(k.KID, k.MAC, nil)).want(201).location()
	another := w.eabKey(nil)
	for _, b := range []any{nil, c.bind(another.KID, another.MAC, nil), c.bind(k.KID, k.MAC, nil), "nonsense"} {
		if got := c.register(b).want(200).location(); got != at {
			t.Errorf("the account is at %s; want %s", got, at)
		}
	}
	if got, err := w.store.BindingKey(t.Context(), another.KID); err != nil || got.Uses != 0 {
		t.Errorf("a key was used for an account that was there: %+v, %v", got, err)
	}
}

func TestAnAccountOrdersWithinItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, binds(acme.BindingRequired), func(c *acme.Config) {
		c.Profiles = map[string]string{"server": "", "short": "", "none": ""}
		c.DefaultProfile = "server"
	})
	k := w.eabKey(func(k *admin.ExternalKey) {
		k.DNS, k.IP, k.Profiles = []string{"example.org"}, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, []string{"server", "none"}
	})
	c := w.stranger()
	c.kid = c.register(c.bind(k.KID, k.MAC, nil)).want(201).location()
	for _, name := range []string{"example.org", "a.b.example.org", "*.example.org"} {
		c.order(name)
	}
	r := c.post(w.url("new-order"), dns("example.org", "example.com", "notexample.org")).problem(400, "rejectedIdentifier")
	var subs []string
	list, _ := r.json["subproblems"].([]any)
	for _, v := range list {
		sub, _ := v.(map[string]any)
		id, _ := sub["identifier"].(map[string]any)
		name, _ := id["value"].(string)
		subs = append(subs, name)
	}
	if got := strings.Join(subs, " "); got != "example.com notexample.org" {
		t.Errorf("subproblems about %q: %s", got, r.body)
	}
	body := dns("example.org")
	body["profile"] = "short"
	c.post(w.url("new-order"), body).problem(400, "invalidProfile")
}

// Who names no profile gets the usual one, or the first that his key has.
func TestAnOrderWithoutAProfileIsWithinTheKeysOnes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, binds(acme.BindingOptional), func(c *acme.Config) {
		c.Profiles, c.DefaultProfile = map[string]string{catest.ProfileName: ""}, "usual"
		c.Scope.Profiles = []string{"usual", catest.ProfileName}
	})
	for _, row := range []struct {
		profiles []string
		want     string
		problem  string
	}{
		{[]string{catest.ProfileName}, catest.ProfileName, ""},
		{[]string{"usual", catest.ProfileName}, "", "invalidProfile"}, // there is no such profile at the authority
		{[]string{"elsewhere"}, "", "invalidProfile"},                 // what the directory does not have, no key gives
	} {
		k, c := w.eabKey(func(k *admin.ExternalKey) { k.Profiles = row.profiles }), w.stranger()
		c.kid = c.register(c.bind(k.KID, k.MAC, nil)).want(201).location()
		r := c.post(w.url("new-order"), dns("example.org"))
		if row.problem != "" {
			r.problem(400, row.problem)
		} else if got := r.want(201).str("profile"); got != row.want {
			t.Errorf("%v: the order has profile %q; want %q", row.profiles, got, row.want)
		}
	}
}

// An account that the operator revoked is out, and so is its key.
func TestRevokedAccountStaysOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.client()
	u, r := c.ready("a.example.com")
	id := c.kid[strings.LastIndex(c.kid, "/")+1:]
	if err := store.NewACMEOperator(w.db).RevokeAccount(t.Context(), id, w.clock.now(), audit.New("test", "account.revoked", "account/"+id, nil)); err != nil {
		t.Fatal(err)
	}
	csr := csrBody(catest.CSR(t, newKey(t), "a.example.com"))
	for _, row := range []struct {
		url     string
		payload any
	}{
		{u, ""},
		{r.str("finalize"), csr},
		{c.kid, ""},
		{c.kid, map[string]any{"contact": []string{}}},
		{c.kid, map[string]any{"status": "deactivated"}},
		{w.url("new-order"), dns("b.example.com")},
		{w.url("key-change"), map[string]any{}},
	} {
		if r := c.post(row.url, row.payload).problem(403, "unauthorized"); !strings.Contains(r.str("detail"), "revoked") {
			t.Errorf("%s: %s", row.url, r.body)
		}
	}
	again := &client{t: t, w: w, key: c.key}
	again.register(nil).problem(403, "unauthorized")
	o, err := w.store.Order(t.Context(), u[strings.LastIndex(u, "/")+1:])
	if err != nil || o.Status != acme.OrderInvalid || o.Error == nil {
		t.Errorf("the order is %+v, %v", o, err)
	}
}

// What was being signed when the process ended is not issued anew for an
// account that was revoked since.
func TestRevokedAccountGetsNothingAfterACrash(t *testing.T) {
	t.Parallel()
	crash := &crashing{times: 1}
	w := newWorld(t, func(c *acme.Config) { crash.CA, c.CA = c.CA, crash })
	c := w.client()
	u, r := c.ready("a.example.com")
	got := c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))).want(200)
	if got.str("status") != "processing" {
		t.Fatalf("order is %s", got.str("status"))
	}
	id := c.kid[strings.LastIndex(c.kid, "/")+1:]
	if err := store.NewACMEOperator(w.db).RevokeAccount(t.Context(), id, w.clock.now(), audit.New("test", "account.revoked", "account/"+id, nil)); err != nil {
		t.Fatal(err)
	}
	w.clock.advance(time.Hour)
	if err := w.server.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	o, err := w.store.Order(t.Context(), u[strings.LastIndex(u, "/")+1:])
	if err != nil || o.Status != acme.OrderInvalid || o.Error == nil || o.Error.Type != acme.Unauthorized {
		t.Errorf("the order is %+v, %v", o, err)
	}
	if n := w.certificates(ca.Issued); n != 0 {
		t.Errorf("%d certificates were issued", n)
	}
}

func TestTheDirectoryBoundsWhatIsOrdered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *acme.Config) { c.Scope = acme.Scope{DNS: []string{"example.org"}} })
	c := w.client()
	c.order("www.example.org")
	c.post(w.url("new-order"), dns("example.com")).problem(400, "rejectedIdentifier")
}
