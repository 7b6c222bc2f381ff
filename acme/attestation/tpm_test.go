package attestation_test

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
	"github.com/google/go-tpm/tpm2/transport/linuxudstpm"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/acme/attestation"
	"github.com/secsy-pki/secsy-pki/ca"
)

// startTPM runs a software TPM 2.0 for the length of the test.
func startTPM(t *testing.T) transport.TPM {
	t.Helper()
	// Not t.TempDir: the path of a socket has to be short.
	dir, err := os.MkdirTemp("", "tpm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	server := filepath.Join(dir, "server")
	cmd := exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+dir, "--server", "type=unixio,path="+server,
		"--ctrl", "type=unixio,path="+filepath.Join(dir, "ctrl"), "--flags", "not-need-init,startup-clear")
	out, err := os.CreateTemp(dir, "log")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting a software TPM (Debian package swtpm): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = out.Close()
	})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		tpm, err := linuxudstpm.Open(server)
		if err == nil { // the socket is there; does anybody listen?
			_, err = tpm2.GetCapability{Capability: tpm2.TPMCapTPMProperties, Property: uint32(tpm2.TPMPTFamilyIndicator), PropertyCount: 1}.Execute(tpm)
		}
		if err == nil {
			t.Cleanup(func() { _ = tpm.Close() })
			return tpm
		}
		if time.Now().After(end) {
			log, _ := os.ReadFile(out.Name())
			t.Fatalf("the software TPM does not answer: %v\n%s", err, log)
		}
	}
}

// An attestor is a TPM with an attestation key that a maker certifies.
type attestor struct {
	t     *testing.T
	tpm   transport.TPM
	maker *maker
	ak    tpm2.AuthHandle
	akPub crypto.PublicKey
}

func signing(restricted bool) tpm2.TPMTPublic {
	scheme := tpm2.TPMTECCScheme{Scheme: tpm2.TPMAlgNull}
	if restricted {
		scheme = tpm2.TPMTECCScheme{
			Scheme: tpm2.TPMAlgECDSA, Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSigSchemeECDSA{HashAlg: tpm2.TPMAlgSHA256}),
		}
	}
	return tpm2.TPMTPublic{
		Type: tpm2.TPMAlgECC, NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{
			FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, SignEncrypt: true, Restricted: restricted,
		},
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{CurveID: tpm2.TPMECCNistP256, Scheme: scheme}),
	}
}

// create makes a key right below the owner's seed.
func (a *attestor) create(template tpm2.TPMTPublic) (tpm2.AuthHandle, *tpm2.TPMTPublic) {
	a.t.Helper()
	// The same template has the same key.
	rsp, err := tpm2.CreatePrimary{PrimaryHandle: tpm2.TPMRHOwner, InPublic: tpm2.New2B(template)}.Execute(a.tpm)
	if err != nil {
		a.t.Fatal(err)
	}
	pub, err := rsp.OutPublic.Contents()
	if err != nil {
		a.t.Fatal(err)
	}
	return tpm2.AuthHandle{Handle: rsp.ObjectHandle, Name: rsp.Name, Auth: tpm2.PasswordAuth(nil)}, pub
}

func newAttestor(t *testing.T) *attestor {
	t.Helper()
	a := &attestor{t: t, tpm: startTPM(t), maker: newMaker(t)}
	var pub *tpm2.TPMTPublic
	a.ak, pub = a.create(signing(true))
	var err error
	if a.akPub, err = tpm2.Pub(*pub); err != nil {
		t.Fatal(err)
	}
	return a
}

// certify has the TPM certify a key of its own for the challenge.
func (a *attestor) certify(key tpm2.AuthHandle, pub *tpm2.TPMTPublic, about string) map[string]any {
	a.t.Helper()
	sum := sha256.Sum256([]byte(about))
	rsp, err := tpm2.Certify{
		ObjectHandle: key, SignHandle: a.ak, QualifyingData: tpm2.TPM2BData{Buffer: sum[:]},
		InScheme: tpm2.TPMTSigScheme{
			Scheme: tpm2.TPMAlgECDSA, Details: tpm2.NewTPMUSigScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSchemeHash{HashAlg: tpm2.TPMAlgSHA256}),
		},
	}.Execute(a.tpm)
	if err != nil {
		a.t.Fatal(err)
	}
	return map[string]any{
		"ver": "2.0", "alg": -7, "sig": tpm2.Marshal(rsp.Signature), "certInfo": rsp.CertifyInfo.Bytes(), "pubArea": tpm2.Marshal(*pub),
		"x5c": [][]byte{a.akCert(func(*x509.Certificate) {}).Raw, a.maker.sub.Raw},
	}
}

// akCert certifies the attestation key as WebAuthn §8.3.1 wants it.
func (a *attestor) akCert(change func(*x509.Certificate)) *x509.Certificate {
	return a.maker.leaf(a.akPub, func(c *x509.Certificate) {
		c.Subject = pkix.Name{}
		c.UnknownExtKeyUsage = []asn1.ObjectIdentifier{{2, 23, 133, 8, 3}}
		c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Critical: true, Value: akAltNames(a.t, true)}}
		change(c)
	})
}

// akAltNames names a TPM, and the device that it is in.
func akAltNames(t *testing.T, model bool) []byte {
	t.Helper()
	type attribute struct {
		ID    asn1.ObjectIdentifier
		Value string `asn1:"utf8"`
	}
	rdn := func(oid asn1.ObjectIdentifier, v string) []byte {
		b, err := asn1.MarshalWithParams([]attribute{{oid, v}}, "set")
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	rdns := append(rdn(asn1.ObjectIdentifier{2, 23, 133, 2, 1}, "id:49424D00"), rdn(asn1.ObjectIdentifier{2, 23, 133, 2, 3}, "id:20190511")...)
	if model {
		rdns = append(rdns, rdn(asn1.ObjectIdentifier{2, 23, 133, 2, 2}, "swtpm")...)
	}
	wrap := func(class, tag int, content []byte) []byte {
		b, err := asn1.Marshal(asn1.RawValue{Class: class, Tag: tag, IsCompound: true, Bytes: content})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	other := func(oid asn1.ObjectIdentifier, content any) []byte {
		id, err := asn1.Marshal(oid)
		if err != nil {
			t.Fatal(err)
		}
		v, err := asn1.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		return wrap(asn1.ClassContextSpecific, 0, append(id, wrap(asn1.ClassContextSpecific, 0, v)...))
	}
	type permanent struct {
		Value    string `asn1:"utf8"`
		Assigner asn1.ObjectIdentifier
	}
	type module struct {
		Type   asn1.ObjectIdentifier
		Serial []byte
	}
	names := wrap(asn1.ClassContextSpecific, 4, wrap(asn1.ClassUniversal, asn1.TagSequence, rdns))
	names = append(names, other(asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 8, 3}, permanent{"SN-4711", asn1.ObjectIdentifier{1, 2, 3}})...)
	names = append(names, other(asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 8, 4}, module{asn1.ObjectIdentifier{1, 2, 9}, []byte("HW-1")})...)
	return wrap(asn1.ClassUniversal, asn1.TagSequence, names)
}

// A TPM of libtpms attests a key of its own; each thing that is changed after
// that is noticed.
func TestTPMAttestsItsKeys(t *testing.T) {
	t.Parallel()
	a := newAttestor(t)
	v := a.maker.verifier(attestation.TPM)
	key, pub := a.create(signing(false))
	public, err := tpm2.Pub(*pub)
	if err != nil {
		t.Fatal(err)
	}
	q := func(s map[string]any) acme.Validation { return question("SN-4711/1.2.3", answer(t, "tpm", s)) }
	good := func() map[string]any { return a.certify(key, pub, keyAuth) }
	believed(t, v, q(good()), public)
	hw := q(good())
	hw.Identifier = ca.Identifier{Type: ca.HardwareModule, Value: "HW-1/1.2.9"}
	believed(t, v, hw, public)

	refused(t, v, question("SN-4711", answer(t, "tpm", good())), "not that of the device") // another assigner, or none, is another device
	refused(t, v, q(a.certify(key, pub, token)), "not made for this challenge")
	otherTemplate := signing(false)
	otherTemplate.ObjectAttributes.NoDA = true
	_, otherPub := a.create(otherTemplate)
	with := func(name string, value any) map[string]any {
		s := good()
		s[name] = value
		return s
	}
	refused(t, v, q(with("pubArea", tpm2.Marshal(*otherPub))), "certifies another key")
	refused(t, v, q(with("pubArea", append(tpm2.Marshal(*pub), 0))), "pubArea is not what a TPM writes")
	refused(t, v, q(with("pubArea", []byte{})), "pubArea is not what a TPM writes")
	refused(t, v, q(with("alg", -257)), "sig is not the attestation key's signature")
	refused(t, v, q(with("alg", -65535)), "alg -65535 is not one of")
	refused(t, v, q(with("ver", "1.2")), "ver is not")
	refused(t, v, q(with("sig", a.certify(key, pub, token)["sig"])), "sig is not the attestation key's")
	s := good()
	info, _ := s["certInfo"].([]byte)
	info[len(info)-1-36] ^= 1 // the end of the name; a qualified name follows
	refused(t, v, q(s), "certifies another key")
	s = good()
	info, _ = s["certInfo"].([]byte)
	info[0] ^= 1
	refused(t, v, q(s), "certInfo was not made by a TPM")

	for says, change := range map[string]func(*x509.Certificate){
		"empty subject":       func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: "ak"} },
		"tcg-kp-AIKCert":      func(c *x509.Certificate) { c.UnknownExtKeyUsage = nil },
		"not an authority's":  func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign },
		"no subjectAltName":   func(c *x509.Certificate) { c.ExtraExtensions = nil },
		"manufacturer, model": func(c *x509.Certificate) { c.ExtraExtensions[0].Value = akAltNames(t, false) },
		"malformed":           func(c *x509.Certificate) { c.ExtraExtensions[0].Value = []byte{0x30, 2, 0xa0, 0} },
		"does not lead to":    func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) },
	} {
		refused(t, v, q(with("x5c", [][]byte{a.akCert(change).Raw, a.maker.sub.Raw})), says)
	}
}

// A key that may go out of the TPM may be somebody's file as well.
func TestAKeyThatCanLeaveTheTPMIsRefused(t *testing.T) {
	t.Parallel()
	a := newAttestor(t)
	template := signing(false)
	template.ObjectAttributes.FixedTPM, template.ObjectAttributes.FixedParent = false, false
	key, pub := a.create(template)
	refused(t, a.maker.verifier(attestation.TPM), question("SN-4711/1.2.3", answer(t, "tpm", a.certify(key, pub, keyAuth))), "can leave it")
}
