package cms

import (
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/des" // 3DES by option alone
	"crypto/rsa"
	"crypto/subtle"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"math/big"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// maxRecipients bounds the RecipientInfos of a message.
const maxRecipients = 16

// A Cipher encrypts contents. The zero one is none that is known here.
type Cipher uint8

// The ciphers, all with CBC.
const (
	AES128CBC Cipher = iota + 1
	AES192CBC
	AES256CBC
	TripleDESCBC // for SCEP clients of before RFC 8894, where it is allowed
)

var ciphers = map[Cipher]struct {
	name  string
	oid   asn1.ObjectIdentifier
	key   int // octets
	block func(key []byte) (cipher.Block, error)
}{
	AES128CBC:    {"AES-128-CBC", oidAES128CBC, 16, aes.NewCipher},
	AES192CBC:    {"AES-192-CBC", oidAES192CBC, 24, aes.NewCipher},
	AES256CBC:    {"AES-256-CBC", oidAES256CBC, 32, aes.NewCipher},
	TripleDESCBC: {"DES-EDE3-CBC", oid3DESCBC, 24, des.NewTripleDESCipher},
}

func (c Cipher) String() string {
	if known, ok := ciphers[c]; ok {
		return known.name
	}
	return "unknown"
}

// blockSize is the length of a block, and of an IV.
func (c Cipher) blockSize() int {
	if c == TripleDESCBC {
		return des.BlockSize
	}
	return aes.BlockSize
}

func cipherOf(oid asn1.ObjectIdentifier) Cipher {
	for c, known := range ciphers {
		if known.oid.Equal(oid) {
			return c
		}
	}
	return 0
}

// An EnvelopedData is content encrypted for recipients. Nothing protects it from
// being changed on its way.
type EnvelopedData struct {
	ContentType asn1.ObjectIdentifier
	Cipher      Cipher // 0: one that is not known here
	// Transports and Passwords are the recipients of those kinds, in their order.
	// Others are passed over.
	Transports []*Transport
	Passwords  []*Password

	iv         []byte
	ciphertext []byte
}

// A Transport is a recipient for whose RSA key the content key is encrypted
// (KeyTransRecipientInfo).
type Transport struct {
	rid       identifier
	oaep      *rsa.OAEPOptions // nil: PKCS#1 v1.5
	unknown   bool             // an algorithm that is not known here
	encrypted []byte
}

// OAEP returns the hash of a key that comes by RSAES-OAEP, and 0 for PKCS#1 v1.5.
func (t *Transport) OAEP() crypto.Hash {
	if t.oaep == nil {
		return 0
	}
	return t.oaep.Hash
}

// For reports whether the owner of cert is the recipient.
func (t *Transport) For(cert *x509.Certificate) bool { return t.rid.names(cert) }

// IssuerAndSerial is how the recipient's certificate is named; nil and nil if it is
// not named so.
func (t *Transport) IssuerAndSerial() (issuer []byte, serial *big.Int) {
	return t.rid.issuer, t.rid.serial
}

// ParseEnvelopedData reads a ContentInfo with EnvelopedData. Its errors match
// ErrMalformed; of algorithms that are not known, Check tells.
func ParseEnvelopedData(ber []byte) (*EnvelopedData, error) {
	der, err := DER(ber)
	if err != nil {
		return nil, err
	}
	in, err := readContentInfo(der, OIDEnvelopedData)
	if err != nil {
		return nil, err
	}
	var version int
	var recipients, encrypted cryptobyte.String
	if !in.ReadASN1Integer(&version) || !in.SkipOptionalASN1(explicit(0)) ||
		!in.ReadASN1(&recipients, casn1.SET) || !in.ReadASN1(&encrypted, casn1.SEQUENCE) ||
		!in.SkipOptionalASN1(explicit(1)) || !in.Empty() {
		return nil, malformed("EnvelopedData")
	}
	ed := new(EnvelopedData)
	for n := 0; !recipients.Empty(); n++ {
		if n == maxRecipients {
			return nil, malformed("too many recipients")
		}
		if err := ed.readRecipient(&recipients); err != nil {
			return nil, err
		}
	}
	return ed, ed.readContent(encrypted)
}

func (ed *EnvelopedData) readRecipient(in *cryptobyte.String) error {
	var seq cryptobyte.String
	var tag casn1.Tag
	if !in.ReadAnyASN1(&seq, &tag) {
		return malformed("RecipientInfo")
	}
	switch tag {
	case casn1.SEQUENCE:
		t, err := readTransport(seq)
		ed.Transports = append(ed.Transports, t)
		return err
	case explicit(3):
		p, err := readPassword(seq)
		ed.Passwords = append(ed.Passwords, p)
		return err
	}
	return nil
}

func readTransport(seq cryptobyte.String) (*Transport, error) {
	var version int
	var encrypted cryptobyte.String
	t := new(Transport)
	if !seq.ReadASN1Integer(&version) || !t.rid.read(&seq) {
		return nil, malformed("KeyTransRecipientInfo")
	}
	oid, params, ok := readAlgorithm(&seq)
	if !ok || !seq.ReadASN1(&encrypted, casn1.OCTET_STRING) || !seq.Empty() {
		return nil, malformed("KeyTransRecipientInfo")
	}
	t.encrypted = encrypted
	switch {
	case oid.Equal(oidRSA) && noParameters(params):
	case oid.Equal(oidOAEP):
		t.oaep = readOAEP(params)
		t.unknown = t.oaep == nil
	default:
		t.unknown = true
	}
	return t, nil
}

// readOAEP reads RSAES-OAEP-params (RFC 8017 §A.2.1), and returns nil for any that
// are not known here. The label is empty, as everywhere.
func readOAEP(params cryptobyte.String) *rsa.OAEPOptions {
	opts := &rsa.OAEPOptions{Hash: crypto.SHA1, MGFHash: crypto.SHA1}
	if params.Empty() {
		return opts // some leave the empty SEQUENCE out as well
	}
	var seq, inner cryptobyte.String
	var there bool
	if !params.ReadASN1(&seq, casn1.SEQUENCE) || !params.Empty() || !seq.ReadOptionalASN1(&inner, &there, explicit(0)) {
		return nil
	}
	if there && !readHash(inner, &opts.Hash) {
		return nil
	}
	if !seq.ReadOptionalASN1(&inner, &there, explicit(1)) {
		return nil
	}
	if there {
		oid, hash, ok := readAlgorithm(&inner)
		if !ok || !inner.Empty() || !oid.Equal(oidMGF1) || !readHash(hash, &opts.MGFHash) {
			return nil
		}
	}
	if !seq.ReadOptionalASN1(&inner, &there, explicit(2)) || !seq.Empty() {
		return nil
	}
	if there {
		oid, label, ok := readAlgorithm(&inner)
		var octets cryptobyte.String
		if !ok || !oid.Equal(oidPSpecified) || !label.ReadASN1(&octets, casn1.OCTET_STRING) || len(octets) > 0 {
			return nil
		}
	}
	return opts
}

func readHash(in cryptobyte.String, hash *crypto.Hash) bool {
	oid, params, ok := readAlgorithm(&in)
	if !ok || !in.Empty() || !noParameters(params) {
		return false
	}
	*hash = hashOf(oid)
	return *hash != 0
}

func (ed *EnvelopedData) readContent(in cryptobyte.String) error {
	if !readOID(&in, &ed.ContentType) {
		return malformed("EncryptedContentInfo")
	}
	oid, params, ok := readAlgorithm(&in)
	if !ok {
		return malformed("contentEncryptionAlgorithm")
	}
	if ed.Cipher = cipherOf(oid); ed.Cipher != 0 {
		if ed.iv, ok = readIV(params, ed.Cipher); !ok {
			return malformed("an IV")
		}
	}
	if in.PeekASN1Tag(implicit0) {
		var octets cryptobyte.String
		ok = in.ReadASN1(&octets, implicit0)
		ed.ciphertext = octets
	} else {
		ed.ciphertext, ok = readPieces(&in)
	}
	switch {
	case !ok || !in.Empty():
		return malformed("encryptedContent")
	case ed.Cipher != 0 && (len(ed.ciphertext) == 0 || len(ed.ciphertext)%ed.Cipher.blockSize() != 0):
		return malformed("encryptedContent is not of whole blocks")
	}
	return nil
}

func readIV(params cryptobyte.String, c Cipher) ([]byte, bool) {
	var iv cryptobyte.String
	ok := params.ReadASN1(&iv, casn1.OCTET_STRING) && params.Empty() && len(iv) == c.blockSize()
	return iv, ok
}

// readPieces reads an implicitly tagged octet string in pieces, each of which is
// in one by now.
func readPieces(in *cryptobyte.String) ([]byte, bool) {
	var pieces cryptobyte.String
	if !in.ReadASN1(&pieces, explicit(0)) {
		return nil, false
	}
	out := make([]byte, 0, len(pieces))
	for !pieces.Empty() {
		var piece cryptobyte.String
		if !pieces.ReadASN1(&piece, casn1.OCTET_STRING) {
			return nil, false
		}
		out = append(out, piece...)
	}
	return out, true
}

// Check says, before any key is used, whether the algorithms of t and of the
// content are such as can be opened. Triple DES is only if legacy is. Its errors
// match ErrAlgorithm.
func (ed *EnvelopedData) Check(t *Transport, legacy bool) error {
	switch {
	case ed.Cipher == 0:
		return fmt.Errorf("%w: content encryption", ErrAlgorithm)
	case ed.Cipher == TripleDESCBC && !legacy:
		return fmt.Errorf("%w: content encryption by %v", ErrAlgorithm, ed.Cipher)
	case t.unknown:
		return fmt.Errorf("%w: key transport", ErrAlgorithm)
	}
	return nil
}

// unseal decrypts the content. Of good padding it returns the content; of bad
// padding everything, and ErrDecrypt, as late as can be.
func (ed *EnvelopedData) unseal(key []byte) ([]byte, error) {
	block, err := ciphers[ed.Cipher].block(key)
	if err != nil {
		return nil, fmt.Errorf("cms: content key: %w", err)
	}
	plain := make([]byte, len(ed.ciphertext))
	cipher.NewCBCDecrypter(block, ed.iv).CryptBlocks(plain, ed.ciphertext)
	good, n := unpad(plain, block.BlockSize())
	plain = plain[:n]
	if good != 1 {
		return plain, ErrDecrypt
	}
	return plain, nil
}

// unpad looks in constant time how much of plain, of whole blocks and not empty,
// is before its padding (RFC 5652 §6.3): all of it if good is not 1.
func unpad(plain []byte, block int) (good, n int) {
	last := plain[len(plain)-1]
	pad := int(last)
	good = subtle.ConstantTimeLessOrEq(1, pad) & subtle.ConstantTimeLessOrEq(pad, block)
	for i, b := range plain[len(plain)-block:] {
		inside := subtle.ConstantTimeLessOrEq(block-i, pad)
		same := subtle.ConstantTimeByteEq(b, last)
		good &= same | (inside ^ 1)
	}
	return good, len(plain) - subtle.ConstantTimeSelect(good, pad, 0)
}

// pad returns content with its padding.
func pad(content []byte, block int) []byte {
	n := block - len(content)%block
	out := make([]byte, len(content), len(content)+n)
	copy(out, content)
	for range n {
		out = append(out, byte(n))
	}
	return out
}
