package integration

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/ocsp"
)

// A subscriber is an ACME account and the web server of all its names.
type subscriber struct {
	t      *testing.T
	s      *server
	client *acme.Client
	names  atomic.Int64
}

func newSubscriber(t *testing.T, s *server) *subscriber {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	u := &subscriber{t: t, s: s, client: &acme.Client{
		Key: key, DirectoryURL: s.env["ACME_DIRECTORY"], HTTPClient: s.client(t), RetryBackoff: retryNonces,
	}}
	if _, err := u.client.Register(t.Context(), &acme.Account{}, acme.AcceptTOS); err != nil {
		t.Fatalf("registering: %v", err)
	}
	return u
}

func (u *subscriber) order(ctx context.Context) (*acme.Order, error) {
	return u.client.AuthorizeOrder(ctx, acme.DomainIDs(fmt.Sprintf("fault-%d.localhost", u.names.Add(1))))
}

// accept has every authorization of o validated.
func (u *subscriber) accept(ctx context.Context, o *acme.Order) error {
	for _, url := range o.AuthzURLs {
		z, err := u.client.GetAuthorization(ctx, url)
		if err != nil {
			return err
		}
		for _, ch := range z.Challenges {
			if ch.Type != "http-01" || ch.Status != acme.StatusPending {
				continue
			}
			if _, err := u.client.Accept(ctx, ch); err != nil {
				return err
			}
		}
	}
	return nil
}

// obtain takes o from wherever it stands to its certificate.
func (u *subscriber) obtain(ctx context.Context, o *acme.Order) (*x509.Certificate, error) {
	if err := u.accept(ctx, o); err != nil {
		return nil, err
	}
	o, err := u.client.WaitOrder(ctx, o.URI)
	if err != nil {
		return nil, err
	}
	if o.Status == acme.StatusReady {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{o.Identifiers[0].Value}}, key)
		if err != nil {
			return nil, err
		}
		if _, _, err := u.client.CreateOrderCert(ctx, o.FinalizeURL, csr, false); err != nil {
			return nil, err
		}
	}
	if o, err = u.client.WaitOrder(ctx, o.URI); err != nil {
		return nil, err
	}
	chain, err := u.client.FetchCert(ctx, o.CertURL, false)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(chain[0])
}

func (u *subscriber) mustObtain(o *acme.Order) *x509.Certificate {
	u.t.Helper()
	ctx, cancel := context.WithTimeout(u.t.Context(), time.Minute)
	defer cancel()
	if o == nil {
		var err error
		if o, err = u.order(ctx); err != nil {
			u.t.Fatalf("ordering: %v", err)
		}
	}
	c, err := u.obtain(ctx, o)
	if err != nil {
		u.t.Fatalf("getting the certificate of %s: %v", o.URI, err)
	}
	return c
}

// properProblem holds what a client hears of our troubles to its form.
func properProblem(t *testing.T, err error) {
	t.Helper()
	p, ok := errors.AsType[*acme.Error](err)
	if !ok {
		t.Errorf("not a problem document: %v", err)
		return
	}
	if p.StatusCode != http.StatusInternalServerError && p.StatusCode != http.StatusServiceUnavailable ||
		!strings.HasPrefix(p.ProblemType, "urn:ietf:params:acme:error:") {
		t.Errorf("HTTP %d %s", p.StatusCode, p.ProblemType)
	}
	for _, inside := range []string{"sql", "SQL", "database", "disk", "connect", "127.0.0.1", "/tmp"} {
		if strings.Contains(p.Detail, inside) {
			t.Errorf("the problem shows our inside: %q", p.Detail)
		}
	}
}

func fetch(t *testing.T, method, url, contentType string, body io.Reader) (int, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", method, url, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, b
}

func (s *server) readyz(t *testing.T) int {
	t.Helper()
	code, _ := fetch(t, http.MethodGet, "http://"+s.operator+"/readyz", "", http.NoBody)
	return code
}

func (s *server) issuer(t *testing.T) *x509.Certificate {
	t.Helper()
	b, err := os.ReadFile(s.env["ISSUER_PEM"])
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(b)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// crl returns what is served, proven.
func (s *server) crl(t *testing.T) *x509.RevocationList {
	t.Helper()
	code, der := fetch(t, http.MethodGet, s.env["CRL_URL"], "", http.NoBody)
	if code != http.StatusOK {
		t.Fatalf("CRL: HTTP %d", code)
	}
	l, err := x509.ParseRevocationList(der)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.CheckSignatureFrom(s.issuer(t)); err != nil {
		t.Fatal(err)
	}
	return l
}

func (s *server) askOCSP(t *testing.T, c *x509.Certificate) []byte {
	t.Helper()
	q, err := ocsp.CreateRequest(c, s.issuer(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	code, der := fetch(t, http.MethodPost, s.env["OCSP_URL"], "application/ocsp-request", strings.NewReader(string(q)))
	if code != http.StatusOK {
		t.Fatalf("OCSP: HTTP %d", code)
	}
	return der
}

// status returns the proven OCSP response about c.
func (s *server) status(t *testing.T, c *x509.Certificate) *ocsp.Response {
	t.Helper()
	r, err := ocsp.ParseResponseForCert(s.askOCSP(t, c), c, s.issuer(t))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// inTmpfs moves the data of a stopped server into a file system of size in a
// mount namespace of its own, and starts it there. The result is that file
// system as it is seen from outside.
func (s *server) inTmpfs(t *testing.T, size string) (dir string) {
	t.Helper()
	ns := []string{"--mount", "--propagation", "private"}
	if os.Getuid() != 0 {
		ns = append(ns, "--map-root-user")
	}
	const script = `mount -t tmpfs -o size="$1",mode=700 tmpfs "$2" && cp -a "$3/." "$2" && mount --move "$2" "$3" || exit 99
		shift 3; exec "$@"`
	args := append(ns, "sh", "-c", script, "sh", size, t.TempDir(), s.dir, secsy(t))
	cmd := exec.Command("unshare", append(args, s.args...)...)
	cmd.Env = s.environ
	s.process = start(t, "secsy-pki quickstart", cmd)
	s.waitReady(t)
	return filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "root", s.dir)
}

// fill takes the last byte of the file system that holds file.
func fill(t *testing.T, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 64<<10); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}

func TestAFullDiskStopsIssuanceAndNothingElse(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{})
	s.stop()
	dir := s.inTmpfs(t, "24m")
	u := newSubscriber(t, s)
	serveChallenges(t, s.http01, u.client)
	cert := u.mustObtain(nil)
	pending, err := u.order(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := s.crl(t)

	ballast := filepath.Join(dir, "ballast")
	fill(t, ballast)
	for i := 0; ; i++ { // what the log has room for still goes through
		if _, err := u.order(t.Context()); err != nil {
			properProblem(t, err)
			break
		}
		if i == 5000 {
			t.Fatal("the disk does not fill")
		}
	}
	for range 3 {
		_, err := u.order(t.Context())
		properProblem(t, err)
	}
	if r := s.status(t, cert); r.Status != ocsp.Good {
		t.Errorf("OCSP status %d", r.Status)
	}
	if l := s.crl(t); l.Number.Cmp(before.Number) != 0 {
		t.Errorf("CRL %v after %v", l.Number, before.Number)
	}
	// Status is still to be had here, so nobody is sent away.
	if code := s.readyz(t); code != http.StatusOK {
		t.Errorf("/readyz: %d", code)
	}

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	u.mustObtain(pending)
	again := u.mustObtain(nil)
	if r := s.status(t, again); r.Status != ocsp.Good {
		t.Errorf("OCSP status %d", r.Status)
	}
	s.waitReady(t)
	out, errs, code := run(t, "audit", "verify", "--socket", filepath.Join(dir, "operator.sock"))
	if code != 0 {
		t.Errorf("audit verify: exit %d\n%s%s", code, out, errs)
	}
}

func TestADatabaseThatGoesAwayIsOutlived(t *testing.T) {
	t.Parallel()
	db := newPostgres(t)
	db.start(t)
	s := startQuickstart(t, quickstart{postgres: db.url})
	u := newSubscriber(t, s)
	serveChallenges(t, s.http01, u.client)
	cert := u.mustObtain(nil)
	pending, err := u.order(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGINT} { // a crash, and a restart by its operator
		if err := db.cmd.Process.Signal(how); err != nil {
			t.Fatal(err)
		}
		<-db.done
		start := time.Now()
		_, err = u.order(t.Context())
		properProblem(t, err)
		if der := s.askOCSP(t, cert); len(der) != 5 {
			t.Errorf("OCSP answers without asking: %x", der)
		}
		s.crl(t)
		if code := s.readyz(t); code != http.StatusServiceUnavailable {
			t.Errorf("/readyz: %d", code)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("four answers took %v", took)
		}
		db.start(t)
		s.waitReady(t)
		if r := s.status(t, cert); r.Status != ocsp.Good {
			t.Errorf("OCSP status %d", r.Status)
		}
		u.mustObtain(nil)
	}
	u.mustObtain(pending)
	if n := strings.Count(s.out.String(), "level=ERROR"); n > 200 {
		t.Errorf("%d lines of errors", n)
	}
	verifyAudit(t, s)
	s.stop() // PostgreSQL waits for it before it ends
}

// A drain answers what it has taken on, gives back the validation that hangs,
// and the next start goes on with it.
func TestTERMLosesNoRequestAndNoValidation(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{})
	u := newSubscriber(t, s)
	asked, release := holdChallenges(t, s.http01, u.client)
	held, err := u.order(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := u.accept(t.Context(), held); err != nil {
		t.Fatal(err)
	}
	<-asked
	var broken atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, err := u.order(ctx); err != nil {
					if cut(err) {
						broken.Add(1)
						t.Errorf("cut off: %v", err)
					}
					return
				}
			}
		})
	}
	p := s.process
	began := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.done
	cancel()
	wg.Wait()
	if p.err != nil {
		t.Errorf("exit: %v", p.err)
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the drain took %v", took)
	}
	release()
	s.start(t)
	u.mustObtain(held)
}

// cut reports whether err is half an answer, rather than a refused connection.
func cut(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, syscall.ECONNREFUSED) {
		return false
	}
	return errors.Is(err, io.ErrUnexpectedEOF)
}

// holdChallenges is serveChallenges whose answers wait for release.
func holdChallenges(t *testing.T, port int, client *acme.Client) (asked <-chan struct{}, release func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	came, free := make(chan struct{}, 64), make(chan struct{})
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		came <- struct{}{}
		select {
		case <-free:
		case <-r.Context().Done():
			return
		}
		body, err := client.HTTP01ChallengeResponse(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
		if err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, body)
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return came, func() { close(free) }
}

func TestHUPUnderLoadDisturbsNobody(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{})
	u := newSubscriber(t, s)
	serveChallenges(t, s.http01, u.client)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 3 {
					o, err := u.order(t.Context())
					if err == nil {
						_, err = u.obtain(t.Context(), o)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}()
	hups := 0
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		select {
		case <-done:
			tick.Stop()
			if hups == 0 {
				t.Error("it was over before the first SIGHUP")
			}
			return
		case <-s.done:
			t.Fatalf("the server ended: %v", s.err)
		case <-tick.C:
			hups++
			if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestKillTakesBackNeitherCRLNumberNorResponder(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{})
	u := newSubscriber(t, s)
	serveChallenges(t, s.http01, u.client)
	cert := u.mustObtain(nil)
	first, good := s.crl(t), s.status(t, cert)
	if err := u.client.RevokeCert(t.Context(), nil, cert.Raw, acme.CRLReasonSuperseded); err != nil {
		t.Fatal(err)
	}
	s.kill() // before the CRL that the revocation calls for
	s.start(t)
	second, revoked := s.crl(t), s.status(t, cert)
	if second.Number.Cmp(first.Number) <= 0 || !second.ThisUpdate.After(first.ThisUpdate) {
		t.Errorf("CRL %v of %v after %v of %v", second.Number, second.ThisUpdate, first.Number, first.ThisUpdate)
	}
	if n := len(second.RevokedCertificateEntries); n != 1 || second.RevokedCertificateEntries[0].SerialNumber.Cmp(cert.SerialNumber) != 0 {
		t.Errorf("%d entries", n)
	}
	if revoked.Status != ocsp.Revoked || revoked.RevocationReason != ocsp.Superseded {
		t.Errorf("OCSP status %d, reason %d", revoked.Status, revoked.RevocationReason)
	}
	if !revoked.Certificate.Equal(good.Certificate) {
		t.Error("another responder certificate")
	}
	s.kill()
	s.start(t)
	if third := s.crl(t); third.Number.Cmp(second.Number) != 0 {
		t.Errorf("CRL %v after %v, with nothing new to say", third.Number, second.Number)
	}
	// A second revocation changes nothing; this client takes "already revoked" for success.
	if err := u.client.RevokeCert(t.Context(), nil, cert.Raw, acme.CRLReasonCessationOfOperation); err != nil {
		t.Error(err)
	}
	if r := s.status(t, cert); r.Status != ocsp.Revoked || r.RevocationReason != ocsp.Superseded {
		t.Errorf("OCSP status %d, reason %d", r.Status, r.RevocationReason)
	}
}

// replica starts a second server with the same keys on the same database.
func (s *server) replica(t *testing.T, postgres string) *server {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "secsy-data")
	if out, err := exec.Command("cp", "-a", s.dir, dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return startQuickstart(t, quickstart{dir: dir, postgres: postgres})
}

// Both have "good" in memory when one of them revokes: once that is
// acknowledged, no replica says so again.
func TestNoReplicaSaysGoodAfterAnAcknowledgedRevocation(t *testing.T) {
	t.Parallel()
	url := startPostgres(t)
	a := startQuickstart(t, quickstart{postgres: url})
	u := newSubscriber(t, a)
	serveChallenges(t, a.http01, u.client)
	b := a.replica(t, url)
	b.env["OCSP_URL"] = "http://" + b.args[4] + "/ocsp"
	for range 5 {
		c := u.mustObtain(nil)
		for range 2 { // the second is from memory
			for name, s := range map[string]*server{"the one that revokes": a, "the other": b} {
				if r := s.status(t, c); r.Status != ocsp.Good {
					t.Fatalf("%s says %d before", name, r.Status)
				}
			}
		}
		if err := u.client.RevokeCert(t.Context(), nil, c.Raw, acme.CRLReasonSuperseded); err != nil {
			t.Fatal(err)
		}
		for name, s := range map[string]*server{"the one that revokes": a, "the other": b} {
			if r := s.status(t, c); r.Status != ocsp.Revoked || r.RevocationReason != ocsp.Superseded {
				t.Errorf("%s says %d for reason %d after the acknowledgement", name, r.Status, r.RevocationReason)
			}
		}
	}
	b.stop()
	a.stop()
}

// Two that build CRLs of one issuer take turns: a number is never given twice,
// neither goes back, and both come to list everything.
func TestReplicasShareTheNumbersOfCRLs(t *testing.T) {
	t.Parallel()
	url := startPostgres(t)
	a := startQuickstart(t, quickstart{postgres: url})
	u := newSubscriber(t, a)
	serveChallenges(t, a.http01, u.client)
	b := a.replica(t, url)
	// The replica's files name the URLs of the first one; it listens elsewhere.
	b.env["CRL_URL"] = "http://" + b.args[4] + a.env["CRL_URL"][strings.LastIndex(a.env["CRL_URL"], "/crl/"):]

	seen := map[string]string{} // octets by number
	last := map[*server]*x509.RevocationList{}
	look := func(s *server) *x509.RevocationList {
		l := s.crl(t)
		if before := last[s]; before != nil && (l.Number.Cmp(before.Number) < 0 || l.ThisUpdate.Before(before.ThisUpdate)) {
			t.Errorf("CRL %v of %v after %v of %v", l.Number, l.ThisUpdate, before.Number, before.ThisUpdate)
		}
		if other, ok := seen[l.Number.String()]; ok && other != string(l.Raw) {
			t.Errorf("two CRLs with number %v", l.Number)
		}
		seen[l.Number.String()], last[s] = string(l.Raw), l
		return l
	}
	listing := func(n int) {
		t.Helper()
		waitFor(t, "a CRL of all that is revoked on both", func() error {
			for _, s := range []*server{a, b} {
				if got := len(look(s).RevokedCertificateEntries); got != n {
					return fmt.Errorf("%d entries", got)
				}
			}
			return nil
		})
	}
	revoke := func(s *server, args ...string) {
		t.Helper()
		args = append([]string{"cert", "revoke", "--yes", "--socket", filepath.Join(s.dir, "operator.sock")}, args...)
		if out, errs, code := run(t, args...); code != 0 {
			t.Errorf("exit %d\n%s%s", code, out, errs)
		}
	}
	serial := func(c *x509.Certificate) string { return fmt.Sprintf("%034x", c.SerialNumber) }
	first, second := u.mustObtain(nil), u.mustObtain(nil)
	revoke(a, serial(first), "--reason", "superseded")
	revoke(b, serial(second), "--reason", "superseded")
	listing(2)
	revoke(b, serial(first), "--reason", "keyCompromise")
	waitFor(t, "the new reason on both", func() error {
		for _, s := range []*server{a, b} {
			for _, e := range look(s).RevokedCertificateEntries {
				if e.SerialNumber.Cmp(first.SerialNumber) == 0 && e.ReasonCode != 1 {
					return fmt.Errorf("reason %d", e.ReasonCode)
				}
			}
		}
		return nil
	})
	listing(2)
	b.stop()
	a.stop()
}
