// Package audittest is an audit log in memory, for tests.
package audittest

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/secsy-pki/secsy-pki/audit"
)

// Memory keeps the promises of the database: it is an audit.Log, an
// audit.Reader and a list for operators. Its records need not be an honest chain.
type Memory struct {
	mu      sync.Mutex // guards all below
	head    audit.Head
	chained []audit.Record
	pending []audit.Entry
	fail    error
}

// NewMemory returns a log of recs that ends at head, whether or not it does.
func NewMemory(head audit.Head, recs ...audit.Record) *Memory {
	m := &Memory{head: head, chained: slices.Clone(recs)}
	m.sortLocked()
	return m
}

// Append writes entries without a place.
func (m *Memory) Append(es ...audit.Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending = append(m.pending, es...)
	slices.SortFunc(m.pending, func(a, b audit.Entry) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) })
}

// Fail makes every call fail with err; nil ends that.
func (m *Memory) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = err
}

// Head is the end of the chain.
func (m *Memory) Head(context.Context) (audit.Head, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.head, m.fail
}

// End is the head and the highest place.
func (m *Memory) End(context.Context) (audit.End, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	end := audit.End{Head: m.head}
	if n := len(m.chained); n > 0 {
		end.Last = m.chained[n-1].Seq
	}
	return end, m.fail
}

// Backlog is what waits.
func (m *Memory) Backlog(context.Context) (audit.Backlog, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := audit.Backlog{Count: int64(len(m.pending))}
	if b.Count > 0 {
		b.Oldest = m.pending[0].At
	}
	return b, m.fail
}

// Pending lists what waits.
func (m *Memory) Pending(_ context.Context, limit int) ([]audit.Entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.pending[:min(limit, len(m.pending))]), m.fail
}

// Extend chains recs, all or none.
func (m *Memory) Extend(_ context.Context, from audit.Head, recs []audit.Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	if m.head != from {
		return audit.ErrHeadMoved
	}
	for _, r := range recs {
		m.pending = slices.DeleteFunc(m.pending, func(e audit.Entry) bool { return e.ID == r.ID })
		m.chained = append(m.chained, r)
		m.head = r.Head()
	}
	return nil
}

// Records lists the chain.
func (m *Memory) Records(ctx context.Context, after int64, limit int) ([]audit.Record, error) {
	return m.list(audit.Query{After: after}, limit)
}

// List lists what q selects.
func (m *Memory) List(_ context.Context, q audit.Query) ([]audit.Record, error) {
	limit := q.Limit
	if limit <= 0 {
		limit = 50
	}
	return m.list(q, min(limit, audit.MaxList))
}

func (m *Memory) list(q audit.Query, limit int) ([]audit.Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []audit.Record
	for _, r := range m.chained {
		if r.Seq > q.After && (q.Before <= 0 || r.Seq < q.Before) &&
			(q.Action == "" || r.Action == q.Action) && (q.Object == "" || r.Object == q.Object) {
			out = append(out, r)
		}
	}
	if q.Newest {
		slices.Reverse(out)
	}
	return out[:min(limit, len(out))], m.fail
}

func (m *Memory) sortLocked() {
	slices.SortStableFunc(m.chained, func(a, b audit.Record) int { return cmp.Compare(a.Seq, b.Seq) })
}
