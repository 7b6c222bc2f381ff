package pkcs11pool

import (
	"context"

	"github.com/secsy-pki/secsy-pki/keys"
)

// Key implements keys.Store. The reference is a label, or a URI of RFC 7512
// with the label, the ID or both: "pkcs11:object=issuing;id=%01".
func (p *Pool) Key(_ context.Context, ref string) (keys.Key, error) {
	return nil, notYet("finding", ref)
}
