package acme

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"slices"
	"strconv"
)

// certificate answers with a chain, end entity first (RFC 8555 §7.4.2). Those
// to other roots are at the certificate's URL, a slash and their number.
func (s *Server) certificate(w http.ResponseWriter, r *http.Request) error {
	c, err := s.claimByAccount(r, s.step())
	if err != nil {
		return err
	}
	if err := mustBeEmpty(c.req); err != nil {
		return err
	}
	req, rec, err := own(s, r, c, s.store.CertificateBy)
	if err != nil {
		return err
	}
	id, number := pathValue(r, "id"), pathValue(r, "chain")
	issuer, ok := s.ca.Issuer(rec.Issuer)
	if !ok {
		return fmt.Errorf("certificate %s: issuer %s is not configured", rec.ID, rec.Issuer)
	}
	chains := issuer.Chains()
	preferred := preferredChain(chains, s.cfg.PreferredChains[rec.Profile])
	n := preferred
	if number != "" {
		if n = chainNumber(number, len(chains)); n < 0 {
			return s.notTheirs(r.Context(), req)
		}
	}
	out := pemOf(rec.DER)
	for _, c := range chains[n] {
		out = append(out, pemOf(c.Raw)...)
	}
	h := w.Header()
	for i := range chains {
		if i != n {
			h.Add("Link", link(s.chainURL(id, i, preferred), "alternate"))
		}
	}
	h.Set("Content-Type", "application/pem-certificate-chain")
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(out)
	return nil
}

// chainURL is where one chain is: the preferred one at the certificate's own URL.
func (s *Server) chainURL(id string, n, preferred int) string {
	if n == preferred {
		return s.url("cert", id)
	}
	return s.url("cert", id, strconv.Itoa(n))
}

// preferredChain is the number of the first chain to a root of that common name;
// without one, 0.
func preferredChain(chains [][]*x509.Certificate, root string) int {
	if root == "" {
		return 0
	}
	return max(0, slices.IndexFunc(chains, func(c []*x509.Certificate) bool { return c[len(c)-1].Issuer.CommonName == root }))
}

// chainNumber reads the number of one of n chains, in its one spelling: -1 for none.
func chainNumber(text string, n int) int {
	i, err := strconv.Atoi(text)
	if err != nil || i < 0 || i >= n || strconv.Itoa(i) != text {
		return -1
	}
	return i
}

func pemOf(der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}) }
