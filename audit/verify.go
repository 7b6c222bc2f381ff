package audit

import (
	"context"
	"fmt"
	"math"
	"time"
)

// A Kind is a way in which a chain can be wrong.
type Kind string

// The kinds of findings.
const (
	// Broken: the entry, its place or the hash before it is not what was hashed.
	Broken Kind = "broken"
	// Missing: sequence numbers without an entry.
	Missing Kind = "missing"
	// Stray: an entry where none belongs, before the first or out of order.
	Stray Kind = "stray"
	// HeadMismatch: the chain does not end where its head says.
	HeadMismatch Kind = "head"
	// Unexpected: the chain is not one that continues the expected head.
	Unexpected Kind = "expected"
)

// A Finding is one thing wrong. After the first, later ones may follow from it.
type Finding struct {
	Kind   Kind
	Seq    int64 // where
	Detail string
}

// VerifyOptions says how to verify.
type VerifyOptions struct {
	// Expect is a head that was noted outside the database earlier: the chain
	// must still hold it. Without one, a chain rewritten from some entry to
	// its end, head included, can't be told from an honest one.
	Expect *Head
	// PageSize is how many entries are read at a time; 0: 256.
	PageSize int
	// MaxFindings is how many findings are kept, all being counted; 0: 100.
	MaxFindings int
}

// A Report says what Verify found.
type Report struct {
	Head         Head  // the chain's end when the verification began
	Entries      int64 // how many were read
	Findings     []Finding
	FindingCount int64
	Backlog      Backlog // written, but without a place in the chain yet
	Duration     time.Duration
}

// OK reports whether the chain is whole.
func (r Report) OK() bool { return r.FindingCount == 0 }

// Verify reads the chain from its first entry to the head that it had at the
// call and computes it anew. Its error means that it could not finish; a chain
// that is not whole is told by the report.
func Verify(ctx context.Context, log Reader, o VerifyOptions) (Report, error) {
	start := time.Now()
	backlog, err := log.Backlog(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("counting pending entries: %w", err)
	}
	end, err := log.End(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("reading chain head: %w", err)
	}
	v := verifier{
		end: end.Head, expect: o.Expect, last: Head{Hash: ZeroHash}, keep: o.MaxFindings,
		report: Report{Head: end.Head, Backlog: backlog},
	}
	if v.keep <= 0 {
		v.keep = 100
	}
	if err := v.walk(ctx, log, o.PageSize); err != nil {
		return Report{}, err
	}
	v.finish(end.Last)
	v.report.Duration = time.Since(start)
	return v.report, nil
}

// A verifier holds the state of one walk along the chain.
type verifier struct {
	end    Head
	expect *Head
	last   Head // the entry before, as stored
	keep   int
	report Report
}

func (v *verifier) walk(ctx context.Context, log Reader, page int) error {
	if page <= 0 {
		page = 256
	}
	v.compare(v.last) // a head or an expectation may name the empty chain
	// From below the first, so that an entry put before it is seen too.
	for after := int64(math.MinInt64); ; {
		recs, err := log.Records(ctx, after, page)
		if err != nil {
			return fmt.Errorf("reading entries after %d: %w", after, err)
		}
		for _, r := range recs {
			if r.Seq > v.end.Seq {
				return nil // chained since the head was read, or beyond it: finish knows
			}
			v.take(r)
			after = max(after, r.Seq)
		}
		if len(recs) < page || after == v.end.Seq {
			return nil
		}
	}
}

// take checks that r follows the entry before it.
func (v *verifier) take(r Record) {
	v.report.Entries++
	switch {
	case r.Seq <= v.last.Seq:
		v.find(Stray, r.Seq, "an entry is where none belongs")
		return
	case r.Seq > v.last.Seq+1:
		// Nothing is known of the hash before r: the chain goes on from r's own.
		v.missing(v.last.Seq+1, r.Seq-1)
	case v.last.Next(r.Entry).Hash != r.Hash:
		v.find(Broken, r.Seq, "the hash does not fit: this entry, its place or the hash before it was changed")
	}
	v.last = r.Head()
	v.compare(v.last)
}

// compare holds h against the heads that are known for its place.
func (v *verifier) compare(h Head) {
	if h.Seq == v.end.Seq && h.Hash != v.end.Hash {
		v.find(HeadMismatch, h.Seq, "the chain's last hash is not the head's")
	}
	if v.expect != nil && h.Seq == v.expect.Seq && h.Hash != v.expect.Hash {
		v.find(Unexpected, h.Seq, "the hash is not the expected one: the chain was rewritten at or before this entry")
	}
}

// finish looks at how the chain ends. last is the highest place of any entry
// at the moment of the head.
func (v *verifier) finish(last int64) {
	switch {
	case v.end.Seq < 0:
		v.find(HeadMismatch, v.end.Seq, "the head has a negative sequence number")
	case v.last.Seq < v.end.Seq:
		v.missing(v.last.Seq+1, v.end.Seq)
	}
	if last > v.end.Seq {
		v.find(HeadMismatch, last, fmt.Sprintf("entries go on to %d, beyond the head at %d", last, v.end.Seq))
	}
	if v.expect != nil && v.expect.Seq > v.end.Seq {
		v.find(Unexpected, v.expect.Seq, fmt.Sprintf("the chain ends at %d, before the expected entry: it was cut", v.end.Seq))
	}
}

func (v *verifier) missing(from, to int64) {
	v.find(Missing, from, fmt.Sprintf("entries %d to %d are missing", from, to))
	if v.expect != nil && from <= v.expect.Seq && v.expect.Seq <= to {
		v.find(Unexpected, v.expect.Seq, "the expected entry is missing")
	}
}

func (v *verifier) find(k Kind, seq int64, detail string) {
	v.report.FindingCount++
	if len(v.report.Findings) < v.keep {
		v.report.Findings = append(v.report.Findings, Finding{Kind: k, Seq: seq, Detail: detail})
	}
}
