package integration

import (
	"bufio"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/mattn/go-sqlite3"
	"golang.org/x/crypto/acme"
)

// crashPoints are those of the crashserver, in the order in which an issuance
// passes them.
var crashPoints = []string{"in-begin", "after-begin", "before-sign", "after-sign", "in-commit", "after-commit", "after-another"}

const (
	crashRounds    = 56 // each point eight times
	ordersPerRound = 3
)

// TestKillAtAnyPointLosesNothing kills the program between the intent and the
// answer, again and again, each start being the recovery from the kill before.
// In the end every order that a client began is valid, every signature that was
// made is of a recorded serial, and no serial was signed twice.
func TestKillAtAnyPointLosesNothing(t *testing.T) {
	t.Parallel()
	c := newCrashRun(t)
	for round := range crashRounds {
		point := crashPoints[round%len(crashPoints)]
		nth := 1 + round/len(crashPoints)%ordersPerRound
		c.round(point, nth)
	}
	c.startServer("none", 0)
	c.finishAll()
	c.server.stop()
	if t.Failed() {
		t.Fatalf("the last server said:\n%s", c.server.out)
	}
	c.checkLedger()
	c.restartAndVerifyAudit()
}

type crashRun struct {
	t       *testing.T
	s       *server // the quickstart that made the data
	bin     string
	signLog string
	environ []string // of the server
	server  *process
	client  *acme.Client
	mu      sync.Mutex
	open    map[string]*crashOrder // by order URL
	done    int
	crashes int
}

type crashOrder struct {
	url, finalizeURL string
	csr              []byte
	key              crypto.Signer
}

func newCrashRun(t *testing.T) *crashRun {
	t.Helper()
	c := &crashRun{t: t, open: map[string]*crashOrder{}}
	c.prepare()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.client = &acme.Client{
		Key: key, DirectoryURL: c.s.env["ACME_DIRECTORY"], HTTPClient: c.s.client(t),
		RetryBackoff: retryNonces,
	}
	serveChallenges(t, c.s.http01, c.client)
	c.startServer("none", 0)
	if _, err := c.client.Register(t.Context(), &acme.Account{}, acme.AcceptTOS); err != nil {
		t.Fatalf("registering: %v", err)
	}
	c.server.stop()
	return c
}

// prepare builds the crashserver, and makes the data that it serves.
func (c *crashRun) prepare() {
	c.t.Helper()
	dir := c.t.TempDir()
	c.bin = filepath.Join(dir, "crashserver")
	if out, err := exec.Command("go", "build", "-o", c.bin, "./crashserver").CombinedOutput(); err != nil {
		c.t.Fatalf("building crashserver: %v\n%s", err, out)
	}
	c.signLog = filepath.Join(dir, "signlog")
	c.s = startQuickstart(c.t, quickstart{dns: startDNS(c.t)})
	c.s.stop()
	// All of its clients have one address, and ask as fast as they can.
	setSection(c.t, configOf(c.s.dir), "rate_limit:", unlimited)
}

// retryNonces tries again at once what a nonce of the life before spoiled;
// everything else is tried after the restart.
func retryNonces(_ int, _ *http.Request, res *http.Response) time.Duration {
	if res != nil && res.StatusCode == http.StatusBadRequest {
		return time.Millisecond
	}
	return -1
}

// serveChallenges answers http-01 for every name of the client's account.
func serveChallenges(t *testing.T, port int, client *acme.Client) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := client.HTTP01ChallengeResponse(r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:])
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(body))
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
}

func (c *crashRun) startServer(point string, nth int) {
	c.t.Helper()
	cmd := exec.Command(c.bin, filepath.Join(c.s.dir, "config.yaml"), point, strconv.Itoa(nth), c.signLog)
	cmd.Env = append(os.Environ(), c.environ...)
	c.server = start(c.t, "crashserver", cmd)
	c.s.process = c.server
	c.s.waitReadyOrDead(c.t)
}

// round starts a server with a bomb, brings what the last one left to an end,
// and begins new orders until the bomb has gone off.
func (c *crashRun) round(point string, nth int) {
	c.t.Helper()
	c.startServer(point, nth)
	ctx, cancel := context.WithTimeout(c.t.Context(), 60*time.Second)
	defer cancel()
	go func() { // nothing more to wait for once the server is dead
		select {
		case <-c.server.done:
			cancel()
		case <-ctx.Done():
		}
	}()
	for ctx.Err() == nil {
		var wg sync.WaitGroup
		for range ordersPerRound {
			wg.Go(func() { c.order(ctx) })
		}
		wg.Wait()
	}
	select {
	case <-c.server.done:
		c.crashes++
	default:
		c.t.Fatalf("the server outlived %s %d\n%s", point, nth, c.server.out)
	}
}

// order begins an order and takes it as far as the server lives.
func (c *crashRun) order(ctx context.Context) {
	name := fmt.Sprintf("crash-%s.example.com", strings.ToLower(rand.Text()[:10]))
	o, err := c.client.AuthorizeOrder(ctx, acme.DomainIDs(name))
	if err != nil {
		return
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		c.t.Error(err)
		return
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{name}}, key)
	if err != nil {
		c.t.Error(err)
		return
	}
	mine := &crashOrder{url: o.URI, finalizeURL: o.FinalizeURL, csr: csr, key: key}
	c.mu.Lock()
	c.open[o.URI] = mine
	c.mu.Unlock()
	c.finish(ctx, mine)
}

// finish takes one order to its certificate, from wherever it stands.
func (c *crashRun) finish(ctx context.Context, mine *crashOrder) {
	o, err := c.client.GetOrder(ctx, mine.url)
	if err != nil {
		c.unlessDead(ctx, "reading order", err)
		return
	}
	if o.Status == acme.StatusPending {
		if o, err = c.validate(ctx, o); err != nil {
			c.unlessDead(ctx, "validating", err)
			return
		}
	}
	switch o.Status {
	case acme.StatusReady, acme.StatusProcessing:
		_, _, err = c.client.CreateOrderCert(ctx, mine.finalizeURL, mine.csr, true)
	case acme.StatusValid:
	default:
		c.t.Errorf("order %s is %s: %v", mine.url, o.Status, o.Error)
		c.close(mine)
		return
	}
	if err != nil {
		c.unlessDead(ctx, "finalizing", err)
		return
	}
	if o, err = c.client.WaitOrder(ctx, mine.url); err != nil {
		c.unlessDead(ctx, "waiting for order", err)
		return
	}
	chain, err := c.client.FetchCert(ctx, o.CertURL, true)
	if err != nil {
		c.unlessDead(ctx, "fetching certificate", err)
		return
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		c.t.Errorf("the certificate of %s: %v", mine.url, err)
	} else if !leaf.PublicKey.(*ecdsa.PublicKey).Equal(mine.key.Public()) {
		c.t.Errorf("the certificate of %s is for another key", mine.url)
	}
	c.close(mine)
}

func (c *crashRun) validate(ctx context.Context, o *acme.Order) (*acme.Order, error) {
	for _, u := range o.AuthzURLs {
		z, err := c.client.GetAuthorization(ctx, u)
		if err != nil {
			return nil, err
		}
		for _, ch := range z.Challenges {
			if ch.Type == "http-01" && ch.Status == acme.StatusPending {
				if _, err := c.client.Accept(ctx, ch); err != nil {
					return nil, err
				}
			}
		}
		if _, err := c.client.WaitAuthorization(ctx, u); err != nil {
			return nil, err
		}
	}
	return c.client.WaitOrder(ctx, o.URI)
}

func (c *crashRun) close(o *crashOrder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, o.url)
	c.done++
}

// unlessDead reports an error that the server's death does not explain. An
// answer is never explained by it; a connection breaks a moment before the
// process is gone.
func (c *crashRun) unlessDead(ctx context.Context, doing string, err error) {
	var answer *acme.Error
	if !errors.As(err, &answer) {
		select {
		case <-c.server.done:
			return
		case <-ctx.Done():
			return
		case <-time.After(10 * time.Second):
		}
	}
	c.t.Errorf("%s, with the server alive: %v", doing, err)
}

// finishAll brings every order that was ever begun to its certificate.
func (c *crashRun) finishAll() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 3*time.Minute)
	defer cancel()
	c.mu.Lock()
	left := make([]*crashOrder, 0, len(c.open))
	for _, o := range c.open {
		left = append(left, o)
	}
	c.mu.Unlock()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, o := range left {
		slots <- struct{}{}
		wg.Go(func() {
			c.finish(ctx, o)
			<-slots
		})
	}
	wg.Wait()
	if len(c.open) != 0 {
		c.t.Errorf("%d of %d orders are stuck", len(c.open), len(c.open)+c.done)
	}
	c.t.Logf("%d kills; %d orders, %d of them begun before a kill and ended after it", c.crashes, c.done, len(left))
}

// checkLedger holds the log of signatures against the database.
func (c *crashRun) checkLedger() {
	c.t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(c.s.dir, "secsy.db")+"?mode=ro")
	if err != nil {
		c.t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(c.t.Context(), `SELECT serial, state, COALESCE(tbs, x''), COALESCE(der, x'') FROM certificates`)
	if err != nil {
		c.t.Fatal(err)
	}
	defer rows.Close()
	state, serials := map[string]string{}, map[string]bool{}
	for rows.Next() {
		var serial, st string
		var tbs, der []byte
		if err := rows.Scan(&serial, &st, &tbs, &der); err != nil {
			c.t.Fatal(err)
		}
		if st == "issued" {
			crt, err := x509.ParseCertificate(der)
			if err != nil {
				c.t.Errorf("%s: %v", serial, err)
				continue
			}
			tbs = crt.RawTBSCertificate
		}
		if st == "pending" {
			c.t.Errorf("serial %s is still pending", serial)
		}
		if serials[serial] {
			c.t.Errorf("serial %s is there twice", serial)
		}
		serials[serial] = true
		sum := sha256.Sum256(tbs)
		state[hex.EncodeToString(sum[:])] = st
	}
	if err := rows.Err(); err != nil {
		c.t.Fatal(err)
	}
	tried, made := readSignLog(c.t, c.signLog)
	for digest, n := range tried {
		if state[digest] == "" {
			c.t.Errorf("%s was given to the key, but is not on record", digest)
		}
		if n > 1 {
			c.t.Errorf("%s was given to the key %d times", digest, n)
		}
	}
	for digest := range made {
		if st := state[digest]; st != "issued" && st != "abandoned" {
			c.t.Errorf("%s was signed, but its record says %q", digest, st)
		}
	}
	if len(made) < crashRounds {
		c.t.Errorf("only %d signatures were made: the test did not test", len(made))
	}
	c.t.Logf("%d serials on record, %d signatures", len(serials), len(made))
}

func readSignLog(t *testing.T, file string) (tried, made map[string]int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tried, made = map[string]int{}, map[string]int{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		what, digest, _ := strings.Cut(sc.Text(), " ")
		if what == "try" {
			tried[digest]++
		} else {
			made[digest]++
		}
	}
	return tried, made
}

func (c *crashRun) restartAndVerifyAudit() {
	c.t.Helper()
	c.startServer("none", 0)
	verifyAudit(c.t, c.s)
}
