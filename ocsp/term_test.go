package ocsp

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A term ends as a context with a timeout does, whether anybody waits for it or not.
func TestATermEndsLikeATimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, end := range map[string]struct {
			do   func(leave context.CancelFunc, w *term)
			want error
		}{
			"nothing": {func(context.CancelFunc, *term) {}, nil},
			"time":    {func(context.CancelFunc, *term) { time.Sleep(time.Second) }, context.DeadlineExceeded},
			"caller":  {func(leave context.CancelFunc, _ *term) { leave() }, context.Canceled},
			"close":   {func(_ context.CancelFunc, w *term) { w.close() }, context.Canceled},
		} {
			for _, watched := range []bool{true, false} {
				ctx, leave := context.WithCancel(t.Context())
				w := newTerm(ctx, time.Second)
				if watched {
					_ = w.Done()
				}
				end.do(leave, w)
				synctest.Wait()
				if err := w.Err(); !errors.Is(err, end.want) {
					t.Errorf("%s, watched %v: %v", name, watched, err)
				}
				synctest.Wait()
				select {
				case <-w.Done():
					if end.want == nil || !errors.Is(w.Err(), end.want) {
						t.Errorf("%s, watched %v: it has ended, by %v", name, watched, w.Err())
					}
				default:
					if end.want != nil {
						t.Errorf("%s, watched %v: it has not ended", name, watched)
					}
				}
				w.close()
				leave()
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for length, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Hour: time.Minute} {
			w := newTerm(ctx, length)
			if at, ok := w.Deadline(); !ok || time.Until(at) != want {
				t.Errorf("%v: the deadline is %v", length, at)
			}
			w.close()
		}
	})
}
