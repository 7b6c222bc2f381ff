package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// progress says how far a long command is: in place on a terminal, and in a line
// from time to time elsewhere.
type progress struct {
	w           io.Writer
	doing       string
	total, done int
	began, said time.Time
	shown       bool
}

const (
	progressOnTerminal = 200 * time.Millisecond
	progressElsewhere  = 10 * time.Second
)

func (p *progress) add(n int) {
	p.done += n
	f, isFile := p.w.(*os.File)
	terminal := isFile && isTerminal(f)
	every := progressElsewhere
	if terminal {
		every = progressOnTerminal
	}
	now := time.Now()
	if p.said.IsZero() {
		p.said = p.began
	}
	if now.Sub(p.said) < every {
		return
	}
	p.said = now
	line := fmt.Sprintf("%s %d of %d", p.doing, p.done, p.total)
	if p.done > 0 {
		left := time.Duration(float64(now.Sub(p.began)) / float64(p.done) * float64(p.total-p.done))
		line += fmt.Sprintf(", %s left", left.Round(time.Second))
	}
	if !terminal {
		warn(p.w, "%s", line)
		return
	}
	p.shown = true
	_, _ = fmt.Fprintf(p.w, "\r%-*s", 60, line)
}

func (p *progress) end() {
	if p.shown {
		_, _ = fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", 60))
	}
}
