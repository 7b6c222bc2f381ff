package crl

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math/big"
	"time"

	"golang.org/x/crypto/cryptobyte"
	cryptobyte_asn1 "golang.org/x/crypto/cryptobyte/asn1"
)

// Extensions of lists (RFC 5280 §5.2).
var (
	oidNumber            = asn1.ObjectIdentifier{2, 5, 29, 20}
	oidDeltaIndicator    = asn1.ObjectIdentifier{2, 5, 29, 27}
	oidDistributionPoint = asn1.ObjectIdentifier{2, 5, 29, 28}
	oidAuthorityKeyID    = asn1.ObjectIdentifier{2, 5, 29, 35}
	oidFreshest          = asn1.ObjectIdentifier{2, 5, 29, 46}
	oidExpiredOnCRL      = asn1.ObjectIdentifier{2, 5, 29, 60}
)

// AuthorityKeyID is the extension that names the issuer's key by its subject
// key identifier (§5.2.1).
func AuthorityKeyID(id []byte) pkix.Extension {
	return extension(oidAuthorityKeyID, false, func(b *cryptobyte.Builder) {
		b.AddASN1(cryptobyte_asn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1(cryptobyte_asn1.Tag(0).ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes(id) })
		})
	})
}

// NumberOf is the extension with the number of a list (§5.2.3).
func NumberOf(n Number) pkix.Extension {
	return extension(oidNumber, false, func(b *cryptobyte.Builder) { b.AddASN1BigInt(big.NewInt(int64(n))) })
}

// DeltaOf is the critical extension that makes a list a delta to the complete
// one of number base (§5.2.4).
func DeltaOf(base Number) pkix.Extension {
	return extension(oidDeltaIndicator, true, func(b *cryptobyte.Builder) { b.AddASN1BigInt(big.NewInt(int64(base))) })
}

// A DistributionPoint says what a list is about.
type DistributionPoint struct {
	URL           string // octet for octet that of the certificates' CRL distribution point
	OnlyUserCerts bool   // no certificates of authorities are on it
}

// Extension is the critical extension that says so (§5.2.5).
func (p DistributionPoint) Extension() pkix.Extension {
	return extension(oidDistributionPoint, true, func(b *cryptobyte.Builder) {
		b.AddASN1(cryptobyte_asn1.SEQUENCE, func(b *cryptobyte.Builder) {
			addPointName(b, p.URL)
			if p.OnlyUserCerts {
				b.AddASN1(cryptobyte_asn1.Tag(1).ContextSpecific(), func(b *cryptobyte.Builder) { b.AddUint8(0xff) })
			}
		})
	})
}

// FreshestAt is the extension that says where deltas to a list are (§5.2.6).
func FreshestAt(url string) pkix.Extension {
	return extension(oidFreshest, false, func(b *cryptobyte.Builder) {
		b.AddASN1(cryptobyte_asn1.SEQUENCE, func(b *cryptobyte.Builder) {
			b.AddASN1(cryptobyte_asn1.SEQUENCE, func(b *cryptobyte.Builder) { addPointName(b, url) })
		})
	})
}

// addPointName adds distributionPoint [0] { fullName [0] { URI [6] } }.
func addPointName(b *cryptobyte.Builder, url string) {
	b.AddASN1(cryptobyte_asn1.Tag(0).Constructed().ContextSpecific(), func(b *cryptobyte.Builder) {
		b.AddASN1(cryptobyte_asn1.Tag(0).Constructed().ContextSpecific(), func(b *cryptobyte.Builder) {
			b.AddASN1(cryptobyte_asn1.Tag(6).ContextSpecific(), func(b *cryptobyte.Builder) { b.AddBytes([]byte(url)) })
		})
	})
}

// ExpiredSince is the extension that says that certificates stay on the list
// which expired since t (X.509 §9.5.2.8).
func ExpiredSince(t time.Time) (pkix.Extension, error) {
	value, err := appendGeneralizedTime(nil, t.Unix())
	if err != nil {
		return pkix.Extension{}, fmt.Errorf("expiredCertsOnCRL: %w", err)
	}
	return pkix.Extension{Id: oidExpiredOnCRL, Value: value}, nil
}

func extension(id asn1.ObjectIdentifier, critical bool, value func(*cryptobyte.Builder)) pkix.Extension {
	var b cryptobyte.Builder
	value(&b)
	return pkix.Extension{Id: id, Critical: critical, Value: b.BytesOrPanic()}
}
