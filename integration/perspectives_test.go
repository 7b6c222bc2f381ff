package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/crypto/acme"
)

// A view is a DNS server that leads every name to one address, as one place of
// the Internet may see it.
type view struct {
	addr    string
	leads   atomic.Value // string
	forbids atomic.Bool  // by CAA records that allow nobody
}

func startView(t *testing.T) *view {
	t.Helper()
	pc, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", freePort(t)))
	if err != nil {
		t.Fatal(err)
	}
	v := &view{addr: pc.LocalAddr().String()}
	v.leads.Store("127.0.0.1")
	started, done := make(chan struct{}), make(chan struct{})
	srv := &dns.Server{PacketConn: pc, Handler: v, NotifyStartedFunc: func() { close(started) }}
	go func() { defer close(done); _ = srv.ActivateAndServe() }()
	<-started
	t.Cleanup(func() { _ = srv.Shutdown(); <-done })
	return v
}

func (v *view) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	m := new(dns.Msg).SetReply(q)
	name := q.Question[0].Name
	switch kind := q.Question[0].Qtype; {
	case kind == dns.TypeCAA && v.forbids.Load():
		m.Answer = append(m.Answer, &dns.CAA{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeCAA, Class: dns.ClassINET}, Tag: "issue", Value: ";"})
	case kind == dns.TypeA:
		m.Answer = append(m.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET}, A: net.ParseIP(v.leads.Load().(string)),
		})
	}
	_ = w.WriteMsg(m)
}

// perspectiveCertificates runs the commands of the page, and returns the folder.
func perspectiveCertificates(t *testing.T) string {
	t.Helper()
	blocks := walkthrough(t, "../docs/perspectives.md", "## Certificates", "## The perspective")
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of commands", len(blocks))
	}
	blocks[0] = strings.Replace(blocks[0], `HOSTS="fra1.perspectives.example.org nrt1.perspectives.example.org iad1.perspectives.example.org"`, `HOSTS=localhost`, 1)
	if !strings.Contains(blocks[0], "HOSTS=localhost") {
		t.Fatal("the page has other hosts")
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-euc", strings.Join(blocks, ""))
	cmd.Dir = t.TempDir()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(cmd.Dir, "perspectives")
}

// A perspective is one that runs.
type perspective struct {
	*process
	name, region, url, operator string
	view                        *view
}

func startRemote(t *testing.T, certs, name, region string, http01 int) *perspective {
	t.Helper()
	r := &perspective{name: name, region: region, view: startView(t), operator: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	port := freePort(t)
	r.url = fmt.Sprintf("https://localhost:%d", port)
	file := filepath.Join(certs, name+".yaml")
	text := fmt.Sprintf(`name: %s
region: %s
listen: {address: "127.0.0.1:%d", operator: "%s", certificate: localhost.pem, key: localhost.key}
clients: {ca_bundle: ca.pem, names: [pki.example.org]}
validation: {resolver: "%s", http01_port: %d, allow: [127.0.0.0/8]}
`, name, region, port, r.operator, r.view.addr, http01)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := run(t, "perspective", "check", "--config", file); code != 0 || !strings.Contains(out, "is right") {
		t.Fatalf("check: exit %d\n%s%s", code, out, errs)
	}
	r.process = start(t, "perspective "+name, exec.Command(secsy(t), "perspective", "--config", file))
	waitFor(t, "perspective "+name, func() error {
		res, err := http.Get("http://" + r.operator + "/readyz")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return errors.New(res.Status)
		}
		return nil
	})
	return r
}

// corroboratedBy starts quickstart, writes perspectives into its file, and starts it anew.
func corroboratedBy(t *testing.T, s *server, certs string, remotes []*perspective) {
	t.Helper()
	s.stop()
	list := fmt.Sprintf("    perspective_tls: {ca_bundle: %[1]s/ca.pem, certificate: %[1]s/pki.example.org.pem, key: %[1]s/pki.example.org.key}\n    perspectives:\n", certs)
	for _, r := range remotes {
		list += fmt.Sprintf("      - {name: %s, region: %s, url: %q}\n", r.name, r.region, r.url)
	}
	b, err := os.ReadFile(configOf(s.dir))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(b), "\n  validation:\n", "\n  caa: on\n  validation:\n"+list, 1)
	if text == string(b) {
		t.Fatalf("no acme.validation in\n%s", b)
	}
	if err := os.WriteFile(configOf(s.dir), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start(t)
}

// proves orders for a name and answers its http-01. It returns the order, and how
// its authorization ended.
func (u *subscriber) proves(name string) (*acme.Order, *acme.Authorization) {
	u.t.Helper()
	o, err := u.client.AuthorizeOrder(u.t.Context(), acme.DomainIDs(name))
	if err != nil {
		u.t.Fatal(err)
	}
	z, err := u.client.GetAuthorization(u.t.Context(), o.AuthzURLs[0])
	if err != nil {
		u.t.Fatal(err)
	}
	for _, ch := range z.Challenges {
		if ch.Type != "http-01" {
			continue
		}
		defer u.answerHTTP("127.0.0.1", ch.Token)()
		if _, err := u.client.Accept(u.t.Context(), ch); err != nil {
			u.t.Fatal(err)
		}
		_, _ = u.client.WaitAuthorization(u.t.Context(), z.URI) // how it ended is read next
	}
	if z, err = u.client.GetAuthorization(u.t.Context(), z.URI); err != nil {
		u.t.Fatal(err)
	}
	return o, z
}

// A validated is what the audit log keeps of a validation.
type validated struct {
	contested bool
	Name      string `json:"name"`
	Record    struct {
		Corroborated string `json:"corroborated"`
		Perspectives []struct {
			Name, Region, Problem string
			OK                    bool
			Addrs                 []string
		} `json:"perspectives"`
	} `json:"record"`
}

// recorded is the audit entry of a name's last validation. Entries are put in
// order, and so listed, a moment after they were made.
func (s *server) recorded(t *testing.T, name string) (last validated) {
	t.Helper()
	waitFor(t, "the audit entry of "+name, func() error {
		out, errs, code := run(t, "audit", "list", "--socket", s.dir+"/operator.sock", "--limit", "0", "--json")
		if code != 0 {
			t.Fatalf("audit list: exit %d: %s", code, errs)
		}
		for line := range strings.Lines(out) {
			var entry struct{ Action, Detail string }
			var v validated
			if err := json.Unmarshal([]byte(line), &entry); err != nil {
				t.Fatalf("%v in %s", err, line)
			}
			if entry.Action != "authorization.validated" && entry.Action != "authorization.contested" {
				continue
			}
			if err := json.Unmarshal([]byte(entry.Detail), &v); err != nil {
				t.Fatalf("%v in %s", err, line)
			}
			if v.Name == name {
				last, last.contested = v, entry.Action == "authorization.contested"
			}
		}
		if last.Name == "" {
			return fmt.Errorf("none in %s", out)
		}
		return nil
	})
	return last
}

// TestWhatPerspectivesDoNotSeeIsNotIssued is the whole of it: perspectives as
// programs of their own, certificates as the page makes them, and one, then two
// of four whose DNS leads elsewhere.
func TestWhatPerspectivesDoNotSeeIsNotIssued(t *testing.T) {
	t.Parallel()
	certs := perspectiveCertificates(t)
	primary := startView(t)
	s := startQuickstart(t, quickstart{dns: dnsMock{addr: primary.addr}})
	var remotes []*perspective
	for _, r := range [][2]string{{"fra1", "ripencc"}, {"nrt1", "apnic"}, {"iad1", "arin"}, {"cpt1", "afrinic"}} {
		remotes = append(remotes, startRemote(t, certs, r[0], r[1], s.http01))
	}
	corroboratedBy(t, s, certs, remotes)
	u := newSubscriber(t, s)

	for i, c := range []struct {
		elsewhere int // perspectives that are led there
		ok        bool
		quorum    string
	}{{0, true, "4/4"}, {1, true, "3/4"}, {2, false, "2/4"}, {4, false, "0/4"}, {0, true, "4/4"}} {
		for j, r := range remotes {
			r.view.leads.Store("127.0.0.1")
			if j < c.elsewhere {
				r.view.leads.Store("127.0.0.2") // where nobody answers
			}
		}
		name := fmt.Sprintf("site-%d.example.com", i)
		_, z := u.proves(name)
		if (z.Status == acme.StatusValid) != c.ok {
			t.Errorf("%d elsewhere: the authorization is %s", c.elsewhere, z.Status)
		}
		entry := s.recorded(t, name)
		if entry.contested == c.ok {
			t.Errorf("%d elsewhere: recorded as contested: %v", c.elsewhere, entry.contested)
		}
		rec := entry.Record
		if rec.Corroborated != c.quorum || len(rec.Perspectives) != 4 {
			t.Errorf("%d elsewhere: recorded %+v", c.elsewhere, rec)
		}
		for j, p := range rec.Perspectives {
			if p.OK != (j >= c.elsewhere) || p.Name != remotes[j].name || p.Region != remotes[j].region || p.OK == (p.Problem != "") {
				t.Errorf("%d elsewhere: recorded %+v of %s", c.elsewhere, p, remotes[j].name)
			}
		}
		if c.ok {
			continue
		}
		var told *acme.Error
		for _, ch := range z.Challenges {
			if ch.Error != nil && !errors.As(ch.Error, &told) {
				t.Error(ch.Error)
			}
		}
		if told == nil || told.ProblemType != "urn:ietf:params:acme:error:connection" ||
			!strings.Contains(told.Detail, fmt.Sprintf("%d of 4 remote perspectives did not see it (", c.elsewhere)) || strings.Contains(told.Detail, remotes[0].name) {
			t.Errorf("the client is told %v", told)
		}
	}
	for _, r := range remotes[:2] {
		r.view.forbids.Store(true)
	}
	if _, z := u.proves("caa.example.com"); z.Status == acme.StatusValid || !s.recorded(t, "caa.example.com").contested ||
		!strings.Contains(fmt.Sprint(z.Challenges[0].Error), "2 of 4 remote perspectives did not find it allowed") {
		t.Errorf("with CAA records that two see the authorization is %s, %v", z.Status, z.Challenges[0].Error)
	}
	for _, r := range remotes[:2] {
		r.view.forbids.Store(false)
	}
	o, _ := u.proves("whole.example.com")
	if chain, _, err := u.finalize(t.Context(), o); err != nil || len(chain) == 0 {
		t.Errorf("no certificate: %v", err)
	}

	// One may be away, and its end is an orderly one.
	remotes[0].stop()
	if remotes[0].err != nil {
		t.Errorf("a perspective that was stopped says %v", remotes[0].err)
	}
	if _, z := u.proves("away.example.com"); z.Status != acme.StatusValid {
		t.Errorf("with one away the authorization is %s", z.Status)
	}
	if rec := s.recorded(t, "away.example.com").Record; rec.Corroborated != "3/4" {
		t.Errorf("recorded %+v", rec)
	}
	s.hasMetricsOfThePage(t, remotes[1])
	if n := s.metrics(t).sum(`secsy_perspective_results_total{kind="validation",outcome="dissented"`); n == 0 {
		t.Error("no dissent is counted")
	}
	verifyAudit(t, s)
}

// hasMetricsOfThePage holds the metrics that the page and the alerts name
// against those there are.
func (s *server) hasMetricsOfThePage(t *testing.T, p *perspective) {
	t.Helper()
	have := s.metrics(t)
	far := (&server{operator: p.operator}).metrics(t)
	for _, file := range []string{"../docs/perspectives.md", "../docs/monitoring/perspective-alerts.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile(`secsy_[a-z_]+[a-z]`).FindAllString(string(text), -1)
		if len(named) < 5 {
			t.Errorf("%s names %d metrics", file, len(named))
		}
		for _, n := range named {
			there := func(m samples) bool {
				for k := range m {
					if strings.HasPrefix(k, n) {
						return true
					}
				}
				return false
			}
			if !there(have) && !there(far) {
				t.Errorf("%s names %s, which is not there", file, n)
			}
		}
	}
}

func TestAPublicCANeedsItsPerspectives(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pki")
	args := append(initArgs(dir), "--policy", "public", "--country", "DE", "--root-crl-url", "http://pki.example.com/root.crl", "--root-cert-url", "http://pki.example.com/root.cer")
	if out, errs, code := run(t, append(args, flags(t)...)...); code != 0 {
		t.Fatalf("init: exit %d\n%s%s", code, out, errs)
	} else if !strings.Contains(out, "acme.validation.perspectives") {
		t.Errorf("init does not say what is missing:\n%s", out)
	}
	for _, command := range [][]string{{"config", "check"}, {"serve"}} {
		_, errs, code := run(t, append(command, "--config", configOf(dir))...)
		if code != 1 || !strings.Contains(errs, "acme.validation.perspectives: policy public (Baseline Requirements §3.2.2.9) needs at least ") ||
			!strings.Contains(errs, " since 2026-") || !strings.Contains(errs, "there are 0") {
			t.Errorf("%v: exit %d\n%s", command, code, errs)
		}
	}
}
