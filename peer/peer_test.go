package peer_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/secsy-pki/secsy-pki/peer"
)

func TestACallerTravelsInTheContext(t *testing.T) {
	t.Parallel()
	want := peer.Peer{Addr: netip.MustParseAddr("192.0.2.1"), Conn: netip.MustParseAddr("10.0.0.1"), RequestID: "id", Endpoint: "acme"}
	if got := peer.From(peer.With(t.Context(), want)); got != want {
		t.Errorf("From = %+v, want %+v", got, want)
	}
	if got := peer.From(t.Context()); got != (peer.Peer{}) {
		t.Errorf("From without a caller = %+v, want the zero Peer", got)
	}
}

// Who a caller is known to be is what somebody has proven, and stays apart from
// where the request comes from.
func TestAnIdentityIsOnlyWhatWasProven(t *testing.T) {
	t.Parallel()
	ctx := peer.With(t.Context(), peer.Peer{Addr: netip.MustParseAddr("192.0.2.1")})
	if got := peer.Identity(ctx); got != "" {
		t.Errorf("Identity of a caller who has proven nothing = %q", got)
	}
	proven := peer.WithIdentity(ctx, "acme:account/7")
	if got := peer.Identity(proven); got != "acme:account/7" {
		t.Errorf("Identity = %q, want the proven one", got)
	}
	if got := peer.Identity(ctx); got != "" {
		t.Errorf("the context of before has the identity %q", got)
	}
	if got := peer.From(proven).Addr.String(); got != "192.0.2.1" {
		t.Errorf("the caller comes from %s now", got)
	}
	if got := peer.Identity(peer.WithIdentity(proven, "est:user/a")); got != "est:user/a" {
		t.Errorf("Identity = %q, want the last that was proven", got)
	}
}

func TestOnlyALocalSocketHasCredentials(t *testing.T) {
	t.Parallel()
	if _, ok := peer.CredFrom(t.Context()); ok {
		t.Error("a caller without a local socket has credentials")
	}
	want := peer.Cred{UID: 0, GID: 7, PID: 42}
	if got, ok := peer.CredFrom(peer.WithCred(t.Context(), want)); !ok || got != want {
		t.Errorf("CredFrom = %+v, %v, want %+v", got, ok, want)
	}
}

func TestNotesAreBoundedInNumberAndSize(t *testing.T) {
	t.Parallel()
	ctx, notes := peer.WithNotes(t.Context())
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() { peer.Annotate(ctx, fmt.Sprint("key", i), strings.Repeat("ß", 4096)) })
	}
	wg.Wait()
	all := notes.All()
	if len(all) != 8 {
		t.Fatalf("%d notes kept, want 8", len(all))
	}
	for _, n := range all {
		if len(n.Value) != 256 || !utf8.ValidString(n.Value) {
			t.Errorf("note %q has %d bytes, valid %v", n.Key, len(n.Value), utf8.ValidString(n.Value))
		}
	}
}

func TestACutNeverSplitsACharacter(t *testing.T) {
	t.Parallel()
	for lead := range 5 {
		ctx, notes := peer.WithNotes(t.Context())
		peer.Annotate(ctx, "k", strings.Repeat("x", lead)+strings.Repeat("😀", 100))
		got := notes.All()[0].Value
		if !utf8.ValidString(got) || len(got) > 256 || len(got) < 253 {
			t.Errorf("lead %d: %d bytes, valid %v", lead, len(got), utf8.ValidString(got))
		}
	}
}

func TestTheSameKeyReplacesItsNote(t *testing.T) {
	t.Parallel()
	ctx, notes := peer.WithNotes(t.Context())
	peer.Annotate(ctx, "account", "one")
	peer.Annotate(ctx, "order", "o")
	peer.Annotate(ctx, "account", "two")
	want := []peer.Note{{Key: "account", Value: "two"}, {Key: "order", Value: "o"}}
	if got := notes.All(); len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("notes = %v, want %v", got, want)
	}
}

func TestSilenceIsOnlyOnRequest(t *testing.T) {
	t.Parallel()
	ctx, notes := peer.WithNotes(t.Context())
	if notes.Quiet() {
		t.Error("quiet from the start")
	}
	peer.Quiet(ctx)
	if !notes.Quiet() {
		t.Error("Quiet had no effect")
	}
	peer.Quiet(t.Context()) // no notes: no effect, no panic
	peer.Annotate(t.Context(), "a", "b")
}
