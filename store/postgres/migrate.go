package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/secsy-pki/secsy-pki/migrations"
	"github.com/secsy-pki/secsy-pki/store"
)

// lockTries is how many seconds a starting program waits for another one that migrates.
const lockTries = 300

// Migrate brings the schema up to date and returns the files it applied. Of
// several programs that start at the same time one migrates, and the others wait.
func (e *Engine) Migrate(ctx context.Context) (applied []string, err error) {
	return e.withSchema(ctx, store.Migrate)
}

// Pending returns the files that Migrate would apply.
func (e *Engine) Pending(ctx context.Context) (missing []string, err error) {
	return e.withSchema(ctx, store.Pending)
}

func (e *Engine) withSchema(ctx context.Context, f func(context.Context, *goose.Provider) ([]string, error)) (files []string, err error) {
	ctx, err = e.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer e.calls.Done()
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, lockTries))
	if err != nil {
		return nil, fmt.Errorf("preparing the lock of the schema: %w", err)
	}
	db := stdlib.OpenDBFromPool(e.pool)
	defer func() { err = errors.Join(err, db.Close()) }() // the pool stays open
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.Postgres(),
		goose.WithDisableGlobalRegistry(true), goose.WithSessionLocker(locker))
	if err != nil {
		return nil, fmt.Errorf("reading the migrations: %w", err)
	}
	files, err = f(ctx, p)
	return files, e.secret.clean(err)
}
