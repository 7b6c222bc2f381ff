package sqlite

import (
	"errors"
	"fmt"

	"github.com/mattn/go-sqlite3"

	"github.com/secsy-pki/secsy-pki/store"
)

// classify gives an error of the driver the names that callers know.
func classify(err error) error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[sqlite3.Error](err)
	if !ok {
		return err
	}
	switch e.ExtendedCode {
	case sqlite3.ErrConstraintUnique, sqlite3.ErrConstraintPrimaryKey, sqlite3.ErrConstraintRowID:
		return fmt.Errorf("%w: %w", store.ErrUnique, err)
	}
	switch e.Code {
	case sqlite3.ErrFull:
		return fmt.Errorf("the disk is full: %w", err)
	case sqlite3.ErrNotADB:
		return fmt.Errorf("not an SQLite database: %w", err)
	case sqlite3.ErrCorrupt:
		return fmt.Errorf("the database is damaged: %w", err)
	case sqlite3.ErrBusy, sqlite3.ErrLocked:
		return fmt.Errorf("another program keeps the database locked: %w", err)
	case sqlite3.ErrIoErr:
		return fmt.Errorf("the disk has an error: %w", err)
	}
	return err
}
