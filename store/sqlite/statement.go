package sqlite

import (
	"strings"
	"sync"
	"sync/atomic"
)

// maxRewritten bounds how many statements are remembered. Statements are
// constants of the program, so this is reached only by ones made of parts.
const maxRewritten = 1024

// A rewriter turns $1 into +?1 and remembers it. SQLite takes $1 for the name of
// a parameter and numbers names in the order in which they appear, so that
// "VALUES ($2, $1)" would bind the wrong way round.
//
// The plus does nothing but hide the parameter from the planner. In "LIMIT ?1",
// or in "b = ?1" that the index leaves over, it looks at the value that is
// bound, and then compiles the statement again for each next one, which takes
// several times as long as running it.
type rewriter struct {
	known sync.Map // of string to string
	size  atomic.Int64
}

func (r *rewriter) rewrite(q string) string {
	if done, ok := r.known.Load(q); ok {
		return done.(string)
	}
	done := numbered(q)
	if r.size.Load() < maxRewritten {
		if _, there := r.known.LoadOrStore(q, done); !there {
			r.size.Add(1)
		}
	}
	return done
}

// numbered replaces the $ of $1 … outside of literals, quoted names and comments.
func numbered(q string) string {
	var out strings.Builder
	done := 0 // octets of q that are in out
	for i := 0; i < len(q); i++ {
		switch {
		case q[i] == '\'' || q[i] == '"':
			i += skip(q[i+1:], q[i:i+1])
		case strings.HasPrefix(q[i:], "--"):
			i += skip(q[i+1:], "\n")
		case strings.HasPrefix(q[i:], "/*"):
			i += 1 + skip(q[i+2:], "*/")
		case q[i] == '$' && i+1 < len(q) && '0' <= q[i+1] && q[i+1] <= '9':
			out.WriteString(q[done:i])
			out.WriteString("+?")
			done = i + 1
		}
	}
	out.WriteString(q[done:])
	return out.String()
}

// skip returns how long s is up to and with end, or all of it.
func skip(s, end string) int {
	n := strings.Index(s, end)
	if n < 0 {
		return len(s)
	}
	return n + len(end)
}
