package ca

import (
	"crypto/ed25519"
	"crypto/sha3"
	"encoding/base32"
	"strings"
)

// onionSuffix ends the names of Tor's onion services (RFC 7686).
const onionSuffix = ".onion"

// IsOnion reports whether a dns name is in .onion, which is not in the DNS.
func IsOnion(name string) bool { return name == "onion" || strings.HasSuffix(name, onionSuffix) }

var onionBase32 = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// OnionService returns the service that a name in .onion is of, or is, and its
// key, which the name itself holds. ok is false for what is no address of version
// 3 (Tor's rendezvous specification; RFC 9799 §2 allows no others).
func OnionService(name string) (service string, key ed25519.PublicKey, ok bool) {
	labels, isOnion := strings.CutSuffix(strings.TrimPrefix(name, "*."), onionSuffix)
	if !isOnion {
		return "", nil, false
	}
	address := labels[strings.LastIndexByte(labels, '.')+1:]
	// Key, checksum, version: 32, 2 and 1 octets. 35 octets are 56 letters, with no bit to spare.
	b, err := onionBase32.DecodeString(address)
	if err != nil || len(b) != ed25519.PublicKeySize+3 {
		return "", nil, false
	}
	const version = 3
	sum := sha3.Sum256(append([]byte(".onion checksum"+string(b[:ed25519.PublicKeySize])), version))
	if b[34] != version || b[32] != sum[0] || b[33] != sum[1] {
		return "", nil, false
	}
	return address + onionSuffix, ed25519.PublicKey(b[:ed25519.PublicKeySize]), true
}

// OnionName is the address of the service with that key.
func OnionName(key ed25519.PublicKey) string {
	const version = 3
	sum := sha3.Sum256(append([]byte(".onion checksum"+string(key)), version))
	return onionBase32.EncodeToString(append(append([]byte(nil), key...), sum[0], sum[1], version)) + onionSuffix
}

// checkOnion says what is wrong with a name in .onion, "" for nothing or if it is in none.
func checkOnion(name string) string {
	if !IsOnion(name) {
		return ""
	}
	if _, _, ok := OnionService(name); !ok {
		return "a name in .onion is the address of an onion service of version 3, or below one"
	}
	return ""
}
