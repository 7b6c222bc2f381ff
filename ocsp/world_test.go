package ocsp

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"log/slog"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	xocsp "golang.org/x/crypto/ocsp"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/hsmguard"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
)

// A world is everything around a Server: two CAs, their certificates' states,
// and stores that remember.
type world struct {
	t       testing.TB
	issuers []*ca.Issuer
	caKeys  map[ca.IssuerID]crypto.Signer
	keys    *keystest.Store
	logs    bytes.Buffer
	log     *slog.Logger // into logs, for all servers
	frozen  atomic.Bool  // the store does not answer

	mu         sync.Mutex // guards what follows
	statuses   map[ca.IssuerID]map[ca.Serial]Status
	changed    map[ca.IssuerID]map[ca.Serial]int64 // the last change of each
	heads      map[ca.IssuerID]int64
	looks      int
	lookErr    error
	reads      int
	readErr    error
	responders map[ca.IssuerID][]byte
	issued     []ca.Request
	blocked    func(crypto.PublicKey) bool // keys that are not certified; nil: none
	issueErr   error
	lifetime   time.Duration // of responder certificates
	leases     map[string]lease
	history    [][]byte   // every responder's certificate
	assigned   []Assigned // every certificate, in the order of their making
	ahead      map[Hash]map[ca.Serial]Ahead
}

type lease struct {
	holder string
	until  time.Time
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{
		t: t, keys: keystest.New(), caKeys: map[ca.IssuerID]crypto.Signer{},
		statuses: map[ca.IssuerID]map[ca.Serial]Status{}, responders: map[ca.IssuerID][]byte{},
		changed: map[ca.IssuerID]map[ca.Serial]int64{}, heads: map[ca.IssuerID]int64{},
		leases: map[string]lease{}, ahead: map[Hash]map[ca.Serial]Ahead{SHA1: {}, SHA256: {}},
		lifetime: 30 * 24 * time.Hour,
	}
	w.log = slog.New(slog.NewTextHandler(&w.logs, nil))
	w.addCA("First CA")
	w.addCA("Second CA")
	return w
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func certify(t testing.TB, tmpl, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) addCA(name string) {
	key := newKey(w.t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	cert := certify(w.t, tmpl, tmpl, key.Public(), key)
	is := &ca.Issuer{ID: ca.IDOf(cert), Name: name, Cert: cert, Key: keys.FromSigner(key)}
	w.issuers = append(w.issuers, is)
	w.caKeys[is.ID] = key
	w.statuses[is.ID] = map[ca.Serial]Status{}
	w.changed[is.ID] = map[ca.Serial]int64{}
}

// leaf makes a certificate of issuer i with serial n and gives it a state.
func (w *world) leaf(i int, n int64, st Status) *x509.Certificate {
	w.t.Helper()
	is := w.issuers[i]
	if st.NotAfter.IsZero() {
		st.NotAfter = time.Now().Add(90 * 24 * time.Hour).UTC().Truncate(time.Second)
	}
	c := certify(w.t, &x509.Certificate{
		SerialNumber: big.NewInt(n), Subject: pkix.Name{CommonName: "leaf"}, DNSNames: []string{"leaf.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: st.NotAfter,
	}, is.Cert, newKey(w.t).Public(), w.caKeys[is.ID])
	w.set(i, c, st)
	return c
}

func (w *world) set(i int, c *x509.Certificate, st Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if st.NotAfter.IsZero() {
		st.NotAfter = c.NotAfter
	}
	id, serial := w.issuers[i].ID, ca.SerialOf(c.SerialNumber)
	if _, there := w.statuses[id][serial]; there {
		w.heads[id]++
		w.changed[id][serial] = w.heads[id]
	}
	w.statuses[id][serial] = st
	for n := range w.assigned {
		if a := &w.assigned[n]; a.Issuer == id && a.Serial == serial {
			a.Status, a.StatusSeq = st, w.heads[id]
			w.dueLocked(serial)
			return
		}
	}
	w.assigned = append(w.assigned, Assigned{Place: Place{time.Now(), serial}, Issuer: id, Status: st})
}

// Heads and Changes implement Source.
func (w *world) Heads(ctx context.Context) (map[ca.IssuerID]int64, error) {
	if w.frozen.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looks++
	return maps.Clone(w.heads), w.lookErr
}

func (w *world) Changes(_ context.Context, issuer ca.IssuerID, since int64, limit int) ([]Change, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []Change
	for serial, n := range w.changed[issuer] {
		if n > since {
			out = append(out, Change{serial, n})
		}
	}
	slices.SortFunc(out, func(a, b Change) int { return cmp.Compare(a.Number, b.Number) })
	return out[:min(limit, len(out))], w.lookErr
}

// Status implements Source.
func (w *world) Status(ctx context.Context, issuer ca.IssuerID, serial ca.Serial) (Status, error) {
	if w.frozen.Load() {
		<-ctx.Done()
		return Status{}, ctx.Err()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reads++
	if w.readErr != nil {
		return Status{}, w.readErr
	}
	st, ok := w.statuses[issuer][serial]
	if !ok {
		return Status{}, ca.ErrNotFound
	}
	return st, nil
}

// Responder and SaveResponder implement Responders.
func (w *world) Responder(_ context.Context, issuer ca.IssuerID, _ [32]byte) ([]byte, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if der := w.responders[issuer]; der != nil {
		return der, nil
	}
	return nil, ca.ErrNotFound
}

func (w *world) SaveResponder(_ context.Context, issuer ca.IssuerID, _ [32]byte, der []byte, _ time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.responders[issuer] = der
	return nil
}

// certificates is how many were issued.
func (w *world) certificates() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.issued)
}

// Claim and Leave implement Leases.
func (w *world) Claim(_ context.Context, work, holder string, now, until time.Time) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.leases[work]; l.holder != holder && now.Before(l.until) {
		return false, nil
	}
	w.leases[work] = lease{holder, until}
	return true, nil
}

func (w *world) Leave(_ context.Context, work, holder string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.leases[work].holder == holder {
		delete(w.leases, work)
	}
	return nil
}

// Issue implements Issuer.
func (w *world) Issue(_ context.Context, req ca.Request, _ ca.Ledger) (ca.Certificate, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.issued = append(w.issued, req)
	if w.issueErr != nil {
		return ca.Certificate{}, w.issueErr
	}
	if w.blocked != nil && w.blocked(req.PublicKey) {
		return ca.Certificate{}, &ca.Refusal{Code: ca.BadPublicKey, Detail: "the key is blocked"}
	}
	for _, is := range w.issuers {
		if is.ID != req.Issuer {
			continue
		}
		c := certify(w.t, &x509.Certificate{
			SerialNumber: big.NewInt(1000 + int64(len(w.issued))), Subject: pkix.Name{CommonName: "responder"},
			NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(w.lifetime),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageOCSPSigning},
			ExtraExtensions: []pkix.Extension{{Id: oidNoCheck, Value: []byte{5, 0}}},
		}, is.Cert, req.PublicKey, w.caKeys[is.ID])
		w.history = append(w.history, c.Raw)
		return ca.Certificate{Serial: ca.SerialOf(c.SerialNumber), Issuer: is.ID, DER: c.Raw, NotAfter: c.NotAfter}, nil
	}
	w.t.Errorf("asked for a certificate of issuer %q", req.Issuer)
	return ca.Certificate{}, ca.ErrNotFound
}

// Begin, Commit and Abort make the world a ca.Ledger that is never reached.
func (w *world) Begin(context.Context, ca.Intent) error                  { return nil }
func (w *world) Commit(context.Context, ca.Intent, ca.Certificate) error { return nil }
func (w *world) Abort(context.Context, ca.Intent, error) error           { return nil }

func (w *world) config() Config {
	return Config{
		Issuers: w.issuers, Source: w, Responders: w, Leases: w, Shelf: w, CA: w, Ledger: w, Keys: w.keys,
		Logger: w.log,
	}
}

// guarded has w's keys behind a gate.
func (w *world) guarded(g *gate.Gate) func(*Config) {
	return func(c *Config) { c.Keys = hsmguard.New(hsmguard.Config{Gate: g}).Keys(w.keys).(KeyStore) }
}

func newGate(t *testing.T, cfg gate.Config) *gate.Gate {
	t.Helper()
	g, err := gate.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (w *world) server(change func(*Config)) *Server {
	w.t.Helper()
	cfg := w.config()
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := s.Prepare(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) query(i int, c *x509.Certificate, h crypto.Hash) []byte {
	w.t.Helper()
	der, err := xocsp.CreateRequest(c, w.issuers[i].Cert, &xocsp.RequestOptions{Hash: h})
	if err != nil {
		w.t.Fatal(err)
	}
	return der
}

// get sends target as the request line would have it, without anything cleaned.
func get(s *Server, method, target string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "/", http.NoBody)
	r.RequestURI = target
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, r)
	return rec
}

func doPost(s *Server, body []byte, contentType string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/ocsp", bytes.NewReader(body))
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, r)
	return rec
}

// ask posts a request about c and has another implementation judge the response.
func (w *world) ask(s *Server, i int, c *x509.Certificate) *xocsp.Response {
	w.t.Helper()
	rec := doPost(s, w.query(i, c, crypto.SHA1), requestType)
	resp, err := xocsp.ParseResponseForCert(rec.Body.Bytes(), c, w.issuers[i].Cert)
	if err != nil {
		w.t.Fatalf("parsing %x: %v", rec.Body.Bytes(), err)
	}
	return resp
}

// refused checks that rec is a bare OCSP refusal that nobody keeps.
func refused(t *testing.T, rec *httptest.ResponseRecorder, want responseStatus) {
	t.Helper()
	if rec.Code != http.StatusOK || !bytes.Equal(rec.Body.Bytes(), want.der()) {
		t.Errorf("got HTTP %d %x, want 200 and %v", rec.Code, rec.Body.Bytes(), want)
	}
	h := rec.Header()
	if h.Get("Content-Type") != responseType || h.Get("Cache-Control") != "no-store" || h.Get("Content-Length") != "5" {
		t.Errorf("headers %v", h)
	}
}

func b64(der []byte) string { return base64.StdEncoding.EncodeToString(der) }
