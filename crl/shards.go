package crl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/secsy-pki/secsy-pki/ca"
)

// A Shard is a part of an issuer's list, of which certificates that are valid
// may say that they are on it.
type Shard struct {
	ca.CRLShard
	NeededUntil time.Time // by then the last such certificate has expired
}

// Shards keeps which there are. It is safe for concurrent use.
type Shards interface {
	// Shards lists those of an issuer by their numbers, needed or not.
	Shards(ctx context.Context, issuer ca.IssuerID) ([]Shard, error)
	// NeedShards sees to it that each of list is there, at its address, and
	// counts as needed until then at least; ErrShardTaken if one is at another
	// address. It is durable before any certificate names one.
	NeedShards(ctx context.Context, issuer ca.IssuerID, list []ca.CRLShard, until time.Time) error
}

// ErrShardTaken says that a shard has another address.
var ErrShardTaken = errors.New("crl: the shard has another address")

// shardTries bounds how often replicas that start together get in each other's way.
const shardTries = 10

// OpenShards returns n shards at addresses below that of the complete list, for
// certificates that expire by until. A shard keeps its address for ever: when
// the complete list has moved, there are new ones, and the old ones stay where
// their certificates say.
func OpenShards(ctx context.Context, st Shards, issuer ca.IssuerID, n int, listURL string, until time.Time) ([]ca.CRLShard, error) {
	for try := 1; ; try++ {
		have, err := st.Shards(ctx, issuer)
		if err != nil {
			return nil, err
		}
		list := choose(have, n, listURL)
		err = st.NeedShards(ctx, issuer, list, until)
		if err == nil {
			return list, nil
		}
		if !errors.Is(err, ErrShardTaken) || try == shardTries {
			return nil, fmt.Errorf("opening CRL shards: %w", err)
		}
	}
}

// choose takes the first n numbers that are free, or have the right address.
func choose(have []Shard, n int, listURL string) []ca.CRLShard {
	at := make(map[int]string, len(have))
	for _, s := range have {
		at[s.ID] = s.URL
	}
	list := make([]ca.CRLShard, 0, n)
	for id := 1; len(list) < n; id++ {
		url := shardURL(listURL, id)
		if was, ok := at[id]; !ok || was == url {
			list = append(list, ca.CRLShard{ID: id, URL: url})
		}
	}
	return list
}

// NeededUntil is until when a shard is needed that certificates may name which
// are issued at now and live so long. Who issues them says it again long before
// shardMargin is over.
func NeededUntil(now time.Time, life time.Duration) time.Time { return now.Add(life + shardMargin) }

const (
	shardMargin = 24 * time.Hour
	shardEvery  = time.Hour
)

func shardURL(listURL string, id int) string {
	return strings.TrimSuffix(listURL, ".crl") + "/" + strconv.Itoa(id) + ".crl"
}
