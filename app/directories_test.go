package app

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

// Each directory is served at its place, with what is its own, and operators
// make keys for those that bind accounts.
func TestDirectoriesAreServedWhereTheConfigurationSays(t *testing.T) {
	t.Parallel()
	dir := newCA(t)
	edit(t, dir, "acme:\n", `acme:
  directories:
    - name: devices
      path: things
      profiles: [{name: tls-server, description: for things}]
      external_account_binding: required
      website: https://devices.example
      challenges: [dns-01]
      permitted_dns: [devices.example]
    - name: plain
`)
	cfg := load(t, dir)
	r := run(t, dir)
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // which certificate it is, other tests ask
	t.Cleanup(tr.CloseIdleConnections)
	hc := &http.Client{Transport: tr}
	for path, want := range map[string]struct {
		account string
		meta    string
	}{
		"/acme/directory":          {"https://localhost/acme/new-account", `{}`},
		"/acme/d/things/directory": {"https://localhost/acme/d/things/new-account", `{"website":"https://devices.example","profiles":{"tls-server":"for things"},"externalAccountRequired":true}`},
		"/acme/d/plain/directory":  {"https://localhost/acme/d/plain/new-account", `{}`},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.at.HTTPS.String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := hc.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		var got struct {
			NewAccount string          `json:"newAccount"`
			Meta       json.RawMessage `json:"meta"`
		}
		if err != nil || json.Unmarshal(b, &got) != nil || got.NewAccount != want.account || string(got.Meta) != want.meta {
			t.Errorf("%s: %d %s, %v; want %+v", path, resp.StatusCode, b, err, want)
		}
	}
	cl := client.New(string(cfg.Listen.Operator.Socket))
	t.Cleanup(cl.Close)
	if k, err := cl.CreateExternalKey(t.Context(), client.NewExternalKey{Directory: "devices", MaxUses: 1, Profiles: []string{"tls-server"}}); err != nil || k.Directory != "devices" {
		t.Errorf("%+v, %v", k, err)
	}
	for _, name := range []string{"", "plain"} {
		if _, err := cl.CreateExternalKey(t.Context(), client.NewExternalKey{Directory: name, MaxUses: 1}); err == nil || !strings.Contains(err.Error(), "external_account_binding") {
			t.Errorf("directory %q: %v", name, err)
		}
	}
}
