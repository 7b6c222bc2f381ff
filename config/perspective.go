package config

import (
	_ "embed"
	"fmt"
	"path/filepath"
	"reflect"
	"time"
)

// The rules of schema.go hold here, too.

// A Perspective is another place of the Internet that looks for us.
type Perspective struct {
	// Its name, as in its own configuration.
	Name Name `yaml:"name" required:"true" example:"fra1"`

	// The regional Internet registry of the network that it looks from, as in its
	// own configuration.
	Region string `yaml:"region" required:"true" example:"ripencc" allow:"afrinic|apnic|arin|lacnic|ripencc"`

	// Where it listens. Its certificate must be for this host.
	URL URL `yaml:"url" required:"true" example:"https://fra1.perspectives.example.org:8444"`

	// Certificates for this one. What is empty is taken from perspective_tls.
	TLS PerspectiveTLS `yaml:"tls"`
}

// PerspectiveTLS are the files for connections to perspectives.
type PerspectiveTLS struct {
	// PEM: the CAs that a perspective's certificate must chain to.
	CABundle Path `yaml:"ca_bundle"`

	// PEM: our certificate as a TLS client, then those above it. It is read again
	// when it changes.
	Certificate Path `yaml:"certificate"`

	// PEM: its private key, unencrypted.
	Key Path `yaml:"key"`
}

// TLSOf is what p is connected to with.
func (v *Validation) TLSOf(p Perspective) PerspectiveTLS {
	out := p.TLS
	for _, f := range []struct{ to, from *Path }{
		{&out.CABundle, &v.PerspectiveTLS.CABundle}, {&out.Certificate, &v.PerspectiveTLS.Certificate}, {&out.Key, &v.PerspectiveTLS.Key},
	} {
		if *f.to == "" {
			*f.to = *f.from
		}
	}
	return out
}

// maxPerspectives are as many as are asked at once.
const maxPerspectives = 32

func (c *Config) checkPerspectives(r *report) {
	v := &c.ACME.Validation
	const list = "acme.validation.perspectives"
	if len(v.Perspectives) > maxPerspectives {
		r.add(list, "there are %d: want at most %d", len(v.Perspectives), maxPerspectives)
	}
	if v.Quorum > len(v.Perspectives) {
		r.add("acme.validation.quorum", "%d can't be had from %d perspectives", v.Quorum, len(v.Perspectives))
	}
	names, urls := map[Name]bool{}, map[URL]bool{}
	for i, p := range v.Perspectives {
		key := fmt.Sprintf("%s[%d]", list, i)
		if names[p.Name] {
			r.add(key+".name", "%s is taken by another perspective", quote(string(p.Name)))
		}
		if urls[p.URL] {
			r.add(key+".url", "%s is another perspective's: one that is asked twice is no second one", quote(string(p.URL)))
		}
		names[p.Name], urls[p.URL] = true, true
		checkExternal(r, key+".url", p.URL, "https")
		t, own := v.TLSOf(p), p.TLS
		for _, f := range []struct {
			name string
			path Path
		}{{"ca_bundle", t.CABundle}, {"certificate", t.Certificate}, {"key", t.Key}} {
			if f.path == "" {
				r.add(key+".tls."+f.name, "needed, here or in acme.validation.perspective_tls")
			}
		}
		if (own.Certificate == "") != (own.Key == "") {
			r.add(key+".tls", "certificate and key go together")
		}
	}
}

// A PerspectiveServer is the configuration file of one remote perspective, which
// "secsy-pki perspective" serves. It has neither keys of a CA nor a database.
type PerspectiveServer struct {
	// What those who ask call it. They refuse answers in another name.
	Name Name `yaml:"name" required:"true"`

	// The regional Internet registry of the network that it looks from. They refuse
	// answers from another region.
	Region string `yaml:"region" required:"true" allow:"afrinic|apnic|arin|lacnic|ripencc"`

	// What is written to standard error.
	Log Log `yaml:"log"`

	// The sockets that it listens on.
	Listen PerspectiveListen `yaml:"listen"`

	// Who may ask.
	Clients PerspectiveClients `yaml:"clients"`

	// The domains by which CAA records name the CA, as in acme.caa_identities of
	// its configuration.
	CAAIdentities []Domain `yaml:"caa_identities"`

	// How it looks. Nothing of it can be changed by those who ask.
	Validation PerspectiveValidation `yaml:"validation"`

	// Bounds.
	Limits PerspectiveLimits `yaml:"limits"`
}

// PerspectiveListen has the listeners of a perspective.
type PerspectiveListen struct {
	// Host and port for questions, by HTTPS with TLS 1.3.
	Address Address `yaml:"address" required:"true"`

	// PEM: the listener's certificate, then those above it, for the host in the URL
	// that it is asked by. It is read again when it changes, and on SIGHUP.
	Certificate Path `yaml:"certificate" required:"true"`

	// PEM: its private key, unencrypted.
	Key Path `yaml:"key" required:"true"`

	// Host and port for /metrics and the health checks. Empty: none.
	Operator Address `yaml:"operator"`
}

// PerspectiveClients are the servers that issue.
type PerspectiveClients struct {
	// PEM: the CAs that a client's certificate must chain to. Use one that issues
	// for nothing else.
	CABundle Path `yaml:"ca_bundle" required:"true"`

	// Names or addresses of which a client's certificate must have one. Empty: any
	// certificate of these CAs is enough.
	Names []Host `yaml:"names"`
}

// PerspectiveValidation is how a perspective goes out and looks.
type PerspectiveValidation struct {
	// The port that http-01 connects to. Public CAs need 80.
	HTTP01Port int `yaml:"http01_port" allow:"1..65535"`

	// The port that https redirects of http-01 may lead to. Public CAs need 443.
	HTTPSPort int `yaml:"https_port" allow:"1..65535"`

	// The port that tls-alpn-01 connects to. Public CAs need 443.
	TLSALPN01Port int `yaml:"tls_alpn01_port" allow:"1..65535"`

	// Host and port of the recursive resolver. Empty: the first of
	// /etc/resolv.conf. It must be this perspective's own: one that others share
	// shows them all the same.
	Resolver HostPort `yaml:"resolver"`

	// With "ad", the resolver is believed only while it proves, by what it says
	// for the root, that it validates DNSSEC. It must be named then.
	DNSSEC string `yaml:"dnssec" allow:"off|ad"`

	// Whether names may resolve to private addresses (RFC 1918, RFC 4193). Those
	// who ask could then reach into this perspective's network.
	AllowPrivateAddresses bool `yaml:"allow_private_addresses"`

	// Further special-purpose ranges that may be connected to, loopback included.
	Allow []CIDR `yaml:"allow"`

	// For one look. Less than perspective_timeout of those who ask, or they hear
	// nothing instead of a timeout.
	Timeout Duration `yaml:"timeout" allow:"1s..2m"`
}

// PerspectiveLimits bound what a perspective does at once.
type PerspectiveLimits struct {
	// Looks under way. A server that issues has as many as acme.validation.workers
	// at a time.
	Looks int `yaml:"looks" allow:"1..4096"`

	// Questions that wait for their turn; the next one is refused at once. 0: none.
	Queue int `yaml:"queue" allow:"0..100000"`

	// The longest wait.
	QueueTimeout Duration `yaml:"queue_timeout" allow:"0s..1m"`

	// Connections open at once.
	MaxConnections int `yaml:"max_connections" allow:"16..100000"`

	// When the program stops, for questions under way to be answered.
	DrainTimeout Duration `yaml:"drain_timeout" allow:"0s..10m"`
}

// DefaultPerspectiveServer is what an empty file means.
func DefaultPerspectiveServer() *PerspectiveServer {
	return &PerspectiveServer{
		Log:    Log{Level: "info", Format: LogText},
		Listen: PerspectiveListen{Address: ":8444", Operator: "127.0.0.1:8081"},
		Validation: PerspectiveValidation{
			HTTP01Port: 80, HTTPSPort: 443, TLSALPN01Port: 443, DNSSEC: DNSSECOff, Timeout: Duration(10 * time.Second),
		},
		Limits: PerspectiveLimits{
			Looks: 64, Queue: 256, QueueTimeout: Duration(2 * time.Second), MaxConnections: 256, DrainTimeout: Duration(20 * time.Second),
		},
	}
}

// LoadPerspectiveServer is Load for the file of a perspective.
func LoadPerspectiveServer(path string) (*PerspectiveServer, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return ParsePerspectiveServer(path, data)
}

// ParsePerspectiveServer is Parse for the file of a perspective.
func ParsePerspectiveServer(name string, data []byte) (*PerspectiveServer, error) {
	c := DefaultPerspectiveServer()
	if err := readDocument(name, data, c); err != nil {
		return nil, err
	}
	return c, nil
}

// DiffPerspectiveServer is Diff for the file of a perspective.
func DiffPerspectiveServer(before, after *PerspectiveServer) (reloadable, needsRestart []Change) {
	d := differ{}
	d.section(reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem(), "", false)
	return d.live, d.restart
}

func (c *PerspectiveServer) check() Errors { return checkValues(reflect.ValueOf(c).Elem()) }

func (c *PerspectiveServer) resolve(dir string) {
	eachPath(c, func(p *Path) {
		if *p != "" && !filepath.IsAbs(string(*p)) {
			*p = Path(filepath.Join(dir, string(*p)))
		}
	})
}

func (c *PerspectiveServer) checkTogether() Errors {
	var r report
	if c.Validation.DNSSEC == DNSSECAD && c.Validation.Resolver == "" {
		r.add("validation.resolver", "needed by dnssec ad: name the resolver that validates")
	}
	if collide(c.Listen.Address, c.Listen.Operator) {
		r.add("listen.operator", "%s is taken by listen.address", c.Listen.Operator)
	}
	return Errors(r)
}

//go:embed perspective.go
var perspectiveSchema string

const perspectiveHead = `# Every key of the configuration file of a remote perspective (secsy-pki
# perspective), with its default. docs/perspectives.md tells what it is for.
#
# Lengths of time are written 90d, 12h, 1h30m or 10s. Paths that do not begin with
# / start at the folder of this file. A key that is left out has the default shown
# here; those that say "Required." and are empty have none. Changes need a restart,
# except to the keys that say "Reloads on SIGHUP".

`

// PerspectiveReference is Reference for the file of a perspective.
func PerspectiveReference() string {
	w := writer{docs: fieldDocs(), all: true}
	return perspectiveHead + w.section(reflect.ValueOf(DefaultPerspectiveServer()).Elem(), reflect.Value{})
}
