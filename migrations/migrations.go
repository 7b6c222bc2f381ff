// Package migrations holds the numbered, forward-only SQL files of both engines.
package migrations

import (
	"embed"
	"io/fs"
)

//go:embed sqlite/*.sql postgres/*.sql
var files embed.FS

// SQLite returns the files for SQLite, at the root of the file system.
func SQLite() fs.FS { return folder("sqlite") }

// Postgres returns the files for PostgreSQL, at the root of the file system.
func Postgres() fs.FS { return folder("postgres") }

func folder(name string) fs.FS {
	dir, err := fs.Sub(files, name)
	if err != nil { // only for a name that is not a valid path
		panic(err)
	}
	return dir
}
