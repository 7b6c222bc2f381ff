package store_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/sqlite"
	"github.com/secsy-pki/secsy-pki/store/storetest"
)

// Of 8 times 40 entries written at the same time each is durable when its writer
// hears so, none is lost, and the chain over them is whole; and they shared
// their barriers: one commit, which is one sync, for several of them.
func TestEntriesOfManyWritersShareTheirBarriers(t *testing.T) {
	t.Parallel()
	const writers, each = 8, 40
	db := storetest.SQLite(t)
	log, e := store.NewAudit(db), db.Engine.(*sqlite.Engine)
	before := e.Stat()
	running, goOn := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { // so that there is a row at the beginning, however fast the disk
		_ = e.Write(t.Context(), func(context.Context, store.Tx) error {
			close(running)
			<-goOn
			return errors.New("only to keep the writer busy")
		})
	})
	<-running
	for w := range writers {
		all.Go(func() {
			for i := range each {
				if err := log.Append(t.Context(), audit.New("system", "x", fmt.Sprintf("entry/%d/%d", w, i), nil)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for e.Stat().Waiting < writers {
		runtime.Gosched()
	}
	close(goOn)
	all.Wait()
	after := e.Stat()
	if got := after.Writes - before.Writes; got != writers*each {
		t.Errorf("%d entries were written, want %d", got, writers*each)
	}
	barriers := after.Commits - before.Commits
	t.Logf("%d barriers for %d entries", barriers, writers*each)
	if barriers >= writers*each {
		t.Errorf("%d entries took %d barriers", writers*each, barriers)
	}
	s, err := audit.NewSequencer(audit.SequencerConfig{Log: log, Logger: slog.New(slog.DiscardHandler), Batch: 7})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	rep, err := audit.Verify(t.Context(), log, audit.VerifyOptions{})
	if err != nil || !rep.OK() || rep.Entries != writers*each || rep.Backlog.Count != 0 {
		t.Errorf("%+v, %v; want a whole chain of %d", rep, err, writers*each)
	}
}
