package integration

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/x509"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/acme"
)

const (
	chaosClients = 32
	chaosStorm   = 5 // finalizes of one order at a time
	chaosRounds  = 8 // kills; CHAOS says another number
	chaosFaults  = 20
	// chaosLease is how long an order may stay processing while a server lives that
	// does not fail: an attempt's own time, and the longest pause before the next.
	chaosLease = 2 * time.Minute
)

// TestStormsKillsAndFaultsLoseNothing has 32 clients finalize each of their
// orders several times at once, with the same CSR and with others, while the
// device fails in its ways and the program is killed at any moment. In the end
// every order is valid and has one certificate, for one of the CSRs that were
// sent; all who were told of it were told the same; no signature is lost, none was
// made twice, and the audit log is whole.
func TestStormsKillsAndFaultsLoseNothing(t *testing.T) {
	t.Parallel()
	rounds := chaosRounds
	if v := os.Getenv("CHAOS"); v != "" {
		var err error
		if rounds, err = strconv.Atoi(v); err != nil {
			t.Fatal("CHAOS: ", err)
		}
	}
	c := newChaos(t)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, client := range c.clients {
		wg.Go(func() {
			for ctx.Err() == nil {
				c.begin(ctx, client)
			}
		})
	}
	for range rounds {
		time.Sleep(time.Second + time.Duration(rand.IntN(3000))*time.Millisecond)
		c.server.kill()
		c.startServer("none", 0)
	}
	stop()
	wg.Wait()
	c.server.kill()
	c.environ = nil
	c.startServer("none", 0)
	c.end()
	c.server.stop()
	if t.Failed() {
		t.Fatalf("the last server said:\n%s", c.server.out)
	}
	c.checkLedger()
	c.checkOneCertificateEach()
	c.restartAndVerifyAudit()
}

type chaos struct {
	*crashRun
	answers *answerer
	clients []*acme.Client
	orders  []*chaosOrder // guarded by mu
	storms  int           // likewise: finalizes that were answered
}

// A chaosOrder is one client's.
type chaosOrder struct {
	client   *acme.Client
	name     string
	url      string
	finalize string
	csrs     [2][]byte
	keys     [2]*ecdsa.PrivateKey
	mu       sync.Mutex // guards leaf
	leaf     []byte     // once anybody was given it
}

func newChaos(t *testing.T) *chaos {
	t.Helper()
	c := &chaos{crashRun: &crashRun{t: t}}
	c.prepare()
	c.environ = []string{"CRASH_FAULTS=" + strconv.Itoa(chaosFaults)}
	c.answers = serveKeyAuthorizations(t, c.s.http01)
	c.startServer("none", 0)
	for range chaosClients {
		client := &acme.Client{Key: p256(t), DirectoryURL: c.s.env["ACME_DIRECTORY"], HTTPClient: c.s.client(t), RetryBackoff: retrySoon}
		if _, err := client.Register(t.Context(), &acme.Account{}, acme.AcceptTOS); err != nil {
			t.Fatalf("registering: %v", err)
		}
		c.clients = append(c.clients, client)
	}
	return c
}

// retrySoon tries again what a nonce spoiled, and what is to be waited for.
func retrySoon(n int, _ *http.Request, res *http.Response) time.Duration {
	switch {
	case res != nil && res.StatusCode == http.StatusBadRequest && n < 20:
		return time.Millisecond
	case res != nil && res.StatusCode == http.StatusServiceUnavailable:
		return 200 * time.Millisecond
	}
	return -1
}

// begin makes an order, and takes it as far as ctx and the server allow.
func (c *chaos) begin(ctx context.Context, client *acme.Client) {
	name := fmt.Sprintf("chaos-%d.example.com", rand.Uint64())
	o, err := client.AuthorizeOrder(ctx, acme.DomainIDs(name))
	if err != nil {
		c.unlessDown(ctx, "ordering", err)
		return
	}
	mine := &chaosOrder{client: client, name: name, url: o.URI, finalize: o.FinalizeURL}
	for i := range mine.csrs {
		mine.keys[i] = p256(c.t)
		mine.csrs[i] = csrOf(c.t, mine.keys[i], x509.CertificateRequest{DNSNames: []string{name}})
	}
	c.mu.Lock()
	c.orders = append(c.orders, mine)
	c.mu.Unlock()
	for ctx.Err() == nil && !c.advance(ctx, mine) {
	}
}

// advance takes an order one step further, and says whether it is at its end.
func (c *chaos) advance(ctx context.Context, mine *chaosOrder) (done bool) {
	o, err := mine.client.GetOrder(ctx, mine.url)
	if err != nil {
		c.unlessDown(ctx, "reading an order", err)
		return false
	}
	switch o.Status {
	case acme.StatusPending:
		if err := c.prove(ctx, mine.client, o); err != nil {
			c.unlessDown(ctx, "proving", err)
		}
	case acme.StatusReady:
		c.storm(ctx, mine)
	case acme.StatusProcessing:
		wait(ctx, 100*time.Millisecond)
	case acme.StatusValid:
		chain, err := mine.client.FetchCert(ctx, o.CertURL, true)
		if err != nil {
			c.unlessDown(ctx, "fetching a certificate", err)
			return false
		}
		mine.given(c.t, chain)
		return true
	default:
		c.t.Errorf("the order of %s is %s: %v", mine.name, o.Status, o.Error)
		return true
	}
	return false
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (c *chaos) prove(ctx context.Context, client *acme.Client, o *acme.Order) error {
	for _, u := range o.AuthzURLs {
		z, err := client.GetAuthorization(ctx, u)
		if err != nil {
			return err
		}
		for _, ch := range z.Challenges {
			if ch.Type != "http-01" || ch.Status != acme.StatusPending {
				continue
			}
			body, err := client.HTTP01ChallengeResponse(ch.Token)
			if err != nil {
				return err
			}
			c.answers.set(ch.Token, body)
			if _, err := client.Accept(ctx, ch); err != nil {
				return err
			}
		}
		if _, err := client.WaitAuthorization(ctx, u); err != nil {
			return err
		}
	}
	return nil
}

// storm finalizes an order several times at once: the first CSR more often than
// the second, which may win all the same.
func (c *chaos) storm(ctx context.Context, mine *chaosOrder) {
	var wg sync.WaitGroup
	for i := range chaosStorm {
		wg.Go(func() {
			chain, _, err := mine.client.CreateOrderCert(ctx, mine.finalize, mine.csrs[i%3/2], true)
			if err == nil {
				mine.given(c.t, chain)
			}
			if p, ok := errors.AsType[*acme.Error](err); ok && strings.HasSuffix(p.ProblemType, ":orderNotReady") {
				err = nil // the other CSR was first, and it is said so
			}
			if err != nil {
				c.unlessDown(ctx, "finalizing", err)
				return
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.storms++
		})
	}
	wg.Wait()
}

// given holds what one client was given against what others were.
func (o *chaosOrder) given(t *testing.T, chain [][]byte) {
	t.Helper()
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		t.Errorf("%s: %v", o.name, err)
		return
	}
	mine := false
	for _, k := range o.keys {
		pub, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
		mine = mine || ok && pub.Equal(k.Public())
	}
	if !mine || leaf.VerifyHostname(o.name) != nil {
		t.Errorf("%s was given a certificate for %q and another key", o.name, leaf.DNSNames)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.leaf != nil && string(o.leaf) != string(chain[0]) {
		t.Errorf("%s was given two certificates", o.name)
	}
	o.leaf = chain[0]
}

// unlessDown reports an answer that no storm, kill or fault explains. That a
// connection breaks, they do.
func (c *chaos) unlessDown(ctx context.Context, doing string, err error) {
	if ctx.Err() != nil {
		return // a retry that is no longer made leaves the answer before it
	}
	if p, ok := errors.AsType[*acme.Error](err); ok && p.StatusCode != http.StatusServiceUnavailable {
		c.t.Errorf("%s: %v", doing, err)
	}
	if p, ok := errors.AsType[*acme.OrderError](err); ok {
		c.t.Errorf("%s: the order is %s: %v", doing, p.Status, err)
	}
	wait(ctx, 50*time.Millisecond)
}

// end brings every order to its end, within the time that a lease may take.
func (c *chaos) end() {
	c.t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(c.t.Context(), chaosLease)
	defer cancel()
	var wg sync.WaitGroup
	slots := make(chan struct{}, chaosClients)
	for _, o := range c.orders {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			for !c.advance(ctx, o) {
				if ctx.Err() != nil {
					c.t.Errorf("the order of %s is stuck", o.name)
					return
				}
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.done++
		})
	}
	wg.Wait()
	c.t.Logf("%d orders, %d finalizes answered; the last was valid %v after the last kill", len(c.orders), c.storms, time.Since(began).Round(time.Millisecond))
}

// checkOneCertificateEach counts the certificates of each order, by its name.
func (c *chaos) checkOneCertificateEach() {
	c.t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(c.s.dir, "secsy.db")+"?mode=ro")
	if err != nil {
		c.t.Fatal(err)
	}
	defer db.Close()
	rows, err := db.QueryContext(c.t.Context(), `SELECT der FROM certificates WHERE state = 'issued'`)
	if err != nil {
		c.t.Fatal(err)
	}
	defer rows.Close()
	issued := map[string]int{}
	for rows.Next() {
		var der []byte
		if err := rows.Scan(&der); err != nil {
			c.t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, n := range leaf.DNSNames {
			issued[n]++
		}
	}
	if err := rows.Err(); err != nil {
		c.t.Fatal(err)
	}
	for _, o := range c.orders {
		if n := issued[o.name]; n != 1 {
			c.t.Errorf("%s has %d certificates", o.name, n)
		}
	}
}
