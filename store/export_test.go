package store

import "fmt"

// ListingBackInTime returns c with every filter of List found to be a broad one.
func ListingBackInTime(c *CA) *CA { return &CA{c.db, -1} }

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
