package est

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/cms"
	"github.com/secsy-pki/secsy-pki/peer"
)

const goodPassword = "correct horse battery"

// A world is a CA with a desk, and a server of EST before them.
type world struct {
	t    testing.TB
	ca   *catest.CA
	desk *desk
	logs *bytes.Buffer
	hop  netip.Addr // the other end of connections, where it is not a test's own
}

func newWorld(t testing.TB) *world {
	t.Helper()
	c := catest.New(t)
	return &world{t: t, ca: c, desk: &desk{ca: c}, logs: new(bytes.Buffer)}
}

func (w *world) config() Config {
	return Config{
		Endpoints: []Endpoint{{Label: "devices", Issuer: w.ca.Issuer, Root: w.ca.Root, KeyGeneration: KeyGeneration{Algorithm: ECP256}}},
		Default:   "devices", Desk: w.desk, Logger: slog.New(slog.NewTextHandler(w.logs, nil)),
	}
}

func (w *world) server(change func(c *Config)) *Server {
	w.t.Helper()
	cfg := w.config()
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// listen serves by TLS, and asks for client certificates as the front is to.
func (w *world) listen(s *Server, change func(c *tls.Config)) *httptest.Server {
	w.t.Helper()
	at := httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		p := peer.Peer{Addr: netip.MustParseAddr("192.0.2.7"), Conn: netip.MustParseAddr("127.0.0.1")}
		if w.hop.IsValid() {
			p.Conn = w.hop
		}
		s.Handler().ServeHTTP(rw, r.WithContext(peer.With(r.Context(), p)))
	}))
	at.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, DynamicRecordSizingDisabled: true, MinVersion: tls.VersionTLS12}
	if change != nil {
		change(at.TLS)
	}
	at.StartTLS()
	w.t.Cleanup(at.Close)
	return at
}

// A call is one request as a client sends it.
type call struct {
	path        string
	body        []byte
	user, pass  string
	headers     http.Header
	certificate *tls.Certificate
	contentType string
	method      string
	conn        *http.Client
}

type answer struct {
	*http.Response
	text []byte
}

func (w *world) do(at *httptest.Server, c call) answer {
	w.t.Helper()
	client := c.conn
	if client == nil {
		tr := at.Client().Transport.(*http.Transport).Clone() //nolint:forcetypeassert // httptest's
		tr.DisableKeepAlives = true
		if c.certificate != nil {
			tr.TLSClientConfig.Certificates = []tls.Certificate{*c.certificate}
		}
		client = &http.Client{Transport: tr}
	}
	method := c.method
	if method == "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(w.t.Context(), method, at.URL+c.path, bytes.NewReader(c.body))
	if err != nil {
		w.t.Fatal(err)
	}
	for k, v := range c.headers {
		req.Header[k] = v
	}
	if c.contentType == "" {
		c.contentType = typeRequest
	}
	req.Header.Set("Content-Type", c.contentType)
	if c.user != "" {
		req.SetBasicAuth(c.user, c.pass)
	}
	res, err := client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	if method != http.MethodHead && res.StatusCode != http.StatusNoContent && res.StatusCode != http.StatusNotModified && res.ContentLength != int64(len(text)) {
		w.t.Errorf("%s %s: Content-Length %d of %d octets", method, c.path, res.ContentLength, len(text))
	}
	return answer{res, text}
}

func (w *world) want(a answer, code int) answer {
	w.t.Helper()
	if a.StatusCode != code {
		w.t.Fatalf("HTTP %d %s, want %d", a.StatusCode, a.text, code)
	}
	return a
}

// leaf takes the only certificate out of an answer.
func (w *world) leaf(text []byte) *x509.Certificate {
	w.t.Helper()
	certs := w.certs(text)
	if len(certs) != 1 {
		w.t.Fatalf("%d certificates, want the leaf alone", len(certs))
	}
	return certs[0]
}

func (w *world) certs(text []byte) []*x509.Certificate {
	w.t.Helper()
	der, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err != nil {
		w.t.Fatal(err)
	}
	sd, err := cms.ParseSignedData(der)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []*x509.Certificate
	for _, raw := range sd.Certificates {
		c, err := x509.ParseCertificate(raw)
		if err != nil {
			w.t.Fatal(err)
		}
		out = append(out, c)
	}
	return out
}

// issued is a certificate of ours with its key, for a client's side of TLS.
func (w *world) issued(names ...string) *tls.Certificate {
	w.t.Helper()
	key := catest.NewKey(w.t)
	got, err := w.ca.Issue(w.t.Context(), ca.Request{CSR: catest.CSR(w.t, key, names...), Identifiers: catest.IDs(names...), Requester: ca.Requester{Actor: "test"}}, w.ca.Store.PlainLedger())
	if err != nil {
		w.t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{got.DER}, PrivateKey: key}
}

var rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return k
})

// selfSigned is of somebody that the desk trusts by name only.
func (w *world) selfSigned(name string, key crypto.Signer) *tls.Certificate {
	w.t.Helper()
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), SubjectKeyId: []byte("key of " + name)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		w.t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// csrWith makes a request with attributes, which Go's own can't.
func csrWith(t testing.TB, key crypto.Signer, name string, attributes ...pkix.AttributeTypeAndValue) []byte {
	t.Helper()
	tmpl := &x509.CertificateRequest{DNSNames: []string{name}}
	der, err := x509.CreateCertificateRequest(rand.Reader, tmpl, key)
	if err != nil {
		t.Fatal(err)
	}
	return resign(t, der, key, attributes)
}

// resign puts attributes into a request and signs it again.
func resign(t testing.TB, der []byte, key crypto.Signer, attributes []pkix.AttributeTypeAndValue) []byte {
	t.Helper()
	type attribute struct {
		Type   asn1.ObjectIdentifier
		Values []any `asn1:"set"`
	}
	var csr struct {
		Info struct {
			Version      int
			Subject, Key asn1.RawValue
			Attributes   []asn1.RawValue `asn1:"tag:0"`
		}
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}
	if _, err := asn1.Unmarshal(der, &csr); err != nil {
		t.Fatal(err)
	}
	for _, a := range attributes {
		raw, err := asn1.Marshal(attribute{a.Type, []any{a.Value}})
		if err != nil {
			t.Fatal(err)
		}
		csr.Info.Attributes = append(csr.Info.Attributes, asn1.RawValue{FullBytes: raw})
	}
	info, err := asn1.Marshal(csr.Info)
	if err != nil {
		t.Fatal(err)
	}
	h := crypto.SHA256.New()
	h.Write(info)
	sig, err := key.Sign(rand.Reader, h.Sum(nil), crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	out, err := asn1.Marshal(struct {
		Info      asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{asn1.RawValue{FullBytes: info}, csr.Algorithm, asn1.BitString{Bytes: sig, BitLength: 8 * len(sig)}})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func challenge(text string) pkix.AttributeTypeAndValue {
	return pkix.AttributeTypeAndValue{Type: oidChallengePassword, Value: text}
}

// A desk knows one user, trusts certificates by what trust says, and has all names
// issued but "forbidden.example.com".
type desk struct {
	ca *catest.CA

	mu        sync.Mutex // guards what follows
	asked     []Request
	passwords int
	waits     bool
	fails     error
	trust     func(chain []*x509.Certificate) bool
}

type actor string

func (a actor) Actor() string { return string(a) }

func (d *desk) CheckPassword(_ context.Context, endpoint, user, password string, _ netip.Addr) (Principal, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.passwords++
	if endpoint != "devices" || user != "dev1" || password != goodPassword {
		return nil, ErrDenied
	}
	return actor("user/" + user), nil
}

func (d *desk) CheckCertificate(_ context.Context, endpoint string, chain []*x509.Certificate) (Principal, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if endpoint != "devices" || d.trust == nil && chain[0].CheckSignatureFrom(d.ca.Issuer.Cert) != nil || d.trust != nil && !d.trust(chain) {
		return nil, ErrDenied
	}
	return actor("certificate/" + chain[0].SerialNumber.String()), nil
}

func (d *desk) Enrol(ctx context.Context, req Request) (Result, error) {
	d.mu.Lock()
	d.asked = append(d.asked, req)
	waits, fails := d.waits, d.fails
	d.mu.Unlock()
	csr, err := x509.ParseCertificateRequest(req.CSR)
	if err != nil {
		return Result{}, err
	}
	switch {
	case fails != nil:
		return Result{}, fails
	case req.Principal == nil && req.Code != "good code":
		return Result{}, ErrDenied
	case len(csr.DNSNames) == 0 || csr.DNSNames[0] == "forbidden.example.com":
		return Result{}, ErrDenied
	case waits && req.Once:
		return Result{}, ErrDenied
	case waits:
		return Result{RetryAfter: 90*time.Second + 1}, nil
	}
	got, err := d.ca.Issue(ctx, ca.Request{CSR: req.CSR, Identifiers: catest.IDs(csr.DNSNames...), Requester: ca.Requester{Actor: "test"}}, d.ca.Store.PlainLedger())
	return Result{Certificate: got.DER}, err
}

func (d *desk) last(t testing.TB) Request {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.asked) == 0 {
		t.Fatal("the desk was not asked")
	}
	return d.asked[len(d.asked)-1]
}

func (d *desk) count() (asked, passwords int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.asked), d.passwords
}

var errBroken = errors.New("the database is called secret.internal")
