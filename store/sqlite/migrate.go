package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"

	"github.com/pressly/goose/v3"

	"github.com/secsy-pki/secsy-pki/migrations"
	"github.com/secsy-pki/secsy-pki/store"
)

// Migrate brings the schema up to date and returns the files it applied. Open's
// lock keeps other programs from doing the same.
func (e *Engine) Migrate(ctx context.Context) (applied []string, err error) {
	return e.withSchema(ctx, store.Migrate)
}

// Pending returns the files that Migrate would apply.
func (e *Engine) Pending(ctx context.Context) (missing []string, err error) {
	return e.withSchema(ctx, store.Pending)
}

// withSchema calls f over a connection of its own; the writer's goes on.
func (e *Engine) withSchema(ctx context.Context, f func(context.Context, *goose.Provider) ([]string, error)) (files []string, err error) {
	ctx, err = e.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer e.calls.Done()
	db, err := sql.Open("sqlite3", dsn(e.path, url.Values{
		"mode": {"rw"}, "_synchronous": {"FULL"}, "_foreign_keys": {"on"}, "_txlock": {"immediate"},
	}))
	if err != nil {
		return nil, fmt.Errorf("opening database %s: %w", e.path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	p, err := goose.NewProvider(goose.DialectSQLite3, db, migrations.SQLite(), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("reading the migrations: %w", err)
	}
	files, err = f(ctx, p)
	return files, classify(err)
}
