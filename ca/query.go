package ca

// A ListQuery selects records for an operator's eyes, newest first. Zero fields
// select everything.
type ListQuery struct {
	Name         string // this name and all below it
	SerialPrefix string // lower-case hex
	State        State
	Issuer       IssuerID
	Revoked      bool   // only revoked ones
	Unrevoked    bool   // only those that are not
	Before       string // the cursor that the page before returned
	Limit        int    // 1 to MaxList; 0 means 50
}

// MaxList bounds one page of a listing.
const MaxList = 500
