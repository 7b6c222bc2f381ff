package ca

import (
	"errors"
	"time"
)

var (
	// ErrTooManyIncidents says that MaxIncidents are open.
	ErrTooManyIncidents = errors.New("ca: too many open incidents")
	// ErrIncidentEnded says that the incident is over, and stays so.
	ErrIncidentEnded = errors.New("ca: the incident has ended")
	// ErrIncidentFull says that an incident has all the serials that it may list.
	ErrIncidentFull = errors.New("ca: the incident lists as many serials as it may")
)

const (
	// MaxIncidents is how many incidents are open at a time: all are in memory.
	MaxIncidents = 100
	// MaxIncidentSerials is how many serials one incident lists.
	MaxIncidentSerials = 1_000_000
)

// An Incident says that certain certificates must be replaced in a window of its
// own, whatever they say themselves.
type Incident struct {
	Name string // the operator's, unique for ever
	Note string // why, for operators
	Selector
	Window
	URL       string // what happened, for subscribers
	CreatedAt time.Time
	CreatedBy string
	EndedAt   time.Time // zero: open
	Serials   int       // how many it lists, of an incident that lists them
}

// A Selector selects certificates by all of its fields that are not zero.
type Selector struct {
	Listed       bool // only those whose serial the incident lists
	Issuer       IssuerID
	Profile      string
	SPKIHash     string // lower-case hex
	Requester    string // the actor of the request
	IssuedAfter  time.Time
	IssuedBefore time.Time
}

// Empty reports whether s has no condition.
func (s Selector) Empty() bool { return s == Selector{} }

// Selects reports whether s selects the certificate of r; listed says whether
// its serial is on the incident's list.
func (s Selector) Selects(r Record, listed bool) bool {
	switch {
	case s.Empty(), s.Listed && !listed:
		return false
	case s.Issuer != "" && s.Issuer != r.Issuer, s.Profile != "" && s.Profile != r.Profile:
		return false
	case s.SPKIHash != "" && s.SPKIHash != hexOf(r.SPKIHash[:]), s.Requester != "" && s.Requester != r.Requester:
		return false
	case !s.IssuedAfter.IsZero() && r.CreatedAt.Before(s.IssuedAfter), !s.IssuedBefore.IsZero() && !r.CreatedAt.Before(s.IssuedBefore):
		return false
	}
	return true
}

// Covers is what the incident selects. Where nothing says of which time, and the
// certificate that takes the place of one would be selected as well, it is what
// was issued before the incident: else each would be replaced again and again.
func (i Incident) Covers() Selector {
	s := i.Selector
	if !s.Empty() && !s.Listed && s.SPKIHash == "" && s.IssuedBefore.IsZero() {
		s.IssuedBefore = i.CreatedAt
	}
	return s
}

// Selected are the certificates that an incident selects and that are still to
// be used: neither revoked nor expired.
type Selected struct {
	Certificates int
	Replaced     int  // of them: one that was ordered in its place is there
	AtLeast      bool // not all were looked at
}
