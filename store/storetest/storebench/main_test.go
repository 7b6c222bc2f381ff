package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestTheLastLineIsTheResult(t *testing.T) {
	dir := t.TempDir()
	if _, err := fileSystem(dir); err != nil {
		dir = "." // temporary files may be in memory
	}
	name, err := fileSystem(dir)
	if err != nil || name == "" {
		t.Fatalf("the file system is %q, %v", name, err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-dir", dir, "-rounds", "1", "-each", "10ms"}, &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if last := lines[len(lines)-1]; !strings.HasPrefix(last, "RESULT store sqlite_ratio_8=") || !strings.Contains(last, " sqlite_ratio_32=") {
		t.Errorf("the last line is %q", last)
	}
	if !strings.Contains(lines[0], " on "+name+":") {
		t.Errorf("the figures don't say that they are of %s: %q", name, lines[0])
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if strings.HasPrefix(f.Name(), "storebench-") {
			t.Errorf("%s is left over", f.Name())
		}
	}
}

func TestMeasuringMemoryIsRefused(t *testing.T) {
	t.Parallel()
	const memory = "/dev/shm"
	var st unix.Statfs_t
	if err := unix.Statfs(memory, &st); err != nil || uint32(st.Type) != unix.TMPFS_MAGIC {
		return // this system has none
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-dir", memory, "-rounds", "1", "-each", time.Millisecond.String()}, &out); err == nil || !strings.Contains(err.Error(), "tmpfs") {
		t.Errorf("got %v, want a refusal that names tmpfs", err)
	}
}
