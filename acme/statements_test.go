package acme_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/ratelimit"
	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/storetest"
)

// A listing engine writes down the statements.
type listing struct {
	store.Engine
	mu   sync.Mutex // guards list
	list []string
}

func (l *listing) Write(ctx context.Context, fn func(ctx context.Context, tx store.Tx) error) error {
	return l.Engine.Write(ctx, func(ctx context.Context, tx store.Tx) error { return fn(ctx, listed{tx, l}) })
}

func (l *listing) Read(ctx context.Context, fn func(ctx context.Context, tx store.Tx) error) error {
	return l.Engine.Read(ctx, func(ctx context.Context, tx store.Tx) error { return fn(ctx, listed{tx, l}) })
}

func (l *listing) ReadRow(ctx context.Context, scan func(store.Row) error, q string, args ...any) error {
	l.note(q)
	return l.Engine.ReadRow(ctx, scan, q, args...)
}

func (l *listing) note(q string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, q)
}

func (l *listing) drain() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.list
	l.list = nil
	return out
}

type listed struct {
	store.Tx
	to *listing
}

func (l listed) Exec(ctx context.Context, q string, args ...any) (int64, error) {
	l.to.note(q)
	return l.Tx.Exec(ctx, q, args...)
}

func (l listed) QueryRow(ctx context.Context, q string, args ...any) store.Row {
	l.to.note(q)
	return l.Tx.QueryRow(ctx, q, args...)
}

func (l listed) Query(ctx context.Context, q string, args ...any) (store.Rows, error) {
	l.to.note(q)
	return l.Tx.Query(ctx, q, args...)
}

// One certificate for one name, by a client that asks no more than it has to:
// newOrder, authorization, challenge, authorization, finalize, certificate.
func TestAnIssuanceTakesNoMoreStatementsThanCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := storetest.SQLite(t)
		l := &listing{Engine: db.Engine}
		counted := store.New(l)
		w := limitedWorld(t, ratelimit.Config{}, func(c *acme.Config) {
			authority := catest.New(t, func(c *ca.Config) { c.Store = store.NewCA(counted) })
			c.CA = authority.Authority
			c.Pausing = acme.Pausing{Failures: 50, Period: time.Hour}
			c.Store = &watched{Store: store.NewACME(counted), moved: make(chan struct{})}
		})
		c := w.client()
		c.get(c.kid).want(200) // from now on the account is remembered
		synctest.Wait()
		l.drain()
		before := counted.Stat()
		steps := map[string]int{}
		sum := 0
		step := func(name string, f func()) {
			f()
			synctest.Wait() // what goes on in the background is in it; no time passes
			list := l.drain()
			steps[name] = len(list)
			sum += len(list)
			t.Logf("%s: %d", name, len(list))
			for _, q := range list {
				t.Logf("    %.90q", q)
			}
		}
		var order, valid *reply
		step("nonces", func() {
			for range 10 {
				c.do("HEAD", w.url("new-nonce"), "", nil).want(200)
				c.do("GET", w.url("directory"), "", nil).want(200)
			}
		})
		step("newOrder", func() { _, order = c.order("a.example.com") })
		authz := order.strs("authorizations")[0]
		var challenge string
		step("authorization", func() { challenge = c.challengeURL(authz, "http-01") })
		step("challenge", func() { c.post(challenge, map[string]any{}).want(200) })
		step("authorization again", func() { c.get(authz).want(200) })
		key := newKey(t)
		step("finalize", func() { valid = c.post(order.str("finalize"), csrBody(catest.CSR(t, key, "a.example.com"))).want(200) })
		if valid.str("status") != "valid" {
			t.Fatalf("order is %s: %s", valid.str("status"), valid.body)
		}
		step("certificate", func() { c.get(valid.str("certificate")).want(200) })
		after := counted.Stat()
		got := fmt.Sprintf("%d statements, %d reads, %d writes", sum, after.Reads-before.Reads, after.Writes-before.Writes)
		if want := "21 statements, 8 reads, 5 writes"; got != want {
			t.Errorf("an issuance took %s; want %s", got, want)
		}
		if steps["nonces"] != 0 {
			t.Errorf("nonces took %d statements", steps["nonces"])
		}
	})
}
