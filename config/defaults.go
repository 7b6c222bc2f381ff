package config

import (
	"path/filepath"
	"time"
)

// The words that keys with a choice of values take.
const (
	PolicyInternal = "internal"
	PolicyPublic   = "public"

	EngineSQLite   = "sqlite"
	EnginePostgres = "postgres"

	LogText = "text"
	LogJSON = "json"

	AccessAll    = "all"
	AccessErrors = "errors"
	AccessOff    = "off"

	HeaderXForwardedFor = "x-forwarded-for"
	HeaderForwarded     = "forwarded"

	CommonNameNone  = "none"
	CommonNameFirst = "first"

	BindingOff      = "off"
	BindingOptional = "optional"
	BindingRequired = "required"

	// DeviceAttest01 is the challenge of acme.challenges that needs acme.device_attestation.
	DeviceAttest01 = "device-attest-01"

	ApprovalAuto   = "auto"
	ApprovalManual = "manual"

	CAAAuto = "auto"
	CAAOn   = "on"
	CAAOff  = "off"

	DNSSECOff = "off"
	DNSSECAD  = "ad"

	NonceEcho   = "echo"
	NonceInsist = "insist"
	NonceIgnore = "ignore"

	PresignOff        = "off"
	PresignSHA1       = "sha1"
	PresignSHA256     = "sha256"
	PresignSHA1SHA256 = "sha1+sha256"

	UnissuedUnauthorized = "unauthorized"
	UnissuedRevoked      = "revoked"
)

const day = 24 * time.Hour

// Default returns what an empty file means, before paths are resolved.
func Default() *Config {
	return &Config{
		DataDir: ".",
		Log:     Log{Level: "info", Format: LogText},
		Listen: Listen{
			HTTP:     HTTP{Address: ":8080", AccessLog: AccessErrors},
			HTTPS:    HTTPS{Address: ":8443"},
			Operator: Operator{Address: "127.0.0.1:8081"},
		},
		TrustedProxies: TrustedProxies{Header: HeaderXForwardedFor},
		Limits: Limits{
			HeaderSize:     16 * KiB,
			BodySize:       64 * KiB,
			HeaderTimeout:  Duration(10 * time.Second),
			ReadTimeout:    Duration(20 * time.Second),
			WriteTimeout:   Duration(time.Minute),
			IdleTimeout:    Duration(2 * time.Minute),
			DrainTimeout:   Duration(30 * time.Second),
			MaxConnections: 4096,
		},
		RateLimit: RateLimit{
			Global:           Bucket{Rate: 200, Burst: 400},
			PerIP:            Bucket{Rate: 20, Burst: 40},
			PerAccount:       Bucket{Rate: 50, Burst: 100},
			IPv6PrefixFactor: 4,
			MaxKeys:          100_000,
			IdleTTLSeconds:   600,
			Concurrency:      Concurrency{Enabled: true, MaxQueue: 64, AcquireTimeoutMS: 5000},
			Quotas: Quotas{
				ACMEIdentifiers: Quota{Window: Duration(time.Hour)},
				ACMEDuplicates:  Quota{Window: Duration(7 * day)}, ACMERegisteredDomain: Quota{Window: Duration(7 * day)},
			},
			RefusalBudget: RefusalBudget{Enabled: true, Free: 4, MaxDelay: Duration(time.Minute), Decay: Duration(10 * time.Minute)},
		},
		Store: Store{Engine: EngineSQLite, Postgres: Postgres{MaxConnections: 16}},
		Keys: Keys{PKCS11: PKCS11{
			Sessions:    PKCS11Sessions{Min: 1, Max: 8, Idle: Duration(10 * time.Minute)},
			CallTimeout: Duration(30 * time.Second),
		}},
		Policy:   PolicyInternal,
		Profiles: []Profile{DefaultProfile("tls-server")},
		Serials:  Serials{Shard: 1},
		ACME: ACME{
			Enabled:               true,
			OrderLifetime:         Duration(7 * day),
			AuthorizationLifetime: Duration(30 * day),
			ReuseAuthorizations:   true,
			ReuseOrders:           true,
			MaxPendingOrders:      300,
			Pausing:               Pausing{Enabled: true, Failures: 50, Period: Duration(30 * day)},
			CAA:                   CAAAuto,
			Challenges:            []string{"http-01", "dns-01", "tls-alpn-01"},
			RenewalPoll:           Duration(6 * time.Hour),
			AutoRenewal:           AutoRenewal{MinLifetime: Duration(day), MaxDuration: Duration(30 * day), MaxPerAccount: 100},

			ExternalAccountBinding: BindingOff,

			Validation: Validation{
				HTTP01Port:         80,
				HTTPSPort:          443,
				TLSALPN01Port:      443,
				DNSSEC:             DNSSECOff,
				Timeout:            Duration(10 * time.Second),
				Workers:            64,
				PerspectiveTimeout: Duration(15 * time.Second),
			},
		},
		OCSP: OCSP{Enabled: true, Validity: Duration(4 * day), Nonce: NonceIgnore, Unissued: UnissuedUnauthorized, Presign: PresignOff, PresignRate: 200},
		CRL: CRL{
			Period:          Duration(12 * time.Hour),
			Validity:        Duration(7 * day),
			AfterRevocation: Duration(time.Minute),
		},
	}
}

// DefaultProfile returns a profile that says nothing but its name.
func DefaultProfile(name Name) Profile {
	return Profile{
		Name:              name,
		Validity:          Duration(90 * day),
		Backdate:          Duration(time.Hour),
		KeyUsages:         []string{"digitalSignature"},
		ExtendedKeyUsages: []string{"serverAuth"},
		Identifiers:       Identifiers{DNS: true, Wildcards: true},
		KeyAlgorithms:     []string{"ecdsa-p256", "ecdsa-p384", "rsa-2048", "rsa-3072", "rsa-4096"},
		MaxNames:          100,
		CommonName:        CommonNameNone,
		OCSP:              true,
		CRL:               true,
		CAIssuers:         true,

		SubdomainAuthorizations: true,
	}
}

// A defaulter is an entry of a list; its keys have defaults of their own.
type defaulter interface{ setDefaults() }

func (d *Directory) setDefaults() { *d = Directory{ExternalAccountBinding: BindingOff} }
func (e *EnrolmentEndpoint) setDefaults() {
	*e = EnrolmentEndpoint{Approval: ApprovalAuto, Renewal: EnrolmentRenewal{Enabled: true}}
}
func (i *Issuer) setDefaults()  { *i = Issuer{Active: true, CRL: IssuerCRL{Shards: 1}} }
func (p *Profile) setDefaults() { *p = DefaultProfile("") }

// resolve makes relative paths absolute, from the folder of the file, and fills
// in what other keys decide.
func (c *Config) resolve(dir string) {
	eachPath(c, func(p *Path) {
		if *p != "" && !filepath.IsAbs(string(*p)) {
			*p = Path(filepath.Join(dir, string(*p)))
		}
	})
	within := func(p *Path, name string) {
		if *p == "" {
			*p = Path(filepath.Join(string(c.DataDir), name))
		}
	}
	if c.DataDir == "" {
		c.DataDir = Path(dir)
	}
	within(&c.Listen.Operator.Socket, "operator.sock")
	within(&c.Store.SQLite.Path, "secsy.db")
	within(&c.Keys.Directory, "keys")
	for i := range c.ACME.Directories {
		if d := &c.ACME.Directories[i]; d.Path == "" {
			d.Path = d.Name
		}
	}
	if c.DefaultProfile == "" && len(c.Profiles) > 0 {
		c.DefaultProfile = c.Profiles[0].Name
	}
}
