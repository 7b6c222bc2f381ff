package app

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
)

// deviceAway reports whether err is of a device that can't be asked at the
// moment, so that there is reason to start without it and wait for it.
func deviceAway(err error) bool { return ca.NeverSigned(err) || ca.Hung(err) }

// openIssuerKey finds an issuer's key. While its device is away it is taken on
// trust in the certificate, and looked for later.
func (a *app) openIssuerKey(ctx context.Context, ref string, public crypto.PublicKey) (keys.Key, error) {
	key, err := a.keys.Key(ctx, ref)
	if err == nil || a.strict || !deviceAway(err) {
		return key, err
	}
	a.log.WarnContext(ctx, "starting without a key of the CA: nothing is signed with it until its device is back", "key", ref, "error", err)
	late := keys.Later(a.keys, ref, public, err)
	a.serve("key "+ref, func(ctx context.Context) error { return a.findLate(ctx, ref, late) })
	return late, nil
}

// lateLook is how often a key is looked for. It costs nothing while its device
// is known to be away.
const lateLook = 2 * time.Second

// findLate looks for a key until it is found, or turns out to be another one.
func (a *app) findLate(ctx context.Context, ref string, late *keys.LateKey) error {
	t := time.NewTicker(lateLook)
	defer t.Stop()
	told := false
	for {
		err := late.Find(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			a.log.InfoContext(ctx, "found a key of the CA that was missing at the start", "key", ref)
			return nil
		case errors.Is(err, keys.ErrOtherKey):
			a.log.ErrorContext(ctx, "a key of the CA is not that of its certificate: nothing is signed with it", "key", ref, "error", err)
			return nil
		case !deviceAway(err) && !told:
			a.log.ErrorContext(ctx, "a key of the CA is missing, and looked for until it is there", "key", ref, "error", err)
			told = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// keysReady says whether certificates and their status could be signed now.
func (a *app) keysReady(ctx context.Context) error {
	if a.pool != nil {
		if err := a.pool.Check(ctx); err != nil {
			return err
		}
	}
	for _, is := range a.issuers {
		if err := keys.Ready(is.Key); err != nil {
			return fmt.Errorf("issuer %s: %w", is.Name, err)
		}
	}
	return nil
}
