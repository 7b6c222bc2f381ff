package app

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/config"
)

func TestReloadPutsInForceWhatCanAndNamesTheRest(t *testing.T) {
	t.Parallel()
	dir := newCA(t)
	a := built(t, dir)
	file := filepath.Join(dir, configFile)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	more := string(b) + "log: {level: debug}\ntrusted_proxies: {from: [192.0.2.1]}\nserials: {shard: 7}\n"
	if err := os.WriteFile(file, []byte(more), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.reload(); err != nil {
		t.Fatal(err)
	}
	if a.level.Level() != slog.LevelDebug {
		t.Errorf("level is %s", a.level.Level())
	}
	for _, want := range []string{
		"msg=reloaded key=log.level", "msg=reloaded key=trusted_proxies.from", "msg=\"changed in the file, but needs a restart\" key=serials.shard",
	} {
		if !strings.Contains(a.logged(), want) {
			t.Errorf("no %s in\n%s", want, a.logged())
		}
	}
	// What waits for a restart is told each time, what is in force only once.
	if err := a.reload(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(a.logged(), "key=serials.shard"); n != 2 {
		t.Errorf("the waiting key was told %d times", n)
	}
	if n := strings.Count(a.logged(), "key=log.level"); n != 1 {
		t.Errorf("the level was told %d times", n)
	}
}

// What keeps its counts in the database is there from the start or not at all,
// and whoever turns the switch of admission control is told so.
func TestReloadSaysWhatDoesNotFollowTheSwitch(t *testing.T) {
	t.Parallel()
	dir := newCA(t)
	file := filepath.Join(dir, configFile)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	turn := func(on string) {
		t.Helper()
		more := "rate_limit: {enabled: " + on + ", quotas: {acme_identifiers: {limit: 5}}}\n"
		if err := os.WriteFile(file, append(slices.Clip(b), more...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	turn("false")
	a := built(t, dir)
	turn("true")
	if err := a.reload(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"msg=reloaded key=rate_limit.enabled from=false to=true",
		"msg=\"follows rate_limit.enabled at the next start only\" key=rate_limit.refusal_budget enabled_until_then=false",
		"key=rate_limit.quotas enabled_until_then=false",
	} {
		if !strings.Contains(a.logged(), want) {
			t.Errorf("no %s in\n%s", want, a.logged())
		}
	}
	before := len(a.logged())
	turn("false")
	if err := a.reload(); err != nil {
		t.Fatal(err)
	}
	if again := a.logged()[before:]; strings.Contains(again, "follows") {
		t.Errorf("back where the start was, but\n%s", again)
	}
}

func TestReloadOfABrokenFileChangesNothing(t *testing.T) {
	t.Parallel()
	dir := newCA(t)
	a := built(t, dir)
	before := a.inForce
	for name, text := range map[string]string{
		"no YAML":         "{",
		"unknown key":     "lgo: {level: debug}\n",
		"can't be served": "log: {level: debug}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, configFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := a.reload(); err == nil || !strings.Contains(err.Error(), configFile) {
			t.Errorf("%s: got %v", name, err)
		}
		if a.level.Level() != slog.LevelInfo || a.inForce != before {
			t.Errorf("%s: something has changed", name)
		}
	}
}

func TestReloadAdjustsTheFileAsTheStartDid(t *testing.T) {
	t.Parallel()
	dir := newCA(t)
	a := built(t, dir)
	broken := errors.New("broken")
	a.opts.Adjust = func(c *config.Config) error { c.Serials.Shard = 9; return nil }
	if err := a.reload(); err != nil || !strings.Contains(a.logged(), "key=serials.shard") {
		t.Errorf("got %v\n%s", err, a.logged())
	}
	a.opts.Adjust = func(*config.Config) error { return broken }
	if err := a.reload(); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}
