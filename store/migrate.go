package store

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/pressly/goose/v3"
)

// ErrNewerSchema says that the database was migrated by a newer version of the
// program than this one.
var ErrNewerSchema = errors.New("store: the database's schema is newer than this program")

// Migrate applies what p has to apply, each file in a transaction of its own,
// and returns the files' names. The engines call it with a provider that lets
// only one program migrate at a time.
func Migrate(ctx context.Context, p *goose.Provider) (applied []string, err error) {
	if err := checkNotNewer(ctx, p); err != nil {
		return nil, err
	}
	results, err := p.Up(ctx)
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		results = partial.Applied
		err = fmt.Errorf("applying %s: %w", path.Base(partial.Failed.Source.Path), partial.Err)
	}
	for _, r := range results {
		applied = append(applied, path.Base(r.Source.Path))
	}
	if err != nil {
		return applied, fmt.Errorf("migrating the database: %w", err)
	}
	return applied, nil
}

// Pending returns the names of the files that are still to be applied.
func Pending(ctx context.Context, p *goose.Provider) (missing []string, err error) {
	if err := checkNotNewer(ctx, p); err != nil {
		return nil, err
	}
	status, err := p.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the state of the schema: %w", err)
	}
	for _, s := range status {
		if s.State == goose.StatePending {
			missing = append(missing, path.Base(s.Source.Path))
		}
	}
	return missing, nil
}

func checkNotNewer(ctx context.Context, p *goose.Provider) error {
	have, err := p.GetDBVersion(ctx)
	if err != nil {
		return fmt.Errorf("reading the version of the schema: %w", err)
	}
	sources := p.ListSources()
	if known := sources[len(sources)-1].Version; have > known {
		return fmt.Errorf("%w: the database is at %04d, this program knows up to %04d", ErrNewerSchema, have, known)
	}
	return nil
}
