package challenge

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"golang.org/x/crypto/cryptobyte"
	cbasn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

const acmeTLS = "acme-tls/1" // RFC 8737 §6.2

var (
	oidSAN         = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidAcmeID      = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 31}    // RFC 8737 §6.1
	oidAcmeIDDraft = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 30, 1} // of its drafts
)

// tlsALPN01 looks at the certificate of a TLS server (RFC 8737). The connection
// ends with the handshake: no octet of another protocol is sent or read.
func (a *attempt) tlsALPN01(ctx context.Context) *acme.Problem {
	id := a.q.Identifier
	at := net.JoinHostPort(id.Value, fmt.Sprint(a.v.cfg.TLSPort))
	addrs, p := a.addresses(ctx, id.Value)
	if p != nil {
		return p
	}
	conn, err := a.connect(ctx, addrs, uint16(a.v.cfg.TLSPort))
	if err != nil {
		return problem(acme.Connection, err, "%s: %v", at, err)
	}
	defer func() { _ = conn.Close() }() // nothing more is wanted of it
	ctx, cancel := context.WithTimeout(ctx, a.v.cfg.StepTimeout)
	defer cancel()
	secure := tls.Client(conn, &tls.Config{
		ServerName:         serverName(id),
		NextProtos:         []string{acmeTLS},
		MinVersion:         tls.VersionTLS12, // RFC 8737 §4
		InsecureSkipVerify: true,             // it is self-signed by design
	})
	if err := secure.HandshakeContext(ctx); err != nil {
		return problem(acme.TLSError, err, "%s: the TLS handshake failed: %s", at, tlsCause(err))
	}
	state := secure.ConnectionState()
	if state.NegotiatedProtocol != acmeTLS {
		return problem(acme.Unauthorized, nil, "%s: the server did not agree to the protocol %s (ALPN)", at, acmeTLS)
	}
	cert := state.PeerCertificates[0] // a handshake without one has failed
	sum := sha256.Sum256(cert.Raw)
	a.rec.Certificate = hex.EncodeToString(sum[:])
	if err := checkChallengeCert(cert, id, a.q.KeyAuthorization); err != nil {
		return problem(acme.Unauthorized, nil, "%s: the certificate %v", at, err)
	}
	return nil
}

// serverName is what the handshake asks for. SNI has no addresses: RFC 8738 §6
// puts the name of their reverse lookup in place of them.
func serverName(id ca.Identifier) string {
	if id.Type != ca.IP {
		return id.Value
	}
	addr, err := netip.ParseAddr(id.Value)
	if err != nil {
		return id.Value // check has seen to it
	}
	var b strings.Builder
	if addr.Is4() {
		v4 := addr.As4()
		fmt.Fprintf(&b, "%d.%d.%d.%d.in-addr.arpa", v4[3], v4[2], v4[1], v4[0])
		return b.String()
	}
	v6 := addr.As16()
	for i := len(v6) - 1; i >= 0; i-- {
		fmt.Fprintf(&b, "%x.%x.", v6[i]&15, v6[i]>>4)
	}
	return b.String() + "ip6.arpa"
}

// checkChallengeCert holds the certificate against RFC 8737 §3 and RFC 8738 §6.
// The error goes on from "the certificate", and may be shown.
func checkChallengeCert(cert *x509.Certificate, id ca.Identifier, keyAuthorization string) error {
	if !bytes.Equal(cert.RawIssuer, cert.RawSubject) || cert.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature) != nil {
		return errors.New("is not signed by its own key")
	}
	if err := checkOnlyName(cert, id); err != nil {
		return err
	}
	digest, err := acmeIdentifier(cert)
	if err != nil {
		return err
	}
	want := sha256.Sum256([]byte(keyAuthorization))
	if subtle.ConstantTimeCompare(digest, want[:]) != 1 {
		return fmt.Errorf("has an acmeIdentifier for another key authorization: %x, not %x", digest, want)
	}
	return nil
}

// checkOnlyName sees that there is one name, and that it is the identifier's.
func checkOnlyName(cert *x509.Certificate, id ca.Identifier) error {
	raw, _, err := only(cert, oidSAN)
	if err != nil {
		return fmt.Errorf("has %w of alternative names, not one", err)
	}
	der, names := cryptobyte.String(raw), cryptobyte.String(nil)
	if !der.ReadASN1(&names, cbasn1.SEQUENCE) || !der.Empty() {
		return errors.New("has a malformed list of alternative names")
	}
	var value cryptobyte.String
	var tag cbasn1.Tag
	if !names.ReadAnyASN1(&value, &tag) || !names.Empty() {
		return errors.New("does not have exactly one alternative name")
	}
	switch tag {
	case cbasn1.Tag(2).ContextSpecific(): // dNSName
		if id.Type == ca.DNS && strings.EqualFold(string(value), id.Value) {
			return nil
		}
		return fmt.Errorf("is for the name %s, not for %s", excerpt(value), id.Value)
	case cbasn1.Tag(7).ContextSpecific(): // iPAddress
		addr, ok := netip.AddrFromSlice(value)
		if ok && id.Type == ca.IP && addr.String() == id.Value {
			return nil
		}
		return fmt.Errorf("is for the address %x, not for %s", value[:min(len(value), 16)], id.Value)
	}
	return fmt.Errorf("has an alternative name that is neither dNSName nor iPAddress, not %s", id.Value)
}

// acmeIdentifier reads the extension of RFC 8737 §3.
func acmeIdentifier(cert *x509.Certificate) ([]byte, error) {
	raw, critical, err := only(cert, oidAcmeID)
	switch {
	case err != nil && has(cert, oidAcmeIDDraft):
		return nil, errors.New("has the acmeIdentifier of an old draft, 1.3.6.1.5.5.7.1.30.1; it is 1.3.6.1.5.5.7.1.31 (RFC 8737)")
	case err != nil:
		return nil, fmt.Errorf("has %w acmeIdentifier, not one", err)
	case !critical:
		return nil, errors.New("has an acmeIdentifier that is not critical")
	}
	der, digest := cryptobyte.String(raw), cryptobyte.String(nil)
	if !der.ReadASN1(&digest, cbasn1.OCTET_STRING) || !der.Empty() || len(digest) != sha256.Size {
		return nil, errors.New("has an acmeIdentifier that is not an OCTET STRING of 32 octets")
	}
	return digest, nil
}

var (
	errNone = errors.New("no extension")
	errMany = errors.New("several extensions")
)

// only finds the one extension of that kind.
func only(cert *x509.Certificate, id asn1.ObjectIdentifier) (value []byte, critical bool, err error) {
	err = errNone
	for _, e := range cert.Extensions {
		if !e.Id.Equal(id) {
			continue
		}
		if err == nil {
			return nil, false, errMany
		}
		value, critical, err = e.Value, e.Critical, nil
	}
	return value, critical, err
}

func has(cert *x509.Certificate, id asn1.ObjectIdentifier) bool {
	_, _, err := only(cert, id)
	return err == nil
}
