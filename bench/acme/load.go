package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

var b64 = base64.RawURLEncoding

// A loader is all that the clients of one server share.
type loader struct {
	directory string
	roots     *x509.CertPool
	responder *responder
	dir       struct{ NewNonce, NewAccount, NewOrder string }
	serial    *atomic.Int64
	run       string // sets the names of this run apart
}

// A client is one account on one connection.
type client struct {
	*loader
	http   *http.Client
	key    *ecdsa.PrivateKey
	jwk    string
	thumb  string
	kid    string
	nonce  string
	leaf   *ecdsa.PrivateKey
	orders int
}

func (l *loader) client(ctx context.Context) (*client, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		return nil, err
	}
	c := &client{loader: l, key: key, leaf: leaf, http: &http.Client{
		Timeout:   time.Minute,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: l.roots, MinVersion: tls.VersionTLS12}, MaxIdleConnsPerHost: 1},
	}}
	c.jwk = fmt.Sprintf(`{"crv":"P-256","kty":"EC","x":"%s","y":"%s"}`, b64.EncodeToString(point[1:33]), b64.EncodeToString(point[33:]))
	sum := sha256.Sum256([]byte(c.jwk))
	c.thumb = b64.EncodeToString(sum[:])
	if l.dir.NewOrder == "" {
		if err := c.readDirectory(ctx); err != nil {
			return nil, err
		}
	}
	h, err := c.post(ctx, l.dir.NewAccount, map[string]any{"termsOfServiceAgreed": true}, nil)
	if err != nil {
		return nil, fmt.Errorf("new account: %w", err)
	}
	c.kid = h.Get("Location")
	return c, nil
}

func (c *client) readDirectory(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.directory, nil)
	if err != nil {
		return err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	return json.NewDecoder(res.Body).Decode(&c.dir)
}

type problem struct {
	Type, Detail string
	Status       int
}

func (p *problem) Error() string { return fmt.Sprintf("%d %s: %s", p.Status, p.Type, p.Detail) }

// post signs and sends payload, nil to read, and decodes the answer into out.
func (c *client) post(ctx context.Context, url string, payload, out any) (http.Header, error) {
	const badNonce = "urn:ietf:params:acme:error:badNonce"
	for try := 0; ; try++ {
		h, err := c.postOnce(ctx, url, payload, out)
		if p, ok := errors.AsType[*problem](err); ok && p.Type == badNonce && try < 3 {
			continue
		}
		return h, err
	}
}

func (c *client) postOnce(ctx context.Context, url string, payload, out any) (http.Header, error) {
	body, err := c.sign(ctx, url, payload)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/jose+json")
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	c.nonce = res.Header.Get("Replay-Nonce")
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= http.StatusBadRequest {
		p := &problem{Status: res.StatusCode}
		_ = json.Unmarshal(b, p) // what is no problem document is told by its status
		return nil, p
	}
	if raw, ok := out.(*[]byte); ok {
		*raw = b
		return res.Header, nil
	}
	if out == nil {
		return res.Header, nil
	}
	return res.Header, json.Unmarshal(b, out)
}

func (c *client) sign(ctx context.Context, url string, payload any) ([]byte, error) {
	if c.nonce == "" {
		req, err := http.NewRequestWithContext(ctx, http.MethodHead, c.dir.NewNonce, nil)
		if err != nil {
			return nil, err
		}
		res, err := c.http.Do(req)
		if err != nil {
			return nil, err
		}
		_ = res.Body.Close()
		c.nonce = res.Header.Get("Replay-Nonce")
	}
	who := `"kid":"` + c.kid + `"`
	if c.kid == "" {
		who = `"jwk":` + c.jwk
	}
	protected := b64.EncodeToString(fmt.Appendf(nil, `{"alg":"ES256","nonce":"%s","url":"%s",%s}`, c.nonce, url, who))
	c.nonce = ""
	var encoded string
	if payload != nil {
		b, err := json.Marshal(payload)
		if err != nil {
			return nil, err
		}
		encoded = b64.EncodeToString(b)
	}
	sum := sha256.Sum256([]byte(protected + "." + encoded))
	r, s, err := ecdsa.Sign(rand.Reader, c.key, sum[:])
	if err != nil {
		return nil, err
	}
	var sig [64]byte
	r.FillBytes(sig[:32])
	s.FillBytes(sig[32:])
	return fmt.Appendf(nil, `{"protected":"%s","payload":"%s","signature":"%s"}`, protected, encoded, b64.EncodeToString(sig[:])), nil
}

type order struct {
	Status                string
	Authorizations        []string
	Finalize, Certificate string
	Error                 *problem
}

type authorization struct {
	Status     string
	Challenges []struct {
		Type, URL, Token string
		Error            *problem
	}
}

// issue has a certificate for a new name issued, and looks whether it is one.
func (c *client) issue(ctx context.Context) error {
	name := fmt.Sprintf("n%d.%s.bench.test", c.serial.Add(1), c.run)
	var o order
	h, err := c.post(ctx, c.dir.NewOrder, map[string]any{"identifiers": []map[string]string{{"type": "dns", "value": name}}}, &o)
	if err != nil {
		return fmt.Errorf("newOrder: %w", err)
	}
	at := h.Get("Location")
	for _, url := range o.Authorizations {
		if err := c.prove(ctx, url); err != nil {
			return err
		}
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{name}}, c.leaf)
	if err != nil {
		return err
	}
	finalize := o.Finalize
	if _, err = c.post(ctx, finalize, map[string]string{"csr": b64.EncodeToString(csr)}, &o); err != nil {
		return fmt.Errorf("finalize: %w", err)
	}
	err = poll(ctx, func() (bool, error) {
		if o.Status == "valid" {
			return true, nil
		}
		if o.Status == "invalid" {
			return false, fmt.Errorf("the order is invalid: %w", o.Error)
		}
		_, err := c.post(ctx, at, nil, &o)
		return false, err
	})
	if err != nil {
		return fmt.Errorf("order: %w", err)
	}
	var chain []byte
	if _, err := c.post(ctx, o.Certificate, nil, &chain); err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	return c.check(chain, name)
}

func (c *client) prove(ctx context.Context, url string) error {
	var a authorization
	if _, err := c.post(ctx, url, nil, &a); err != nil {
		return fmt.Errorf("authorization: %w", err)
	}
	for _, ch := range a.Challenges {
		if ch.Type != "http-01" {
			continue
		}
		c.responder.set(ch.Token, ch.Token+"."+c.thumb)
		defer c.responder.forget(ch.Token)
		if _, err := c.post(ctx, ch.URL, struct{}{}, nil); err != nil {
			return fmt.Errorf("challenge: %w", err)
		}
	}
	err := poll(ctx, func() (bool, error) {
		if _, err := c.post(ctx, url, nil, &a); err != nil || a.Status == "valid" {
			return err == nil, err
		}
		if a.Status != "pending" && a.Status != "processing" {
			return false, fmt.Errorf("it became %s: %+v", a.Status, a.Challenges)
		}
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("authorization: %w", err)
	}
	return nil
}

// poll asks until done, at first after little. Retry-After is not obeyed: it
// would decide the latency.
func poll(ctx context.Context, done func() (bool, error)) error {
	pause := 5 * time.Millisecond
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		pause = min(pause*3/2, 100*time.Millisecond)
	}
}

func (c *client) check(chain []byte, name string) error {
	block, _ := pem.Decode(chain)
	if block == nil {
		return errors.New("the certificate is no PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	if pub, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || !pub.Equal(c.leaf.Public()) {
		return errors.New("the certificate is for another key")
	}
	return cert.VerifyHostname(name)
}

// A result is what a number of clients saw together.
type result struct {
	latencies []time.Duration
	failed    int
	first     error // of the failures
	took      time.Duration
}

// share has the clients make n orders together.
func share(ctx context.Context, cs []*client, n int) result {
	var (
		left  atomic.Int64
		wg    sync.WaitGroup
		mu    sync.Mutex // guards r
		r     result
		began = time.Now()
	)
	left.Store(int64(n))
	for _, c := range cs {
		wg.Go(func() {
			for left.Add(-1) >= 0 && ctx.Err() == nil {
				t := time.Now()
				err := c.issue(ctx)
				took := time.Since(t)
				mu.Lock()
				if err == nil {
					r.latencies = append(r.latencies, took)
				} else if r.failed++; r.first == nil {
					r.first = err
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	r.took = time.Since(began)
	return r
}
