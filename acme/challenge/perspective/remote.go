package perspective

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
)

// RemoteConfig says where a perspective is and how it is known.
type RemoteConfig struct {
	Name   string // as it calls itself
	Region Region
	URL    *url.URL // https; the certificate must be for its host

	Roots *x509.CertPool // that its certificate must chain to
	// Certificate is ours, asked for at each handshake.
	Certificate func() (*tls.Certificate, error)
}

// A Remote asks one perspective. It takes nothing of what that says for more
// than a yes or a no and a line of text.
type Remote struct {
	name   string
	region Region
	base   string
	http   *http.Client
}

// What can become of a question that has no answer.
var (
	errUnreachable = errors.New("it can't be reached")
	errTimeout     = errors.New("no answer in time")
	errBusy        = errors.New("it has too much to do")
	errInvalid     = errors.New("its answer is none")
	errLate        = errors.New("not waited for: the others had decided")
)

// NewRemote makes a Remote. It connects to nothing yet.
func NewRemote(c RemoteConfig) (*Remote, error) {
	switch {
	case c.Name == "" || plain(c.Name, maxName) != c.Name:
		return nil, errors.New("perspective: it needs a name of plain characters")
	case !c.Region.known():
		return nil, fmt.Errorf("perspective %s: %q is no region", c.Name, c.Region)
	case c.URL == nil || c.URL.Scheme != "https" || c.URL.Host == "":
		return nil, fmt.Errorf("perspective %s: it needs an https URL", c.Name)
	case c.Roots == nil || c.Certificate == nil:
		return nil, fmt.Errorf("perspective %s: it needs roots and a certificate", c.Name)
	}
	return &Remote{name: c.Name, region: c.Region, base: strings.TrimRight(c.URL.String(), "/"), http: &http.Client{
		Transport:     transport(c),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func transport(c RemoteConfig) *http.Transport {
	dialer := &net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}
	return &http.Transport{
		// No proxy: it would be one place that all perspectives are seen through.
		DialContext: dialer.DialContext,
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, RootCAs: c.Roots,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.Certificate() },
		},
		TLSHandshakeTimeout: 5 * time.Second, ForceAttemptHTTP2: true, DisableCompression: true,
		MaxConnsPerHost: 64, MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute,
		MaxResponseHeaderBytes: 8 << 10,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 10 * time.Second, PingTimeout: 5 * time.Second},
	}
}

// Close lets go of connections that are not in use.
func (r *Remote) Close() { r.http.CloseIdleConnections() }

// ask puts one question. An error is one of those above.
func (r *Remote) ask(ctx context.Context, a ask) (answer, error) {
	path := pathValidation
	if a.CAA != nil {
		path = pathCAA
	}
	body, err := encode(a)
	if err != nil {
		return answer{}, fmt.Errorf("%w: encoding the question: %w", errInvalid, err)
	}
	res, reused, err := r.post(ctx, path, body)
	if err != nil && reused && ctx.Err() == nil {
		// The connection was of an earlier question and has ended since, as when
		// the perspective was restarted. To look twice does no harm.
		res, _, err = r.post(ctx, path, body)
	}
	if err != nil {
		return answer{}, failed(ctx, err)
	}
	defer func() { _ = res.Body.Close() }()
	return r.read(ctx, res, a)
}

// post sends a question, and says whether over a connection that was there already.
func (r *Remote) post(ctx context.Context, path string, body []byte) (res *http.Response, reused bool, err error) {
	var old atomic.Bool // net/http may still be dialing when it gives up
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) { old.Store(c.Reused) }})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, false, err
	}
	req.Header.Set("Content-Type", jsonType)
	res, err = r.http.Do(req)
	return res, old.Load(), err
}

func (r *Remote) read(ctx context.Context, res *http.Response, a ask) (answer, error) {
	switch res.StatusCode {
	case http.StatusOK:
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		return answer{}, errBusy
	default:
		text, _ := io.ReadAll(io.LimitReader(res.Body, maxDetail)) // it is only for the log
		return answer{}, fmt.Errorf("%w: status %d: %s", errInvalid, res.StatusCode, plain(strings.TrimSpace(string(text)), maxDetail))
	}
	if t, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || t != jsonType {
		return answer{}, fmt.Errorf("%w: the content type is not %s", errInvalid, jsonType)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxMessage+1))
	if err != nil {
		return answer{}, failed(ctx, err)
	}
	out, err := decodeAnswer(body)
	switch {
	case err != nil:
		return answer{}, fmt.Errorf("%w: %w", errInvalid, err)
	case out.ID != a.ID:
		return answer{}, fmt.Errorf("%w: it is to another question", errInvalid)
	case out.Name != r.name || out.Region != r.region:
		return answer{}, fmt.Errorf("%w: it says that it is %s in %s, and should be %s in %s",
			errInvalid, plain(out.Name, maxName), plain(string(out.Region), maxType), r.name, r.region)
	}
	return out, nil
}

func failed(ctx context.Context, err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // the URL is no news
	}
	if errors.Is(context.Cause(ctx), errLate) {
		return errLate
	}
	if ctx.Err() != nil || isTimeout(err) {
		return fmt.Errorf("%w: %w", errTimeout, err)
	}
	return fmt.Errorf("%w: %w", errUnreachable, err)
}

func isTimeout(err error) bool {
	n, ok := errors.AsType[net.Error](err)
	return ok && n.Timeout()
}

// The questions.

func askValidation(v acme.Validation) ask {
	return ask{Version: version, Validation: &validation{
		Type: v.Type, Identifier: v.Identifier, Wildcard: v.Wildcard, Token: v.Token,
		KeyAuthorization: v.KeyAuthorization, AccountURL: v.AccountURL,
	}}
}

func askCAA(q acme.CAAQuery) ask {
	return ask{Version: version, CAA: &caaQuery{Name: q.Name, Wildcard: q.Wildcard, Method: q.Method, AccountURL: q.AccountURL}}
}
