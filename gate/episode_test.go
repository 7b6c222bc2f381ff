package gate_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
)

// refuseOne has a Governor whose places are all taken turn somebody away.
func refuseOne(t *testing.T, g *gate.Governor) {
	t.Helper()
	for {
		l := logIn(t.Context(), g, fmt.Sprint(time.Now().UnixNano(), g.Stat().Queued), 0)
		select {
		case <-l.done:
			return
		default: // the queue was not full yet
		}
	}
}

// notices polls once a second for so long, with one refusal in each second if
// refusing, and returns what there was to tell.
func notices(t *testing.T, g *gate.Governor, long time.Duration, refusing bool) (told []gate.GovernorNotice) {
	t.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(time.Second) {
		if refusing {
			refuseOne(t, g)
		}
		if n, ok := g.Notice(); ok {
			told = append(told, n)
		}
	}
	return told
}

// An episode is told of once as it begins, and then every half minute with what
// was suppressed; after half a minute it is one to alert of, and again after
// five minutes, no more often.
func TestAnEpisodeIsToldOfOnceAndThenEveryHalfMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 1, MaxWait: time.Hour})
		release := hold(t, g, "")
		if n, ok := g.Notice(); ok {
			t.Errorf("before anything happened: %+v", n)
		}
		told := notices(t, g, 10*time.Minute, true)
		alerts, suppressed := 0, int64(0)
		for i, n := range told {
			want := gate.GovernorGoesOn
			if i == 0 {
				want = gate.GovernorBegan
			}
			if n.Event == gate.GovernorDegraded {
				alerts++
				want = gate.GovernorDegraded
			}
			if n.Event != want || (i > 0) != (n.Suppressed > 0) {
				t.Errorf("notice %d: %+v, want %s", i, n, want)
			}
			suppressed += n.Suppressed
		}
		if len(told) < 19 || len(told) > 21 || alerts != 2 {
			t.Errorf("%d notices, %d of them alerts", len(told), alerts)
		}
		st := g.Stat()
		if refused := st.Episode.Refused; refused-1-suppressed >= 30 || refused < 600 || !st.Episode.Degraded || !st.Episode.Active {
			t.Errorf("%+v, and %d were told of as suppressed", st.Episode, suppressed)
		}
		release()
		time.Sleep(time.Second)
	})
}

// Quiet alone does not end an episode: somebody must have been admitted without
// waiting besides, and five seconds must have passed without a refusal.
func TestAnEpisodeEndsWithAFastAdmissionAndFiveSecondsOfCalm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 1, MaxWait: time.Minute})
		release := hold(t, g, "")
		notices(t, g, 40*time.Second, true)
		if st := g.Stat().Episode; !st.Active || !st.Degraded {
			t.Fatalf("%+v", st)
		}
		release() // those that wait are admitted, but not without waiting
		if told := notices(t, g, time.Minute, false); len(told) > 1 || !g.Stat().Episode.Active {
			t.Errorf("quiet alone: %+v, %+v", told, g.Stat().Episode)
		}
		release = hold(t, g, "") // without waiting, but there is a refusal after it
		refuseOne(t, g)
		release()
		if told := notices(t, g, time.Minute, false); len(told) > 1 || !g.Stat().Episode.Active {
			t.Errorf("an admission before the last refusal: %+v, %+v", told, g.Stat().Episode)
		}
		hold(t, g, "")()
		told := notices(t, g, time.Minute, false)
		if len(told) != 1 || told[0].Event != gate.GovernorOver || told[0].Lasted < 39*time.Second {
			t.Errorf("%+v, want the end", told)
		}
		if st := g.Stat().Episode; st.Active || st.Degraded {
			t.Errorf("%+v", st)
		}

		// An admission before the calm counts, but not before the last refusal.
		release = hold(t, g, "")
		refuseOne(t, g)
		release()
		synctest.Wait()
		hold(t, g, "")()
		if told := notices(t, g, 4*time.Second, false); len(told) != 1 || told[0].Event != gate.GovernorBegan {
			t.Errorf("%+v, want a second beginning", told)
		}
		if told := notices(t, g, 3*time.Second, false); len(told) != 1 || told[0].Event != gate.GovernorOver {
			t.Errorf("%+v, want a second end", told)
		}
	})
}

// What nobody polled in time is told of as one episode.
func TestAnEpisodeThatBeginsAgainUnseenGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 1})
		var told []gate.GovernorNotice
		for i := range 3 {
			release := hold(t, g, "")
			refuseOne(t, g)
			release()
			time.Sleep(time.Second)
			hold(t, g, "")()
			if n, ok := g.Notice(); ok != (i == 0) {
				t.Errorf("notice %d: %+v, %v", i, n, ok)
			} else if ok {
				told = append(told, n)
			}
			time.Sleep(10 * time.Second)
		}
		n, ok := g.Notice()
		if !ok || n.Event != gate.GovernorOver || n.Suppressed != 2 || len(told) != 1 {
			t.Errorf("in the end: %+v, %v", n, ok)
		}
	})
}
