package ca_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/keys/keystest"
	"github.com/secsy-pki/secsy-pki/peer"
)

// linterFunc is a ca.Linter.
type linterFunc func(context.Context, ca.Draft) ([]ca.Finding, error)

func (f linterFunc) Lint(ctx context.Context, d ca.Draft) ([]ca.Finding, error) { return f(ctx, d) }

func pass(context.Context, ca.Draft) ([]ca.Finding, error) { return nil, nil }

// unlinted is for tests of something else, where each millisecond counts.
func unlinted(cfg *ca.Config) { cfg.Linter = linterFunc(pass) }

func parse(t testing.TB, der []byte) *x509.Certificate {
	t.Helper()
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func refusal(t *testing.T, err error, code ca.Code) *ca.Refusal {
	t.Helper()
	r, ok := errors.AsType[*ca.Refusal](err)
	if !ok || r.Code != code {
		t.Fatalf("error %v, want a refusal %s", err, code)
	}
	return r
}

func wantRefusal(t *testing.T, err error, code ca.Code) {
	t.Helper()
	_ = refusal(t, err, code)
}

// only returns the one record of a store.
func only(t *testing.T, s *catest.Store) ca.Record {
	t.Helper()
	all := s.Records()
	if len(all) != 1 {
		t.Fatalf("%d records, want 1", len(all))
	}
	return all[0]
}

func TestTheLintedBytesAreSigned(t *testing.T) {
	t.Parallel()
	var linted ca.Draft
	real := catest.Linter(t, ca.Internal)
	c := catest.New(t, func(cfg *ca.Config) {
		cfg.Linter = linterFunc(func(ctx context.Context, d ca.Draft) ([]ca.Finding, error) {
			linted = d
			return real.Lint(ctx, d)
		})
	})
	before := c.Keys.Signatures()
	got := c.Certificate(t, "www.example.com", "192.0.2.1")
	cert, draft := parse(t, got.DER), parse(t, linted.DER)
	if !bytes.Equal(cert.RawTBSCertificate, draft.RawTBSCertificate) {
		t.Error("signed and linted bytes differ")
	}
	if bytes.Equal(cert.Signature, draft.Signature) || draft.CheckSignatureFrom(c.Issuer.Cert) == nil {
		t.Error("the draft is signed by the issuer")
	}
	if err := cert.CheckSignatureFrom(c.Issuer.Cert); err != nil {
		t.Error(err)
	}
	if n := c.Keys.Signatures() - before; n != 1 {
		t.Errorf("%d signatures, want 1", n)
	}
	signed := c.Keys.Signed()
	if digest := sha256.Sum256(draft.RawTBSCertificate); !bytes.Equal(signed[len(signed)-1].Digest, digest[:]) {
		t.Error("the device signed something else")
	}
	if r := only(t, c.Store); r.State != ca.Issued || r.Serial != got.Serial || !bytes.Equal(r.DER, got.DER) || r.Serial != ca.SerialOf(cert.SerialNumber) {
		t.Errorf("record %+v", r)
	}
}

func TestLintFaultStopsBeforeAnythingIsRecorded(t *testing.T) {
	t.Parallel()
	for name, lint := range map[string]linterFunc{
		"finding": func(context.Context, ca.Draft) ([]ca.Finding, error) {
			return []ca.Finding{{Lint: "e_test", Status: "error", Detail: "no good"}}, nil
		},
		"blind": func(context.Context, ca.Draft) ([]ca.Finding, error) { return nil, errors.New("the linter is blind") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			switched := atomic.Bool{}
			c := catest.New(t, func(cfg *ca.Config) {
				cfg.Linter = linterFunc(func(ctx context.Context, d ca.Draft) ([]ca.Finding, error) {
					if switched.Load() {
						return lint(ctx, d)
					}
					return nil, nil
				})
			})
			switched.Store(true)
			before := c.Keys.Signatures()
			_, err := c.Issue(t.Context(), catest.Request(t, "www.example.com"), c.Store.PlainLedger())
			if err == nil || len(c.Store.Records()) != 0 || len(c.Store.Entries()) != 0 || c.Keys.Signatures() != before {
				t.Errorf("error %v, %d records, %d signatures", err, len(c.Store.Records()), c.Keys.Signatures()-before)
			}
			if le, ok := errors.AsType[*ca.LintError](err); name == "finding" && (!ok || le.Findings[0].Lint != "e_test" || !strings.Contains(err.Error(), "e_test")) {
				t.Errorf("error %v does not name the lint", err)
			}
		})
	}
}

func TestNothingIsSignedUnlessTheIntentIsRecorded(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	before := c.Keys.Signatures()
	broken := errors.New("no disk")
	_, err := c.Issue(t.Context(), catest.Request(t, "www.example.com"), &catest.Ledger{Store: c.Store, OnBegin: func(ca.Intent) error { return broken }})
	if !errors.Is(err, broken) || c.Keys.Signatures() != before || len(c.Store.Records()) != 0 {
		t.Errorf("error %v, %d signatures", err, c.Keys.Signatures()-before)
	}
}

func TestTakenSerialIsDrawnAgain(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	for _, taken := range []int{2, 3} {
		seen := map[ca.Serial]bool{}
		_, err := c.Issue(t.Context(), catest.Request(t, "www.example.com"), &catest.Ledger{Store: c.Store, OnBegin: func(in ca.Intent) error {
			seen[in.Serial] = true
			if len(seen) <= taken {
				return ca.ErrSerialTaken
			}
			return nil
		}})
		if taken == 2 && err != nil || taken == 3 && !errors.Is(err, ca.ErrSerialTaken) || len(seen) != 3 {
			t.Errorf("%d taken: error %v after %d serials", taken, err, len(seen))
		}
	}
}

func TestBusyDeviceLeavesAVoidIntent(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	c.Keys.Fail(fmt.Errorf("guard: %w", keys.ErrBusy))
	_, err := c.Issue(t.Context(), catest.Request(t, "www.example.com"), c.Store.PlainLedger())
	if r := refusal(t, err, ca.Busy); r.RetryAfter <= 0 || !errors.Is(err, keys.ErrBusy) {
		t.Errorf("refusal %+v", r)
	}
	if r := only(t, c.Store); r.State != ca.Void || r.Revoked() {
		t.Errorf("record %+v", r)
	}
}

// A guard before the device says when to come again, and that is what the
// requester hears.
func TestBusyGuardDecidesWhenToComeBack(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	c.Keys.Fail(&keys.BusyError{Reason: "queue_full", RetryAfter: 17 * time.Second})
	_, err := c.Issue(t.Context(), catest.Request(t, "www.example.com"), c.Store.PlainLedger())
	if r := refusal(t, err, ca.Busy); r.RetryAfter != 17*time.Second {
		t.Errorf("come back in %s, want 17s", r.RetryAfter)
	}
}

// Who gave up while waiting for the device has not used it, whatever else the
// error says.
func TestAContextThatEndedBeforeTheDeviceLeavesAVoidIntent(t *testing.T) {
	t.Parallel()
	for _, ended := range []error{context.Canceled, context.DeadlineExceeded} {
		c := catest.New(t, unlinted)
		c.Keys.Fail(fmt.Errorf("guard: %w", &keys.BusyError{Reason: "canceled", RetryAfter: time.Second, Err: ended}))
		_, err := c.Issue(t.Context(), catest.Request(t, "www.example.com"), c.Store.PlainLedger())
		if wantRefusal(t, err, ca.Busy); !errors.Is(err, ended) {
			t.Errorf("error %v has lost %v", err, ended)
		}
		if r := only(t, c.Store); r.State != ca.Void || r.Revoked() {
			t.Errorf("record %+v", r)
		}
		if ca.NeverSigned(ended) {
			t.Errorf("%v alone says nothing of the device", ended)
		}
	}
}

// purposeKey notes what its signatures are for and who has them made.
type purposeKey struct {
	keys.Key
	purpose  keys.Purpose
	identity string
}

func (k *purposeKey) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	k.purpose, k.identity = keys.PurposeOf(ctx), peer.Identity(ctx)
	return k.Key.Sign(ctx, digest, opts)
}

// A guard before the device knows a renewal, and what status hangs on, from a
// new certificate, and from one another those who ask.
func TestTheDeviceHearsWhatASignatureIsForAndForWhom(t *testing.T) {
	t.Parallel()
	var key *purposeKey
	c := catest.New(t, func(cfg *ca.Config) {
		unlinted(cfg)
		_, issuer := catest.NewIssuer(t, keystest.New(), *cfg)
		key = &purposeKey{Key: issuer.Key}
		issuer.Key = key
		cfg.Issuers = []*ca.Issuer{issuer}
	})
	renewal := catest.Request(t, "www.example.com")
	renewal.Renewal = true
	for name, x := range map[string]struct {
		req  ca.Request
		want keys.Purpose
	}{
		"a new one":       {catest.Request(t, "www.example.com"), keys.ForIssuance},
		"a renewal":       {renewal, keys.ForRenewal},
		"a responder":     {ca.Request{Profile: ca.ProfileResponder, PublicKey: catest.NewKey(t).Public()}, keys.ForStatus},
		"our https":       {ca.Request{Profile: ca.ProfileSelf, PublicKey: catest.NewKey(t).Public(), Identifiers: catest.IDs("pki.example.com")}, keys.ForRenewal},
		"a new one again": {catest.Request(t, "www.example.com"), keys.ForIssuance},
	} {
		ctx := keys.WithPurpose(peer.WithIdentity(t.Context(), name), keys.ForRevocation) // which is not for an edge to say
		if _, err := c.Issue(ctx, x.req, c.Store.PlainLedger()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if key.purpose != x.want || key.identity != name {
			t.Errorf("%s: purpose %d for %q, want %d", name, key.purpose, key.identity, x.want)
		}
	}
}

func TestDeviceErrorAbandonsAndRevokes(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	var told []ca.Revoked
	c.OnRevoke(func(r ca.Revoked) { told = append(told, r) })
	c.Keys.Fail(keystest.ErrDevice)
	_, err := c.Issue(t.Context(), catest.Request(t, "www.example.com"), c.Store.PlainLedger())
	if _, isRefusal := errors.AsType[*ca.Refusal](err); isRefusal || !errors.Is(err, keystest.ErrDevice) {
		t.Errorf("error %v", err)
	}
	r := only(t, c.Store)
	if r.State != ca.Abandoned || !r.Revoked() || r.Reason != ca.AbandonedReason {
		t.Errorf("record %+v", r)
	}
	if len(told) != 1 || told[0].Serial != r.Serial || told[0].Issuer != c.Issuer.ID {
		t.Errorf("told %v", told)
	}
}

// otherKey signs with a key that is not the one it shows.
type otherKey struct {
	keys.Key
	other keys.Key
}

func (k otherKey) Sign(ctx context.Context, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	return k.other.Sign(ctx, digest, opts)
}

func TestWrongSignatureIsNeverHandedOut(t *testing.T) {
	t.Parallel()
	c := catest.New(t, func(cfg *ca.Config) {
		unlinted(cfg)
		ks := keystest.New()
		_, issuer := catest.NewIssuer(t, ks, *cfg)
		other, err := ks.Generate(t.Context(), "other", keys.ECDSAP256)
		if err != nil {
			t.Fatal(err)
		}
		issuer.Key = otherKey{issuer.Key, other}
		cfg.Issuers = []*ca.Issuer{issuer}
	})
	if _, err := c.Issue(t.Context(), catest.Request(t, "www.example.com"), c.Store.PlainLedger()); err == nil {
		t.Error("a certificate that nobody can verify was issued")
	}
	if r := only(t, c.Store); r.State != ca.Abandoned {
		t.Errorf("state %s", r.State)
	}
}

func TestHangingUpAfterBeginChangesNothing(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	ctx, hangUp := context.WithCancel(t.Context())
	_, err := c.Issue(ctx, catest.Request(t, "www.example.com"), &catest.Ledger{Store: c.Store, OnBegin: func(ca.Intent) error {
		hangUp()
		return nil
	}})
	if err != nil || only(t, c.Store).State != ca.Issued {
		t.Errorf("error %v", err)
	}
}

func TestSlowDeviceIsGivenUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := catest.New(t, unlinted)
		req := catest.Request(t, "www.example.com")
		hold := c.Keys.Hold()
		defer hold.Release()
		began := time.Now()
		_, err := c.Issue(t.Context(), req, c.Store.PlainLedger())
		if err == nil || time.Since(began) != 20*time.Second {
			t.Errorf("error %v after %s", err, time.Since(began))
		}
	})
}

func TestHiccupOfTheDatabaseLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := catest.New(t, unlinted)
		req := catest.Request(t, "www.example.com")
		left := 4
		_, err := c.Issue(t.Context(), req, &catest.Ledger{Store: c.Store, OnCommit: func(ca.Intent, ca.Certificate) error {
			if left--; left > 0 {
				return errors.New("connection reset")
			}
			return nil
		}})
		if err != nil || only(t, c.Store).State != ca.Issued {
			t.Errorf("error %v", err)
		}
	})
}

func TestCommitThatHappenedDespiteItsErrorCounts(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	_, err := c.Issue(t.Context(), catest.Request(t, "www.example.com"), &catest.Ledger{Store: c.Store, OnCommit: func(in ca.Intent, cert ca.Certificate) error {
		if err := c.Store.PlainLedger().Commit(t.Context(), in, cert); err != nil {
			return err
		}
		return errors.New("connection reset after commit")
	}})
	if err != nil || only(t, c.Store).State != ca.Issued {
		t.Errorf("error %v", err)
	}
}

func TestUnrecordedCertificateIsLeftToRecovery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := catest.New(t, unlinted)
		req := catest.Request(t, "www.example.com")
		tries := 0
		broken := errors.New("no disk")
		_, err := c.Issue(t.Context(), req, &catest.Ledger{Store: c.Store, OnCommit: func(ca.Intent, ca.Certificate) error {
			tries++
			return broken
		}})
		if !errors.Is(err, broken) || tries < 3 {
			t.Errorf("error %v after %d tries", err, tries)
		}
		if r := only(t, c.Store); r.State != ca.Pending || r.Revoked() {
			t.Errorf("record %+v", r)
		}
		if n, err := c.Recover(t.Context()); n != 0 || err != nil {
			t.Errorf("recovered %d under a running lease, error %v", n, err)
		}
		time.Sleep(time.Minute)
		if n, err := c.Recover(t.Context()); n != 1 || err != nil {
			t.Errorf("recovered %d, error %v", n, err)
		}
		if r := only(t, c.Store); r.State != ca.Abandoned || !r.Revoked() {
			t.Errorf("record %+v", r)
		}
	})
}

func TestLostLeaseIsNeverHandedOut(t *testing.T) {
	t.Parallel()
	c := catest.New(t, unlinted)
	got, err := c.Issue(t.Context(), catest.Request(t, "www.example.com"), &catest.Ledger{Store: c.Store, OnCommit: func(ca.Intent, ca.Certificate) error {
		_, err := c.RecoverAll(t.Context())
		return err
	}})
	if !errors.Is(err, ca.ErrLeaseLost) || got.DER != nil {
		t.Errorf("error %v, %d octets", err, len(got.DER))
	}
	if r := only(t, c.Store); r.State != ca.Abandoned || !r.Revoked() {
		t.Errorf("record %+v", r)
	}
}

func TestConcurrentIssuesNeverShareASerial(t *testing.T) {
	t.Parallel()
	c := catest.New(t, func(cfg *ca.Config) { unlinted(cfg); cfg.Shard = 0x7f })
	const each, workers = 10, 8
	var (
		mu   sync.Mutex
		seen = map[ca.Serial]bool{}
		wg   sync.WaitGroup
	)
	reqs := make([]ca.Request, workers)
	for i := range reqs {
		reqs[i] = catest.Request(t, "www.example.com")
	}
	for _, req := range reqs {
		wg.Go(func() {
			for range each {
				got, err := c.Issue(t.Context(), req, c.Store.PlainLedger())
				if err != nil {
					t.Error(err)
					return
				}
				n := parse(t, got.DER).SerialNumber
				if len(got.Serial) != 34 || !strings.HasPrefix(string(got.Serial), "7f") || n.Sign() <= 0 || ca.SerialOf(n) != got.Serial {
					t.Errorf("serial %s", got.Serial)
				}
				mu.Lock()
				seen[got.Serial] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(seen) != each*workers {
		t.Errorf("%d serials of %d certificates", len(seen), each*workers)
	}
}

func TestEveryKindOfIssuerKeySigns(t *testing.T) {
	t.Parallel()
	for alg, want := range map[keys.Algorithm]x509.SignatureAlgorithm{
		keys.ECDSAP256: x509.ECDSAWithSHA256, keys.ECDSAP384: x509.ECDSAWithSHA384, keys.ECDSAP521: x509.ECDSAWithSHA512,
		keys.RSA2048: x509.SHA256WithRSA, keys.Ed25519: x509.PureEd25519,
	} {
		t.Run(string(alg), func(t *testing.T) {
			t.Parallel()
			c := catest.New(t, func(cfg *ca.Config) {
				cfg.Linter = catest.Linter(t, cfg.Policy)
				ks := keystest.New()
				root, issuer := catest.NewIssuer(t, ks, *cfg)
				key, err := ks.Generate(t.Context(), "other kind", alg)
				if err != nil {
					t.Fatal(err)
				}
				rootKey, err := ks.Key(t.Context(), catest.RootKeyLabel)
				if err != nil {
					t.Fatal(err)
				}
				der, err := ca.CreateIssuing(t.Context(), ca.IssuingRequest{
					Root: root, RootKey: rootKey, Subject: issuer.Cert.Subject, PublicKey: key.Public(), Linter: cfg.Linter,
				})
				if err != nil {
					t.Fatal(err)
				}
				issuer.Cert, issuer.Key = parse(t, der), key
				issuer.ID = ca.IDOf(issuer.Cert)
				cfg.Issuers = []*ca.Issuer{issuer}
			})
			cert := parse(t, c.Certificate(t, "www.example.com").DER)
			if cert.SignatureAlgorithm != want {
				t.Errorf("signed with %s, want %s", cert.SignatureAlgorithm, want)
			}
			if err := cert.CheckSignatureFrom(c.Issuers()[0].Cert); err != nil {
				t.Error(err)
			}
		})
	}
}
