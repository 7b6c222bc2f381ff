package acme

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
)

// shared is what the directories of one process have together: the turns at
// validating, issuing and revoking, and with them all bounds on work. Each
// directory works off its own orders and validations by it.
type shared struct {
	revokes *gate.Gate // turns to read and verify revocations
	noTurns missedTurns

	issuances      *gate.Gate
	underway       tally // issuances that have begun
	backlog        *backlog
	recovery       *crew // for orders that were put off
	lull           *lull
	outage         outage
	validationGate *gate.Gate
	validators     *crew

	mu   sync.Mutex // guards what follows
	list []*Server  // the first one, and those beside it
}

// join adds a server to those that the first one runs.
func (h *shared) join(s *Server) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.list = append(h.list, s)
}

// servers are all that share.
func (h *shared) servers() []*Server {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.list)
}

// Orphans finds what belongs to directories that nobody serves.
type Orphans interface {
	// ProcessingOrders counts the orders that are accepted and not issued yet, and
	// those with auto-renewal that go on, by their directory.
	ProcessingOrders(ctx context.Context) (map[string]int, error)
}

// orphansEvery is how often it is told of orders that wait for a directory.
const orphansEvery = time.Hour

// tellOfOrphans says which accepted orders nobody works on, as their directory
// is not in the configuration: they wait until it is again.
func (s *Server) tellOfOrphans(ctx context.Context) (bool, error) {
	counts, err := s.store.ProcessingOrders(ctx)
	if err != nil {
		return false, err
	}
	for _, d := range s.servers() {
		delete(counts, d.cfg.Directory)
	}
	for name, n := range counts {
		s.log.WarnContext(ctx, "orders that were accepted are not issued or not renewed: their directory is not served any more; they go on when acme.directories has it again",
			slog.String("directory", name), slog.Int("orders", n))
	}
	return false, nil
}
