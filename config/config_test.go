package config

import (
	"encoding"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/quick"
	"time"
)

var update = flag.Bool("update", false, "rewrite docs/reference.yaml")

const name = "/etc/secsy-pki/config.yaml"

func mustParse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse(name, []byte(text))
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	return c
}

func TestEmptyFileMeansTheDefaults(t *testing.T) {
	t.Parallel()
	want := Default()
	want.resolve("/etc/secsy-pki")
	for _, text := range []string{"", "\n", "# nothing\n", "---\n", "log:\n  # level: debug\nissuers:\n"} {
		if got := mustParse(t, text); !reflect.DeepEqual(got, want) {
			t.Errorf("%q:\ngot  %+v\nwant %+v", text, got, want)
		}
	}
}

func TestReferenceParsesToTheDefaults(t *testing.T) {
	t.Parallel()
	if got, want := mustParse(t, Reference()), mustParse(t, ""); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestReferenceExampleOfAnIssuerIsRight(t *testing.T) {
	t.Parallel()
	_, rest, ok := strings.Cut(Reference(), "issuers: []\n")
	if !ok {
		t.Fatal("no issuers in the reference")
	}
	text := "issuers:\n"
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "#") {
			break
		}
		text += strings.TrimPrefix(strings.TrimPrefix(line, "#"), " ")
	}
	c := mustParse(t, text)
	if len(c.Issuers) != 1 || c.Issuers[0].Name != "issuing-1" || !c.Issuers[0].Active {
		t.Errorf("got %+v from\n%s", c.Issuers, text)
	}
}

func TestReferenceInDocsIsCurrent(t *testing.T) {
	t.Parallel()
	file := filepath.Join("..", "docs", "reference.yaml")
	if *update {
		if err := os.WriteFile(file, []byte(Reference()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != Reference() {
		t.Error("docs/reference.yaml is not what Reference prints; run go test ./config -run Reference -update")
	}
}

func TestSmallestFileInTheDocsCanBeServed(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "docs", "configuration.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	text, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("no YAML in docs/configuration.md")
	}
	if err := mustParse(t, text).ValidateServe(); err != nil {
		t.Error(err)
	}
}

func TestEveryFieldHasKeyAndComment(t *testing.T) {
	t.Parallel()
	docs := fieldDocs()
	seen := map[reflect.Type]bool{}
	var visit func(reflect.Type)
	visit = func(typ reflect.Type) {
		if seen[typ] {
			return
		}
		seen[typ] = true
		for f := range typ.Fields() {
			at := typ.Name() + "." + f.Name
			key := f.Tag.Get("yaml")
			if key == "" || strings.Trim(key, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
				t.Errorf("%s has the key %q", at, key)
			}
			if docs[at] == "" {
				t.Errorf("%s has no comment", at)
			}
			for line := range strings.Lines(docs[at]) {
				if len(line) > 100 {
					t.Errorf("%s has a long comment line: %s", at, line)
				}
			}
			switch {
			case isSection(f.Type):
				visit(f.Type)
			case isSectionList(f.Type):
				visit(f.Type.Elem())
			}
		}
	}
	visit(reflect.TypeFor[Config]())
}

func TestErrorsNamePlaceKeyAndRemedy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ text, want string }{
		{"log:\n  levle: info\n", `c.yaml:2:3: log.levle: unknown key; did you mean "level"?`},
		{"log:\n  colour: red\n", `c.yaml:2:3: log.colour: unknown key; allowed here: level, format`},
		{"acme: {challenges: [device-attest-01]}", `c.yaml:1:8: acme.challenges: device-attest-01 needs somebody whose word is taken: set apple_roots, tpm_roots or step_roots of acme.device_attestation`},
		{"acme: {challenges: [device-attest-01], device_attestation: {apple_roots: a.pem}}", `c.yaml:1:8: acme.challenges: device-attest-01 proves devices and nothing else: set identifiers.permanent_identifiers or identifiers.hardware_modules of a profile`},
		{"acme: {directories: [{name: a, challenges: [device-attest-01]}]}", `c.yaml:1:32: acme.directories[0].challenges: device-attest-01 needs somebody whose word is taken: set apple_roots, tpm_roots or step_roots of acme.device_attestation`},
		{"acme: {challenges: [http-01, tls-alpn-01], subdomain_authorizations: true}", `c.yaml:1:44: acme.subdomain_authorizations: needs dns-01, dns-account-01 or dns-persist-01 in acme.challenges, or in those of a directory: a domain is proven in the DNS`},
		{"acme: {device_attestation: {apple_roots: a.pem}}", `c.yaml:1:8: acme.device_attestation: is of no use without device-attest-01 in acme.challenges, or in those of a directory`},
		{"acme: {directories: [{name: a}, {name: a, path: b}]}", `c.yaml:1:34: acme.directories[1].name: "a" is taken by acme.directories[0]`},
		{"acme: {directories: [{name: a}, {name: b, path: a}]}", `c.yaml:1:43: acme.directories[1].path: "a" is taken by acme.directories[0]`},
		{"acme: {directories: [{name: default}]}", `c.yaml:1:23: acme.directories[0].name: "default" is the directory at /acme`},
		{"acme: {directories: [{name: A}]}", `c.yaml:1:23: acme.directories[0].name: "A": want at most 63 lower-case letters, digits and hyphens`},
		{"acme: {directories: [{name: a}, {name: a}]}", `c.yaml:1:34: acme.directories[1].name: "a" is taken by acme.directories[0]`},
		{"acme: {directories: [{name: a, path: b}, {name: b}]}", `c.yaml:1:42: acme.directories[1].path: "b" is taken by acme.directories[0]`},
		{"acme: {directories: [{name: a, path: a_b}]}", `c.yaml:1:32: acme.directories[0].path: "a_b": want at most 63 lower-case letters, digits and hyphens`},
		{"acme: {directories: [{path: a}]}", `c.yaml:1:22: acme.directories[0].name: can't be left out or empty`},
		{"acme: {directories: [{name: a, profiles: [{name: b, description: c}]}]}", `c.yaml:1:44: acme.directories[0].profiles[0].name: there is no profile "b"`},
		{"acme: {directories: [{name: a, default_profile: b}]}", `c.yaml:1:32: acme.directories[0].default_profile: there is no profile "b"`},
		{"acme: {directories: [{name: a, challenges: [dns-01, dns-01]}]}", `c.yaml:1:53: acme.directories[0].challenges[1]: dns-01 is given twice`},
		{"acme: {directories: [{name: a, external_account_binding: yes}]}", `c.yaml:1:32: acme.directories[0].external_account_binding: "yes" is not allowed: want off, optional, required`},
		{"log:\n  level: info\n  level: warn\n", `c.yaml:3:3: log.level: given twice, first in line 2`},
		{"log: {level: loud}\n", `c.yaml:1:7: log.level: "loud" is not allowed: want debug, info, warn, error`},
		{"log: info\n", `c.yaml:1:6: log: want a section of keys, not "info"`},
		{"log: [info]\n", `c.yaml:1:6: log: want a section of keys, not a list`},
		{"- log\n", `c.yaml:1:1: want a section of keys, not a list`},
		{"log:\n  level:\n", `c.yaml:2:3: log.level: want a text, not nothing`},
		{"acme:\n  enabled: yes\n", `c.yaml:2:12: acme.enabled: want true or false, not "yes"`},
		{"serials: {shard: 128}", `c.yaml:1:11: serials.shard: "128" is not allowed: want 1 to 127`},
		{"serials: {shard: 1.5}", `c.yaml:1:18: serials.shard: want a whole number, not "1.5"`},
		{"serials: {shard: 18446744073709551615}", `c.yaml:1:18: serials.shard: number out of range`},
		{"limits: {idle_timeout: 10}", `c.yaml:1:24: limits.idle_timeout: "10": want a duration such as 30s, 12h or 90d`},
		{"limits: {idle_timeout: 2h}", `c.yaml:1:10: limits.idle_timeout: "2h" is not allowed: want 1s to 1h`},
		{"limits: {body_size: 64k}", `c.yaml:1:21: limits.body_size: "64k": want a size such as 512B, 64KiB or 1MiB`},
		{"limits: {header_timeout: 31s}", `c.yaml:1:10: limits.header_timeout: 31s is more than limits.read_timeout, 20s`},
		{"trusted_proxies:\n  from:\n    - 10.0.0.0/8\n    - 10.0.0.1/8\n", `c.yaml:4:7: trusted_proxies.from[1]: "10.0.0.1/8": the address has bits beyond its prefix; did you mean 10.0.0.0/8?`},
		{"trusted_proxies: {from: [0.0.0.0/0]}", `c.yaml:1:26: trusted_proxies.from[0]: 0.0.0.0/0 is everybody: any client could claim any address`},
		{"trusted_proxies: {from: 10.0.0.0/8}", `c.yaml:1:25: trusted_proxies.from: want a list, not "10.0.0.0/8"`},
		{"listen: {http: {address: 8080}}", `c.yaml:1:26: listen.http.address: "8080": want host and port such as 127.0.0.1:8080, [::1]:8080 or :8080`},
		{"listen: {http: {address: \"\"}}", `c.yaml:1:17: listen.http.address: can't be left out or empty`},
		{"listen: {https: {address: \"127.0.0.1:8080\"}}", `c.yaml:1:18: listen.https.address: 127.0.0.1:8080 is taken by listen.http.address`},
		{"listen: {http: {external_url: https://pki.example.org}}", `c.yaml:1:17: listen.http.external_url: "https://pki.example.org": want http://host or http://host:port, without a path`},
		{"listen: {https: {external_url: https://example.org/pki}}", `c.yaml:1:18: listen.https.external_url: "https://example.org/pki": want https://host or https://host:port, without a path`},
		{"acme: {website: \"https://me:pw@example.org\"}", `c.yaml:1:17: acme.website: "https://me:pw@example.org": a URL here can't hold a user or a password`},
		{"acme: {website: \"https://example.org?x\"}", `c.yaml:1:17: acme.website: "https://example.org?x": a URL here can't hold a query or a fragment`},
		{"listen: {https: {files: {cert_file: a.pem}}}", `c.yaml:1:18: listen.https.files: cert_file and key_file go together`},
		{"store: {engine: postgres}", `c.yaml:1:1: store.postgres.url: needed by engine postgres: set one of file, env and credential`},
		{"keys: {passphrase: {file: a, env: B}}", `c.yaml:1:8: keys.passphrase: more than one source: set exactly one of file, env and credential`},
		{"issuers: [{name: a, certificate: a.pem}]", `c.yaml:1:11: issuers[0].key: can't be left out or empty`},
		{"profiles: [{name: a}, {name: a}]", `c.yaml:1:24: profiles[1].name: "a" is taken by another profile`},
		{"profiles: [{name: secsy-x}]", `c.yaml:1:13: profiles[0].name: names that begin with "secsy-" are the CA's own`},
		{"profiles: [{name: a, issuers: [b]}]", `c.yaml:1:32: profiles[0].issuers[0]: there is no issuer "b"`},
		{"profiles: [{name: a, validity: 1h}]", `c.yaml:1:12: profiles[0].backdate: 1h is not less than the validity, 1h`},
		{"profiles: [{name: a, identifiers: {dns: false, wildcards: false}}]", `c.yaml:1:22: profiles[0].identifiers: allow at least one kind of name`},
		{"profiles: [{name: a, key_algorithms: [rsa-1024]}]", `c.yaml:1:39: profiles[0].key_algorithms[0]: "rsa-1024" is not allowed: want ecdsa-p256, ecdsa-p384, ecdsa-p521, rsa-2048, rsa-3072, rsa-4096, ed25519`},
		{"default_profile: b", `c.yaml:1:1: default_profile: there is no profile "b"`},
		{"ocsp: {enabled: false}", `c.yaml: profiles[0].ocsp: the responder is off: set ocsp.enabled, or this to false`},
		{"issuers:\n- {name: a, certificate: a.pem, key: a, crl: {delta: 13h}}", `c.yaml:2:47: issuers[0].crl.delta: 13h is more than crl.period, 12h: a delta that is as rare as whole lists says nothing new`},
		{"issuers:\n- {name: a, certificate: a.pem, key: a, crl: {delta: 4m}}", `c.yaml:2:47: issuers[0].crl.delta: 4m: want 0s for none, or at least 5m`},
		{"issuers:\n- {name: a, certificate: a.pem, key: a, crl: {shards: 257}}", `c.yaml:2:47: issuers[0].crl.shards: "257" is not allowed: want 1 to 256`},
		{"issuers:\n- {name: a, certificate: a.pem, key: a, crl: {delta_in_certificates: true}}", `c.yaml:2:47: issuers[0].crl.delta_in_certificates: there is no delta to point to: set delta, or this to false`},
		{"profiles:\n- {name: a, no_rev_avail: true}", `c.yaml:2:13: profiles[0].no_rev_avail: says that there is no status, beside what says where it is: set ocsp and crl to false, or this`},
		{"crl: {period: 25h}", `c.yaml:1:7: crl.period: "1d1h" is not allowed: want 5m to 24h`},
		{"crl: {validity: 11d}", `c.yaml:1:7: crl.validity: "11d" is not allowed: want 1h to 10d`},
		{"crl: {period: 4h, validity: 7h}", `c.yaml:1:19: crl.validity: 7h is less than twice crl.period, 4h`},
		{"limits: {read_timeout: 5s}", `c.yaml:1:1: limits.header_timeout: 10s is more than limits.read_timeout, 5s`},
		{"crl: {period: 5m, after_revocation: 10m}", `c.yaml:1:19: crl.after_revocation: 10m is more than crl.period, 5m`},
		{"rate_limit: {per_ip: {rate: 20, burst: 0}}", `c.yaml:1:33: rate_limit.per_ip.burst: 0 with a rate of 20 would refuse everything: want at least 1, or a rate of 0 for no limit`},
		{"rate_limit: {global: {rate: -1}}", `c.yaml:1:29: rate_limit.global.rate: "-1": want events a second from 0 to 1000000, such as 20, 0.5, 30/m or 100/h`},
		{"rate_limit: {per_account: {burst: -1}}", `c.yaml:1:28: rate_limit.per_account.burst: "-1" is not allowed: want 0 to 1000000`},
		{"rate_limit: {concurrency: {max_queue: -1}}", `c.yaml:1:28: rate_limit.concurrency.max_queue: "-1" is not allowed: want 0 to 100000`},
		{"rate_limit: {max_keys: 0}", `c.yaml:1:14: rate_limit.max_keys: "0" is not allowed: want 1000 to 100000000`},
		{"rate_limit: {per_ip: {rate: 1/m, burst: 20}}", `c.yaml:1:14: rate_limit.per_ip: an empty bucket takes 1200 seconds to refill, longer than rate_limit.idle_ttl_seconds, 600; raise that, or make burst smaller`},
		{"rate_limit: {endpoints: [{name: ocsp, total: {rate: 1}}]}", `c.yaml:1:39: rate_limit.endpoints[0].total.burst: 0 with a rate of 1 would refuse everything: want at least 1, or a rate of 0 for no limit`},
		{"rate_limit: {endpoints: [{name: crl, total: {rate: 1, burst: 1}}, {name: crl, per_ip: {rate: 1, burst: 1}}]}", `c.yaml:1:68: rate_limit.endpoints[1].name: "crl" is given twice`},
		{"rate_limit: {endpoints: [{name: crl}]}", `c.yaml:1:26: rate_limit.endpoints[0]: limits nothing: set a rate and a burst in per_ip, in total, or in both`},
		{"rate_limit: {endpoints: [{name: crl, rate: 1}]}", `c.yaml:1:38: rate_limit.endpoints[0].rate: unknown key; allowed here: name, per_ip, total`},
		{"rate_limit: {per_ip: {rate: .inf}}", `c.yaml:1:29: rate_limit.per_ip.rate: ".inf": want events a second from 0 to 1000000, such as 20, 0.5, 30/m or 100/h`},
		{"rate_limit: {per_ip: {rate: .nan}}", `c.yaml:1:29: rate_limit.per_ip.rate: ".nan": want events a second from 0 to 1000000, such as 20, 0.5, 30/m or 100/h`},
		{"rate_limit: {overrides: [{account: a, rate: 1, burst: 1}, {account: a, exempt: true}]}", `c.yaml:1:60: rate_limit.overrides[1].account: a has an override already, rate_limit.overrides[0]`},
		{"rate_limit: {overrides: [{source: 10.0.0.1, rate: 1, burst: 1}, {source: 10.0.0.1/32, exempt: true}]}", `c.yaml:1:66: rate_limit.overrides[1].source: 10.0.0.1/32 has an override already, rate_limit.overrides[0]`},
		{"rate_limit: {overrides: [{source: 0.0.0.0/0, exempt: true}]}", `c.yaml:1:27: rate_limit.overrides[0].source: 0.0.0.0/0 is everybody: to have no limit for each client, set rate_limit.per_ip.rate to 0`},
		{"rate_limit: {overrides: [{account: a, exempt: true, burst: 5}]}", `c.yaml:1:26: rate_limit.overrides[0]: set exempt, or a rate and a burst`},
		{"rate_limit: {overrides: [{exempt: true}]}", `c.yaml:1:26: rate_limit.overrides[0]: set exactly one of source and account`},
		{"rate_limit: {overrides: [{account: a}]}", `c.yaml:1:26: rate_limit.overrides[0]: set exempt, or a rate and a burst`},
		{"rate_limit: {nat64: [\"64:ff9b::/64\"]}", `c.yaml:1:22: rate_limit.nat64[0]: 64:ff9b::/64: want an IPv6 prefix of 96 bits, such as 64:ff9b::/96`},
		{"rate_limit: {enabled: true, global: {rate: 0}, per_ip: {rate: 0}, per_account: {rate: 0}, concurrency: {enabled: false}}", `c.yaml:1:14: rate_limit.enabled: true, but no tier has a rate and the guard is off: set a rate and a burst, concurrency.enabled, or this to false`},
		{"acme: {pre_authorization: true, reuse_authorizations: false}", `c.yaml:1:8: acme.pre_authorization: needs acme.reuse_authorizations: what is proven ahead of an order is of use only if orders rely on it`},
		{"acme: {profiles: [{name: none, description: x}]}", `c.yaml:1:20: acme.profiles[0].name: there is no profile "none"`},
		{"acme: {profiles: [{name: tls-server, description: x}, {name: tls-server, description: y}]}", `c.yaml:1:56: acme.profiles[1].name: "tls-server" is given twice`},
		{"acme: {profiles: [{name: tls-server, description: \"a\\nb\"}]}", `c.yaml:1:38: acme.profiles[0].description: want at most 200 octets of printable text`},
		{"a: &x b", `c.yaml:1:4: anchors, aliases and merge keys can't be used here: write the value out`},
		{"a: !!str b", `c.yaml:1:4: tags can't be used here`},
		{"log: {}\n---\nlog: {}\n", `c.yaml:2:1: more than one YAML document`},
		{"log: \"\xff\"", `c.yaml: not UTF-8`},
		{"log: [", `c.yaml:1:6: not YAML: sequence end token ']' not found`},
	} {
		_, err := Parse("c.yaml", []byte(c.text))
		if err == nil || err.Error() != c.want {
			t.Errorf("%q:\ngot  %v\nwant %s", c.text, err, c.want)
		}
	}
}

func TestAllErrorsComeAtOnceInOrder(t *testing.T) {
	t.Parallel()
	_, err := Parse("c.yaml", []byte("crl: {period: soon}\nlog:\n  level: loud\n  size: 3\nserials: {shard: 0}\n"))
	want := `c.yaml:1:15: crl.period: "soon": want a duration such as 30s, 12h or 90d
c.yaml:3:3: log.level: "loud" is not allowed: want debug, info, warn, error
c.yaml:4:3: log.size: unknown key; allowed here: level, format
c.yaml:5:11: serials.shard: "0" is not allowed: want 1 to 127`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestErrorsAreBounded(t *testing.T) {
	t.Parallel()
	_, err := Parse("c.yaml", []byte("trusted_proxies: {from: ["+strings.Repeat("x,", 5000)+"]}"))
	if got := strings.Count(err.Error(), "\n"); got != maxErrors {
		t.Errorf("%d line ends", got)
	}
	if !strings.HasSuffix(err.Error(), "\nand 4980 more") {
		t.Errorf("got %s", err)
	}
}

func TestHostileFilesAreRefusedEarly(t *testing.T) {
	t.Parallel()
	const n = maxFile / 4
	for what, text := range map[string]string{
		"too large":  strings.Repeat("#", maxFile+1),
		"flow":       strings.Repeat("[", n),
		"dashes":     strings.Repeat("- ", n/2),
		"keys":       strings.Repeat("a: b\n", n/5),
		"tags":       strings.Repeat("!a ", n/3),
		"complex":    strings.Repeat("? ", n/2),
		"deep block": deepBlock(1000),
		"aliases":    "a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\n",
	} {
		if _, err := Parse("c.yaml", []byte(text)); err == nil {
			t.Errorf("%s: accepted", what)
		} else if len(err.Error()) > 10_000 {
			t.Errorf("%s: error of %d octets", what, len(err.Error()))
		}
	}
}

func deepBlock(depth int) string {
	var b strings.Builder
	for i := range depth {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func TestRelativePathsStartAtTheFile(t *testing.T) {
	t.Parallel()
	c := mustParse(t, `
data_dir: ../../var/lib/secsy-pki
store: {sqlite: {path: db/secsy.db}}
issuers: [{name: a, certificate: a.pem, chain: [b.pem, /c.pem], key: a}]
`)
	for got, want := range map[Path]Path{
		c.DataDir:                "/var/lib/secsy-pki",
		c.Keys.Directory:         "/var/lib/secsy-pki/keys",
		c.Listen.Operator.Socket: "/var/lib/secsy-pki/operator.sock",
		c.Store.SQLite.Path:      "/etc/secsy-pki/db/secsy.db",
		c.Issuers[0].Certificate: "/etc/secsy-pki/a.pem",
		c.Issuers[0].Chain[0]:    "/etc/secsy-pki/b.pem",
		c.Issuers[0].Chain[1]:    "/c.pem",
		c.Issuers[0].Root:        "",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestPublicPolicyRefusesWhatTheRulesForbid(t *testing.T) {
	t.Parallel()
	_, err := Parse("c.yaml", []byte(`policy: public
issuers:
  - {name: i, certificate: i.pem, key: i, hold: true}
profiles:
  - name: a
    validity: 201d
    extended_key_usages: [serverAuth, clientAuth]
    key_algorithms: [ed25519]
    key_usages: [keyAgreement]
acme:
  authorization_lifetime: 201d
  caa: off
  validation: {http01_port: 81, https_port: 8443, tls_alpn01_port: 444, allow_private_addresses: true, allow: [127.0.0.1]}
`))
	want := []string{
		"issuers[0].hold", "profiles[0].validity", "profiles[0].extended_key_usages[1]", "profiles[0].key_algorithms[0]", "profiles[0].key_usages[0]",
		"acme.caa_identities", "acme.authorization_lifetime", "acme.caa", "acme.validation.dnssec", "acme.validation.http01_port", "acme.validation.https_port", "acme.validation.tls_alpn01_port",
		"acme.validation.allow_private_addresses", "acme.validation.allow",
	}
	got, ok := errors.AsType[Errors](err)
	if !ok {
		t.Fatalf("got %v", err)
	}
	keys := make([]string, len(got))
	for i, e := range got {
		keys[i] = e.Key
	}
	if !reflect.DeepEqual(keys, want) {
		t.Errorf("got  %q\nwant %q", keys, want)
	}
	cfg := mustParse(t, "policy: public\nacme: {caa_identities: [ca.example.org], validation: {dnssec: ad, resolver: \"127.0.0.1:53\"}}\n")
	if !cfg.ChecksCAA() {
		t.Error("CAA is not checked under policy public")
	}
}

// TestCAAIsKeptToWhereItCanMeanThisCA: without a domain of ours in CAA records,
// all that they can do is forbid.
func TestCAAIsKeptToWhereItCanMeanThisCA(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"":                                       false,
		"acme: {caa_identities: [ca.example]}\n": true,
		"acme: {caa_identities: [ca.example], caa: off}\n": false,
		"acme: {caa: on}\n": true,
	} {
		if got := mustParse(t, text).ChecksCAA(); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestUnissuedSerialsAreNeverOnHoldUnderPolicyPublic(t *testing.T) {
	t.Parallel()
	const public = "policy: public\nacme: {caa_identities: [ca.example.org], validation: {dnssec: ad, resolver: \"127.0.0.1:53\"}}\n"
	mustParse(t, "ocsp: {unissued: revoked}\n")
	_, err := Parse("c.yaml", []byte(public+"ocsp: {unissued: revoked}\n"))
	if got, ok := errors.AsType[Errors](err); !ok || len(got) != 1 || got[0].Key != "ocsp.unissued" {
		t.Errorf("%v; want one about ocsp.unissued", err)
	}
}

func TestChallengesAndResolverGoTogether(t *testing.T) {
	t.Parallel()
	for text, key := range map[string]string{
		"acme: {challenges: []}\n":                                         "acme.challenges",
		"acme: {challenges: [http-01, http-01]}\n":                         "acme.challenges[1]",
		"acme: {challenges: [tls-sni-01]}\n":                               "acme.challenges[0]",
		"acme: {challenges: [dns-persist-01]}\n":                           "acme.caa_identities",
		"acme: {validation: {dnssec: ad}}\n":                               "acme.validation.resolver",
		"acme: {validation: {dnssec: strict, resolver: \"127.0.0.1:53\"}}": "acme.validation.dnssec",
	} {
		_, err := Parse("c.yaml", []byte(text))
		if got, ok := errors.AsType[Errors](err); !ok || len(got) != 1 || got[0].Key != key {
			t.Errorf("%s: %v; want one about %s", text, err, key)
		}
	}
}

func TestServingNeedsMoreThanBeingValid(t *testing.T) {
	t.Parallel()
	err := mustParse(t, "").ValidateServe()
	for _, key := range []string{"issuers", "keys.passphrase", "listen.http.external_url", "listen.https.external_url"} {
		if !strings.Contains(err.Error(), key+": ") {
			t.Errorf("%s is not missed in\n%v", key, err)
		}
	}
	c := mustParse(t, `
listen: {http: {external_url: "http://pki.example.org/"}, https: {external_url: "https://pki.example.org"}}
keys: {passphrase: {env: PASS}}
issuers: [{name: a, certificate: a.pem, key: a}]
`)
	if err := c.ValidateServe(); err != nil {
		t.Error(err)
	}
}

const full = `
data_dir: /var/lib/x
log: {level: debug, format: json}
listen:
  http: {address: "[::1]:80", external_url: "http://pki.example.org", proxy_protocol: {from: [10.0.0.0/8, "2001:db8::/32"]}}
  https: {address: ":443", certificate: {names: [acme.example.org, "2001:db8::1"]}}
  operator: {address: "", socket: /run/x.sock}
store: {engine: postgres, postgres: {url: {credential: db}}}
keys:
  passphrase: {file: "pass phrase #1"}
  pkcs11:
    module: m.so
    pin: {prompt: true}
    tokens: [{label: "my token", slot: 0x10}, {serial: "0123", name: b, pin: {credential: pin}}]
    sessions: {min: 2, max: 16, idle: 1m}
issuers:
  - {name: old, certificate: old.pem, key: "pkcs11:object=old;id=%01", active: false}
  - {name: "1e3", certificate: new.pem, chain: [cross.pem], root: root.pem, key: "0x10"}
profiles:
  - {name: short, issuers: ["1e3"], validity: 1d12h, permitted_dns: [example.org], excluded_ip: [10.0.0.1]}
  - {name: "true", key_usages: []}
acme: {validation: {resolver: "[::1]:53"}}
`

func TestMarshalReadsBackAsTheSame(t *testing.T) {
	t.Parallel()
	want := mustParse(t, full)
	for form, text := range map[string][]byte{"plain": want.Marshal(), "commented": want.MarshalCommented()} {
		if got := mustParse(t, string(text)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n%s\ngot  %+v\nwant %+v", form, text, got, want)
		}
	}
}

func TestEveryFieldCanBeRead(t *testing.T) {
	t.Parallel()
	// With a list in the place of each value, every kind of field meets the decoder.
	var visit func(typ reflect.Type, open, closing string)
	visit = func(typ reflect.Type, open, closing string) {
		for f := range typ.Fields() {
			key := open + f.Tag.Get("yaml") + ": "
			switch {
			case isSection(f.Type):
				visit(f.Type, key+"{", "}"+closing)
			case isSectionList(f.Type):
				visit(f.Type.Elem(), key+"[{", "}]"+closing)
			default:
				if _, err := Parse("c.yaml", []byte(key+"[[]]"+closing)); err == nil {
					t.Errorf("%s takes a list of lists", key)
				}
			}
		}
	}
	visit(reflect.TypeFor[Config](), "{", "}")
}

func TestDiffTellsReloadableFromRestart(t *testing.T) {
	t.Parallel()
	before := mustParse(t, "")
	after := mustParse(t, `
log: {level: debug, format: json}
trusted_proxies: {from: [10.0.0.0/8]}
acme: {max_pending_orders: 5, enabled: false}
profiles: [{name: tls-server, validity: 30d}]
issuers: [{name: a, certificate: a.pem, key: a}]
rate_limit: {enabled: true, per_ip: {rate: 5}, max_keys: 5000}
`)
	live, restart := Diff(before, after)
	if want := []Change{
		{"log.level", "info", "debug"},
		{"trusted_proxies.from", "[]", "[10.0.0.0/8]"},
		{"rate_limit.enabled", "false", "true"},
		{"rate_limit.per_ip.rate", "20", "5"},
	}; !reflect.DeepEqual(live, want) {
		t.Errorf("reloadable: got %v, want %v", live, want)
	}
	if want := []Change{
		{"log.format", "text", "json"},
		{"rate_limit.max_keys", "100000", "5000"},
		{"issuers", "0 entries", "1 entries"},
		{"profiles[0].validity", "90d", "30d"},
		{"acme.enabled", "true", "false"},
		{"acme.max_pending_orders", "300", "5"},
	}; !reflect.DeepEqual(restart, want) {
		t.Errorf("needs restart: got %v, want %v", restart, want)
	}
	live, restart = Diff(before, before)
	if live != nil || restart != nil {
		t.Errorf("got %v and %v for no change", live, restart)
	}
}

func TestDurationsReadBackAsWritten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"0s": 0, "90d": 90 * day, "1d12h": 36 * time.Hour, "1h30m": 90 * time.Minute, "500ms": time.Second / 2, "90m": 90 * time.Minute,
	} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err != nil || d.Std() != want {
			t.Errorf("%q: got %v, %v", text, d, err)
		}
	}
	for _, text := range []string{"", "1", "s", "-1s", "1.5h", "1h1h", "1m1h", "1w", "1 h", "99999999999999999999d", "9999999999d", "53375d53375d"} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: accepted as %v", text, d)
		}
	}
	if err := quick.Check(func(ms uint32) bool {
		want := Duration(ms) * Duration(time.Millisecond)
		var got Duration
		return got.UnmarshalText([]byte(want.String())) == nil && got == want
	}, nil); err != nil {
		t.Error(err)
	}
}

// Whoever wants only the signatures bounded gets that.
func TestGuardAloneIsEnough(t *testing.T) {
	t.Parallel()
	text := "rate_limit: {enabled: true, global: {rate: 0}, per_ip: {rate: 0}, per_account: {rate: 0}}"
	if _, err := Parse("c.yaml", []byte(text)); err != nil {
		t.Error(err)
	}
}

func TestTextTypesReadBackAsWritten(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		into encoding.TextUnmarshaler
		text string
		want string // empty: refused
	}{
		{new(Size), "64KiB", "64KiB"},
		{new(Size), "1024KiB", "1MiB"},
		{new(Size), "64", ""},
		{new(Size), "-1B", ""},
		{new(Rate), "20", "20"},
		{new(Rate), "0.5/s", "0.5"},
		{new(Rate), "30/m", "0.5"},
		{new(Rate), "900/h", "0.25"},
		{new(Rate), "1e3", ""},
		{new(Rate), "-1", ""},
		{new(Rate), "NaN", ""},
		{new(Rate), "1000001", ""},
		{new(Rate), "/s", ""},
		{new(OptionalCIDR), "10.0.0.0/8", "10.0.0.0/8"},
		{new(OptionalCIDR), "10.0.0.1/8", ""},
		{new(CIDR), "", ""},
		{new(CIDR), "10.1.2.3", "10.1.2.3/32"},
		{new(CIDR), "::ffff:10.0.0.0/104", ""},
		{new(CIDR), "fe80::1%eth0", ""},
		{new(URL), "HTTPS://Example.org/", "https://example.org"},
		{new(URL), "ftp://example.org", ""},
		{new(URL), "http://", ""},
		{new(URL), "http:example.org", ""},
		{new(URL), "http://example.org:", ""},
		{new(URL), "http://example.org:0", ""},
		{new(URL), "http://exämple.org", ""},
		{new(URL), "http://example.org#", ""},
		{new(Address), ":0", ":0"},
		{new(Address), "[::1]:80", "[::1]:80"},
		{new(Address), "::1:80", ""},
		{new(Address), "127.0.0.1:080", ""},
		{new(Address), "127.0.0.1:65536", ""},
		{new(HostPort), "dns.example.org:53", "dns.example.org:53"},
		{new(HostPort), ":53", ""},
		{new(HostPort), "127.0.0.1:0", ""},
		{new(Domain), "example.org", "example.org"},
		{new(Domain), "Example.org", ""},
		{new(Domain), "example.org.", ""},
		{new(Domain), "-a.example", ""},
		{new(Domain), "127.0.0.1", ""},
		{new(Host), "127.0.0.1", "127.0.0.1"},
		{new(Host), "::ffff:127.0.0.1", "127.0.0.1"},
		{new(Host), "*.example.org", ""},
		{new(Name), "a-B_c.1", "a-B_c.1"},
		{new(Name), "../a", ""},
		{new(KeyRef), "a-1", "a-1"},
		{new(KeyRef), "pkcs11:id=%01", "pkcs11:id=%01"},
		{new(KeyRef), "pkcs12:id=%01", ""},
		{new(TokenLabel), "a b", "a b"},
		{new(TokenLabel), "a ", ""},
		{new(TokenLabel), "a\x00", ""},
		{new(TokenSerial), "00ff", "00ff"},
		{new(TokenSerial), "00ff ", ""},
		{new(SlotID), "0", "0"},
		{new(SlotID), "0x1F", "31"},
		{new(SlotID), "1_0", ""},
		{new(SlotID), "0x", ""},
		{new(SlotID), "18446744073709551616", ""},
		{new(Name), "a b", ""},
		{new(EnvName), "SECSY_X", "SECSY_X"},
		{new(EnvName), "1X", ""},
		{new(Path), "a/../b", "b"},
		{new(Path), "a\nb", ""},
	} {
		err := c.into.UnmarshalText([]byte(c.text))
		got := plain(reflect.ValueOf(c.into).Elem())
		if c.want == "" && err == nil {
			t.Errorf("%T: %q accepted as %q", c.into, c.text, got)
		}
		if c.want != "" && (err != nil || got != c.want) {
			t.Errorf("%T: %q: got %q, %v, want %q", c.into, c.text, got, err, c.want)
		}
	}
}

func TestSecretComesFromExactlyOneSource(t *testing.T) {
	dir := t.TempDir()
	for file, content := range map[string]string{"a": "hush\n", "crlf": "hush\r\n", "two": "hush\n\n", "empty": "\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("SECSY_TEST_SECRET", "hush")
	t.Setenv("CREDENTIALS_DIRECTORY", dir)
	path := func(file string) Path { return Path(filepath.Join(dir, file)) }
	for _, c := range []struct {
		from Secret
		want string // empty: an error
	}{
		{Secret{File: path("a")}, "hush"},
		{Secret{File: path("crlf")}, "hush"},
		{Secret{File: path("two")}, "hush\n"},
		{Secret{Env: "SECSY_TEST_SECRET"}, "hush"},
		{Secret{Credential: "a"}, "hush"},
		{Secret{}, ""},
		{Secret{File: path("empty")}, ""},
		{Secret{File: path("absent")}, ""},
		{Secret{Env: "SECSY_TEST_ABSENT"}, ""},
		{Secret{File: path("a"), Env: "SECSY_TEST_SECRET"}, ""},
	} {
		got, err := c.from.Read()
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%+v: got %q, %v", c.from, got, err)
		}
		if err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("the error tells the secret: %v", err)
		}
	}
}

func TestLoadReadsOneFileOfBoundedSize(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.yaml")
	if _, err := Load(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
	if err := os.WriteFile(file, []byte("log: {level: warn}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(file)
	if err != nil || c.Log.Level != "warn" || string(c.DataDir) != filepath.Dir(file) {
		t.Errorf("got %+v, %v", c, err)
	}
	if err := os.WriteFile(file, make([]byte, 2*maxFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file); err == nil {
		t.Error("a file of 2 MiB was read")
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", full, Reference(), "a: [", "log: {level: \"\\u0069nfo\"}", "? a", "- - -", "keys: {passphrase: {file: \"a\\tb\"}}", "log:\n  level: |\n    info\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(name, data)
		if err != nil {
			if _, ok := errors.AsType[Errors](err); !ok {
				t.Errorf("an error of another type: %v", err)
			}
			for line := range strings.Lines(err.Error()) {
				if !strings.HasPrefix(line, name+":") && !strings.HasPrefix(line, "and ") {
					t.Errorf("a line without its place: %q", line)
				}
			}
			return
		}
		if err := c.Validate(); err != nil {
			t.Errorf("parsed, but not valid: %v", err)
		}
		again, err := Parse(name, c.Marshal())
		if err != nil {
			t.Fatalf("%v in\n%s", err, c.Marshal())
		}
		if !reflect.DeepEqual(c, again) {
			t.Errorf("got  %+v\nwant %+v", again, c)
		}
	})
}
