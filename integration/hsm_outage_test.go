package integration

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/crypto/acme"
	"golang.org/x/crypto/ocsp"
)

// away is the script of a device whose token is gone.
func (k token) away() string { return "@" + k.label + " token removed" }

// tryOCSP asks for the status of c and returns what a client goes by.
func (s *server) tryOCSP(t *testing.T, c *x509.Certificate) (code int, after string, der []byte) {
	t.Helper()
	q, err := ocsp.CreateRequest(c, s.issuer(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.env["OCSP_URL"], bytes.NewReader(q))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/ocsp-request")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(http.MaxBytesReader(nil, res.Body, 1<<16)); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header.Get("Retry-After"), b.Bytes()
}

// laterOCSP holds the responder to saying that it can't say, and when to ask again.
func (s *server) laterOCSP(t *testing.T, c *x509.Certificate) {
	t.Helper()
	code, after, der := s.tryOCSP(t, c)
	if n, err := strconv.Atoi(after); code != http.StatusServiceUnavailable || err != nil || n < 1 {
		t.Errorf("HTTP %d, Retry-After %q", code, after)
	}
	if !bytes.Equal(der, ocsp.TryLaterErrorResponse) {
		t.Errorf("not tryLater: %x", der)
	}
}

// ready takes an order to the point where it may be finalized.
func (u *subscriber) ready() *acme.Order {
	u.t.Helper()
	o, err := u.order(u.t.Context())
	if err == nil {
		err = u.accept(u.t.Context(), o)
	}
	if err == nil {
		o, err = u.client.WaitOrder(u.t.Context(), o.URI)
	}
	if err != nil {
		u.t.Fatalf("an order that is ready: %v", err)
	}
	return o
}

// finalize asks for the certificate of o, and waits for as long as ctx allows.
func (u *subscriber) finalize(ctx context.Context, o *acme.Order) (chain [][]byte, key *ecdsa.PrivateKey, err error) {
	key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{o.Identifiers[0].Value}}, key)
	if err != nil {
		return nil, nil, err
	}
	chain, _, err = u.client.CreateOrderCert(ctx, o.FinalizeURL, csr, false)
	return chain, key, err
}

// becomes waits for a status of an order.
func (u *subscriber) becomes(uri, status string) *acme.Order {
	u.t.Helper()
	var o *acme.Order
	waitFor(u.t, "an order that is "+status, func() (err error) {
		o, err = u.client.GetOrder(u.t.Context(), uri)
		if err == nil && o.Status != status {
			err = fmt.Errorf("it is %s", o.Status)
		}
		return err
	})
	return o
}

// serves waits for a listener of a server that is not ready.
func (s *server) serves(t *testing.T) {
	t.Helper()
	waitFor(t, "/healthz", func() error {
		res, err := http.Get("http://" + s.operator + "/healthz")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return errors.New(res.Status)
		}
		return nil
	})
}

// says waits until the responder knows the status of c.
func (s *server) says(t *testing.T, c *x509.Certificate, status int) {
	t.Helper()
	waitFor(t, "a responder that knows", func() error {
		_, _, der := s.tryOCSP(t, c)
		r, err := ocsp.ParseResponseForCert(der, c, s.issuer(t))
		if err == nil && r.Status != status {
			err = fmt.Errorf("it says %d", r.Status)
		}
		return err
	})
}

// While its token is gone, the CA goes on with what is signed, says of the rest
// when to come back, and takes on what it will sign. All of it is done when the
// token is back, by the same process.
func TestATokenThatGoesAwayIsOutlived(t *testing.T) {
	t.Parallel()
	k, f := newSoftHSM(t).faulty(t)
	s := startHSM(t, dnsMock{}, k)
	s.crlFromIssuer(t)
	u := newSubscriber(t, s)
	serveChallenges(t, s.http01, u.client)
	known, unasked := u.mustObtain(nil), u.mustObtain(nil)
	answer, list := s.askOCSP(t, known), s.crl(t)
	order := u.ready()
	pid := s.cmd.Process.Pid

	f.Script(t, k.away())
	began := time.Now()
	if again := s.askOCSP(t, known); !bytes.Equal(again, answer) {
		t.Error("another answer than the one that was ready")
	}
	if l := s.crl(t); l.Number.Cmp(list.Number) != 0 {
		t.Errorf("CRL %v after %v", l.Number, list.Number)
	}
	s.laterOCSP(t, unasked)
	done := make(chan error, 1)
	go func() {
		_, _, err := u.finalize(t.Context(), order)
		done <- err
	}()
	u.becomes(order.URI, acme.StatusProcessing)
	waitFor(t, "/readyz that tells of the outage", func() error {
		if code := s.readyz(t); code != http.StatusServiceUnavailable {
			return fmt.Errorf("HTTP %d", code)
		}
		return nil
	})
	s.revoke(t, known, "keyCompromise")
	s.laterOCSP(t, known) // the answer at hand is a lie now
	u.becomes(order.URI, acme.StatusProcessing)
	t.Logf("away for %v", time.Since(began).Round(time.Millisecond))

	f.Script(t)
	back := time.Now()
	if err := <-done; err != nil {
		t.Errorf("the order: %v", err)
	}
	t.Logf("issued %v after it was back", time.Since(back).Round(time.Millisecond))
	s.says(t, known, ocsp.Revoked)
	s.says(t, unasked, ocsp.Good)
	waitFor(t, "a CRL that knows of it", func() error {
		if n := len(s.crl(t).RevokedCertificateEntries); n != 1 {
			return fmt.Errorf("%d entries", n)
		}
		return nil
	})
	s.waitReady(t)
	if s.cmd.Process.Pid != pid {
		t.Error("it is another process")
	}
	verifyAudit(t, s)
	s.stop()
	contractKept(t, f)
}

// A start needs no device for what is signed already, and no other start when
// the device is there.
func TestAStartWithoutTheTokenServesTheCRL(t *testing.T) {
	t.Parallel()
	k, f := newSoftHSM(t).faulty(t)
	s := startHSM(t, dnsMock{}, k)
	s.crlFromIssuer(t)
	list := s.crl(t)
	s.stop()
	f.Script(t, k.away())
	s.process = start(t, "secsy-pki serve", s.command(t))
	s.serves(t)
	if code := s.readyz(t); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz: HTTP %d", code)
	}
	if l := s.crl(t); !bytes.Equal(l.Raw, list.Raw) {
		t.Errorf("CRL %v after %v", l.Number, list.Number)
	}
	f.Script(t)
	s.waitReady(t)
	u := newSubscriber(t, s)
	serveChallenges(t, s.http01, u.client)
	s.says(t, u.mustObtain(nil), ocsp.Good)
	s.stop()
	contractKept(t, f)
}

// A device that signs and never returns, and a program that is killed over it:
// the serial that may be signed is on the CRL, and its order has another one.
func TestAKillDuringAHangLosesNothing(t *testing.T) {
	t.Parallel()
	k, f := newSoftHSM(t).faulty(t)
	s := startHSM(t, dnsMock{}, k)
	s.crlFromIssuer(t)
	u := newSubscriber(t, s)
	serveChallenges(t, s.http01, u.client)
	order := u.ready()
	before := f.Book(t).Signatures
	f.Script(t, "C_Sign 1 after hang")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _, _ = u.finalize(ctx, order)
	}()
	waitFor(t, "a call that hangs", func() error {
		b, err := f.Read()
		if err == nil && b.Hung == 0 {
			err = errors.New("none does")
		}
		return err
	})
	if n := f.Book(t).Signatures - before; n != 1 {
		t.Errorf("the device has made %d signatures: want the one that it does not return", n)
	}
	if code := s.readyz(t); code != http.StatusOK {
		t.Errorf("/readyz: HTTP %d for one call that hangs", code)
	}
	s.kill()
	cancel()
	<-done
	f.Script(t)
	s.start(t)
	s.crlFromIssuer(t)
	o := u.becomes(order.URI, acme.StatusValid)
	chain, err := u.client.FetchCert(t.Context(), o.CertURL, false)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(chain[0])
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "a CRL with the serial that may be signed", func() error {
		entries := s.crl(t).RevokedCertificateEntries
		if len(entries) != 1 || entries[0].ReasonCode != 5 || entries[0].SerialNumber.Cmp(cert.SerialNumber) == 0 {
			return fmt.Errorf("%d entries: %+v", len(entries), entries)
		}
		return nil
	})
	verifyAudit(t, s)
}

// A wrong PIN costs one try of the few that a token gives.
func TestAStartTriesAWrongPINOnce(t *testing.T) {
	t.Parallel()
	k, f := newSoftHSM(t).faulty(t)
	s := newHSMServer(t, dnsMock{}, k)
	if err := os.WriteFile(k.pinFile, []byte("wrong-pin-8c1d\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := f.Book(t)
	stdout, stderr, code := runIn(t, "", k.environ, "serve", "--config", configOf(s.dir))
	oneLine(t, stderr, code, "PIN", k.label)
	if code != 3 {
		t.Errorf("exit status %d, which supervisors are told not to try again after: want 3", code)
	}
	if bytes.Contains([]byte(stdout+stderr), []byte("wrong-pin-8c1d")) {
		t.Error("it says the PIN")
	}
	if n := f.Book(t).WrongPINs - before.WrongPINs; n != 1 {
		t.Errorf("%d wrong PINs reached the token", n)
	}
}
