package acme

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

const (
	renewalInfoPath = "renewal-info"

	// Clients take no other Retry-After than from a minute to a day (RFC 9773 §4.3.2).
	minRenewalPoll = time.Minute
	maxRenewalPoll = 24 * time.Hour
	// incidentPoll is when clients look again while an incident is open. The next
	// list of serials may have theirs.
	incidentPoll = time.Hour
	// renewalAge is how long a shared cache may keep an answer: a minute is
	// nothing to a window, and takes from us what a fleet asks through a proxy.
	renewalAge = time.Minute
	// incidentsEvery is how old what a replica knows of incidents may be.
	incidentsEvery = 5 * time.Second
)

// Renewals says what there is to renew.
type Renewals interface {
	// Renewable returns what is known of an issued certificate, without the
	// certificate itself, and if lists what incidents list it: ca.ErrNotFound
	// for none.
	Renewable(ctx context.Context, s ca.Serial, lists bool) (Renewable, error)
	// OrderReplacing returns the order that replaces a certificate and is not
	// invalid: ErrNotFound for none.
	OrderReplacing(ctx context.Context, id CertID) (Order, error)
	// OpenIncidents lists the incidents that have not ended, by rising creation.
	OpenIncidents(ctx context.Context) ([]ca.Incident, error)
}

// A Renewable is a certificate, and the names of the incidents that list it.
type Renewable struct {
	ca.Record
	ListedBy []string
}

// renewalInfo says when a certificate is best renewed (RFC 9773 §4.1). Anybody
// may ask, with a plain GET: nothing is signed, and it costs one read.
func (s *Server) renewalInfo(w http.ResponseWriter, r *http.Request) error {
	// Some clients double the slash before the id, and some leave it out.
	rest := pathValue(r, "*")
	for range 2 {
		rest = strings.TrimPrefix(rest, "/")
	}
	_, keyID, serial, err := parseCertID(rest)
	if err != nil {
		return malformed("the last part of the path is not a certificate's id: base64url of the authority key identifier, a period, base64url of the serial number as in DER, both without padding (RFC 9773 §4.1)")
	}
	c, err := s.renewable(r.Context(), keyID, serial)
	if errors.Is(err, ca.ErrNotFound) {
		return noSuchCertificate()
	}
	if err != nil {
		return err
	}
	now := s.now()
	window, incident := s.windowOf(c)
	h := w.Header()
	h.Set("Retry-After", strconv.FormatInt(int64(s.renewalPoll(c.NotBefore, c.NotAfter)/time.Second), 10))
	h.Set("Cache-Control", "public, max-age="+strconv.Itoa(int(renewalAge/time.Second)))
	s.metrics.renewalInfo.WithLabelValues(whyRenew(c, window, incident, now)).Inc()
	return writeJSON(w, http.StatusOK, wireRenewalInfoOf(window, incident))
}

type wireWindow struct {
	Start string `json:"start"`
	End   string `json:"end"`
}

type wireRenewalInfo struct {
	SuggestedWindow wireWindow `json:"suggestedWindow"`
	ExplanationURL  string     `json:"explanationURL,omitempty"`
}

func wireRenewalInfoOf(w ca.Window, i *ca.Incident) wireRenewalInfo {
	out := wireRenewalInfo{SuggestedWindow: wireWindow{Start: wireTime(w.Start), End: wireTime(w.End)}}
	if i != nil {
		out.ExplanationURL = i.URL
	}
	return out
}

// noSuchCertificate is the one answer for what is unknown, another authority's,
// or never came to be.
func noSuchCertificate() *Problem {
	return &Problem{Type: Malformed, Status: http.StatusNotFound, Detail: "no certificate of this id was issued here"}
}

// renewable finds the certificate of an id, ca.ErrNotFound for none.
func (s *Server) renewable(ctx context.Context, keyID []byte, serial ca.Serial) (Renewable, error) {
	lists := slices.ContainsFunc(s.openIncidents(), func(i ca.Incident) bool { return i.Listed })
	c, err := s.store.Renewable(ctx, serial, lists)
	if err != nil {
		return Renewable{}, err
	}
	issuer, ok := s.ca.Issuer(c.Issuer)
	if !ok || len(issuer.Cert.SubjectKeyId) == 0 || !bytes.Equal(issuer.Cert.SubjectKeyId, keyID) {
		return Renewable{}, ca.ErrNotFound
	}
	return c, nil
}

// windowOf is the certificate's own window, or that of an open incident which
// ends sooner. The incident, if there is one, is that which explains it.
func (s *Server) windowOf(c Renewable) (ca.Window, *ca.Incident) {
	window := c.RenewalWindow()
	var why *ca.Incident
	for _, i := range s.openIncidents() {
		if !i.Covers().Selects(c.Record, slices.Contains(c.ListedBy, i.Name)) {
			continue
		}
		if i.End.Before(window.End) {
			window, why = i.Window, &i
		} else if why == nil && c.Revoked() {
			why = &i // what it was revoked for
		}
	}
	return window, why
}

// whyRenew is what a window comes from, for metrics.
func whyRenew(c Renewable, w ca.Window, i *ca.Incident, now time.Time) string {
	switch {
	case c.Revoked():
		return "revoked"
	case i != nil:
		return "incident"
	case now.Before(w.Start):
		return "early"
	}
	return "due"
}

// renewalPoll is when to ask again: often enough to find the window, which for
// certificates of a day is an hour and a half.
func (s *Server) renewalPoll(notBefore, notAfter time.Time) time.Duration {
	w := ca.SuggestedWindow(notBefore, notAfter)
	d := min(s.cfg.RenewalPoll, w.End.Sub(w.Start)/2)
	if len(s.openIncidents()) > 0 {
		d = min(d, incidentPoll)
	}
	return min(max(d, minRenewalPoll), maxRenewalPoll)
}

func (s *Server) openIncidents() []ca.Incident {
	if p := s.incidents.Load(); p != nil {
		return *p
	}
	return nil
}

// OpenIncidents is how many incidents are open, as this process knows it.
func (s *Server) OpenIncidents() int { return len(s.openIncidents()) }

// pollIncidents keeps the open incidents at hand. While the database is away
// those of before count.
func (s *Server) pollIncidents(ctx context.Context) (bool, error) {
	list, err := s.store.OpenIncidents(ctx)
	if err != nil {
		return false, fmt.Errorf("reading incidents: %w", err)
	}
	s.incidents.Store(&list)
	return false, nil
}
