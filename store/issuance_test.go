package store_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/sqlite"
)

// BenchmarkIssuance asks SQLite what an issuance asks it for: five writes, and
// reads of rows by their key between them, of eight clients. The processor time
// is of the whole process; commits are waits for the disk.
func BenchmarkIssuance(b *testing.B) {
	db := openSQLite(b)
	rooms := issuing{store.NewACME(db), store.NewCA(db)}
	var clients atomic.Int64
	before, commits := processorTime(b), db.Stat().Commits
	b.SetParallelism(max(1, 8/runtime.GOMAXPROCS(0)))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		client := clients.Add(1)
		account := rooms.account(b, client)
		for n := 0; pb.Next(); n++ {
			if err := rooms.issue(b, account, fmt.Sprintf("host%d.client%d.example", n, client)); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(processorTime(b)-before)/float64(time.Microsecond)/float64(b.N), "cpu-us/op")
	b.ReportMetric(float64(db.Stat().Commits-commits)/float64(b.N), "commits/op")
}

// openSQLite is not in memory, unless the folder of temporary files is, where a
// sync costs nothing.
func openSQLite(b *testing.B) *store.DB {
	b.Helper()
	dir := b.TempDir()
	if at := os.Getenv("SECSY_BENCH_DIR"); at != "" {
		var err error
		if dir, err = os.MkdirTemp(at, "store-"); err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	e, err := sqlite.Open(b.Context(), sqlite.Config{Path: filepath.Join(dir, "secsy.db")})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := e.Close(); err != nil {
			b.Error(err)
		}
	})
	if _, err := e.Migrate(b.Context()); err != nil {
		b.Fatal(err)
	}
	return store.New(e)
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

type issuing struct {
	acme *store.ACME
	ca   *store.CA
}

func (r issuing) account(b *testing.B, n int64) acme.Account {
	b.Helper()
	a, _, err := r.acme.CreateAccount(b.Context(), acme.Account{
		ID: audit.NewID(), Key: make([]byte, 120), Thumbprint: fmt.Sprint("thumbprint", n), Status: acme.AccountValid, TermsAgreed: true, CreatedAt: time.Now(),
	}, audit.New("test", "account.created", "account", nil))
	if err != nil {
		b.Error(err)
	}
	return a
}

// issue is in the order of the requests of a client.
func (r issuing) issue(b *testing.B, account acme.Account, name string) error {
	ctx, now := b.Context(), time.Now()
	names := []ca.Identifier{{Type: ca.DNS, Value: name}}
	o := acme.Order{
		ID: audit.NewID(), AccountID: account.ID, Status: acme.OrderPending, Profile: "server", Identifiers: names,
		CreatedAt: now, Expires: now.Add(time.Hour), SetHash: audit.NewID(),
	}
	z := acme.Authorization{
		ID: audit.NewID(), AccountID: account.ID, OrderID: o.ID, Identifier: names[0], Status: acme.AuthzPending, Token: audit.NewID(),
		Offered: []acme.ChallengeType{acme.HTTP01, acme.DNS01, acme.TLSALPN01}, CreatedAt: now, Expires: o.Expires, PurgeAt: o.Expires.Add(time.Hour),
	}
	o.AuthzIDs = []string{z.ID}
	lease := now.Add(time.Minute)
	in := ca.Intent{
		ID: audit.NewID(), Serial: ca.Serial("01" + audit.NewID()), Issuer: "issuer", Profile: "server", TBS: make([]byte, 600),
		SPKIHash: sha256.Sum256([]byte(name)), Names: names, NotBefore: now, NotAfter: now.Add(time.Hour),
		Requester: ca.Requester{Actor: account.ID}, CreatedAt: now, LeaseUntil: lease,
	}
	entry := audit.New(account.ID, "authorization.valid", z.ID, map[string]any{"name": name})
	by := acme.Signer{AccountID: account.ID, Thumbprint: account.Thumbprint}
	for _, step := range []func() error{
		func() error { _, err := r.acme.Account(ctx, account.ID); return err },
		func() error {
			return r.acme.CreateOrder(ctx, o, []acme.Authorization{z}, acme.OrderLimits{MaxOpen: 1000})
		},
		func() error { _, err := r.acme.Account(ctx, account.ID); return err },
		func() error { _, err := r.acme.AuthorizationOf(ctx, by, z.ID); return err },
		func() error { _, err := r.acme.Account(ctx, account.ID); return err },
		func() error { _, err := r.acme.AuthorizationOf(ctx, by, z.ID); return err },
		func() error { return r.acme.StartChallenge(ctx, z.ID, acme.HTTP01, lease, now) },
		func() error { _, err := r.acme.Authorization(ctx, z.ID); return err },
		func() error { _, err := r.acme.Account(ctx, account.ID); return err },
		func() error {
			return r.acme.FinishValidation(ctx, acme.Validated{AuthzID: z.ID, OrderID: o.ID, Lease: lease, At: now, Expires: now.Add(time.Hour), PurgeAt: now.Add(2 * time.Hour)}, entry)
		},
		func() error { _, err := r.acme.AuthorizationOf(ctx, by, z.ID); return err },
		func() error { _, err := r.acme.Account(ctx, account.ID); return err },
		func() error { _, err := r.acme.OrderOf(ctx, by, o.ID); return err },
		func() error { _, err := r.ca.KeyBlocked(ctx, in.SPKIHash); return err },
		func() error {
			return r.acme.BeginIssue(ctx, acme.Claim{OrderID: o.ID, CSR: make([]byte, 300), CSRHash: in.ID, Now: now, DueAt: lease, Authzs: o.AuthzIDs}, in)
		},
		func() error {
			return r.acme.CommitIssue(ctx, o.ID, in, ca.Certificate{ID: in.ID, Serial: in.Serial, DER: make([]byte, 800)}, now.Add(time.Hour))
		},
		func() error { _, err := r.acme.OrderOf(ctx, by, o.ID); return err },
		func() error { _, err := r.acme.CertificateOf(ctx, account.ID, in.ID); return err },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}
