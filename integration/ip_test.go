package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"
	"time"

	"golang.org/x/crypto/acme"
)

// TestAddressesAreIssuedTo orders for 127.0.0.1 and ::1 (RFC 8738), which are
// proven by http-01 for one order and by tls-alpn-01 for the next.
func TestAddressesAreIssuedTo(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{dns: startDNS(t)})
	for _, typ := range []string{"http-01", "tls-alpn-01"} {
		u := newSubscriber(t, s) // who has proven nothing yet
		o, err := u.client.AuthorizeOrder(t.Context(), acme.IPIDs("127.0.0.1", "::1"))
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range o.AuthzURLs {
			u.proveAddress(at, typ)
		}
		if o, err = u.client.WaitOrder(t.Context(), o.URI); err != nil {
			t.Fatal(err)
		}
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
			IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		}, key)
		if err != nil {
			t.Fatal(err)
		}
		chain, _, err := u.client.CreateOrderCert(t.Context(), o.FinalizeURL, csr, true)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(chain[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, addr := range []string{"127.0.0.1", "::1"} {
			if err := cert.VerifyHostname(addr); err != nil {
				t.Error(err)
			}
		}
	}
}

// proveAddress answers one challenge of an authorization for an address, and
// waits for the outcome.
func (u *subscriber) proveAddress(authz, typ string) {
	u.t.Helper()
	z, err := u.client.GetAuthorization(u.t.Context(), authz)
	if err != nil {
		u.t.Fatal(err)
	}
	for _, ch := range z.Challenges {
		if ch.Type != typ {
			continue
		}
		var stop func()
		if typ == "http-01" {
			stop = u.answerHTTP(z.Identifier.Value, ch.Token)
		} else {
			stop = u.answerTLS(z.Identifier.Value, ch.Token)
		}
		defer stop()
		if _, err := u.client.Accept(u.t.Context(), ch); err != nil {
			u.t.Fatal(err)
		}
		if _, err := u.client.WaitAuthorization(u.t.Context(), authz); err != nil {
			u.t.Fatalf("%s by %s: %v", z.Identifier.Value, typ, err)
		}
		return
	}
	u.t.Fatalf("%s has no %s", z.Identifier.Value, typ)
}

func (u *subscriber) answerHTTP(addr, token string) (stop func()) {
	u.t.Helper()
	body, err := u.client.HTTP01ChallengeResponse(token)
	if err != nil {
		u.t.Fatal(err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort(addr, strconv.Itoa(u.s.http01)))
	if err != nil {
		u.t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(body))
	})}
	go func() { _ = srv.Serve(l) }()
	return func() { _ = srv.Close() }
}

func (u *subscriber) answerTLS(addr, token string) (stop func()) {
	u.t.Helper()
	cert, err := u.client.TLSALPN01ChallengeCert(token, addr)
	if err != nil {
		u.t.Fatal(err)
	}
	l, err := tls.Listen("tcp", net.JoinHostPort(addr, strconv.Itoa(u.s.tlsALPN)), &tls.Config{
		Certificates: []tls.Certificate{cert}, NextProtos: []string{acme.ALPNProto}, MinVersion: tls.VersionTLS12,
	})
	if err != nil {
		u.t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			_, _ = io.Copy(io.Discard, c) // makes the handshake
			_ = c.Close()
		}
	}()
	return func() { _ = l.Close() }
}
