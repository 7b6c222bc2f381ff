package scep

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/cms"
	"github.com/secsy-pki/secsy-pki/enrol"
	"github.com/secsy-pki/secsy-pki/keys"
)

func TestADeviceEnrolsAndRenews(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d, cert := enrolled(t, s, deviceKey(), "a.example.com")
	if cert.CheckSignatureFrom(w.ca.Issuer.Cert) != nil || !slices.Equal(cert.DNSNames, []string{"a.example.com"}) {
		t.Errorf("certificate of %v", cert.DNSNames)
	}
	if asked := w.desk.asks()[0]; asked.Endpoint != "devices" || asked.Transaction != d.transaction || asked.Challenge != goodChallenge || asked.Renewal || asked.Principal.Kind != "" {
		t.Errorf("the desk was asked %+v", asked)
	}
	// OmniTrustILM/core#1901: by RenewalReq, and by PKCSReq as drafts had it; without
	// a challenge, with the key kept and with a new one.
	for i, kind := range []string{"17", "19", "17", "19"} {
		d.cert, d.kind, d.transaction = cert, kind, "renewal"+strconv.Itoa(i)
		key := []crypto.Signer{secondKey(), deviceKey()}[i/2]
		h := d.hear(post(t, s, d.message(csr(t, key, "", "a.example.com"))), "")
		if h.status != "0" || len(h.certs) != 1 {
			t.Fatalf("renewal by %s: %v", kind, h)
		}
		asked := w.desk.asks()[i+1]
		if !asked.Renewal || asked.Principal.Name != string(ca.SerialOf(cert.SerialNumber)) || asked.Challenge != "" {
			t.Errorf("the desk was asked %+v", asked)
		}
	}
}

// smallstep/certificates#1723 and jscep (micromdm/scep#79) send other orders and BER.
func TestMessagesInBERAreTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	der := d.message(csr(t, d.key, goodChallenge, "a.example.com"))
	// The outermost three elements of indefinite length.
	in := cryptobyte.String(der)
	var info, oid, wrapped, signed cryptobyte.String
	if !in.ReadASN1(&info, casn1.SEQUENCE) || !info.ReadASN1Element(&oid, casn1.OBJECT_IDENTIFIER) ||
		!info.ReadASN1(&wrapped, casn1.Tag(0).ContextSpecific().Constructed()) || !wrapped.ReadASN1(&signed, casn1.SEQUENCE) {
		t.Fatal("reading a message")
	}
	ber := slices.Concat([]byte{0x30, 0x80}, oid, []byte{0xa0, 0x80, 0x30, 0x80}, signed, make([]byte, 6))
	if h := d.hear(post(t, s, ber), ""); h.status != "0" {
		t.Error(h)
	}
	if res := post(t, s, ber[:len(ber)-2]); res.Code != http.StatusBadRequest {
		t.Errorf("without its end: HTTP %d", res.Code)
	}
}

// smallstep/certificates#916, PR#1570, #2100; micromdm/scep#249; certnanny/sscep#59:
// clients send base64 in a query in every way.
func TestMessagesInAQueryAreReadInAnySpelling(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	for d.transaction = ""; ; d.transaction += "x" { // until all characters are there
		if d.transaction == "" {
			continue
		}
		text := base64.StdEncoding.EncodeToString(d.message(csr(t, d.key, goodChallenge, "a.example.com")))
		if strings.Contains(text, "+") && strings.Contains(text, "/") && strings.Contains(text, "=") {
			break
		}
	}
	der := d.message(csr(t, d.key, goodChallenge, "a.example.com"))
	std := base64.StdEncoding.EncodeToString(der)
	var lines strings.Builder
	for i := 0; i < len(std); i += 64 {
		lines.WriteString(std[i:min(i+64, len(std))] + "%0A")
	}
	for name, text := range map[string]string{
		"escaped":             url.QueryEscape(std),
		"bare":                std,
		"only = escaped":      strings.ReplaceAll(std, "=", "%3D"),
		"escaped twice":       url.QueryEscape(url.QueryEscape(std)),
		"URL alphabet":        base64.URLEncoding.EncodeToString(der),
		"URL, without =":      base64.RawURLEncoding.EncodeToString(der),
		"without =":           base64.RawStdEncoding.EncodeToString(der),
		"in lines":            lines.String(),
		"in lines of CRLF":    strings.ReplaceAll(lines.String(), "%0A", "%0D%0A"),
		"+ turned to a space": url.PathEscape(strings.ReplaceAll(std, "+", " ")),
		"in lines of spaces":  strings.ReplaceAll(lines.String(), "%0A", "%20"),
	} {
		s.replays = replays{}
		res := get(t, s, "/scep/devices/pkiclient.exe?operation=PKIOperation&message="+text)
		if res.Code != http.StatusOK {
			t.Errorf("%s: HTTP %d %s", name, res.Code, body(res))
			continue
		}
		if h := d.hear(res, ""); h.status != "0" {
			t.Errorf("%s: %v", name, h)
		}
	}
	for name, text := range map[string]string{"nothing": "", "no base64": "!!!", "no message": "AAAA", "a bad escape": "%zz", "half": std[:len(std)/2]} {
		if res := get(t, s, "/scep/devices?operation=PKIOperation&message="+text); res.Code != http.StatusBadRequest || len(body(res)) == 0 {
			t.Errorf("%s: HTTP %d", name, res.Code)
		}
	}
}

// micromdm/scep#211, #225; strongSwan and sscep send no Content-Type, others any.
func TestPathsAndTypesOfClientsAreTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	for path, code := range map[string]int{
		"/scep/devices": 200, "/scep/devices/": 200, "/scep/devices/pkiclient.exe": 200, "/scep/devices/cgi-bin/pkiclient.exe": 200,
		"/scep": 200, "/scep/": 200, "/scep/pkiclient.exe": 200, "/scep/cgi-bin/pkiclient.exe": 200, "/scep/others": 404, "/scep/others/pkiclient.exe": 404,
	} {
		if res := get(t, s, path+"?operation=GetCACaps&message=CAIdentifier"); res.Code != code {
			t.Errorf("%s: HTTP %d, want %d", path, res.Code, code)
		}
	}
	d := newDevice(t, s, deviceKey())
	for i, contentType := range []string{"", "application/octet-stream", "application/x-pki-message", "text/html"} {
		d.transaction = "a+/=" + strconv.Itoa(i) // as micromdm's client has it
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/scep/devices?operation=PKIOperation",
			bytes.NewReader(d.message(csr(t, d.key, goodChallenge, "a.example.com"))))
		if contentType != "" {
			r.Header.Set("Content-Type", contentType)
		}
		if h := d.hear(do(s, r), ""); h.status != "0" {
			t.Errorf("type %q: %v", contentType, h)
		}
	}
}

// seize-the-dave/jscep#68, #102, mosen/SCEPy#2, micromdm/scep#159: clients go by the
// type, and take the first certificate for the one to encrypt for.
func TestGetCACertHasTheRegistrationAuthorityFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	for _, message := range []string{"", "&message=CAIdentifier", "&message=0", "&message=%00"} {
		res := get(t, s, "/scep/devices?operation=GetCACert"+message)
		der := body(res)
		if res.Code != 200 || res.Header().Get("Content-Type") != "application/x-x509-ca-ra-cert" || res.Header().Get("Content-Length") != strconv.Itoa(len(der)) {
			t.Fatalf("HTTP %d, %v", res.Code, res.Header())
		}
		ra := s.offices[0].registrar.Load().cert
		if !bytes.Contains(der, slices.Concat(ra.Raw, w.ca.Issuer.Cert.Raw, w.ca.Root.Raw)) {
			t.Error("on the wire they are not the authority, the issuer and its parents")
		}
		if ra.KeyUsage != x509.KeyUsageDigitalSignature|x509.KeyUsageKeyEncipherment {
			t.Errorf("key usage %v", ra.KeyUsage)
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/scep/devices?operation=GetCACert", nil)
	r.Header.Set("If-None-Match", get(t, s, "/scep/devices?operation=GetCACert").Header().Get("ETag"))
	if res := do(s, r); res.Code != http.StatusNotModified {
		t.Errorf("what is known: HTTP %d", res.Code)
	}
}

// strongswan#1607: pki --scep before 5.9.11 takes AES for there only by SHA-384.
func TestCapabilitiesAreWhatIsDone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	caps := func(s *Server) string {
		res := get(t, s, "/scep/devices?operation=GetCACaps")
		if ct := res.Header().Get("Content-Type"); res.Code != 200 || !strings.HasPrefix(ct, "text/plain") {
			t.Errorf("HTTP %d, %s", res.Code, ct)
		}
		return string(body(res))
	}
	if got, want := caps(w.server(nil)), "AES\nPOSTPKIOperation\nRenewal\nSCEPStandard\nSHA-256\nSHA-384\nSHA-512\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	got := caps(w.server(func(c *Config) { c.Endpoints[0].Legacy, c.Endpoints[0].Next = true, []*x509.Certificate{w.ca.Root} }))
	for _, word := range []string{"DES3", "SHA-1", "GetNextCACert"} {
		if !strings.Contains(got, word+"\n") {
			t.Errorf("no %s in %q", word, got)
		}
	}
}

// seize-the-dave/jscep#72.
func TestNextCAIsSignedByTheAuthorityOfToday(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	if res := get(t, s, "/scep/devices?operation=GetNextCACert"); res.Code != http.StatusNotFound {
		t.Errorf("none: HTTP %d", res.Code)
	}
	s = w.served(func(c *Config) { c.Endpoints[0].Next = []*x509.Certificate{w.ca.Root} })
	res := get(t, s, "/scep/devices?operation=GetNextCACert")
	if res.Code != 200 || res.Header().Get("Content-Type") != "application/x-x509-next-ca-cert" {
		t.Fatalf("HTTP %d, %v", res.Code, res.Header())
	}
	sd, err := cms.ParseSignedData(body(res))
	if err != nil {
		t.Fatal(err)
	}
	ra := s.offices[0].registrar.Load().cert
	if err := sd.Signers[0].Verify(ra.PublicKey, false); err != nil {
		t.Error(err)
	}
	inner, err := cms.ParseSignedData(sd.Content)
	if err != nil || len(inner.Signers) != 0 || len(inner.Certificates) != 1 || !bytes.Equal(inner.Certificates[0], w.ca.Root.Raw) {
		t.Errorf("inside: %v", err)
	}
}

func TestOperationsAndMethodsThatAreNone(t *testing.T) {
	t.Parallel()
	s := newWorld(t).served(nil)
	for _, c := range []struct {
		method, target string
		code           int
	}{
		{"GET", "/scep/devices", 400},
		{"GET", "/scep/devices?operation=", 400},
		{"GET", "/scep/devices?operation=getcacaps", 400},
		{"GET", "/scep/devices?operation=NoSuchOperation", 400},
		{"POST", "/scep/devices?operation=GetCACert", 400},
		{"PUT", "/scep/devices?operation=PKIOperation", 405},
		{"DELETE", "/scep/devices?operation=GetCACaps", 405},
	} {
		res := do(s, httptest.NewRequestWithContext(t.Context(), c.method, c.target, strings.NewReader("x")))
		if res.Code != c.code || res.Header().Get("Content-Length") == "" {
			t.Errorf("%s %s: HTTP %d, want %d", c.method, c.target, res.Code, c.code)
		}
	}
}

// GHSA-mq3g-qwhv-4hgw and what else made other servers panic or answer 500, bare
// and as the content of a message that is signed well.
func TestHostileBytesAreRefusedAndTheServerLives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	nested := []byte{}
	for range 10_000 {
		nested = append([]byte{0x30, 0x80}, nested...)
	}
	for name, in := range map[string][]byte{
		"nothing": {}, "high tag without end": {0x1f, 0x80}, "high tag": {0x1f, 5}, "half a length": {0x30, 0x84, 1}, "no length": {0x30, 0x81},
		"nested": nested, "zeros": make([]byte, 5000), "text": []byte("GET / HTTP/1.1"), "null": {5, 0},
	} {
		asked := w.ca.Keys.Asked()
		if res := post(t, s, in); res.Code != http.StatusBadRequest {
			t.Errorf("%s: HTTP %d", name, res.Code)
		}
		if n := w.ca.Keys.Asked() - asked; n != 0 {
			t.Errorf("%s: the device was asked %d times", name, n)
		}
		if h := d.hear(post(t, s, d.sign(in)), ""); h.status != "2" || h.fail != "1" {
			t.Errorf("%s, signed: %v", name, h)
		}
		if h := d.hear(post(t, s, d.message(in)), ""); h.status != "2" || h.fail != "1" {
			t.Errorf("%s, signed and sealed: %v", name, h)
		}
	}
	if res := post(t, s, make([]byte, cms.MaxSize+1)); res.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("too long: HTTP %d", res.Code)
	}
}

// CVE-2026-30836, and micromdm's server, which type 99 ends: what is not known is
// refused before anything else is done with it.
func TestOnlyKnownMessageTypesReachTheDesk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	for _, kind := range []string{"0", "1", "3", "18", "23", "99", "019", "19 ", "-19", "x"} {
		d.kind = kind
		if h := d.hear(post(t, s, d.message(csr(t, d.key, goodChallenge, "a.example.com"))), ""); h.status != "2" || h.fail != "2" {
			t.Errorf("messageType %q: %v", kind, h)
		}
	}
	for name, change := range map[string]func([]cms.Attribute) []cms.Attribute{
		"no messageType":   func(l []cms.Attribute) []cms.Attribute { return l[1:] },
		"no transactionID": func(l []cms.Attribute) []cms.Attribute { return slices.Delete(l, 1, 2) },
		"no senderNonce":   func(l []cms.Attribute) []cms.Attribute { return l[:2] },
		"two values":       func(l []cms.Attribute) []cms.Attribute { l[0].Values = append(l[0].Values, l[0].Values...); return l },
		"empty":            func(l []cms.Attribute) []cms.Attribute { l[0].Values = printableValue(""); return l },
		"type as number":   func(l []cms.Attribute) []cms.Attribute { l[0].Values = [][]byte{{2, 1, 19}}; return l },
		"long transaction": func(l []cms.Attribute) []cms.Attribute {
			l[1].Values = printableValue(strings.Repeat("x", 129))
			return l
		},
		"unseen characters": func(l []cms.Attribute) []cms.Attribute { l[1].Values = printableValue("a\nb"); return l },
		"long nonce":        func(l []cms.Attribute) []cms.Attribute { l[2].Values = octetsValue(make([]byte, 65)); return l },
	} {
		d.kind, d.attrs = "19", change
		if res := post(t, s, d.message(csr(t, d.key, goodChallenge, "a.example.com"))); res.Code != http.StatusBadRequest {
			t.Errorf("%s: HTTP %d", name, res.Code)
		}
	}
	if n := len(w.desk.asks()); n != 0 {
		t.Errorf("the desk was asked %d times", n)
	}
}

// smallstep/certificates#2100, certnanny: old devices send single DES, MD5 or SHA-1.
func TestAlgorithmsThatAreNotAllowedAreBadAlgAndCostNoDecryption(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	legacy := w.served(func(c *Config) { c.Endpoints[0].Legacy = true })
	d := newDevice(t, s, deviceKey())
	request := csr(t, d.key, goodChallenge, "a.example.com")
	for name, c := range map[string]struct {
		change func(d *device)
		legacy bool // allowed there
	}{
		"triple DES": {func(d *device) { d.cipher = cms.TripleDESCBC }, true},
		"SHA-1":      {func(d *device) { d.hash = crypto.SHA1 }, true},
		"single DES": {func(d *device) {
			aes, des := []byte{6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 1, 2}, []byte{6, 5, 0x2b, 0x0e, 3, 2, 7}
			d.sealed = func(der []byte) []byte { return replaced(t, der, aes, des) }
		}, false},
		"RSA of 1024 bits": {func(d *device) {
			k, err := rsa.GenerateKey(rand.Reader, 1024)
			if err != nil {
				t.Fatal(err)
			}
			d.key, d.cert = k, selfSigned(t, k)
		}, false},
	} {
		x := *d
		c.change(&x)
		asked := w.ca.Keys.Asked()
		if h := x.hear(post(t, s, x.message(request)), ""); h.status != "2" || h.fail != "0" {
			t.Errorf("%s: %v, want badAlg", name, h)
		}
		if n := w.ca.Keys.Asked() - asked; n != 1 {
			t.Errorf("%s: the device was asked %d times, want 1, for the answer", name, n)
		}
		if h := x.hear(post(t, legacy, x.message(request)), ""); (h.status == "0") != c.legacy {
			t.Errorf("%s where old clients may: %v", name, h)
		}
	}
}

// replaced puts one element in place of another of a DER, with the lengths around it.
func replaced(t testing.TB, der, from, to []byte) []byte {
	t.Helper()
	in := cryptobyte.String(der)
	var out []byte
	for !in.Empty() {
		var whole, content cryptobyte.String
		var tag casn1.Tag
		if !in.ReadAnyASN1Element(&whole, &tag) {
			t.Fatal("no DER")
		}
		e := whole
		if !e.ReadAnyASN1(&content, &tag) {
			t.Fatal("no DER")
		}
		switch {
		case bytes.Equal(whole, from):
			out = append(out, to...)
		case byte(tag)&0x20 != 0:
			var b cryptobyte.Builder
			b.AddASN1(tag, func(b *cryptobyte.Builder) { b.AddBytes(replaced(t, content, from, to)) })
			out = append(out, b.BytesOrPanic()...)
		default:
			out = append(out, whole...)
		}
	}
	return out
}

// Of whatever is wrong inside, the answer is the same, and it costs the device the
// same: one decryption and one signature.
func TestWhateverIsWrongInsideIsAnsweredTheSame(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	good := csr(t, d.key, goodChallenge, "a.example.com")
	badSig := bytes.Clone(good)
	badSig[len(badSig)-1] ^= 1
	sealedKey := func(der []byte) int { // where the encrypted key begins
		at := bytes.Index(der, []byte{4, 0x82, 1, 0})
		if at < 0 {
			t.Fatal("no key")
		}
		return at + 4
	}
	lengths := map[int]int{}
	for name, c := range map[string]struct {
		content []byte
		change  func(der []byte) []byte
	}{
		"RSA padding":         {good, func(der []byte) []byte { der[sealedKey(der)+100] ^= 1; return der }},
		"CBC padding":         {good, func(der []byte) []byte { der[len(der)-1] ^= 1; return der }},
		"the CSR":             {[]byte("no CSR at all"), nil},
		"nothing in it":       {nil, nil},
		"the CSR's first bit": {good, func(der []byte) []byte { der[len(der)-len(good)/16*16-16] ^= 0x80; return der }},
		"the CSR's signature": {badSig, nil},
		"another's CSR, cut":  {good[:len(good)-5], nil},
	} {
		s.replays = replays{}
		x := *d
		x.sealed = c.change
		asked := w.ca.Keys.Asked()
		res := post(t, s, x.message(c.content))
		n, err := strconv.Atoi(res.Header().Get("Content-Length"))
		if err != nil {
			t.Fatal(err)
		}
		lengths[n]++
		if h := x.hear(res, ""); h.status != "2" || h.fail != "1" {
			t.Errorf("%s: %v, want badMessageCheck", name, h)
		}
		if n := w.ca.Keys.Asked() - asked; n != 2 {
			t.Errorf("%s: the device was asked %d times, want 2", name, n)
		}
	}
	if len(lengths) != 1 {
		t.Errorf("answers are of %v octets", lengths)
	}
	if n := len(w.desk.asks()); n != 0 {
		t.Errorf("the desk was asked %d times", n)
	}
}

func TestASignatureThatDoesNotHoldCostsNoDecryption(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	der := d.message(csr(t, d.key, goodChallenge, "a.example.com"))
	der[len(der)-1] ^= 1
	asked := w.ca.Keys.Asked()
	if h := d.hear(post(t, s, der), ""); h.status != "2" || h.fail != "1" {
		t.Error(h)
	}
	if n := w.ca.Keys.Asked() - asked; n != 1 {
		t.Errorf("the device was asked %d times, want 1", n)
	}
}

// micromdm/scep#37; a wrong, an absent and an empty challenge are one answer.
func TestWrongChallengesAreOneAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	for name, request := range map[string][]byte{
		"wrong":  csr(t, d.key, "wrong", "a.example.com"),
		"absent": csr(t, d.key, "", "a.example.com"),
		"empty":  csrWith(t, d.key, []attribute{{casn1.UTF8String, nil}}, "a.example.com"),
	} {
		if h := d.hear(post(t, s, d.message(request)), ""); h.status != "2" || h.fail != "2" {
			t.Errorf("%s: %v, want badRequest", name, h)
		}
	}
	if n := len(w.ca.Store.Records()); n != 1 { // the registration authority's
		t.Errorf("%d certificates", n)
	}
}

// fleetdm/fleet#47492, jscep PR#73, lf-edge/eve#5909.
func TestChallengesAreReadFromAnyStringAnywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	var bmp []byte
	for _, c := range []byte(goodChallenge) {
		bmp = append(bmp, 0, c)
	}
	d := newDevice(t, s, deviceKey())
	for i, a := range []attribute{
		{casn1.UTF8String, []byte(goodChallenge)},
		{casn1.PrintableString, []byte(goodChallenge)},
		{casn1.IA5String, []byte(goodChallenge)},
		{tagT61, []byte(goodChallenge)},
		{tagBMP, bmp},
	} {
		d.transaction = "string" + strconv.Itoa(i)
		if h := d.hear(post(t, s, d.message(csrWith(t, d.key, []attribute{a}, "a.example.com"))), ""); h.status != "0" {
			t.Errorf("tag %d: %v", a.tag, h)
		}
	}
	good := attribute{casn1.UTF8String, []byte(goodChallenge)}
	d.transaction = "others"
	for name, list := range map[string][]attribute{
		"twice": {good, good}, "half a character": {{tagBMP, bmp[1:]}}, "a number": {{casn1.INTEGER, []byte{1}}},
		"no UTF-8": {{casn1.UTF8String, []byte{0xff}}}, "too long": {{casn1.UTF8String, bytes.Repeat([]byte{'x'}, maxChallenge+1)}},
	} {
		if h := d.hear(post(t, s, d.message(csrWith(t, d.key, list, "a.example.com"))), ""); h.status != "2" || h.fail != "2" {
			t.Errorf("%s: %v, want badRequest", name, h)
		}
	}
}

// OmniTrustILM/core PR#1889: to a device whose key can't decrypt.
func TestAnswersToECKeysAreSealedByTheChallenge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d, cert := enrolled(t, s, ecKey(), "ec.example.com")
	if cert.PublicKeyAlgorithm != x509.ECDSA {
		t.Error(cert.PublicKeyAlgorithm)
	}
	// Without a challenge there is no way, and nothing may be issued.
	d.cert, d.kind = cert, "17"
	asked := len(w.desk.asks())
	for _, kind := range []string{"17", "20", "21", "22"} {
		d.kind = kind
		if h := d.hear(post(t, s, d.message(csr(t, d.key, "", "ec.example.com"))), ""); h.status != "2" || h.fail != "0" {
			t.Errorf("messageType %s: %v, want badAlg", kind, h)
		}
	}
	if n := len(w.desk.asks()); n != asked {
		t.Error("the desk was asked")
	}
}

// bcgit/bc-java PR#953: Windows encrypts keys by RSAES-OAEP.
func TestKeysByOAEPAreTaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	for _, d.oaep = range []crypto.Hash{crypto.SHA1, crypto.SHA256} {
		d.transaction = d.oaep.String()
		if h := d.hear(post(t, s, d.message(csr(t, d.key, goodChallenge, "a.example.com"))), ""); h.status != "0" {
			t.Errorf("%v: %v", d.oaep, h)
		}
	}
	// What a device can't do is the message's fault.
	w.ca.Keys.Fail(fmt.Errorf("%w: OAEP", keys.ErrUnable))
	d.transaction = "unable"
	res := post(t, s, d.message(csr(t, d.key, goodChallenge, "a.example.com")))
	if res.Code != http.StatusInternalServerError { // as the answer can't be signed either
		t.Errorf("HTTP %d", res.Code)
	}
	w.ca.Keys.Fail(nil)
	w.ca.Keys.FailNext(1, fmt.Errorf("%w: OAEP", keys.ErrUnable))
	if h := d.hear(post(t, s, d.message(csr(t, d.key, goodChallenge, "a.example.com"))), ""); h.status != "2" || h.fail != "0" {
		t.Errorf("%v, want badAlg", h)
	}
}

// micromdm/scep#159: what is sealed for the CA's key can't be opened, as that key
// only signs.
func TestSealedForAnotherIsBadMessageCheckWithoutADecryption(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	for name, ra := range map[string]*x509.Certificate{"oneself": d.cert, "a stranger": selfSigned(t, secondKey())} {
		d.ra = ra
		asked := w.ca.Keys.Asked()
		if h := d.hear(post(t, s, d.message(csr(t, d.key, goodChallenge, "a.example.com"))), ""); h.status != "2" || h.fail != "1" {
			t.Errorf("%s: %v", name, h)
		}
		if n := w.ca.Keys.Asked() - asked; n != 1 {
			t.Errorf("%s: the device was asked %d times", name, n)
		}
	}
}

func TestSignerMustHaveTheKeyOfTheCSR(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	if h := d.hear(post(t, s, d.message(csr(t, secondKey(), goodChallenge, "a.example.com"))), ""); h.status != "2" || h.fail != "2" {
		t.Errorf("by another key: %v", h)
	}
	d.kind = "17"
	if h := d.hear(post(t, s, d.message(csr(t, d.key, goodChallenge, "a.example.com"))), ""); h.status != "2" || h.fail != "2" {
		t.Errorf("a renewal by no certificate: %v", h)
	}
	// One that says to be of our issuer, and is signed by itself.
	tmpl := &x509.Certificate{
		SerialNumber: d.cert.SerialNumber, Issuer: w.ca.Issuer.Cert.Subject, Subject: w.ca.Issuer.Cert.Subject,
		NotBefore: d.cert.NotBefore, NotAfter: d.cert.NotAfter, RawSubject: w.ca.Issuer.Cert.RawSubject,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, d.key.Public(), d.key)
	if err != nil {
		t.Fatal(err)
	}
	if d.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	if h := d.hear(post(t, s, d.message(csr(t, d.key, "", "a.example.com"))), ""); h.status != "2" || h.fail != "2" {
		t.Errorf("a renewal by a forged certificate: %v", h)
	}
	if n := len(w.desk.asks()); n != 0 {
		t.Errorf("the desk was asked %d times", n)
	}
}

func issuerAndSubject(cert *x509.Certificate) []byte {
	var b cryptobyte.Builder
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(cert.RawIssuer)
		b.AddBytes(cert.RawSubject)
	})
	return b.BytesOrPanic()
}

// openxpki#789: contentType and messageDigest are there in a PENDING as well, which
// hear sees to.
func TestARequestThatWaitsIsPolledByItsKeyAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	w.desk.pending = true
	d := newDevice(t, s, deviceKey())
	request := d.message(csr(t, d.key, goodChallenge, "a.example.com"))
	for range 2 {
		if h := d.hear(post(t, s, request), ""); h.status != "3" {
			t.Fatalf("%v, want pending", h)
		}
	}
	poll := d.transaction
	d.kind = "20"
	if h := d.hear(post(t, s, d.message(issuerAndSubject(d.cert))), ""); h.status != "3" {
		t.Errorf("%v, want pending", h)
	}
	other := newDevice(t, s, secondKey())
	other.kind, other.transaction = "20", poll
	if h := other.hear(post(t, s, other.message(issuerAndSubject(d.cert))), ""); h.status != "2" || h.fail != "2" {
		t.Errorf("another's poll: %v", h)
	}
	w.desk.mu.Lock()
	w.desk.pending = false
	w.desk.mu.Unlock()
	// The request itself may be sent again, and now has its certificate.
	if h := d.hear(post(t, s, request), ""); h.status != "0" {
		t.Fatal(h)
	}
	if h := d.hear(post(t, s, d.message(issuerAndSubject(d.cert))), ""); h.status != "0" || len(h.certs) != 1 {
		t.Error(h)
	}
	if h := d.hear(post(t, s, d.message([]byte{5, 0})), ""); h.status != "2" || h.fail != "1" {
		t.Errorf("no poll: %v", h)
	}
}

func issuerAndSerial(t testing.TB, name []byte, serial int64, hexSerial string) []byte {
	t.Helper()
	var b cryptobyte.Builder
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(name)
		if hexSerial == "" {
			b.AddASN1Int64(serial)
			return
		}
		n, err := hex.DecodeString(hexSerial)
		if err != nil {
			t.Fatal(err)
		}
		b.AddASN1(casn1.INTEGER, func(b *cryptobyte.Builder) { b.AddBytes(n) })
	})
	return b.BytesOrPanic()
}

// certnanny/sscep#59: sscep asks under one transactionID for ever, with a space in it.
func TestCertificatesAndCRLsAreForWhoHasOneInForce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d, cert := enrolled(t, s, deviceKey(), "a.example.com")
	d.cert, d.transaction = cert, "SSCEP transactionId"
	name := w.ca.Issuer.Cert.RawSubject
	own := issuerAndSerial(t, name, 0, hexOf(cert.SerialNumber.Bytes()))
	ask := func(kind string, content []byte) heard {
		d.kind = kind
		return d.hear(post(t, s, d.message(content)), "")
	}
	if h := ask("21", own); h.status != "0" || len(h.certs) != 1 || !bytes.Equal(h.certs[0], cert.Raw) {
		t.Errorf("its own certificate: %v", h)
	}
	if h := ask("22", own); h.status != "0" || len(h.crls) != 1 {
		t.Errorf("the CRL: %v", h)
	}
	for what, content := range map[string][]byte{
		"never issued": issuerAndSerial(t, name, 12345, ""), "another issuer": issuerAndSerial(t, w.ca.Root.RawSubject, 1, ""),
		"zero": issuerAndSerial(t, name, 0, ""), "negative": issuerAndSerial(t, name, -5, ""),
	} {
		if h := ask("21", content); h.status != "2" || h.fail != "4" {
			t.Errorf("%s: %v, want badCertId", what, h)
		}
	}
	if h := ask("21", []byte{5, 0}); h.status != "2" || h.fail != "1" {
		t.Errorf("nothing asked: %v", h)
	}
	stranger := newDevice(t, s, secondKey())
	for _, stranger.kind = range []string{"21", "22"} {
		if h := stranger.hear(post(t, s, stranger.message(own)), ""); h.status != "2" || h.fail != "2" {
			t.Errorf("a stranger: %v", h)
		}
	}
	if err := w.ca.Revoke(t.Context(), ca.Revocation{Serial: ca.SerialOf(cert.SerialNumber), Reason: ca.KeyCompromise}); err != nil {
		t.Fatal(err)
	}
	if h := ask("22", own); h.status != "2" || h.fail != "2" {
		t.Errorf("with a revoked certificate: %v", h)
	}
	none := w.served(func(c *Config) { c.CRLs = nil })
	e, ecert := enrolled(t, none, secondKey(), "b.example.com")
	e.cert, e.kind = ecert, "22"
	if h := e.hear(post(t, none, e.message(own)), ""); h.status != "2" || h.fail != "4" {
		t.Errorf("no CRL: %v", h)
	}
}

func TestRefusalsOfTheCAAreFailures(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	for name, c := range map[string]struct {
		err  error
		code int
		fail string
	}{
		"denied":     {enrol.ErrDenied, 200, "2"},
		"a name":     {&ca.Refusal{Code: ca.RejectedIdentifier, Detail: "no"}, 200, "2"},
		"a weak key": {&ca.Refusal{Code: ca.BadPublicKey, Detail: "no"}, 200, "0"},
		"busy":       {&ca.Refusal{Code: ca.Busy, RetryAfter: 7 * time.Second}, 503, "7"},
		"desk busy":  {&enrol.BusyError{RetryAfter: 9 * time.Second}, 503, "9"},
		"a fault":    {errors.New("the database is away"), 500, ""},
	} {
		w.desk.fails = c.err
		res := post(t, s, d.message(csr(t, d.key, goodChallenge, "a.example.com")))
		if c.code == 200 {
			if h := d.hear(res, ""); h.status != "2" || h.fail != c.fail {
				t.Errorf("%s: %v", name, h)
			}
			continue
		}
		text := body(res)
		if res.Code != c.code || res.Header().Get("Retry-After") != c.fail || bytes.Contains(text, []byte("database")) {
			t.Errorf("%s: HTTP %d, %v, %s", name, res.Code, res.Header(), text)
		}
	}
	if !strings.Contains(w.logs.String(), "the database is away") {
		t.Error("the fault is not in the log")
	}
}

// A client that heard nothing sends the same again: neither the device nor the
// desk is asked twice.
func TestTheSameBytesHaveTheSameAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	message := d.message(csr(t, d.key, goodChallenge, "a.example.com"))
	first := body(post(t, s, message))
	asked := w.ca.Keys.Asked()
	if again := body(post(t, s, message)); !bytes.Equal(again, first) {
		t.Error("another answer")
	}
	if w.ca.Keys.Asked() != asked || len(w.desk.asks()) != 1 {
		t.Error("somebody was asked again")
	}
	later := w.now
	w.now = func() time.Time { return later().Add(2 * replayFor) }
	if again := body(post(t, s, message)); bytes.Equal(again, first) {
		t.Error("it is remembered for ever")
	}
	for i := range 2 * maxReplays {
		s.replays.put(sha256.Sum256([]byte(strconv.Itoa(i))), first, time.Now())
	}
	if len(s.replays.known) != maxReplays || len(s.replays.order) != maxReplays {
		t.Errorf("%d are remembered", len(s.replays.known))
	}
}

// Strangers have a share of the device, and who does not get into it is told when
// to come back, without a signature.
func TestStrangersHaveAShareOfTheDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(func(c *Config) { c.Share, c.Patience = 2, 20*time.Millisecond })
	d := newDevice(t, s, deviceKey())
	hold := w.ca.Keys.Hold()
	var wg sync.WaitGroup
	for i := range 2 {
		x := *d
		x.transaction = "held" + strconv.Itoa(i)
		message := x.message(csr(t, d.key, goodChallenge, "a.example.com"))
		wg.Go(func() { post(t, s, message) })
		<-hold.Arrived
	}
	res := post(t, s, d.message(csr(t, d.key, goodChallenge, "a.example.com")))
	if res.Code != http.StatusServiceUnavailable || res.Header().Get("Retry-After") == "" {
		t.Errorf("HTTP %d, %v", res.Code, res.Header())
	}
	// What needs no device goes on.
	if res := get(t, s, "/scep/devices?operation=GetCACert"); res.Code != 200 {
		t.Errorf("GetCACert: HTTP %d", res.Code)
	}
	hold.Release()
	wg.Wait()
	if h := d.hear(post(t, s, d.message(csr(t, d.key, goodChallenge, "a.example.com"))), ""); h.status != "0" {
		t.Errorf("afterwards: %v", h)
	}
}

func TestWhileTheDeviceIsAwayClientsAreToldToComeBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.served(nil)
	d := newDevice(t, s, deviceKey())
	w.ca.Keys.Away(11 * time.Second)
	res := post(t, s, d.message(csr(t, d.key, goodChallenge, "a.example.com")))
	if res.Code != http.StatusServiceUnavailable || res.Header().Get("Retry-After") != "11" {
		t.Errorf("HTTP %d, %v", res.Code, res.Header())
	}
	fresh := w.server(nil)
	if err := fresh.Prepare(t.Context()); !errors.Is(err, keys.ErrBusy) {
		t.Errorf("preparing: %v", err)
	}
	for _, op := range []string{"GetCACert", "PKIOperation&message=" + url.QueryEscape(base64.StdEncoding.EncodeToString(d.message(csr(t, d.key, "", "a.example.com"))))} {
		if res := get(t, fresh, "/scep/devices?operation="+op); res.Code != http.StatusServiceUnavailable || res.Header().Get("Retry-After") == "" {
			t.Errorf("%.12s: HTTP %d", op, res.Code)
		}
	}
	w.ca.Keys.Back()
	if err := fresh.Prepare(t.Context()); err != nil {
		t.Error(err)
	}
}
