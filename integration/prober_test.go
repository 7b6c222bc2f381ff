package integration

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A prober sends one script of requests, right and wrong ones, to a directory.
// It signs by hand, so that it can send anything.
type prober struct {
	t         *testing.T
	name      string
	directory string
	http      *http.Client
	urls      map[string]string // the directory's
	answers   *answerer
	n         int    // names given out
	shared    *acct  // where accounts are not bound
	kid       string // of the key that binds accounts
	mac       []byte
}

// An acct is a key, and the account that it has.
type acct struct {
	p   *prober
	key *ecdsa.PrivateKey
	kid string
}

// An answer is what is compared of a response.
type answer struct {
	status int
	header http.Header
	body   []byte
	json   map[string]any
}

func newProber(t *testing.T, name, directory string, client *http.Client, http01 int, bind bool) *prober {
	t.Helper()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	p := &prober{t: t, name: name, directory: directory, http: client, answers: serveKeyAuthorizations(t, http01), urls: map[string]string{}}
	for k, v := range p.do("GET", directory, "", nil).json {
		if s, ok := v.(string); ok {
			p.urls[k] = s
		}
	}
	if !bind {
		p.shared = p.account()
	}
	return p
}

// answerer serves http-01 for all accounts of a prober.
type answerer struct {
	mu    sync.Mutex // guards token
	token map[string]string
}

func serveKeyAuthorizations(t *testing.T, port int) *answerer {
	t.Helper()
	a := &answerer{token: map[string]string{}}
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		_, _ = io.WriteString(w, a.token[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]])
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return a
}

func (a *answerer) set(token, authorization string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token[token] = authorization
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func p256(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// jwk is a public P-256 key; more replaces members, nil removes.
func jwk(k *ecdsa.PrivateKey, more map[string]any) map[string]any {
	point, _ := k.PublicKey.Bytes()
	m := map[string]any{"kty": "EC", "crv": "P-256", "x": b64(point[1:33]), "y": b64(point[33:])}
	return merged(m, more)
}

func merged(m, more map[string]any) map[string]any {
	m = maps.Clone(m)
	maps.Copy(m, more)
	maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
	return m
}

func thumbprint(k *ecdsa.PrivateKey) string {
	j := jwk(k, nil)
	d := sha256.Sum256(fmt.Appendf(nil, `{"crv":"P-256","kty":"EC","x":"%s","y":"%s"}`, j["x"], j["y"]))
	return b64(d[:])
}

func (p *prober) do(method, url, contentType string, body []byte) answer {
	p.t.Helper()
	req, err := http.NewRequestWithContext(p.t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	res, err := p.http.Do(req)
	if err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
	defer res.Body.Close()
	a := answer{status: res.StatusCode, header: res.Header}
	if a.body, err = io.ReadAll(res.Body); err != nil {
		p.t.Fatalf("%s: %v", p.name, err)
	}
	_ = json.Unmarshal(a.body, &a.json) // a chain is none
	return a
}

func (p *prober) nonce() string {
	p.t.Helper()
	return p.do("HEAD", p.urls["newNonce"], "", nil).header.Get("Replay-Nonce")
}

// fresh is a name of this run's own.
func (p *prober) fresh() string {
	p.n++
	return fmt.Sprintf("probe%d.example.com", p.n)
}

func (p *prober) stranger() *acct { return &acct{p: p, key: p256(p.t)} }

func (p *prober) account() *acct {
	p.t.Helper()
	a := p.stranger()
	r := a.post(p.urls["newAccount"], map[string]any{"termsOfServiceAgreed": true})
	if r.status != http.StatusCreated {
		p.t.Fatalf("%s: newAccount: %d %s", p.name, r.status, r.body)
	}
	a.kid = r.header.Get("Location")
	return a
}

// header is a right protected header; more replaces members, nil removes.
func (a *acct) header(url string, more map[string]any) map[string]any {
	a.p.t.Helper()
	h := map[string]any{"alg": "ES256", "nonce": a.p.nonce(), "url": url, "kid": a.kid}
	if a.kid == "" {
		delete(h, "kid")
		h["jwk"] = jwk(a.key, nil)
	}
	return merged(h, more)
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	switch v := v.(type) {
	case string:
		return []byte(v)
	case []byte:
		return v
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// signed is a flattened JWS by key.
func signed(t testing.TB, key *ecdsa.PrivateKey, header, payload any) map[string]any {
	t.Helper()
	protected, body := b64(encode(t, header)), b64(encode(t, payload))
	r, s := ecdsaSign(t, key, protected+"."+body)
	sig := make([]byte, 64)
	r.FillBytes(sig[:32])
	s.FillBytes(sig[32:])
	return map[string]any{"protected": protected, "payload": body, "signature": b64(sig)}
}

func ecdsaSign(t testing.TB, key *ecdsa.PrivateKey, input string) (r, s *big.Int) {
	t.Helper()
	d := sha256.Sum256([]byte(input))
	r, s, err := ecdsa.Sign(rand.Reader, key, d[:])
	if err != nil {
		t.Fatal(err)
	}
	return r, s
}

func (p *prober) send(url string, message any) answer {
	p.t.Helper()
	return p.do("POST", url, "application/jose+json", encode(p.t, message))
}

func (a *acct) post(url string, payload any) answer {
	a.p.t.Helper()
	return a.with(url, nil, payload)
}

func (a *acct) get(url string) answer {
	a.p.t.Helper()
	return a.with(url, nil, "")
}

// with posts with another header than the right one.
func (a *acct) with(url string, more map[string]any, payload any) answer {
	a.p.t.Helper()
	return a.p.send(url, signed(a.p.t, a.key, a.header(url, more), payload))
}

// edited posts a message that was changed after it was signed.
func (a *acct) edited(url string, payload any, edit func(m map[string]any)) answer {
	a.p.t.Helper()
	m := signed(a.p.t, a.key, a.header(url, nil), payload)
	edit(m)
	return a.p.send(url, m)
}

func names(names ...string) map[string]any {
	ids := make([]map[string]string, 0, len(names))
	for _, n := range names {
		ids = append(ids, map[string]string{"type": "dns", "value": n})
	}
	return map[string]any{"identifiers": ids}
}

func (r answer) str(name string) string { s, _ := r.json[name].(string); return s }

func (r answer) strs(name string) (out []string) {
	l, _ := r.json[name].([]any)
	for _, v := range l {
		s, _ := v.(string)
		out = append(out, s)
	}
	return out
}

// An order is one that an account has at the server.
type order struct {
	a                      *acct
	url, finalize, name    string
	authz, challenge, cert string
	token                  string
	answer                 answer // the last
	key                    *ecdsa.PrivateKey
	der                    []byte // once issued
}

func (a *acct) order() *order {
	a.p.t.Helper()
	o := &order{a: a, name: a.p.fresh()}
	o.answer = a.post(a.p.urls["newOrder"], names(o.name))
	if o.answer.status != http.StatusCreated {
		a.p.t.Fatalf("%s: newOrder: %d %s", a.p.name, o.answer.status, o.answer.body)
	}
	o.url, o.finalize = o.answer.header.Get("Location"), o.answer.str("finalize")
	o.authz = o.answer.strs("authorizations")[0]
	list, _ := a.get(o.authz).json["challenges"].([]any)
	for _, v := range list {
		if m, _ := v.(map[string]any); m["type"] == "http-01" {
			o.challenge, _ = m["url"].(string)
			o.token, _ = m["token"].(string)
		}
	}
	return o
}

// prove answers the challenge, rightly or not, and waits for what comes of it.
func (o *order) prove(rightly bool) *order {
	o.a.p.t.Helper()
	authorization := "wrong"
	if rightly {
		authorization = o.token + "." + thumbprint(o.a.key)
	}
	o.a.p.answers.set(o.token, authorization)
	o.a.post(o.challenge, map[string]any{})
	o.answer = o.a.await(o.authz, "valid", "invalid")
	return o
}

func (a *acct) await(url string, states ...string) (r answer) {
	a.p.t.Helper()
	waitFor(a.p.t, a.p.name+" to move "+url, func() error {
		if r = a.get(url); !slices.Contains(states, r.str("status")) {
			return fmt.Errorf("%d %s", r.status, r.body)
		}
		return nil
	})
	return r
}

func (a *acct) ready() *order {
	a.p.t.Helper()
	o := a.order().prove(true)
	o.answer = a.await(o.url, "ready")
	return o
}

func (o *order) csr(template x509.CertificateRequest) []byte {
	if o.key == nil {
		o.key = p256(o.a.p.t)
	}
	return csrOf(o.a.p.t, o.key, template)
}

func csrOf(t testing.TB, key crypto.Signer, template x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// finalizes sends a CSR as it is.
func (o *order) finalizes(csr any) answer {
	o.a.p.t.Helper()
	if der, ok := csr.([]byte); ok {
		csr = b64(der)
	}
	return o.a.post(o.finalize, map[string]any{"csr": csr})
}

func (a *acct) issued() *order {
	a.p.t.Helper()
	o := a.ready()
	o.finalizes(o.csr(x509.CertificateRequest{DNSNames: []string{o.name}}))
	o.answer = a.await(o.url, "valid")
	o.cert = o.answer.str("certificate")
	b, _ := pem.Decode(a.get(o.cert).body)
	if b == nil {
		a.p.t.Fatalf("%s: no certificate", a.p.name)
	}
	o.der = b.Bytes
	return o
}

// startPebble starts Debian's Pebble, which validates by dns and keeps all it knows in memory.
func startPebble(t *testing.T, dns dnsMock, bind bool) *prober {
	t.Helper()
	dir := t.TempDir()
	key := p256(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	files := map[string][]byte{"tls.pem": cert, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: ec})}
	api, http01 := freePort(t), freePort(t)
	files["pebble.json"], err = json.Marshal(map[string]any{"pebble": map[string]any{
		"listenAddress": fmt.Sprintf("127.0.0.1:%d", api), "managementListenAddress": fmt.Sprintf("127.0.0.1:%d", freePort(t)),
		"certificate": filepath.Join(dir, "tls.pem"), "privateKey": filepath.Join(dir, "tls.key"),
		"httpPort": http01, "tlsPort": freePort(t),
		"externalAccountBindingRequired": bind, "externalAccountMACKeys": map[string]string{"probe": b64(pebbleMAC)},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range files {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("pebble", "-config", filepath.Join(dir, "pebble.json"), "-dnsserver", dns.addr)
	cmd.Env = append(os.Environ(), "PEBBLE_VA_NOSLEEP=1", "PEBBLE_WFE_NONCEREJECT=0", "PEBBLE_AUTHZREUSE=0")
	start(t, "pebble", cmd)
	waitFor(t, "pebble", func() error { return dial(fmt.Sprintf("127.0.0.1:%d", api)) })
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(tr.CloseIdleConnections)
	p := newProber(t, "Pebble", fmt.Sprintf("https://127.0.0.1:%d/dir", api), &http.Client{Transport: tr, Timeout: 30 * time.Second}, http01, bind)
	p.kid, p.mac = "probe", pebbleMAC
	return p
}

var pebbleMAC = bytes.Repeat([]byte{7}, 48)

// startProbed starts the built program for a prober, which comes from one
// address and asks faster than anybody may.
func startProbed(t *testing.T, dns dnsMock, bind bool) *prober {
	t.Helper()
	s := startQuickstart(t, quickstart{dns: dns})
	s.stop()
	setSection(t, configOf(s.dir), "rate_limit:", unlimited)
	if bind {
		setSection(t, configOf(s.dir), "acme:", "  external_account_binding: required\n")
	}
	s.start(t)
	p := newProber(t, "ours", s.env["ACME_DIRECTORY"], s.client(t), s.http01, bind)
	if bind {
		kid, mac := s.eabKey(t, "--uses", "0")
		var err error
		if p.mac, err = base64.RawURLEncoding.DecodeString(mac); err != nil {
			t.Fatal(err)
		}
		p.kid = kid
	}
	return p
}

// outcome is what came of a request: its status, the type of the problem, and
// whether subproblems say more; of an object its status.
func (r answer) outcome() string {
	out := strconv.Itoa(r.status)
	if r.status < 400 {
		return strings.TrimSpace(out + " " + r.str("status"))
	}
	return strings.TrimSpace(out + " " + strings.TrimPrefix(r.str("type"), "urn:ietf:params:acme:error:"))
}

// headers are what is compared of two answers that have the same outcome: which
// are there, and the values of those whose values are not the server's own.
func (r answer) headers() map[string]string {
	h := map[string]string{"Content-Type": r.header.Get("Content-Type"), "subproblems": "no"}
	for _, name := range []string{"Location", "Retry-After", "Replay-Nonce"} {
		h[name] = "yes"
		if len(r.header.Values(name)) == 0 {
			h[name] = "no"
		}
	}
	rels := []string{}
	for _, l := range r.header.Values("Link") {
		_, rel, _ := strings.Cut(l, "rel=")
		rels = append(rels, strings.Trim(rel, `"`))
	}
	slices.Sort(rels)
	h["Link"] = strings.Join(rels, " ")
	if subs, _ := r.json["subproblems"].([]any); len(subs) > 0 {
		h["subproblems"] = "yes"
	}
	return h
}

// rsaKey is made once for all probes that want one of that size.
var rsaKeys sync.Map

func rsaKey(t testing.TB, bits int) *rsa.PrivateKey {
	t.Helper()
	if k, ok := rsaKeys.Load(bits); ok {
		return k.(*rsa.PrivateKey)
	}
	k, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	rsaKeys.Store(bits, k)
	return k
}
