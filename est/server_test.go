package est

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/cms"
	"github.com/secsy-pki/secsy-pki/gate"
)

func (w *world) enrolment(names ...string) call {
	return call{path: "/.well-known/est/simpleenroll", user: "dev1", pass: goodPassword, body: encode(catest.CSR(w.t, catest.NewKey(w.t), names...), true)}
}

// RFC 7030 §4.1.3: issuer, chain and root, in that order, and a type that clients
// which compare all of it know.
func TestCACertsHasTheIssuerFirst(t *testing.T) {
	w := newWorld(t)
	at := w.listen(w.server(nil), nil)
	a := w.want(w.do(at, call{path: "/.well-known/est/cacerts", method: http.MethodGet}), http.StatusOK)
	certs := w.certs(a.text)
	if len(certs) < 2 || !certs[0].Equal(w.ca.Issuer.Cert) || !certs[len(certs)-1].Equal(w.ca.Root) {
		t.Errorf("%d certificates in another order", len(certs))
	}
	if got := a.Header.Get("Content-Type"); got != "application/pkcs7-mime" {
		t.Errorf("Content-Type %q", got)
	}
	if a.Header.Get("Content-Transfer-Encoding") != "base64" || a.Header.Get("ETag") == "" {
		t.Errorf("headers %v", a.Header)
	}
	w.want(w.do(at, call{path: "/.well-known/est/cacerts", method: http.MethodGet, headers: http.Header{"If-None-Match": {a.Header.Get("ETag")}}}), http.StatusNotModified)
	w.want(w.do(at, call{path: "/.well-known/est/cacerts"}), http.StatusMethodNotAllowed)
}

// strongSwan reads no lines and tells no name, libest reads nothing else.
func TestBase64IsInTheLinesThatTheClientReads(t *testing.T) {
	w := newWorld(t)
	at := w.listen(w.server(nil), nil)
	lines := func(a answer) int { return bytes.Count(a.text, []byte{'\n'}) }
	get := call{path: "/.well-known/est/cacerts", method: http.MethodGet}
	if n := lines(w.do(at, get)); n < 2 {
		t.Errorf("%d lines for a client with a name", n)
	}
	get.headers = http.Header{"User-Agent": {""}}
	if n := lines(w.do(at, get)); n != 0 {
		t.Errorf("%d lines for a client without a name", n)
	}
	c := w.enrolment("a.example.com")
	a := w.want(w.do(at, c), http.StatusOK)
	if lines(a) < 2 || bytes.ContainsRune(a.text, '\r') {
		t.Errorf("a request in lines is answered %q", a.text)
	}
	c.body = encode(catest.CSR(t, catest.NewKey(t), "b.example.com"), false)
	if a = w.want(w.do(at, c), http.StatusOK); lines(a) != 0 {
		t.Errorf("a request in one line is answered in %d", lines(a))
	}
}

// RFC 7030 §3.2.2, and strongSwan, which can put the label only before.
func TestLabelsStandBeforeOrAfter(t *testing.T) {
	w := newWorld(t)
	at := w.listen(w.server(nil), nil)
	for path, code := range map[string]int{
		"/.well-known/est/cacerts":                 200,
		"/.well-known/est/devices/cacerts":         200,
		"/devices/.well-known/est/cacerts":         200,
		"/.well-known/est/others/cacerts":          404,
		"/others/.well-known/est/cacerts":          404,
		"/devices/.well-known/est/devices/cacerts": 404,
		"/.well-known/est/devices/":                404,
		"/.well-known/est/devices/x/cacerts":       404,
		"/.well-known/est":                         404,
	} {
		if a := w.do(at, call{path: path, method: http.MethodGet}); a.StatusCode != code {
			t.Errorf("%s: HTTP %d, want %d", path, a.StatusCode, code)
		}
	}
}

func TestEnrolmentGivesTheLeafAlone(t *testing.T) {
	w := newWorld(t)
	at := w.listen(w.server(nil), nil)
	a := w.want(w.do(at, w.enrolment("a.example.com")), http.StatusOK)
	if c := w.leaf(a.text); c.DNSNames[0] != "a.example.com" || c.CheckSignatureFrom(w.ca.Issuer.Cert) != nil {
		t.Errorf("a certificate of %v", c.DNSNames)
	}
	if got := a.Header.Get("Content-Type"); got != "application/pkcs7-mime; smime-type=certs-only" {
		t.Errorf("Content-Type %q", got)
	}
	if r := w.desk.last(t); r.Renewal || r.Principal.Actor() != "user/dev1" || r.Endpoint != "devices" || r.Requester.Addr != netip.MustParseAddr("192.0.2.7") {
		t.Errorf("the desk was asked %+v", r)
	}
}

// Wrong, missing and unreadable credentials, users and endpoints that are none: one
// answer, and what can't be a password costs no verification.
func TestWhoIsNotProvenIsToldTheSame(t *testing.T) {
	w := newWorld(t)
	at := w.listen(w.server(nil), nil)
	good := w.enrolment("a.example.com")
	var first answer
	for name, c := range map[string]struct {
		change func(c *call)
		checks int
	}{
		"none":             {func(c *call) { c.user = "" }, 0},
		"wrong password":   {func(c *call) { c.pass = "wrong" }, 1},
		"unknown user":     {func(c *call) { c.user = "dev2" }, 1},
		"unknown endpoint": {func(c *call) { c.path = "/.well-known/est/others/simpleenroll" }, 1},
		"long password":    {func(c *call) { c.pass = goodPassword + strings.Repeat("x", 72) }, 0},
		"long user":        {func(c *call) { c.user = strings.Repeat("x", 129) }, 0},
		"no password":      {func(c *call) { c.pass = "" }, 0},
		"bad UTF-8":        {func(c *call) { c.pass = "\xff\xfe" }, 0},
		"control":          {func(c *call) { c.user = "dev1\n" }, 0},
		"digest":           {func(c *call) { c.user, c.headers = "", http.Header{"Authorization": {"Digest username=x"}} }, 0},
		"stranger's certificate": {func(c *call) {
			c.user, c.certificate = "", w.selfSigned("stranger", catest.NewKey(t))
		}, 0},
		"renewal by password": {func(c *call) { c.path = "/.well-known/est/simplereenroll" }, 0},
	} {
		attempt := good
		c.change(&attempt)
		_, before := w.desk.count()
		a := w.do(at, attempt)
		if _, after := w.desk.count(); after-before != c.checks {
			t.Errorf("%s: %d verifications, want %d", name, after-before, c.checks)
		}
		a.Header.Del("Date")
		if first.Response == nil {
			first = a
		}
		if a.StatusCode != http.StatusUnauthorized || !bytes.Equal(a.text, first.text) || fmt.Sprint(a.Header) != fmt.Sprint(first.Header) {
			t.Errorf("%s: HTTP %d %q %v, want as the others %q %v", name, a.StatusCode, a.text, a.Header, first.text, first.Header)
		}
	}
	if asked, _ := w.desk.count(); asked != 0 {
		t.Errorf("the desk was asked %d times", asked)
	}
}

// Only who has the certificate renews it, and the desk knows that it is a renewal.
func TestRenewalIsByTheCertificate(t *testing.T) {
	w := newWorld(t)
	at := w.listen(w.server(nil), nil)
	c := w.enrolment("a.example.com")
	c.path, c.user, c.certificate = "/.well-known/est/simplereenroll", "", w.issued("a.example.com")
	w.leaf(w.want(w.do(at, c), http.StatusOK).text)
	if r := w.desk.last(t); !r.Renewal || !strings.HasPrefix(r.Principal.Actor(), "certificate/") {
		t.Errorf("the desk was asked %+v", r)
	}
	// A certificate that is not taken leaves a password.
	c = w.enrolment("b.example.com")
	c.certificate = w.selfSigned("stranger", catest.NewKey(t))
	w.want(w.do(at, c), http.StatusOK)
	if r := w.desk.last(t); r.Renewal || r.Principal.Actor() != "user/dev1" {
		t.Errorf("the desk was asked %+v", r)
	}
}

// RFC 7030 §4.2.3, in seconds; there are clients that read no date.
func TestRequestsThatWaitAreToldWhenToComeBack(t *testing.T) {
	w := newWorld(t)
	w.desk.waits = true
	at := w.listen(w.server(nil), nil)
	a := w.want(w.do(at, w.enrolment("a.example.com")), http.StatusAccepted)
	if got := a.Header.Get("Retry-After"); got != "91" {
		t.Errorf("Retry-After %q", got)
	}
	w.desk.waits = false
	w.want(w.do(at, w.enrolment("a.example.com")), http.StatusOK)
}

func TestBodiesAreReadAsClientsWriteThem(t *testing.T) {
	w := newWorld(t)
	at := w.listen(w.server(nil), nil)
	der := catest.CSR(t, catest.NewKey(t), "a.example.com")
	text := string(encode(der, false))
	armour := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	for name, c := range map[string]struct {
		body string
		code int
	}{
		"lines":      {string(encode(der, true)), 200},
		"CRLF":       {strings.ReplaceAll(string(encode(der, true)), "\n", "\r\n"), 200},
		"spaces":     {" " + text[:9] + "\t" + text[9:] + " \n", 200},
		"PEM":        {"\n" + armour, 200},
		"empty":      {"", 400},
		"whitespace": {" \r\n", 400},
		"two blocks": {armour + armour, 400},
		"not a CSR":  {string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), 400},
		"trailing":   {string(encode(append(slices.Clone(der), 0, 0), false)), 400},
		"DER":        {string(der), 400},
		"URL":        {strings.NewReplacer("+", "-", "/", "_").Replace(text) + "-_", 400},
		"unsigned":   {string(encode(append(slices.Clone(der[:len(der)-1]), der[len(der)-1]^1), false)), 400},
		"long":       {strings.Repeat("A", maxBody+1), 413},
		"long CSR":   {strings.Repeat("A", maxBody), 413},
	} {
		call := w.enrolment("a.example.com")
		call.body = []byte(c.body)
		if a := w.do(at, call); a.StatusCode != c.code {
			t.Errorf("%s: HTTP %d %s, want %d", name, a.StatusCode, a.text, c.code)
		}
	}
	for contentType, code := range map[string]int{
		"application/pkcs10; charset=utf-8": 200,
		"APPLICATION/PKCS10":                200,
		"application/x-www-form-urlencoded": 415,
		";":                                 415,
	} {
		c := w.enrolment("a.example.com")
		c.contentType = contentType
		c.headers = http.Header{"Content-Transfer-Encoding": {"junk"}} // RFC 8951 §3.1
		if a := w.do(at, c); a.StatusCode != code {
			t.Errorf("%s: HTTP %d, want %d", contentType, a.StatusCode, code)
		}
	}
}

// Nobody learns more of us than what the request itself has wrong.
func TestErrorsSayWhatToDoAndNoMore(t *testing.T) {
	w := newWorld(t)
	at := w.listen(w.server(nil), nil)
	for name, c := range map[string]struct {
		err         error
		code        int
		text, retry string
	}{
		"denied":     {ErrDenied, 403, "this may not be had", ""},
		"forbidden":  {&ca.Refusal{Code: ca.Forbidden, Detail: "because"}, 403, "this may not be had", ""},
		"refused":    {&ca.Refusal{Code: ca.BadPublicKey, Detail: "the key is weak", Err: errBroken}, 400, "the key is weak", ""},
		"busy CA":    {&ca.Refusal{Code: ca.Busy, RetryAfter: 3 * time.Second}, 503, "busy", "3"},
		"busy":       {&BusyError{RetryAfter: 2500 * time.Millisecond, Err: errBroken}, 503, "busy", "3"},
		"per client": {&gate.GovernorRefused{Reason: gate.GovernorPerClient, RetryAfter: time.Second}, 429, "too many", "1"},
		"broken":     {errBroken, 500, "internal error", ""},
	} {
		w.desk.fails = c.err
		a := w.do(at, w.enrolment("a.example.com"))
		if a.StatusCode != c.code || !strings.HasPrefix(string(a.text), c.text) || a.Header.Get("Retry-After") != c.retry || bytes.Contains(a.text, []byte("secret")) {
			t.Errorf("%s: HTTP %d %q, Retry-After %q", name, a.StatusCode, a.text, a.Header.Get("Retry-After"))
		}
	}
	if !strings.Contains(w.logs.String(), "secret.internal") {
		t.Error("the fault is not in the log")
	}
}

// RFC 7030 §3.5, RFC 9266: what is bound to another connection is somebody else's.
func TestRequestsAreBoundToTheirConnection(t *testing.T) {
	for name, version := range map[string]uint16{"tls-unique": tls.VersionTLS12, "tls-exporter": tls.VersionTLS13} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			at := w.listen(w.server(func(c *Config) { c.Endpoints[0].Challenge = Required }), func(c *tls.Config) { c.MaxVersion = version })
			raw, err := tls.Dial("tcp", at.Listener.Addr().String(), at.Client().Transport.(*http.Transport).TLSClientConfig) //nolint:forcetypeassert // httptest's
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = raw.Close() }()
			state := raw.ConnectionState()
			want, err := binding(&state)
			if err != nil || len(want) == 0 {
				t.Fatalf("no binding: %v", err)
			}
			key := catest.NewKey(t)
			good := encode(csrWith(t, key, "a.example.com", challenge(base64.StdEncoding.EncodeToString(want))), true)
			// Over another connection it is refused, as are none and another's.
			for _, body := range [][]byte{good, encode(catest.CSR(t, key, "a.example.com"), true), encode(csrWith(t, key, "a.example.com", challenge("AAAA")), true)} {
				c := w.enrolment()
				c.body = body
				w.want(w.do(at, c), http.StatusBadRequest)
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at.URL+"/.well-known/est/simpleenroll", bytes.NewReader(good))
			if err != nil {
				t.Fatal(err)
			}
			req.SetBasicAuth("dev1", goodPassword)
			if code := overConnection(t, raw, req); code != http.StatusOK {
				t.Errorf("HTTP %d over its own connection", code)
			}
		})
	}
}

// An optional binding has to hold where it is.
func TestABindingThatIsWrongIsRefusedWhereNoneIsNeeded(t *testing.T) {
	w := newWorld(t)
	at := w.listen(w.server(nil), nil)
	c := w.enrolment()
	c.body = encode(csrWith(t, catest.NewKey(t), "a.example.com", challenge("AAAA")), true)
	w.want(w.do(at, c), http.StatusBadRequest)
}

// Where the challengePassword is a code, it does for a credential; a wrong one is
// told what a wrong password is.
func TestCodesAreCredentials(t *testing.T) {
	w := newWorld(t)
	at := w.listen(w.server(func(c *Config) { c.Endpoints[0].Challenge = Code }), nil)
	for code, want := range map[string]int{"good code": 200, "wrong": 401, "": 401} {
		c := w.enrolment()
		c.user = ""
		c.body = encode(catest.CSR(t, catest.NewKey(t), "a.example.com"), true)
		if code != "" {
			c.body = encode(csrWith(t, catest.NewKey(t), "a.example.com", challenge(code)), true)
		}
		if a := w.do(at, c); a.StatusCode != want {
			t.Errorf("code %q: HTTP %d %s, want %d", code, a.StatusCode, a.text, want)
		}
	}
	c := w.enrolment()
	c.user = ""
	c.body = encode(csrWith(t, catest.NewKey(t), "a.example.com", challenge("good code"), challenge("good code")), true)
	w.want(w.do(at, c), http.StatusBadRequest)
}

// RFC 9440: a hop is believed if it is one that is named, and nobody else.
func TestForwardedCertificatesAreThoseOfNamedHops(t *testing.T) {
	w := newWorld(t)
	at := w.listen(w.server(func(c *Config) { c.Forwarders = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")} }), nil)
	mine := w.issued("a.example.com").Certificate[0]
	header := ":" + base64.StdEncoding.EncodeToString(mine) + ":"
	chain := ":" + base64.StdEncoding.EncodeToString(w.ca.Issuer.Cert.Raw) + ":"
	c := w.enrolment("a.example.com")
	c.path, c.user = "/.well-known/est/simplereenroll", ""
	for name, k := range map[string]struct {
		hop     string
		headers http.Header
		code    int
	}{
		"named hop":    {"198.51.100.7", http.Header{"Client-Cert": {header}}, 200},
		"with chain":   {"198.51.100.7", http.Header{"Client-Cert": {header}, "Client-Cert-Chain": {chain + ", " + chain}}, 200},
		"stranger":     {"203.0.113.9", http.Header{"Client-Cert": {header}}, 401},
		"twice":        {"198.51.100.7", http.Header{"Client-Cert": {header, header}}, 400},
		"list":         {"198.51.100.7", http.Header{"Client-Cert": {header + "," + header}}, 400},
		"underscore":   {"198.51.100.7", http.Header{"Client_cert": {header}}, 401},
		"none":         {"198.51.100.7", nil, 401},
		"no structure": {"198.51.100.7", http.Header{"Client-Cert": {strings.Trim(header, ":")}}, 400},
		"junk":         {"198.51.100.7", http.Header{"Client-Cert": {":AAAA:"}}, 400},
		"long chain":   {"198.51.100.7", http.Header{"Client-Cert": {header}, "Client-Cert-Chain": {strings.Repeat(chain+",", 9) + chain}}, 400},
	} {
		w.hop = netip.MustParseAddr(k.hop)
		attempt := c
		attempt.headers = k.headers
		if a := w.do(at, attempt); a.StatusCode != k.code {
			t.Errorf("%s: HTTP %d %s, want %d", name, a.StatusCode, a.text, k.code)
		}
	}
	// What such a hop has ended can't be bound, and its own certificate is not the client's.
	w.hop = netip.MustParseAddr("198.51.100.7")
	bound := w.enrolment()
	bound.body = encode(csrWith(t, catest.NewKey(t), "a.example.com", challenge("AAAA")), true)
	w.want(w.do(at, bound), http.StatusBadRequest)
	c.certificate = w.issued("hop.example.com")
	w.want(w.do(at, c), http.StatusUnauthorized)
}

func TestWithoutTLSNobodyEnrols(t *testing.T) {
	w := newWorld(t)
	s := w.server(nil)
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/.well-known/est/simpleenroll", nil)
	req.SetBasicAuth("dev1", goodPassword)
	res := httptest.NewRecorder()
	s.Handler().ServeHTTP(res, req)
	if _, checks := w.desk.count(); res.Code != http.StatusForbidden || checks != 0 {
		t.Errorf("HTTP %d after %d verifications", res.Code, checks)
	}
}

func parts(t *testing.T, a answer) (types []string, bodies [][]byte) {
	t.Helper()
	_, params, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	r := multipart.NewReader(bytes.NewReader(a.text), params["boundary"])
	for {
		p, err := r.NextRawPart()
		if err == io.EOF { //nolint:errorlint // the reader returns it as it is
			return types, bodies
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(p)
		if err != nil {
			t.Fatal(err)
		}
		if p.Header.Get("Content-Transfer-Encoding") != "base64" {
			t.Errorf("a part in %q", p.Header.Get("Content-Transfer-Encoding"))
		}
		types, bodies = append(types, p.Header.Get("Content-Type")), append(bodies, text)
	}
}

// RFC 7030 §4.4.2: the key in PKCS #8 and its certificate, which is not for the key
// of the request.
func TestGeneratedKeysComeWithTheirCertificate(t *testing.T) {
	w := newWorld(t)
	at := w.listen(w.server(nil), nil)
	c := w.enrolment("a.example.com")
	c.path = "/.well-known/est/serverkeygen"
	a := w.want(w.do(at, c), http.StatusOK)
	types, bodies := parts(t, a)
	if !slices.Equal(types, []string{"application/pkcs8", "application/pkcs7-mime; smime-type=certs-only"}) {
		t.Fatalf("parts %q", types)
	}
	der, err := base64.StdEncoding.DecodeString(strings.ReplaceAll(string(bodies[0]), "\n", ""))
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		t.Fatal(err)
	}
	leaf := w.leaf(bodies[1])
	if !samePublic(t, leaf.PublicKey, key) {
		t.Error("the certificate is of another key")
	}
	if leaf.DNSNames[0] != "a.example.com" || !w.desk.last(t).Once {
		t.Errorf("names %v", leaf.DNSNames)
	}
	// A key that would be forgotten while the request waits is not made for it.
	w.desk.waits = true
	w.want(w.do(at, c), http.StatusForbidden)
}

// A device that asks for a sealed key gets it sealed or not at all.
func TestKeysAreSealedForTheDeviceOrNotSent(t *testing.T) {
	w := newWorld(t)
	w.desk.trust = func([]*x509.Certificate) bool { return true }
	signing := w.selfSigned("signer", catest.NewKey(t))
	signer, err := x509.ParseCertificate(signing.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	sealing := w.listen(w.server(func(c *Config) {
		c.Endpoints[0].KeyGeneration.Signer = &cms.Signer{Certificate: signer, Key: catestSigner(t, signing)}
	}), nil)
	plain := w.listen(w.server(nil), nil)
	device := w.selfSigned("device", rsaKey())
	forDevice := pkix.AttributeTypeAndValue{Type: oidAsymmetricKey, Value: []byte("key of device")}
	request := func(a pkix.AttributeTypeAndValue, with *tls.Certificate) call {
		c := w.enrolment()
		c.path, c.certificate = "/.well-known/est/serverkeygen", with
		c.body = encode(csrWith(t, catest.NewKey(t), "a.example.com", a), true)
		return c
	}
	issued := len(w.ca.Store.Records())
	for name, k := range map[string]struct {
		at *httptest.Server
		c  call
	}{
		"no signer":      {plain, request(forDevice, device)},
		"symmetric":      {sealing, request(pkix.AttributeTypeAndValue{Type: oidSymmetricKey, Value: []byte("psk")}, device)},
		"another's key":  {sealing, request(pkix.AttributeTypeAndValue{Type: oidAsymmetricKey, Value: []byte("other")}, device)},
		"no certificate": {sealing, request(forDevice, nil)},
		"EC":             {sealing, request(forDevice, w.selfSigned("device", catest.NewKey(t)))},
	} {
		if a := w.do(k.at, k.c); a.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: HTTP %d %s", name, a.StatusCode, a.text)
		}
	}
	if n := len(w.ca.Store.Records()); n != issued {
		t.Errorf("%d certificates whose keys nobody has", n-issued)
	}
	types, bodies := parts(t, w.want(w.do(sealing, request(forDevice, device)), http.StatusOK))
	if types[0] != "application/pkcs7-mime; smime-type=server-generated-key" {
		t.Fatalf("parts %q", types)
	}
	key := unseal(t, bodies[0], device, signer)
	if !samePublic(t, w.leaf(bodies[1]).PublicKey, key) {
		t.Error("the certificate is of another key")
	}
}

func TestOperationsThatAreNotThere(t *testing.T) {
	w := newWorld(t)
	at := w.listen(w.server(func(c *Config) { c.Endpoints[0].KeyGeneration.Algorithm = "" }), nil)
	for path, code := range map[string]int{"fullcmc": 501, "serverkeygen": 501, "simplerevoke": 404} {
		c := w.enrolment("a.example.com")
		c.path = "/.well-known/est/" + path
		if a := w.do(at, c); a.StatusCode != code {
			t.Errorf("%s: HTTP %d, want %d", path, a.StatusCode, code)
		}
	}
}

// HTTP/1.0 has no chunks, and many small clients know no better.
func TestAnswersHaveTheirLengthInHTTP10(t *testing.T) {
	w := newWorld(t)
	at := w.listen(w.server(nil), nil)
	conn, err := tls.Dial("tcp", at.Listener.Addr().String(), at.Client().Transport.(*http.Transport).TLSClientConfig) //nolint:forcetypeassert // httptest's
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET /.well-known/est/cacerts HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(string(text), "\r\n\r\n")
	if !strings.Contains(head, fmt.Sprintf("Content-Length: %d\r\n", len(body))) {
		t.Errorf("head %q of %d octets", head, len(body))
	}
}
