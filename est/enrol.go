package est

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/peer"
)

const (
	maxAuthorization = 1 << 10
	maxUser          = 128
	maxPassword      = 72
	maxForwarded     = 16 << 10 // of a certificate that a hop tells us, in octets of its header
	maxChain         = 8
)

// enrol serves the operations that may give certificates. Who asks is proven from
// the request's head, before its body is read, so that nobody's body is waited for
// who is nobody, and no slow one holds a place.
func (s *Server) enrol(w http.ResponseWriter, r *http.Request, label, operation string) error {
	through := s.forwarded(r)
	if r.TLS == nil && !through {
		return errTLS
	}
	if d := s.limit.Charge(peer.From(r.Context()).Addr, enrolCost); !d.OK {
		return &limited{d}
	}
	renewal := operation == "simplereenroll"
	chain, err := s.certificates(r, through)
	if err != nil {
		return err
	}
	e := s.endpoints[label]
	codes := e != nil && e.Challenge == Code && !renewal
	who, err := s.prove(r, label, chain, renewal, codes)
	if err != nil {
		return err
	}
	ctx := r.Context()
	if who != nil {
		if d := s.limit.Proven(who.Actor()); !d.OK {
			return &limited{d}
		}
		ctx = peer.WithIdentity(ctx, "est:"+who.Actor())
		peer.Annotate(ctx, "principal", who.Actor())
	}
	if e == nil { // a desk that proves somebody at an endpoint that is none
		return errForbidden
	}
	if operation == "serverkeygen" && e.KeyGeneration.Algorithm == "" {
		return errNoKeys
	}
	body, err := read(w, r)
	if err != nil {
		return err
	}
	v, err := parse(body)
	if err != nil {
		return err
	}
	req := Request{Endpoint: label, CSR: v.csr.Raw, Principal: who, Renewal: renewal, Requester: requester(ctx)}
	if e.Challenge == Code {
		if req.Code = v.challenge; who == nil && req.Code == "" {
			return s.unproven(ctx)
		}
	} else if err := bound(r.TLS, through, v.challenge, e.Challenge == Required); err != nil {
		return err
	}
	if operation == "serverkeygen" {
		return s.generate(ctx, w, e, req, v, chain)
	}
	res, err := s.ask(ctx, req, operation)
	if err != nil {
		return err
	}
	return s.answer(w, res, v.lines)
}

// ask has the desk decide. What it denies to somebody who has proven nothing but a
// code is a credential that does not hold.
func (s *Server) ask(ctx context.Context, req Request, operation string) (Result, error) {
	res, err := s.cfg.Desk.Enrol(ctx, req)
	if err != nil {
		if req.Principal == nil && errors.Is(err, ErrDenied) {
			return Result{}, s.unproven(ctx)
		}
		return Result{}, err
	}
	outcome := "issued"
	if res.Certificate == nil {
		outcome = "waiting"
	}
	s.metrics.enrolments.WithLabelValues(operation, outcome).Inc()
	return res, nil
}

func requester(ctx context.Context) ca.Requester {
	p := peer.From(ctx)
	return ca.Requester{Addr: p.Addr, RequestID: p.RequestID}
}

// prove finds who asks: by certificate, else by password. Nobody is right where a
// code in the body may do. Whatever fails, the answer is one.
func (s *Server) prove(r *http.Request, label string, chain []*x509.Certificate, renewal, codes bool) (Principal, error) {
	ctx := r.Context()
	if len(chain) > 0 {
		who, err := s.cfg.Desk.CheckCertificate(ctx, label, chain)
		if err == nil || !errors.Is(err, ErrDenied) {
			return who, err
		}
	}
	header := r.Header.Get("Authorization")
	if header == "" && codes {
		return nil, nil
	}
	// RFC 7030 §4.2.2: who renews has the certificate.
	user, password, ok := basic(header)
	if !ok || renewal {
		return nil, s.unproven(ctx)
	}
	who, err := s.cfg.Desk.CheckPassword(ctx, label, user, password, peer.From(ctx).Addr)
	if errors.Is(err, ErrDenied) {
		return nil, s.unproven(ctx)
	}
	return who, err
}

// unproven charges the source for credentials that don't hold.
func (s *Server) unproven(ctx context.Context) error {
	s.limit.FailedProof(peer.From(ctx).Addr)
	return errUnproven
}

// basic reads a header of RFC 7617. What can't be a password of ours costs no
// verification.
func basic(header string) (user, password string, ok bool) {
	scheme, value, _ := strings.Cut(header, " ")
	if len(header) > maxAuthorization || !strings.EqualFold(scheme, "Basic") {
		return "", "", false
	}
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(value))
	if err != nil || !utf8.Valid(raw) {
		return "", "", false
	}
	user, password, ok = strings.Cut(string(raw), ":")
	if !ok || user == "" || len(user) > maxUser || password == "" || len(password) > maxPassword || strings.ContainsFunc(user+password, unicode.IsControl) {
		return "", "", false
	}
	return user, password, true
}

// bound holds a request to its connection (RFC 7030 §3.5): by tls-unique before
// TLS 1.3, by the exporter of RFC 9266 since. What a hop has ended can't be held
// to anything.
func bound(state *tls.ConnectionState, through bool, challenge string, required bool) error {
	if challenge == "" {
		if required {
			return errBinding
		}
		return nil
	}
	if through || state == nil {
		return errBinding
	}
	want, err := binding(state)
	if err != nil || len(want) == 0 {
		return errBinding
	}
	if subtle.ConstantTimeCompare([]byte(challenge), []byte(base64.StdEncoding.EncodeToString(want))) != 1 {
		return errBinding
	}
	return nil
}

func binding(state *tls.ConnectionState) ([]byte, error) {
	if state.Version < tls.VersionTLS13 {
		return state.TLSUnique, nil // nil where it would prove nothing
	}
	return state.ExportKeyingMaterial("EXPORTER-Channel-Binding", nil, 32)
}

// forwarded reports whether a request came by a hop that ends TLS for us.
func (s *Server) forwarded(r *http.Request) bool {
	at := peer.From(r.Context()).Conn.Unmap()
	for _, p := range s.cfg.Forwarders {
		if at.IsValid() && p.Contains(at) {
			return true
		}
	}
	return false
}

// certificates returns the client's certificate and what it sent along: that of
// the connection, or what a hop tells of its own connection.
func (s *Server) certificates(r *http.Request, through bool) ([]*x509.Certificate, error) {
	if through {
		return forwardedChain(r.Header)
	}
	return r.TLS.PeerCertificates[:min(len(r.TLS.PeerCertificates), maxChain)], nil
}

// forwardedChain reads Client-Cert and Client-Cert-Chain (RFC 9440).
func forwardedChain(h http.Header) ([]*x509.Certificate, error) {
	leaf, above := h.Values("Client-Cert"), h.Values("Client-Cert-Chain")
	if len(leaf) == 0 {
		return nil, nil
	}
	list := leaf[0]
	if len(above) > 0 {
		list += "," + strings.Join(above, ",")
	}
	if len(leaf) > 1 || strings.Contains(leaf[0], ",") || len(list) > maxForwarded || strings.Count(list, ",") >= maxChain {
		return nil, errForwarded
	}
	var chain []*x509.Certificate
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		if len(item) < 2 || item[0] != ':' || item[len(item)-1] != ':' {
			return nil, errForwarded
		}
		der, err := base64.StdEncoding.DecodeString(item[1 : len(item)-1])
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errForwarded, err)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errForwarded, err)
		}
		chain = append(chain, c)
	}
	return chain, nil
}
