package main

import (
	"time"

	"github.com/spf13/cobra"
)

// pageSize is the largest page that the server gives.
const pageSize = 500

func limitFlag(cmd *cobra.Command, limit *int) {
	cmd.Flags().IntVar(limit, "limit", 50, "print at most this `MANY`; 0: all")
	noFileCompletion(cmd, "limit")
}

func checkList(cmd *cobra.Command, limit int) error {
	if limit < 0 {
		return usagef(cmd, "--limit %d: want 0 or more", limit)
	}
	return nil
}

// patienceFor is longer for a list without end.
func patienceFor(limit int) time.Duration {
	if limit == 0 || limit > pageSize {
		return verifyPatience
	}
	return patience
}

// A lister goes through the pages of a list up to a limit.
type lister struct {
	limit int // 0: none
	cmd   *cobra.Command

	got, pages int
	last       bool
}

// more reports whether another page is wanted.
func (l *lister) more() bool { return !l.last }

// size is how much of the next page is wanted.
func (l *lister) size() int {
	if l.limit == 0 {
		return pageSize
	}
	return min(l.limit-l.got, pageSize)
}

// took counts a page and reports whether it was the first. A list that was cut
// says so, away from the data.
func (l *lister) took(n int, next string) (first bool) {
	l.got += n
	l.pages++
	full := l.limit > 0 && l.got >= l.limit
	l.last = next == "" || full
	if full && next != "" {
		warn(l.cmd.ErrOrStderr(), "there are more than these %d: see --limit", l.got)
	}
	return l.pages == 1
}
