package admin_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/admin"
	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/crl"
)

// A shelf serves one CRL and notes whose are to be rebuilt.
type shelf struct {
	list    []crl.Status
	rebuilt []ca.IssuerID
}

func (s *shelf) Status() []crl.Status       { return s.list }
func (s *shelf) Rebuild(issuer ca.IssuerID) { s.rebuilt = append(s.rebuilt, issuer) }
func (s *shelf) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/crl/a/7.crl" {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, "DER")
	})
}

func openWithCRLs(t *testing.T) (*house, *shelf) {
	t.Helper()
	s := &shelf{}
	h := open(t, func(c *admin.Config) { c.CRLServer = s })
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	scope := crl.Scope{Issuer: h.issuer.ID, Shard: 7}
	s.list = []crl.Status{
		{
			Series: crl.Series{Scope: scope}, Issuer: h.issuer, Path: "/crl/a/7.crl", URL: "http://pki.test/crl/a/7.crl",
			CRL: crl.CRL{Scope: scope, Number: 5, ThisUpdate: at, NextUpdate: at.Add(time.Hour), Entries: 3, Octets: 400}, SHA256: [32]byte{0xab},
			Building: true, Read: 2, Trouble: "the device is away",
		},
		{Series: crl.Series{Scope: scope, Delta: true}, Issuer: h.issuer, Path: "/crl/a/7/delta.crl"},
	}
	return h, s
}

func TestCRLsAreListedAsTheyAreServed(t *testing.T) {
	t.Parallel()
	h, _ := openWithCRLs(t)
	list, err := h.client.ListCRLs(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	c := list[0]
	if c.Issuer != string(h.issuer.ID) || c.IssuerName != "main" || c.Shard != 7 || c.Delta || c.Number != 5 || c.Entries != 3 || c.Octets != 400 ||
		c.Path != "/crl/a/7.crl" || c.URL != "http://pki.test/crl/a/7.crl" || !strings.HasPrefix(c.SHA256, "ab00") || len(c.SHA256) != 64 ||
		!c.NextUpdate.Equal(c.ThisUpdate.Add(time.Hour)) || !c.Building || c.Read != 2 || c.Trouble == "" {
		t.Errorf("%+v", c)
	}
	if c := list[1]; !c.Delta || c.Number != 0 || c.ThisUpdate != nil || c.NextUpdate != nil || c.SHA256 != "" {
		t.Errorf("that is not there yet: %+v", c)
	}
	var der bytes.Buffer
	if err := h.client.CRL(t.Context(), c.Path, &der); err != nil || der.String() != "DER" {
		t.Errorf("%q, %v", der.String(), err)
	}
	if err := h.client.CRL(t.Context(), "/crl/b.crl", &der); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("what is not there: %v", err)
	}
}

func TestRebuildIsForOneIssuerOrAll(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "main", "id"} {
		h, s := openWithCRLs(t)
		if name == "id" {
			name = string(h.issuer.ID)
		}
		list, err := h.client.RebuildCRLs(t.Context(), name)
		if err != nil || len(list) != 1 || list[0].Number != 5 || len(s.rebuilt) != 1 || s.rebuilt[0] != h.issuer.ID {
			t.Errorf("%q: %+v, %v; rebuilt %v", name, list, err, s.rebuilt)
		}
	}
	h, s := openWithCRLs(t)
	_, err := h.client.RebuildCRLs(t.Context(), "other")
	wantCode(t, err, http.StatusNotFound, client.CodeNotFound)
	if len(s.rebuilt) != 0 {
		t.Errorf("rebuilt %v", s.rebuilt)
	}
}
