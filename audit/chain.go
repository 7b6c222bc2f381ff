package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"time"
)

// TimeFormat is how an entry's time is written where it is hashed or shown:
// RFC 3339 in UTC with six digits of fraction, always.
const TimeFormat = "2006-01-02T15:04:05.000000Z"

// ZeroHash stands before the first entry.
const ZeroHash = "0000000000000000000000000000000000000000000000000000000000000000"

// prefix keeps these hashes apart from all others, and from a later version's.
const prefix = "secsy-pki audit entry v1\n"

// A Record is an entry with its place in the chain. Hash is lower-case hex as
// the store has it, which a damaged store may have otherwise.
type Record struct {
	Entry
	Seq  int64
	Hash string
}

// A Head names a place in the chain: the entry there and all before it. The
// zero Seq with ZeroHash is the chain without entries.
type Head struct {
	Seq  int64
	Hash string
}

// String writes h as ParseHead reads it.
func (h Head) String() string { return strconv.FormatInt(h.Seq, 10) + ":" + h.Hash }

// ParseHead reads SEQ:HASH.
func ParseHead(s string) (Head, error) {
	seq, sum, _ := strings.Cut(s, ":")
	n, err := strconv.ParseInt(seq, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != seq {
		return Head{}, fmt.Errorf("parsing chain head: %.80q does not begin with a sequence number and a colon", s)
	}
	if b, err := hex.DecodeString(sum); err != nil || len(b) != sha256.Size || strings.ToLower(sum) != sum {
		return Head{}, fmt.Errorf("parsing chain head: %.80q does not end with 64 lower-case hex digits", s)
	}
	return Head{Seq: n, Hash: sum}, nil
}

// Next gives e the place after h.
func (h Head) Next(e Entry) Record {
	seq := h.Seq + 1
	return Record{Entry: e, Seq: seq, Hash: link(h.Hash, seq, e)}
}

// Head is the place of r itself.
func (r Record) Head() Head { return Head{Seq: r.Seq, Hash: r.Hash} }

// link hashes the prefix and then, each as a netstring, the hash before and
// every field. docs/audit.md promises this form to third parties.
func link(prev string, seq int64, e Entry) string {
	h := sha256.New()
	h.Write([]byte(prefix))
	netstring(h, prev)
	netstring(h, strconv.FormatInt(seq, 10))
	netstring(h, e.ID)
	netstring(h, e.At.UTC().Format(TimeFormat))
	netstring(h, e.Actor)
	netstring(h, e.Action)
	netstring(h, e.Object)
	netstring(h, e.Remote)
	netstring(h, e.Request)
	netstring(h, string(e.Detail))
	return hex.EncodeToString(h.Sum(nil))
}

// netstring writes LENGTH:BYTES, so that no two lists of fields look alike.
func netstring(h hash.Hash, s string) {
	h.Write(strconv.AppendInt(make([]byte, 0, 20), int64(len(s)), 10))
	h.Write([]byte(":" + s + ","))
}

// A Backlog is what waits for a place in the chain.
type Backlog struct {
	Count  int64
	Oldest time.Time // zero when Count is 0
}

// An End is how the chain ends by two accounts that must agree, both of one
// moment: the head, and the highest sequence number that any entry has (0: none).
type End struct {
	Head
	Last int64
}

// ErrHeadMoved says that another sequencer extended the chain first.
var ErrHeadMoved = errors.New("audit: chain head moved")

// A Log is what a sequencer asks of the store. It is safe for concurrent use,
// by other replicas too.
type Log interface {
	Head(ctx context.Context) (Head, error)
	// Pending lists entries without a place, by time and id.
	Pending(ctx context.Context, limit int) ([]Entry, error)
	Backlog(ctx context.Context) (Backlog, error)
	// Extend gives recs their places and moves the head from from to the last
	// of them, durably and all or nothing. It returns an error matching
	// ErrHeadMoved if the head is not from.
	Extend(ctx context.Context, from Head, recs []Record) error
}

// A Reader is what a verifier asks of the store.
type Reader interface {
	End(ctx context.Context) (End, error)
	Backlog(ctx context.Context) (Backlog, error)
	// Records lists entries with a place greater than after, in their order.
	Records(ctx context.Context, after int64, limit int) ([]Record, error)
}
