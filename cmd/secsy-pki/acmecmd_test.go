package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

const testID = "0123456789abcdef0123456789abcdef"

func TestEABKeyIsPrintedOnceWithAllThatAClientNeeds(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	o := newOperator(t, map[string]any{"POST /acme/external-keys": client.ExternalKey{
		KID: testID, MACKey: "c2VjcmV0", Directory: "devices", Status: "usable", MaxUses: 2, Expires: &at, DNS: []string{"example.org"}, IP: []string{"10.0.0.0/8"}, Profiles: []string{"p"},
	}})
	code, out, errs := o.do(t, "acme", "eab", "create", "--directory", "devices", "--uses", "2", "--dns", "example.org", "--ip", "10.0.0.0/8", "--profile", "p", "--comment", "web")
	want := `Key ID:     0123456789abcdef0123456789abcdef
HMAC key:   c2VjcmV0
Directory:  devices
Good for:   2 accounts
Expires:    2030-01-02 03:04:05Z
May order:  example.org 10.0.0.0/8; profiles p
`
	if code != exitOK || out != want || !strings.Contains(errs, "not shown again") {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	asked := <-o.asked
	if want := `{"directory":"devices","comment":"web","dns":["example.org"],"ip":["10.0.0.0/8"],"profiles":["p"],"max_uses":2}`; !strings.HasSuffix(asked, want) {
		t.Errorf("asked %s, want %s", asked, want)
	}
	code, out, errs = o.do(t, "acme", "eab", "create", "--valid-for", "30d", "--json")
	var k client.ExternalKey
	if err := json.Unmarshal([]byte(out), &k); code != exitOK || errs != "" || err != nil || k.MACKey != "c2VjcmV0" {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	var sent client.NewExternalKey
	if err := json.Unmarshal([]byte(strings.TrimPrefix(<-o.asked, "POST /acme/external-keys ")), &sent); err != nil || sent.MaxUses != 1 || sent.Expires == nil || time.Until(*sent.Expires) < 29*24*time.Hour {
		t.Errorf("sent %+v, %v", sent, err)
	}
	for _, args := range [][]string{{"--uses", "-1"}, {"--uses", "x"}, {"--uses", "99999999999999999999"}, {"--json=2"}, {"--valid-for", "soon"}, {"--valid-for", "0s"}} {
		if code, _, errs := o.do(t, append([]string{"acme", "eab", "create"}, args...)...); code != exitUsage || strings.Contains(errs, "strconv") {
			t.Errorf("%v: got %d\n%s", args, code, errs)
		}
	}
}

func TestEABKeysAreListedWithoutTheirSecret(t *testing.T) {
	t.Parallel()
	o := newOperator(t, map[string]any{"GET /acme/external-keys?directory=devices&limit=50": client.ExternalKeyPage{Keys: []client.ExternalKey{
		{KID: "aa", Status: "usable", Directory: "devices", MaxUses: 1, Comment: "web\x1b"}, {KID: "bb", Status: "revoked", Directory: "devices", Uses: 7, DNS: []string{"example.org"}},
	}}})
	code, out, errs := o.do(t, "acme", "eab", "list", "--directory", "devices")
	want := `KEY ID  STATUS   USES    EXPIRES  DIRECTORY  MAY ORDER    COMMENT
aa      usable   0 of 1  never    devices    all names    web?
bb      revoked  7       never    devices    example.org  -
`
	if code != exitOK || out != want || errs != "" {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
}

func TestRevokingAccountsNeedsAYes(t *testing.T) {
	t.Parallel()
	o := newOperator(t, map[string]any{
		"POST /acme/external-keys/" + testID + "/revoke": client.RevokedExternalKey{ExternalKey: client.ExternalKey{KID: testID, Uses: 2}, AccountsRevoked: 2},
		"POST /acme/accounts/" + testID + "/revoke":      client.Account{ID: testID, Status: "revoked"},
	})
	for _, args := range []string{"acme eab revoke " + testID + " --revoke-accounts", "acme account revoke " + testID} {
		if code, _, errs := o.do(t, strings.Fields(args)...); code != exitUsage || !strings.Contains(errs, "say --yes") {
			t.Errorf("%s: got %d, %s", args, code, errs)
		}
	}
	if len(o.asked) > 0 {
		t.Fatalf("asked %s", <-o.asked)
	}
	for args, want := range map[string]string{
		"acme eab revoke " + testID:                              `{"revoke_accounts":false}`,
		"acme eab revoke " + testID + " --revoke-accounts --yes": `{"revoke_accounts":true}`,
		"acme account revoke " + testID + " --yes":               `{}`,
	} {
		if code, out, errs := o.do(t, strings.Fields(args)...); code != exitOK || !strings.Contains(out, "revoked") || errs != "" {
			t.Errorf("%s: got %d\n%s\n%s", args, code, out, errs)
		}
		if asked := <-o.asked; !strings.HasSuffix(asked, want) {
			t.Errorf("%s: asked %s, want %s", args, asked, want)
		}
	}
	for _, id := range []string{"x", strings.ToUpper(testID), testID + "0"} {
		if code, _, _ := o.do(t, "acme", "account", "show", id); code != exitUsage {
			t.Errorf("%s: got %d", id, code)
		}
	}
}

func TestAccountsAreListedAndShown(t *testing.T) {
	t.Parallel()
	at, open := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), 3
	a := client.Account{ID: testID, Directory: "default", Status: "revoked", Contacts: []string{"mailto:a@example.com"}, Thumbprint: "tp", ExternalKey: "aa", CreatedAt: at, RevokedAt: &at, OpenOrders: &open}
	o := newOperator(t, map[string]any{
		"GET /acme/accounts?external_key=aa&limit=50&status=revoked": client.AccountPage{Accounts: []client.Account{a}},
		"GET /acme/accounts/" + testID:                               a,
	})
	code, out, errs := o.do(t, "acme", "account", "list", "--status", "revoked", "--key-id", "aa")
	want := `ID                                STATUS   CREATED               DIRECTORY  BOUND BY  CONTACTS
0123456789abcdef0123456789abcdef  revoked  2030-01-02 03:04:05Z  default    aa        mailto:a@example.com
`
	if code != exitOK || out != want || errs != "" {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	if code, out, _ = o.do(t, "acme", "account", "show", testID); code != exitOK || !strings.Contains(out, "Open orders:     3\n") || !strings.Contains(out, "Revoked:         2030") {
		t.Errorf("got %d\n%s", code, out)
	}
	if code, out, _ = o.do(t, "acme", "account", "show", testID, "--json"); code != exitOK || !json.Valid([]byte(out)) {
		t.Errorf("got %d\n%s", code, out)
	}
	if code, _, _ = o.do(t, "acme", "account", "list", "--status", "good"); code != exitUsage {
		t.Errorf("got %d", code)
	}
}
