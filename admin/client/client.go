// Package client asks a running secsy-pki for things over its operator socket.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"
)

var (
	// ErrNotRunning says that no server listens on the socket.
	ErrNotRunning = errors.New("no secsy-pki is running")
	// ErrPermission says that the system does not let us use the socket.
	ErrPermission = errors.New("permission denied")
)

// An Error is a no of the server.
type Error struct {
	Status    int
	Code      string // one of the Code constants; empty if the answer was not the API's
	Detail    string
	RequestID string
}

func (e *Error) Error() string {
	if e.RequestID == "" {
		return e.Detail
	}
	return fmt.Sprintf("%s (request %s)", e.Detail, e.RequestID)
}

const (
	dialTimeout = 5 * time.Second
	maxAnswer   = 64 << 20 // a full page of the longest audit entries fits
)

// A Client speaks to one server. It is safe for concurrent use.
type Client struct {
	socket string
	http   *http.Client
}

// New returns a client for the server that listens on a Unix socket. It does
// not connect yet.
func New(socketPath string) *Client {
	d := &net.Dialer{Timeout: dialTimeout}
	return &Client{socket: socketPath, http: &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return d.DialContext(ctx, "unix", socketPath)
			},
			DisableCompression: true,
			MaxIdleConns:       1,
			IdleConnTimeout:    10 * time.Second,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close gives back idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// ListCertificates returns one page of certificates, newest first.
func (c *Client) ListCertificates(ctx context.Context, f CertificateFilter) (CertificatePage, error) {
	q := query{}
	q.text("name", f.Name)
	q.text("serial", f.Serial)
	q.text("state", f.State)
	q.text("issuer", f.Issuer)
	q.text("profile", f.Profile)
	q.text("account", f.Account)
	q.text("spki_sha256", f.SPKIHash)
	q.text("incident", f.Incident)
	q.text("issued_after", f.IssuedAfter)
	q.text("issued_before", f.IssuedBefore)
	q.text("not_before_from", f.NotBeforeFrom)
	q.text("not_before_to", f.NotBeforeTo)
	q.number("limit", int64(f.Limit))
	q.text("cursor", f.Cursor)
	var page CertificatePage
	err := c.get(ctx, "/certificates", q, &page)
	return page, err
}

// Certificate returns all that is known of one serial.
func (c *Client) Certificate(ctx context.Context, serial string) (Certificate, error) {
	var cert Certificate
	err := c.get(ctx, "/certificates/"+url.PathEscape(serial), nil, &cert)
	return cert, err
}

// RevokeCertificate revokes one certificate and returns it as it is then.
// keyCompromise blocks its key for all time.
func (c *Client) RevokeCertificate(ctx context.Context, serial string, r Revocation) (Certificate, error) {
	var cert Certificate
	err := c.post(ctx, "/certificates/"+url.PathEscape(serial)+"/revoke", r, &cert)
	return cert, err
}

// ReleaseCertificate ends the hold of a certificate and returns it as it is then.
func (c *Client) ReleaseCertificate(ctx context.Context, serial string) (Certificate, error) {
	var cert Certificate
	err := c.post(ctx, "/certificates/"+url.PathEscape(serial)+"/release", struct{}{}, &cert)
	return cert, err
}

// RevokeMany revokes up to MaxRevocations certificates: each of those that can
// be. Doing it twice is as good as once.
func (c *Client) RevokeMany(ctx context.Context, r Revocations) ([]Result, error) {
	var out RevokedMany
	err := c.post(ctx, "/certificates/revoke", r, &out)
	return out.Results, err
}

// ListIssuers returns every issuer.
func (c *Client) ListIssuers(ctx context.Context) ([]Issuer, error) {
	var list IssuerList
	err := c.get(ctx, "/issuers", nil, &list)
	return list.Issuers, err
}

// ListAudit returns one page of the audit chain.
func (c *Client) ListAudit(ctx context.Context, f AuditFilter) (AuditPage, error) {
	q := query{}
	q.number("after", f.After)
	if f.Newest {
		q.text("order", "newest")
	}
	q.text("action", f.Action)
	q.text("object", f.Object)
	q.number("limit", int64(f.Limit))
	q.text("cursor", f.Cursor)
	var page AuditPage
	err := c.get(ctx, "/audit", q, &page)
	return page, err
}

// AllAudit goes through all pages that f selects. It ends after the first error.
func (c *Client) AllAudit(ctx context.Context, f AuditFilter) iter.Seq2[AuditEntry, error] {
	return func(yield func(AuditEntry, error) bool) {
		for {
			page, err := c.ListAudit(ctx, f)
			if err != nil {
				yield(AuditEntry{}, err)
				return
			}
			for _, e := range page.Entries {
				if !yield(e, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			f.Cursor = page.Next
		}
	}
}

// VerifyAudit has the server verify its audit chain. expect is a head noted
// earlier as SEQ:HASH, or empty. It takes long where the chain is long.
func (c *Client) VerifyAudit(ctx context.Context, expect string) (Verification, error) {
	var v Verification
	err := c.post(ctx, "/audit/verify", VerifyRequest{Expect: expect}, &v)
	return v, err
}

type query url.Values

func (q query) text(name, value string) {
	if value != "" {
		url.Values(q).Set(name, value)
	}
}

func (q query) number(name string, n int64) {
	if n != 0 {
		q.text(name, strconv.FormatInt(n, 10))
	}
}

func (c *Client) get(ctx context.Context, path string, q query, into any) error {
	return c.do(ctx, http.MethodGet, path+"?"+url.Values(q).Encode(), nil, into)
}

func (c *Client) post(ctx context.Context, path string, body, into any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encoding request: %w", err)
	}
	return c.do(ctx, http.MethodPost, path, b, into)
}

func (c *Client) do(ctx context.Context, method, target string, body []byte, into any) error {
	// The host is for the Host header only: every connection goes to the socket.
	req, err := http.NewRequestWithContext(ctx, method, "http://secsy-pki/api/v1"+target, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("making request: %w", err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.explain(err)
	}
	defer func() { _ = resp.Body.Close() }() // all of it was read, or nobody wants the rest
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return c.explain(err)
	case len(b) > maxAnswer:
		return fmt.Errorf("asking secsy-pki on %s: the answer is longer than %d bytes", c.socket, maxAnswer)
	case resp.StatusCode != http.StatusOK:
		return problemOf(resp, b)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("decoding the answer on %s: %w", c.socket, err)
	}
	return nil
}

// problemOf reads an error's body, or makes do without: something else than
// the API may listen there.
func problemOf(resp *http.Response, body []byte) error {
	e := &Error{Status: resp.StatusCode}
	var p Problem
	if mt, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); mt == ProblemType && json.Unmarshal(body, &p) == nil {
		e.Code, e.Detail, e.RequestID = p.Code, p.Detail, p.RequestID
	}
	if e.Detail == "" {
		e.Detail = fmt.Sprintf("the server answers %s", resp.Status)
	}
	return e
}

// explain turns what the system says about a socket into what to do about it.
func (c *Client) explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%w on %s: start it with \"secsy-pki serve\", or name the socket of the one that runs", ErrNotRunning, c.socket)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w to use %s: be the user that secsy-pki runs as, or root", ErrPermission, c.socket)
	}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // its text repeats a URL that nobody asked for
	}
	return fmt.Errorf("asking secsy-pki on %s: %w", c.socket, err)
}
