package store

import (
	"context"
	"fmt"

	"github.com/secsy-pki/secsy-pki/audit"
)

// appendAudit writes e in the transaction that makes its fact true. It has no
// place in the chain yet.
func appendAudit(ctx context.Context, tx Tx, e audit.Entry) error {
	_, err := tx.Exec(ctx, `INSERT INTO audit_entries (id, at, actor, action, object, remote, request, detail)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		e.ID, micros(e.At), e.Actor, e.Action, e.Object, e.Remote, e.Request, string(e.Detail))
	if err != nil {
		return fmt.Errorf("writing audit entry %s: %w", e.Action, err)
	}
	return nil
}
