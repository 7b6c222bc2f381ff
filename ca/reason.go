package ca

import (
	"fmt"
	"strconv"
)

// The reasons (RFC 5280 §5.3.1). 7 is not used.
const (
	Unspecified          Reason = 0
	KeyCompromise        Reason = 1
	CACompromise         Reason = 2
	AffiliationChanged   Reason = 3
	Superseded           Reason = 4
	CessationOfOperation Reason = 5
	CertificateHold      Reason = 6
	RemoveFromCRL        Reason = 8
	PrivilegeWithdrawn   Reason = 9
	AACompromise         Reason = 10
)

// AbandonedReason is the reason of a certificate that was perhaps signed and
// certainly never handed out: it will not be used. Unspecified would be left
// out of the CRL (RFC 5280 §5.3.1) and leave whoever meets the entry guessing;
// superseded would be untrue whenever the request is not tried again.
const AbandonedReason = CessationOfOperation

func (r Reason) String() string {
	switch r {
	case Unspecified:
		return "unspecified"
	case KeyCompromise:
		return "keyCompromise"
	case CACompromise:
		return "cACompromise"
	case AffiliationChanged:
		return "affiliationChanged"
	case Superseded:
		return "superseded"
	case CessationOfOperation:
		return "cessationOfOperation"
	case CertificateHold:
		return "certificateHold"
	case RemoveFromCRL:
		return "removeFromCRL"
	case PrivilegeWithdrawn:
		return "privilegeWithdrawn"
	case AACompromise:
		return "aACompromise"
	}
	return strconv.Itoa(int(r))
}

// check says whether the certificate of an end entity may be revoked for r.
// BR §7.2.2 knows no others for subscribers but for the hold, which is the
// issuer's to allow; 2 and 10 are about authorities, and 8 ends a hold.
func (r Reason) check() error {
	switch r {
	case Unspecified, KeyCompromise, AffiliationChanged, Superseded, CessationOfOperation, CertificateHold, PrivilegeWithdrawn:
		return nil
	}
	return &Refusal{Code: BadReason, Detail: fmt.Sprintf("revocation reason %d is not allowed; 0, 1, 3, 4, 5 and 9 are, and 6 where certificates may be put on hold", int(r))}
}
