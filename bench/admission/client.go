package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
)

// An errand is what the client, a process of its own so that its time is not
// the server's, is sent for.
type errand struct {
	Address  string // of the server
	Base     string // of its URLs
	Kid      string
	Key      []byte // of the account, for what is to be admitted
	Size     int    // octets of a body
	Requests int
	Admitted bool
}

// asClient is the argument that makes this program the client.
const asClient = "-client"

// send starts the client and returns how often it got which status.
func send(ctx context.Context, e errand) (map[int]int, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	in, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, self, asClient)
	c.Stdin = bytes.NewReader(in)
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	var got map[int]int
	return got, json.Unmarshal(out, &got)
}

// client runs an errand.
func client(ctx context.Context, in io.Reader, out io.Writer) error {
	var e errand
	if err := json.NewDecoder(in).Decode(&e); err != nil {
		return err
	}
	const connections = 4
	h := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections}}
	var mu sync.Mutex
	got := make(map[int]int)
	var failed error
	var all sync.WaitGroup
	for i := range connections {
		n := (e.Requests + i) / connections
		all.Go(func() {
			statuses, err := e.part(ctx, h, n)
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
			for s, n := range statuses {
				got[s] += n
			}
		})
	}
	all.Wait()
	if failed != nil {
		return failed
	}
	return json.NewEncoder(out).Encode(got)
}

// part makes n requests, one after the other.
func (e errand) part(ctx context.Context, h *http.Client, n int) (map[int]int, error) {
	got := make(map[int]int)
	body := func(string) ([]byte, error) { return bytes.Repeat([]byte("x"), e.Size), nil }
	nonce := ""
	if e.Admitted {
		key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), e.Key)
		if err != nil {
			return nil, err
		}
		if nonce, _, err = e.do(ctx, h, http.MethodHead, "/acme/new-nonce", nil); err != nil {
			return nil, err
		}
		body = func(nonce string) ([]byte, error) { return e.order(key, nonce) }
	}
	for range n {
		b, err := body(nonce)
		if err != nil {
			return nil, err
		}
		var status int
		if nonce, status, err = e.do(ctx, h, http.MethodPost, "/acme/new-order", b); err != nil {
			return nil, err
		}
		got[status]++
	}
	return got, nil
}

func (e errand) do(ctx context.Context, h *http.Client, method, path string, body []byte) (nonce string, status int, err error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+e.Address+path, bytes.NewReader(body))
	if err != nil {
		return "", 0, err
	}
	r.Header.Set("Content-Type", "application/jose+json")
	a, err := h.Do(r)
	if err != nil {
		return "", 0, err
	}
	_, err = io.Copy(io.Discard, a.Body)
	return a.Header.Get("Replay-Nonce"), a.StatusCode, errors.Join(err, a.Body.Close())
}

// order is a signed newOrder for one name, made as long as it is to be by a
// member that nobody knows.
func (e errand) order(key *ecdsa.PrivateKey, nonce string) ([]byte, error) {
	b64 := base64.RawURLEncoding.EncodeToString
	protected := b64(fmt.Appendf(nil, `{"alg":"ES256","kid":"%s","nonce":"%s","url":"%s/acme/new-order"}`, e.Kid, nonce, e.Base))
	sealed := func(pad int) ([]byte, error) {
		payload := b64(fmt.Appendf(nil, `{"identifiers":[{"type":"dns","value":"host.bench.example"}],"pad":"%s"}`, strings.Repeat("x", pad)))
		digest := sha256.Sum256([]byte(protected + "." + payload))
		r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
		if err != nil {
			return nil, err
		}
		signature := append(r.FillBytes(new([32]byte)[:]), s.FillBytes(new([32]byte)[:])...)
		return fmt.Appendf(nil, `{"protected":"%s","payload":"%s","signature":"%s"}`, protected, payload, b64(signature)), nil
	}
	short, err := sealed(0)
	if err != nil {
		return nil, err
	}
	return sealed(max(0, (e.Size-len(short))*3/4))
}
