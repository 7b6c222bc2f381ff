package crl

import (
	"iter"
	"sync/atomic"

	"github.com/secsy-pki/secsy-pki/ca"
)

// A Status is what an operator sees of a series.
type Status struct {
	Series
	Issuer *ca.Issuer
	Path   string // where it is served
	URL    string // what certificates call it; "" if they don't
	// CRL is the one being served, Number 0 if there is none yet, and SHA256 what
	// it is to hash to.
	CRL    CRL
	SHA256 [32]byte
	// Building says that one is being built here now, and how many entries of it
	// have been read.
	Building bool
	Read     int
	Trouble  string // why the last attempt failed; "" if it did not
}

// Status lists all series, those of one issuer together, a delta after what it
// is a delta to.
func (s *Server) Status() []Status {
	var list []Status
	for _, sh := range s.all() {
		list = append(list, sh.status(false))
		if sh.plan.Delta > 0 {
			list = append(list, sh.status(true))
		}
	}
	return list
}

func (sh *shelf) status(delta bool) Status {
	st := Status{Series: Series{sh.scope, delta}, Issuer: sh.issuer, URL: sh.url, Path: "/crl/" + sh.scope.String() + ".crl"}
	if delta {
		st.URL, st.Path = ca.DeltaURL(sh.url), "/crl/"+sh.scope.String()+"/delta.crl"
	}
	if l := sh.slot(delta).Load(); l != nil {
		st.CRL, st.SHA256 = l.CRL, l.sum
	}
	if w := sh.work.Load(); w != nil && w.delta == delta {
		st.Building, st.Read = true, int(w.read.Load())
	}
	if why := sh.why.Load(); why != nil {
		st.Trouble = *why
	}
	return st
}

// Rebuild has all complete CRLs of issuer be built soon, whether they are due or
// not. What is served meanwhile stays.
func (s *Server) Rebuild(issuer ca.IssuerID) {
	for _, sh := range s.all() {
		if sh.scope.Issuer == issuer {
			sh.wanted.Store(true)
		}
	}
	s.Trigger(issuer)
}

// A work is a CRL in the making.
type work struct {
	delta bool
	read  atomic.Int64 // entries
}

// counted counts entries as they are read.
func (w *work) counted(entries iter.Seq2[Entry, error]) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		for e, err := range entries {
			w.read.Add(1)
			if !yield(e, err) {
				return
			}
		}
	}
}
