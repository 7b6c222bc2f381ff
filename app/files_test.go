package app

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestAFolderIsMadeWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		before []string // files that are there, "" being the folder itself
		fill   error
		want   string // of the error
	}{
		"absent":               {},
		"empty":                {before: []string{""}},
		"full":                 {before: []string{"", "mine"}, want: "is not empty"},
		"absent, fill breaks":  {fill: broken, want: "broken"},
		"empty, fill breaks":   {before: []string{""}, fill: broken, want: "broken"},
		"full, fill would too": {before: []string{"", "mine"}, fill: broken, want: "is not empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			dir := filepath.Join(parent, "ca")
			for _, f := range c.before {
				var err error
				if f == "" {
					err = os.Mkdir(dir, 0o700)
				} else {
					err = os.WriteFile(filepath.Join(dir, f), nil, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			before := tree(t, parent)
			err := makeFolder(dir, func(tmp string) error {
				if filepath.Dir(tmp) != parent {
					t.Errorf("%s is filled in another file system, maybe", tmp)
				}
				return errors.Join(replaceFile(filepath.Join(tmp, "new"), []byte("x"), 0o600), c.fill)
			})
			after := tree(t, parent)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) {
					t.Errorf("got %v", err)
				}
				if !slices.Equal(before, after) {
					t.Errorf("was %q, is %q", before, after)
				}
				return
			}
			if want := []string{parent, dir, filepath.Join(dir, "new")}; err != nil || !slices.Equal(after, want) {
				t.Errorf("got %q, %v", after, err)
			}
			if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
				t.Errorf("mode is %v, %v", fi.Mode(), err)
			}
		})
	}
}

func TestAFileIsReplacedWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	for _, want := range []string{"first", "second"} {
		if err := replaceFile(file, []byte(want), 0o640); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(file)
		if err != nil || string(b) != want {
			t.Errorf("got %q, %v", b, err)
		}
	}
	if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o640 {
		t.Errorf("mode is %v, %v", fi.Mode(), err)
	}
	taken := filepath.Join(dir, "folder")
	if err := os.Mkdir(taken, 0o700); err != nil {
		t.Fatal(err)
	}
	before := tree(t, dir)
	if err := replaceFile(taken, []byte("x"), 0o600); err == nil {
		t.Error("a folder was replaced")
	}
	if after := tree(t, dir); !slices.Equal(before, after) {
		t.Errorf("was %q, is %q", before, after)
	}
}

func TestInitLeavesNothingHalfMade(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*InitOptions){
		"no passphrase":        func(o *InitOptions) { o.Config.Keys.Passphrase.File = "/nonexistent/passphrase" },
		"unknown kind of key":  func(o *InitOptions) { o.RootKeyAlgorithm = "dsa" },
		"name that is refused": func(o *InitOptions) { o.Organization = strings.Repeat("x", 70) },
		"life beyond the root": func(o *InitOptions) { o.IssuingValidity = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			o := sampleOptions(filepath.Join(parent, "ca"))
			change(&o)
			err := Init(t.Context(), o)
			if err == nil || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), ".ca-") {
				t.Errorf("got %v", err)
			}
			if left := tree(t, parent); len(left) != 1 {
				t.Errorf("left: %q", left)
			}
		})
	}
}
