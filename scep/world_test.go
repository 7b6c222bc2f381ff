package scep

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/cms"
	"github.com/secsy-pki/secsy-pki/enrol"
	"github.com/secsy-pki/secsy-pki/keys"
)

const goodChallenge = "Kq7vT2mZ"

// A world is a CA with a desk, and what a server of SCEP needs else.
type world struct {
	t    testing.TB
	ca   *catest.CA
	desk *desk
	kept *registrations
	now  func() time.Time
	logs *bytes.Buffer
}

func newWorld(t testing.TB) *world {
	t.Helper()
	c := catest.New(t)
	// Making RSA keys takes long, so all worlds have the same.
	if _, err := c.Keys.Put("scep-"+string(c.Issuer.ID), raKey()); err != nil {
		t.Fatal(err)
	}
	c.Issuer.Root = c.Root
	return &world{t: t, ca: c, desk: &desk{ca: c}, kept: &registrations{}, now: time.Now, logs: new(bytes.Buffer)}
}

var raKey = sync.OnceValue(newRSA)

var (
	deviceKey = sync.OnceValue(newRSA)
	secondKey = sync.OnceValue(newRSA)
	ecKey     = sync.OnceValue(func() crypto.Signer {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			panic(err)
		}
		return k
	})
)

func newRSA() crypto.Signer {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return k
}

// server makes a Server at one endpoint, "devices", which is the default one.
func (w *world) server(change func(c *Config)) *Server {
	w.t.Helper()
	cfg := Config{
		Endpoints: []Endpoint{{Label: "devices", Issuer: w.ca.Issuer}}, Default: "devices",
		Desk: w.desk, CA: w.ca, Ledger: w.ca.Store.PlainLedger(), Certificates: w.ca.Store, Registrations: w.kept, CRLs: crls{},
		Keys: w.ca.Keys, Now: func() time.Time { return w.now() }, Logger: slog.New(slog.NewTextHandler(w.logs, nil)),
		Share: 4, Patience: 5 * time.Second,
	}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// served is a server that has its registration authority.
func (w *world) served(change func(c *Config)) *Server {
	w.t.Helper()
	s := w.server(change)
	if err := s.Prepare(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return s
}

// A desk issues DNS names to whoever knows the challenge, or has a certificate.
type desk struct {
	ca *catest.CA

	mu      sync.Mutex // guards what follows
	done    map[string][]byte
	asked   []enrol.Request
	polls   int
	pending bool
	fails   error
	spkis   map[string][32]byte
	csrs    map[string][]byte // of requests that wait
	onPoll  func(ctx context.Context, n int)
}

// approve has everything that waits issued.
func (d *desk) approve(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pending = false
	for transaction, csr := range d.csrs {
		if err := d.issueLocked(ctx, transaction, csr); err != nil {
			panic(err)
		}
	}
}

func (d *desk) issueLocked(ctx context.Context, transaction string, der []byte) error {
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return err
	}
	c, err := d.ca.Issue(ctx, ca.Request{Profile: catest.ProfileName, CSR: der, Identifiers: catest.IDs(csr.DNSNames...)}, d.ca.Store.PlainLedger())
	if err != nil {
		return err
	}
	d.done[transaction] = c.DER
	return nil
}

// CheckCertificate takes what the issuer signed.
func (d *desk) CheckCertificate(_ context.Context, _ string, chain []*x509.Certificate) (enrol.Principal, error) {
	if err := chain[0].CheckSignatureFrom(d.ca.Issuer.Cert); err != nil {
		return enrol.Principal{}, enrol.ErrDenied
	}
	return enrol.Principal{Kind: enrol.Certificate, Name: string(ca.SerialOf(chain[0].SerialNumber))}, nil
}

func (d *desk) Enrol(ctx context.Context, req enrol.Request) (enrol.Result, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, req)
	if d.fails != nil {
		return enrol.Result{}, d.fails
	}
	if !req.Renewal && req.Challenge != goodChallenge {
		return enrol.Result{}, fmt.Errorf("%w: challenge", enrol.ErrDenied)
	}
	csr, err := x509.ParseCertificateRequest(req.CSR)
	if err != nil {
		return enrol.Result{}, err
	}
	if d.spkis == nil {
		d.spkis, d.done, d.csrs = map[string][32]byte{}, map[string][]byte{}, map[string][]byte{}
	}
	d.spkis[req.Transaction], d.csrs[req.Transaction] = sha256.Sum256(csr.RawSubjectPublicKeyInfo), req.CSR
	if d.pending {
		return enrol.Result{}, nil
	}
	// One key asks under one transaction for ever, as strongSwan does; what is asked
	// for as a renewal is new.
	if d.done[req.Transaction] == nil || req.Renewal {
		if err := d.issueLocked(ctx, req.Transaction, req.CSR); err != nil {
			return enrol.Result{}, err
		}
	}
	return enrol.Result{Certificate: d.done[req.Transaction]}, nil
}

func (d *desk) Poll(ctx context.Context, p enrol.Poll) (enrol.Result, error) {
	d.mu.Lock()
	d.polls++
	n := d.polls
	d.mu.Unlock()
	if d.onPoll != nil {
		d.onPoll(ctx, n)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spkis[p.Transaction] != p.SPKI {
		return enrol.Result{}, enrol.ErrDenied
	}
	return enrol.Result{Certificate: d.done[p.Transaction]}, nil
}

// asks are the requests that came to the desk.
func (d *desk) asks() []enrol.Request {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

type registrations struct {
	mu   sync.Mutex
	ders map[[32]byte][]byte
	ends map[[32]byte]time.Time
}

func (r *registrations) Registration(_ context.Context, _ ca.IssuerID, spki [32]byte) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if der := r.ders[spki]; der != nil {
		return der, nil
	}
	return nil, ca.ErrNotFound
}

func (r *registrations) SaveRegistration(_ context.Context, _ ca.IssuerID, spki [32]byte, der []byte, notAfter time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ders == nil {
		r.ders, r.ends = map[[32]byte][]byte{}, map[[32]byte]time.Time{}
	}
	if r.ends[spki].Before(notAfter) {
		r.ders[spki], r.ends[spki] = der, notAfter
	}
	return nil
}

type crls struct{}

func (crls) DER(context.Context, ca.IssuerID, int) ([]byte, error) { return []byte{0x30, 0}, nil }

// A device speaks SCEP as RFC 8894 has it, unless a test has it do otherwise.
type device struct {
	t           testing.TB
	key         crypto.Signer
	cert        *x509.Certificate // that it signs with
	ra          *x509.Certificate // that it seals for
	kind        string
	transaction string
	nonce       []byte
	cipher      cms.Cipher
	oaep        crypto.Hash
	hash        crypto.Hash
	// sealed and signed change what is inside and what goes out.
	sealed func(der []byte) []byte
	attrs  func(list []cms.Attribute) []cms.Attribute
}

func newDevice(t testing.TB, s *Server, key crypto.Signer) *device {
	t.Helper()
	return &device{
		t: t, key: key, cert: selfSigned(t, key), ra: s.offices[0].registrar.Load().cert, kind: "19",
		transaction: "4D7C", nonce: bytes.Repeat([]byte{7}, 16), cipher: cms.AES128CBC,
	}
}

func selfSigned(t testing.TB, key crypto.Signer) *x509.Certificate {
	t.Helper()
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "device"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// message seals content and signs.
func (d *device) message(content []byte) []byte {
	d.t.Helper()
	sealed, err := cms.Seal(cms.OIDData, content, d.cipher, cms.TransportTo{Certificate: d.ra, OAEP: d.oaep})
	if err != nil {
		d.t.Fatal(err)
	}
	if d.sealed != nil {
		sealed = d.sealed(sealed)
	}
	return d.sign(sealed)
}

func (d *device) sign(sealed []byte) []byte {
	d.t.Helper()
	attrs := []cms.Attribute{
		{Type: oidMessageType, Values: printableValue(d.kind)},
		{Type: oidTransactionID, Values: printableValue(d.transaction)},
		{Type: oidSenderNonce, Values: octetsValue(d.nonce)},
	}
	if d.attrs != nil {
		attrs = d.attrs(attrs)
	}
	der, err := cms.Signer{Certificate: d.cert, Key: d.key, Hash: d.hash}.Sign(cms.OIDData, sealed, attrs, [][]byte{d.cert.Raw})
	if err != nil {
		d.t.Fatal(err)
	}
	return der
}

// csr asks for names, with a challenge if that is not "".
func csr(t testing.TB, key crypto.Signer, challenge string, names ...string) []byte {
	t.Helper()
	if challenge == "" {
		return csrWith(t, key, nil, names...)
	}
	return csrWith(t, key, []attribute{{casn1.UTF8String, []byte(challenge)}}, names...)
}

type attribute struct {
	tag   casn1.Tag
	value []byte
}

// csrWith asks for names, with challengePasswords in any strings, before and after
// the extensions in turn.
func csrWith(t testing.TB, key crypto.Signer, challenges []attribute, names ...string) []byte {
	t.Helper()
	plain, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: names[0]}, DNSNames: names}, key)
	if err != nil {
		t.Fatal(err)
	}
	req, err := x509.ParseCertificateRequest(plain)
	if err != nil {
		t.Fatal(err)
	}
	in := cryptobyte.String(req.RawTBSCertificateRequest)
	var info, attrs cryptobyte.String
	if !in.ReadASN1(&info, casn1.SEQUENCE) || !info.SkipASN1(casn1.INTEGER) || !info.SkipASN1(casn1.SEQUENCE) ||
		!info.SkipASN1(casn1.SEQUENCE) || !info.ReadASN1(&attrs, casn1.Tag(0).ContextSpecific().Constructed()) {
		t.Fatal("reading a CSR")
	}
	var b cryptobyte.Builder
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1Int64(0)
		b.AddBytes(req.RawSubject)
		b.AddBytes(req.RawSubjectPublicKeyInfo)
		b.AddASN1(casn1.Tag(0).ContextSpecific().Constructed(), func(b *cryptobyte.Builder) {
			for _, c := range challenges {
				b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
					b.AddASN1ObjectIdentifier(oidChallengePassword)
					b.AddASN1(casn1.SET, func(b *cryptobyte.Builder) {
						b.AddASN1(c.tag, func(b *cryptobyte.Builder) { b.AddBytes(c.value) })
					})
				})
				if attrs != nil {
					b.AddBytes(attrs)
					attrs = nil
				}
			}
			b.AddBytes(attrs)
		})
	})
	tbs := b.BytesOrPanic()
	digest := sha256.Sum256(tbs)
	sig, err := key.Sign(rand.Reader, digest[:], crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	oid := asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}
	if _, ok := key.(*ecdsa.PrivateKey); ok {
		oid = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}
	}
	var out cryptobyte.Builder
	out.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(tbs)
		b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(oid)
			if _, ok := key.(*rsa.PrivateKey); ok {
				b.AddASN1NULL()
			}
		})
		b.AddASN1BitString(sig)
	})
	return out.BytesOrPanic()
}

// post sends a message and returns the answer.
func post(t testing.TB, s *Server, body []byte) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/scep/devices?operation=PKIOperation", bytes.NewReader(body))
	return do(s, r)
}

func do(s *Server, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

func get(t testing.TB, s *Server, target string) *httptest.ResponseRecorder {
	t.Helper()
	return do(s, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
}

func body(res *httptest.ResponseRecorder) []byte {
	return res.Body.Bytes()
}

// A heard is a CertRep, of which everything was checked that a client checks.
type heard struct {
	status, fail string
	certs        [][]byte
	crls         [][]byte
	sender       []byte
}

func (h heard) String() string { return "status " + h.status + ", failInfo " + h.fail }

// hear reads the answer to a message of d. Whoever has no RSA key has its challenge.
func (d *device) hear(res *httptest.ResponseRecorder, challenge string) heard {
	d.t.Helper()
	t := d.t
	der := body(res)
	if res.Code != http.StatusOK || res.Header().Get("Content-Type") != typeMessage || res.Header().Get("Content-Length") != fmt.Sprint(len(der)) {
		t.Fatalf("HTTP %d, %v: %.200s", res.Code, res.Header(), der)
	}
	sd, err := cms.ParseSignedData(der)
	if err != nil {
		t.Fatal(err)
	}
	si := sd.Signers[0]
	cert, err := si.Certificate(8 << 10)
	if err != nil || len(sd.Signers) != 1 || !bytes.Equal(sd.Certificates[0], cert.Raw) {
		t.Fatalf("signed by %v, %v", cert, err)
	}
	if err := si.Verify(cert.PublicKey, true); err != nil {
		t.Fatal(err)
	}
	h := heard{status: d.text(si, oidPKIStatus)}
	if v, _ := si.Attribute(oidFailInfo); v != nil {
		h.fail = d.text(si, oidFailInfo)
	}
	if got := d.text(si, oidTransactionID); got != d.transaction {
		t.Errorf("transactionID %q, want %q", got, d.transaction)
	}
	if got := d.text(si, oidMessageType); got != "3" {
		t.Errorf("messageType %q", got)
	}
	if got := d.octets(si, oidRecipientNonce); !bytes.Equal(got, d.nonce) {
		t.Errorf("recipientNonce %x, want %x", got, d.nonce)
	}
	if h.sender = d.octets(si, oidSenderNonce); len(h.sender) != 16 || bytes.Equal(h.sender, d.nonce) {
		t.Errorf("senderNonce %x", h.sender)
	}
	if v, err := si.Attribute(cms.OIDSigningTime); v == nil || err != nil {
		t.Errorf("signingTime %x, %v", v, err)
	}
	if (h.status == "2") != (h.fail != "") || (h.status == "0") != (sd.Content != nil) {
		t.Errorf("%v, with %d octets of content", h, len(sd.Content))
	}
	if sd.Content != nil {
		h.certs, h.crls = d.open(sd.Content, challenge)
	}
	return h
}

func (d *device) text(si *cms.SignerInfo, oid asn1.ObjectIdentifier) string {
	d.t.Helper()
	v, err := si.Attribute(oid)
	var s string
	if rest, wrong := asn1.Unmarshal(v, &s); err != nil || wrong != nil || len(rest) > 0 || v[0] != 19 {
		d.t.Fatalf("attribute %v: %x, %v", oid, v, err)
	}
	return s
}

func (d *device) octets(si *cms.SignerInfo, oid asn1.ObjectIdentifier) []byte {
	d.t.Helper()
	v, err := si.Attribute(oid)
	var b []byte
	if rest, wrong := asn1.Unmarshal(v, &b); err != nil || wrong != nil || len(rest) > 0 {
		d.t.Fatalf("attribute %v: %x, %v", oid, v, err)
	}
	return b
}

func (d *device) open(content []byte, challenge string) (certs, crls [][]byte) {
	d.t.Helper()
	ed, err := cms.ParseEnvelopedData(content)
	if err != nil {
		d.t.Fatal(err)
	}
	if ed.Cipher != d.cipher {
		d.t.Errorf("sealed by %v, asked by %v", ed.Cipher, d.cipher)
	}
	var inner []byte
	if key, ok := d.key.(*rsa.PrivateKey); ok {
		if len(ed.Transports) != 1 || len(ed.Passwords) != 0 || !ed.Transports[0].For(d.cert) {
			d.t.Fatalf("sealed for %d and %d", len(ed.Transports), len(ed.Passwords))
		}
		inner, err = ed.Open(d.t.Context(), ed.Transports[0], keys.FromSigner(key).(keys.Decrypter))
	} else {
		if len(ed.Passwords) != 1 || len(ed.Transports) != 0 {
			d.t.Fatalf("sealed for %d and %d", len(ed.Transports), len(ed.Passwords))
		}
		inner, err = ed.OpenByPassword(ed.Passwords[0], []byte(challenge), 100_000)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	sd, err := cms.ParseSignedData(inner)
	if err != nil || len(sd.Signers) != 0 {
		d.t.Fatalf("inside: %v", err)
	}
	return sd.Certificates, sd.CRLs
}

// enrolled has a certificate for names.
func enrolled(t testing.TB, s *Server, key crypto.Signer, names ...string) (*device, *x509.Certificate) {
	t.Helper()
	d := newDevice(t, s, key)
	d.transaction = strings.Join(names, ",") + fmt.Sprint(time.Now().UnixNano())
	h := d.hear(post(t, s, d.message(csr(t, key, goodChallenge, names...))), goodChallenge)
	if h.status != "0" || len(h.certs) != 1 {
		t.Fatalf("%v, %d certificates", h, len(h.certs))
	}
	cert, err := x509.ParseCertificate(h.certs[0])
	if err != nil {
		t.Fatal(err)
	}
	return d, cert
}
