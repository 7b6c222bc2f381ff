package sqlite

import (
	"fmt"
	"testing"
)

func TestOnlyParametersAreRewritten(t *testing.T) {
	t.Parallel()
	var r rewriter
	for q, want := range map[string]string{
		"":                          "",
		"SELECT $1, $12":            "SELECT +?1, +?12",
		"$2$1":                      "+?2+?1",
		"SELECT '$1', $1":           "SELECT '$1', +?1",
		"SELECT 'it''s $1', $1":     "SELECT 'it''s $1', +?1",
		`SELECT "a$1" FROM t`:       `SELECT "a$1" FROM t`,
		"SELECT 1 -- $1\n, $2":      "SELECT 1 -- $1\n, +?2",
		"SELECT /* '$1 */ $2 /*/$3": "SELECT /* '$1 */ +?2 /*/$3",
		"SELECT $x, $":              "SELECT $x, $",
		"SELECT 'never ends $1":     "SELECT 'never ends $1",
		"SELECT a->'$.b', $3":       "SELECT a->'$.b', +?3",
		"-- $1":                     "-- $1",
		"SELECT 1 - $1 / $2":        "SELECT 1 - +?1 / +?2",
	} {
		for range 2 { // the second time it is remembered
			if got := r.rewrite(q); got != want {
				t.Errorf("%q became %q, want %q", q, got, want)
			}
		}
	}
}

func TestRememberedStatementsAreBounded(t *testing.T) {
	t.Parallel()
	var r rewriter
	for n := range 2 * maxRewritten {
		if got := r.rewrite(fmt.Sprintf("SELECT %d, $1", n)); got != fmt.Sprintf("SELECT %d, +?1", n) {
			t.Fatal(got)
		}
	}
	if got := r.size.Load(); got != maxRewritten {
		t.Errorf("%d are remembered, want %d", got, maxRewritten)
	}
}
