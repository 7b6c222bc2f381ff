package admin

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
)

// Incidents keeps what must be replaced sooner. The audit entry given to a method
// is in the same transaction as the fact, and left out where nothing changed. An
// incident that is not there is ca.ErrNotFound.
type Incidents interface {
	// CreateIncident stores i, or returns the one of its name that is there,
	// with false; or ca.ErrTooManyIncidents.
	CreateIncident(ctx context.Context, i ca.Incident, e audit.Entry) (ca.Incident, bool, error)
	Incident(ctx context.Context, name string) (ca.Incident, error)
	// ListIncidents lists open ones first, then the newest.
	ListIncidents(ctx context.Context, limit int) ([]ca.Incident, error)
	// EndIncident ends one, or returns it as it is if it has ended.
	EndIncident(ctx context.Context, name string, e audit.Entry) (ca.Incident, error)
	// AddIncidentSerials adds to the list of an open incident that has one, and
	// returns those that were never issued: ca.ErrIncidentEnded, ca.ErrIncidentFull.
	AddIncidentSerials(ctx context.Context, name string, serials []ca.Serial, e audit.Entry) (ca.Incident, []ca.Serial, error)
	CountSelected(ctx context.Context, name string, sel ca.Selector, now time.Time) (ca.Selected, error)
}

// Audit actions of incidents.
const (
	actionIncidentCreated = "incident.created"
	actionIncidentListed  = "incident.serials-added"
	actionIncidentEnded   = "incident.ended"
)

const (
	maxIncidents = 200 // in a list
	// maxWithin bounds a window that is given by its length: longer than that,
	// no certificate is in a hurry.
	maxWithin = 90 * 24 * time.Hour
)

var incidentName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

func (s *Server) createIncident(w http.ResponseWriter, r *http.Request) error {
	var req client.IncidentRequest
	if err := readBody(w, r, map[string]any{
		"name": &req.Name, "note": &req.Note, "explanation_url": &req.URL, "listed": &req.Listed, "issuer": &req.Issuer, "profile": &req.Profile,
		"spki_sha256": &req.SPKIHash, "account": &req.Account, "issued_after": &req.IssuedAfter, "issued_before": &req.IssuedBefore,
		"window_start": &req.WindowStart, "window_end": &req.WindowEnd, "within_seconds": &req.Within, "dry_run": &req.DryRun,
	}); err != nil {
		return err
	}
	i, err := s.readIncident(r.Context(), req)
	if err != nil {
		return err
	}
	if req.DryRun {
		return s.answerIncident(r.Context(), w, i, client.DryRun, false)
	}
	e := incidentEntry(r.Context(), actionIncidentCreated, i.Name, wireIncident(i, "open"))
	got, created, err := s.incidents.CreateIncident(r.Context(), i, e)
	if errors.Is(err, ca.ErrTooManyIncidents) {
		return problemf(http.StatusConflict, client.CodeTooMany, "%d incidents are open, which is the most; end one of them", ca.MaxIncidents)
	}
	if err != nil {
		return fmt.Errorf("creating incident: %w", err)
	}
	if !created {
		if err := sameIncident(got, i, req); err != nil {
			return err
		}
	}
	return s.answerIncident(r.Context(), w, got, "open", !created)
}

// sameIncident says whether the one that is there is what was asked for, once more.
func sameIncident(is, want ca.Incident, req client.IncidentRequest) error {
	switch {
	case !is.EndedAt.IsZero():
		return problemf(http.StatusConflict, client.CodeConflict, "the incident %q has ended; names are for ever, so take another one", is.Name)
	case is.Selector != want.Selector:
		return problemf(http.StatusConflict, client.CodeConflict, "there is an incident %q that selects other certificates; end it, or take another name", is.Name)
	case is.URL != want.URL || is.Note != want.Note:
		return problemf(http.StatusConflict, client.CodeConflict, "there is an incident %q with another note or explanation", is.Name)
	}
	same := is.End.Sub(is.Start) == want.End.Sub(want.Start)
	if req.Within == 0 {
		same = is.End.Equal(want.End) && (req.WindowStart == "" || is.Start.Equal(want.Start))
	}
	if !same {
		return problemf(http.StatusConflict, client.CodeConflict, "there is an incident %q with another window, from %s to %s",
			is.Name, is.Start.Format(time.RFC3339), is.End.Format(time.RFC3339))
	}
	return nil
}

func (s *Server) readIncident(ctx context.Context, req client.IncidentRequest) (ca.Incident, error) {
	now := time.Now().UTC().Truncate(time.Microsecond)
	i := ca.Incident{Name: req.Name, Note: req.Note, URL: req.URL, CreatedAt: now, CreatedBy: requester(ctx).Actor}
	if !incidentName.MatchString(req.Name) {
		return i, invalid("name", "is not 1 to 64 lower-case letters, digits, dots, dashes and underscores, the first a letter or digit")
	}
	if len(req.Note) > maxText || !utf8.ValidString(req.Note) {
		return i, invalid("note", "is longer than %d bytes or not text", maxText)
	}
	if u, err := url.Parse(req.URL); req.URL != "" && (err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || len(req.URL) > maxText) {
		return i, invalid("explanation_url", "is not an http or https URL of up to %d bytes", maxText)
	}
	var err error
	if i.Selector, err = s.readSelector(req); err != nil {
		return i, err
	}
	i.Window, err = readWindow(req, now)
	return i, err
}

func (s *Server) readSelector(req client.IncidentRequest) (ca.Selector, error) {
	sel := ca.Selector{Listed: req.Listed, Profile: req.Profile}
	if req.Issuer != "" {
		if sel.Issuer = s.issuerOf(req.Issuer); !s.knowsIssuer(sel.Issuer) {
			return sel, invalid("issuer", "is not the name or id of an issuer of this server")
		}
	}
	if len(req.Profile) > maxText || !utf8.ValidString(req.Profile) {
		return sel, invalid("profile", "is longer than %d bytes or not text", maxText)
	}
	var err error
	if sel.SPKIHash, err = spkiHashOf(req.SPKIHash); err != nil {
		return sel, err
	}
	if sel.Requester, err = accountOf(req.Account); err != nil {
		return sel, err
	}
	if sel.IssuedAfter, err = timeOf("issued_after", req.IssuedAfter); err != nil {
		return sel, err
	}
	if sel.IssuedBefore, err = timeOf("issued_before", req.IssuedBefore); err != nil {
		return sel, err
	}
	if sel.Empty() {
		return sel, problemf(http.StatusBadRequest, client.CodeInvalidParameter, "an incident needs a condition: serials, issuer, profile, key, account or time of issuance")
	}
	return sel, nil
}

// spkiHashOf reads the hash of a public key; none is none.
func spkiHashOf(v string) (string, error) {
	h := hexDigits(v)
	if b, err := hex.DecodeString(h); h != "" && (err != nil || len(b) != 32) {
		return "", invalid("spki_sha256", "is not the SHA-256 of a public key in hex, as cert show prints it")
	}
	return h, nil
}

// accountOf reads an account's id or URL as the actor that it is; none is none.
func accountOf(v string) (string, error) {
	if v == "" {
		return "", nil
	}
	id := v[strings.LastIndexByte(v, '/')+1:]
	if b, err := hex.DecodeString(id); err != nil || len(b) != 16 {
		return "", invalid("account", "is not the id of an ACME account, the last part of its URL")
	}
	return "acme:account/" + id, nil
}

func (s *Server) knowsIssuer(id ca.IssuerID) bool {
	for _, i := range s.issuers {
		if i.ID == id {
			return true
		}
	}
	return false
}

func readWindow(req client.IncidentRequest, now time.Time) (ca.Window, error) {
	start, err := timeOf("window_start", req.WindowStart)
	if err != nil {
		return ca.Window{}, err
	}
	end, err := timeOf("window_end", req.WindowEnd)
	if err != nil {
		return ca.Window{}, err
	}
	if (req.Within == 0) == end.IsZero() {
		return ca.Window{}, invalid("window_end", "or within_seconds is needed, and not both")
	}
	if start.IsZero() {
		start = now.Truncate(time.Second)
	}
	if req.Within != 0 {
		if req.WindowStart != "" || req.Within < 1 || time.Duration(req.Within) > maxWithin/time.Second {
			return ca.Window{}, invalid("within_seconds", "is from 1 to %d, from now on", maxWithin/time.Second)
		}
		end = start.Add(time.Duration(req.Within) * time.Second)
	}
	if !end.After(start) {
		return ca.Window{}, invalid("window_end", "is not after the start of the window, %s", start.Format(time.RFC3339))
	}
	return ca.Window{Start: start, End: end}, nil
}

// timeOf reads a time, to the second; none is zero.
func timeOf(name, v string) (time.Time, error) {
	if v == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, v)
	if err != nil || t.Year() < 1970 || t.Year() > 9999 {
		return time.Time{}, invalid(name, "is not a time such as 2026-05-01T12:00:00Z")
	}
	return t.UTC().Truncate(time.Second), nil
}

func (s *Server) listIncidents(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	list, err := s.incidents.ListIncidents(r.Context(), maxIncidents)
	if err != nil {
		return fmt.Errorf("listing incidents: %w", err)
	}
	out := client.IncidentList{Incidents: make([]client.Incident, 0, len(list))}
	for _, i := range list {
		out.Incidents = append(out.Incidents, wireIncident(i, "open"))
	}
	return answer(w, out)
}

func (s *Server) incident(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	name := r.PathValue("name")
	i, err := s.incidents.Incident(r.Context(), name)
	if err != nil {
		return noIncident(name, err)
	}
	return s.answerIncident(r.Context(), w, i, "open", false)
}

func noIncident(name string, err error) error {
	if errors.Is(err, ca.ErrNotFound) {
		return problemf(http.StatusNotFound, client.CodeNotFound, "there is no incident %.100q", name)
	}
	return fmt.Errorf("incident: %w", err)
}

func (s *Server) endIncident(w http.ResponseWriter, r *http.Request) error {
	if err := readBody(w, r, nil); err != nil {
		return err
	}
	name := r.PathValue("name")
	i, err := s.incidents.EndIncident(r.Context(), name, incidentEntry(r.Context(), actionIncidentEnded, name, nil))
	if err != nil {
		return noIncident(name, err)
	}
	return answer(w, wireIncident(i, "open"))
}

func (s *Server) addIncidentSerials(w http.ResponseWriter, r *http.Request) error {
	var list []string
	if err := readBody(w, r, map[string]any{"serials": &list}); err != nil {
		return err
	}
	if len(list) == 0 || len(list) > client.MaxSerials {
		return invalid("serials", "has %d of them; 1 to %d are taken at a time", len(list), client.MaxSerials)
	}
	serials := make([]ca.Serial, 0, len(list))
	for _, v := range list {
		serial, err := serialOf(v)
		if err != nil {
			return err
		}
		serials = append(serials, serial)
	}
	name := r.PathValue("name")
	e := incidentEntry(r.Context(), actionIncidentListed, name, map[string]any{"given": len(serials), "first": serials[0], "last": serials[len(serials)-1]})
	i, unknown, err := s.incidents.AddIncidentSerials(r.Context(), name, serials, e)
	switch {
	case errors.Is(err, ca.ErrIncidentEnded):
		return problemf(http.StatusConflict, client.CodeConflict, "the incident %q has ended, or selects certificates by other things than their serials", name)
	case errors.Is(err, ca.ErrIncidentFull):
		return problemf(http.StatusConflict, client.CodeTooMany, "an incident lists at most %d serials; open another one for the rest", ca.MaxIncidentSerials)
	case err != nil:
		return noIncident(name, err)
	}
	out := client.AddedSerials{Listed: i.Serials}
	for _, u := range unknown {
		out.Unknown = append(out.Unknown, string(u))
	}
	return answer(w, out)
}

// answerIncident answers with the count of what it selects, unless it ended.
func (s *Server) answerIncident(ctx context.Context, w http.ResponseWriter, i ca.Incident, status string, existed bool) error {
	out := wireIncident(i, status)
	out.Existed = existed
	if i.EndedAt.IsZero() {
		n, err := s.incidents.CountSelected(ctx, i.Name, i.Covers(), time.Now())
		if err != nil {
			return fmt.Errorf("counting certificates: %w", err)
		}
		out.Selected = &client.Selected{Certificates: n.Certificates, Replaced: n.Replaced, AtLeast: n.AtLeast}
	}
	return answer(w, out)
}

func wireIncident(i ca.Incident, status string) client.Incident {
	if !i.EndedAt.IsZero() {
		status = "ended"
	}
	return client.Incident{
		Name: i.Name, Status: status, Note: i.Note, URL: i.URL, Listed: i.Listed, Serials: i.Serials, Issuer: string(i.Issuer), Profile: i.Profile,
		SPKIHash: i.SPKIHash, Requester: i.Requester, IssuedAfter: timePtr(i.IssuedAfter), IssuedBefore: timePtr(i.IssuedBefore),
		WindowStart: i.Start, WindowEnd: i.End, CreatedAt: i.CreatedAt, CreatedBy: i.CreatedBy, EndedAt: timePtr(i.EndedAt),
	}
}

func incidentEntry(ctx context.Context, action, name string, detail any) audit.Entry {
	by := requester(ctx)
	e := audit.New(by.Actor, action, "incident/"+name, detail)
	if by.Addr.IsValid() {
		e.Remote = by.Addr.String()
	}
	e.Request = by.RequestID
	return e
}
