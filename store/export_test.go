package store

// ListingBackInTime returns c with every filter of List found to be a broad one.
func ListingBackInTime(c *CA) *CA { return &CA{c.db, -1} }
