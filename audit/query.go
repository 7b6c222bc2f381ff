package audit

// A Query selects chained entries for an operator's eyes. Zero fields select
// everything.
type Query struct {
	Action string // exactly
	Object string // exactly
	After  int64  // only places greater than this
	Before int64  // only places less than this; 0: no bound
	Newest bool   // last place first
	Limit  int    // 1 to MaxList; 0 means 50
}

// MaxList bounds one page of a listing.
const MaxList = 500
