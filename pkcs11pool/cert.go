package pkcs11pool

import (
	"context"
	"crypto/x509"
)

// StoreCertificate stores a certificate beside its key, on each token that has
// the key, in place of the one that is there.
func (p *Pool) StoreCertificate(_ context.Context, ref string, _ *x509.Certificate) error {
	return notYet("storing a certificate of", ref)
}
