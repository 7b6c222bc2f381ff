package app

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/secsy-pki/secsy-pki/config"
)

// Migrate brings the database up to date and says on out what it did.
func Migrate(ctx context.Context, cfg *config.Config, out io.Writer) error {
	a := newApp(Options{Config: cfg, Stderr: io.Discard})
	engine, err := openEngine(ctx, cfg, a)
	if err != nil {
		return err
	}
	applied, err := engine.Migrate(ctx)
	if err = errors.Join(err, engine.Close()); err != nil {
		return fmt.Errorf("migrating the database: %w", err)
	}
	if len(applied) == 0 {
		fmt.Fprintln(out, "the database is up to date")
	}
	for _, f := range applied {
		fmt.Fprintln(out, "applied", f)
	}
	return nil
}
