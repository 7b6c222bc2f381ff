package integration

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// limited starts quickstart, writes into its rate_limit section and starts it anew.
func limited(t *testing.T, q quickstart, section string) *server {
	t.Helper()
	s := startQuickstart(t, q)
	s.stop()
	setSection(t, configOf(s.dir), "rate_limit:", section)
	s.start(t)
	return s
}

// setSection adds lines to a section of a configuration file.
func setSection(t *testing.T, file, section, lines string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(b), "\n"+section+"\n")
	if !ok {
		t.Fatalf("%s has no section %s", file, section)
	}
	if err := os.WriteFile(file, []byte(head+"\n"+section+"\n"+lines+rest), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A client that meets a limit waits, or says why it ends, and the next try of
// the same name succeeds: no refusal leaves an order that can't go on.
func TestRealClientsFinishUnderATightLimit(t *testing.T) {
	t.Parallel()
	dns := startDNS(t)
	s := limited(t, quickstart{dns: dns}, "  per_ip: {rate: 0.25, burst: 8}\n")
	runClients(t, s, dns, "limits-certbot", "limits-lego", "limits-uacme")
	metrics := s.metrics(t)
	if metrics.sum("secsy_ratelimit_throttled_total") == 0 {
		t.Error("no request was refused: the limit was not tight")
	}
	if n := metrics.sum(`secsy_acme_orders_total{directory="",event="invalid"}`); n != 0 {
		t.Errorf("%v orders ended invalid", n)
	}
	verifyAudit(t, s)
}

// A flood leaves a few lines behind, not one for each refusal: neither a log nor
// an audit log can be filled by strangers. Who is not part of it doesn't notice.
func TestAFloodFromAThousandAddressesLeavesFewLines(t *testing.T) {
	t.Parallel()
	s := limited(t, quickstart{}, "  per_ip: {rate: 1, burst: 5}\n")
	before := s.auditEntries(t)
	const sources, each = 1000, 100
	target := strings.TrimPrefix(s.env["OCSP_URL"], "http://")
	host, _, _ := strings.Cut(target, "/")
	_, port, err := net.SplitHostPort(host)
	if err != nil {
		t.Fatalf("OCSP_URL %q: %v", s.env["OCSP_URL"], err)
	}
	refused, other := flood(t, "127.0.0.1:"+port, sources, each)
	t.Logf("%d refusals of %d sources; %d other answers", refused, sources, other)
	if refused < sources*each*9/10 {
		t.Errorf("%d of %d requests were refused", refused, sources*each)
	}
	// Whoever is no part of it is served, in the middle of it or now.
	res, err := http.Get(s.env["CRL_URL"])
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("an honest client: %v, %v", res, err)
	}
	_ = res.Body.Close()
	s.stop() // the last lines are written at the end at the latest
	lines := strings.Count(s.out.String(), "rate limit")
	if lines == 0 || lines > 20 {
		t.Errorf("%d log lines about refusals, want a few", lines)
	}
	s.start(t)
	if n := s.auditEntries(t) - before; n > 20 {
		t.Errorf("%d audit entries more, want a few", n)
	}
}

// flood sends each requests from every one of n loopback addresses, on one
// connection for each, as fast as they are answered.
func flood(t *testing.T, addr string, n, each int) (refused, other int64) {
	t.Helper()
	var wg sync.WaitGroup
	var no, rest atomic.Int64
	next := make(chan int)
	for range 16 {
		wg.Go(func() {
			for i := range next {
				a, b := floodFrom(t.Context(), net.IPv4(127, 1, byte(i>>8), byte(i)), addr, each)
				no.Add(a)
				rest.Add(b)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return no.Load(), rest.Load()
}

func floodFrom(ctx context.Context, from net.IP, addr string, n int) (refused, other int64) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from}, Timeout: 10 * time.Second}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, 0
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	r := bufio.NewReader(c)
	for range n {
		if _, err := io.WriteString(c, "GET /nobody HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
			return refused, other
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil {
			return refused, other
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode == http.StatusTooManyRequests && res.Header.Get("Retry-After") != "" {
			refused++
		} else {
			other++
		}
	}
	return refused, other
}

func (s *server) auditEntries(t *testing.T) int {
	t.Helper()
	out, errs, code := run(t, "audit", "verify", "--socket", s.dir+"/operator.sock", "--json")
	if code != 0 {
		t.Fatalf("audit verify: exit %d: %s", code, errs)
	}
	var report struct {
		Entries int `json:"entries"`
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return report.Entries
}

// Refusals are in the protocol's own form, with a time that is true.
func TestARefusalIsAnACMEProblemWithATrueRetryAfter(t *testing.T) {
	t.Parallel()
	s := limited(t, quickstart{}, "  per_ip: {rate: 2, burst: 2}\n")
	client := s.client(t)
	newOrder := strings.TrimSuffix(s.env["ACME_DIRECTORY"], "/directory") + "/new-order"
	post := func() (status int, header http.Header, body []byte) {
		res, err := client.Post(newOrder, "application/jose+json", strings.NewReader(strings.Repeat("x", 60<<10)))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if body, err = io.ReadAll(res.Body); err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, res.Header, body
	}
	status, header, body := post()
	for i := 0; i < 20 && status != http.StatusTooManyRequests; i++ {
		status, header, body = post()
	}
	var problem struct {
		Type   string `json:"type"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}
	if err := json.Unmarshal(body, &problem); err != nil || problem.Type != "urn:ietf:params:acme:error:rateLimited" || problem.Status != 429 || problem.Detail == "" {
		t.Errorf("%d %s (%v)", status, body, err)
	}
	wait, err := strconv.Atoi(header.Get("Retry-After"))
	if err != nil || wait < 1 {
		t.Fatalf("Retry-After %q", header.Get("Retry-After"))
	}
	if !strings.Contains(strings.Join(header.Values("Link"), " "), `rel="help"`) {
		t.Errorf("Link is %q, want one to help", header.Values("Link"))
	}
	time.Sleep(time.Duration(wait) * time.Second) // what the server said, and nothing shorter is a test of it
	if status, _, _ := post(); status == http.StatusTooManyRequests {
		t.Error("refused again after waiting exactly as long as told")
	}
}

// 64 connections that send a header and one octet hold nothing that an honest
// client needs, and the operator's listener is never limited.
func TestMuteConnectionsSlowNobodyDown(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{})
	pem, err := os.ReadFile(s.env["CA_BUNDLE"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	host, path, _ := strings.Cut(strings.TrimPrefix(strings.TrimSuffix(s.env["ACME_DIRECTORY"], "/directory"), "https://"), "/")
	for range 64 {
		c, err := tls.Dial("tcp", host, &tls.Config{RootCAs: roots})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		fmt.Fprintf(c, "POST /%s/order/1/finalize HTTP/1.1\r\nHost: %s\r\nContent-Type: application/jose+json\r\nContent-Length: 100\r\n\r\n{", path, host)
	}
	client := s.client(t)
	client.Timeout = 5 * time.Second
	for range 20 {
		res, err := client.Get(s.env["ACME_DIRECTORY"])
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%v %v", res, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
	for range 500 {
		res, err := http.Get("http://" + s.operator + "/healthz")
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("health: %v %v", res, err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
}

// samples are the metrics of a server, by name and labels as they stand.
type samples map[string]float64

func (s *server) metrics(t *testing.T) samples {
	t.Helper()
	res, err := http.Get("http://" + s.operator + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	out := samples{}
	for sc := bufio.NewScanner(res.Body); sc.Scan(); {
		i := strings.LastIndexByte(sc.Text(), ' ')
		if i < 0 || strings.HasPrefix(sc.Text(), "#") {
			continue
		}
		v, err := strconv.ParseFloat(sc.Text()[i+1:], 64)
		if err != nil {
			t.Fatalf("%s: %v", sc.Text(), err)
		}
		out[sc.Text()[:i]] = v
	}
	return out
}

// sum adds all samples whose name and labels begin with prefix.
func (m samples) sum(prefix string) (total float64) {
	for k, v := range m {
		if strings.HasPrefix(k, prefix) {
			total += v
		}
	}
	return total
}
