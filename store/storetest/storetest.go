// Package storetest opens databases for tests, and is the suite that both engines must pass.
package storetest

import (
	"path/filepath"
	"testing"

	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/sqlite"
)

// SQLite returns a migrated database in a folder of its own, closed with t.
func SQLite(t *testing.T) *store.DB {
	t.Helper()
	e, err := sqlite.Open(t.Context(), sqlite.Config{Path: filepath.Join(t.TempDir(), "secsy.db")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("closing the database: %v", err)
		}
	})
	if _, err := e.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return store.New(e)
}
