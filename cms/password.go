package cms

import (
	"crypto"
	"crypto/cipher"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/subtle"
	"fmt"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// A Password is a recipient who knows a password (PasswordRecipientInfo with
// PBKDF2 and the key wrap of RFC 3211).
type Password struct {
	unknown    bool // algorithms that are not known here
	salt       []byte
	iterations int
	prf        crypto.Hash
	kek        Cipher
	iv         []byte
	wrapped    []byte
}

// Iterations is how often the message has the password hashed: what opening it
// costs is the sender's choice.
func (p *Password) Iterations() int { return p.iterations }

// A ByPassword is a recipient who has no certificate to encrypt for, but a
// password.
type ByPassword struct {
	Password   []byte
	Iterations int // 0: 10 000, which is enough only for passwords that nobody chose
}

const defaultIterations = 10_000

func readPassword(seq cryptobyte.String) (*Password, error) {
	var version int
	var encrypted cryptobyte.String
	if !seq.ReadASN1Integer(&version) {
		return nil, malformed("PasswordRecipientInfo")
	}
	p := &Password{prf: crypto.SHA1}
	if seq.PeekASN1Tag(explicit(0)) {
		oid, params, ok := readAlgorithmAs(&seq, explicit(0))
		if !ok {
			return nil, malformed("keyDerivationAlgorithm")
		}
		p.unknown = !oid.Equal(oidPBKDF2) || !p.readPBKDF2(params)
	} else {
		p.unknown = true // a key from elsewhere
	}
	oid, params, ok := readAlgorithm(&seq)
	if !ok || !seq.ReadASN1(&encrypted, casn1.OCTET_STRING) || !seq.Empty() {
		return nil, malformed("PasswordRecipientInfo")
	}
	p.wrapped = encrypted
	p.unknown = p.unknown || !oid.Equal(oidPWRIKEK) || !p.readKEK(params)
	return p, nil
}

// readPBKDF2 reads PBKDF2-params (RFC 8018 §A.2).
func (p *Password) readPBKDF2(params cryptobyte.String) bool {
	var seq, salt cryptobyte.String
	if !params.ReadASN1(&seq, casn1.SEQUENCE) || !params.Empty() ||
		!seq.ReadASN1(&salt, casn1.OCTET_STRING) || !seq.ReadASN1Integer(&p.iterations) || p.iterations < 1 {
		return false
	}
	p.salt = salt
	if seq.PeekASN1Tag(casn1.INTEGER) && !seq.SkipASN1(casn1.INTEGER) { // keyLength, which the cipher knows
		return false
	}
	if seq.Empty() {
		return true
	}
	oid, prf, ok := readAlgorithm(&seq)
	if !ok || !seq.Empty() || !noParameters(prf) {
		return false
	}
	for _, h := range hashes {
		if h.hmac.Equal(oid) {
			p.prf = h.hash
			return true
		}
	}
	return false
}

func (p *Password) readKEK(params cryptobyte.String) bool {
	oid, iv, ok := readAlgorithm(&params)
	if !ok || !params.Empty() {
		return false
	}
	if p.kek = cipherOf(oid); p.kek == 0 {
		return false
	}
	p.iv, ok = readIV(iv, p.kek)
	return ok
}

// OpenByPassword decrypts the content by the password of the recipient p, unless
// that would take more than mostIterations. A wrong password is ErrDecrypt, as
// whatever else is wrong inside.
func (ed *EnvelopedData) OpenByPassword(p *Password, password []byte, mostIterations int) ([]byte, error) {
	if ed.Cipher == 0 || p.unknown || p.iterations > mostIterations {
		return nil, fmt.Errorf("%w: password based encryption", ErrAlgorithm)
	}
	block, err := p.block(password)
	if err != nil {
		return nil, err
	}
	key, ok := unwrapKey(block, p.iv, p.wrapped)
	if !ok || len(key) != ciphers[ed.Cipher].key {
		return nil, ErrDecrypt
	}
	defer clear(key)
	plain, err := ed.unseal(key)
	if err != nil {
		return nil, err
	}
	return plain, nil
}

func (p *Password) block(password []byte) (cipher.Block, error) {
	kek, err := pbkdf2.Key(p.prf.New, string(password), p.salt, p.iterations, ciphers[p.kek].key)
	if err != nil {
		return nil, fmt.Errorf("cms: deriving a key: %w", err)
	}
	defer clear(kek)
	return ciphers[p.kek].block(kek)
}

func (r ByPassword) wrap(key []byte, c Cipher) (func(b *cryptobyte.Builder), error) {
	p := &Password{salt: make([]byte, 16), iterations: r.Iterations, prf: crypto.SHA256, kek: c, iv: make([]byte, c.blockSize())}
	if p.iterations == 0 {
		p.iterations = defaultIterations
	}
	for _, b := range [][]byte{p.salt, p.iv} {
		if _, err := rand.Read(b); err != nil {
			return nil, err
		}
	}
	block, err := p.block(r.Password)
	if err != nil {
		return nil, err
	}
	if p.wrapped, err = wrapKey(block, p.iv, key); err != nil {
		return nil, err
	}
	return p.add, nil
}

func (p *Password) add(b *cryptobyte.Builder) {
	b.AddASN1(explicit(3), func(b *cryptobyte.Builder) {
		b.AddASN1Int64(0)
		b.AddASN1(explicit(0), func(b *cryptobyte.Builder) {
			b.AddASN1ObjectIdentifier(oidPBKDF2)
			b.AddASN1(casn1.SEQUENCE, func(b *cryptobyte.Builder) {
				b.AddASN1OctetString(p.salt)
				b.AddASN1Int64(int64(p.iterations))
				addAlgorithm(b, oidHMACWithSHA256, addNull)
			})
		})
		addAlgorithm(b, oidPWRIKEK, func(b *cryptobyte.Builder) { addCipher(b, p.kek, p.iv) })
		b.AddASN1OctetString(p.wrapped)
	})
}

// wrapKey is the key wrap of RFC 3211 §2.3.1: the key with its length and a check
// value, filled up with random octets, encrypted twice over.
func wrapKey(block cipher.Block, iv, key []byte) ([]byte, error) {
	size := block.BlockSize()
	n := max(2*size, (4+len(key)+size-1)/size*size)
	out := make([]byte, n)
	if _, err := rand.Read(out); err != nil {
		return nil, err
	}
	out[0] = byte(len(key))
	for i := range 3 {
		out[1+i] = ^key[i]
	}
	copy(out[4:], key)
	cipher.NewCBCEncrypter(block, iv).CryptBlocks(out, out)
	cipher.NewCBCEncrypter(block, out[n-size:]).CryptBlocks(out, out)
	return out, nil
}

// unwrapKey undoes wrapKey.
func unwrapKey(block cipher.Block, iv, wrapped []byte) (key []byte, ok bool) {
	size, n := block.BlockSize(), len(wrapped)
	if n < 2*size || n%size != 0 {
		return nil, false
	}
	// The last block of the first encryption is the IV of the second, and comes
	// from the last two blocks.
	first := make([]byte, n)
	last := make([]byte, size)
	cipher.NewCBCDecrypter(block, wrapped[n-2*size:n-size]).CryptBlocks(last, wrapped[n-size:])
	cipher.NewCBCDecrypter(block, last).CryptBlocks(first, wrapped)
	cipher.NewCBCDecrypter(block, iv).CryptBlocks(first, first)
	defer clear(first)
	good := subtle.ConstantTimeLessOrEq(3, int(first[0])) & subtle.ConstantTimeLessOrEq(int(first[0])+4, n)
	for i := range 3 {
		good &= subtle.ConstantTimeByteEq(first[1+i], ^first[4+i])
	}
	if good != 1 {
		return nil, false
	}
	return append([]byte{}, first[4:4+int(first[0])]...), true
}
