package store

import (
	"fmt"

	"github.com/secsy-pki/secsy-pki/crl"
)

// ListingBackInTime returns c with every filter of List found to be a broad one.
func ListingBackInTime(c *CA) *CA { return &CA{c.db, -1} }

// Listed is what is asked for a list.
func Listed(s crl.Selection) (query string, args []any) {
	cond, args := matches(s)
	return `SELECT c.serial FROM certificates c WHERE ` + cond + ` ORDER BY c.serial`, args
}

// ShardChanged is what is asked of each shard all the time.
const ShardChanged = shardChanged

// What the ACME edge asks while others wait.
const (
	DueOrders       = dueOrders
	DueValidations  = dueValidations
	Backlog         = backlog
	Processing      = processing
	CertificateHeld = certificateHeld
	SameOrder       = sameOrder
	PendingAhead    = pendingAhead
	ListOrders      = listOrders
	AheadDue        = aheadDue
	AheadAssigned   = aheadAssigned
)

// Reusable is what is asked about one name and one challenge type.
var Reusable = fmt.Sprintf(reusable, "$6", "$7")
