package audit_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/audit/audittest"
)

// chain returns n records and their head.
func chain(n int) ([]audit.Record, audit.Head) {
	head := audit.Head{Hash: audit.ZeroHash}
	recs := make([]audit.Record, 0, n)
	for i := range n {
		e := audit.New(fmt.Sprintf("acme:account/%d", i), "certificate.issued", fmt.Sprintf("certificate/%02x", i), map[string]int{"n": i})
		e.Remote, e.Request = "192.0.2.1", audit.NewID()
		r := head.Next(e)
		recs, head = append(recs, r), r.Head()
	}
	return recs, head
}

func verify(t *testing.T, recs []audit.Record, head audit.Head, o audit.VerifyOptions) audit.Report {
	t.Helper()
	rep, err := audit.Verify(t.Context(), audittest.NewMemory(head, recs...), o)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

func TestWholeChainVerifiesInPagesOfAnySize(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 2, 7, 8, 9, 300} {
		recs, head := chain(n)
		for _, page := range []int{0, 1, 2, 8, 1000} {
			rep := verify(t, recs, head, audit.VerifyOptions{PageSize: page, Expect: &head})
			if !rep.OK() || rep.Entries != int64(n) || rep.Head != head {
				t.Errorf("%d entries in pages of %d: %+v", n, page, rep)
			}
		}
	}
}

// The encoding is promised to third parties: this is docs/audit.md in code, and
// a hash computed there by hand.
func TestHashIsTheDocumentedOne(t *testing.T) {
	t.Parallel()
	e := audit.Entry{
		ID: "00112233445566778899aabbccddeeff", At: time.Date(2026, 1, 2, 3, 4, 5, 60000, time.UTC),
		Actor: "operator:uid/0", Action: "certificate.revoked", Object: "certificate/01ff", Remote: "2001:db8::1", Detail: []byte(`{"reason":1}`),
	}
	text := "secsy-pki audit entry v1\n64:" + audit.ZeroHash + ",1:1,32:00112233445566778899aabbccddeeff,27:2026-01-02T03:04:05.000060Z," +
		`14:operator:uid/0,19:certificate.revoked,16:certificate/01ff,11:2001:db8::1,0:,12:{"reason":1},`
	want := sha256.Sum256([]byte(text))
	if got := (audit.Head{Hash: audit.ZeroHash}).Next(e); got.Hash != hex.EncodeToString(want[:]) || got.Seq != 1 {
		t.Errorf("seq %d hash %s, want %x", got.Seq, got.Hash, want)
	}
}

// fields gives every stored field of a record, as bytes to damage.
func fields(r *audit.Record) map[string]*string {
	detail := string(r.Detail)
	return map[string]*string{
		"id": &r.ID, "actor": &r.Actor, "action": &r.Action, "object": &r.Object,
		"remote": &r.Remote, "request": &r.Request, "detail": &detail, "hash": &r.Hash,
	}
}

func TestAnyFlippedBitIsFound(t *testing.T) {
	t.Parallel()
	const n = 5
	pristine, head := chain(n)
	found := func(what string, i int, damaged audit.Record) {
		recs := slices.Clone(pristine)
		recs[i] = damaged
		if rep := verify(t, recs, head, audit.VerifyOptions{}); rep.OK() {
			t.Errorf("entry %d with another %s passes", i+1, what)
		}
	}
	for i := range n {
		for name, p := range fields(&audit.Record{Entry: pristine[i].Entry, Hash: pristine[i].Hash}) {
			for bit := range 8 * len(*p) {
				r := pristine[i]
				b := []byte(*p)
				b[bit/8] ^= 1 << (bit % 8)
				if name == "detail" {
					r.Detail = b
				} else {
					*fields(&r)[name] = string(b)
				}
				found(fmt.Sprintf("bit %d of %s", bit, name), i, r)
			}
		}
		for bit := range 64 {
			r := pristine[i]
			r.At = time.UnixMicro(r.At.UnixMicro() ^ int64(uint64(1)<<bit)).UTC()
			found(fmt.Sprintf("bit %d of at", bit), i, r)
			r = pristine[i]
			r.Seq ^= int64(uint64(1) << bit)
			found(fmt.Sprintf("bit %d of seq", bit), i, r)
		}
	}
	for bit := range 64 {
		h := head
		h.Seq ^= int64(uint64(1) << bit)
		if rep := verify(t, pristine, h, audit.VerifyOptions{}); rep.OK() {
			t.Errorf("head with bit %d of seq flipped passes", bit)
		}
	}
	for bit := range 8 * len(head.Hash) {
		b := []byte(head.Hash)
		b[bit/8] ^= 1 << (bit % 8)
		if rep := verify(t, pristine, audit.Head{Seq: head.Seq, Hash: string(b)}, audit.VerifyOptions{}); rep.OK() {
			t.Errorf("head with bit %d of hash flipped passes", bit)
		}
	}
}

func TestBytesMovedBetweenFieldsAreFound(t *testing.T) {
	t.Parallel()
	recs, head := chain(3)
	recs[1].Actor, recs[1].Action = recs[1].Actor+recs[1].Action[:4], recs[1].Action[4:]
	if rep := verify(t, recs, head, audit.VerifyOptions{}); rep.OK() || rep.Findings[0].Kind != audit.Broken || rep.Findings[0].Seq != 2 {
		t.Errorf("%+v", rep)
	}
}

func TestAnyDeletionIsFound(t *testing.T) {
	t.Parallel()
	const n = 9
	for i := range n {
		for j := i + 1; j <= n; j++ {
			recs, head := chain(n)
			rep := verify(t, slices.Delete(recs, i, j), head, audit.VerifyOptions{PageSize: 3})
			want := audit.Finding{Kind: audit.Missing, Seq: int64(i + 1), Detail: fmt.Sprintf("entries %d to %d are missing", i+1, j)}
			if rep.FindingCount != 1 || rep.Findings[0] != want && j < n {
				if j < n || !slices.Contains(rep.Findings, want) {
					t.Errorf("without %d to %d: %+v", i+1, j, rep.Findings)
				}
			}
		}
	}
}

func TestDeletionIsFoundAfterRenumbering(t *testing.T) {
	t.Parallel()
	recs, head := chain(9)
	recs = slices.Delete(recs, 3, 4)
	for i := 3; i < len(recs); i++ {
		recs[i].Seq--
	}
	head.Seq--
	if rep := verify(t, recs, head, audit.VerifyOptions{}); rep.OK() || rep.Findings[0].Seq != 4 {
		t.Errorf("%+v", rep)
	}
}

func TestAnySwapIsFound(t *testing.T) {
	t.Parallel()
	const n = 7
	for i := range n {
		for j := range i {
			recs, head := chain(n)
			recs[i].Entry, recs[j].Entry = recs[j].Entry, recs[i].Entry
			if rep := verify(t, recs, head, audit.VerifyOptions{}); rep.OK() {
				t.Errorf("facts of %d and %d swapped: passes", i+1, j+1)
			}
			recs[i].Hash, recs[j].Hash = recs[j].Hash, recs[i].Hash
			if rep := verify(t, recs, head, audit.VerifyOptions{}); rep.OK() {
				t.Errorf("entries %d and %d swapped: passes", i+1, j+1)
			}
		}
	}
}

func TestEntryPutWhereNoneBelongsIsFound(t *testing.T) {
	t.Parallel()
	for _, seq := range []int64{math.MinInt64 + 1, -1, 0, 6, 7, math.MaxInt64} {
		recs, head := chain(5)
		extra := audit.Record{Entry: audit.New("system", "x", "y", nil), Seq: seq, Hash: strings.Repeat("0", 64)}
		if rep := verify(t, append(recs, extra), head, audit.VerifyOptions{PageSize: 2}); rep.OK() {
			t.Errorf("an extra entry at %d passes", seq)
		}
	}
}

func TestCutTailIsFoundByTheHead(t *testing.T) {
	t.Parallel()
	recs, head := chain(9)
	rep := verify(t, recs[:6], head, audit.VerifyOptions{})
	if rep.OK() || rep.Findings[0].Kind != audit.Missing || rep.Findings[0].Seq != 7 {
		t.Errorf("%+v", rep)
	}
}

// What the chain alone can't tell, a head noted outside can.
func TestRewrittenChainIsFoundOnlyByAnExpectedHead(t *testing.T) {
	t.Parallel()
	recs, noted := chain(9)
	cut := recs[:6]
	forged := slices.Clone(cut)
	forged[5] = forged[4].Head().Next(audit.New("system", "other", "fact", nil))
	longer := slices.Clone(forged)
	for range 5 {
		longer = append(longer, longer[len(longer)-1].Head().Next(audit.New("system", "more", "facts", nil)))
	}
	for name, c := range map[string][]audit.Record{"cut": cut, "forged": forged, "longer": longer, "empty": nil} {
		head := audit.Head{Hash: audit.ZeroHash}
		if len(c) > 0 {
			head = c[len(c)-1].Head()
		}
		if rep := verify(t, c, head, audit.VerifyOptions{}); !rep.OK() {
			t.Errorf("%s: found without an expected head, what should be impossible: %+v", name, rep)
		}
		rep := verify(t, c, head, audit.VerifyOptions{Expect: &noted})
		if rep.OK() || rep.Findings[0].Kind != audit.Unexpected {
			t.Errorf("%s: %+v", name, rep)
		}
	}
	for i := range recs { // every earlier head is kept by an honest chain
		h := recs[i].Head()
		if rep := verify(t, recs, noted, audit.VerifyOptions{Expect: &h}); !rep.OK() {
			t.Errorf("expecting %s: %+v", h, rep)
		}
	}
}

func TestFindingsAreBoundedAndCounted(t *testing.T) {
	t.Parallel()
	recs, head := chain(300)
	for i := range recs {
		recs[i].Actor = "somebody else"
	}
	rep := verify(t, recs, head, audit.VerifyOptions{MaxFindings: 10})
	if len(rep.Findings) != 10 || rep.FindingCount != 300 {
		t.Errorf("%d findings kept of %d", len(rep.Findings), rep.FindingCount)
	}
}

func TestBacklogIsReportedButNotAFault(t *testing.T) {
	t.Parallel()
	recs, head := chain(2)
	m := audittest.NewMemory(head, recs...)
	e := audit.New("system", "x", "y", nil)
	m.Append(e, audit.New("system", "x", "y", nil))
	rep, err := audit.Verify(t.Context(), m, audit.VerifyOptions{})
	if err != nil || !rep.OK() || rep.Backlog.Count != 2 || !rep.Backlog.Oldest.Equal(e.At) {
		t.Errorf("%+v, %v", rep, err)
	}
}

func TestRandomDamageIsFound(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		recs, head := chain(1 + rng.IntN(20))
		before := slices.Clone(recs)
		for range 1 + rng.IntN(4) {
			i, j := rng.IntN(len(recs)), rng.IntN(len(recs))
			switch rng.IntN(4) {
			case 0:
				recs[i].Entry = recs[j].Entry
			case 1:
				recs[i].Hash = recs[j].Hash
			case 2:
				recs[i].Seq, recs[j].Seq = recs[j].Seq, recs[i].Seq
			case 3:
				recs[i].Object += "x"
			}
		}
		same := slices.EqualFunc(sorted(recs), before, func(a, b audit.Record) bool {
			return a.Seq == b.Seq && a.Hash == b.Hash && a.ID == b.ID && a.Object == b.Object
		})
		if rep := verify(t, recs, head, audit.VerifyOptions{PageSize: 4}); rep.OK() != same {
			t.Fatalf("same %v, report %+v", same, rep)
		}
	}
}

func sorted(recs []audit.Record) []audit.Record {
	return slices.SortedFunc(slices.Values(recs), func(a, b audit.Record) int { return int(a.Seq - b.Seq) })
}
