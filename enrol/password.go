package enrol

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/bcrypt"
)

// What passwords may be, and what verifying one may cost.
const (
	MaxName     = 128 // octets of a user's name
	MinPassword = 12  // of what operators set, in octets
	MaxPassword = 72  // octets; bcrypt reads no more

	maxArgonMemory = 64 << 10 // KiB
	maxArgonTime   = 10
	maxArgonLanes  = 4
	maxBcryptCost  = 12
	minBcryptCost  = 10
)

// The cost of what is hashed here: the second of the choices of RFC 9106 §4 that
// OWASP names for servers.
const (
	argonMemory = 19 << 10 // KiB
	argonTime   = 2
	argonLanes  = 1
	argonSalt   = 16
	argonKey    = 32
)

// HashPassword writes a password as it is stored: by argon2id.
func HashPassword(password string) (string, error) {
	if err := CheckPassword(password); err != nil {
		return "", err
	}
	salt := make([]byte, argonSalt)
	_, _ = rand.Read(salt) // never fails
	return argonHash{memory: argonMemory, time: argonTime, lanes: argonLanes, salt: salt}.derive(password).String(), nil
}

// CheckPassword says what is wrong with a new password.
func CheckPassword(password string) error {
	switch {
	case len(password) < MinPassword:
		return fmt.Errorf("the password is shorter than %d octets", MinPassword)
	case len(password) > MaxPassword:
		return fmt.Errorf("the password is longer than %d octets", MaxPassword)
	case !utf8.ValidString(password) || strings.ContainsAny(password, "\x00\r\n"):
		return errors.New("the password is not one line of UTF-8")
	}
	return nil
}

// A hash is a stored password.
type hash interface {
	matches(password string) bool
	weight() int64 // KiB of memory that it takes
}

// parseHash reads a stored password, of parameters within bounds.
func parseHash(s string) (hash, error) {
	switch {
	case strings.HasPrefix(s, "$argon2id$"):
		return parseArgon(s)
	case strings.HasPrefix(s, "$2"):
		cost, err := bcrypt.Cost([]byte(s))
		if err != nil {
			return nil, fmt.Errorf("reading bcrypt hash: %w", err)
		}
		if cost < minBcryptCost || cost > maxBcryptCost {
			return nil, fmt.Errorf("the bcrypt cost %d is not from %d to %d", cost, minBcryptCost, maxBcryptCost)
		}
		return bcryptHash(s), nil
	}
	return nil, errors.New("the hash is neither argon2id ($argon2id$…) nor bcrypt ($2b$…)")
}

// CheckHash says what is wrong with a hash that was made elsewhere.
func CheckHash(s string) error {
	_, err := parseHash(s)
	return err
}

type bcryptHash string

func (h bcryptHash) matches(password string) bool {
	// More than it reads would match whatever follows.
	return len(password) <= MaxPassword && bcrypt.CompareHashAndPassword([]byte(h), []byte(password)) == nil
}

func (bcryptHash) weight() int64 { return 4 }

type argonHash struct {
	memory, time uint32
	lanes        uint8
	salt, key    []byte
}

func (h argonHash) derive(password string) argonHash {
	size := uint32(argonKey)
	if len(h.key) > 0 {
		size = uint32(len(h.key)) //nolint:gosec // at most 64, as parsed
	}
	h.key = argon2.IDKey([]byte(password), h.salt, h.time, h.memory, h.lanes, size)
	return h
}

func (h argonHash) matches(password string) bool {
	return subtle.ConstantTimeCompare(h.derive(password).key, h.key) == 1
}

func (h argonHash) weight() int64 { return int64(h.memory) }

func (h argonHash) String() string {
	b64 := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, h.memory, h.time, h.lanes, b64.EncodeToString(h.salt), b64.EncodeToString(h.key))
}

func parseArgon(s string) (argonHash, error) {
	var (
		h       argonHash
		version int
		parts   = strings.Split(s, "$")
	)
	if len(parts) != 6 {
		return h, errors.New("the argon2id hash has not five fields")
	}
	if _, err := fmt.Sscanf(parts[2]+" "+parts[3], "v=%d m=%d,t=%d,p=%d", &version, &h.memory, &h.time, &h.lanes); err != nil || version != argon2.Version {
		return h, fmt.Errorf("the argon2id hash has not the parameters v=%d and m, t, p", argon2.Version)
	}
	var errSalt, errKey error
	h.salt, errSalt = base64.RawStdEncoding.DecodeString(parts[4])
	h.key, errKey = base64.RawStdEncoding.DecodeString(parts[5])
	switch {
	case errSalt != nil || errKey != nil || len(h.salt) < 8 || len(h.salt) > 64 || len(h.key) < 16 || len(h.key) > 64:
		return h, errors.New("salt and hash of argon2id are not base64 of 8 to 64 and 16 to 64 octets")
	case h.lanes < 1 || h.lanes > maxArgonLanes || h.time < 1 || h.time > maxArgonTime || h.memory < 8*uint32(h.lanes) || h.memory > maxArgonMemory:
		return h, fmt.Errorf("argon2id may take at most m=%d (KiB), t=%d, p=%d", maxArgonMemory, maxArgonTime, maxArgonLanes)
	case h.String() != s:
		return h, errors.New("the argon2id hash is not written as it should be")
	}
	return h, nil
}

// nobody is a hash that no password matches, of the cost of all that are made here.
var nobody = func() argonHash {
	salt, key := sha256.Sum256([]byte("salt of nobody")), sha256.Sum256([]byte("password of nobody"))
	return argonHash{memory: argonMemory, time: argonTime, lanes: argonLanes, salt: salt[:argonSalt], key: key[:argonKey]}
}()
