package ca

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca/weakkey"
)

// Adopt records the certificate of an authority as issued if one of the issuers
// has signed it, which happens outside of any ledger: its own, one of an
// authority below it, a cross-certificate. From then on its status is known, and
// it can be revoked, like any other's. It reports whether it was new, and fails
// with ErrSerialTaken if another certificate has that serial.
func (a *Authority) Adopt(ctx context.Context, cert *x509.Certificate) (bool, error) {
	for _, is := range a.issuers {
		if !bytes.Equal(cert.RawIssuer, is.Cert.RawSubject) || cert.CheckSignatureFrom(is.Cert) != nil {
			continue
		}
		hash, err := weakkey.SPKIHash(cert.PublicKey)
		if err != nil {
			return false, err
		}
		c := Certificate{
			ID: audit.NewID(), Serial: SerialOf(cert.SerialNumber), Issuer: is.ID, Profile: ProfileAuthority, DER: cert.Raw,
			NotBefore: cert.NotBefore, NotAfter: cert.NotAfter,
		}
		added, err := a.store.Adopt(ctx, c, hash, c.adopted(hash))
		if err != nil {
			return false, fmt.Errorf("recording the authority's certificate %s: %w", c.Serial, err)
		}
		return added, nil
	}
	return false, nil
}

// adopted is the entry of Store.Adopt.
func (c Certificate) adopted(spki [32]byte) audit.Entry {
	return Requester{Actor: "system"}.entry(ActionAdopted, c.Serial, intentDetail{
		ID: c.ID, Issuer: c.Issuer, Profile: c.Profile, NotBefore: c.NotBefore.UTC(), NotAfter: c.NotAfter.UTC(),
		SPKIHash: hexOf(spki[:]), DERHash: sha256Hex(c.DER),
	})
}
