package ocsp

import (
	"bytes"
	"context"
	"crypto"
	"encoding/asn1"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
	xocsp "golang.org/x/crypto/ocsp"

	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/keys"
	"github.com/secsy-pki/secsy-pki/ratelimit"
)

// An extension as it stands in a response.
type extension struct {
	oid      asn1.ObjectIdentifier
	critical bool
	value    []byte
}

// extensionsOf reads the extensions of a response, and those of its first single
// one, by means of its own.
func extensionsOf(t *testing.T, der []byte) (ofResponse, ofSingle []extension) {
	t.Helper()
	in := cryptobyte.String(der)
	var outer, wrapped, seq, basic, data, singles, one cryptobyte.String
	responderTag := explicit(2)
	if !in.ReadASN1(&outer, casn1.SEQUENCE) || !outer.SkipASN1(casn1.ENUM) || !outer.ReadASN1(&wrapped, explicit(0)) ||
		!wrapped.ReadASN1(&seq, casn1.SEQUENCE) || !seq.SkipASN1(casn1.OBJECT_IDENTIFIER) || !seq.ReadASN1(&basic, casn1.OCTET_STRING) ||
		!basic.ReadASN1(&basic, casn1.SEQUENCE) || !basic.ReadASN1(&data, casn1.SEQUENCE) ||
		!data.SkipASN1(responderTag) || !data.SkipASN1(casn1.GeneralizedTime) || !data.ReadASN1(&singles, casn1.SEQUENCE) ||
		!singles.ReadASN1(&one, casn1.SEQUENCE) || !one.SkipASN1(casn1.SEQUENCE) {
		t.Fatalf("not a response: %x", der)
	}
	if !one.SkipOptionalASN1(casn1.Tag(0).ContextSpecific()) || !one.SkipOptionalASN1(explicit(1)) || // certStatus
		!one.SkipASN1(casn1.GeneralizedTime) || !one.SkipASN1(explicit(0)) {
		t.Fatalf("not a SingleResponse: %x", der)
	}
	gather := func(in *cryptobyte.String, into *[]extension) {
		err := readExtensions(in, 1, func(oid asn1.ObjectIdentifier, critical bool, value cryptobyte.String) error {
			*into = append(*into, extension{oid, critical, value})
			return nil
		})
		if err != nil || !in.Empty() {
			t.Fatalf("extensions %v, and %d octets after them", err, len(*in))
		}
	}
	gather(&data, &ofResponse)
	gather(&one, &ofSingle)
	return ofResponse, ofSingle
}

// A nextUpdate beyond the certificate's own end would be refused by some, and
// after it nothing is known unless an archive is kept.
func TestExpiredCertificatesAreUnauthorizedWithoutAnArchive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		s := w.server(nil)
		end := time.Now().Add(time.Hour).UTC()
		good := w.leaf(0, 5, Status{State: ca.Issued, NotAfter: end})
		revoked := w.leaf(0, 6, Status{State: ca.Issued, NotAfter: end, RevokedAt: time.Now(), Reason: ca.KeyCompromise})
		if w.ask(s, 0, good).Status != xocsp.Good || w.ask(s, 0, revoked).Status != xocsp.Revoked {
			t.Fatal("not answered before the end")
		}
		time.Sleep(time.Hour)
		signed := w.keys.Signatures()
		refused(t, doPost(s, w.query(0, good, crypto.SHA1), requestType), unauthorized)
		refused(t, doPost(s, w.query(0, revoked, crypto.SHA256), requestType), unauthorized)
		if w.keys.Signatures() != signed {
			t.Error("that cost a signature")
		}
	})
}

func TestAnArchiveAnswersForWhatHasExpiredAndSaysHowFarBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const kept = 7 * 24 * time.Hour
		w := newWorld(t)
		s := w.server(func(c *Config) { c.Archive = kept })
		end := time.Now().Add(time.Hour).UTC()
		good := w.leaf(0, 5, Status{State: ca.Issued, NotAfter: end})
		revoked := w.leaf(0, 6, Status{State: ca.Issued, NotAfter: end, RevokedAt: time.Now(), Reason: ca.KeyCompromise})
		if next := w.ask(s, 0, good).NextUpdate; next.After(end) {
			t.Errorf("an answer until %v about a certificate until %v", next, end)
		}
		time.Sleep(kept)
		rec := doPost(s, w.query(0, good, crypto.SHA1), requestType)
		ofResponse, ofSingle := extensionsOf(t, rec.Body.Bytes())
		want := append([]byte{0x18, 15}, time.Now().Add(-kept).UTC().Format("20060102150405Z")...)
		if len(ofResponse) != 0 || len(ofSingle) != 1 || !ofSingle[0].oid.Equal(oidArchiveCutoff) || ofSingle[0].critical || !bytes.Equal(ofSingle[0].value, want) {
			t.Errorf("extensions %v %v, want an archive cutoff of %s", ofResponse, ofSingle, want)
		}
		if got := w.ask(s, 0, revoked); got.Status != xocsp.Revoked || got.RevocationReason != int(ca.KeyCompromise) {
			t.Errorf("status %d, reason %d", got.Status, got.RevocationReason)
		}
		time.Sleep(time.Hour)
		refused(t, doPost(s, w.query(0, good, crypto.SHA1), requestType), unauthorized)
	})
}

func TestUnissuedSerialsAreRevokedByTheExtendedDefinitionOnlyIfWanted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(func(c *Config) { c.RevokeUnissued = true; c.Archive = time.Hour })
	never, void, issued := w.leaf(0, 5, Status{State: ca.Issued}), w.leaf(0, 6, Status{State: ca.Void}), w.leaf(0, 7, Status{State: ca.Issued})
	delete(w.statuses[w.issuers[0].ID], "05")
	for name, query := range map[string][]byte{"never assigned": w.query(0, never, crypto.SHA1), "void": w.query(0, void, crypto.SHA256)} {
		for range 2 { // each is made anew
			before := w.keys.Signatures()
			rec := doPost(s, query, requestType)
			resp, err := xocsp.ParseResponse(rec.Body.Bytes(), w.issuers[0].Cert)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if resp.Status != xocsp.Revoked || resp.RevocationReason != int(ca.CertificateHold) || resp.RevokedAt.Unix() != 0 {
				t.Errorf("%s: status %d, reason %d, at %v", name, resp.Status, resp.RevocationReason, resp.RevokedAt)
			}
			ofResponse, ofSingle := extensionsOf(t, rec.Body.Bytes())
			if len(ofResponse) != 1 || !ofResponse[0].oid.Equal(oidExtendedRevoke) || ofResponse[0].critical || !bytes.Equal(ofResponse[0].value, []byte{5, 0}) || len(ofSingle) != 0 {
				t.Errorf("%s: extensions %v %v", name, ofResponse, ofSingle)
			}
			if rec.Header().Get("Cache-Control") != "no-store" || resp.NextUpdate.After(time.Now().Add(time.Hour)) || w.keys.Signatures() != before+1 {
				t.Errorf("%s: %v, until %v, %d signatures", name, rec.Header(), resp.NextUpdate, w.keys.Signatures()-before)
			}
		}
	}
	if ofResponse, _ := extensionsOf(t, doPost(s, w.query(0, issued, crypto.SHA1), requestType).Body.Bytes()); len(ofResponse) != 0 {
		t.Errorf("an issued one has extensions %v", ofResponse)
	}
	refused(t, doPost(w.server(nil), w.query(0, never, crypto.SHA1), requestType), unauthorized)
	// Still no word about certificates of which nothing is known yet, or of others.
	pending := w.leaf(0, 8, Status{State: ca.Pending})
	refused(t, doPost(s, w.query(0, pending, crypto.SHA1), requestType), tryLater)
}

// TestNoncesHaveALimitOfTheirOwn: whoever has spent it still gets, and pays as
// everybody, the answer that all get.
func TestNoncesHaveALimitOfTheirOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := newLimiter(t, 100)
	s := w.server(func(c *Config) { c.Limiter = l })
	err := l.Reconfigure(ratelimit.Config{
		PerIP: ratelimit.Bucket{Rate: 0.01, Burst: 100}, MaxKeys: 1000,
		Endpoints: map[string]ratelimit.EndpointLimit{"ocsp_nonce": {PerIP: ratelimit.Bucket{Rate: 0.01, Burst: 1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	leaf, two := w.leaf(0, 5, Status{State: ca.Issued}), w.leaf(0, 6, Status{State: ca.Issued})
	const nonce = "0123456789abcdef"
	ask := func(body []byte) *bytes.Buffer { return postFrom(t.Context(), s, "192.0.2.7", body).Body }
	if !bytes.Contains(ask(w.withNonce(0, leaf, nonce)).Bytes(), []byte(nonce)) {
		t.Error("the first nonce is left out")
	}
	rec := postFrom(t.Context(), s, "192.0.2.7", w.withNonce(0, leaf, nonce))
	w.saysGood(rec, 0, leaf)
	if bytes.Contains(rec.Body.Bytes(), []byte(nonce)) || rec.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("the second: %v %x", rec.Header(), rec.Body.Bytes())
	}
	// Several at once are of use to nobody else, either.
	overLimit(t, postFrom(t.Context(), s, "192.0.2.7", encodeRequest(t, idsOf(t, w.query(0, leaf, crypto.SHA1), w.query(0, two, crypto.SHA1)), nil)))
	w.saysGood(postFrom(t.Context(), s, "192.0.2.7", w.query(0, two, crypto.SHA1)), 0, two)
}

// Who insists would rather say nothing than leave a nonce out.
func TestWhoInsistsOnNoncesNeverLeavesOneOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := &notary{KeyStore: w.keys, veto: func(ctx context.Context) error {
		if keys.PurposeOf(ctx) == keys.ForOne {
			return &keys.BusyError{Reason: "queue_full", RetryAfter: 3 * time.Second}
		}
		return nil
	}}
	s := w.server(func(c *Config) { c.Keys = n; c.Nonce = InsistNonce })
	c := w.leaf(0, 5, Status{State: ca.Issued})
	w.ask(s, 0, c) // the shared answer is there
	later(t, doPost(s, w.withNonce(0, c, "0123456789abcdef"), requestType), http.StatusServiceUnavailable, "3")
}

// A certificate on hold is revoked for that reason, and good again once it is
// released; a reason that gets worse shows at once.
func TestHoldsAndWorseReasonsShowAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.server(nil)
	c := w.leaf(0, 5, Status{State: ca.Issued})
	at := time.Now().Add(-time.Minute)
	for i, step := range []struct {
		status       Status
		want, reason int
	}{
		{Status{State: ca.Issued}, xocsp.Good, 0},
		{Status{State: ca.Issued, RevokedAt: at, Reason: ca.CertificateHold}, xocsp.Revoked, 6},
		{Status{State: ca.Issued}, xocsp.Good, 0},
		{Status{State: ca.Issued, RevokedAt: at, Reason: ca.Superseded}, xocsp.Revoked, 4},
		{Status{State: ca.Issued, RevokedAt: at, Reason: ca.KeyCompromise}, xocsp.Revoked, 1},
	} {
		w.set(0, c, step.status)
		if got := w.ask(s, 0, c); got.Status != step.want || got.RevocationReason != step.reason {
			t.Errorf("step %d: status %d, reason %d", i, got.Status, got.RevocationReason)
		}
	}
}
