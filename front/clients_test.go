package front_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/front"
)

// TestOnlyNamedClientsOfOurRootsGetThrough holds also that nobody does with TLS
// 1.2, nor by resuming a session.
func TestOnlyNamedClientsOfOurRootsGetThrough(t *testing.T) {
	t.Parallel()
	clientCert, clientKey := writeCertificate(t, t.TempDir(), "primary.test")
	cert, err := tls.LoadX509KeyPair(clientCert, clientKey)
	if err != nil {
		t.Fatal(err)
	}
	strangerCert, strangerKey := writeCertificate(t, t.TempDir(), "primary.test")
	stranger, err := tls.LoadX509KeyPair(strangerCert, strangerKey)
	if err != nil {
		t.Fatal(err)
	}
	roots := rootsFrom(t, clientCert)
	for _, c := range []struct {
		name    string
		names   []string
		certs   []tls.Certificate
		version uint16
		ok      bool
	}{
		{"the right one", []string{"other.test", "primary.test"}, []tls.Certificate{cert}, tls.VersionTLS13, true},
		{"any name", nil, []tls.Certificate{cert}, tls.VersionTLS13, true},
		{"another name", []string{"other.test", "PRIMARY", "test"}, []tls.Certificate{cert}, tls.VersionTLS13, false},
		{"none", nil, nil, tls.VersionTLS13, false},
		{"a stranger", nil, []tls.Certificate{stranger}, tls.VersionTLS13, false},
		{"TLS 1.2", nil, []tls.Certificate{cert}, tls.VersionTLS12, false},
	} {
		h, client := openTLS(t, front.Listener{Clients: &front.Clients{Roots: roots, Names: c.names}}, tellCaller)
		client = client.Clone()
		client.Certificates, client.MaxVersion, client.ClientSessionCache = c.certs, c.version, tls.NewLRUClientSessionCache(1)
		tr := &http.Transport{TLSClientConfig: client, DisableKeepAlives: true}
		defer tr.CloseIdleConnections()
		for range 2 {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+h.address()+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := tr.RoundTrip(req)
			if (err == nil) != c.ok {
				t.Errorf("%s: got %v, %v", c.name, res, err)
			}
			if err == nil {
				if res.TLS.DidResume {
					t.Errorf("%s: a session was resumed", c.name)
				}
				_ = res.Body.Close()
			}
		}
	}
}

func TestClientsNeedTLSAndRoots(t *testing.T) {
	t.Parallel()
	get := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, nil }
	for _, l := range []front.Listener{
		{Name: "a", Address: "127.0.0.1:0", Clients: &front.Clients{Roots: x509.NewCertPool()}},
		{Name: "a", Address: "127.0.0.1:0", Certificate: get, Clients: &front.Clients{}},
	} {
		if _, err := front.New(front.Config{Listeners: []front.Listener{l}}); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("got %v", err)
		}
	}
}
