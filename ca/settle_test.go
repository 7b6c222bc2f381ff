package ca_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

// Where other processes answer for statuses, too, nobody hears of a revocation
// before they do; those of this process are told at once.
func TestARevocationIsAcknowledgedWhenAllProcessesKnow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := catest.New(t, func(cfg *ca.Config) { cfg.Settle = time.Second })
		issued := c.Certificate(t, "www.example.com")
		start := time.Now()
		told := time.Duration(-1)
		c.OnRevoke(func(ca.Revoked) { told = time.Since(start) })
		r := ca.Revocation{Serial: issued.Serial, Reason: ca.Superseded, Requester: ca.Requester{Actor: "test"}}
		if err := c.Revoke(t.Context(), r); err != nil || time.Since(start) != time.Second || told != 0 {
			t.Errorf("%v after %v; told after %v", err, time.Since(start), told)
		}
		start = time.Now()
		if err := c.Revoke(t.Context(), r); !errors.Is(err, ca.ErrAlreadyRevoked) || time.Since(start) != time.Second {
			t.Errorf("again: %v after %v", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		r.Reason = ca.KeyCompromise
		if err := c.Revoke(ctx, r); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who does not wait is told %v", err)
		}
	})
}
