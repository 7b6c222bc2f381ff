package admin_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/audit"
)

// script runs docs/verify-audit.py, which needs nothing but Python's own library.
func script(t *testing.T, list []client.AuditEntry, heads ...string) (string, error) {
	t.Helper()
	var in bytes.Buffer
	enc := json.NewEncoder(&in)
	for _, e := range list {
		if err := enc.Encode(e); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "python3", append([]string{"../docs/verify-audit.py"}, heads...)...)
	cmd.Stdin = &in
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func TestThirdPartysScriptAgreesWithUs(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	h.audit.Append(
		audit.New("system", "crl.issued", "crl/1", nil),
		audit.New("acme:account/<ü>\u2028", "certificate.issued", "a\x00b\xff", map[string]any{"html": "<&>", "u": "\u2029é😀\x00", "n": 1e21}),
		audit.New("operator:uid/0", "certificate.revoked", "certificate/01", map[string]int{"reason": 1}))
	s, err := audit.NewSequencer(audit.SequencerConfig{Log: h.audit, Logger: discard})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var list []client.AuditEntry
	for e, err := range h.client.AllAudit(t.Context(), client.AuditFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, e)
	}
	v, err := h.client.VerifyAudit(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := script(t, list, v.Head, "0:"+audit.ZeroHash); err != nil || out != "whole: "+v.Head {
		t.Errorf("%s, %v; we say %s", out, err, v.Head)
	}
	if out, err := script(t, list[:2], v.Head); err == nil || !strings.Contains(out, v.Head) {
		t.Errorf("a cut chain: %s, %v", out, err)
	}
	damaged := slices.Clone(list)
	damaged[1].Detail += " "
	for name, l := range map[string][]client.AuditEntry{"a changed entry": damaged, "a dropped entry": slices.Delete(slices.Clone(list), 1, 2)} {
		if out, err := script(t, l); err == nil || !strings.Contains(out, "broken at entry 2") {
			t.Errorf("%s: %s, %v", name, out, err)
		}
	}
}
