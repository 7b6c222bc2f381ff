package est

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1" //nolint:gosec // it names a key (RFC 5280 §4.2.1.2)
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"

	"github.com/secsy-pki/secsy-pki/cms"
	"github.com/secsy-pki/secsy-pki/gate"
	"github.com/secsy-pki/secsy-pki/peer"
)

// A KeyAlgorithm is a kind of keys that are made for devices.
type KeyAlgorithm string

// The kinds.
const (
	ECP256  KeyAlgorithm = "ec-p256"
	ECP384  KeyAlgorithm = "ec-p384"
	RSA2048 KeyAlgorithm = "rsa-2048"
	RSA3072 KeyAlgorithm = "rsa-3072"
)

// id-ct-KP-aKeyPackage of RFC 5958.
var oidKeyPackage = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 2, 1, 2, 78, 5}

func (k KeyGeneration) check() error {
	switch k.Algorithm {
	case "", ECP256, ECP384, RSA2048, RSA3072:
	default:
		return fmt.Errorf("no keys of algorithm %q are made: ec-p256, ec-p384, rsa-2048 and rsa-3072 are", k.Algorithm)
	}
	if k.Signer != nil && (k.Signer.Certificate == nil || k.Signer.Key == nil) {
		return errors.New("the signer of sealed keys needs a certificate and a key")
	}
	return nil
}

func (a KeyAlgorithm) generate() (crypto.Signer, error) {
	switch a {
	case ECP256:
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case ECP384:
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case RSA2048:
		return rsa.GenerateKey(rand.Reader, 2048)
	default:
		return rsa.GenerateKey(rand.Reader, 3072)
	}
}

// generate serves /serverkeygen (RFC 7030 §4.4). The request's own key is only
// there because a request has one; its names are taken over.
func (s *Server) generate(ctx context.Context, w http.ResponseWriter, e *endpoint, req Request, v *wish, chain []*x509.Certificate) error {
	recipient, err := e.recipient(v, chain)
	if err != nil {
		return err // before anything is issued whose key nobody could have
	}
	key, err := s.makeKey(ctx, e.KeyGeneration.Algorithm, req)
	if err != nil {
		return err
	}
	req.Once = true
	if req.CSR, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		RawSubject: v.csr.RawSubject, ExtraExtensions: v.csr.Extensions,
	}, key); err != nil {
		return fmt.Errorf("%w: asking for the same with another key: %w", errMalformed, err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encoding a key: %w", err)
	}
	keyType, keyBody := typeKey, pkcs8
	if recipient != nil {
		keyType = typeSealedKey
		if keyBody, err = e.seal(pkcs8, recipient); err != nil {
			return fmt.Errorf("sealing a key: %w", err)
		}
	}
	res, err := s.ask(ctx, req, "serverkeygen")
	if err != nil {
		return err
	}
	if res.Certificate == nil {
		return errForbidden // the key would be forgotten while it waits
	}
	certs, err := cms.CertsOnly([][]byte{res.Certificate}, nil)
	if err != nil {
		return fmt.Errorf("wrapping a certificate: %w", err)
	}
	return writeParts(w, v.lines, part{keyType, keyBody}, part{typeCert, certs})
}

// makeKey makes a key when its turn comes, as RSA keys take long to make.
func (s *Server) makeKey(ctx context.Context, a KeyAlgorithm, req Request) (crypto.Signer, error) {
	who := peer.NetworkName(req.Requester.Addr)
	if req.Principal != nil {
		who = req.Principal.Actor()
	}
	release, err := s.making.Acquire(ctx, gate.Anonymous, who)
	if err != nil {
		return nil, err
	}
	defer release()
	key, err := a.generate()
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return key, nil
}

// recipient is for whom the key is sealed; nil where it is sent under TLS alone. A
// request to seal is never answered with a key that is not.
func (e *endpoint) recipient(v *wish, chain []*x509.Certificate) (*x509.Certificate, error) {
	if !v.sealed {
		return nil, nil
	}
	if e.KeyGeneration.Signer == nil || len(chain) == 0 || len(v.sealFor) == 0 {
		return nil, errSealing
	}
	c := chain[0]
	if _, isRSA := c.PublicKey.(*rsa.PublicKey); !isRSA || !isIdentifier(c, v.sealFor) {
		return nil, errSealing
	}
	return c, nil
}

// isIdentifier reports whether id names the key of c: as c itself says, or by the
// usual digest.
func isIdentifier(c *x509.Certificate, id []byte) bool {
	if bytes.Equal(c.SubjectKeyId, id) {
		return true
	}
	var info struct {
		Algorithm asn1.RawValue
		Key       asn1.BitString
	}
	if rest, err := asn1.Unmarshal(c.RawSubjectPublicKeyInfo, &info); err != nil || len(rest) > 0 {
		return false
	}
	sum := sha1.Sum(info.Key.Bytes) //nolint:gosec // see above
	return bytes.Equal(sum[:], id)
}

// seal is RFC 7030 §4.4.2: a key package (RFC 5958), signed by us, for the device.
func (e *endpoint) seal(pkcs8 []byte, to *x509.Certificate) ([]byte, error) {
	pack, err := asn1.Marshal([]asn1.RawValue{{FullBytes: pkcs8}})
	if err != nil {
		return nil, err
	}
	signer := e.KeyGeneration.Signer
	signed, err := signer.Sign(oidKeyPackage, pack, nil, [][]byte{signer.Certificate.Raw})
	if err != nil {
		return nil, err
	}
	inner, err := contentOf(signed)
	if err != nil {
		return nil, err
	}
	return cms.Seal(cms.OIDSignedData, inner, cms.AES128CBC, cms.TransportTo{Certificate: to})
}

// contentOf takes the content out of a ContentInfo: inside of EnvelopedData the
// type stands beside it.
func contentOf(der []byte) ([]byte, error) {
	var info struct {
		Type    asn1.ObjectIdentifier
		Content asn1.RawValue `asn1:"explicit,tag:0"`
	}
	if _, err := asn1.Unmarshal(der, &info); err != nil {
		return nil, err
	}
	return info.Content.Bytes, nil
}

// A part is one body of several.
type part struct {
	contentType string
	der         []byte
}

// writeParts writes parts in one piece (RFC 7030 §4.4.2).
func writeParts(w http.ResponseWriter, lines bool, parts ...part) error {
	var random [16]byte
	_, _ = rand.Read(random[:]) // it never fails
	boundary := "est-" + hex.EncodeToString(random[:])
	var body bytes.Buffer
	for _, p := range parts {
		fmt.Fprintf(&body, "--%s\r\nContent-Type: %s\r\nContent-Transfer-Encoding: base64\r\n\r\n%s\r\n", boundary, p.contentType, encode(p.der, lines))
	}
	fmt.Fprintf(&body, "--%s--\r\n", boundary)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "multipart/mixed; boundary="+boundary)
	write(w, http.StatusOK, body.Bytes())
	return nil
}
