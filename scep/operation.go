package scep

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/cms"
	"github.com/secsy-pki/secsy-pki/enrol"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/peer"
)

// maxCRL bounds a list that is sent by SCEP: it is made, sealed and signed for one
// client, and there are cheaper ways to have it.
const maxCRL = 256 << 10

// A call is one message on its way to an answer.
type call struct {
	endpoint *endpoint
	ra       *registrar
	m        *message
	cipher   cms.Cipher // of the request, and so of the answer
	// current is the signer's certificate, if the endpoint's issuer signed it.
	current *x509.Certificate
	// challenge is what an answer is sealed by for who can't decrypt.
	challenge string
}

// pkiOperation answers a pkiMessage: with a CertRep, whatever can be said by one.
func (s *Server) pkiOperation(w http.ResponseWriter, r *http.Request, e *endpoint, inQuery string) error {
	ctx := r.Context()
	if err := s.charge(ctx); err != nil {
		return err
	}
	m, raw, err := read(w, r, inQuery)
	if err != nil {
		return err
	}
	ra, err := e.ready()
	if err != nil {
		return err
	}
	id := replayID(e, raw)
	if der := s.replays.get(id, s.cfg.Now()); der != nil {
		return s.deliver(w, r, m, "repeated", der)
	}
	c := &call{endpoint: e, ra: ra, m: m}
	say, err := s.answer(ctx, c)
	if err != nil {
		fail, ok := failureOf(err)
		if !ok {
			return err
		}
		peer.Annotate(ctx, "scep_refused", err.Error())
		say = reply{status: statusFailure, fail: fail}
	}
	der, err := s.sign(ctx, c, say)
	if err != nil {
		return err
	}
	if say.final() {
		s.replays.put(id, der, s.cfg.Now())
	}
	return s.deliver(w, r, m, say.word(), der)
}

func (s *Server) deliver(w http.ResponseWriter, r *http.Request, m *message, outcome string, der []byte) error {
	s.metrics.messages.WithLabelValues(m.kind.word(), outcome).Inc()
	peer.Annotate(r.Context(), "scep", m.kind.word()+" "+outcome)
	h := w.Header()
	h.Set("Content-Type", typeMessage)
	h.Set("Cache-Control", "no-store")
	write(w, http.StatusOK, der)
	return nil
}

// failureOf is what a CertRep says of err, and false for what it can't say.
func failureOf(err error) (failInfo, bool) {
	if fail, ok := errors.AsType[failInfo](err); ok {
		return fail, true
	}
	if r, ok := errors.AsType[*ca.Refusal](err); ok && r.Code != ca.Busy {
		if r.Code == ca.BadPublicKey {
			return badAlg, true
		}
		return badRequest, true
	}
	return badRequest, errors.Is(err, enrol.ErrDenied)
}

// sign signs what is said. A failure is worth no more than a stranger's share.
func (s *Server) sign(ctx context.Context, c *call, say reply) ([]byte, error) {
	if say.status != statusFailure {
		return s.certRep(keys.WithPurpose(ctx, c.purpose(keys.ForIssuance)), c.ra, c.m, say)
	}
	release, err := s.enter(ctx, c)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.certRep(keys.WithPurpose(ctx, c.purpose(keys.ForOne)), c.ra, c.m, say)
}

// purpose is that of who has a certificate of ours, or else the one given.
func (c *call) purpose(otherwise keys.Purpose) keys.Purpose {
	if c.current != nil {
		return keys.ForRenewal
	}
	return otherwise
}

// answer goes from what is cheap to what is dear: nothing is asked of the device
// before all that can be known without is.
func (s *Server) answer(ctx context.Context, c *call) (reply, error) {
	switch c.m.kind { // whatever is not named here is refused
	case pkcsReq, renewalReq, certPoll, getCert, getCRL:
	default:
		return reply{}, fmt.Errorf("%w: messageType %q", badRequest, c.m.kind)
	}
	if err := c.m.verify(c.endpoint.Legacy); err != nil {
		s.limit.FailedProof(peer.From(ctx).Addr)
		return reply{}, err
	}
	c.current = currentOf(c.endpoint.Issuer, c.m.signer)
	if c.current != nil {
		ctx = peer.WithIdentity(ctx, "scep:certificate/"+string(ca.SerialOf(c.current.SerialNumber)))
	}
	content, wrong, err := s.open(ctx, c)
	if err != nil {
		return reply{}, err
	}
	switch c.m.kind {
	case certPoll:
		return s.poll(ctx, c, content, wrong)
	case getCert, getCRL:
		return s.look(ctx, c, content, wrong)
	}
	return s.enrol(ctx, c, content, wrong)
}

// currentOf returns cert if the issuer signed it.
func currentOf(is *ca.Issuer, cert *x509.Certificate) *x509.Certificate {
	if !bytes.Equal(cert.RawIssuer, is.Cert.RawSubject) || cert.CheckSignatureFrom(is.Cert) != nil {
		return nil
	}
	return cert
}

// open opens the envelope. What was wrong inside of it comes beside the content,
// for whoever reads that to say.
func (s *Server) open(ctx context.Context, c *call) (content []byte, wrong, err error) {
	ed, err := cms.ParseEnvelopedData(c.m.signed.Content)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", badMessageCheck, err)
	}
	t, err := s.ours(ctx, c, ed.Transports)
	if err != nil {
		return nil, nil, err
	}
	if err := ed.Check(t, c.endpoint.Legacy); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", badAlg, err)
	}
	c.cipher = ed.Cipher
	if query := c.m.kind != pkcsReq && c.m.kind != renewalReq; query && !c.m.canReceive() {
		return nil, nil, fmt.Errorf("%w: nothing can be sealed for this key", badAlg)
	}
	release, err := s.enter(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	content, err = ed.Open(keys.WithPurpose(ctx, c.purpose(keys.ForOne)), t, c.ra.opens)
	switch {
	case errors.Is(err, cms.ErrDecrypt):
		return content, err, nil
	case errors.Is(err, keys.ErrUnable):
		return nil, nil, fmt.Errorf("%w: %w", badAlg, err)
	}
	return content, nil, err
}

// ours finds the recipient that we are. A certificate of before is good for it, as
// devices remember the one that they were given; the key is the same.
func (s *Server) ours(ctx context.Context, c *call, all []*cms.Transport) (*cms.Transport, error) {
	for _, t := range all {
		if t.For(c.ra.cert) {
			return t, nil
		}
	}
	for _, t := range all {
		name, serial := t.IssuerAndSerial()
		if serial == nil || !sameIssuer(name, c.endpoint.Issuer) || serial.Sign() <= 0 {
			continue
		}
		rec, err := s.cfg.Certificates.Record(ctx, ca.SerialOf(serial))
		switch {
		case err == nil && rec.Issuer == c.endpoint.Issuer.ID && rec.SPKIHash == c.ra.spki:
			return t, nil
		case err != nil && !errors.Is(err, ca.ErrNotFound):
			return nil, fmt.Errorf("finding a recipient: %w", err)
		}
		break // one question to the store is enough
	}
	return nil, fmt.Errorf("%w: %w", badMessageCheck, errNotOurs)
}

// wrongInside is the answer to a message of which something inside was wrong,
// whatever it was.
func (s *Server) wrongInside(ctx context.Context, c *call) error {
	s.limit.FailedProof(peer.From(ctx).Addr)
	s.metrics.wrong.Inc()
	s.alarm.rings(ctx, c.endpoint.Issuer.ID)
	return badMessageCheck
}

func (s *Server) enrol(ctx context.Context, c *call, content []byte, wrong error) (reply, error) {
	csr, err := parseCSR(content)
	if wrong != nil || err != nil {
		return reply{}, s.wrongInside(ctx, c)
	}
	if c.challenge, err = challengeOf(csr); err != nil {
		return reply{}, err
	}
	switch {
	case c.current == nil && c.m.kind == renewalReq:
		return reply{}, fmt.Errorf("%w: a renewal signed by no certificate of ours", enrol.ErrDenied)
	case c.current == nil && !bytes.Equal(csr.RawSubjectPublicKeyInfo, c.m.signer.RawSubjectPublicKeyInfo):
		return reply{}, fmt.Errorf("%w: signed by another key than that of the CSR", badRequest)
	case !c.m.canReceive() && c.challenge == "":
		// Before anything is issued that could not be handed out.
		return reply{}, fmt.Errorf("%w: nothing can be sealed for this key without a challenge", badAlg)
	}
	req := enrol.Request{
		Endpoint: c.endpoint.Label, Transaction: c.m.transaction, CSR: csr.Raw, Challenge: c.challenge,
		Renewal: c.current != nil, Requester: requester(ctx),
	}
	if c.current != nil {
		req.Challenge = "" // the certificate proves who asks
		if req.Principal, err = s.cfg.Desk.CheckCertificate(ctx, c.endpoint.Label, []*x509.Certificate{c.current}); err != nil {
			return reply{}, err
		}
	}
	res, err := s.cfg.Desk.Enrol(ctx, req)
	if err != nil {
		return reply{}, err
	}
	return c.success(res)
}

func requester(ctx context.Context) ca.Requester {
	p := peer.From(ctx)
	return ca.Requester{Addr: p.Addr, RequestID: p.RequestID}
}

func (s *Server) poll(ctx context.Context, c *call, content []byte, wrong error) (reply, error) {
	err := parseIssuerAndSubject(content)
	if wrong != nil || err != nil {
		return reply{}, s.wrongInside(ctx, c)
	}
	res, err := s.cfg.Desk.Poll(ctx, enrol.Poll{
		Endpoint: c.endpoint.Label, Transaction: c.m.transaction, SPKI: spkiHash(c.m.signer), Requester: requester(ctx),
	})
	if err != nil {
		return reply{}, err
	}
	return c.success(res)
}

// success has the certificate alone inside: there are clients that take the first
// for theirs, and clients that refuse more than one.
func (c *call) success(res enrol.Result) (reply, error) {
	if res.Pending() {
		return reply{status: statusPending}, nil
	}
	return c.sealed([][]byte{res.Certificate}, nil)
}

func (c *call) sealed(certificates, crls [][]byte) (reply, error) {
	content, err := seal(c.m, c.cipher, c.challenge, certificates, crls)
	if err != nil {
		return reply{}, err
	}
	return reply{status: statusSuccess, content: content}, nil
}

// look answers GetCert and GetCRL, to who has a certificate that is in force.
func (s *Server) look(ctx context.Context, c *call, content []byte, wrong error) (reply, error) {
	what, err := parseIssuerAndSerial(content)
	if wrong != nil || errors.Is(err, badMessageCheck) {
		return reply{}, s.wrongInside(ctx, c)
	}
	if err != nil {
		return reply{}, err
	}
	if err := s.inForce(ctx, c); err != nil {
		return reply{}, err
	}
	if !sameIssuer(what.issuer, c.endpoint.Issuer) {
		return reply{}, fmt.Errorf("%w: another issuer's", badCertID)
	}
	if c.m.kind == getCRL {
		return s.lookForCRL(ctx, c)
	}
	rec, err := s.cfg.Certificates.Record(ctx, what.serial)
	switch {
	case errors.Is(err, ca.ErrNotFound) || err == nil && (rec.Issuer != c.endpoint.Issuer.ID || rec.DER == nil):
		return reply{}, fmt.Errorf("%w: no such certificate", badCertID)
	case err != nil:
		return reply{}, fmt.Errorf("reading certificate %s: %w", what.serial, err)
	}
	return c.sealed([][]byte{rec.DER}, nil)
}

func (s *Server) lookForCRL(ctx context.Context, c *call) (reply, error) {
	if s.cfg.CRLs == nil {
		return reply{}, badCertID
	}
	der, err := s.cfg.CRLs.DER(ctx, c.endpoint.Issuer.ID, maxCRL)
	if err != nil {
		return reply{}, err
	}
	if der == nil {
		return reply{}, fmt.Errorf("%w: there is no CRL, or a long one", badCertID)
	}
	return c.sealed(nil, [][]byte{der})
}

// inForce checks that who asks has a certificate of ours that is neither expired
// nor revoked.
func (s *Server) inForce(ctx context.Context, c *call) error {
	now := s.cfg.Now()
	if c.current == nil || now.Before(c.current.NotBefore) || now.After(c.current.NotAfter) {
		return fmt.Errorf("%w: asked by no certificate in force", enrol.ErrDenied)
	}
	serial := ca.SerialOf(c.current.SerialNumber)
	rec, err := s.cfg.Certificates.Record(ctx, serial)
	switch {
	case errors.Is(err, ca.ErrNotFound) || err == nil && (rec.Revoked() || rec.Issuer != c.endpoint.Issuer.ID):
		return fmt.Errorf("%w: asked by no certificate in force", enrol.ErrDenied)
	case err != nil:
		return fmt.Errorf("reading certificate %s: %w", serial, err)
	}
	return nil
}

// enter takes a place among those at the device whom nobody knows, until release.
func (s *Server) enter(ctx context.Context, c *call) (release func(), err error) {
	class, who := gate.Anonymous, peer.NetworkName(peer.From(ctx).Addr)
	if c.current != nil {
		class, who = gate.Renewal, string(ca.SerialOf(c.current.SerialNumber))
	}
	release, err = s.share.Acquire(ctx, class, who)
	if err != nil {
		return nil, fmt.Errorf("standing in line for the device: %w", err)
	}
	return release, nil
}
