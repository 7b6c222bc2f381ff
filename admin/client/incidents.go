package client

import (
	"context"
	"net/url"
	"time"
)

// An IncidentRequest says which certificates are to be replaced, by all of the
// conditions that are not empty, and when. The window is from WindowStart (now if
// empty) to WindowEnd, or within so many seconds from now.
type IncidentRequest struct {
	Name         string `json:"name"`
	Note         string `json:"note,omitempty"` // why, for operators
	URL          string `json:"explanation_url,omitempty"`
	Listed       bool   `json:"listed,omitempty"` // those whose serials AddIncidentSerials gives
	Issuer       string `json:"issuer,omitempty"` // a name or an id
	Profile      string `json:"profile,omitempty"`
	SPKIHash     string `json:"spki_sha256,omitempty"`
	Account      string `json:"account,omitempty"`      // an ACME account's id or URL
	IssuedAfter  string `json:"issued_after,omitempty"` // RFC 3339, as all times here
	IssuedBefore string `json:"issued_before,omitempty"`
	WindowStart  string `json:"window_start,omitempty"`
	WindowEnd    string `json:"window_end,omitempty"`
	Within       int64  `json:"within_seconds,omitempty"`
	DryRun       bool   `json:"dry_run,omitempty"` // only count
}

// DryRun is the status of an incident that was only tried.
const DryRun = "dryRun"

// An Incident is certificates that are to be replaced in a window of its own.
type Incident struct {
	Name         string     `json:"name"`
	Status       string     `json:"status"` // open, ended, or DryRun
	Note         string     `json:"note,omitempty"`
	URL          string     `json:"explanation_url,omitempty"`
	Listed       bool       `json:"listed,omitempty"`
	Serials      int        `json:"serials,omitempty"` // how many it lists
	Issuer       string     `json:"issuer,omitempty"`
	Profile      string     `json:"profile,omitempty"`
	SPKIHash     string     `json:"spki_sha256,omitempty"`
	Requester    string     `json:"requester,omitempty"`
	IssuedAfter  *time.Time `json:"issued_after,omitempty"`
	IssuedBefore *time.Time `json:"issued_before,omitempty"`
	WindowStart  time.Time  `json:"window_start"`
	WindowEnd    time.Time  `json:"window_end"`
	CreatedAt    time.Time  `json:"created_at"`
	CreatedBy    string     `json:"created_by"`
	EndedAt      *time.Time `json:"ended_at,omitempty"`

	Existed  bool      `json:"existed,omitempty"` // creating it changed nothing
	Selected *Selected `json:"selected,omitempty"`
}

// Selected counts the certificates that an incident selects and that are neither
// revoked nor expired.
type Selected struct {
	Certificates int  `json:"certificates"`
	Replaced     int  `json:"replaced"`           // of them
	AtLeast      bool `json:"at_least,omitempty"` // the newest 100,000 were looked at
}

// IncidentList is incidents, those that are open first.
type IncidentList struct {
	Incidents []Incident `json:"incidents"`
}

// IncidentSerials are serials for an incident's list.
type IncidentSerials struct {
	Serials []string `json:"serials"`
}

// AddedSerials is how many serials an incident lists now, and which of those
// that were given are not of certificates that were issued here.
type AddedSerials struct {
	Listed  int      `json:"listed"`
	Unknown []string `json:"unknown,omitempty"`
}

// MaxSerials is how many serials one AddIncidentSerials takes.
const MaxSerials = 300

// CreateIncident opens an incident, or returns the one that is there if it is
// the same.
func (c *Client) CreateIncident(ctx context.Context, r IncidentRequest) (Incident, error) {
	var i Incident
	err := c.post(ctx, "/acme/incidents", r, &i)
	return i, err
}

// AddIncidentSerials puts up to MaxSerials serials on the list of an incident.
// Doing it twice is as good as once.
func (c *Client) AddIncidentSerials(ctx context.Context, name string, serials []string) (AddedSerials, error) {
	var out AddedSerials
	err := c.post(ctx, "/acme/incidents/"+url.PathEscape(name)+"/serials", IncidentSerials{serials}, &out)
	return out, err
}

// ListIncidents returns the incidents that are open, and the newest that are not.
func (c *Client) ListIncidents(ctx context.Context) ([]Incident, error) {
	var list IncidentList
	err := c.get(ctx, "/acme/incidents", nil, &list)
	return list.Incidents, err
}

// Incident returns one, with the count of what it selects.
func (c *Client) Incident(ctx context.Context, name string) (Incident, error) {
	var i Incident
	err := c.get(ctx, "/acme/incidents/"+url.PathEscape(name), nil, &i)
	return i, err
}

// EndIncident ends an incident, for good.
func (c *Client) EndIncident(ctx context.Context, name string) (Incident, error) {
	var i Incident
	err := c.post(ctx, "/acme/incidents/"+url.PathEscape(name)+"/end", struct{}{}, &i)
	return i, err
}
