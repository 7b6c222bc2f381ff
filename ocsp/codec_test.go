package ocsp

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
	"encoding/hex"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
	xocsp "golang.org/x/crypto/ocsp"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

func addNonce(b *cryptobyte.Builder, nonce []byte) {
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1ObjectIdentifier(oidNonce)
		b.AddASN1(casn1.OCTET_STRING, func(b *cryptobyte.Builder) { b.AddASN1OctetString(nonce) })
	})
}

func idsOf(t testing.TB, queries ...[]byte) []certID {
	t.Helper()
	var out []certID
	for _, q := range queries {
		r, err := parseRequest(q)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r.certIDs...)
	}
	return out
}

// encodeRequest writes a canonical request. A CertID's serial is taken from
// number, everything else from raw. A nonce of length 0 is one, nil is none.
func encodeRequest(t testing.TB, ids []certID, nonce []byte) []byte {
	t.Helper()
	var b cryptobyte.Builder
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
				for _, id := range ids {
					b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) { addCertID(t, b, id) })
				}
			})
			if nonce != nil {
				b.AddASN1(explicit(2), func(b *cryptobyte.Builder) {
					b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) { addNonce(b, nonce) })
				})
			}
		})
	})
	der, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func addCertID(t testing.TB, b *cryptobyte.Builder, id certID) {
	raw := cryptobyte.String(id.raw)
	var seq, alg cryptobyte.String
	if !raw.ReadASN1(&seq, casn1.SEQUENCE) || !seq.ReadASN1Element(&alg, casn1.SEQUENCE) {
		t.Fatal("CertID without algorithm")
	}
	b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
		b.AddBytes(alg)
		b.AddASN1OctetString(id.nameHash)
		b.AddASN1OctetString(id.keyHash)
		b.AddASN1(casn1.INTEGER, func(b *cryptobyte.Builder) { b.AddBytes(id.number) })
	})
}

func nonceExtension(t testing.TB, nonce []byte) []byte {
	t.Helper()
	var b cryptobyte.Builder
	addNonce(&b, nonce)
	der, err := b.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// tlv wraps the concatenation of parts.
func tlv(tag byte, parts ...[]byte) []byte {
	body := bytes.Join(parts, nil)
	switch {
	case len(body) < 0x80:
		return append([]byte{tag, byte(len(body))}, body...)
	case len(body) < 0x100:
		return append([]byte{tag, 0x81, byte(len(body))}, body...)
	}
	return append([]byte{tag, 0x82, byte(len(body) >> 8), byte(len(body))}, body...)
}

var (
	sha1Alg = []byte{0x30, 9, 6, 5, 0x2b, 0x0e, 3, 2, 0x1a, 5, 0}
	hash20  = tlv(4, bytes.Repeat([]byte{7}, 20))
	anID    = tlv(0x30, sha1Alg, hash20, hash20, []byte{2, 1, 5})
	aList   = tlv(0x30, tlv(0x30, anID))
	aNonce  = tlv(0x30, []byte{6, 9, 0x2b, 6, 1, 5, 5, 7, 0x30, 1, 2}, tlv(4, tlv(4, []byte("0123456789abcdef"))))
)

func ext(oid byte, critical bool) []byte {
	parts := [][]byte{{6, 9, 0x2b, 6, 1, 5, 5, 7, 0x30, 1, oid}}
	if critical {
		parts = append(parts, []byte{1, 1, 0xff})
	}
	return tlv(0x30, append(parts, []byte{4, 2, 5, 0})...)
}

func TestRequestsInTheFieldAreRead(t *testing.T) {
	t.Parallel()
	sig := tlv(0xa0, tlv(0x30, sha1Alg, []byte{3, 2, 0, 1}))
	for name, der := range map[string][]byte{
		"plain":                      tlv(0x30, tlv(0x30, aList)),
		"version said":               tlv(0x30, tlv(0x30, []byte{0xa0, 3, 2, 1, 0}, aList)),
		"requestorName, unsigned":    tlv(0x30, tlv(0x30, tlv(0xa1, tlv(0xa4, tlv(0x30))), aList)),
		"signed":                     tlv(0x30, tlv(0x30, tlv(0xa1, tlv(0xa4, tlv(0x30))), aList), sig),
		"unknown extension":          tlv(0x30, tlv(0x30, aList, tlv(0xa2, tlv(0x30, ext(99, false))))),
		"acceptable responses":       tlv(0x30, tlv(0x30, aList, tlv(0xa2, tlv(0x30, ext(4, true), ext(8, true))))),
		"single extension":           tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, anID, tlv(0xa0, tlv(0x30, ext(7, false))))))),
		"hash without NULL":          tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, []byte{0x30, 7, 6, 5, 0x2b, 0x0e, 3, 2, 0x1a}, hash20, hash20, []byte{2, 1, 5}))))),
		"negative serial":            tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, sha1Alg, hash20, hash20, []byte{2, 1, 0x85}))))),
		"ten CertIDs":                tlv(0x30, tlv(0x30, tlv(0x30, bytes.Repeat(tlv(0x30, anID), 10)))),
		"nonce after another":        tlv(0x30, tlv(0x30, aList, tlv(0xa2, tlv(0x30, ext(99, false), aNonce)))),
		"critical said to be FALSE":  tlv(0x30, tlv(0x30, aList, tlv(0xa2, tlv(0x30, tlv(0x30, []byte{6, 1, 0x2a, 1, 1, 0, 4, 0}))))),
		"an empty list of extension": tlv(0x30, tlv(0x30, aList, tlv(0xa2, tlv(0x30)))),
	} {
		if _, err := parseRequest(der); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMalformedRequestsAreNamedSo(t *testing.T) {
	t.Parallel()
	nonce := func(value ...[]byte) []byte {
		return tlv(0x30, tlv(0x30, aList, tlv(0xa2, tlv(0x30, tlv(0x30, []byte{6, 9, 0x2b, 6, 1, 5, 5, 7, 0x30, 1, 2}, tlv(4, value...))))))
	}
	for name, der := range map[string][]byte{
		"nothing":                   {},
		"trailing octet":            append(tlv(0x30, tlv(0x30, aList)), 0),
		"another version":           tlv(0x30, tlv(0x30, []byte{0xa0, 3, 2, 1, 1}, aList)),
		"no CertID":                 tlv(0x30, tlv(0x30, tlv(0x30))),
		"eleven CertIDs":            tlv(0x30, tlv(0x30, tlv(0x30, bytes.Repeat(tlv(0x30, anID), 11)))),
		"unknown critical":          tlv(0x30, tlv(0x30, aList, tlv(0xa2, tlv(0x30, ext(99, true))))),
		"unknown critical, single":  tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, anID, tlv(0xa0, tlv(0x30, ext(99, true))))))),
		"two nonces":                tlv(0x30, tlv(0x30, aList, tlv(0xa2, tlv(0x30, aNonce, aNonce)))),
		"nonce without contents":    nonce(),
		"nonce of no octets":        nonce([]byte{4, 0}),
		"nonce not an OCTET STRING": nonce([]byte{5, 0}),
		"serial not minimal":        tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, sha1Alg, hash20, hash20, []byte{2, 2, 0, 5}))))),
		"serial of no octets":       tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, sha1Alg, hash20, hash20, []byte{2, 0}))))),
		"hash with parameters":      tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, []byte{0x30, 9, 6, 5, 0x2b, 0x0e, 3, 2, 0x1a, 4, 0}, hash20, hash20, []byte{2, 1, 5}))))),
		"indefinite length":         append(append([]byte{0x30, 0x80}, tlv(0x30, aList)...), 0, 0),
		"too long":                  tlv(0x30, tlv(0x30, aList, tlv(0xa2, tlv(0x30, tlv(0x30, []byte{6, 1, 0x2a}, tlv(4, make([]byte, maxRequest))))))),
	} {
		if _, err := parseRequest(der); !errors.Is(err, malformedRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSerialsThatNobodyCanHaveAreToldApart(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]ca.Serial{
		"05": "05", "0085": "85", "7f00": "7f00", "00": "", "85": "",
		"7fffffffffffffffffffffffffffffffffffffff": "7fffffffffffffffffffffffffffffffffffffff", "7fffffffffffffffffffffffffffffffffffffffff": "",
	} {
		got, ok := certID{number: unhex(t, in)}.serial()
		if got != want || ok != (want != "") {
			t.Errorf("%s became %q, %v", in, got, ok)
		}
	}
}

// Two parsers must agree on what a request of x/crypto's making says.
func TestRequestReadsAsOthersRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.leaf(0, 0x1234567890, Status{})
	for _, h := range []crypto.Hash{crypto.SHA1, crypto.SHA256, crypto.SHA384, crypto.SHA512} {
		der := w.query(0, c, h)
		theirs, err := xocsp.ParseRequest(der)
		if err != nil {
			t.Fatal(err)
		}
		ours := idsOf(t, der)[0]
		serial, _ := ours.serial()
		if ours.hash != theirs.HashAlgorithm || !bytes.Equal(ours.nameHash, theirs.IssuerNameHash) ||
			!bytes.Equal(ours.keyHash, theirs.IssuerKeyHash) || serial != ca.SerialOf(theirs.SerialNumber) {
			t.Errorf("%v: %+v, they read %+v", h, ours, theirs)
		}
	}
}

func TestEveryKindOfKeySigns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.leaf(0, 5, Status{State: ca.Issued})
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, _ := ed25519.GenerateKey(rand.Reader)
	p384, err := keys.NewPrivateKey(keys.ECDSAP384)
	if err != nil {
		t.Fatal(err)
	}
	p521, err := keys.NewPrivateKey(keys.ECDSAP521)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []crypto.Signer{newKey(t), p384, p521, rsaKey, edKey} {
		cert := certify(t, &x509.Certificate{
			SerialNumber: big.NewInt(9), Subject: pkix.Name{CommonName: "responder"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageOCSPSigning},
		}, w.issuers[0].Cert, k.Public(), w.caKeys[w.issuers[0].ID])
		d, err := newDelegate(cert)
		if err != nil {
			t.Fatal(err)
		}
		d.key = keys.FromSigner(k)
		now := time.Now().UTC().Truncate(time.Second)
		tbs, sig, err := d.sign(t.Context(), &response{producedAt: now, singles: []single{{
			certID: idsOf(t, w.query(0, c, crypto.SHA1))[0].raw, thisUpdate: now, nextUpdate: now.Add(time.Hour),
		}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := d.check(now, tbs, sig); err != nil {
			t.Fatal(err)
		}
		body := d.envelope(tbs, sig)
		var outer struct {
			Status asn1.Enumerated
			Bytes  struct {
				Type  asn1.ObjectIdentifier
				Basic []byte
			} `asn1:"explicit,tag:0"`
		}
		if rest, err := asn1.Unmarshal(body, &outer); err != nil || len(rest) > 0 || !outer.Bytes.Type.Equal(oidBasic) {
			t.Errorf("%T: %v", k, err)
		}
		var basic struct {
			TBS   asn1.RawValue
			Alg   pkix.AlgorithmIdentifier
			Sig   asn1.BitString
			Certs []asn1.RawValue `asn1:"explicit,tag:0"`
		}
		if _, err := asn1.Unmarshal(outer.Bytes.Basic, &basic); err != nil {
			t.Fatal(err)
		}
		if err := cert.CheckSignature(d.scheme.algorithm, basic.TBS.FullBytes, basic.Sig.Bytes); err != nil || len(basic.Certs) != 1 {
			t.Errorf("%T: %v, %d certificates", k, err, len(basic.Certs))
		}
		if _, ed := k.(ed25519.PrivateKey); ed {
			continue // x/crypto/ocsp does not know it
		}
		if _, err := xocsp.ParseResponseForCert(body, c, w.issuers[0].Cert); err != nil {
			t.Errorf("%T: %v", k, err)
		}
	}
	p224, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := schemeOf(p224.Public()); err == nil {
		t.Error("P-224 has no scheme here")
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add(tlv(0x30, tlv(0x30, aList)))
	f.Add(tlv(0x30, tlv(0x30, []byte{0xa0, 3, 2, 1, 0}, tlv(0xa1, tlv(0xa4, tlv(0x30))), aList, tlv(0xa2, tlv(0x30, aNonce, ext(99, false))))))
	f.Add(tlv(0x30, tlv(0x30, tlv(0x30, tlv(0x30, anID, tlv(0xa0, tlv(0x30, ext(7, false)))), tlv(0x30, anID)))))
	f.Add(tlv(0x30, tlv(0x30, aList, tlv(0xa2, tlv(0x30, ext(99, true))))))
	f.Add([]byte{0x30, 3, 0x0a, 1, 1})
	f.Fuzz(func(t *testing.T, der []byte) {
		req, err := parseRequest(der)
		if err != nil {
			if !errors.Is(err, malformedRequest) {
				t.Fatalf("%v is no malformedRequest", err)
			}
			return
		}
		if n := len(req.certIDs); n < 1 || n > maxCertIDs || len(req.nonce) > maxNonce || req.nonce != nil && len(req.nonce) == 0 {
			t.Fatalf("out of bounds: %d CertIDs, nonce of %d", n, len(req.nonce))
		}
		// What was read, written canonically, reads the same and stays so.
		canonical := encodeRequest(t, req.certIDs, req.nonce)
		if len(canonical) > maxRequest {
			return
		}
		again, err := parseRequest(canonical)
		if err != nil {
			t.Fatalf("canonical form: %v", err)
		}
		if !bytes.Equal(encodeRequest(t, again.certIDs, again.nonce), canonical) {
			t.Fatal("canonical form is not stable")
		}
		for i, id := range req.certIDs {
			if !bytes.Equal(id.raw, again.certIDs[i].raw) {
				t.Fatalf("CertID %x became %x", id.raw, again.certIDs[i].raw)
			}
			id.serial()
		}
		// Where the other parser reads it too, it reads the same first CertID.
		theirs, err := xocsp.ParseRequest(der)
		if err != nil {
			return
		}
		if ours := req.certIDs[0]; ours.hash == theirs.HashAlgorithm && !bytes.Equal(ours.keyHash, theirs.IssuerKeyHash) {
			t.Fatal("the parsers disagree")
		}
	})
}

func FuzzDecodePath(f *testing.F) {
	for _, s := range []string{"/MFQw+/=", "//MFQw%2B%2F%3D", "%252B", "MFQw-_", "", "/", "%", "%zz", "M\nF", "M F"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		der, err := decodePath(path)
		if err != nil {
			if !errors.Is(err, malformedRequest) {
				t.Fatal(err)
			}
			return
		}
		if len(der) > len(path) {
			t.Fatal("longer than what it was decoded from")
		}
		if strings.HasPrefix(b64(der), "/") {
			return // taken for one more slash of the path; a request begins with "M"
		}
		again, err := decodePath(escapeAll(b64(der)))
		if err != nil || !bytes.Equal(again, der) {
			t.Fatalf("%x became %x, %v", der, again, err)
		}
	})
}

// TestTimesAreSpelledAsTheLayoutDoes: for appendTime does it by itself.
func TestTimesAreSpelledAsTheLayoutDoes(t *testing.T) {
	t.Parallel()
	for at := time.Date(0, 1, 1, 0, 0, 0, 0, time.UTC); at.Year() <= 9999; at = at.Add(3_301_747 * time.Second * 7) {
		want := "\x18\x0f" + at.Format("20060102150405Z")
		if got := string(appendTime(nil, at.In(time.FixedZone("east", 9*3600)))); got != want {
			t.Fatalf("%v is spelled %q", at, got)
		}
	}
}
