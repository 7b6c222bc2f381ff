package pkcs11pool

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"log/slog"
	"maps"
	"math/big"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/pkcs11"
)

// A shelf is a token in memory that has objects, as strange as a test wants them.
type shelf struct {
	cryptoki // nil: what is not here is called by no test

	info       pkcs11.TokenInfo
	state      uint // of all sessions
	mechanisms map[uint]pkcs11.MechanismInfo
	fails      map[string]error // by the name of the call
	refuse     func(private []*pkcs11.Attribute) error
	made       func(public, private values) // changes what was made
	calls      map[string]int

	objects   []values // a handle is an index and 1
	searching bool
	found     []pkcs11.ObjectHandle
}

type values map[uint][]byte

func newShelf() *shelf {
	all := pkcs11.MechanismInfo{MinKeySize: 1, MaxKeySize: 8192}
	s := &shelf{fails: map[string]error{}, calls: map[string]int{}, mechanisms: map[uint]pkcs11.MechanismInfo{}}
	for m := range mechanismNames {
		s.mechanisms[m] = all
	}
	return s
}

func (s *shelf) conn() *conn { return &conn{cryptoki: s, token: &token{name: "shelf"}} }

func (s *shelf) called(name string) error {
	s.calls[name]++
	return s.fails[name]
}

func (s *shelf) put(v values) pkcs11.ObjectHandle {
	s.objects = append(s.objects, v)
	return pkcs11.ObjectHandle(len(s.objects))
}

func (s *shelf) GetTokenInfo(uint) (pkcs11.TokenInfo, error) {
	return s.info, s.called("GetTokenInfo")
}

func (s *shelf) GetMechanismList(uint) (list []*pkcs11.Mechanism, err error) {
	for m := range s.mechanisms {
		list = append(list, pkcs11.NewMechanism(m, nil))
	}
	return list, s.called("GetMechanismList")
}

func (s *shelf) GetMechanismInfo(_ uint, m []*pkcs11.Mechanism) (pkcs11.MechanismInfo, error) {
	return s.mechanisms[m[0].Mechanism], s.called("GetMechanismInfo")
}

func (s *shelf) GetSessionInfo(pkcs11.SessionHandle) (pkcs11.SessionInfo, error) {
	return pkcs11.SessionInfo{State: s.state}, s.called("GetSessionInfo")
}

func (s *shelf) FindObjectsInit(_ pkcs11.SessionHandle, template []*pkcs11.Attribute) error {
	if err := s.called("FindObjectsInit"); err != nil {
		return err
	}
	if s.searching {
		return pkcs11.Error(pkcs11.CKR_OPERATION_ACTIVE)
	}
	s.searching, s.found = true, nil
	for i, o := range s.objects {
		if o != nil && !slices.ContainsFunc(template, func(a *pkcs11.Attribute) bool { return !bytes.Equal(o[a.Type], a.Value) }) {
			s.found = append(s.found, pkcs11.ObjectHandle(i+1))
		}
	}
	return nil
}

func (s *shelf) FindObjects(_ pkcs11.SessionHandle, limit int) ([]pkcs11.ObjectHandle, bool, error) {
	if err := s.called("FindObjects"); err != nil {
		return nil, false, err
	}
	some := s.found[:min(limit, len(s.found), 10)] // a token may return fewer than it has
	s.found = s.found[len(some):]
	return some, false, nil
}

func (s *shelf) FindObjectsFinal(pkcs11.SessionHandle) error {
	s.searching = false
	return s.called("FindObjectsFinal")
}

func (s *shelf) GetAttributeValue(_ pkcs11.SessionHandle, o pkcs11.ObjectHandle, ask []*pkcs11.Attribute) ([]*pkcs11.Attribute, error) {
	if err := s.called("GetAttributeValue"); err != nil {
		return nil, err
	}
	if o < 1 || int(o) > len(s.objects) || s.objects[o-1] == nil {
		return nil, pkcs11.Error(pkcs11.CKR_OBJECT_HANDLE_INVALID)
	}
	got := make([]*pkcs11.Attribute, len(ask))
	for i, a := range ask {
		v, ok := s.objects[o-1][a.Type]
		if !ok {
			return nil, pkcs11.Error(pkcs11.CKR_ATTRIBUTE_TYPE_INVALID)
		}
		got[i] = &pkcs11.Attribute{Type: a.Type, Value: v}
	}
	return got, nil
}

func (s *shelf) DestroyObject(_ pkcs11.SessionHandle, o pkcs11.ObjectHandle) error {
	if err := s.called("DestroyObject"); err != nil {
		return err
	}
	s.objects[o-1] = nil
	return nil
}

func (s *shelf) GenerateKeyPair(_ pkcs11.SessionHandle, m []*pkcs11.Mechanism, public, private []*pkcs11.Attribute) (pub, priv pkcs11.ObjectHandle, err error) {
	if err := s.called("GenerateKeyPair"); err != nil {
		return 0, 0, err
	}
	if s.refuse != nil {
		if err := s.refuse(private); err != nil {
			return 0, 0, err
		}
	}
	v, w := values{}, values{}
	maps.Copy(v, publicValues(newPrivate(elliptic.P256()).Public()))
	for _, a := range public {
		v[a.Type] = a.Value
	}
	w[pkcs11.CKA_CLASS], w[pkcs11.CKA_KEY_TYPE] = ulong(pkcs11.CKO_PRIVATE_KEY), v[pkcs11.CKA_KEY_TYPE]
	w[pkcs11.CKA_NEVER_EXTRACTABLE], w[pkcs11.CKA_DECRYPT] = bit(true), bit(false)
	for _, a := range private {
		w[a.Type] = a.Value
	}
	if s.made != nil {
		s.made(v, w)
	}
	return s.put(v), s.put(w), nil
}

func ulong(n uint) []byte { return pkcs11.NewAttribute(0, n).Value }
func bit(b bool) []byte   { return pkcs11.NewAttribute(0, b).Value }

func newPrivate(c elliptic.Curve) *ecdsa.PrivateKey {
	k, err := ecdsa.GenerateKey(c, rand.Reader)
	if err != nil {
		panic(err)
	}
	return k
}

// rsaKey is made once: it takes long.
var rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return k
})

func paramsOf(c elliptic.Curve) []byte {
	return map[elliptic.Curve][]byte{elliptic.P256(): paramsP256, elliptic.P384(): paramsP384, elliptic.P521(): paramsP521}[c]
}

func octets(b []byte) []byte {
	der, err := asn1.Marshal(b)
	if err != nil {
		panic(err)
	}
	return der
}

func pointOf(pub *ecdsa.PublicKey) []byte {
	b, err := pub.Bytes()
	if err != nil {
		panic(err)
	}
	return b
}

// publicValues are those of a public key object, and what of them a token may
// show of the private key.
func publicValues(pub crypto.PublicKey) values {
	v := values{
		pkcs11.CKA_CLASS: ulong(pkcs11.CKO_PUBLIC_KEY), pkcs11.CKA_TOKEN: bit(true), pkcs11.CKA_KEY_TYPE: ulong(kindOf(pub)),
	}
	switch pub := pub.(type) {
	case *rsa.PublicKey:
		v[pkcs11.CKA_MODULUS], v[pkcs11.CKA_PUBLIC_EXPONENT] = pub.N.Bytes(), big.NewInt(int64(pub.E)).Bytes()
	case *ecdsa.PublicKey:
		v[pkcs11.CKA_EC_PARAMS], v[pkcs11.CKA_EC_POINT] = paramsOf(pub.Curve), octets(pointOf(pub))
	case ed25519.PublicKey:
		v[pkcs11.CKA_EC_PARAMS], v[pkcs11.CKA_EC_POINT] = paramsEd25519[0], octets(pub)
	}
	return v
}

// privateValues are those of a private key that shows nothing of its public key.
func privateValues(kind uint, label string, id []byte) values {
	return values{
		pkcs11.CKA_CLASS: ulong(pkcs11.CKO_PRIVATE_KEY), pkcs11.CKA_TOKEN: bit(true), pkcs11.CKA_KEY_TYPE: ulong(kind),
		pkcs11.CKA_LABEL: []byte(label), pkcs11.CKA_ID: id, pkcs11.CKA_SIGN: bit(true), pkcs11.CKA_DECRYPT: bit(false),
	}
}

func (v values) with(more values) values {
	v = maps.Clone(v)
	maps.Copy(v, more)
	return v
}

func newCertificate(tb testing.TB, k crypto.Signer, name string) *x509.Certificate {
	tb.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(300), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		tb.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	return cert
}

// loggingPool has no tokens, and writes what it says to the buffer.
func loggingPool() (*Pool, *bytes.Buffer) {
	b := &bytes.Buffer{}
	return &Pool{log: slog.New(slog.NewTextHandler(b, nil))}, b
}
