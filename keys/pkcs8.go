package keys

import (
	"crypto"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/youmark/pkcs8"
)

const (
	pemType = "ENCRYPTED PRIVATE KEY"

	// pbkdf2Iterations is what is advised for PBKDF2-HMAC-SHA256 since 2023.
	// Scrypt with a like cost would pass openssl's 32 MiB limit.
	pbkdf2Iterations = 600_000
	// fewIterations is where a foreign file earns a warning.
	fewIterations = 100_000

	// Bounds on what a key file may cost to open.
	maxKeyFile      = 32 << 10
	maxIterations   = 10_000_000
	maxSalt         = 1 << 10
	maxScryptMemory = 256 << 20 // 128·N·r
	maxScryptWork   = 1 << 24   // N·r·p
)

var (
	oidPBES2  = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 13}
	oidPBKDF2 = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 12}
	oidScrypt = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 11591, 4, 11}
	oidsCBC   = []asn1.ObjectIdentifier{
		{2, 16, 840, 1, 101, 3, 4, 1, 2},  // AES-128
		{2, 16, 840, 1, 101, 3, 4, 1, 22}, // AES-192
		{2, 16, 840, 1, 101, 3, 4, 1, 42}, // AES-256
	}
)

// errNotKey is why a file is not an encrypted PKCS#8 key of ours.
var errNotKey = errors.New("not an encrypted PKCS#8 private key (convert it with openssl pkcs8 -topk8 -v2 aes-256-cbc)")

// sealKey encrypts a private key as PEM (RFC 5958 §3, RFC 8018 §6.2).
func sealKey(key crypto.Signer, passphrase []byte, iterations int) ([]byte, error) {
	der, err := pkcs8.MarshalPrivateKey(key, passphrase, &pkcs8.Opts{
		Cipher: pkcs8.AES256CBC,
		KDFOpts: pkcs8.PBKDF2Opts{
			SaltSize:       16,
			IterationCount: iterations,
			HMACHash:       crypto.SHA256,
		},
	})
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der}), nil
}

// openKey decrypts what sealKey or openssl made. It reports the iterations too,
// or 0 for scrypt.
func openKey(file, passphrase []byte) (crypto.Signer, int, error) {
	block, rest := pem.Decode(file)
	if block == nil || block.Type != pemType {
		return nil, 0, errNotKey
	}
	if next, _ := pem.Decode(rest); next != nil {
		return nil, 0, errors.New("more than one PEM block")
	}
	iterations, err := checkEnvelope(block.Bytes)
	if err != nil {
		return nil, 0, err
	}
	key, _, err := pkcs8.ParsePrivateKey(block.Bytes, passphrase)
	if err != nil {
		// The envelope was sound, so what can't be read is the decrypted part.
		return nil, 0, ErrPassphrase
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, 0, fmt.Errorf("a %T cannot sign", key)
	}
	if _, ok := AlgorithmOf(signer.Public()); !ok {
		return nil, 0, errors.New("a key of a kind or size that is not supported")
	}
	return signer, iterations, nil
}

type algorithmIdentifier = pkix.AlgorithmIdentifier

// checkEnvelope makes sure that the library can be let loose on der: it takes
// any cost for granted and panics on an IV or ciphertext of the wrong length.
func checkEnvelope(der []byte) (iterations int, err error) {
	var info struct {
		Algorithm     algorithmIdentifier
		EncryptedData []byte
	}
	var params struct {
		KDF, Cipher algorithmIdentifier
	}
	if rest, err := asn1.Unmarshal(der, &info); err != nil || len(rest) > 0 {
		return 0, errNotKey
	}
	if !info.Algorithm.Algorithm.Equal(oidPBES2) {
		return 0, errNotKey
	}
	if rest, err := asn1.Unmarshal(info.Algorithm.Parameters.FullBytes, &params); err != nil || len(rest) > 0 {
		return 0, errNotKey
	}
	if n := len(info.EncryptedData); n == 0 || n%16 != 0 {
		return 0, errors.New("the encrypted data is not whole AES blocks")
	}
	if err := checkCipher(params.Cipher); err != nil {
		return 0, err
	}
	switch {
	case params.KDF.Algorithm.Equal(oidPBKDF2):
		return checkPBKDF2(params.KDF)
	case params.KDF.Algorithm.Equal(oidScrypt):
		return 0, checkScrypt(params.KDF)
	}
	return 0, fmt.Errorf("key derivation function %v is not supported", params.KDF.Algorithm)
}

func checkCipher(alg algorithmIdentifier) error {
	known := false
	for _, oid := range oidsCBC {
		known = known || alg.Algorithm.Equal(oid)
	}
	if !known {
		return fmt.Errorf("cipher %v is not supported: only AES in CBC mode is", alg.Algorithm)
	}
	var iv []byte
	if rest, err := asn1.Unmarshal(alg.Parameters.FullBytes, &iv); err != nil || len(rest) > 0 || len(iv) != 16 {
		return errors.New("the initialization vector is not one of AES")
	}
	return nil
}

func checkPBKDF2(alg algorithmIdentifier) (iterations int, err error) {
	var p struct {
		Salt       []byte
		Iterations int
		PRF        algorithmIdentifier `asn1:"optional"`
	}
	if rest, err := asn1.Unmarshal(alg.Parameters.FullBytes, &p); err != nil || len(rest) > 0 {
		return 0, errors.New("the PBKDF2 parameters are malformed")
	}
	if p.Iterations < 1 || p.Iterations > maxIterations || len(p.Salt) > maxSalt {
		return 0, fmt.Errorf("the PBKDF2 parameters are out of bounds: %d iterations, salt of %d bytes", p.Iterations, len(p.Salt))
	}
	sha1, sha256 := asn1.ObjectIdentifier{1, 2, 840, 113549, 2, 7}, asn1.ObjectIdentifier{1, 2, 840, 113549, 2, 9}
	if prf := p.PRF.Algorithm; len(prf) != 0 && !prf.Equal(sha1) && !prf.Equal(sha256) {
		return 0, fmt.Errorf("PBKDF2 with %v is not supported: only HMAC-SHA256 is", prf)
	}
	return p.Iterations, nil
}

func checkScrypt(alg algorithmIdentifier) error {
	var p struct {
		Salt    []byte
		N, R, P int
	}
	if rest, err := asn1.Unmarshal(alg.Parameters.FullBytes, &p); err != nil || len(rest) > 0 {
		return errors.New("the scrypt parameters are malformed")
	}
	small := p.N > 1 && p.R > 0 && p.P > 0 && p.N <= 1<<24 && p.R <= 1<<10 && p.P <= 1<<10 && len(p.Salt) <= maxSalt
	if !small || p.N&(p.N-1) != 0 || 128*p.N*p.R > maxScryptMemory || p.N*p.R*p.P > maxScryptWork {
		return fmt.Errorf("the scrypt parameters are out of bounds: N=%d r=%d p=%d", p.N, p.R, p.P)
	}
	return nil
}
