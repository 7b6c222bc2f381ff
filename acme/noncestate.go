package acme

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"
)

// NonceStates keeps, while a server is stopped, which of its nonces are out.
type NonceStates interface {
	// SaveNonces replaces the state of an instance of a directory.
	SaveNonces(ctx context.Context, st NonceState) error
	// TakeNonces removes the state and returns it, once whoever asks and however
	// many do: ErrNotFound for all others, and for one saved before the given time.
	TakeNonces(ctx context.Context, directory, instance string, since time.Time) (NonceState, error)
}

// A NonceState is what one instance knew of its nonces when it stopped.
type NonceState struct {
	Directory string
	Instance  string
	SavedAt   time.Time
	State     []byte
}

const (
	// nonceStateAge is the oldest state that is gone on with. No client keeps a
	// nonce for so long, and a database that was set back to a moment between a
	// stop and a start must not make nonces good that have been used since.
	nonceStateAge = time.Hour
	// nonceSaveTime is for a database that does not answer: stopping goes on.
	nonceSaveTime = 5 * time.Second
)

// TakeNonces goes on with the nonces that were out when the instance was last
// stopped: some clients never get over a badNonce. It is called before the first
// request. Without a state all nonces of before are bad, which is no error.
func (s *Server) TakeNonces(ctx context.Context) error {
	st, err := s.store.TakeNonces(ctx, s.cfg.Directory, s.cfg.Instance, s.now().Add(-nonceStateAge))
	if isNotFound(err) {
		return nil
	}
	if err == nil {
		err = s.nonces.restore(st.State)
	}
	if err != nil {
		return fmt.Errorf("taking over the nonces: %w", err)
	}
	s.log.InfoContext(ctx, "nonces given out before the restart are still good", slog.Time("stopped", st.SavedAt))
	return nil
}

// SaveNonces hands the nonces that are out on to the next start. It is called
// after the last request was answered; from then on no nonce is good here.
func (s *Server) SaveNonces(ctx context.Context) error {
	state, err := s.nonces.freeze()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), nonceSaveTime)
	defer cancel()
	return s.store.SaveNonces(ctx, NonceState{Directory: s.cfg.Directory, Instance: s.cfg.Instance, SavedAt: s.now(), State: state})
}

// The form of a state: a version, prefix, window, next, the seals (from, key),
// and then the bitmap, deflated. All numbers are big endian.
const (
	nonceStateVersion = 1
	nonceStateHead    = 1 + noncePrefix + 8 + 8 + 1
	nonceStateSeal    = 8 + 32
	maxCounter        = 1 << 62 // which nobody lives to see
)

// freeze returns the state, and takes no nonce back from then on: one that was
// redeemed after it would be good again for whoever goes on with the state.
func (n *nonces) freeze() ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.frozen = true
	var b bytes.Buffer
	b.WriteByte(nonceStateVersion)
	b.Write(n.prefix[:])
	b.Write(binary.BigEndian.AppendUint64(nil, n.window))
	b.Write(binary.BigEndian.AppendUint64(nil, n.next))
	b.WriteByte(byte(len(n.seals)))
	for _, s := range n.seals {
		b.Write(binary.BigEndian.AppendUint64(nil, s.from))
		b.Write(s.key[:])
	}
	w, err := flate.NewWriter(&b, flate.BestSpeed)
	if err == nil {
		err = binary.Write(w, binary.BigEndian, n.out)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("encoding the nonces: %w", err)
	}
	return b.Bytes(), nil
}

var errNonceState = errors.New("acme: not a state of nonces of this version")

// restore goes on with a state, in place of what n was. New nonces are sealed
// with a new key, so whoever has seen the state can do nothing with it but use
// up what was out.
func (n *nonces) restore(state []byte) error {
	old, err := n.read(state)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.prefix, n.next, n.out, n.seals = old.prefix, old.next, old.out, old.seals
	return n.changeKeyLocked()
}

func (n *nonces) read(b []byte) (*nonces, error) {
	if len(b) < nonceStateHead || b[0] != nonceStateVersion || binary.BigEndian.Uint64(b[1+noncePrefix:]) != n.window {
		return nil, errNonceState
	}
	old := &nonces{out: make([]uint64, n.window/64), next: binary.BigEndian.Uint64(b[1+noncePrefix+8:])}
	if old.next > maxCounter {
		return nil, errNonceState
	}
	copy(old.prefix[:], b[1:])
	seals := int(b[nonceStateHead-1])
	if b = b[nonceStateHead:]; seals == 0 || seals > maxSeals || len(b) < seals*nonceStateSeal {
		return nil, errNonceState
	}
	for end := old.next; seals > 0; seals-- {
		s, err := newSeal([32]byte(b[8:]), binary.BigEndian.Uint64(b))
		if err != nil {
			return nil, err
		}
		if s.from > end {
			return nil, errNonceState
		}
		end, old.seals, b = s.from, append(old.seals, s), b[nonceStateSeal:]
	}
	packed := bytes.NewReader(b) // of which flate reads what it needs and no more
	r := flate.NewReader(packed)
	if err := binary.Read(r, binary.BigEndian, old.out); err != nil {
		return nil, errNonceState
	}
	if _, err := io.ReadFull(r, make([]byte, 1)); !errors.Is(err, io.EOF) || packed.Len() > 0 {
		return nil, errNonceState
	}
	return old, nil
}
