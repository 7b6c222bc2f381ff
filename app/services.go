package app

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// A service is work that goes on beside the answering of requests.
type service struct {
	name string
	run  func(context.Context) error
	last func(context.Context) error // after run has ended, at shutdown; may be nil
	err  chan error
}

func (a *app) serve(name string, run func(context.Context) error) {
	a.services = append(a.services, service{name: name, run: run, err: make(chan error, 1)})
}

// startServices starts all services and returns what stops them: last started
// first, each one waited for. They outlive the front, since requests rely on them.
func (a *app) startServices() (stop func()) {
	type running struct {
		cancel context.CancelFunc
		done   chan struct{}
	}
	all := make([]running, len(a.services))
	for i, s := range a.services {
		ctx, cancel := context.WithCancel(context.Background())
		r := running{cancel, make(chan struct{})}
		all[i] = r
		go func() {
			defer close(r.done)
			s.err <- s.run(ctx)
		}()
	}
	return func() {
		for i := len(all) - 1; i >= 0; i-- {
			all[i].cancel()
			<-all[i].done
			a.lastWords(a.services[i])
		}
	}
}

func (a *app) lastWords(s service) {
	if s.last == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.cfg.Limits.DrainTimeout.Std())
	defer cancel()
	if err := s.last(ctx); err != nil {
		a.log.Error("stopping", "service", s.name, "error", err)
	}
}

// watchServices ends the serving when a service ends by itself with an error:
// a program that no longer does all of its work must not look as if it did.
func (a *app) watchServices(ctx context.Context, cancel context.CancelCauseFunc) {
	var wg sync.WaitGroup
	for _, s := range a.services {
		wg.Go(func() {
			select {
			case err := <-s.err:
				if err != nil && !errors.Is(err, context.Canceled) {
					cancel(fmt.Errorf("running %s: %w", s.name, err))
				}
			case <-ctx.Done():
			}
		})
	}
	wg.Wait()
}
