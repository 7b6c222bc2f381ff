package front

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
)

// Clients are known by certificates of their own (RFC 5246 §7.4.6, RFC 8446 §4.4.2).
type Clients struct {
	Roots *x509.CertPool // that their certificates, for TLS clients, chain to
	Names []string       // of which one is a name or address in it; empty: any
}

// require lets nobody through a handshake without such a certificate. There is
// no resumption: each connection is checked anew, as roots and names stand.
func (c *Clients) require(t *tls.Config) {
	if c == nil {
		return
	}
	t.MinVersion = tls.VersionTLS13 // both ends are ours; TLS 1.2 would show the client's certificate to those who listen
	t.ClientAuth, t.ClientCAs = tls.RequireAndVerifyClientCert, c.Roots
	t.SessionTicketsDisabled = true
	t.VerifyConnection = func(s tls.ConnectionState) error { return c.named(s.PeerCertificates[0]) }
}

func (c *Clients) named(leaf *x509.Certificate) error {
	if len(c.Names) == 0 {
		return nil
	}
	has := slices.Clone(leaf.DNSNames)
	for _, ip := range leaf.IPAddresses {
		has = append(has, ip.String())
	}
	if slices.ContainsFunc(c.Names, func(n string) bool { return slices.Contains(has, n) }) {
		return nil
	}
	return fmt.Errorf("the client's certificate is for %q, and those let in are %q", has, c.Names)
}
