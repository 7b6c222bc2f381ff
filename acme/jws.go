package acme

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	_ "crypto/sha512" // of ES384 and ES512
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"

	jose "github.com/go-jose/go-jose/v4"
)

// algorithms are those that a request may be signed with; RFC 8555 §6.2 rules
// out "none" and MACs.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA}

// minRSABits is checked before a signature is: crypto/rsa refuses much smaller
// keys in ways that would read as a wrong signature.
const minRSABits = 2048

// A message is a JWS whose form is right and whose signature is yet to be verified.
type message struct {
	signed   string // what the signature is over (RFC 7515 §5.1)
	sig      []byte
	payload  []byte
	alg      jose.SignatureAlgorithm
	key      *jose.JSONWebKey // in the header, nil if kid names it
	kid      string
	nonce    string
	hasNonce bool
	url      string
}

// parseMessage reads a JWS in flattened JSON serialization (RFC 8555 §6.2).
func parseMessage(b []byte) (*message, error) {
	m, err := members(b)
	if err != nil {
		return nil, malformed("the request body is not a JWS in flattened JSON serialization: " + err.Error())
	}
	if _, ok := m["header"]; ok {
		return nil, malformed(`the JWS must not have an unprotected header (member "header")`)
	}
	if _, ok := m["signatures"]; ok {
		return nil, malformed(`the JWS must have one signature, in member "signature", not "signatures"`)
	}
	var (
		text    [3]string
		decoded [3][]byte
	)
	for i, name := range []string{"protected", "payload", "signature"} {
		if err := stringMember(m, name, &text[i]); err != nil {
			return nil, err
		}
		if decoded[i], err = decodeBase64(text[i]); err != nil {
			return nil, malformed("member \"" + name + "\" of the JWS is not base64url without padding")
		}
	}
	msg, err := parseProtected(decoded[0])
	if err != nil {
		return nil, err
	}
	msg.signed, msg.payload, msg.sig = text[0]+"."+text[1], decoded[1], decoded[2]
	return msg, nil
}

// decodeBase64 takes base64url without padding in its one form: Go lets line
// ends through, even strictly.
func decodeBase64(text string) ([]byte, error) {
	if strings.IndexByte(text, '\r') >= 0 || strings.IndexByte(text, '\n') >= 0 {
		return nil, base64.CorruptInputError(0)
	}
	return base64.RawURLEncoding.Strict().DecodeString(text)
}

func parseProtected(b []byte) (*message, error) {
	h, err := members(b)
	if err != nil {
		return nil, malformed("the JWS's protected header is not a JSON object: " + err.Error())
	}
	for _, name := range []string{"crit", "b64"} {
		if _, ok := h[name]; ok {
			return nil, malformed("header parameter \"" + name + "\" is not supported")
		}
	}
	var alg string
	if err := stringMember(h, "alg", &alg); err != nil {
		return nil, err
	}
	m := &message{alg: jose.SignatureAlgorithm(alg)}
	if !slices.Contains(algorithms, m.alg) {
		return nil, badAlgorithm("the JWS's signature algorithm is not supported")
	}
	if err := stringMember(h, "url", &m.url); err != nil {
		return nil, err
	}
	if _, m.hasNonce = h["nonce"]; m.hasNonce {
		if err := stringMember(h, "nonce", &m.nonce); err != nil {
			return nil, err
		}
		// RFC 8555 §6.5.2: such a one was never given out, and another will not help.
		if _, err := base64.RawURLEncoding.DecodeString(m.nonce); err != nil {
			return nil, malformed("member \"nonce\" is not base64url without padding")
		}
	}
	jwk, hasKey := h["jwk"]
	_, hasID := h["kid"]
	switch {
	case hasKey && hasID:
		return nil, malformed(`the JWS has both "jwk" and "kid"`)
	case hasID:
		err = stringMember(h, "kid", &m.kid)
	case hasKey:
		m.key, err = parseKey(jwk)
		if err == nil {
			err = checkAlgorithm(m.alg, m.key.Key)
		}
	default:
		return nil, malformed(`the JWS has neither "jwk" nor "kid"`)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// verify checks the signature and returns the payload.
func (m *message) verify(key *jose.JSONWebKey) ([]byte, error) {
	if err := checkAlgorithm(m.alg, key.Key); err != nil {
		return nil, err
	}
	if !m.signedBy(key.Key) {
		return nil, wrongSignature(signatureHint(m))
	}
	return m.payload, nil
}

func wrongSignature(hint string) *Problem {
	return malformed("the JWS's signature is not right" + hint)
}

// signedBy verifies the signature as RFC 7518 §3.3 and §3.4 and RFC 8037 §3.1 have
// it. The algorithm goes with the key.
func (m *message) signedBy(key crypto.PublicKey) bool {
	switch k := key.(type) {
	case ed25519.PublicKey:
		return ed25519.Verify(k, []byte(m.signed), m.sig)
	case *rsa.PublicKey:
		sum := sha256.Sum256([]byte(m.signed))
		return rsa.VerifyPKCS1v15(k, crypto.SHA256, sum[:], m.sig) == nil
	case *ecdsa.PublicKey:
		n := (k.Curve.Params().BitSize + 7) / 8
		if len(m.sig) != 2*n {
			return false
		}
		h := ecdsaHashes[m.alg].New()
		h.Write([]byte(m.signed))
		return ecdsa.Verify(k, h.Sum(nil), new(big.Int).SetBytes(m.sig[:n]), new(big.Int).SetBytes(m.sig[n:]))
	}
	return false
}

var ecdsaHashes = map[jose.SignatureAlgorithm]crypto.Hash{jose.ES256: crypto.SHA256, jose.ES384: crypto.SHA384, jose.ES512: crypto.SHA512}

// signatureHint explains the usual fault of hand-made ECDSA signatures.
func signatureHint(m *message) string {
	// RFC 7518 §3.4: R and S at full length, one after the other, not DER.
	want := map[jose.SignatureAlgorithm]int{jose.ES256: 64, jose.ES384: 96, jose.ES512: 132}[m.alg]
	if want != 0 && len(m.sig) != want {
		return ": an " + string(m.alg) + " signature is R and S at full length, leading zeros included (RFC 7518 §3.4)"
	}
	return ""
}

// decoys are an account for each algorithm, of nobody: what is said to be
// signed by an account that does not exist is verified all the same.
type decoys map[jose.SignatureAlgorithm]Account

func newDecoys() (decoys, error) {
	keys := map[jose.SignatureAlgorithm]crypto.PublicKey{jose.RS256: decoyRSA()}
	for alg, curve := range map[jose.SignatureAlgorithm]elliptic.Curve{jose.ES256: elliptic.P256(), jose.ES384: elliptic.P384(), jose.ES512: elliptic.P521()} {
		k, err := ecdsa.GenerateKey(curve, rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("making a decoy for %s: %w", alg, err)
		}
		keys[alg] = &k.PublicKey
	}
	ed, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("making a decoy for EdDSA: %w", err)
	}
	keys[jose.EdDSA] = ed
	d := decoys{}
	for alg, k := range keys {
		jwk, err := canonicalKey(&jose.JSONWebKey{Key: k})
		if err != nil {
			return nil, fmt.Errorf("making a decoy for %s: %w", alg, err)
		}
		d[alg] = Account{ID: "nobody", Key: jwk, Thumbprint: "nobody's " + string(alg)}
	}
	return d, nil
}

// decoyRSA is a modulus of the right size, which is all that verifying takes.
// Its factors are known to nobody, and it takes no time to find.
func decoyRSA() *rsa.PublicKey {
	n := make([]byte, minRSABits/8)
	_, _ = rand.Read(n) // never fails
	n[0] |= 0x80
	n[len(n)-1] |= 1
	return &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: 65537}
}

// parseKey reads a public JWK. Only what makes up the key counts; the rest, an
// x5c chain say, is left aside.
func parseKey(b []byte) (*jose.JSONWebKey, error) {
	m, err := members(b)
	if err != nil {
		return nil, malformed("the JWK is not a JSON object: " + err.Error())
	}
	for _, private := range []string{"d", "p", "q", "dp", "dq", "qi", "oth", "k", "priv"} {
		if _, ok := m[private]; ok {
			return nil, malformed("the JWK holds private or symmetric key material; consider that key lost")
		}
	}
	public := make(map[string]json.RawMessage, 4)
	for _, name := range []string{"kty", "crv", "x", "y", "n", "e"} {
		if v, ok := m[name]; ok {
			public[name] = v
		}
	}
	b, err = json.Marshal(public)
	if err != nil {
		return nil, malformed("the JWK cannot be read")
	}
	var k jose.JSONWebKey
	if err := json.Unmarshal(b, &k); err != nil {
		return nil, &Problem{Type: BadPublicKey, Detail: "the JWK is not a key of a supported kind: RSA of 2048 to 4096 bits, P-256, P-384, P-521 or Ed25519", Err: err}
	}
	if !k.Valid() || !k.IsPublic() {
		return nil, &Problem{Type: BadPublicKey, Detail: "the JWK is not a valid public key"}
	}
	if pub, ok := k.Key.(*rsa.PublicKey); ok && pub.N.BitLen() < minRSABits {
		return nil, &Problem{Type: BadPublicKey, Detail: "an RSA key needs at least 2048 bits"}
	}
	return &k, nil
}

// checkAlgorithm says whether alg goes with the key: RFC 7518 §3.4 ties each
// ES algorithm to one curve.
func checkAlgorithm(alg jose.SignatureAlgorithm, key crypto.PublicKey) error {
	var want jose.SignatureAlgorithm
	switch k := key.(type) {
	case *rsa.PublicKey:
		want = jose.RS256
	case ed25519.PublicKey:
		want = jose.EdDSA
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			want = jose.ES256
		case elliptic.P384():
			want = jose.ES384
		case elliptic.P521():
			want = jose.ES512
		}
	}
	if want == "" {
		return &Problem{Type: BadPublicKey, Detail: "keys of this kind are not supported"}
	}
	if alg != want {
		return badAlgorithm("this key signs with " + string(want) + ", not " + string(alg))
	}
	return nil
}

func badAlgorithm(detail string) *Problem {
	p := &Problem{Type: BadSignatureAlgorithm, Detail: detail}
	for _, a := range algorithms {
		p.Algorithms = append(p.Algorithms, string(a))
	}
	return p
}

// thumbprint is the JWK thumbprint (RFC 7638) with SHA-256, in base64url.
func thumbprint(k *jose.JSONWebKey) (string, error) {
	t, err := k.Thumbprint(crypto.SHA256)
	if err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(t), nil
}

func stringMember(m map[string]json.RawMessage, name string, to *string) error {
	v, ok := m[name]
	if !ok {
		return malformed("member \"" + name + "\" is missing")
	}
	if len(v) < 2 || v[0] != '"' {
		return malformed("member \"" + name + "\" is not a string")
	}
	*to = textOf(v, isPlain(v))
	return nil
}
