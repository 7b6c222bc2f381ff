// Package admin is the operator's API: it shows certificates, issuers, ACME
// accounts and the audit chain, makes keys for such accounts, and revokes.
//
// It is served over HTTP, with JSON both ways and errors as RFC 9457 problems,
// on a local socket whose file permissions say who is an operator.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/crl"
	"github.com/secsy-pki/secsy-pki/peer"
)

// An Authority revokes, as ca.Authority says.
type Authority interface {
	Revoke(ctx context.Context, r ca.Revocation) error
	RevokeAll(ctx context.Context, rs []ca.Revocation) ([]error, error)
	RehearseRevoke(ctx context.Context, rs []ca.Revocation) ([]ca.Record, []error, error)
	Release(ctx context.Context, s ca.Serial, by ca.Requester) error
}

// Certificates finds what was issued. A serial never assigned is ca.ErrNotFound.
type Certificates interface {
	Record(ctx context.Context, s ca.Serial) (ca.Record, error)
	// List returns a page, newest first, and the cursor of the next one.
	List(ctx context.Context, q ca.ListQuery) ([]ca.Record, string, error)
}

// An AuditLog is the audit chain, to read and to verify.
type AuditLog interface {
	audit.Reader
	List(ctx context.Context, q audit.Query) ([]audit.Record, error)
}

// CRLs finds the CRL published last: crl.ErrNone for none.
type CRLs interface {
	Latest(ctx context.Context, s crl.Series) (crl.CRL, error)
}

// ErrUnauthenticated says that nothing proves who the caller is.
var ErrUnauthenticated = errors.New("admin: caller is not known")

// Config is what a Server is made of.
type Config struct {
	Authority    Authority
	Certificates Certificates
	Issuers      []*ca.Issuer
	Audit        AuditLog
	CRLs         CRLs      // nil: issuers are shown without their CRLs
	CRLServer    CRLServer // nil: nothing is asked about CRLs
	ExternalKeys ExternalKeys
	Accounts     Accounts
	Directories  []Directory // of ACME; none: it is off
	Incidents    Incidents   // nil: there are none
	Enrolment    *Enrolment  // nil: no device enrols

	// Authenticate says who calls, as the actor of audit entries; an error
	// matching ErrUnauthenticated refuses the request. Nil means LocalOperator.
	Authenticate func(r *http.Request) (actor string, err error)

	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

// A Server answers operators.
type Server struct {
	authority    Authority
	certificates Certificates
	issuers      []*ca.Issuer
	audit        AuditLog
	crls         CRLs
	crlServer    CRLServer
	externalKeys ExternalKeys
	accounts     Accounts
	directories  []Directory
	incidents    Incidents
	enrolment    *Enrolment
	authenticate func(r *http.Request) (string, error)
	logger       *slog.Logger
	requests     *prometheus.CounterVec
	verifying    chan struct{} // holds one: the verification that runs
}

// New returns a server; serve its Handler.
func New(c Config) (*Server, error) {
	if c.Authority == nil || c.Certificates == nil || c.Audit == nil || c.ExternalKeys == nil || c.Accounts == nil || c.Logger == nil {
		return nil, errors.New("making operator API: Authority, Certificates, Audit, ExternalKeys, Accounts and Logger are needed")
	}
	s := &Server{
		authority: c.Authority, certificates: c.Certificates, issuers: slices.Clone(c.Issuers), audit: c.Audit, crls: c.CRLs, crlServer: c.CRLServer, incidents: c.Incidents, enrolment: c.Enrolment,
		externalKeys: c.ExternalKeys, accounts: c.Accounts, directories: slices.Clone(c.Directories),
		authenticate: c.Authenticate, logger: c.Logger,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "secsy", Subsystem: "admin", Name: "requests_total",
			Help: "Requests to the operator API by operation and status.",
		}, []string{"operation", "status"}),
		verifying: make(chan struct{}, 1),
	}
	if s.authenticate == nil {
		s.authenticate = LocalOperator
	}
	if c.Registerer != nil {
		if err := c.Registerer.Register(s.requests); err != nil {
			return nil, fmt.Errorf("registering metrics of the operator API: %w", err)
		}
	}
	return s, nil
}

// LocalOperator trusts whoever the kernel let open the local socket, and nobody
// who came another way.
func LocalOperator(r *http.Request) (string, error) {
	cred, ok := peer.CredFrom(r.Context())
	if !ok {
		return "", ErrUnauthenticated
	}
	return "operator:uid/" + strconv.FormatUint(uint64(cred.UID), 10), nil
}

// A handler answers, or returns the error to answer with.
type handler func(w http.ResponseWriter, r *http.Request) error

// Handler serves all paths under /api/v1.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	route := func(path, name string, methods map[string]handler) {
		mux.Handle("/api/v1"+path, s.serve(name, byMethod(methods)))
	}
	get := func(h handler) map[string]handler { return map[string]handler{http.MethodGet: h, http.MethodHead: h} }
	post := func(h handler) map[string]handler { return map[string]handler{http.MethodPost: h} }
	route("/certificates", "list_certificates", get(s.listCertificates))
	route("/certificates/{serial}", "certificate", get(s.certificate))
	route("/certificates/{serial}/revoke", "revoke", post(s.revoke))
	route("/certificates/{serial}/release", "release", post(s.release))
	route("/certificates/revoke", "revoke_many", post(s.revokeMany))
	route("/issuers", "list_issuers", get(s.listIssuers))
	if s.crlServer != nil {
		route("/crls", "list_crls", get(s.listCRLs))
		route("/crls/rebuild", "rebuild_crls", post(s.rebuildCRLs))
		route("/crls/files/{path...}", "crl", get(s.crlFile))
	}
	route("/acme/external-keys", "external_keys", map[string]handler{
		http.MethodGet: s.listExternalKeys, http.MethodHead: s.listExternalKeys, http.MethodPost: s.createExternalKey,
	})
	route("/acme/external-keys/{kid}/revoke", "revoke_external_key", post(s.revokeExternalKey))
	route("/acme/accounts", "list_accounts", get(s.listAccounts))
	route("/acme/accounts/{id}", "account", get(s.account))
	route("/acme/accounts/{id}/revoke", "revoke_account", post(s.revokeAccount))
	route("/audit", "list_audit", get(s.listAudit))
	route("/audit/verify", "verify_audit", post(s.verifyAudit))
	if s.incidents != nil {
		route("/acme/incidents", "incidents", map[string]handler{http.MethodGet: s.listIncidents, http.MethodPost: s.createIncident})
		route("/acme/incidents/{name}", "incident", get(s.incident))
		route("/acme/incidents/{name}/serials", "add_incident_serials", post(s.addIncidentSerials))
		route("/acme/incidents/{name}/end", "end_incident", post(s.endIncident))
	}
	if s.enrolment != nil {
		s.enrolmentRoutes(route)
	}
	mux.Handle("/", s.serve("none", func(http.ResponseWriter, *http.Request) error { return errNoSuchPath }))
	return mux
}

func byMethod(methods map[string]handler) handler {
	var names []string
	for m := range methods {
		names = append(names, m)
	}
	slices.Sort(names)
	allow := strings.Join(names, ", ")
	return func(w http.ResponseWriter, r *http.Request) error {
		h, ok := methods[r.Method]
		if !ok {
			w.Header().Set("Allow", allow)
			return errMethod
		}
		return h(w, r)
	}
}

type actorKey struct{}

// serve finds out who calls, then answers, errors included.
func (s *Server) serve(name string, h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		actor, err := s.authenticate(r)
		if err == nil {
			w.Header().Set("Cache-Control", "no-store")
			peer.Annotate(r.Context(), "actor", actor)
			err = h(w, r.WithContext(context.WithValue(r.Context(), actorKey{}, actor)))
		}
		status := http.StatusOK
		if err != nil {
			status = s.answerError(w, r, err)
		}
		s.requests.WithLabelValues(name, strconv.Itoa(status)).Inc()
	})
}

// requester is the caller, for the audit log.
func requester(ctx context.Context) ca.Requester {
	p := peer.From(ctx)
	actor, _ := ctx.Value(actorKey{}).(string)
	return ca.Requester{Actor: actor, Addr: p.Addr, RequestID: p.RequestID}
}

// timePtr is nil for the zero time, which JSON would show as year 1.
func timePtr(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
