package acme

import (
	"net/http"
	"slices"
)

type directoryMeta struct {
	TermsOfService string            `json:"termsOfService,omitempty"`
	Website        string            `json:"website,omitempty"`
	CAAIdentities  []string          `json:"caaIdentities,omitempty"`
	Profiles       map[string]string `json:"profiles,omitempty"`
	Bound          bool              `json:"externalAccountRequired,omitempty"` // RFC 8555 §7.3.4
	Subdomains     bool              `json:"subdomainAuthAllowed,omitempty"`    // RFC 9444
	OnionCAA       bool              `json:"inBandOnionCAARequired,omitempty"`  // RFC 9799 §6.4.1
	AutoRenewal    *autoRenewalMeta  `json:"auto-renewal,omitempty"`            // RFC 8739 §3.2
}

// directory lists what there is (RFC 8555 §7.1.1).
func (s *Server) directory(w http.ResponseWriter, _ *http.Request) error {
	newAuthz := ""
	if s.cfg.PreAuthorization {
		newAuthz = s.url("new-authz")
	}
	return writeJSON(w, http.StatusOK, struct {
		NewNonce    string        `json:"newNonce"`
		NewAccount  string        `json:"newAccount"`
		NewOrder    string        `json:"newOrder"`
		NewAuthz    string        `json:"newAuthz,omitempty"`
		RevokeCert  string        `json:"revokeCert"`
		KeyChange   string        `json:"keyChange"`
		RenewalInfo string        `json:"renewalInfo"`
		Meta        directoryMeta `json:"meta"`
	}{
		s.url("new-nonce"), s.url("new-account"), s.url("new-order"), newAuthz, s.url("revoke-cert"), s.url("key-change"), s.url(renewalInfoPath),
		directoryMeta{
			s.cfg.TermsOfService, s.cfg.Website, s.cfg.CAAIdentities, s.cfg.Profiles, s.cfg.Binding == BindingRequired, s.cfg.Subdomains,
			s.cfg.CAA != nil && slices.Contains(s.cfg.Challenges, OnionCSR01), s.autoRenewalMeta(),
		},
	})
}

type autoRenewalMeta struct {
	MinLifetime int64 `json:"min-lifetime"`
	MaxDuration int64 `json:"max-duration"`
	AllowGet    bool  `json:"allow-certificate-get,omitempty"`
}

func (s *Server) autoRenewalMeta() *autoRenewalMeta {
	c := s.cfg.Star
	if !c.Enabled {
		return nil
	}
	return &autoRenewalMeta{int64(c.MinLifetime.Seconds()), int64(c.MaxDuration.Seconds()), c.AllowGet}
}

// newNonce answers with nothing but the nonce, which is in every answer's
// header (RFC 8555 §7.2).
func (s *Server) newNonce(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodHead {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	w.WriteHeader(http.StatusOK)
	return nil
}
