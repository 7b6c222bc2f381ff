package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	xocsp "golang.org/x/crypto/ocsp"
)

// A server is a program that was started for the run.
type server struct {
	name    string
	address string
	cmd     *exec.Cmd
	done    chan struct{}
	said    bytes.Buffer
}

func launch(name, address string, in io.Reader, cmd *exec.Cmd) (*server, error) {
	s := &server{name: name, address: address, cmd: cmd, done: make(chan struct{})}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &s.said, &s.said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() { _ = cmd.Wait(); close(s.done) }()
	return s, nil
}

func (s *server) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

// await polls with whole requests: openssl spins after a connection without one.
func (s *server) await(ctx context.Context, request []byte) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		c, err := net.Dial("tcp", s.address)
		if err == nil {
			err = (&conn{c, bufio.NewReader(c)}).roundTrip(request)
			_ = c.Close()
		}
		if err == nil {
			return nil
		}
		select {
		case <-s.done:
			return fmt.Errorf("%s ended: %s", s.name, s.said.Bytes())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w", s.name, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// cpu is the processor time of the server so far, in user and kernel mode.
func (s *server) cpu() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	const tick = time.Second / 100
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 15 {
		return 0, errors.New("reading the processor time: too few fields")
	}
	var sum int64
	for _, f := range fields[11:15] { // with children that ended
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return time.Duration(sum) * tick, nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// start starts all servers, with answers about the same certificates.
func (b *bench) start(ctx context.Context, bin string) (ours, bare, peer, other *server, err error) {
	fail := func(err error) (*server, *server, *server, *server, error) { return ours, bare, peer, other, err }
	if other, err = b.startOpenSSL(ctx); err != nil {
		return fail(err)
	}
	if peer, err = b.startSelf(ctx, asPeer, b.world.key, nil); err != nil {
		return fail(err)
	}
	if ours, err = b.startOurs(ctx, bin); err != nil {
		return fail(err)
	}
	same := map[string]*canned{}
	for _, q := range b.world.queries {
		target := "/ocsp/" + url.QueryEscape(base64.StdEncoding.EncodeToString(q))
		if same[target], err = answerOf(ctx, "http://"+ours.address+target); err != nil {
			return fail(err)
		}
	}
	bare, err = b.startSelf(ctx, asBare, nil, same)
	return fail(err)
}

// startOpenSSL starts openssl's responder, about whose issuer the peer and it are.
func (b *bench) startOpenSSL(ctx context.Context) (*server, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	caFile, signer, key, index, err := b.world.pems()
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	s, err := launch("openssl", address, nil, exec.Command("openssl", "ocsp", "-port", port, "-index", index, "-CA", caFile, "-rsigner", signer, "-rkey", key, "-ndays", "4"))
	if err != nil {
		return nil, err
	}
	b.asked = b.world.posts("/")
	return s, s.await(ctx, b.asked[0])
}

// startOurs starts the program as quickstart configures it, but for the limits of
// its one client address, with the certificates in its database. From here on
// the world's queries are about its issuer.
func (b *bench) startOurs(ctx context.Context, bin string) (*server, error) {
	dir := filepath.Join(b.dir, "data")
	var at [3]string
	var err error
	for i := range at {
		if at[i], err = freeAddress(); err != nil {
			return nil, err
		}
	}
	start := func() (*server, error) {
		return launch("secsy-pki", at[0], nil, exec.Command(bin, "quickstart", "--dir", dir, "--listen-http", at[0], "--listen-https", at[1], "--listen-operator", at[2]))
	}
	s, err := start() // which makes the configuration
	if err != nil {
		return nil, err
	}
	issuer, err := issuerOf(ctx, s, at[1])
	s.stop()
	if err != nil {
		return nil, err
	}
	if err := lift(filepath.Join(dir, "config.yaml")); err != nil {
		return nil, err
	}
	databases, err := filepath.Glob(filepath.Join(dir, "*.db"))
	if err != nil || len(databases) != 1 {
		return nil, fmt.Errorf("%d databases in %s: %w", len(databases), dir, err)
	}
	if err := b.world.record(ctx, databases[0], issuer); err != nil {
		return nil, fmt.Errorf("recording certificates: %w", err)
	}
	if err := b.world.askOf(issuer); err != nil {
		return nil, err
	}
	if s, err = start(); err != nil {
		return nil, err
	}
	return s, s.await(ctx, b.world.gets("/ocsp/")[0])
}

// issuerOf is who issued the certificate of the https listener.
func issuerOf(ctx context.Context, s *server, address string) (*x509.Certificate, error) {
	for {
		d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}}
		c, err := d.DialContext(ctx, "tcp", address)
		if err == nil {
			chain := c.(*tls.Conn).ConnectionState().PeerCertificates
			_ = c.Close()
			if len(chain) < 2 {
				return nil, errors.New("the https listener shows no issuer")
			}
			return chain[1], nil
		}
		select {
		case <-s.done:
			return nil, fmt.Errorf("%s ended: %s", s.name, s.said.Bytes())
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// lift takes the limits of clients off, which all come from one address here.
func lift(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(b), "\nrate_limit:\n")
	if !ok {
		return fmt.Errorf("%s has no section rate_limit", file)
	}
	return os.WriteFile(file, []byte(head+"\nrate_limit:\n  overrides: [{source: 127.0.0.0/8, exempt: true}]\n  global: {rate: 0}\n"+rest), 0o600)
}

// A canned is an answer with its headers.
type canned struct {
	Header http.Header
	Body   []byte
}

func answerOf(ctx context.Context, address string) (*canned, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	var got *canned
	for range 2 { // the second is from memory
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, err
		}
		got = &canned{Header: res.Header}
		if got.Body, err = io.ReadAll(res.Body); err != nil {
			return nil, err
		}
		_ = res.Body.Close()
	}
	got.Header.Del("Date") // which net/http adds
	return got, nil
}

const (
	asBare = "-bare"
	asPeer = "-peer"
)

// job is what a server that is this program is started with.
type job struct {
	Canned  map[string]*canned `json:",omitempty"` // by the request's target
	Serials []string           `json:",omitempty"`
	Issuer  []byte             `json:",omitempty"`
	Key     []byte             `json:",omitempty"`
}

func (b *bench) startSelf(ctx context.Context, as string, key *ecdsa.PrivateKey, same map[string]*canned) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	j := job{Canned: same, Issuer: b.world.issuer.Raw}
	if key != nil {
		if j.Key, err = key.Bytes(); err != nil {
			return nil, err
		}
		for _, n := range b.world.serials {
			j.Serials = append(j.Serials, n.String())
		}
	}
	in, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	s, err := launch(as, address, bytes.NewReader(in), exec.Command(self, as, address))
	if err != nil {
		return nil, err
	}
	return s, s.await(ctx, b.world.gets("/ocsp/")[0])
}

// bare answers with the same octets, which it finds in a map that is never written.
func bare(address string, in io.Reader) error {
	var j job
	if err := json.NewDecoder(in).Decode(&j); err != nil {
		return err
	}
	return http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		same := j.Canned[r.RequestURI]
		if same == nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		maps.Copy(w.Header(), same.Header)
		_, _ = w.Write(same.Body)
	}))
}

// peer answers as cfssl's and Boulder's responders did: what was signed before is
// found by the serial of the parsed request, and its headers come from the parsed
// response. Their code is not here; golang.org/x/crypto/ocsp, on which they rest,
// is.
func peer(address string, in io.Reader) error {
	var j job
	if err := json.NewDecoder(in).Decode(&j); err != nil {
		return err
	}
	issuer, err := x509.ParseCertificate(j.Issuer)
	if err != nil {
		return err
	}
	key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), j.Key)
	if err != nil {
		return err
	}
	signed := map[string][]byte{}
	for _, s := range j.Serials {
		n, ok := new(big.Int).SetString(s, 10)
		if !ok {
			return fmt.Errorf("serial %q", s)
		}
		signed[s], err = xocsp.CreateResponse(issuer, issuer, xocsp.Response{
			Status: xocsp.Good, SerialNumber: n, ThisUpdate: time.Now(), NextUpdate: time.Now().AddDate(0, 0, 4),
		}, key)
		if err != nil {
			return err
		}
	}
	return http.ListenAndServe(address, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := peerAnswer(w, r, signed); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write(xocsp.MalformedRequestErrorResponse)
		}
	}))
}

func peerAnswer(w http.ResponseWriter, r *http.Request, signed map[string][]byte) error {
	var der []byte
	var err error
	if r.Method == http.MethodPost {
		der, err = io.ReadAll(http.MaxBytesReader(w, r.Body, 10_000))
	} else {
		var path string
		if path, err = url.QueryUnescape(strings.TrimPrefix(r.URL.EscapedPath(), "/ocsp/")); err == nil {
			der, err = base64.StdEncoding.DecodeString(strings.ReplaceAll(path, " ", "+"))
		}
	}
	if err != nil {
		return err
	}
	req, err := xocsp.ParseRequest(der)
	if err != nil {
		return err
	}
	body, ok := signed[req.SerialNumber.String()]
	if !ok {
		return errors.New("not found")
	}
	parsed, err := xocsp.ParseResponse(body, nil)
	if err != nil {
		return err
	}
	hash := sha256.Sum256(body)
	h := w.Header()
	h.Add("Content-Type", "application/ocsp-response")
	h.Add("Last-Modified", parsed.ThisUpdate.Format(time.RFC1123))
	h.Add("Expires", parsed.NextUpdate.Format(time.RFC1123))
	h.Add("Cache-Control", fmt.Sprintf("max-age=%d, public, no-transform, must-revalidate", int(time.Until(parsed.NextUpdate)/time.Second)))
	h.Add("ETag", fmt.Sprintf("\"%X\"", hash))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body)
	return nil
}
