package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/secsy-pki/secsy-pki/admin/client"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

// hsm is where the tests of keys have their tokens.
var hsm *pkcs11test.HSM

func TestMain(m *testing.M) {
	testscript.Main(withHSM{m}, map[string]func(){"secsy-pki": main})
}

// withHSM runs tests beside an HSM. The programs that scripts start are this one
// again, and don't make another.
type withHSM struct{ *testing.M }

// Run implements testscript.TestingM.
func (w withHSM) Run() int {
	dir, err := os.MkdirTemp("", "secsy-hsm")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		hsm, err = pkcs11test.New(dir, 0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return w.M.Run()
}

func TestScripts(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata", RequireExplicitExec: true, ContinueOnError: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("SOFTHSM2_CONF", hsm.Conf)
			env.Setenv("MODULE", hsm.Module)
			env.Setenv("PIN", pkcs11test.PIN)
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			// token LABEL makes a token, for programs that start afterwards.
			"token": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(hsm.Init(args[0]))
			},
		},
	})
}

func TestARefusedPINHasAnExitCodeOfItsOwn(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"keys list --keys", "keys check --keys", "init --dir /nowhere/ca --organization O --external-host a.example --keys"} {
		label := "refused-" + strings.Fields(args)[1]
		if err := hsm.Init(label); err != nil {
			t.Fatal(err)
		}
		uri := "pkcs11:token=" + label + "?module-path=" + hsm.Module
		cmd := exec.CommandContext(t.Context(), "secsy-pki", append(strings.Fields(args), uri, "--pin-env", "WRONG")...)
		cmd.Env = append(os.Environ(), "SOFTHSM2_CONF="+hsm.Conf, "WRONG=4711")
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != exitPIN || bytes.Contains(out, []byte("4711")) {
			t.Errorf("%s: got %d, %v: %s", args, code, err, out)
		}
	}
}

func TestEveryCommandHasHelpAndExamples(t *testing.T) {
	t.Parallel()
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: Short is %q", cmd.CommandPath(), cmd.Short)
		}
		if !strings.Contains(cmd.Example, "  secsy-pki") {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newRoot())
}

func TestMistakesOfUsageAreExitCodeTwo(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]int{
		"version":                         exitOK,
		"cert --help":                     exitOK,
		"nonsense":                        exitUsage,
		"cert":                            exitUsage,
		"version --nonsense":              exitUsage,
		"cert show not-hex":               exitUsage,
		"config check --config /dev/null": exitError,
	} {
		var out, errs bytes.Buffer
		if got := execute(t.Context(), strings.Fields(args), strings.NewReader(""), &out, &errs); got != want {
			t.Errorf("%s: got %d, want %d: %s", args, got, want, &errs)
		}
		if (errs.Len() > 0) != (want != exitOK) {
			t.Errorf("%s: standard error has %q", args, &errs)
		}
	}
}

func TestFirstSignalEndsTheWorkSecondTheProgram(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		signals, now := make(chan os.Signal), make(chan struct{})
		go watch(ctx, signals, cancel, func() { close(now) })
		over := func() bool {
			synctest.Wait()
			select {
			case <-now:
				return true
			default:
				return false
			}
		}
		signals <- syscall.SIGTERM
		<-ctx.Done()
		if over() {
			t.Fatal("the first signal ended the program")
		}
		signals <- syscall.SIGTERM
		if over() {
			t.Fatal("the echo of the first signal ended the program")
		}
		time.Sleep(once)
		signals <- syscall.SIGTERM
		<-now
	})
}

func TestHangupsWhileOneIsDueAreOne(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	signals, reload, done := make(chan os.Signal), make(chan struct{}, 1), make(chan struct{})
	go func() { forward(ctx, signals, reload); close(done) }()
	for range 3 {
		signals <- syscall.SIGHUP
	}
	cancel()
	<-done
	if len(reload) != 1 {
		t.Errorf("%d reloads are due", len(reload))
	}
}

func TestSerialNumbersAreTakenAsOtherToolsWriteThem(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"01ab": "01ab", "01:AB": "01ab", "0x1AB": "01ab", "0X01ab": "01ab", " 01 ab ": "01ab", "1ab": "01ab",
		"0001ab": "01ab", "00:01:AB": "01ab", "00": "00",
		"": "", "0x": "", "zz": "", "01ab/..": "", strings.Repeat("a", 65): "",
	} {
		got, err := parseSerial(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", in, got, err)
		}
	}
}

func FuzzParseSerial(f *testing.F) {
	for _, s := range []string{"01:AB", "0x1", "", "0x", "00 00", "-"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseSerial(s)
		if err != nil {
			return
		}
		if got == "" || len(got)%2 != 0 || strings.Trim(got, "0123456789abcdef") != "" {
			t.Errorf("%q became %q", s, got)
		}
		if again, err := parseSerial(got); again != got || err != nil {
			t.Errorf("%q became %q, then %q, %v", s, got, again, err)
		}
	})
}

func TestTablesCannotSpeakToTheTerminal(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := table(&b, [][]string{{"a\x1b[31m\n", "", "c\td"}}); err != nil {
		t.Fatal(err)
	}
	if got, want := b.String(), "a?[31m?  -  c?d\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestInitConfigurationIsServedWhereItListens(t *testing.T) {
	t.Parallel()
	in := initFlags{
		organization: "O", host: "2001:db8::1", policy: config.PolicyInternal, listenHTTP: ":80", listenHTTPS: "[::1]:8443", listenOperator: "127.0.0.1:8081",
		rootAlg: "ed25519", issuingAlg: "ed25519", rootValidity: days(2), issuingValidity: days(1), passphraseFile: "/p",
	}
	cfg, err := in.config(newInit())
	if err != nil {
		t.Fatal(err)
	}
	if got := cfg.Listen.HTTP.ExternalURL; got != "http://[2001:db8::1]" {
		t.Errorf("http is at %s", got)
	}
	if got := cfg.Listen.HTTPS.ExternalURL; got != "https://[2001:db8::1]:8443" {
		t.Errorf("https is at %s", got)
	}
	read, err := config.Parse("/x/config.yaml", cfg.MarshalCommented())
	if err != nil {
		t.Fatalf("it does not read back: %v", err)
	}
	if !read.RateLimit.Enabled {
		t.Error("admission control is off in what init writes")
	}
}

// An operator is a server that answers with what a test gave it, and notes
// what it was asked.
type operator struct {
	socket  string
	answers map[string]any // by method, path and query; []byte as it is, a func([]byte) any is asked with the body
	asked   chan string
}

func newOperator(t *testing.T, answers map[string]any) *operator {
	t.Helper()
	dir, err := os.MkdirTemp("", "secsy") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	o := &operator{socket: filepath.Join(dir, "s"), answers: answers, asked: make(chan string, 100)}
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", o.socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: o, ReadHeaderTimeout: time.Minute}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		_ = srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return o
}

func (o *operator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body bytes.Buffer
	_, _ = body.ReadFrom(http.MaxBytesReader(w, r.Body, 1<<20))
	key := strings.TrimSuffix(r.Method+" "+strings.TrimPrefix(r.URL.RequestURI(), "/api/v1"), "?")
	o.asked <- strings.TrimSpace(key + " " + body.String())
	answer, ok := o.answers[key]
	if !ok {
		w.Header().Set("Content-Type", client.ProblemType)
		w.WriteHeader(http.StatusNotFound)
		answer = client.Problem{Status: http.StatusNotFound, Code: client.CodeNotFound, Detail: "there is no such certificate", RequestID: "r1"}
	}
	switch a := answer.(type) {
	case []byte:
		_, _ = w.Write(a)
		return
	case func([]byte) any:
		answer = a(body.Bytes())
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// do runs one command line against the server.
func (o *operator) do(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = execute(t.Context(), append(args, "--socket", o.socket), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func cert(serial string) client.Certificate {
	return client.Certificate{
		Serial: serial, Status: "valid", IssuerName: "issuing-1", Profile: "tls-server",
		Names:    []client.Name{{Type: "dns", Value: "a.example"}, {Type: "dns", Value: "b.example"}, {Type: "ip", Value: "::1"}, {Type: "dns", Value: "c.example"}},
		NotAfter: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC), PEM: "-----BEGIN CERTIFICATE-----\n",
	}
}

func TestListsFollowPagesUpToTheLimit(t *testing.T) {
	t.Parallel()
	o := newOperator(t, map[string]any{
		"GET /certificates?limit=3":            client.CertificatePage{Certificates: []client.Certificate{cert("01"), cert("02")}, Next: "n"},
		"GET /certificates?cursor=n&limit=1":   client.CertificatePage{Certificates: []client.Certificate{cert("03")}, Next: "m"},
		"GET /certificates?limit=500":          client.CertificatePage{Certificates: []client.Certificate{cert("01")}, Next: "n"},
		"GET /certificates?cursor=n&limit=500": client.CertificatePage{Certificates: []client.Certificate{cert("02")}},
	})
	code, out, errs := o.do(t, "cert", "list", "--limit", "3")
	want := `SERIAL  STATUS  NOT AFTER             ISSUER     PROFILE     NAMES
01      valid   2030-01-02 03:04:05Z  issuing-1  tls-server  a.example b.example ::1 +1
02      valid   2030-01-02 03:04:05Z  issuing-1  tls-server  a.example b.example ::1 +1
03  valid  2030-01-02 03:04:05Z  issuing-1  tls-server  a.example b.example ::1 +1
`
	if code != exitOK || out != want || errs != "secsy-pki: there are more than these 3: see --limit\n" {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	code, out, errs = o.do(t, "cert", "list", "--limit", "0", "--json")
	if code != exitOK || strings.Count(out, "\n") != 2 || errs != "" {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	for line := range strings.Lines(out) {
		var c client.Certificate
		if err := json.Unmarshal([]byte(line), &c); err != nil || c.Profile != "tls-server" {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestShowPrintsOneCertificate(t *testing.T) {
	t.Parallel()
	c := cert("01ab")
	c.Status, c.Reason, c.RevokedAt = "revoked", "superseded", &c.NotAfter
	o := newOperator(t, map[string]any{"GET /certificates/01ab": c, "GET /certificates/02": client.Certificate{Serial: "02", Status: "void"}})
	code, out, errs := o.do(t, "cert", "show", "0x1:AB")
	if code != exitOK || errs != "" || !strings.Contains(out, "Revoked:      2030-01-02 03:04:05Z superseded\n") || !strings.HasSuffix(out, c.PEM) {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	if code, out, _ = o.do(t, "cert", "show", "01ab", "--pem"); code != exitOK || out != c.PEM {
		t.Errorf("got %d\n%s", code, out)
	}
	if code, out, errs = o.do(t, "cert", "show", "02", "--pem"); code != exitError || out != "" || errs != "secsy-pki: serial 02 is void: there is no certificate\n" {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	if code, _, errs = o.do(t, "cert", "show", "03"); code != exitError || errs != "secsy-pki: there is no such certificate (request r1)\n" {
		t.Errorf("got %d, %s", code, errs)
	}
}

func TestRevokeSendsTheReasonOnlyAfterYes(t *testing.T) {
	t.Parallel()
	revoked := cert("01")
	revoked.Reason = "keyCompromise"
	o := newOperator(t, map[string]any{"POST /certificates/01/revoke": revoked, "GET /certificates/01": cert("01")})
	code, out, errs := o.do(t, "cert", "revoke", "01", "--reason", "keycompromise", "--yes")
	if code != exitOK || out != "certificate 01 is revoked for keyCompromise\n" || errs != "" {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	if got, want := <-o.asked, `POST /certificates/01/revoke {"reason":"keyCompromise"}`; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	if code, _, _ = o.do(t, "cert", "revoke", "01", "--reason", "keyCompromise"); code != exitUsage {
		t.Errorf("without --yes and without a terminal: got %d", code)
	}
	if len(o.asked) > 0 {
		t.Errorf("asked %s", <-o.asked)
	}
	for answer, want := range map[string]bool{"yes\n": true, "y\n": false, "": false, "no\n": false} {
		if err := confirm(t.Context(), strings.NewReader(answer), new(bytes.Buffer), "not so"); (err == nil) != want {
			t.Errorf("answer %q: %v", answer, err)
		}
	}
}

func TestIssuersAreListedWithTheirCRL(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	o := newOperator(t, map[string]any{"GET /issuers": client.IssuerList{Issuers: []client.Issuer{
		{Name: "new", Active: true, NotAfter: at, KeyAlgorithm: "ecdsa-p256", CRL: &client.CRL{NextUpdate: at}, Subject: "CN=New", ID: "aa"},
		{Name: "old", NotAfter: at, KeyAlgorithm: "rsa-2048", Subject: "CN=Old", ID: "bb"},
	}}})
	want := `NAME  ACTIVE  NOT AFTER             KEY         CRL UNTIL             SUBJECT  ID
new   yes     2030-01-02 03:04:05Z  ecdsa-p256  2030-01-02 03:04:05Z  CN=New   aa
old   no      2030-01-02 03:04:05Z  rsa-2048    -                     CN=Old   bb
`
	if code, out, errs := o.do(t, "issuer", "list"); code != exitOK || out != want || errs != "" {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	if code, out, _ := o.do(t, "issuer", "list", "--json"); code != exitOK || strings.Count(out, "\n") != 2 {
		t.Errorf("got %d\n%s", code, out)
	}
}

func TestAuditIsListedAndABrokenChainIsAnError(t *testing.T) {
	t.Parallel()
	o := newOperator(t, map[string]any{
		"GET /audit?after=6&limit=50&order=newest": client.AuditPage{Entries: []client.AuditEntry{
			{Seq: 7, At: "2030-01-02T03:04:05.000006Z", Action: "certificate.issued", Object: "certificate/01", Actor: "acme:account/a", Remote: "192.0.2.1"},
		}},
		"POST /audit/verify": client.Verification{Head: "7:aa", Entries: 7, FindingCount: 1, Findings: []client.Finding{{Kind: "hash", Seq: 3, Detail: "differs"}}},
	})
	code, out, errs := o.do(t, "audit", "list", "--newest", "--after", "6")
	want := `SEQ  AT                           ACTION              OBJECT          ACTOR           REMOTE
7    2030-01-02T03:04:05.000006Z  certificate.issued  certificate/01  acme:account/a  192.0.2.1
`
	if code != exitOK || out != want || errs != "" {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	<-o.asked
	code, out, errs = o.do(t, "audit", "verify", "--expect", "5:bb")
	if code != exitError || out != "7 entries, head 7:aa, 0 waiting for their place\nentry 3: hash: differs\n" ||
		!strings.HasPrefix(errs, "secsy-pki: the audit log is not intact: 1 findings;") {
		t.Errorf("got %d\n%s\n%s", code, out, errs)
	}
	if got, want := <-o.asked, `POST /audit/verify {"expect":"5:bb"}`; got != want {
		t.Errorf("asked %s, want %s", got, want)
	}
	if code, out, _ = o.do(t, "audit", "verify", "--json"); code != exitError || !json.Valid([]byte(out)) {
		t.Errorf("got %d\n%s", code, out)
	}
}

func TestInterruptedCommandsSaySo(t *testing.T) {
	t.Parallel()
	o := newOperator(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var errs bytes.Buffer
	code := execute(ctx, []string{"issuer", "list", "--socket", o.socket}, strings.NewReader(""), new(bytes.Buffer), &errs)
	if code != exitError || errs.String() != "secsy-pki: interrupted\n" {
		t.Errorf("got %d, %s", code, fmt.Sprint(&errs))
	}
}

func TestDatabaseURLComesFromFileOrEnvironment(t *testing.T) {
	t.Setenv(postgresEnv, "postgres://user:hush@db/x")
	if got := postgresSource(""); got != (config.Secret{Env: postgresEnv}) {
		t.Errorf("got %+v", got)
	}
	if got := postgresSource("/url"); got != (config.Secret{File: "/url"}) {
		t.Errorf("got %+v", got)
	}
	t.Setenv(postgresEnv, "")
	if got := postgresSource(""); got.IsSet() {
		t.Errorf("got %+v", got)
	}
}
