package admin_test

import (
	"context"
	"encoding/base64"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/admin"
	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/audit"
	"github.com/secsy-pki/secsy-pki/store"
)

// audited returns the entries of ACME's part of the audit log, as JSON.
func (h *house) audited(t *testing.T) (out []string) {
	t.Helper()
	err := h.db.Read(t.Context(), func(ctx context.Context, tx store.Tx) error {
		out = nil
		rows, err := tx.Query(ctx, `SELECT e.actor, e.action, e.object, e.detail FROM audit_entries e ORDER BY e.at, e.id`)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var actor, action, object, detail string
			if err := rows.Scan(&actor, &action, &object, &detail); err != nil {
				return err
			}
			out = append(out, actor+" "+action+" "+object+" "+detail)
		}
		return rows.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// account registers an account as the ACME edge does.
func (h *house) account(t *testing.T, directory, kid string) string {
	t.Helper()
	id := audit.NewID()
	a := acme.Account{
		ID: id, Key: []byte("{}"), Thumbprint: "tp" + id, Contacts: []string{"mailto:a@example.com"},
		Status: acme.AccountValid, CreatedAt: time.Now().Truncate(time.Microsecond), EAB: kid,
	}
	if _, _, err := store.NewACME(h.db).Directory(directory).CreateAccount(t.Context(), a, audit.New("acme", "account.created", id, nil)); err != nil {
		t.Fatal(err)
	}
	return id
}

func TestMACKeyIsShownOnceAndNeverKeptElsewhere(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	k, err := h.client.CreateExternalKey(t.Context(), client.NewExternalKey{
		Comment: "web", DNS: []string{"Example.ORG."}, IP: []string{"10.0.0.0/8", "2001:db8::1"}, Profiles: []string{"tls-server"}, Expires: &until, MaxUses: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	mac, err := base64.RawURLEncoding.DecodeString(k.MACKey)
	if err != nil || len(mac) != 64 || k.Directory != "default" || k.Status != "usable" || k.CreatedBy != "operator:uid/1000" || !k.Expires.Equal(until) {
		t.Errorf("%+v, %v", k, err)
	}
	if !slices.Equal(k.DNS, []string{"example.org"}) || !slices.Equal(k.IP, []string{"10.0.0.0/8", "2001:db8::1/128"}) {
		t.Errorf("it may order %v, %v", k.DNS, k.IP)
	}
	stored, err := store.NewACME(h.db).BindingKey(t.Context(), k.KID)
	if err != nil || string(stored.MAC) != string(mac) {
		t.Errorf("stored %+v, %v", stored, err)
	}
	page, err := h.client.ListExternalKeys(t.Context(), client.ExternalKeyFilter{})
	if err != nil || len(page.Keys) != 1 || page.Keys[0].MACKey != "" || page.Keys[0].KID != k.KID {
		t.Errorf("%+v, %v", page, err)
	}
	list := h.audited(t)
	if len(list) != 1 || !strings.HasPrefix(list[0], "operator:uid/1000 acme.external_key.created external-key/"+k.KID) {
		t.Errorf("audited %q", list)
	}
	for _, hidden := range []string{k.MACKey, string(mac)} {
		if strings.Contains(strings.Join(list, "\n")+h.logs.String(), hidden) {
			t.Error("the MAC key is in the audit log or in the log")
		}
	}
}

func TestKeysAreMadeForWhatIsServedOnly(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	past := time.Now().Add(-time.Hour)
	for says, row := range map[string]struct {
		n      client.NewExternalKey
		status int
		code   string
	}{
		`"elsewhere" is not one of default, devices, open`: {client.NewExternalKey{Directory: "elsewhere"}, 400, client.CodeInvalidParameter},
		"directory open binds no accounts":                 {client.NewExternalKey{Directory: "open"}, 409, client.CodeRefused},
		`profiles has "other": directory default has`:      {client.NewExternalKey{Profiles: []string{"other"}}, 400, client.CodeInvalidParameter},
		`dns has "*.example.org"`:                          {client.NewExternalKey{DNS: []string{"*.example.org"}}, 400, client.CodeInvalidParameter},
		`dns has "10.0.0.1"`:                               {client.NewExternalKey{DNS: []string{"10.0.0.1"}}, 400, client.CodeInvalidParameter},
		`ip has "10.0.0.1/8"`:                              {client.NewExternalKey{IP: []string{"10.0.0.1/8"}}, 400, client.CodeInvalidParameter},
		"expires is not in the future":                     {client.NewExternalKey{Expires: &past}, 400, client.CodeInvalidParameter},
		"max_uses is not a whole number":                   {client.NewExternalKey{MaxUses: -1}, 400, client.CodeInvalidParameter},
		"comment is longer than":                           {client.NewExternalKey{Comment: "a\nb"}, 400, client.CodeInvalidParameter},
		"dns has more than 100 entries":                    {client.NewExternalKey{DNS: make([]string, 101)}, 400, client.CodeInvalidParameter},
	} {
		_, err := h.client.CreateExternalKey(t.Context(), row.n)
		if d := wantCode(t, err, row.status, row.code); !strings.Contains(d, says) {
			t.Errorf("%s; want %s", d, says)
		}
	}
	off := open(t, func(c *admin.Config) { c.Directories = nil })
	_, err := off.client.CreateExternalKey(t.Context(), client.NewExternalKey{})
	if d := wantCode(t, err, 409, client.CodeRefused); !strings.Contains(d, "acme.enabled") {
		t.Error(d)
	}
	if list := h.audited(t); len(list) != 0 {
		t.Errorf("audited %q", list)
	}
}

func TestWithoutASayAKeyIsGoodForOneAccount(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	if status, _, _ := h.raw(t, http.MethodPost, "/api/v1/acme/external-keys", "application/json", `{"directory":"devices"}`); status != 200 {
		t.Fatalf("status %d", status)
	}
	page, err := h.client.ListExternalKeys(t.Context(), client.ExternalKeyFilter{Directory: "devices"})
	if err != nil || len(page.Keys) != 1 || page.Keys[0].MaxUses != 1 {
		t.Errorf("%+v, %v", page, err)
	}
}

func TestRevokingAKeyLeavesItsAccountsUnlessAskedFor(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	k, err := h.client.CreateExternalKey(t.Context(), client.NewExternalKey{MaxUses: 0})
	if err != nil {
		t.Fatal(err)
	}
	first, second, foreign := h.account(t, "", k.KID), h.account(t, "", k.KID), h.account(t, "", "")
	got, err := h.client.RevokeExternalKey(t.Context(), k.KID, false)
	if err != nil || got.Status != "revoked" || got.Uses != 2 || got.AccountsRevoked != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = h.client.RevokeExternalKey(t.Context(), k.KID, false)
	wantCode(t, err, http.StatusConflict, client.CodeAlreadyRevoked)
	for _, id := range []string{first, second, foreign} {
		if a, err := h.client.Account(t.Context(), id); err != nil || a.Status != "valid" {
			t.Errorf("%+v, %v", a, err)
		}
	}
	// A key that is revoked can still take its accounts along.
	got, err = h.client.RevokeExternalKey(t.Context(), k.KID, true)
	if err != nil || got.AccountsRevoked != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	for id, want := range map[string]string{first: "revoked", second: "revoked", foreign: "valid"} {
		if a, err := h.client.Account(t.Context(), id); err != nil || a.Status != want {
			t.Errorf("%+v, %v; want %s", a, err, want)
		}
	}
	_, err = h.client.RevokeExternalKey(t.Context(), audit.NewID(), true)
	wantCode(t, err, http.StatusNotFound, client.CodeNotFound)
	_, err = h.client.RevokeExternalKey(t.Context(), "no-id", false)
	wantCode(t, err, http.StatusBadRequest, client.CodeInvalidParameter)
	n := 0
	for _, e := range h.audited(t) {
		if strings.Contains(e, " account.revoked ") && strings.Contains(e, k.KID) {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d entries of revoked accounts; want 2", n)
	}
}

func TestAccountsAreListedShownAndRevoked(t *testing.T) {
	t.Parallel()
	h := open(t, nil)
	ids := []string{h.account(t, "", ""), h.account(t, "devices", ""), h.account(t, "", "")}
	var got []string
	f := client.AccountFilter{Limit: 2}
	for {
		page, err := h.client.ListAccounts(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range page.Accounts {
			got = append(got, a.ID)
		}
		if f.Cursor = page.Next; f.Cursor == "" {
			break
		}
	}
	slices.Reverse(got)
	if !slices.Equal(got, ids) {
		t.Errorf("got %v; want %v", got, ids)
	}
	a, err := h.client.RevokeAccount(t.Context(), ids[1])
	if err != nil || a.Status != "revoked" || a.RevokedAt == nil || a.Directory != "devices" || a.OpenOrders == nil {
		t.Errorf("%+v, %v", a, err)
	}
	_, err = h.client.RevokeAccount(t.Context(), ids[1])
	wantCode(t, err, http.StatusConflict, client.CodeAlreadyRevoked)
	_, err = h.client.RevokeAccount(t.Context(), audit.NewID())
	wantCode(t, err, http.StatusNotFound, client.CodeNotFound)
	_, err = h.client.Account(t.Context(), "x")
	wantCode(t, err, http.StatusBadRequest, client.CodeInvalidParameter)
	for _, row := range []struct {
		f    client.AccountFilter
		want string
	}{
		{client.AccountFilter{Status: "revoked"}, ids[1]},
		{client.AccountFilter{Directory: "devices"}, ids[1]},
		{client.AccountFilter{Directory: "default", Limit: 1}, ids[2]},
	} {
		if page, err := h.client.ListAccounts(t.Context(), row.f); err != nil || len(page.Accounts) != 1 || page.Accounts[0].ID != row.want {
			t.Errorf("%+v: %+v, %v", row.f, page, err)
		}
	}
	_, err = h.client.ListAccounts(t.Context(), client.AccountFilter{Status: "good"})
	wantCode(t, err, http.StatusBadRequest, client.CodeInvalidParameter)
	_, err = h.client.ListAccounts(t.Context(), client.AccountFilter{Cursor: base64.RawURLEncoding.EncodeToString([]byte("accounts:x"))})
	wantCode(t, err, http.StatusBadRequest, client.CodeInvalidParameter)
}
