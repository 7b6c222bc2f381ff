package storetest

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/store"
)

// ACMENonces is what both engines promise of nonces that outlive a restart.
func ACMENonces(t *testing.T, open func(t *testing.T) *store.DB) {
	laws := map[string]func(t *testing.T, w acmeWorld){
		"StateIsTakenOnceAndWhole":       nonceTakenOnce,
		"OneOfManyTakesTheState":         nonceTakenByOne,
		"EachInstanceHasItsOwnState":     nonceInstances,
		"TheLastStateCounts":             nonceReplaced,
		"WhatIsTooOldIsGoneForEverybody": nonceTooOld,
	}
	for name, law := range laws {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			law(t, acmeWorld{store.NewACME(db), db})
		})
	}
}

func nonceState(directory, instance, state string) acme.NonceState {
	return acme.NonceState{Directory: directory, Instance: instance, SavedAt: acmeNow, State: []byte(state)}
}

func (w acmeWorld) wantNonces(t *testing.T, want acme.NonceState) {
	t.Helper()
	got, err := w.TakeNonces(t.Context(), want.Directory, want.Instance, acmeNow)
	must(t, err)
	if got.Directory != want.Directory || got.Instance != want.Instance || !got.SavedAt.Equal(want.SavedAt) || !bytes.Equal(got.State, want.State) {
		t.Errorf("got %+v; want %+v", got, want)
	}
}

func (w acmeWorld) wantNoNonces(t *testing.T, directory, instance string, since time.Time) {
	t.Helper()
	_, err := w.TakeNonces(t.Context(), directory, instance, since)
	wantErr(t, err, acme.ErrNotFound)
}

func nonceTakenOnce(t *testing.T, w acmeWorld) {
	w.wantNoNonces(t, "", "1", acmeNow)
	st := nonceState("", "1", "\x00state\xff"+string(make([]byte, 600<<10)))
	must(t, w.SaveNonces(t.Context(), st))
	w.wantNonces(t, st)
	w.wantNoNonces(t, "", "1", acmeNow)
}

func nonceTakenByOne(t *testing.T, w acmeWorld) {
	must(t, w.SaveNonces(t.Context(), nonceState("", "1", "x")))
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		taken int
	)
	for range 8 {
		wg.Go(func() {
			_, err := w.TakeNonces(t.Context(), "", "1", acmeNow)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				taken++
			} else if !errors.Is(err, acme.ErrNotFound) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if taken != 1 {
		t.Errorf("the state was taken %d times", taken)
	}
}

func nonceInstances(t *testing.T, w acmeWorld) {
	all := []acme.NonceState{nonceState("", "1", "a"), nonceState("", "2", "b"), nonceState("other", "1", "c")}
	for _, st := range all {
		must(t, w.SaveNonces(t.Context(), st))
	}
	for _, st := range all {
		w.wantNonces(t, st)
	}
}

func nonceReplaced(t *testing.T, w acmeWorld) {
	must(t, w.SaveNonces(t.Context(), nonceState("", "1", "a")))
	st := nonceState("", "1", "b")
	st.SavedAt = acmeNow.Add(time.Second)
	must(t, w.SaveNonces(t.Context(), st))
	w.wantNonces(t, st)
}

func nonceTooOld(t *testing.T, w acmeWorld) {
	must(t, w.SaveNonces(t.Context(), nonceState("", "1", "a")))
	must(t, w.SaveNonces(t.Context(), nonceState("", "2", "b")))
	w.wantNoNonces(t, "", "1", acmeNow.Add(time.Second))
	w.wantNoNonces(t, "", "2", acmeNow) // whose instance never came back
}
