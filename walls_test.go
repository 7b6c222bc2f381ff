// Package secsypki_test holds the walls of the house: which room may import
// which. The table is the plan; go list is the house as it stands.
package secsypki_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/secsy-pki/secsy-pki"

// A wall is what one room may import: rooms of ours, and what of the rest it
// may never (or, with stdlibOnly, only) import.
type wall struct {
	rooms      []string // of ours; "*" is all
	never      []string // import path prefixes, with the rooms' why in the table
	stdlibOnly bool
	except     []string // third-party modules that stdlibOnly lets through
}

var (
	wire    = []string{"net/http", "github.com/go-chi/chi"}
	sql     = []string{"database/sql", "github.com/jackc/pgx", "github.com/mattn/go-sqlite3"}
	devices = []string{"github.com/miekg/pkcs11"}
)

// rooms is the plan. A room that is not listed may import none of ours.
var rooms = map[string]wall{
	"cmd/secsy-pki":    {rooms: []string{"app", "config", "admin/client"}, never: slices.Concat(wire, sql, devices)},
	"app":              {rooms: []string{"*"}},
	"config":           {stdlibOnly: true, except: []string{"github.com/goccy/go-yaml"}},
	"front":            {rooms: []string{"peer", "ratelimit"}, never: slices.Concat(sql, devices)},
	"peer":             {stdlibOnly: true},
	"acme":             {rooms: []string{"ca", "peer", "ratelimit", "gate", "audit"}, never: slices.Concat(sql, devices)},
	"acme/challenge":   {rooms: []string{"acme", "ca"}, never: slices.Concat(sql, devices)},
	"acme/attestation": {rooms: []string{"acme", "ca"}, never: slices.Concat(wire, sql, devices)},
	"ocsp":             {rooms: []string{"ca", "keys", "peer", "ratelimit", "audit"}, never: slices.Concat(sql, devices)},
	"crl":              {rooms: []string{"ca", "keys", "peer", "ratelimit", "audit"}, never: slices.Concat(sql, devices)},
	"est":              {rooms: []string{"ca", "peer", "ratelimit", "gate", "cms", "audit"}, never: slices.Concat(sql, devices)},
	"scep":             {rooms: []string{"ca", "peer", "ratelimit", "gate", "cms", "keys", "audit", "enrol"}, never: slices.Concat(sql, devices)},
	// The desk behind est and scep, docs/adr/0027.
	"enrol":            {rooms: []string{"ca", "gate", "peer", "audit"}, never: slices.Concat(wire, sql, devices)},
	"cms":              {stdlibOnly: true, except: []string{"golang.org/x/crypto/cryptobyte"}},
	"admin":            {rooms: []string{"ca", "crl", "enrol", "audit", "peer", "ratelimit", "gate", "admin/client"}, never: slices.Concat(sql, devices)},
	"admin/client":     {never: slices.Concat(sql, devices)},
	"ca":               {rooms: []string{"keys", "audit", "ca/weakkey"}, never: slices.Concat(wire, sql, devices)},
	"ca/lint":          {rooms: []string{"ca"}, never: slices.Concat(wire, sql, devices)},
	"ca/weakkey":       {never: slices.Concat(wire, sql, devices)},
	"audit":            {stdlibOnly: true, except: []string{"golang.org/x/mod/sumdb", "github.com/prometheus/client_golang"}, never: wire},
	"keys":             {stdlibOnly: true, except: []string{"github.com/youmark/pkcs8"}, never: wire},
	"gate":             {stdlibOnly: true},
	"hsmguard":         {rooms: []string{"keys", "gate", "peer"}, never: slices.Concat(wire, sql, devices)},
	"pkcs11pool":       {rooms: []string{"keys"}, never: slices.Concat(wire, sql)},
	"ratelimit":        {stdlibOnly: true, never: wire},
	"ratelimit/shared": {rooms: []string{"ratelimit"}, never: wire},
	"store":            {rooms: []string{"acme", "ca", "ocsp", "crl", "est", "scep", "enrol", "audit", "admin", "keys", "ratelimit"}, never: slices.Concat(wire, sql, devices)},
	"store/sqlite":     {rooms: []string{"store", "migrations"}, never: slices.Concat(wire, devices)},
	"store/postgres":   {rooms: []string{"store", "migrations"}, never: slices.Concat(wire, devices)},
	"migrations":       {stdlibOnly: true},
	// Both sides of multi-perspective corroboration, docs/adr/0014.
	"acme/challenge/perspective": {rooms: []string{"acme", "acme/challenge", "ca", "gate"}, never: slices.Concat(sql, devices)},
	// Rooms for tests: nothing but tests and one another may import them.
	"audit/audittest":            {rooms: []string{"audit"}},
	"keys/keystest":              {rooms: []string{"keys"}},
	"pkcs11pool/pkcs11test":      {rooms: []string{"pkcs11pool", "keys"}},
	"ca/catest":                  {rooms: []string{"ca", "ca/lint", "ca/weakkey", "keys", "keys/keystest", "audit"}},
	"store/storetest":            {rooms: []string{"*"}},
	"store/storetest/storebench": {rooms: []string{"store", "store/sqlite", "store/postgres"}},
	"integration":                {rooms: []string{"pkcs11pool/pkcs11test", "cms"}},
	"integration/crashserver":    {rooms: []string{"app", "config", "keys", "store"}},
}

type pkg struct {
	ImportPath string
	Imports    []string
	Standard   bool
	Module     *struct{ Path string }
}

// TestRoomsKeepToTheirWalls holds the table against the imports of the tree.
func TestRoomsKeepToTheirWalls(t *testing.T) {
	t.Parallel()
	for _, breach := range breaches(goList(t)) {
		t.Error(breach)
	}
}

// TestAForbiddenImportIsABreach proves that the table bites, on imports that
// somebody may one day add in good faith.
func TestAForbiddenImportIsABreach(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ room, imports, want string }{
		{"ca", module + "/store", "ca may not import store"},
		{"ca", "net/http", "ca may not import net/http"},
		{"acme", module + "/keys", "acme may not import keys"},
		{"acme", "database/sql", "acme may not import database/sql"},
		{"store", module + "/front", "store may not import front"},
		{"ocsp", module + "/acme", "ocsp may not import acme"},
		{"app", module + "/keys/keystest", "app may not import keys/keystest"},
		{"util", module + "/ca", "util is no listed room"},
		{"peer", "github.com/go-chi/chi/v5", "peer may not import github.com/go-chi/chi/v5"},
		{"cmd/secsy-pki", module + "/store", "cmd/secsy-pki may not import store"},
	} {
		got := breaches([]pkg{{ImportPath: module + "/" + c.room, Imports: []string{"fmt", c.imports}}})
		if len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
			t.Errorf("%s importing %s: got %q, want one breach that begins with %q", c.room, c.imports, got, c.want)
		}
	}
}

func goList(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Standard,Module", "./...")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
	if len(pkgs) < 10 {
		t.Fatalf("go list found only %d packages", len(pkgs))
	}
	return pkgs
}

func breaches(pkgs []pkg) []string {
	var out []string
	for _, p := range pkgs {
		room := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if room == "" {
			continue // this file
		}
		w, listed := rooms[room]
		for _, imp := range p.Imports {
			if why := w.forbids(room, imp, listed); why != "" {
				out = append(out, why)
			}
		}
	}
	return out
}

func (w wall) forbids(room, imp string, listed bool) string {
	if other, ours := strings.CutPrefix(imp, module+"/"); ours {
		switch {
		case !listed:
			return fmt.Sprintf("%s is no listed room, and so may not import %s; add it to the plan first", room, other)
		case isTestRoom(other) && !isTestRoom(room):
			return fmt.Sprintf("%s may not import %s: that room is for tests", room, other)
		case !slices.Contains(w.rooms, other) && !slices.Contains(w.rooms, "*"):
			return fmt.Sprintf("%s may not import %s (it may: %s)", room, other, strings.Join(w.rooms, ", "))
		}
		return ""
	}
	for _, prefix := range w.never {
		if imp == prefix || strings.HasPrefix(imp, prefix+"/") {
			return fmt.Sprintf("%s may not import %s", room, imp)
		}
	}
	thirdParty := strings.Contains(strings.SplitN(imp, "/", 2)[0], ".")
	if w.stdlibOnly && thirdParty && !slices.ContainsFunc(w.except, func(p string) bool { return strings.HasPrefix(imp, p) }) {
		return fmt.Sprintf("%s may not import %s: only the standard library", room, imp)
	}
	return ""
}

func isTestRoom(room string) bool {
	return strings.HasSuffix(room, "test") || strings.HasPrefix(room, "integration")
}
