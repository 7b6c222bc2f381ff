package app

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	xocsp "golang.org/x/crypto/ocsp"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
	"github.com/secsy-pki/secsy-pki/store"
)

// A tokened is a program whose keys are on a token that can fail.
type tokened struct {
	*app
	dir   string
	fault *pkcs11test.Fault
	token pkcs11test.Token
	at    Addresses
	stop  func()
}

func newTokened(t *testing.T) *tokened {
	t.Helper()
	fault, tokens := hsm.Fault(t, 1)
	p := &tokened{fault: fault, token: tokens[0], dir: filepath.Join(shortDir(t), "ca")}
	section := sectionOf(t, p.token)
	section.CallTimeout = config.Duration(2 * time.Second)
	o := sampleOptions(p.dir)
	o.Config.Keys.PKCS11 = section
	o.Config.RateLimit.Enabled = true
	if err := Init(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *tokened) pull(t *testing.T) {
	t.Helper()
	p.fault.Script(t, "@"+p.token.Label+" token removed")
}

func (p *tokened) putBack(t *testing.T) { t.Helper(); p.fault.Script(t) }

// start starts the program, which is stopped at the end of the test or before.
func (p *tokened) start(t *testing.T) {
	t.Helper()
	ready := make(chan Addresses, 1)
	p.app = newApp(Options{Config: load(t, p.dir), Stderr: new(buffer), Ready: func(at Addresses) { ready <- at }})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		err := p.build(ctx)
		if err == nil {
			err = p.run(ctx)
		}
		done <- errors.Join(err, p.close())
	}()
	stopped := false
	p.stop = func() {
		cancel()
		if stopped {
			return
		}
		stopped = true
		if err := <-done; err != nil {
			t.Errorf("stopping: %v", err)
		}
	}
	t.Cleanup(func() { p.stop() })
	select {
	case p.at = <-ready:
	case err := <-done:
		stopped = true
		t.Fatalf("it did not start: %v\n%s", err, p.logged())
	}
}

// becomes waits until is, and says what for.
func (p *tokened) becomes(t *testing.T, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("%s: it never becomes so\n%s", what, p.logged())
		}
	}
}

func (p *tokened) get(t *testing.T, url string) (int, string) {
	t.Helper()
	return running{log: new(buffer)}.get(t, url)
}

func (p *tokened) ready(t *testing.T) bool {
	t.Helper()
	code, _ := p.get(t, "http://"+p.at.Operator.String()+"/readyz")
	return code == http.StatusOK
}

// issue asks for a certificate as any edge does.
func (p *tokened) issue(t *testing.T) (*x509.Certificate, error) {
	t.Helper()
	key, err := keys.NewPrivateKey(keys.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.ca.Issue(t.Context(), ca.Request{
		PublicKey: key.Public(), Identifiers: []ca.Identifier{{Type: ca.DNS, Value: "a.localhost"}}, Requester: ca.Requester{Actor: "test"},
	}, store.NewCA(p.db).PlainLedger())
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(c.DER)
	if err != nil {
		t.Fatal(err)
	}
	return cert, nil
}

// serials counts what was ever recorded.
func (p *tokened) serials(t *testing.T) int {
	t.Helper()
	all, _, err := store.NewCA(p.db).List(t.Context(), ca.ListQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// status asks by OCSP about a certificate, and returns what HTTP says, and what
// the certificate is, -1 if that isn't said.
func (p *tokened) status(t *testing.T, cert *x509.Certificate) (code, kind int) {
	t.Helper()
	issuer := p.issuers[0].Cert
	req, err := xocsp.CreateRequest(cert, issuer, nil)
	if err != nil {
		t.Fatal(err)
	}
	code, body := p.get(t, "http://"+p.at.HTTP.String()+"/ocsp/"+strings.ReplaceAll(base64.StdEncoding.EncodeToString(req), "/", "%2F"))
	if code != http.StatusOK {
		return code, -1
	}
	resp, err := xocsp.ParseResponseForCert([]byte(body), cert, issuer)
	if _, refused := errors.AsType[xocsp.ResponseError](err); refused {
		return code, -1
	}
	if err != nil {
		t.Fatalf("%v: %x", err, body)
	}
	return code, resp.Status
}

// The whole of an outage, with a token that is pulled and put back: status goes
// on, issuance waits at no cost, probes are told, and nothing needs a restart.
func TestATokenThatIsPulledAndPutBackNeedsNoRestart(t *testing.T) {
	t.Parallel()
	p := newTokened(t)
	p.start(t)
	known, err := p.issue(t)
	if err != nil {
		t.Fatal(err)
	}
	unasked, err := p.issue(t)
	if err != nil {
		t.Fatal(err)
	}
	if code, kind := p.status(t, known); code != http.StatusOK || kind != xocsp.Good {
		t.Fatalf("before: %d, status %d", code, kind)
	}
	p.monitoredBy(t, "hsm-dashboard.json", "hsm-alerts.yaml")
	if seats, sessions := p.gate.Stat().Seats, p.pool.Capacity(); seats != sessions {
		t.Errorf("%d seats before %d sessions", seats, sessions)
	}

	p.pull(t)
	p.becomes(t, "a refusal", func() bool { _, err := p.issue(t); return err != nil && p.pool.Ready() != nil })
	before := p.serials(t)
	for range 20 {
		_, err := p.issue(t)
		if r, ok := errors.AsType[*ca.Refusal](err); !ok || r.Code != ca.Busy || r.RetryAfter < time.Second {
			t.Errorf("issuing: %v", err)
		}
	}
	if n := p.serials(t); n != before {
		t.Errorf("%d serials were spent", n-before)
	}
	p.becomes(t, "not ready", func() bool { return !p.ready(t) })
	if code, body := p.get(t, "http://"+p.at.Operator.String()+"/readyz?exclude=keys"); code != http.StatusOK || strings.Contains(body, p.token.Label) {
		t.Errorf("without the keys: %d %s", code, body)
	}
	if code, kind := p.status(t, known); code != http.StatusOK || kind != xocsp.Good {
		t.Errorf("an answer at hand: %d, status %d", code, kind)
	}
	if code, _ := p.status(t, unasked); code != http.StatusServiceUnavailable {
		t.Errorf("an answer yet to be signed: %d", code)
	}
	if code, _ := p.get(t, "http://"+p.at.HTTP.String()+"/crl/"+string(p.issuers[0].ID)+".crl"); code != http.StatusOK {
		t.Errorf("the CRL: %d", code)
	}

	p.putBack(t)
	p.becomes(t, "ready", func() bool { return p.ready(t) })
	if _, err := p.issue(t); err != nil {
		t.Errorf("after: %v", err)
	}
	if code, kind := p.status(t, unasked); code != http.StatusOK || kind != xocsp.Good {
		t.Errorf("after: %d, status %d", code, kind)
	}
	p.stop()
	if seats := p.gate.Stat(); seats.InFlight != 0 || seats.Queued != 0 {
		t.Errorf("left behind: %+v", seats)
	}
}

// A start without the token serves what there is; when the token comes all else
// is made up for.
func TestAStartWithoutTheTokenIsMadeWholeWhenItComes(t *testing.T) {
	t.Parallel()
	p := newTokened(t)
	p.start(t)
	known, err := p.issue(t)
	if err != nil {
		t.Fatal(err)
	}
	p.stop()

	p.pull(t)
	p.start(t)
	if p.ready(t) {
		t.Error("it is ready")
	}
	if code, _ := p.get(t, "http://"+p.at.HTTP.String()+"/crl/"+string(p.issuers[0].ID)+".crl"); code != http.StatusOK {
		t.Errorf("the CRL: %d", code)
	}
	if _, err := p.issue(t); !errors.Is(err, keys.ErrBusy) {
		t.Errorf("issuing: %v", err)
	}

	p.putBack(t)
	p.becomes(t, "ready", func() bool { return p.ready(t) })
	if _, err := p.issue(t); err != nil {
		t.Errorf("issuing: %v", err)
	}
	p.becomes(t, "an OCSP responder", func() bool { code, kind := p.status(t, known); return code == http.StatusOK && kind == xocsp.Good })
	if seats, sessions := p.gate.Stat().Seats, p.pool.Capacity(); seats != sessions {
		t.Errorf("%d seats before %d sessions", seats, sessions)
	}
}

// Calls that hang are told of after the call timeout; their seats are free when
// they return, and nobody's before.
func TestCallsThatHangGiveTheirSeatsBackWhenTheyReturn(t *testing.T) {
	t.Parallel()
	p := newTokened(t)
	p.start(t)
	if _, err := p.issue(t); err != nil {
		t.Fatal(err)
	}
	abandoned := p.serials(t)
	p.fault.Script(t, "@"+p.token.Label+" C_Sign * hang")
	if _, err := p.issue(t); !ca.Hung(err) {
		t.Fatalf("a call that hangs: %v", err)
	}
	if n := p.gate.Stat().InFlight; n < 1 || p.guard.Stat().Hung != n || p.serials(t) != abandoned+1 {
		t.Errorf("%d seats are taken, %d calls hang", n, p.guard.Stat().Hung)
	}
	p.putBack(t)
	p.becomes(t, "all seats free", func() bool { st := p.gate.Stat(); return st.InFlight == 0 && p.guard.Stat().Hung == 0 })
	p.becomes(t, "issuing", func() bool { _, err := p.issue(t); return err == nil })
	p.becomes(t, "ready", func() bool { return p.ready(t) })
}
