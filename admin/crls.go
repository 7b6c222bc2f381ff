package admin

import (
	"encoding/hex"
	"net/http"

	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/crl"
)

// A CRLServer is what builds and serves CRLs here.
type CRLServer interface {
	// Status lists all series, those of one issuer together.
	Status() []crl.Status
	// Rebuild has an issuer's complete CRLs be built soon.
	Rebuild(issuer ca.IssuerID)
	// Handler serves each at its path.
	Handler() http.Handler
}

func (s *Server) listCRLs(w http.ResponseWriter, r *http.Request) error {
	if err := noQuery(r); err != nil {
		return err
	}
	return answer(w, s.crlList(func(crl.Status) bool { return true }))
}

func (s *Server) rebuildCRLs(w http.ResponseWriter, r *http.Request) error {
	var name string
	if err := readBody(w, r, map[string]any{"issuer": &name}); err != nil {
		return err
	}
	if id := s.issuerOf(name); name != "" && !s.knowsIssuer(id) {
		return problemf(http.StatusNotFound, client.CodeNotFound, "no issuer has the name or id %.100q", name)
	}
	wanted := func(id ca.IssuerID) bool { return name == "" || id == s.issuerOf(name) }
	// As they are before: whoever waits looks for higher numbers.
	list := s.crlList(func(st crl.Status) bool { return wanted(st.Issuer.ID) && !st.Delta })
	for _, i := range s.issuers {
		if wanted(i.ID) {
			s.crlServer.Rebuild(i.ID)
		}
	}
	return answer(w, list)
}

func (s *Server) crlList(which func(crl.Status) bool) client.CRLList {
	list := client.CRLList{CRLs: []client.CRLStatus{}}
	for _, st := range s.crlServer.Status() {
		if which(st) {
			list.CRLs = append(list.CRLs, wireCRL(st))
		}
	}
	return list
}

func wireCRL(st crl.Status) client.CRLStatus {
	wire := client.CRLStatus{
		Issuer: string(st.Issuer.ID), IssuerName: st.Issuer.Name, Shard: st.Shard, Delta: st.Delta, Path: st.Path, URL: st.URL,
		Building: st.Building, Read: st.Read, Trouble: st.Trouble,
	}
	if c := st.CRL; c.Number != 0 {
		wire.Number, wire.Base, wire.Entries, wire.Octets = int64(c.Number), int64(c.Base), c.Entries, c.Octets
		wire.ThisUpdate, wire.NextUpdate = timePtr(c.ThisUpdate), timePtr(c.NextUpdate)
		wire.SHA256 = hex.EncodeToString(st.SHA256[:])
	}
	return wire
}

// crlFile serves a CRL as it is served to everybody.
func (s *Server) crlFile(w http.ResponseWriter, r *http.Request) error {
	r2 := r.Clone(r.Context())
	r2.URL.Path = "/" + r.PathValue("path")
	s.crlServer.Handler().ServeHTTP(w, r2)
	return nil
}
