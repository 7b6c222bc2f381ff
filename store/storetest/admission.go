package storetest

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/secsy-pki/secsy-pki/ratelimit"
	"github.com/secsy-pki/secsy-pki/store"
)

// Admission is the suite of what admission control keeps.
func Admission(t *testing.T, open func(t *testing.T) *store.DB) {
	for name, law := range map[string]func(t *testing.T, db *store.DB){
		"RefusalsAreWhatWasSavedLast":      budgetSavedLast,
		"ZeroRefusalsForgetTheIdentity":    budgetZeroForgets,
		"NothingButTheCountIsKept":         budgetOnlyTheCount,
		"AnImpossibleCountIsNotKept":       budgetImpossible,
		"SavingIsSafeFromMany":             budgetConcurrent,
		"ARestartNeitherResetsNorRewrites": budgetRestart,
		"QuotasOfOneSubjectAreApartByKind": quotaKinds,
		"QuotasThatOweNothingCanBeSwept":   quotaSweep,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			law(t, open(t))
		})
	}
}

func budgetWant(t *testing.T, b *store.Budget, identity string, want int) {
	t.Helper()
	if got, err := b.Refusals(t.Context(), identity); err != nil || got != want {
		t.Errorf("refusals of %q: %d, %v; want %d", identity, got, err, want)
	}
}

func budgetSave(t *testing.T, b *store.Budget, identity string, n int) {
	t.Helper()
	if err := b.SaveRefusals(t.Context(), identity, n); err != nil {
		t.Fatal(err)
	}
}

func budgetSavedLast(t *testing.T, db *store.DB) {
	b := store.NewBudget(db)
	names := []string{"acct", "Acct", "acct ", "ünï'; --", strings.Repeat("x", 4000)}
	budgetWant(t, b, "acct", 0)
	for i, name := range names {
		budgetSave(t, b, name, 5)
		budgetSave(t, b, name, 6+i)
	}
	for i, name := range names {
		budgetWant(t, b, name, 6+i)
	}
	budgetSave(t, b, "acct", 4) // it has decayed
	budgetWant(t, b, "acct", 4)
	budgetWant(t, b, "Acct", 7)
}

func budgetZeroForgets(t *testing.T, db *store.DB) {
	b := store.NewBudget(db)
	budgetSave(t, b, "a", 5)
	budgetSave(t, b, "b", 5)
	budgetSave(t, b, "a", 0)
	budgetSave(t, b, "never seen", 0)
	budgetWant(t, b, "a", 0)
	if got := number(t, db, `SELECT count(*) FROM refusal_budgets`); got != 1 {
		t.Errorf("%d rows are left, want the one of b", got)
	}
}

// A deadline that is kept outlives the clock that it was made with, so none is:
// the table is a name and a number.
func budgetOnlyTheCount(t *testing.T, db *store.DB) {
	change(t, db, `INSERT INTO refusal_budgets VALUES ('a', 5)`) // fails if there were a third column
	budgetWant(t, store.NewBudget(db), "a", 5)
}

func budgetImpossible(t *testing.T, db *store.DB) {
	b := store.NewBudget(db)
	budgetSave(t, b, "a", 5)
	if err := b.SaveRefusals(t.Context(), "a", -1); err == nil {
		t.Error("a count below zero was kept")
	}
	budgetWant(t, b, "a", 5)
}

func budgetConcurrent(t *testing.T, db *store.DB) {
	b := store.NewBudget(db)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 5 {
				if err := b.SaveRefusals(t.Context(), string(rune('a'+i)), n+1); err != nil {
					t.Error(err)
				}
				if err := b.SaveRefusals(t.Context(), "shared", n+1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range 8 {
		budgetWant(t, b, string(rune('a'+i)), 5)
	}
	if got, err := b.Refusals(t.Context(), "shared"); err != nil || got < 1 || got > 5 {
		t.Errorf("shared: %d, %v", got, err)
	}
}

// A second Budget on the same table stands for the process after a restart.
func budgetRestart(t *testing.T, db *store.DB) {
	b := store.NewBudget(db)
	for life := range 3 {
		budget, err := ratelimit.NewBudget(ratelimit.BudgetConfig{Store: b})
		if err != nil {
			t.Fatal(err)
		}
		if life == 0 {
			for range 6 {
				budget.Refused(t.Context(), "a")
			}
			for range 3 {
				budget.Refused(t.Context(), "within its allowance")
			}
			continue
		}
		// What has debt is let through once, and then held to its interval.
		if d := budget.Check(t.Context(), "a"); !d.OK {
			t.Errorf("life %d: the first attempt: %+v", life, d)
		}
		if d := budget.Check(t.Context(), "a"); d.OK || d.Seconds() != 2 {
			t.Errorf("life %d: the second attempt: %+v, want a no for 2 s", life, d)
		}
		budgetWant(t, b, "a", 6)
	}
	budgetWant(t, b, "within its allowance", 0)
}

func quotaKinds(t *testing.T, db *store.DB) {
	const insert = `INSERT INTO quotas (kind, subject, free_at) VALUES ($1, $2, $3)`
	change(t, db, insert, "acme", "same", int64(1))
	change(t, db, insert, "est", "same", int64(2))
	if got := number(t, db, `SELECT q.free_at FROM quotas q WHERE q.kind = 'est' AND q.subject = 'same'`); got != 2 {
		t.Errorf("the other kind is at %d, want 2", got)
	}
	err := db.Write(t.Context(), func(ctx context.Context, tx store.Tx) error {
		_, err := tx.Exec(ctx, insert, "acme", "same", int64(3))
		return err
	})
	if err == nil {
		t.Error("one subject has two rows of one kind")
	}
}

func quotaSweep(t *testing.T, db *store.DB) {
	change(t, db, `INSERT INTO quotas (kind, subject, free_at) VALUES ('acme', 'a', 10), ('acme', 'b', 20), ('est', 'a', 30)`)
	if got := change(t, db, `DELETE FROM quotas WHERE free_at <= $1`, int64(20)); got != 2 {
		t.Errorf("swept %d rows, want 2", got)
	}
}
