package cms

import (
	"crypto"
	_ "crypto/sha1" // by option alone: SCEP clients of before RFC 8894
	_ "crypto/sha256"
	_ "crypto/sha512"
	"encoding/asn1"
)

var (
	oidSHA1   = asn1.ObjectIdentifier{1, 3, 14, 3, 2, 26}
	oidSHA256 = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 1}
	oidSHA384 = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 2}
	oidSHA512 = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 3}

	oidRSA           = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}
	oidOAEP          = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 7}
	oidMGF1          = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 8}
	oidPSpecified    = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 9}
	oidSHA1WithRSA   = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 5}
	oidSHA256WithRSA = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}
	oidSHA384WithRSA = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 12}
	oidSHA512WithRSA = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 13}

	oidECDSAWithSHA1   = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 1}
	oidECDSAWithSHA256 = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 2}
	oidECDSAWithSHA384 = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 3}
	oidECDSAWithSHA512 = asn1.ObjectIdentifier{1, 2, 840, 10045, 4, 3, 4}

	oidAES128CBC = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 1, 2}
	oidAES192CBC = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 1, 22}
	oidAES256CBC = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 1, 42}
	oid3DESCBC   = asn1.ObjectIdentifier{1, 2, 840, 113549, 3, 7}

	oidPBKDF2         = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 5, 12}
	oidPWRIKEK        = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 16, 3, 9}
	oidHMACWithSHA1   = asn1.ObjectIdentifier{1, 2, 840, 113549, 2, 7}
	oidHMACWithSHA256 = asn1.ObjectIdentifier{1, 2, 840, 113549, 2, 9}
	oidHMACWithSHA384 = asn1.ObjectIdentifier{1, 2, 840, 113549, 2, 10}
	oidHMACWithSHA512 = asn1.ObjectIdentifier{1, 2, 840, 113549, 2, 11}
)

// An oidsOf are the names of a hash and of what is done with it.
type oidsOf struct {
	hash                     crypto.Hash
	digest, rsa, ecdsa, hmac asn1.ObjectIdentifier
}

var hashes = []oidsOf{
	{crypto.SHA1, oidSHA1, oidSHA1WithRSA, oidECDSAWithSHA1, oidHMACWithSHA1},
	{crypto.SHA256, oidSHA256, oidSHA256WithRSA, oidECDSAWithSHA256, oidHMACWithSHA256},
	{crypto.SHA384, oidSHA384, oidSHA384WithRSA, oidECDSAWithSHA384, oidHMACWithSHA384},
	{crypto.SHA512, oidSHA512, oidSHA512WithRSA, oidECDSAWithSHA512, oidHMACWithSHA512},
}

// hashOf returns 0 for a hash that is not known.
func hashOf(digest asn1.ObjectIdentifier) crypto.Hash {
	for _, h := range hashes {
		if h.digest.Equal(digest) {
			return h.hash
		}
	}
	return 0
}

// oids returns no names for a hash that is not known.
func oids(hash crypto.Hash) (oidsOf, bool) {
	for _, h := range hashes {
		if h.hash == hash {
			return h, true
		}
	}
	return oidsOf{}, false
}
