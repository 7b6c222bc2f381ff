package gate

import "time"

const (
	// An episode of refusals is told of when it begins and every noticeEvery
	// from then on; once it has lasted degradedAfter somebody is to be alerted,
	// and again every alertEvery.
	noticeEvery   = 30 * time.Second
	degradedAfter = 30 * time.Second
	alertEvery    = 5 * time.Minute
	// It is over when somebody was admitted without waiting and nobody was
	// refused for calmAfter: quiet alone may be an attacker's pause.
	calmAfter = 5 * time.Second
)

// A GovernorEpisode is a time in which verifications are turned away. It has no
// name and no address of anybody: it is for logs and alerts that many may see.
type GovernorEpisode struct {
	Active   bool
	Degraded bool // it has lasted long enough to alert somebody
	Began    time.Time
	Last     time.Time // refusal
	Refused  int64
}

// A GovernorEvent is what a notice is about: a closed set.
type GovernorEvent uint8

// The events.
const (
	GovernorBegan    GovernorEvent = iota // the first refusal
	GovernorGoesOn                        // refusals since the last notice
	GovernorDegraded                      // as GovernorGoesOn, and to be alerted of
	GovernorOver
)

// String is the event's name.
func (e GovernorEvent) String() string {
	return [...]string{"began", "goes_on", "degraded", "over"}[e]
}

// A GovernorNotice is one line for a log.
type GovernorNotice struct {
	Event      GovernorEvent
	Suppressed int64         // refusals that had no line, since the last notice
	Lasted     time.Duration // from the first refusal to the last
}

// An episode is what a Governor remembers of its refusals. The Governor's lock
// guards it.
type episode struct {
	state   GovernorEpisode
	fast    bool // somebody was admitted without waiting since the last refusal
	begun   bool // its beginning was told
	told    int64
	line    time.Time // the last notice
	alerted time.Time
}

func (e *episode) fastPath() { e.fast = true }

// refusal counts one. While the end of the last episode has not been told, that
// one goes on.
func (e *episode) refusal(now time.Time) {
	if over := !e.now(now).Active; over && !e.begun {
		*e = episode{state: GovernorEpisode{Began: now}}
	}
	e.state.Active, e.state.Last, e.fast = true, now, false
	e.state.Refused++
	e.state.Degraded = e.lasted() >= degradedAfter
}

func (e *episode) lasted() time.Duration { return e.state.Last.Sub(e.state.Began) }

// now returns the state, which ends by itself.
func (e *episode) now(now time.Time) GovernorEpisode {
	if e.state.Active && e.fast && now.Sub(e.state.Last) >= calmAfter {
		e.state.Active, e.state.Degraded = false, false
	}
	return e.state
}

// notice returns what is to be told now.
func (e *episode) notice(now time.Time) (GovernorNotice, bool) {
	event, due := e.due(now)
	if !due {
		return GovernorNotice{}, false
	}
	n := GovernorNotice{Event: event, Suppressed: e.state.Refused - e.told, Lasted: e.lasted()}
	e.told, e.line, e.begun = e.state.Refused, now, event != GovernorOver
	switch event {
	case GovernorBegan: // the line stands for one refusal; the others are told of later
		n.Suppressed, e.told = 0, 1
	case GovernorDegraded:
		e.alerted = now
	}
	return n, true
}

func (e *episode) due(now time.Time) (GovernorEvent, bool) {
	st := e.now(now)
	fresh := st.Refused > e.told
	switch {
	case !e.begun:
		return GovernorBegan, fresh
	case !st.Active:
		return GovernorOver, true
	case st.Degraded && fresh && (e.alerted.IsZero() || now.Sub(e.alerted) >= alertEvery):
		return GovernorDegraded, true
	}
	return GovernorGoesOn, fresh && now.Sub(e.line) >= noticeEvery
}
