package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/audit"
)

func (s *Server) listAudit(w http.ResponseWriter, r *http.Request) error {
	q, err := readAuditQuery(r)
	if err != nil {
		return err
	}
	recs, err := s.audit.List(r.Context(), q)
	if err != nil {
		return fmt.Errorf("listing audit entries: %w", err)
	}
	page := client.AuditPage{Entries: make([]client.AuditEntry, 0, len(recs))}
	for _, rec := range recs {
		page.Entries = append(page.Entries, wireEntry(rec))
	}
	if len(recs) == q.Limit { // there may be more; an empty last page does no harm
		page.Next = auditCursor(recs[len(recs)-1].Seq)
	}
	return answer(w, page)
}

func readAuditQuery(r *http.Request) (audit.Query, error) {
	p := readParams(r, "after", "order", "action", "object", "limit", "cursor")
	q := audit.Query{
		After:  p.number("after", 0, math.MaxInt64),
		Newest: p.oneOf("order", []string{"oldest", "newest"}) == "newest",
		Action: p.text("action"),
		Object: p.text("object"),
		Limit:  p.limit(),
	}
	last, err := auditPlace(p.cursor("audit"))
	if err != nil {
		p.fail(err)
	}
	switch {
	case last == 0:
	case q.Newest:
		q.Before = last
	default:
		q.After = max(q.After, last)
	}
	return q, p.err
}

func auditCursor(seq int64) string { return encodeCursor("audit", strconv.FormatInt(seq, 10)) }

// auditPlace reads what auditCursor wrote; nothing is 0.
func auditPlace(v string) (int64, error) {
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != v {
		return 0, errBadCursor
	}
	return n, nil
}

func wireEntry(r audit.Record) client.AuditEntry {
	return client.AuditEntry{
		Seq: r.Seq, ID: r.ID, At: r.At.UTC().Format(audit.TimeFormat),
		Actor: r.Actor, Action: r.Action, Object: r.Object, Remote: r.Remote, Request: r.Request,
		Detail: string(r.Detail), Hash: r.Hash,
	}
}

const (
	maxVerify    = time.Hour
	verifyMargin = 2 * time.Second // to say that time is up before the connection is cut
)

func (s *Server) verifyAudit(w http.ResponseWriter, r *http.Request) error {
	o, err := readVerify(w, r)
	if err != nil {
		return err
	}
	select {
	case s.verifying <- struct{}{}:
		defer func() { <-s.verifying }()
	default: // it reads the whole log: one at a time is enough
		return &problem{status: http.StatusServiceUnavailable, code: client.CodeBusy, detail: "a verification is running already", retryAfter: 10 * time.Second}
	}
	ctx, cancel := verifyContext(r.Context())
	defer cancel()
	rep, err := audit.Verify(ctx, s.audit, o)
	if errors.Is(err, context.DeadlineExceeded) {
		return problemf(http.StatusServiceUnavailable, client.CodeTimeout,
			"the chain is too long to be verified in the time that the listener gives; nothing was found or ruled out")
	}
	if err != nil {
		return fmt.Errorf("verifying audit chain: %w", err)
	}
	if !rep.OK() {
		s.logger.ErrorContext(r.Context(), "the audit chain is not whole", "findings", rep.FindingCount, "first", rep.Findings[0].Detail, "seq", rep.Findings[0].Seq)
	}
	return answer(w, wireReport(rep))
}

func readVerify(w http.ResponseWriter, r *http.Request) (audit.VerifyOptions, error) {
	var (
		o      audit.VerifyOptions
		expect string
	)
	if err := readBody(w, r, map[string]any{"expect": &expect}); err != nil {
		return o, err
	}
	if expect == "" {
		return o, nil
	}
	h, err := audit.ParseHead(expect)
	if err != nil {
		return o, invalid("expect", "is not SEQ:HASH, a number and 64 lower-case hex digits")
	}
	o.Expect = &h
	return o, nil
}

func verifyContext(ctx context.Context) (context.Context, context.CancelFunc) {
	end := time.Now().Add(maxVerify)
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		end = d.Add(-min(verifyMargin, time.Until(d)/2))
	}
	return context.WithDeadline(ctx, end)
}

func wireReport(rep audit.Report) client.Verification {
	v := client.Verification{
		OK: rep.OK(), Head: rep.Head.String(), Entries: rep.Entries, FindingCount: rep.FindingCount,
		Backlog: rep.Backlog.Count, Oldest: timePtr(rep.Backlog.Oldest), Milliseconds: rep.Duration.Milliseconds(),
	}
	for _, f := range rep.Findings {
		v.Findings = append(v.Findings, client.Finding{Kind: string(f.Kind), Seq: f.Seq, Detail: f.Detail})
	}
	return v
}
