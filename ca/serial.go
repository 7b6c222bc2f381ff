package ca

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
)

// serialRandom is how many random octets a serial has: 128 bits where BR §7.1
// wants 64.
const serialRandom = 16

// newSerial draws a serial whose first octet is shard, from 1 to 0x7f: positive
// and of minimal length whatever the random octets are.
func newSerial(shard byte) Serial {
	b := make([]byte, 1+serialRandom)
	b[0] = shard
	_, _ = rand.Read(b[1:]) // never fails (Go 1.24)
	return Serial(hex.EncodeToString(b))
}

// SerialOf writes the serial number of a certificate.
func SerialOf(n *big.Int) Serial { return Serial(hex.EncodeToString(n.Bytes())) }

// Int returns the number that s writes.
func (s Serial) Int() (*big.Int, error) {
	b, err := hex.DecodeString(string(s))
	if err != nil || len(b) == 0 || len(b) > 20 {
		return nil, fmt.Errorf("serial %q is not 1 to 20 octets of hex", string(s))
	}
	return new(big.Int).SetBytes(b), nil
}

func hexOf(b []byte) string { return hex.EncodeToString(b) }

func sha256Hex(b []byte) string {
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:])
}
