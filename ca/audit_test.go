package ca_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

// longNames are n names of the greatest length.
func longNames(n int) []ca.Identifier {
	label := strings.Repeat("a", 63)
	out := make([]ca.Identifier, 0, n)
	for i := range n {
		out = append(out, ca.Identifier{Type: ca.DNS, Value: fmt.Sprintf("%061d.%s.%s.%s", i, label, label, label)})
	}
	return out
}

func TestNoNameIsLostFromTheAuditEntryUnsaid(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 20, 100, 1000} {
		in := catest.Intent(1)
		in.Names, in.Profile, in.Requester.RequestID = longNames(n), strings.Repeat("p", 64), strings.Repeat("r", audit.MaxField)
		e := in.Intended()
		if len(e.Detail) > audit.MaxDetail {
			t.Errorf("%d names: the detail has %d octets", n, len(e.Detail))
		}
		var d struct {
			TBSHash   string          `json:"tbs_sha256"`
			Names     []ca.Identifier `json:"names"`
			Total     int             `json:"names_total"`
			NamesHash string          `json:"names_sha256"`
			Truncated *string         `json:"truncated"`
		}
		if err := json.Unmarshal(e.Detail, &d); err != nil {
			t.Fatalf("%d names: %v", n, err)
		}
		if d.Truncated != nil || d.TBSHash == "" {
			t.Errorf("%d names: the entry was cut: %.80s", n, e.Detail)
		}
		if fmt.Sprint(d.Names) != fmt.Sprint(in.Names[:len(d.Names)]) {
			t.Errorf("%d names: those listed are not the first", n)
		}
		if len(d.Names) == n {
			if d.Total != 0 || d.NamesHash != "" {
				t.Errorf("%d names are all there, and yet %d %q", n, d.Total, d.NamesHash)
			}
			continue
		}
		h := sha256.New()
		for _, id := range in.Names {
			fmt.Fprintf(h, "%s:%s\n", id.Type, id.Value)
		}
		if len(d.Names) < 20 || d.Total != n || d.NamesHash != hex.EncodeToString(h.Sum(nil)) {
			t.Errorf("%d names: %d listed, %d in all, hash %q", n, len(d.Names), d.Total, d.NamesHash)
		}
	}
}
