package admin_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/admin"
	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/audit/audittest"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/crl"
	"github.com/secsy-pki/secsy-pki/peer"
	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/storetest"
)

// vault keeps certificates in memory: the authority and its records in one.
type vault struct {
	mu    sync.Mutex // guards all below
	recs  []ca.Record
	fail  error
	query ca.ListQuery    // the last one
	asked []ca.Revocation // those that came through
}

func (v *vault) Record(_ context.Context, s ca.Serial) (ca.Record, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, r := range v.recs {
		if r.Serial == s {
			return r, v.fail
		}
	}
	return ca.Record{}, ca.ErrNotFound
}

func (v *vault) List(_ context.Context, q ca.ListQuery) ([]ca.Record, string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.query = q
	from := 0
	if q.Before != "" {
		if from = slices.IndexFunc(v.recs, func(r ca.Record) bool { return string(r.Serial) == q.Before }) + 1; from == 0 {
			return nil, "", ca.ErrNotFound
		}
	}
	page := v.recs[from:min(from+q.Limit, len(v.recs))]
	if from+q.Limit >= len(v.recs) {
		return page, "", v.fail
	}
	return page, string(page[len(page)-1].Serial), v.fail
}

func (v *vault) Revoke(_ context.Context, r ca.Revocation) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fail != nil {
		return v.fail
	}
	if r.Reason == ca.CACompromise {
		return &ca.Refusal{Code: ca.BadReason, Detail: "revocation reason 2 is not allowed", Err: errors.New("inner")}
	}
	for i := range v.recs {
		switch rec := &v.recs[i]; {
		case rec.Serial != r.Serial || rec.State != ca.Issued:
		case rec.Revoked():
			return ca.ErrAlreadyRevoked
		default:
			if r.At.IsZero() {
				r.At = time.Now().UTC()
			}
			rec.RevokedAt, rec.Reason, rec.InvalidityAt = r.At, r.Reason, r.InvalidityAt
			v.asked = append(v.asked, r)
			return nil
		}
	}
	return ca.ErrNotFound
}

// RevokeAll does what the authority does, one after the other.
func (v *vault) RevokeAll(ctx context.Context, rs []ca.Revocation) ([]error, error) {
	errs := make([]error, len(rs))
	for i, r := range rs {
		if errs[i] = v.Revoke(ctx, r); errs[i] != nil && errors.Is(errs[i], v.fail) {
			return nil, v.fail
		}
	}
	return errs, nil
}

func (v *vault) RehearseRevoke(ctx context.Context, rs []ca.Revocation) ([]ca.Record, []error, error) {
	recs, errs := make([]ca.Record, len(rs)), make([]error, len(rs))
	for i, r := range rs {
		if recs[i], errs[i] = v.Record(ctx, r.Serial); errs[i] != nil {
			continue
		}
		if r.SHA256 != [32]byte{} && r.SHA256 != sha256.Sum256(recs[i].DER) {
			errs[i] = ca.ErrNotFound
		} else {
			_, errs[i] = r.Apply(recs[i])
		}
	}
	return recs, errs, nil
}

func (v *vault) Release(_ context.Context, s ca.Serial, by ca.Requester) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range v.recs {
		if rec := &v.recs[i]; rec.Serial == s {
			if rec.Reason != ca.CertificateHold {
				return ca.ErrNotHeld
			}
			rec.RevokedAt, rec.Reason = time.Time{}, 0
			v.asked = append(v.asked, ca.Revocation{Serial: s, Reason: ca.RemoveFromCRL, Requester: by})
			return nil
		}
	}
	return ca.ErrNotFound
}

type lists map[ca.IssuerID]crl.CRL

func (l lists) Latest(_ context.Context, s crl.Series) (crl.CRL, error) {
	if c, ok := l[s.Issuer]; ok {
		return c, nil
	}
	return crl.CRL{}, crl.ErrNone
}

// house is a server on a real socket, with all that is behind it.
type house struct {
	vault  *vault
	audit  *audittest.Memory
	db     *store.DB // of ACME
	client *client.Client
	socket string
	issuer *ca.Issuer
	logs   *bytes.Buffer
	reg    *prometheus.Registry
}

const requestID = "0123456789abcdef"

var discard = slog.New(slog.DiscardHandler)

func open(t *testing.T, change func(*admin.Config)) *house {
	t.Helper()
	issuer := testIssuer(t)
	h := &house{vault: &vault{}, audit: audittest.NewMemory(audit.Head{Hash: audit.ZeroHash}), issuer: issuer, logs: &bytes.Buffer{}, reg: prometheus.NewRegistry()}
	now := time.Now().UTC().Truncate(time.Second)
	for i := range 5 {
		r := ca.Record{State: ca.Issued, Names: []ca.Identifier{{Type: ca.DNS, Value: "www.example.com"}}, Requester: "acme:account/1", CreatedAt: now}
		r.Serial, r.Issuer, r.DER = ca.Serial(fmt.Sprintf("0%da0", i+1)), issuer.ID, issuer.Cert.Raw
		r.NotBefore, r.NotAfter = now.Add(-time.Hour), now.Add(time.Hour)
		h.vault.recs = append(h.vault.recs, r)
	}
	h.vault.recs[3].State, h.vault.recs[3].DER = ca.Pending, nil
	h.vault.recs[4].NotAfter = now.Add(-time.Minute)
	c := admin.Config{
		Authority: h.vault, Certificates: h.vault, Issuers: []*ca.Issuer{issuer}, Audit: h.audit,
		CRLs:   lists{issuer.ID: {Number: 7, ThisUpdate: now, NextUpdate: now.Add(time.Hour), Entries: 3}},
		Logger: slog.New(slog.NewTextHandler(h.logs, nil)), Registerer: h.reg,
	}
	h.db = storetest.SQLite(t)
	c.ExternalKeys, c.Accounts = store.NewACMEOperator(h.db), store.NewACMEOperator(h.db)
	c.Directories = []admin.Directory{{Binds: true, Profiles: []string{"tls-server"}}, {Name: "devices", Binds: true}, {Name: "open"}}
	if change != nil {
		change(&c)
	}
	s, err := admin.New(c)
	if err != nil {
		t.Fatal(err)
	}
	h.socket = listen(t, s.Handler())
	h.client = client.New(h.socket)
	t.Cleanup(h.client.Close)
	return h
}

// listen serves on a socket as the front room does: with the caller's credentials.
func listen(t *testing.T, handler http.Handler) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "secsy") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := peer.With(r.Context(), peer.Peer{RequestID: requestID})
		if r.Header.Get("Test-Stranger") == "" {
			ctx = peer.WithCred(ctx, peer.Cred{UID: 1000, PID: 1})
		}
		handler.ServeHTTP(w, r.WithContext(ctx))
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	return socket
}

func testIssuer(t *testing.T) *ca.Issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(0x01ff), Subject: pkix.Name{CommonName: "Test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &ca.Issuer{ID: ca.IDOf(cert), Name: "main", Cert: cert, Active: true, OCSPURL: "http://pki.test/ocsp", CRLURL: "http://pki.test/crl"}
}

// raw sends a request that the client would not.
func (h *house) raw(t *testing.T, method, target, contentType, body string, header ...string) (int, http.Header, client.Problem) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://x"+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", h.socket)
	}}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var p client.Problem
	if resp.StatusCode >= 400 && method != http.MethodHead {
		if err := json.Unmarshal(b, &p); err != nil || resp.Header.Get("Content-Type") != client.ProblemType || p.Status != resp.StatusCode {
			t.Errorf("%s %s: %d %s is not a problem: %v", method, target, resp.StatusCode, b, err)
		}
	}
	return resp.StatusCode, resp.Header, p
}

func wantCode(t *testing.T, err error, status int, code string) (detail string) {
	t.Helper()
	e, ok := errors.AsType[*client.Error](err)
	if !ok || e.Status != status || e.Code != code || e.RequestID != requestID {
		t.Fatalf("got %#v (%v), want %d %s", e, err, status, code)
	}
	return e.Detail
}

func TestCertificatesAreListedInPages(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	var got []string
	f := client.CertificateFilter{Limit: 2, Name: "example.com", State: "revoked", Issuer: "main", Serial: "0A:1"}
	for {
		page, err := h.client.ListCertificates(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Certificates {
			got = append(got, c.Serial+" "+c.Status+" "+c.IssuerName)
		}
		if f.Cursor = page.Next; f.Cursor == "" {
			break
		}
	}
	want := []string{"01a0 valid main", "02a0 valid main", "03a0 valid main", "04a0 pending main", "05a0 expired main"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	q := ca.ListQuery{Name: "example.com", SerialPrefix: "0a1", State: ca.Issued, Revoked: true, Issuer: h.issuer.ID, Limit: 2, Before: "04a0"}
	if h.vault.query != q {
		t.Errorf("the last query was %+v", h.vault.query)
	}
}

func TestCertificateIsFoundHoweverItsSerialIsWritten(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	for _, s := range []string{"01a0", "01A0", "01:A0", "1a0", "0001a0"} {
		c, err := h.client.Certificate(t.Context(), s)
		if err != nil || c.Serial != "01a0" || !strings.HasPrefix(c.PEM, "-----BEGIN CERTIFICATE") || len(c.Fingerprint) != 64 {
			t.Errorf("%s: %+v, %v", s, c, err)
		}
	}
	for _, s := range []string{"xyz", "0", "../issuers", "%", "ff ff", strings.Repeat("ab", 21)} {
		_, err := h.client.Certificate(t.Context(), s)
		if e, ok := errors.AsType[*client.Error](err); s != "0" && (!ok || e.Status != http.StatusBadRequest) {
			t.Errorf("%q: %v", s, err)
		}
	}
	_, err := h.client.Certificate(t.Context(), "ffff")
	if e := wantCode(t, err, http.StatusNotFound, client.CodeNotFound); !strings.Contains(e, "ffff") {
		t.Errorf("%v", e)
	}
}

func TestRevocationIsDoneOnceAndInTheCallersName(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	c, err := h.client.RevokeCertificate(t.Context(), "01:A0", client.Revocation{Reason: "keyCompromise"})
	if err != nil || c.Status != "revoked" || c.Reason != "keyCompromise" || c.RevokedAt == nil {
		t.Fatalf("%+v, %v", c, err)
	}
	got := h.vault.asked[0]
	if got.Requester.Actor != "operator:uid/1000" || got.Requester.RequestID != requestID || !got.BlockKey {
		t.Errorf("%+v", got)
	}
	_, err = h.client.RevokeCertificate(t.Context(), "01a0", client.Revocation{Reason: "superseded"})
	if d := wantCode(t, err, http.StatusConflict, client.CodeAlreadyRevoked); !strings.Contains(d, "for keyCompromise") {
		t.Error(d)
	}
	if c, err := h.client.RevokeCertificate(t.Context(), "02a0", client.Revocation{Reason: "4"}); err != nil || c.Reason != "superseded" || h.vault.asked[1].BlockKey {
		t.Errorf("%+v, %v", c, err)
	}
	_, err = h.client.RevokeCertificate(t.Context(), "04a0", client.Revocation{Reason: "superseded"})
	wantCode(t, err, http.StatusConflict, client.CodeNotIssued)
	_, err = h.client.RevokeCertificate(t.Context(), "ffff", client.Revocation{Reason: "superseded"})
	wantCode(t, err, http.StatusNotFound, client.CodeNotFound)
	_, err = h.client.RevokeCertificate(t.Context(), "03a0", client.Revocation{Reason: "cACompromise"})
	wantCode(t, err, http.StatusBadRequest, client.CodeInvalidParameter)
	_, err = h.client.RevokeCertificate(t.Context(), "03a0", client.Revocation{Reason: "boredom"})
	if d := wantCode(t, err, http.StatusBadRequest, client.CodeInvalidParameter); !strings.Contains(d, "keyCompromise") {
		t.Error(d)
	}
}

func TestEveryReasonOfTheClientIsOne(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	for _, reason := range client.Reasons() {
		h.vault.recs[0].RevokedAt = time.Time{}
		if c, err := h.client.RevokeCertificate(t.Context(), "01a0", client.Revocation{Reason: reason}); err != nil || c.Reason != reason {
			t.Errorf("%s: %+v, %v", reason, c, err)
		}
	}
}

func TestIssuersAreShownWithTheirLatestCRL(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	is, err := h.client.ListIssuers(t.Context())
	if err != nil || len(is) != 1 {
		t.Fatalf("%+v, %v", is, err)
	}
	i := is[0]
	if i.Name != "main" || i.ID != string(h.issuer.ID) || i.Subject != "CN=Test CA" || i.Serial != "01ff" || i.KeyAlgorithm != "ECDSA P-256" ||
		!i.Active || i.CRLURL != "http://pki.test/crl" || i.CRL == nil || i.CRL.Number != 7 || i.CRL.Entries != 3 {
		t.Errorf("%+v", i)
	}
	h = open(t, func(c *admin.Config) { c.CRLs = lists{} })
	if is, err := h.client.ListIssuers(t.Context()); err != nil || is[0].CRL != nil {
		t.Errorf("%+v, %v", is, err)
	}
}

// fill chains n entries.
func (h *house) fill(t *testing.T, n int) (head audit.Head) {
	t.Helper()
	head = audit.Head{Hash: audit.ZeroHash}
	var recs []audit.Record
	for i := range n {
		action := "certificate.issued"
		if i%2 == 1 {
			action = "certificate.revoked"
		}
		r := head.Next(audit.New("system", action, "certificate/01", map[string]int{"n": i}))
		recs, head = append(recs, r), r.Head()
	}
	if err := h.audit.Extend(t.Context(), audit.Head{Hash: audit.ZeroHash}, recs); err != nil {
		t.Fatal(err)
	}
	return head
}

func TestAuditIsListedInBothDirections(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	h.fill(t, 10)
	for _, c := range []struct {
		f    client.AuditFilter
		want []int64
	}{
		{client.AuditFilter{Limit: 3}, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
		{client.AuditFilter{Limit: 5, After: 6}, []int64{7, 8, 9, 10}},
		{client.AuditFilter{Limit: 4, Newest: true}, []int64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}},
		{client.AuditFilter{Limit: 2, Newest: true, After: 7}, []int64{10, 9, 8}},
		{client.AuditFilter{Limit: 2, Action: "certificate.revoked"}, []int64{2, 4, 6, 8, 10}},
		{client.AuditFilter{Object: "certificate/02"}, nil},
	} {
		var got []int64
		for e, err := range h.client.AllAudit(t.Context(), c.f) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, e.Seq)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v: got %v", c.f, got)
		}
	}
}

func TestVerificationSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	head := h.fill(t, 10)
	v, err := h.client.VerifyAudit(t.Context(), "")
	if err != nil || !v.OK || v.Entries != 10 || v.Head != head.String() {
		t.Errorf("%+v, %v", v, err)
	}
	if v, err := h.client.VerifyAudit(t.Context(), v.Head); err != nil || !v.OK {
		t.Errorf("%+v, %v", v, err)
	}
	v, err = h.client.VerifyAudit(t.Context(), "10:"+audit.ZeroHash)
	if err != nil || v.OK || v.FindingCount != 1 || v.Findings[0].Kind != "expected" || v.Findings[0].Seq != 10 {
		t.Errorf("%+v, %v", v, err)
	}
	_, err = h.client.VerifyAudit(t.Context(), "10")
	wantCode(t, err, http.StatusBadRequest, client.CodeInvalidParameter)
	if !strings.Contains(h.logs.String(), "the audit chain is not whole") {
		t.Errorf("the log says %s", h.logs)
	}
}

// slowLog holds a verification until it is released.
type slowLog struct {
	*audittest.Memory
	entered, release chan struct{}
}

func (l slowLog) End(ctx context.Context) (audit.End, error) {
	l.entered <- struct{}{}
	<-l.release
	return l.Memory.End(ctx)
}

func TestOneVerificationRunsAtATime(t *testing.T) {
	t.Parallel()
	slow := slowLog{audittest.NewMemory(audit.Head{Hash: audit.ZeroHash}), make(chan struct{}), make(chan struct{})}
	h := open(t, func(c *admin.Config) { c.Audit = slow })
	done := make(chan error)
	go func() {
		_, err := h.client.VerifyAudit(t.Context(), "")
		done <- err
	}()
	<-slow.entered
	_, err := h.client.VerifyAudit(t.Context(), "")
	wantCode(t, err, http.StatusServiceUnavailable, client.CodeBusy)
	close(slow.release)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestInternalErrorsAreLoggedAndNotSent(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	h.vault.fail = errors.New("disk of secrets is full")
	_, err := h.client.ListCertificates(t.Context(), client.CertificateFilter{})
	if e := wantCode(t, err, http.StatusInternalServerError, client.CodeInternal); strings.Contains(e, "secrets") {
		t.Errorf("%v", e)
	}
	if logs := h.logs.String(); !strings.Contains(logs, "disk of secrets") || !strings.Contains(logs, requestID) {
		t.Errorf("the log says %s", logs)
	}
}

func TestBusyAuthoritySaysWhenToComeBack(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	h.vault.fail = &ca.Refusal{Code: ca.Busy, Detail: "later", RetryAfter: 1500 * time.Millisecond}
	status, header, p := h.raw(t, "POST", "/api/v1/certificates/01a0/revoke", "application/json", `{}`)
	if status != http.StatusServiceUnavailable || header.Get("Retry-After") != "2" || p.Code != client.CodeBusy {
		t.Errorf("%d %v %+v", status, header, p)
	}
}

func TestStrictRequests(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	const js = "application/json"
	for _, c := range []struct {
		method, target, ctype, body string
		status                      int
		code, says                  string
	}{
		{"GET", "/", "", "", 404, client.CodeNoSuchPath, ""},
		{"GET", "/api/v1/nothing", "", "", 404, client.CodeNoSuchPath, ""},
		{"GET", "/api/v1/certificates/", "", "", 404, client.CodeNoSuchPath, ""},
		{"DELETE", "/api/v1/certificates/01a0", "", "", 405, client.CodeMethod, ""},
		{"GET", "/api/v1/certificates/01a0/revoke", "", "", 405, client.CodeMethod, ""},
		{"GET", "/api/v1/certificates?nmae=x", "", "", 400, client.CodeUnknownField, `"nmae"`},
		{"GET", "/api/v1/certificates?name=x&name=y", "", "", 400, client.CodeInvalidParameter, "name"},
		{"GET", "/api/v1/certificates?name=" + strings.Repeat("x", 600), "", "", 400, client.CodeInvalidParameter, "name"},
		{"GET", "/api/v1/certificates?name=%00", "", "", 400, client.CodeInvalidParameter, "name"},
		{"GET", "/api/v1/certificates?name=%zz", "", "", 400, client.CodeMalformed, ""},
		{"GET", "/api/v1/certificates?limit=501", "", "", 400, client.CodeInvalidParameter, "500"},
		{"GET", "/api/v1/certificates?limit=-1", "", "", 400, client.CodeInvalidParameter, "limit"},
		{"GET", "/api/v1/certificates?state=gone", "", "", 400, client.CodeInvalidParameter, "abandoned"},
		{"GET", "/api/v1/certificates?serial=xy", "", "", 400, client.CodeInvalidParameter, "serial"},
		{"GET", "/api/v1/certificates?cursor=AAAA", "", "", 400, client.CodeInvalidParameter, "cursor"},
		{"GET", "/api/v1/certificates?cursor=Y2VydGlmaWNhdGVzOm5vbmU", "", "", 400, client.CodeInvalidParameter, "cursor"},
		{"GET", "/api/v1/certificates/01a0?x=1", "", "", 400, client.CodeUnknownField, `"x"`},
		{"GET", "/api/v1/issuers?x=1", "", "", 400, client.CodeUnknownField, `"x"`},
		{"GET", "/api/v1/audit?order=up", "", "", 400, client.CodeInvalidParameter, "newest"},
		{"GET", "/api/v1/audit?after=-1", "", "", 400, client.CodeInvalidParameter, "after"},
		{"GET", "/api/v1/audit?cursor=YXVkaXQ6MDE", "", "", 400, client.CodeInvalidParameter, "cursor"},
		{"POST", "/api/v1/certificates/01a0/revoke", "text/plain", `{}`, 415, client.CodeMediaType, ""},
		{"POST", "/api/v1/certificates/01a0/revoke", js, `[]`, 400, client.CodeMalformed, ""},
		{"POST", "/api/v1/certificates/01a0/revoke", js, `{`, 400, client.CodeMalformed, ""},
		{"POST", "/api/v1/certificates/01a0/revoke", js, `{}{}`, 400, client.CodeMalformed, "follows"},
		{"POST", "/api/v1/certificates/01a0/revoke", js, `{"Reason":"superseded"}`, 400, client.CodeUnknownField, `"Reason"`},
		{"POST", "/api/v1/certificates/01a0/revoke", js, `{"reason":"superseded","reason":"unspecified"}`, 400, client.CodeMalformed, "twice"},
		{"POST", "/api/v1/certificates/01a0/revoke", js, `{"reason":4}`, 400, client.CodeMalformed, `"reason"`},
		{"POST", "/api/v1/certificates/01a0/revoke?reason=superseded", js, `{}`, 400, client.CodeUnknownField, `"reason"`},
		{"POST", "/api/v1/audit/verify", js, strings.Repeat(" ", 20<<10), 413, client.CodeTooLarge, ""},
		{"POST", "/api/v1/audit/verify", js, `{"expected":""}`, 400, client.CodeUnknownField, "expect"},
	} {
		status, header, p := h.raw(t, c.method, c.target, c.ctype, c.body)
		if status != c.status || p.Code != c.code || p.Detail == "" || !strings.Contains(p.Detail, c.says) || p.RequestID != requestID {
			t.Errorf("%s %.80s %.40s: %d %+v", c.method, c.target, c.body, status, p)
		}
		if status == http.StatusMethodNotAllowed && header.Get("Allow") == "" {
			t.Errorf("%s %s: no Allow header", c.method, c.target)
		}
	}
	if len(h.vault.asked) != 0 {
		t.Errorf("something was revoked: %+v", h.vault.asked)
	}
	if status, _, _ := h.raw(t, "HEAD", "/api/v1/issuers", "", ""); status != http.StatusOK {
		t.Errorf("HEAD gives %d", status)
	}
}

func TestStrangersAreRefusedBeforeAnythingElse(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	for _, target := range []string{"/api/v1/certificates", "/api/v1/audit", "/nothing"} {
		if status, _, p := h.raw(t, "GET", target, "", "", "Test-Stranger", "1"); status != http.StatusForbidden || p.Code != client.CodeUnauthenticated {
			t.Errorf("%s: %d %+v", target, status, p)
		}
	}
}

func TestAnAuthenticatorNamesTheActor(t *testing.T) {
	t.Parallel()
	h := open(t, func(c *admin.Config) {
		c.Authenticate = func(*http.Request) (string, error) { return "operator:user/ann", nil }
	})
	if _, err := h.client.RevokeCertificate(t.Context(), "01a0", client.Revocation{}); err != nil {
		t.Fatal(err)
	}
	if got := h.vault.asked[0].Requester.Actor; got != "operator:user/ann" {
		t.Errorf("actor %q", got)
	}
}

func TestServerNeedsItsParts(t *testing.T) {
	t.Parallel()
	if _, err := admin.New(admin.Config{}); err == nil {
		t.Error("made of nothing")
	}
}
