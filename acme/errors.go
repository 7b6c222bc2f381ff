package acme

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/gate"
)

// translate turns any error into what the client hears of it. Only a Problem
// and a ca.Refusal have something to say to strangers.
func translate(err error) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if r, ok := errors.AsType[*ca.Refusal](err); ok {
		return refused(r)
	}
	if g, ok := errors.AsType[*gate.Refused](err); ok {
		return &Problem{
			Type: RateLimited, Status: http.StatusServiceUnavailable, RetryAfter: max(g.RetryAfter, time.Second), Err: err,
			Detail: "the server has more to do than it can; try again when Retry-After says",
		}
	}
	switch {
	case errors.Is(err, ErrNotFound):
		return notHere()
	case errors.Is(err, ErrMoved):
		return &Problem{Type: Malformed, Status: http.StatusConflict, Detail: "the object was changed by another request at the same time; read it again", Err: err}
	case errors.Is(err, ca.ErrAlreadyRevoked):
		return &Problem{Type: AlreadyRevoked, Detail: "the certificate is revoked already"}
	}
	return &Problem{Type: ServerInternal, Detail: "the server could not do this; it has been logged", Err: err}
}

// refused translates the authority's no.
func refused(r *ca.Refusal) *Problem {
	p := refusedOne(r)
	if r.Identifier == nil && len(r.Others) == 0 {
		return &p
	}
	// RFC 8555 §6.7.1: an identifier stands in a subproblem only.
	top := p
	top.Identifier = nil
	top.Subproblems = append(top.Subproblems, p)
	for _, o := range r.Others {
		sub := refusedOne(o)
		top.Subproblems = append(top.Subproblems, sub)
		if sub.Type != top.Type {
			top.Type, top.Status = Compound, 0
		}
		top.RetryAfter = max(top.RetryAfter, sub.RetryAfter)
	}
	if len(r.Others) > 0 {
		top.Detail = "several identifiers are refused; see the subproblems"
	}
	return &top
}

func refusedOne(r *ca.Refusal) Problem {
	p := Problem{Detail: r.Detail, Identifier: r.Identifier, RetryAfter: r.RetryAfter, Err: r.Err}
	switch r.Code {
	case ca.BadCSR:
		p.Type = BadCSR
	case ca.BadPublicKey:
		p.Type = BadPublicKey
	case ca.RejectedIdentifier:
		p.Type = RejectedIdentifier
	case ca.Unsupported:
		p.Type = UnsupportedIdentifier
	case ca.BadValidity, ca.Malformed:
		p.Type = Malformed
	case ca.UnknownProfile:
		p.Type = InvalidProfile
	case ca.BadReason:
		p.Type = BadRevocationReason
	case ca.Busy:
		// Some clients wait only on a 503 of this type, none on a 429 alone.
		p.Type, p.Status = RateLimited, http.StatusServiceUnavailable
	case ca.Forbidden:
		p.Type = Unauthorized
	default:
		p.Type = ServerInternal
	}
	return p
}

// status is the HTTP status of a problem that names none.
func (p *Problem) status() int {
	if p.Status != 0 {
		return p.Status
	}
	switch p.Type {
	case Unauthorized, OrderNotReady, CAA, UserActionRequired, ExternalAccountRequired,
		AutoRenewalCanceled, AutoRenewalExpired, AutoRenewalRevocationNotSupported:
		return http.StatusForbidden
	case RateLimited:
		return http.StatusTooManyRequests
	case AlreadyReplaced:
		return http.StatusConflict
	case ServerInternal:
		return http.StatusInternalServerError
	}
	return http.StatusBadRequest
}

// aboutName wraps what is wrong with one name as RFC 8555 §6.7.1 wants it: the
// identifier in a subproblem.
func aboutName(p Problem, id ca.Identifier) Problem {
	top := Problem{Type: p.Type, Status: p.status(), Detail: id.Value + ": " + p.Detail}
	p.Identifier = &id
	top.Subproblems = append(slices.Clone(p.Subproblems), p)
	return top
}

func isMoved(err error) bool { return errors.Is(err, ErrMoved) }

func malformed(detail string) *Problem { return &Problem{Type: Malformed, Detail: detail} }

func unauthorized(detail string) *Problem { return &Problem{Type: Unauthorized, Detail: detail} }

// notHere is the one answer for what does not exist and for what is another
// account's: the two must not be told apart.
func notHere() *Problem {
	return &Problem{Type: Malformed, Status: http.StatusNotFound, Detail: "there is no such resource, or it is not this account's"}
}
func isTooMany(err error) bool { return errors.Is(err, ErrTooManyOpen) }
