package ca

import "time"

// A ListQuery selects records for an operator's eyes, newest first. Zero fields
// select everything.
type ListQuery struct {
	Name         string // this name and all below it
	SerialPrefix string // lower-case hex
	State        State
	Issuer       IssuerID
	Profile      string
	Requester    string // the actor of the request
	SPKIHash     string // lower-case hex
	ListedBy     string // the incident that lists the serial
	Reason       Reason // of those revoked, and not Unspecified
	Revoked      bool   // only revoked ones
	Unrevoked    bool   // only those that are not

	IssuedAfter   time.Time // created then or later
	IssuedBefore  time.Time
	NotBeforeFrom time.Time
	NotBeforeTo   time.Time // and not then
	NotAfterFrom  time.Time

	Before string // the cursor that the page before returned
	Limit  int    // 1 to MaxList; 0 means 50
}

// MaxList bounds one page of a listing.
const MaxList = 500
