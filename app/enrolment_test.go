package app

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

const enrolmentSection = `enrolment:
  endpoints:
    - name: devices
      profile: tls-server
      scep: true
      challenge: {file: challenge}
      allow:
        - names: ["dns:*.devices.example"]
`

// enrolling is a CA at which devices enrol by SCEP.
func enrolling(t *testing.T) string {
	t.Helper()
	dir := newCA(t)
	if err := os.WriteFile(filepath.Join(dir, "challenge"), []byte("open sesame"), 0o600); err != nil {
		t.Fatal(err)
	}
	edit(t, dir, "acme:\n", enrolmentSection+"acme:\n")
	return dir
}

func TestDevicesFindSCEPWhereTheConfigurationSays(t *testing.T) {
	t.Parallel()
	r := run(t, enrolling(t))
	get := func(path string) (int, []byte) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.at.HTTP.String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, b
	}
	for _, path := range []string{"/scep/devices", "/scep/devices/pkiclient.exe", "/scep"} {
		if code, b := get(path + "?operation=GetCACaps"); code != http.StatusOK || !bytes.Contains(b, []byte("SCEPStandard")) {
			t.Errorf("%s: %d %q", path, code, b)
		}
	}
	if code, _ := get("/scep/others?operation=GetCACaps"); code != http.StatusNotFound {
		t.Errorf("another label: %d", code)
	}
	if code, b := get("/scep/devices?operation=GetCACert"); code != http.StatusOK || len(b) < 500 {
		t.Errorf("GetCACert: %d, %d octets", code, len(b))
	}
}

func TestEnrolmentThatCannotBeIsToldAtTheStart(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]string{
		`"dns:*.devices.example"`: `"email:x"`,
		"{file: challenge}":       "{file: nowhere}",
	} {
		dir := enrolling(t)
		edit(t, dir, change, want)
		if err := fails(t, load(t, dir), io.Discard); !strings.Contains(err.Error(), "enrolment.endpoints[0] (devices)") {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestOperatorsLookAfterDevices(t *testing.T) {
	t.Parallel()
	dir := enrolling(t)
	cfg := load(t, dir)
	run(t, dir)
	cl := client.New(string(cfg.Listen.Operator.Socket))
	t.Cleanup(cl.Close)
	ctx := t.Context()
	const password = "correct horse battery"
	// What is not right is refused, and said by its name.
	for want, err := range map[string]error{
		"password":      second(cl.AddUser(ctx, client.NewUser{Name: "x", Password: "short"})),
		"password_hash": second(cl.AddUser(ctx, client.NewUser{Name: "x", PasswordHash: "$1$x"})),
		"name":          second(cl.AddUser(ctx, client.NewUser{Name: "a:b", Password: password})),
		"endpoint":      second(cl.AddUser(ctx, client.NewUser{Name: "x", Password: password, Endpoints: []string{"others"}})),
		"names":         second(cl.CreateChallenge(ctx, client.NewChallenge{Endpoint: "devices", MaxUses: 1, ValidSeconds: 60, Names: []string{"email:x"}})),
		"valid_seconds": second(cl.CreateChallenge(ctx, client.NewChallenge{Endpoint: "devices", MaxUses: 1})),
		"state":         second(cl.ListRequests(ctx, "lost", 0, "")),
		"no user":       cl.RemoveUser(ctx, "nobody"),
		"no request":    second(cl.DecideRequest(ctx, strings.Repeat("0", 32), true)),
		"no challenge":  cl.RevokeChallenge(ctx, strings.Repeat("0", 32)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if u, err := cl.AddUser(ctx, client.NewUser{Name: "gateway-7", Password: password, Endpoints: []string{"devices"}}); err != nil || u.Name != "gateway-7" {
		t.Fatalf("%+v, %v", u, err)
	}
	if _, err := cl.AddUser(ctx, client.NewUser{Name: "gateway-7", Password: password}); err == nil {
		t.Error("two users of one name")
	}
	for _, err := range []error{
		second(cl.AddUser(ctx, client.NewUser{Name: "gateway-8", Password: password})),
		cl.SetPassword(ctx, client.NewPassword{Name: "gateway-7", Password: "battery staple horse"}),
		cl.DisableUser(ctx, "gateway-7", false),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	first, err := cl.ListUsers(ctx, 1, "")
	if err != nil || len(first.Users) != 1 || first.Users[0].DisabledAt == nil || first.Next == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	if next, err := cl.ListUsers(ctx, 1, first.Next); err != nil || len(next.Users) != 1 || next.Users[0].Name != "gateway-8" || next.Next != "" {
		t.Errorf("%+v, %v", next, err)
	}
	c, err := cl.CreateChallenge(ctx, client.NewChallenge{Endpoint: "devices", MaxUses: 1, ValidSeconds: 60, Names: []string{"dns:A.devices.example"}})
	if err != nil || len(c.Secret) < 20 || c.Status != client.KeyUsable || !slices.Equal(c.Names, []string{"dns:a.devices.example"}) {
		t.Fatalf("%+v, %v", c, err)
	}
	if err := cl.RevokeChallenge(ctx, c.ID); err != nil {
		t.Error(err)
	}
	if list, err := cl.ListChallenges(ctx, 0, ""); err != nil || len(list.Challenges) != 1 || list.Challenges[0].Secret != "" || list.Challenges[0].Status != client.KeyRevoked {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := cl.ListRequests(ctx, "waiting", 0, ""); err != nil || len(list.Requests) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}

func second[T any](_ T, err error) error { return err }
