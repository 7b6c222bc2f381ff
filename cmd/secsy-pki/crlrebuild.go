package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

// rebuildPoll is how often it is looked whether CRLs are there.
const rebuildPoll = 500 * time.Millisecond

func newCRLRebuild(conn *connection) *cobra.Command {
	var (
		issuer string
		wait   time.Duration
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "Have the complete CRLs be built now, whether they are due or not",
		Example: `  secsy-pki crl rebuild
  secsy-pki crl rebuild --issuer main --wait 0`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if wait < 0 {
				return usagef(cmd, "--wait %s: want 0 or more", wait)
			}
			return conn.ask(cmd.Context(), patience+wait, func(ctx context.Context, cl *client.Client) error {
				list, err := cl.RebuildCRLs(ctx, issuer)
				if err != nil {
					return err
				}
				if wait == 0 {
					return nil
				}
				r := rebuild{cmd: cmd, cl: cl, before: list}
				ctx, cancel := context.WithTimeout(ctx, wait)
				defer cancel()
				list, err = r.await(ctx)
				if err != nil {
					return err
				}
				return printCRLs(cmd, list, asJSON)
			})
		},
	}
	cmd.Flags().StringVar(&issuer, "issuer", "", "only those of this issuer, by `NAME` or id")
	cmd.Flags().DurationVar(&wait, "wait", 10*time.Minute, "how `LONG` to wait until they are served; 0: not at all")
	jsonFlag(cmd, &asJSON)
	noFileCompletion(cmd, "issuer", "wait")
	return cmd
}

// A rebuild is waited for until every number has grown.
type rebuild struct {
	cmd    *cobra.Command
	cl     *client.Client
	before []client.CRLStatus
	said   map[string]bool // troubles, by path
}

func (r *rebuild) await(ctx context.Context) ([]client.CRLStatus, error) {
	r.said = map[string]bool{}
	p := progress{w: r.cmd.ErrOrStderr(), doing: "building, entries", began: time.Now()}
	for _, b := range r.before {
		p.total += b.Entries
		r.said[b.Path+b.Trouble] = true
	}
	defer p.end()
	for {
		now, err := r.cl.ListCRLs(ctx)
		if err != nil && ctx.Err() == nil {
			return nil, err
		}
		done, missing, read := r.compare(now)
		if len(missing) == 0 && err == nil {
			return done, nil
		}
		p.total = max(p.total, read)
		p.add(read - p.done)
		select {
		case <-ctx.Done():
			return nil, r.late(missing)
		case <-time.After(rebuildPoll):
		}
	}
}

// compare says which of the CRLs are there, which are not, and how many entries
// were read of all of them.
func (r *rebuild) compare(now []client.CRLStatus) (done, missing []client.CRLStatus, read int) {
	current := map[string]client.CRLStatus{}
	for _, c := range now {
		current[c.Path] = c
	}
	for _, b := range r.before {
		c, ok := current[b.Path]
		switch {
		case !ok: // a shard that went meanwhile
		case c.Number > b.Number:
			done = append(done, c)
			read += c.Entries
		default:
			missing = append(missing, c)
			read += c.Read
			r.tell(c)
		}
	}
	return done, missing, read
}

// tell says each trouble once.
func (r *rebuild) tell(c client.CRLStatus) {
	if c.Trouble != "" && !r.said[c.Path+c.Trouble] {
		r.said[c.Path+c.Trouble] = true
		warn(r.cmd.ErrOrStderr(), "building %s, which is tried until it succeeds: %s", c.Path, safe(c.Trouble))
	}
}

func (r *rebuild) late(missing []client.CRLStatus) error {
	var paths []string
	for _, c := range missing {
		paths = append(paths, c.Path)
	}
	return fmt.Errorf("not there yet: %s; the server goes on trying, see \"secsy-pki crl list\"", strings.Join(paths, ", "))
}
