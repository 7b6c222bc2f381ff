package challenge

import (
	"bytes"
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/secsy-pki/secsy-pki/acme"
)

const (
	maxHeader = 16 << 10 // of one answer
	maxURL    = 2000     // of one redirect
)

// A target is one URL to fetch.
type target struct {
	url  *url.URL // as it is requested and recorded
	host string
	port uint16
}

// http01 fetches the key authorization (RFC 8555 §8.3).
func (a *attempt) http01(ctx context.Context) *acme.Problem {
	t := a.v.firstTarget(a.q)
	for range max(a.v.cfg.MaxRedirects, 0) + 1 {
		a.rec.URLs = append(a.rec.URLs, t.url.String())
		resp, p := a.fetch(ctx, t)
		if p != nil {
			return p
		}
		if !resp.redirects() {
			return a.judge(t, resp)
		}
		next, err := a.v.redirect(t, resp.location)
		if err != nil {
			return problem(acme.Connection, nil, "fetching %s: %v", shown(t), err)
		}
		if slices.Contains(a.rec.URLs, next.url.String()) {
			return problem(acme.Connection, nil, "fetching %s: the redirects go round in a loop", shown(t))
		}
		t = next
	}
	return problem(acme.Connection, nil, "fetching %s: more than %d redirects", shown(t), max(a.v.cfg.MaxRedirects, 0))
}

func (v *Validator) firstTarget(q acme.Validation) target {
	return target{
		url: &url.URL{
			Scheme: "http", Host: authority(q.Identifier.Value, v.cfg.HTTPPort, 80),
			Path: "/.well-known/acme-challenge/" + q.Token,
		},
		host: q.Identifier.Value,
		port: uint16(v.cfg.HTTPPort),
	}
}

// authority is host and port as a URL has them: IPv6 addresses in brackets (RFC
// 3986 §3.2.2), and no port that is the scheme's own.
func authority(host string, port, own int) string {
	at := net.JoinHostPort(host, strconv.Itoa(port))
	if port == own {
		return strings.TrimSuffix(at, ":"+strconv.Itoa(port))
	}
	return at
}

// An answer is as much of a response as is wanted.
type answer struct {
	status   int
	location []string
	body     []byte // at most MaxBody + 1
}

// redirects reports whether the answer sends the fetcher on. Baseline
// Requirements §3.2.2.4.19 has these codes only.
func (r *answer) redirects() bool {
	switch r.status {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return true
	}
	return false
}

// judge compares what was found at the end with the key authorization.
func (a *attempt) judge(t target, r *answer) *acme.Problem {
	if r.status != http.StatusOK {
		return problem(acme.Unauthorized, nil, "%s answered with status %d, not 200", shown(t), r.status)
	}
	if len(r.body) > a.v.cfg.MaxBody {
		return problem(acme.Unauthorized, nil, "%s answered with more than %d bytes, beginning %s", shown(t), a.v.cfg.MaxBody, excerpt(r.body))
	}
	// RFC 8555 §8.3: whitespace at the end is to be ignored.
	got := bytes.TrimRight(r.body, " \t\r\n\v\f")
	if subtle.ConstantTimeCompare(got, []byte(a.q.KeyAuthorization)) != 1 {
		return problem(acme.Unauthorized, nil, "%s answered with %s, not with the key authorization %s",
			shown(t), excerpt(got), a.q.KeyAuthorization)
	}
	return nil
}

// shown is a URL fit for a client's eyes: the redirects come from strangers.
func shown(t target) string { return printable([]byte(t.url.String()), 256) }

// redirect decides where a redirect leads, or why it is not followed. The
// error may be shown to strangers.
func (v *Validator) redirect(from target, location []string) (target, error) {
	if len(location) != 1 || location[0] == "" {
		return target{}, errors.New("the redirect does not say where to")
	}
	if len(location[0]) > maxURL {
		return target{}, fmt.Errorf("the redirect's URL is longer than %d bytes", maxURL)
	}
	where := excerpt([]byte(location[0]))
	u, err := from.url.Parse(location[0])
	if err != nil {
		return target{}, fmt.Errorf("the redirect to %s is not a URL", where)
	}
	u.Fragment, u.RawFragment = "", ""
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return target{}, fmt.Errorf("the redirect to %s is neither http nor https", where)
	case u.User != nil:
		return target{}, fmt.Errorf("the redirect to %s has a user name", where)
	case u.Opaque != "":
		return target{}, fmt.Errorf("the redirect to %s is not a URL with a host", where)
	}
	host := strings.ToLower(u.Hostname())
	// Who is proven by its address may send us from http to https there, and
	// to no other address.
	_, err = netip.ParseAddr(host)
	same := host == from.host
	if err == nil && !same {
		return target{}, fmt.Errorf("the redirect to %s is to an IP address, not to a name", where)
	}
	if err != nil && !isHostname(host) {
		return target{}, fmt.Errorf("the redirect to %s is not to a host name", where)
	}
	port, ok := v.redirectPort(u)
	if !ok {
		return target{}, fmt.Errorf("the redirect to %s is to a port other than %d and %d", where, v.cfg.HTTPPort, v.cfg.HTTPSPort)
	}
	u.Host = authority(host, port, map[string]int{"http": 80, "https": 443}[u.Scheme])
	return target{url: u, host: host, port: uint16(port)}, nil
}

// redirectPort keeps to the two ports that validation uses: a redirect to
// another would make us a port scanner.
func (v *Validator) redirectPort(u *url.URL) (int, bool) {
	text := u.Port()
	if text == "" {
		if strings.HasSuffix(u.Host, ":") {
			return 0, false
		}
		if u.Scheme == "https" {
			return v.cfg.HTTPSPort, true
		}
		return v.cfg.HTTPPort, true
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		return 0, false
	}
	switch port {
	case 80, 443, v.cfg.HTTPPort, v.cfg.HTTPSPort:
		return port, true
	}
	return 0, false
}

// fetch resolves, connects and gets one URL.
func (a *attempt) fetch(ctx context.Context, t target) (*answer, *acme.Problem) {
	addrs, p := a.addresses(ctx, t.host)
	if p != nil {
		return nil, p
	}
	conn, err := a.connect(ctx, addrs, t.port)
	if err != nil {
		return nil, problem(acme.Connection, err, "fetching %s: %v", shown(t), err)
	}
	defer func() { _ = conn.Close() }() // nothing is kept alive
	if t.url.Scheme != "https" {
		return a.get(ctx, t, conn)
	}
	secure, p := a.handshake(ctx, t, conn)
	if p != nil {
		return nil, p
	}
	return a.get(ctx, t, secure)
}

// handshake speaks TLS without asking who is there: the plain request before
// could have been answered by anybody on the way as well (RFC 8555 §8.3).
func (a *attempt) handshake(ctx context.Context, t target, conn net.Conn) (net.Conn, *acme.Problem) {
	ctx, cancel := context.WithTimeout(ctx, a.v.cfg.StepTimeout)
	defer cancel()
	secure := tls.Client(conn, &tls.Config{
		ServerName:         t.host,
		InsecureSkipVerify: true,
		MinVersion:         tls.VersionTLS10,
		NextProtos:         []string{"http/1.1"},
	})
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, problem(acme.TLSError, err, "fetching %s: the TLS handshake failed: %s", shown(t), tlsCause(err))
	}
	return secure, nil
}

// get sends the request over conn and reads the answer, both bounded.
func (a *attempt) get(ctx context.Context, t target, conn net.Conn) (*answer, *acme.Problem) {
	req := (&http.Request{
		Method: http.MethodGet, URL: t.url, Host: t.url.Host,
		Header: http.Header{"User-Agent": {a.v.cfg.UserAgent}, "Accept": {"*/*"}},
	}).WithContext(ctx)
	given := func(context.Context, string, string) (net.Conn, error) { return conn, nil }
	transport := &http.Transport{
		DialContext:            given,
		DialTLSContext:         given,
		DisableKeepAlives:      true,
		DisableCompression:     true, // neither asked for nor unpacked
		ResponseHeaderTimeout:  a.v.cfg.StepTimeout,
		MaxResponseHeaderBytes: maxHeader,
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, problem(acme.Connection, err, "fetching %s: %s", shown(t), cause(err))
	}
	defer func() { _ = resp.Body.Close() }() // the connection goes with it
	r := &answer{status: resp.StatusCode, location: resp.Header.Values("Location")}
	if r.status != http.StatusOK {
		return r, nil
	}
	if r.body, err = io.ReadAll(io.LimitReader(resp.Body, int64(a.v.cfg.MaxBody)+1)); err != nil {
		return nil, problem(acme.Connection, err, "fetching %s: reading the answer: %s", shown(t), cause(err))
	}
	return r, nil
}
