package pkcs11pool

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"time"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/keys"
)

// A decrypter is an RSA key that may decrypt.
type decrypter struct{ *key }

// A padding is what a ciphertext has inside, and how it comes off.
type padding struct {
	mechanism *pkcs11.Mechanism // by which the token takes it off; nil: none does
	label     string            // of mechanism, in metrics
	// strip takes it off what RSA without padding gives, as long as the modulus.
	// Neither its time nor its error tells more than that something was wrong.
	strip func(em []byte) ([]byte, error)
	// stripped is what to make of what the token took it off; of nil, if the
	// token found something wrong.
	stripped func(plain []byte) ([]byte, error)
}

// Decrypt implements keys.Decrypter. The options are of crypto/rsa; nil means
// PKCS#1 v1.5. What is wrong with a ciphertext is always the same
// rsa.ErrDecryption; with a SessionKeyLen it is no error at all, but a random
// session key.
//
// Whoever can tell good from bad padding can decrypt (Bleichenbacher, Manger).
// So where the token has RSA without padding, that is what it is asked for, and
// the padding comes off here, in constant time: no two tokens agree on codes and
// timing of theirs, and a token that has OAEP at all may have it of SHA-1 alone.
// Else the token takes the padding off, and how well it hides is up to it.
//
// A token's complaint about a ciphertext is not a fault of the token: it costs no
// session, is counted nowhere and tried only once, as strangers send ciphertexts.
func (d decrypter) Decrypt(ctx context.Context, ciphertext []byte, opts crypto.DecrypterOpts) ([]byte, error) {
	pub := d.public.(*rsa.PublicKey)
	pad, err := paddingFor(pub.Size(), opts)
	if err != nil {
		return nil, err
	}
	if len(ciphertext) != pub.Size() || bytes.Compare(ciphertext, pub.N.FillBytes(make([]byte, pub.Size()))) >= 0 {
		return nil, rsa.ErrDecryption // public, and so told apart from nothing secret
	}
	own := bytes.Clone(ciphertext)
	j := job{op: d.decrypting, mechanism: pad.label, on: d.decrypts, repeatable: true, dataFault: isComplaint}
	answer, err := work(ctx, d.key, j, func(c *conn) (deciphered, bool, error) { return d.decipher(c, own, pad) })
	if c, ok := errors.AsType[*complaint](err); ok {
		answer, err = deciphered{raw: c.raw}, nil
		if c.raw {
			answer.bytes = make([]byte, len(own)) // no good padding, and treated as any other
		}
	}
	switch {
	case err != nil:
		return nil, err
	case answer.unable != nil:
		return nil, answer.unable
	case answer.raw:
		return pad.strip(answer.bytes)
	}
	return pad.stripped(answer.bytes)
}

// A complaint is what a token says of a ciphertext, and not of itself.
type complaint struct {
	err error
	raw bool
}

func (c *complaint) Error() string { return c.err.Error() }

func isComplaint(err error) bool {
	_, yes := errors.AsType[*complaint](err)
	return yes
}

// A deciphered is what the token made of a ciphertext.
type deciphered struct {
	bytes  []byte // nil: it complained
	raw    bool   // the padding is still on
	unable error  // it has not what is needed
}

// decipher works on own, which nobody else has.
func (d decrypter) decipher(c *conn, own []byte, pad padding) (out deciphered, able bool, err error) {
	able, err = d.begin(c, canDecrypt, func(at *place) (err error) {
		out, err = d.decryptInit(c, at, pad)
		return err
	})
	if err != nil || !able || out.unable != nil {
		return out, able, err
	}
	out.bytes, err = c.Decrypt(c.session, own)
	switch {
	case isDataError(err, out.raw):
		return out, true, &complaint{err, out.raw}
	case err != nil:
		d.ifStale(c, err)
		return out, true, err
	case out.bytes == nil:
		out.bytes = []byte{}
	}
	if !out.raw {
		return out, true, nil
	}
	if len(out.bytes) > len(own) {
		return out, true, fmt.Errorf("%w: %d bytes out of %d", errNonsense, len(out.bytes), len(own))
	}
	em := make([]byte, len(own)) // some tokens leave out zeros in front
	copy(em[len(em)-len(out.bytes):], out.bytes)
	clear(out.bytes)
	out.bytes = em
	return out, true, nil
}

func (d decrypter) decryptInit(c *conn, at *place, pad padding) (out deciphered, err error) {
	if at.skills&canDecryptRaw != 0 {
		err := c.DecryptInit(c.session, mechRSARaw, at.handle)
		if err == nil {
			out.raw = true
			return out, authenticate(c, at)
		}
		if !isRefusedMechanism(err) {
			return out, err
		}
		// The token has it, and does not let this key use it: for ever, or just now.
		other := *at
		other.skills &^= canDecryptRaw
		other.doubtful, other.again = true, time.Now().Add(mostPause)
		d.place(c.token).CompareAndSwap(at, &other)
	}
	if pad.mechanism == nil {
		out.unable = fmt.Errorf("%w: pkcs11pool: the token can't take off that padding, and can't leave it on", keys.ErrUnable)
		return out, nil
	}
	err = c.DecryptInit(c.session, []*pkcs11.Mechanism{pad.mechanism}, at.handle)
	switch {
	case err == nil:
		return out, authenticate(c, at)
	case isRefusedMechanism(err):
		out.unable = fmt.Errorf("%w: pkcs11pool: the token can't use %s so: %w", keys.ErrUnable, pad.label, err)
		return out, nil
	}
	return out, err
}

// isRefusedMechanism reports whether the token says that it does not do such a
// thing with such a key.
func isRefusedMechanism(err error) bool {
	code, _ := errors.AsType[pkcs11.Error](err)
	switch code {
	case pkcs11.CKR_MECHANISM_INVALID, pkcs11.CKR_MECHANISM_PARAM_INVALID, pkcs11.CKR_ARGUMENTS_BAD,
		pkcs11.CKR_KEY_TYPE_INCONSISTENT, pkcs11.CKR_KEY_FUNCTION_NOT_PERMITTED, pkcs11.CKR_FUNCTION_NOT_SUPPORTED:
		return true
	}
	return false
}

// isDataError reports whether C_Decrypt complains about the ciphertext. Tokens
// that take padding off also say that their function failed when the padding is
// wrong, or what only their vendor knows; a broken one will say so again to whoever
// signs.
func isDataError(err error, raw bool) bool {
	code, _ := errors.AsType[pkcs11.Error](err)
	switch code {
	case pkcs11.CKR_GENERAL_ERROR, pkcs11.CKR_ENCRYPTED_DATA_INVALID, pkcs11.CKR_ENCRYPTED_DATA_LEN_RANGE,
		pkcs11.CKR_DATA_INVALID, pkcs11.CKR_DATA_LEN_RANGE, pkcs11.CKR_ARGUMENTS_BAD:
		return true
	case pkcs11.CKR_FUNCTION_FAILED:
		return !raw
	}
	return !raw && uint(code) >= pkcs11.CKR_VENDOR_DEFINED
}

// paddingFor reads the options for a modulus of size bytes.
func paddingFor(size int, opts crypto.DecrypterOpts) (padding, error) {
	switch opts := opts.(type) {
	case nil:
		return pkcs1Padding(size, 0)
	case *rsa.PKCS1v15DecryptOptions: //nolint:staticcheck // SCEP (RFC 8894) has no other padding
		return pkcs1Padding(size, opts.SessionKeyLen)
	case *rsa.OAEPOptions:
		return oaepPadding(size, opts)
	}
	return padding{}, fmt.Errorf("%w: pkcs11pool: decrypting with %T is not supported", keys.ErrUnable, opts)
}

func pkcs1Padding(size, sessionKey int) (padding, error) {
	pad := padding{mechanism: mechRSA[0], label: "CKM_RSA_PKCS"}
	if sessionKey == 0 {
		pad.strip = stripPKCS1
		pad.stripped = func(plain []byte) ([]byte, error) {
			if plain == nil {
				return nil, rsa.ErrDecryption
			}
			return plain, nil
		}
		return pad, nil
	}
	if sessionKey < 0 || size < sessionKey+11 {
		return padding{}, rsa.ErrDecryption
	}
	// Drawn before anything is known of the ciphertext.
	random := make([]byte, sessionKey)
	if _, err := rand.Read(random); err != nil {
		return padding{}, err
	}
	pad.strip = func(em []byte) ([]byte, error) {
		defer clear(em)
		valid, index := findPKCS1(em)
		valid &= subtle.ConstantTimeEq(int32(len(em)-index), int32(len(random)))
		subtle.ConstantTimeCopy(valid, random, em[len(em)-len(random):])
		return random, nil
	}
	pad.stripped = func(plain []byte) ([]byte, error) {
		defer clear(plain)
		valid := subtle.ConstantTimeEq(int32(len(plain)), int32(len(random)))
		other := make([]byte, len(random))
		copy(other, plain)
		subtle.ConstantTimeCopy(valid, random, other)
		return random, nil
	}
	return pad, nil
}

// findPKCS1 looks in constant time where the message in an encryption block of
// PKCS#1 v1.5 begins (RFC 8017 §7.2.2); valid is 1 if there is one.
func findPKCS1(em []byte) (valid, index int) {
	looking := 1
	for i := 2; i < len(em); i++ {
		zero := subtle.ConstantTimeByteEq(em[i], 0)
		index = subtle.ConstantTimeSelect(looking&zero, i, index)
		looking = subtle.ConstantTimeSelect(zero, 0, looking)
	}
	valid = subtle.ConstantTimeByteEq(em[0], 0) & subtle.ConstantTimeByteEq(em[1], 2) &
		(looking ^ 1) & subtle.ConstantTimeLessOrEq(2+8, index)
	return valid, subtle.ConstantTimeSelect(valid, index+1, 0)
}

func stripPKCS1(em []byte) ([]byte, error) {
	defer clear(em)
	valid, index := findPKCS1(em)
	if valid == 0 { // all that is ever told
		return nil, rsa.ErrDecryption
	}
	return bytes.Clone(em[index:]), nil
}

var oaepHashes = map[crypto.Hash]hashFunc{
	crypto.SHA1:   {mechanism: pkcs11.CKM_SHA_1, mgf: pkcs11.CKG_MGF1_SHA1},
	crypto.SHA256: hashSHA256,
	crypto.SHA384: hashSHA384,
	crypto.SHA512: hashSHA512,
}

func oaepPadding(size int, opts *rsa.OAEPOptions) (padding, error) {
	mgf := opts.MGFHash
	if mgf == 0 {
		mgf = opts.Hash
	}
	h, known := oaepHashes[opts.Hash]
	m, knownMGF := oaepHashes[mgf]
	if !known || !knownMGF || !opts.Hash.Available() || !mgf.Available() {
		return padding{}, fmt.Errorf("pkcs11pool: decrypting OAEP with %v and MGF1 with %v is not supported", opts.Hash, mgf)
	}
	if size < 2*opts.Hash.Size()+2 {
		return padding{}, rsa.ErrDecryption
	}
	label := bytes.Clone(opts.Label)
	return padding{
		mechanism: pkcs11.NewMechanism(pkcs11.CKM_RSA_PKCS_OAEP, pkcs11.NewOAEPParams(h.mechanism, m.mgf, pkcs11.CKZ_DATA_SPECIFIED, label)),
		label:     "CKM_RSA_PKCS_OAEP",
		strip:     func(em []byte) ([]byte, error) { return stripOAEP(em, opts.Hash.New(), mgf.New(), label) },
		stripped: func(plain []byte) ([]byte, error) {
			if plain == nil {
				return nil, rsa.ErrDecryption
			}
			return plain, nil
		},
	}, nil
}

// stripOAEP takes OAEP off in constant time (RFC 8017 §7.1.2, step 3).
func stripOAEP(em []byte, h, mgf hash.Hash, label []byte) ([]byte, error) {
	defer clear(em)
	h.Write(label)
	labelHash := h.Sum(nil)
	n := h.Size()
	seed, db := em[1:1+n], em[1+n:]
	maskMGF1(seed, mgf, db)
	maskMGF1(db, mgf, seed)

	looking, index, invalid := 1, 0, 0
	rest := db[n:]
	for i := range rest {
		zero := subtle.ConstantTimeByteEq(rest[i], 0)
		one := subtle.ConstantTimeByteEq(rest[i], 1)
		index = subtle.ConstantTimeSelect(looking&one, i, index)
		looking = subtle.ConstantTimeSelect(one, 0, looking)
		invalid = subtle.ConstantTimeSelect(looking&(zero^1), 1, invalid)
	}
	valid := subtle.ConstantTimeByteEq(em[0], 0) & subtle.ConstantTimeCompare(labelHash, db[:n]) & (invalid ^ 1) & (looking ^ 1)
	if valid == 0 { // all that is ever told
		return nil, rsa.ErrDecryption
	}
	return bytes.Clone(rest[index+1:]), nil
}

// maskMGF1 XORs the mask that MGF1 makes of seed into out (RFC 8017 §B.2.1).
func maskMGF1(out []byte, h hash.Hash, seed []byte) {
	var counter [4]byte
	for i := uint32(0); len(out) > 0; i++ {
		binary.BigEndian.PutUint32(counter[:], i)
		h.Reset()
		h.Write(seed)
		h.Write(counter[:])
		n := subtle.XORBytes(out, out, h.Sum(nil))
		out = out[n:]
	}
}
