package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ThalesGroup/crypto11"
	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

const (
	plain        = "token-1" // has one key of each kind
	crowded      = "token-2" // has many objects besides
	fillers      = 200
	exponent     = 65537 // of RSA keys
	sharedModule = "shared"
	distance     = 2 * time.Millisecond // to a device behind a network
)

// A kind is a kind of key with what is signed with it.
type kind struct {
	name    string // and label of the key
	message []byte // what Sign gets
	opts    crypto.SignerOpts
	input   []byte // what C_Sign gets
	mech    uint
	making  uint
	params  *pkcs11.Attribute                                // of the public key
	public  func(attribute []byte) (crypto.PublicKey, error) // from CKA_EC_POINT or CKA_MODULUS
	verify  func(pub crypto.PublicKey, signature []byte) bool
}

const (
	mechEdDSA     = 0x1057 // of PKCS#11 3.0
	mechEdwardsOf = 0x1055
)

var (
	digest256 = sha256.Sum256([]byte("what is signed"))
	digest384 = sha512.Sum384([]byte("what is signed"))
	message   = make([]byte, 900) // Ed25519 has the device hash, and a certificate is about that long

	// RFC 8017 §9.2: what stands before a digest of SHA-256.
	digestInfo = []byte{0x30, 0x31, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01, 0x05, 0x00, 0x04, 0x20}
)

// kinds are what is measured. The first is what the result is about.
var kinds = []kind{
	{
		name: "P-256", message: digest256[:], opts: crypto.SHA256, input: digest256[:], mech: pkcs11.CKM_ECDSA,
		making: pkcs11.CKM_EC_KEY_PAIR_GEN, params: curve(asn1.ObjectIdentifier{1, 2, 840, 10045, 3, 1, 7}), public: publicECDSA(elliptic.P256()), verify: verifyECDSA(digest256[:]),
	},
	{
		name: "P-384", message: digest384[:], opts: crypto.SHA384, input: digest384[:], mech: pkcs11.CKM_ECDSA,
		making: pkcs11.CKM_EC_KEY_PAIR_GEN, params: curve(asn1.ObjectIdentifier{1, 3, 132, 0, 34}), public: publicECDSA(elliptic.P384()), verify: verifyECDSA(digest384[:]),
	},
	{
		name: "RSA-2048", message: digest256[:], opts: crypto.SHA256, input: append(digestInfo, digest256[:]...), mech: pkcs11.CKM_RSA_PKCS,
		making: pkcs11.CKM_RSA_PKCS_KEY_PAIR_GEN, params: pkcs11.NewAttribute(pkcs11.CKA_MODULUS_BITS, 2048),
		public: func(modulus []byte) (crypto.PublicKey, error) {
			return &rsa.PublicKey{N: new(big.Int).SetBytes(modulus), E: exponent}, nil
		},
		verify: func(pub crypto.PublicKey, signature []byte) bool {
			k, ok := pub.(*rsa.PublicKey)
			return ok && rsa.VerifyPKCS1v15(k, crypto.SHA256, digest256[:], signature) == nil
		},
	},
	{
		name: "Ed25519", message: message, opts: crypto.Hash(0), input: message, mech: mechEdDSA,
		making: mechEdwardsOf, params: pkcs11.NewAttribute(pkcs11.CKA_EC_PARAMS, append([]byte{0x13, 12}, "edwards25519"...)),
		public: func(point []byte) (crypto.PublicKey, error) {
			var raw []byte
			_, err := asn1.Unmarshal(point, &raw)
			return ed25519.PublicKey(raw), err
		},
		verify: func(pub crypto.PublicKey, signature []byte) bool {
			k, ok := pub.(ed25519.PublicKey)
			return ok && ed25519.Verify(k, message, signature)
		},
	},
}

func curve(oid asn1.ObjectIdentifier) *pkcs11.Attribute {
	der, err := asn1.Marshal(oid)
	if err != nil {
		panic(err) // of a constant
	}
	return pkcs11.NewAttribute(pkcs11.CKA_EC_PARAMS, der)
}

func publicECDSA(c elliptic.Curve) func([]byte) (crypto.PublicKey, error) {
	return func(point []byte) (crypto.PublicKey, error) {
		var raw []byte
		if _, err := asn1.Unmarshal(point, &raw); err != nil {
			return nil, err
		}
		return ecdsa.ParseUncompressedPublicKey(c, raw)
	}
}

// verifyECDSA takes both forms of a signature: that of X.509, and that of
// C_Sign, which bare calls return.
func verifyECDSA(digest []byte) func(crypto.PublicKey, []byte) bool {
	return func(pub crypto.PublicKey, signature []byte) bool {
		k, ok := pub.(*ecdsa.PublicKey)
		if !ok {
			return false
		}
		r, s := new(big.Int).SetBytes(signature[:len(signature)/2]), new(big.Int).SetBytes(signature[len(signature)/2:])
		return ecdsa.VerifyASN1(k, digest, signature) || ecdsa.Verify(k, digest, r, s)
	}
}

// A host is where the tokens are.
type host struct {
	dir     string
	softhsm string // its module
	device  string // name and version
	far     *pkcs11test.Fault
	public  map[string]map[string]crypto.PublicKey // by token and kind
	modules map[string]string                      // by who loads them
	loaded  map[string]*pkcs11.Ctx                 // by module: those of bare calls
	opened  map[opening]func(kind) (sign, error)
	closes  []func() error
}

// An opening is what sessions are opened for once.
type opening struct {
	subject, token string
	far            bool // the device is behind a network
	sessions       int
}

// newHost makes two tokens with keys, in a folder.
func newHost() (h *host, err error) {
	dir, err := os.MkdirTemp("", "bench-hsm-")
	if err != nil {
		return nil, err
	}
	h = &host{
		dir: dir, public: map[string]map[string]crypto.PublicKey{},
		modules: map[string]string{}, loaded: map[string]*pkcs11.Ctx{}, opened: map[opening]func(kind) (sign, error){},
	}
	h.onClose(func() error { return os.RemoveAll(dir) })
	if err := h.make(); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

func (h *host) make() error {
	hsm, err := pkcs11test.New(filepath.Join(h.dir, "hsm"), 2)
	if err != nil {
		return err
	}
	h.softhsm = hsm.Module
	if err := os.Setenv("SOFTHSM2_CONF", hsm.Conf); err != nil {
		return err
	}
	far, err := h.folder("far")
	if err != nil {
		return err
	}
	if h.far, err = pkcs11test.MakeFault(far, h.softhsm); err != nil {
		return err
	}
	if err := h.fill(); err != nil {
		return err
	}
	return h.initialize()
}

// initialize has crypto11 initialize the module that is shared, on which it
// insists. The others take it as it is.
func (h *host) initialize() error {
	module, err := h.module(sharedModule, false)
	if err != nil {
		return err
	}
	c, err := crypto11.Configure(&crypto11.Config{Path: module, TokenLabel: plain, Pin: pkcs11test.PIN, MaxSessions: 2})
	if err != nil {
		return err
	}
	h.onClose(c.Close)
	return nil
}

func (h *host) onClose(f func() error) { h.closes = append(h.closes, f) }

// close undoes what was done, the last first.
func (h *host) close() error {
	var errs []error
	for _, undo := range slices.Backward(h.closes) {
		errs = append(errs, undo())
	}
	h.closes = nil
	return errors.Join(errs...)
}

// sign returns how a subject signs with a key, and opens the sessions for it if
// they are not open yet.
func (h *host) sign(o opening, k kind) (sign, error) {
	with, ok := h.opened[o]
	if !ok {
		loader := sharedModule
		if o.far || subjects[o.subject].alone {
			loader = o.subject
		}
		module, err := h.module(loader, o.far)
		if err != nil {
			return nil, err
		}
		if with, err = subjects[o.subject].open(h, place{module, o.token, o.sessions}); err != nil {
			return nil, err
		}
		h.opened[o] = with
	}
	s, err := with(k)
	if err != nil {
		return nil, err
	}
	signature, err := s(0)
	if err != nil {
		return nil, err
	}
	if !k.verify(h.public[o.token][k.name], signature) {
		return nil, errors.New("the signature can't be verified")
	}
	return s, nil
}

// module returns a copy of the module for whoever loads it. From a far one C_Sign
// takes longer.
func (h *host) module(loader string, far bool) (string, error) {
	name := loader
	if far {
		name += " far"
	}
	if path, ok := h.modules[name]; ok {
		return path, nil
	}
	dir, err := h.folder(name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "module.so")
	if far {
		f, err := h.far.Again(dir)
		if err != nil {
			return "", err
		}
		if err := f.Play(fmt.Sprintf("C_Sign * delay %dus", distance.Microseconds())); err != nil {
			return "", err
		}
		path = f.Module
	} else if err := copyFile(h.softhsm, path); err != nil {
		return "", err
	}
	h.modules[name] = path
	return path, nil
}

func (h *host) folder(name string) (string, error) {
	dir := filepath.Join(h.dir, strings.ReplaceAll(name, " ", "-"))
	return dir, os.Mkdir(dir, 0o700)
}

func copyFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o700)
}

// fill makes the keys and the other objects.
func (h *host) fill() error {
	module, err := h.module("filling", false)
	if err != nil {
		return err
	}
	c, err := h.load(module)
	if err != nil {
		return err
	}
	info, err := c.GetInfo()
	if err != nil {
		return err
	}
	h.device = fmt.Sprintf("%s %d.%d", info.ManufacturerID, info.LibraryVersion.Major, info.LibraryVersion.Minor)
	for token, others := range map[string]int{plain: 0, crowded: fillers} {
		s, err := login(c, token)
		if err != nil {
			return err
		}
		h.public[token] = map[string]crypto.PublicKey{}
		for i, k := range kinds {
			if h.public[token][k.name], err = generate(c, s, k, byte(i+1)); err != nil {
				return fmt.Errorf("making a key of %s: %w", k.name, err)
			}
		}
		for i := range others {
			if err := fill(c, s, i); err != nil {
				return fmt.Errorf("making an object: %w", err)
			}
		}
	}
	return nil
}

func fill(c *pkcs11.Ctx, s pkcs11.SessionHandle, i int) error {
	_, err := c.CreateObject(s, []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_CLASS, pkcs11.CKO_DATA),
		pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true),
		pkcs11.NewAttribute(pkcs11.CKA_LABEL, fmt.Sprintf("filler-%d", i)),
		pkcs11.NewAttribute(pkcs11.CKA_VALUE, []byte{1}),
	})
	return err
}

func generate(c *pkcs11.Ctx, s pkcs11.SessionHandle, k kind, id byte) (crypto.PublicKey, error) {
	named := []*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_TOKEN, true),
		pkcs11.NewAttribute(pkcs11.CKA_LABEL, k.name),
		pkcs11.NewAttribute(pkcs11.CKA_ID, []byte{id}),
	}
	public := append([]*pkcs11.Attribute{k.params, pkcs11.NewAttribute(pkcs11.CKA_VERIFY, true)}, named...)
	if k.making == pkcs11.CKM_RSA_PKCS_KEY_PAIR_GEN {
		public = append(public, pkcs11.NewAttribute(pkcs11.CKA_PUBLIC_EXPONENT, big.NewInt(exponent).Bytes()))
	}
	private := append([]*pkcs11.Attribute{
		pkcs11.NewAttribute(pkcs11.CKA_PRIVATE, true),
		pkcs11.NewAttribute(pkcs11.CKA_SENSITIVE, true),
		pkcs11.NewAttribute(pkcs11.CKA_EXTRACTABLE, false),
		pkcs11.NewAttribute(pkcs11.CKA_SIGN, true),
	}, named...)
	half, _, err := c.GenerateKeyPair(s, []*pkcs11.Mechanism{pkcs11.NewMechanism(k.making, nil)}, public, private)
	if err != nil {
		return nil, err
	}
	attribute := uint(pkcs11.CKA_EC_POINT)
	if k.making == pkcs11.CKM_RSA_PKCS_KEY_PAIR_GEN {
		attribute = pkcs11.CKA_MODULUS
	}
	got, err := c.GetAttributeValue(s, half, []*pkcs11.Attribute{pkcs11.NewAttribute(attribute, nil)})
	if err != nil {
		return nil, err
	}
	return k.public(got[0].Value)
}

// load loads a module for bare calls, once.
func (h *host) load(module string) (*pkcs11.Ctx, error) {
	if c, ok := h.loaded[module]; ok {
		return c, nil
	}
	c := pkcs11.New(module)
	if c == nil {
		return nil, fmt.Errorf("%s can't be loaded", module)
	}
	switch err := c.Initialize(); {
	case err == nil:
		h.onClose(c.Finalize)
	case !errors.Is(err, pkcs11.Error(pkcs11.CKR_CRYPTOKI_ALREADY_INITIALIZED)):
		return nil, fmt.Errorf("C_Initialize: %w", err)
	}
	h.loaded[module] = c
	return c, nil
}

// login opens a session that can change the token.
func login(c *pkcs11.Ctx, label string) (pkcs11.SessionHandle, error) {
	slot, err := slotOf(c, label)
	if err != nil {
		return 0, err
	}
	s, err := c.OpenSession(slot, pkcs11.CKF_SERIAL_SESSION|pkcs11.CKF_RW_SESSION)
	if err != nil {
		return 0, fmt.Errorf("C_OpenSession: %w", err)
	}
	if err := c.Login(s, pkcs11.CKU_USER, pkcs11test.PIN); err != nil && !errors.Is(err, pkcs11.Error(pkcs11.CKR_USER_ALREADY_LOGGED_IN)) {
		return 0, fmt.Errorf("C_Login: %w", err)
	}
	return s, nil
}

func slotOf(c *pkcs11.Ctx, label string) (uint, error) {
	slots, err := c.GetSlotList(true)
	if err != nil {
		return 0, fmt.Errorf("C_GetSlotList: %w", err)
	}
	for _, slot := range slots {
		if info, err := c.GetTokenInfo(slot); err == nil && info.Label == label {
			return slot, nil
		}
	}
	return 0, fmt.Errorf("no token is labelled %q", label)
}
