// Package config is the configuration file: what it may say, what it says when
// it is silent, and what is wrong with it.
package config

// The comments of this file are the reference that Reference prints. A field's
// tags say the rest: allow is the range or the choice of a value, required that
// it can't be left out, reload:"live" that SIGHUP is enough to change it and all
// below it (reload:"restart" takes one key out again), and
// example what the reference shows of a list that is empty by default.

// A Config is one configuration file.
type Config struct {
	// The folder for everything the program writes: database, keys, operator
	// socket. The default is the folder of the configuration file.
	DataDir Path `yaml:"data_dir"`

	// What is written to standard error.
	Log Log `yaml:"log"`

	// The sockets that the program listens on.
	Listen Listen `yaml:"listen"`

	// Proxies in front of the program, whose word on the client's address is
	// taken. Without any, the client is the other end of the connection.
	TrustedProxies TrustedProxies `yaml:"trusted_proxies" reload:"live"`

	// Bounds of each HTTP connection.
	Limits Limits `yaml:"limits"`

	// Admission control: how much one client, and all together, may ask for.
	// docs/admission.md helps to size it. The operator's listeners, health and
	// metrics are never limited.
	RateLimit RateLimit `yaml:"rate_limit" reload:"live"`

	// The database.
	Store Store `yaml:"store"`

	// The private keys of the CA.
	Keys Keys `yaml:"keys"`

	// The CA certificates that the program holds keys of. An issuer that no
	// longer issues stays here, inactive, as long as certificates of it live:
	// their status is signed with its key.
	Issuers []Issuer `yaml:"issuers"`

	// The rule book. Under "public", the CA/Browser Forum's Baseline
	// Requirements limit what profiles and validation may be set to.
	Policy string `yaml:"policy" allow:"internal|public"`

	// The kinds of certificates to be had. Setting this replaces the default list.
	Profiles []Profile `yaml:"profiles"`

	// The profile for those who ask for none. The default is the first profile.
	DefaultProfile Name `yaml:"default_profile"`

	// Public keys that are known to be broken.
	WeakKeys WeakKeys `yaml:"weak_keys"`

	// How serial numbers are drawn.
	Serials Serials `yaml:"serials"`

	// The ACME server (RFC 8555).
	ACME ACME `yaml:"acme"`

	// How devices get certificates that don't speak ACME.
	Enrolment Enrolment `yaml:"enrolment"`

	// The OCSP responder (RFC 6960).
	OCSP OCSP `yaml:"ocsp"`

	// The certificate revocation lists (RFC 5280).
	CRL CRL `yaml:"crl"`
}

// A Log says what is logged and how.
type Log struct {
	// The least severe level that is written.
	Level string `yaml:"level" allow:"debug|info|warn|error" reload:"live"`

	// Lines for people, or one JSON object a line.
	Format string `yaml:"format" allow:"text|json"`
}

// Listen has one section for each listener.
type Listen struct {
	// Plain HTTP, for OCSP, CRLs and CA certificates, which are signed themselves
	// and which clients fetch before they can check a TLS certificate.
	HTTP HTTP `yaml:"http"`

	// HTTPS, for ACME.
	HTTPS HTTPS `yaml:"https"`

	// For the operator alone: metrics and health over HTTP, everything else
	// over a Unix socket.
	Operator Operator `yaml:"operator"`
}

// HTTP is the plain listener.
type HTTP struct {
	// Host and port to listen on; an empty host means all addresses, port 0 a free one.
	Address Address `yaml:"address" required:"true"`

	// The address by which the world reaches this listener, such as
	// http://pki.example.org. It is written into each certificate, so it must
	// work for as long as the certificates live. Needed by profiles with ocsp,
	// crl or ca_issuers.
	ExternalURL URL `yaml:"external_url"`

	// The PROXY protocol (versions 1 and 2) on this listener.
	ProxyProtocol ProxyProtocol `yaml:"proxy_protocol"`

	// Which requests leave a line in the log: all, those that were answered with an
	// error (errors), or none (off). OCSP's own errors are errors. Metrics count
	// all requests, and refusals by the rate limit have lines of their own.
	AccessLog string `yaml:"access_log" allow:"all|errors|off"`

	// One in so many requests leaves a line whatever comes of it; 0: none does.
	AccessSample int `yaml:"access_sample" allow:"0..1000000000"`
}

// HTTPS is the TLS listener.
type HTTPS struct {
	// Host and port to listen on. Empty: no such listener, and no ACME.
	Address Address `yaml:"address"`

	// The address by which ACME clients reach this listener, such as
	// https://acme.example.org. Accounts and orders are addressed below it:
	// changing it makes clients register anew.
	ExternalURL URL `yaml:"external_url"`

	// The PROXY protocol (versions 1 and 2) on this listener.
	ProxyProtocol ProxyProtocol `yaml:"proxy_protocol"`

	// The listener's certificate, issued and renewed by this CA.
	Certificate HTTPSCertificate `yaml:"certificate"`

	// The listener's certificate, made elsewhere. It takes the place of the
	// one this CA would issue.
	Files HTTPSFiles `yaml:"files"`
}

// An HTTPSCertificate is the server certificate that the CA issues to itself.
type HTTPSCertificate struct {
	// Host names and IP addresses in it. Empty: the host of external_url.
	Names []Host `yaml:"names"`
}

// HTTPSFiles are a certificate and key from elsewhere.
type HTTPSFiles struct {
	// PEM: the server's certificate first, then those above it. SIGHUP reads the
	// file again; another path needs a restart.
	CertFile Path `yaml:"cert_file"`

	// PEM: the certificate's private key, unencrypted. SIGHUP reads the file again.
	KeyFile Path `yaml:"key_file"`
}

// An Operator is the listener that strangers never reach.
type Operator struct {
	// Host and port for /metrics and the health checks. Empty: none.
	Address Address `yaml:"address"`

	// The Unix socket that the command line talks to. Whoever may open it may
	// revoke certificates. The default is operator.sock in data_dir.
	Socket Path `yaml:"socket"`
}

// ProxyProtocol says who may speak it.
type ProxyProtocol struct {
	// Addresses of load balancers, as CIDR ranges. Connections from these must
	// begin with a PROXY header, all others must not. Empty: nobody's may.
	From []CIDR `yaml:"from"`
}

// TrustedProxies says whose forwarding headers count.
type TrustedProxies struct {
	// Addresses of proxies, as CIDR ranges.
	From []CIDR `yaml:"from"`

	// The header in which they all write the client's address. Others are ignored.
	Header string `yaml:"header" allow:"x-forwarded-for|forwarded"`
}

// Limits bound each connection and the number of them.
type Limits struct {
	// Of a request's line and headers together.
	HeaderSize Size `yaml:"header_size" allow:"4KiB..1MiB"`

	// Of a request's body.
	BodySize Size `yaml:"body_size" allow:"8KiB..16MiB"`

	// For the headers of a request to arrive. At most read_timeout.
	HeaderTimeout Duration `yaml:"header_timeout" allow:"1s..5m"`

	// For a whole request to arrive.
	ReadTimeout Duration `yaml:"read_timeout" allow:"1s..10m"`

	// From the end of the headers to the end of the answer.
	WriteTimeout Duration `yaml:"write_timeout" allow:"1s..10m"`

	// Between two requests on one connection.
	IdleTimeout Duration `yaml:"idle_timeout" allow:"1s..1h"`

	// When the program stops: how long it says "not ready" while it still
	// accepts connections, for load balancers to notice.
	DrainDelay Duration `yaml:"drain_delay" allow:"0s..5m"`

	// And then, for requests under way to end.
	DrainTimeout Duration `yaml:"drain_timeout" allow:"0s..10m"`

	// Connections open at once, on each listener.
	MaxConnections int `yaml:"max_connections" allow:"16..1000000"`
}

// A RateLimit says how much is admitted.
type RateLimit struct {
	// The one switch. Off, the program still bounds its connections and queues,
	// but refuses nobody for asking often.
	Enabled bool `yaml:"enabled"`

	// Whether refusals of tiers are counted and not made: for watching what a
	// limit would do.
	Shadow bool `yaml:"shadow"`

	// All requests together that make work, and all that have an OCSP answer
	// signed: two buckets of this size. What is ready (CRLs, OCSP answers, nonces,
	// the directory) is not limited by it.
	Global Bucket `yaml:"global"`

	// Each client: an IPv4 address, or an IPv6 /64. It has a bucket of this size
	// for what makes work, one for status, and one for nonces and the directory.
	PerIP Bucket `yaml:"per_ip"`

	// Each account whose proof held: an ACME account, after its signature was
	// checked.
	PerAccount Bucket `yaml:"per_account"`

	// How many times per_ip an IPv6 /48 has.
	IPv6PrefixFactor int `yaml:"ipv6_prefix_factor" allow:"1..65536"`

	// NAT64 prefixes of your network, /96: an address within stands for the IPv4
	// address in its last 32 bits.
	NAT64 []CIDR `yaml:"nat64"`

	// Clients that each tier can tell apart, in memory set aside at start: about
	// 19 octets each. When there are more, those that owe least are forgotten first.
	MaxKeys int `yaml:"max_keys" allow:"1000..100000000" reload:"restart"`

	// The longest that a bucket may take to refill. A client that has been idle
	// for so long is forgotten; one that has a limit to wait for never is.
	IdleTTLSeconds int `yaml:"idle_ttl_seconds" allow:"1..604800"`

	// Further limits of single classes of endpoints.
	Endpoints []EndpointLimit `yaml:"endpoints"`

	// Clients and accounts with limits of their own.
	Overrides []Override `yaml:"overrides"`

	// Signatures at once, and who waits for one.
	Concurrency Concurrency `yaml:"concurrency"`

	// How much may be had in a longer time. Off by default.
	Quotas Quotas `yaml:"quotas" reload:"restart"`

	// Patience with accounts that ask for what is not theirs.
	RefusalBudget RefusalBudget `yaml:"refusal_budget" reload:"restart"`
}

// A Bucket refills at a rate and holds a burst.
type Bucket struct {
	// Requests a second, such as 20 or 0.5; 30/m and 100/h mean a minute and an
	// hour. 0: no limit.
	Rate Rate `yaml:"rate"`

	// Requests at once, after a rest.
	Burst int `yaml:"burst" allow:"0..1000000"`

	// Whether its refusals are counted and not made.
	Shadow bool `yaml:"shadow"`
}

// An EndpointLimit is for one class of endpoints.
type EndpointLimit struct {
	// The class. ocsp_sign are OCSP answers that must be signed, ocsp_nonce those of
	// them that serve one requester only; acme is all of ACME that has no class of
	// its own, and none are paths that do not exist.
	// Revocation has none: it is never limited.
	Name string `yaml:"name" required:"true" example:"acme_new_account" allow:"acme|acme_directory|acme_new_nonce|acme_renewal_info|acme_new_account|acme_new_order|scep|ocsp|ocsp_sign|ocsp_nonce|crl|aia|none"`

	// Each client, at this class.
	PerIP Bucket `yaml:"per_ip"`

	// All clients together, at this class.
	Total Bucket `yaml:"total"`
}

// An Override takes the place of per_ip or per_account.
type Override struct {
	// Clients, as a CIDR range: each address (IPv6 /64) within has the bucket.
	// The longest range counts.
	Source OptionalCIDR `yaml:"source"`

	// An ACME account: the last part of its URL.
	Account Name `yaml:"account"`

	// As in per_ip.
	Rate Rate `yaml:"rate"`

	// As in per_ip.
	Burst int `yaml:"burst" allow:"0..1000000"`

	// No such limit at all. The global one holds.
	Exempt bool `yaml:"exempt"`
}

// Concurrency bounds the use of the keys.
type Concurrency struct {
	// Whether signing is guarded. It needs rate_limit.enabled.
	Enabled bool `yaml:"enabled"`

	// Signatures at once. 0: as many as the key store has sessions, or 8.
	MaxInFlight int `yaml:"max_in_flight" allow:"0..4096"`

	// How many may wait for their turn; the next one is refused at once. 0: none.
	MaxQueue int `yaml:"max_queue" allow:"0..100000"`

	// The longest wait, in milliseconds. 0: nobody waits.
	AcquireTimeoutMS int `yaml:"acquire_timeout_ms" allow:"0..600000"`

	// Whether fewer signatures are tried at once when the device gets slower the
	// more there are. For HSMs behind a network.
	Adaptive bool `yaml:"adaptive"`
}

// Quotas are limits over hours and days, kept in the database.
type Quotas struct {
	// Identifiers in new ACME orders, for each account.
	ACMEIdentifiers Quota `yaml:"acme_identifiers"`

	// New ACME orders of one account for exactly the same names. Renewals by ARI
	// within their window don't count, here and below.
	ACMEDuplicates Quota `yaml:"acme_duplicates"`

	// New ACME orders of all accounts together with names of one registered
	// domain: one label more than the public suffix. They count before anything is
	// proven, so this is for CAs that know who has accounts.
	ACMERegisteredDomain Quota `yaml:"acme_registered_domain"`
}

// Active reports whether there is any.
func (q Quotas) Active() bool {
	return q.ACMEIdentifiers.Limit > 0 || q.ACMEDuplicates.Limit > 0 || q.ACMERegisteredDomain.Limit > 0
}

// A Quota is a limit over a longer time.
type Quota struct {
	// In any stretch of the window. 0: no limit.
	Limit int `yaml:"limit" allow:"0..1000000000"`

	// The stretch. What was used comes back evenly over it.
	Window Duration `yaml:"window" allow:"1s..366d"`
}

// A RefusalBudget slows down, and never locks out.
type RefusalBudget struct {
	// Whether there is one.
	Enabled bool `yaml:"enabled"`

	// Refusals without consequence. From the next one on attempts are 1, 2, 4 …
	// seconds apart.
	Free int `yaml:"free" allow:"1..1000"`

	// The longest time between two attempts.
	MaxDelay Duration `yaml:"max_delay" allow:"1s..10m"`

	// For one refusal to be forgotten.
	Decay Duration `yaml:"decay" allow:"1m..1d"`
}

// A Store is the database.
type Store struct {
	// One file on this machine, or a server that several replicas share.
	Engine string `yaml:"engine" allow:"sqlite|postgres"`

	// For engine sqlite.
	SQLite SQLite `yaml:"sqlite"`

	// For engine postgres.
	Postgres Postgres `yaml:"postgres"`
}

// SQLite is the embedded database.
type SQLite struct {
	// The database file, on a local disk. The default is secsy.db in data_dir.
	Path Path `yaml:"path"`
}

// Postgres is a PostgreSQL server.
type Postgres struct {
	// Where the connection URL comes from, such as
	// postgres://user:password@db.example.org/secsy?sslmode=verify-full. Exactly
	// one source is set.
	URL Secret `yaml:"url"`

	// Connections of this process to the server.
	MaxConnections int `yaml:"max_connections" allow:"2..1000"`
}

// Keys are on an HSM, or in encrypted files.
type Keys struct {
	// The folder of the encrypted key files. The default is keys in data_dir. With
	// pkcs11, the key of the https listener's own certificate is there, and no other:
	// strangers' handshakes never reach the device.
	Directory Path `yaml:"directory"`

	// Where the passphrase that opens them comes from. Exactly one source is set. With
	// pkcs11, it is needed unless listen.https is off or has files.
	Passphrase Secret `yaml:"passphrase"`

	// The keys of the CA, its OCSP responder and its CRLs on an HSM, by PKCS#11. Off
	// without module and tokens. docs/hsm.md tells how to set it up.
	PKCS11 PKCS11 `yaml:"pkcs11"`
}

// PKCS11 says which tokens there are and how they are used.
type PKCS11 struct {
	// The vendor's PKCS#11 module, a shared library.
	Module Path `yaml:"module"`

	// The PIN of the user of each token that has none of its own below.
	PIN PIN `yaml:"pin"`

	// The tokens. They all hold the same keys: signatures are spread over those that
	// are up. Tokens of other keys belong to another program.
	Tokens []PKCS11Token `yaml:"tokens"`

	// The sessions that each token is called with. One session makes one signature at
	// a time.
	Sessions PKCS11Sessions `yaml:"sessions"`

	// How long a call of the device is waited for. One that takes longer hangs: what
	// rests on it fails, and its session is out of use until the call returns.
	CallTimeout Duration `yaml:"call_timeout" allow:"1s..10m"`

	// Calls of one token that may hang before it counts as down. 0: half of
	// sessions.max, rounded up.
	MaxHung int `yaml:"max_hung" allow:"0..256"`
}

// A PIN is where the PIN of a token comes from: exactly one of the four. A wrong
// one is tried once, for tokens lock themselves.
type PIN struct {
	// A file that holds the PIN and nothing else; one line end after it is cut off.
	// Nobody else may read it.
	File Path `yaml:"file"`

	// The name of an environment variable.
	Env EnvName `yaml:"env"`

	// The name of a systemd credential (LoadCredential= or LoadCredentialEncrypted=).
	Credential Name `yaml:"credential"`

	// Whether a person is asked for it at each start, on the terminal.
	Prompt bool `yaml:"prompt"`
}

// A PKCS11Token is one token. It is found by label, serial and slot: those that
// are given must fit, and fit one token only.
type PKCS11Token struct {
	// Its label, as it was initialized with.
	Label TokenLabel `yaml:"label" example:"secsy"`

	// Its serial number.
	Serial TokenSerial `yaml:"serial"`

	// The ID of its slot, a number. Many vendors give another one after each start.
	Slot SlotID `yaml:"slot"`

	// What logs and metrics call it. The default is its label.
	Name Name `yaml:"name"`

	// Its module. The default is keys.pkcs11.module.
	Module Path `yaml:"module"`

	// Its PIN. The default is keys.pkcs11.pin.
	PIN PIN `yaml:"pin"`
}

// PKCS11Sessions is how many there are.
type PKCS11Sessions struct {
	// Kept open.
	Min int `yaml:"min" allow:"1..256"`

	// At most: signatures at once on each token. Ask the vendor where the device is
	// fastest.
	Max int `yaml:"max" allow:"1..256"`

	// For a session above the least to be closed.
	Idle Duration `yaml:"idle" allow:"10s..1d"`
}

// A Secret is where one secret is read from: exactly one of the three.
type Secret struct {
	// A file that holds the secret and nothing else; one line end after it is cut off.
	File Path `yaml:"file"`

	// The name of an environment variable.
	Env EnvName `yaml:"env"`

	// The name of a systemd credential (LoadCredential= or LoadCredentialEncrypted=).
	Credential Name `yaml:"credential"`
}

// An Issuer is one CA certificate with its key.
type Issuer struct {
	// The operator's name for it.
	Name Name `yaml:"name" required:"true" example:"issuing-1"`

	// PEM file: its certificate.
	Certificate Path `yaml:"certificate" required:"true" example:"issuing-1.pem"`

	// PEM files: the certificates above it that clients are sent, nearest
	// first, the root left out.
	Chain []Path `yaml:"chain"`

	// PEM files of further chains, to other roots, that clients may choose: each
	// file has a certificate of this issuer's name and key, its own or one by
	// another CA, then those above it, nearest first, the root left out.
	AlternateChains []Path `yaml:"alternate_chains"`

	// PEM file: the root that clients must trust. Devices are told it by SCEP.
	Root Path `yaml:"root" example:"root.pem"`

	// The label of its private key. With keys.pkcs11, also a PKCS#11 URI (RFC 7512) of
	// object, id or both, such as "pkcs11:object=issuing-1;id=%01".
	Key KeyRef `yaml:"key" required:"true" example:"issuing-1"`

	// Whether it issues new certificates. Otherwise it only signs status.
	Active bool `yaml:"active"`

	// Whether operators may put its certificates on hold (certificateHold), to be
	// released or revoked later. Not allowed under policy public.
	Hold bool `yaml:"hold"`

	// How its revocation list is cut.
	CRL IssuerCRL `yaml:"crl"`
}

// An IssuerCRL is how an issuer's revocation list is cut.
type IssuerCRL struct {
	// Parts that new certificates are spread over, each with a list and an address
	// of its own; 1: none, certificates name the complete list. May be changed at
	// any time: certificates keep the part that they name, and parts stay as long
	// as any of theirs may be valid.
	Shards int `yaml:"shards" allow:"1..256"`

	// How often the changes since the last scheduled list are put into a short
	// delta list, beside one after each revocation. 0s: no deltas. At most
	// crl.period.
	Delta Duration `yaml:"delta" allow:"0s..24h"`

	// Whether certificates, too, say where the delta is. Otherwise only lists do.
	DeltaInCertificates bool `yaml:"delta_in_certificates"`

	// How long revoked certificates stay on lists past their expiry; lists then say
	// so. 0s: they leave after one scheduled list past it.
	KeepExpired Duration `yaml:"keep_expired" allow:"0s..3650d"`
}

// A Profile is one kind of certificate.
type Profile struct {
	// What requesters call it: lower-case letters, digits and hyphens. Names that
	// begin with "secsy-" are the CA's own.
	Name Name `yaml:"name" required:"true"`

	// The names of the issuers that issue it. Empty: all active ones.
	Issuers []Name `yaml:"issuers"`

	// From notBefore to notAfter. Under policy public at most 200d, and less from
	// the dates on that the Baseline Requirements set.
	Validity Duration `yaml:"validity" allow:"5m..3650d"`

	// How far notBefore lies in the past, for clients whose clock is slow.
	Backdate Duration `yaml:"backdate" allow:"0s..48h"`

	// The keyUsage extension (RFC 5280 §4.2.1.3). keyEncipherment only goes into
	// certificates of RSA keys. Under policy public no others than
	// digitalSignature and keyEncipherment.
	KeyUsages []string `yaml:"key_usages" allow:"digitalSignature|contentCommitment|keyEncipherment|dataEncipherment|keyAgreement"`

	// The extKeyUsage extension (RFC 5280 §4.2.1.12). Under policy public
	// serverAuth and no other.
	ExtendedKeyUsages []string `yaml:"extended_key_usages" allow:"serverAuth|clientAuth|codeSigning|emailProtection|timeStamping"`

	// The kinds of names that may be asked for; at least one.
	Identifiers Identifiers `yaml:"identifiers"`

	// Domains within which, and below which, names must lie. Empty: all.
	PermittedDNS []Domain `yaml:"permitted_dns"`

	// Domains within which, and below which, no name may lie. They win over permitted_dns.
	ExcludedDNS []Domain `yaml:"excluded_dns"`

	// CIDR ranges within which addresses must lie. Empty: all.
	PermittedIP []CIDR `yaml:"permitted_ip"`

	// CIDR ranges within which no address may lie. They win over permitted_ip.
	ExcludedIP []CIDR `yaml:"excluded_ip"`

	// The kinds of public keys that are certified. Under policy public neither
	// ecdsa-p521 nor ed25519.
	KeyAlgorithms []string `yaml:"key_algorithms" allow:"ecdsa-p256|ecdsa-p384|ecdsa-p521|rsa-2048|rsa-3072|rsa-4096|ed25519"`

	// Names in one certificate, at most.
	MaxNames int `yaml:"max_names" allow:"1..1000"`

	// Whether the first name is repeated as the subject's common name.
	CommonName string `yaml:"common_name" allow:"none|first"`

	// Whether the certificate says where to ask for its status.
	OCSP bool `yaml:"ocsp"`

	// Whether the certificate says where its CRL is.
	CRL bool `yaml:"crl"`

	// Whether the certificate says that nothing is to be had of its status (RFC
	// 9608). Needs ocsp and crl to be false; under policy public, a validity of at
	// most 7d.
	NoRevAvail bool `yaml:"no_rev_avail"`

	// Whether the certificate says where its issuer's certificate is.
	CAIssuers bool `yaml:"ca_issuers"`

	// The common name of the root whose chain ACME clients are sent first, of
	// those that the issuers have. Empty: the issuer's own chain.
	PreferredChain string `yaml:"preferred_chain"`

	// Whether its names may be proven by a domain above them, where
	// acme.subdomain_authorizations allows that.
	SubdomainAuthorizations bool `yaml:"subdomain_authorizations"`

	// Whether requesters may choose notBefore and notAfter, within validity.
	AllowRequestedValidity bool `yaml:"allow_requested_validity"`
}

// Identifiers are the kinds of names of a profile.
type Identifiers struct {
	// DNS names.
	DNS bool `yaml:"dns"`

	// DNS names that begin with "*.".
	Wildcards bool `yaml:"wildcards"`

	// IP addresses (RFC 8738).
	IP bool `yaml:"ip"`

	// What manufacturers call their devices, such as serial numbers (RFC 4043).
	// Never under policy public.
	PermanentIdentifiers bool `yaml:"permanent_identifiers"`

	// The secure hardware that a key is in (RFC 4108). Never under policy public.
	HardwareModules bool `yaml:"hardware_modules"`

	// Common names that are any words, in the subject alone: only for devices that
	// enrol (enrolment). Without this a common name has to be one of the other names.
	// Never under policy public.
	CommonNames bool `yaml:"common_names"`

	// Serial numbers of devices, in the subject alone. Likewise.
	SerialNumbers bool `yaml:"serial_numbers"`
}

// WeakKeys are lists of broken keys.
type WeakKeys struct {
	// Files of fingerprints in the format of Debian's openssl-blacklist, for
	// the keys that its broken random number generator made (CVE-2008-0166).
	DebianLists []Path `yaml:"debian_lists"`
}

// Serials is how serial numbers are drawn.
type Serials struct {
	// The first octet of each serial number. Replicas that share a database
	// may share it; CAs that share an issuer but no database must not. With one
	// of its own, a replica takes up its own ACME nonces after a restart.
	Shard int `yaml:"shard" allow:"1..127"`
}

// ACME is the ACME server.
type ACME struct {
	// Whether there is one. It needs the https listener.
	Enabled bool `yaml:"enabled"`

	// The terms that clients must agree to. Empty: none.
	TermsOfService URL `yaml:"terms_of_service"`

	// Where people learn about this CA.
	Website URL `yaml:"website"`

	// Whether new accounts are bound to an account elsewhere by a key that the
	// operator hands out (RFC 8555 §7.3.4; secsy-pki acme eab create). With
	// "optional" those who bring such a key are, with "required" nobody gets an
	// account without one. Accounts that are there already stay as they are.
	ExternalAccountBinding string `yaml:"external_account_binding" allow:"off|optional|required"`

	// The domains by which CAA records name this CA (RFC 8659). Empty: a record
	// that names CAs never means this one.
	CAAIdentities []Domain `yaml:"caa_identities"`

	// Whether CAA records of names are asked for, and kept to, when control of a
	// name is proven and again before a certificate is signed. "auto" does so if
	// caa_identities is not empty. Under policy public it is always done.
	CAA string `yaml:"caa" allow:"auto|on|off"`

	// How long an order may stay unfinished.
	OrderLifetime Duration `yaml:"order_lifetime" allow:"10m..90d"`

	// How long a proven name may be used again without another proof. Under
	// policy public at most 200d, and less from the dates on that the Baseline
	// Requirements set.
	AuthorizationLifetime Duration `yaml:"authorization_lifetime" allow:"10m..398d"`

	// Whether a new order relies on what its account has proven within
	// authorization_lifetime, for the same profile. Otherwise each name is
	// proven again for each order.
	ReuseAuthorizations bool `yaml:"reuse_authorizations"`

	// Whether a new order for the same names, profile and dates as one that its
	// account has open is that one, and no second.
	ReuseOrders bool `yaml:"reuse_orders"`

	// The profiles that clients may choose from by name, and what the directory
	// says of each. Whoever names none gets default_profile, which need not be
	// here.
	Profiles []ACMEProfile `yaml:"profiles"`

	// Whether names may be proven ahead of any order (newAuthz, RFC 8555 §7.4.1).
	// Few clients ask for it, and each pending authorization is a row that no
	// order answers for. It needs reuse_authorizations.
	PreAuthorization bool `yaml:"pre_authorization"`

	// Whether one proof in the DNS for a domain may hold for all names below it
	// (RFC 9444). Whoever may write one TXT record of a domain then has
	// certificates for every host in it.
	SubdomainAuthorizations bool `yaml:"subdomain_authorizations"`

	// Unfinished orders that one account may have, and authorizations without
	// an order that are not proven.
	MaxPendingOrders int `yaml:"max_pending_orders" allow:"1..100000"`

	// Names that an account goes on failing to prove.
	Pausing Pausing `yaml:"pausing"`

	// The challenges that clients may choose from. Names can be proven by all of
	// them, wildcards by those that begin with dns, addresses by http-01 and
	// tls-alpn-01, devices by device-attest-01 alone, names in .onion by
	// onion-csr-01 alone.
	Challenges []string `yaml:"challenges" allow:"http-01|dns-01|tls-alpn-01|dns-account-01|dns-persist-01|device-attest-01|onion-csr-01"`

	// Whose word on devices is taken, for device-attest-01.
	DeviceAttestation DeviceAttestation `yaml:"device_attestation"`

	// How often clients are asked to look whether to renew (RFC 9773). They are
	// told less for certificates of some days, and while an incident is open.
	RenewalPoll Duration `yaml:"renewal_poll" allow:"1m..1d"`

	// Further directories beside the one at /acme, each with accounts, orders and
	// policy of its own: for tenants, or for devices beside servers. Limits, validation
	// and lifetimes are those above.
	Directories []Directory `yaml:"directories"`

	// Certificates that this server renews by itself until their client cancels
	// them (STAR, RFC 8739). Off by default: no common client asks for them, their
	// account can't revoke them, and each order is work without end. Their
	// profile needs allow_requested_validity. Those that began go on if it is
	// turned off.
	AutoRenewal AutoRenewal `yaml:"auto_renewal"`

	// How control of names is proven.
	Validation Validation `yaml:"validation"`
}

// DeviceAttestation says whose word on devices is taken.
type DeviceAttestation struct {
	// PEM: the roots above attestations of Apple's devices, that is Apple's
	// Enterprise Attestation Root CA. Empty: none are taken.
	AppleRoots Path `yaml:"apple_roots"`

	// PEM: the roots above the attestation keys of TPMs. Empty: none are taken.
	TPMRoots Path `yaml:"tpm_roots"`

	// PEM: the roots above attestations of YubiKeys, in the format "step". Empty:
	// none are taken.
	StepRoots Path `yaml:"step_roots"`
}

// An ACMEProfile is a profile that clients may choose.
type ACMEProfile struct {
	// The name of one of the profiles.
	Name Name `yaml:"name" required:"true" example:"tls-server"`

	// What it is for, in a few words or as the URL of a page.
	Description string `yaml:"description" required:"true" example:"90 days, for TLS servers"`
}

// A Directory is one ACME directory.
type Directory struct {
	// What operators call it: lower-case letters, digits and hyphens. Its accounts
	// and orders are kept under this name, and wait for it while it is gone.
	Name Name `yaml:"name" required:"true" example:"devices"`

	// Where it is: /acme/d/PATH/directory. The default is its name. Changing it makes
	// clients register anew.
	Path Name `yaml:"path"`

	// As acme.profiles, for its clients. No other profile than these and
	// default_profile can be had here.
	Profiles []ACMEProfile `yaml:"profiles"`

	// The profile for those who ask for none. The default is the first of profiles,
	// or the CA's.
	DefaultProfile Name `yaml:"default_profile"`

	// The terms that clients must agree to. Empty: acme.terms_of_service.
	TermsOfService URL `yaml:"terms_of_service"`

	// Where people learn about it. Empty: acme.website.
	Website URL `yaml:"website"`

	// As acme.external_account_binding, for its accounts.
	ExternalAccountBinding string `yaml:"external_account_binding" allow:"off|optional|required"`

	// The challenges that are offered here. Empty: acme.challenges.
	Challenges []string `yaml:"challenges" allow:"http-01|dns-01|tls-alpn-01|dns-account-01|dns-persist-01|device-attest-01"`

	// Domains within which, and below which, names must lie. Empty, with permitted_ip
	// empty too: all that the profile allows.
	PermittedDNS []Domain `yaml:"permitted_dns"`

	// CIDR ranges within which addresses must lie. With permitted_dns or permitted_ip
	// set, what neither lists is refused.
	PermittedIP []CIDR `yaml:"permitted_ip"`

	// Unfinished orders that one account may have. 0: acme.max_pending_orders.
	MaxPendingOrders int `yaml:"max_pending_orders" allow:"0..100000"`
}

// Enrolment is how devices get certificates.
type Enrolment struct {
	// Where they ask. Each is a label in the addresses of its protocols.
	Endpoints []EnrolmentEndpoint `yaml:"endpoints"`
}

// An EnrolmentEndpoint is one place at which devices enrol.
type EnrolmentEndpoint struct {
	// Its label: lower-case letters, digits and hyphens.
	Name Name `yaml:"name" required:"true" example:"devices"`

	// What is issued.
	Profile Name `yaml:"profile" required:"true" example:"device"`

	// Who issues: the name of one of the issuers. Empty: the only active one.
	Issuer Name `yaml:"issuer"`

	// Whether it speaks SCEP (RFC 8894), at /scep/NAME of the http listener.
	SCEP bool `yaml:"scep"`

	// Whether SCEP clients of before RFC 8894 may sign with SHA-1 and encrypt with
	// triple DES.
	SCEPLegacy bool `yaml:"scep_legacy"`

	// A challenge that all devices have. It proves nothing about one device: whoever
	// knows it gets any certificate that allow lets it. Empty: there is none.
	Challenge Secret `yaml:"challenge"`

	// Who may have which names. A request is allowed by one entry that fits who asks
	// and all its names; what no entry allows is denied.
	Allow []EnrolmentRule `yaml:"allow"`

	// Whether a first certificate is issued at once, or waits for an operator.
	Approval string `yaml:"approval" allow:"auto|manual"`

	// How certificates are renewed: for their own names, signed by their own key.
	Renewal EnrolmentRenewal `yaml:"renewal"`
}

// An EnrolmentRule allows names.
type EnrolmentRule struct {
	// By what somebody has proven who it is. Empty: by anything.
	By []string `yaml:"by" allow:"user|certificate|challenge"`

	// The names of users, subjects of certificates and of challenges that it is for,
	// with * and **. Empty: all.
	Subjects []string `yaml:"subjects"`

	// What they may have, as TYPE:PATTERN: common-name, serial-number, dns, ip,
	// permanent-identifier or hardware-module. In the pattern * is anything without a
	// dot, ** is anything, and {name} is who asks.
	Names []string `yaml:"names"`
}

// EnrolmentRenewal is how certificates are renewed.
type EnrolmentRenewal struct {
	// Whether they are.
	Enabled bool `yaml:"enabled"`

	// For how long after its end a certificate still can be.
	Grace Duration `yaml:"grace" allow:"0s..365d"`

	// The share of its lifetime that has to be over before, in percent.
	Early int `yaml:"early" allow:"0..99"`

	// Whether it takes a new key.
	NewKey bool `yaml:"new_key"`
}

// Pausing keeps clients that nobody looks after from trying for ever.
type Pausing struct {
	// Whether an account's orders for a name are refused once proving it has
	// failed too often. The refusal has a link with which whoever runs the client
	// ends the pause; a proof ends it, too.
	Enabled bool `yaml:"enabled"`

	// So many failures in a row pause a name for an account.
	Failures int `yaml:"failures" allow:"3..10000"`

	// Failures that are farther apart are not in a row.
	Period Duration `yaml:"period" allow:"1h..366d"`
}

// AutoRenewal is what clients may ask for that let the server renew.
type AutoRenewal struct {
	// Whether there is such a thing.
	Enabled bool `yaml:"enabled"`

	// The shortest lifetime of one certificate. It is there half of a lifetime
	// before it is needed, so it lives for half as long again.
	MinLifetime Duration `yaml:"min_lifetime" allow:"1h..90d"`

	// From the order to the end of its last certificate. At most
	// authorization_lifetime: what is not proven any more is not certified.
	MaxDuration Duration `yaml:"max_duration" allow:"1h..398d"`

	// Whether clients may ask that anybody who knows a certificate's address may
	// fetch it, as content delivery networks need it.
	AllowCertificateGet bool `yaml:"allow_certificate_get"`

	// Orders that one account may have under way.
	MaxPerAccount int `yaml:"max_per_account" allow:"1..100000"`
}

// Validation is how the ACME server goes out and looks.
type Validation struct {
	// The port that http-01 connects to. Under policy public 80.
	HTTP01Port int `yaml:"http01_port" allow:"1..65535"`

	// The port that https redirects of http-01 may lead to. Under policy public 443.
	HTTPSPort int `yaml:"https_port" allow:"1..65535"`

	// The port that tls-alpn-01 connects to. Under policy public 443.
	TLSALPN01Port int `yaml:"tls_alpn01_port" allow:"1..65535"`

	// Host and port of the recursive resolver. Empty: the first of
	// /etc/resolv.conf. Use one that validates DNSSEC, on a path you trust. Under
	// policy public it must be named.
	Resolver HostPort `yaml:"resolver"`

	// "ad" believes the resolver only while it proves, by the AD bit of an answer
	// for the root, that it validates DNSSEC. It must be named then. Under policy
	// public it is "ad".
	DNSSEC string `yaml:"dnssec" allow:"off|ad"`

	// Whether names may resolve to private addresses (RFC 1918, RFC 4193).
	// Under policy public they may not.
	AllowPrivateAddresses bool `yaml:"allow_private_addresses"`

	// Further special-purpose ranges that may be connected to, loopback included.
	// Under policy public there are none.
	Allow []CIDR `yaml:"allow"`

	// For one attempt: resolving, connecting, redirects and all.
	Timeout Duration `yaml:"timeout" allow:"1s..2m"`

	// Attempts under way at once.
	Workers int `yaml:"workers" allow:"1..4096"`

	// Other places of the Internet that must see what we see, each a program of its
	// own (docs/perspectives.md). Under policy public at least as many as the Baseline
	// Requirements want at the date, in two regions.
	Perspectives []Perspective `yaml:"perspectives"`

	// Certificates for the connections to perspectives, where they have none of
	// their own.
	PerspectiveTLS PerspectiveTLS `yaml:"perspective_tls"`

	// For the answer of a perspective. One that gives none counts as one that
	// disagrees.
	PerspectiveTimeout Duration `yaml:"perspective_timeout" allow:"1s..2m"`

	// Perspectives that have to agree. 0: all of one, all but one of two to five, all
	// but two of more. Under policy public it is never less.
	Quorum int `yaml:"quorum" allow:"0..32"`
}

// OCSP is the OCSP responder.
type OCSP struct {
	// Whether there is one. Profiles with ocsp need it.
	Enabled bool `yaml:"enabled"`

	// From thisUpdate to nextUpdate of a response. They are signed anew at half of it.
	Validity Duration `yaml:"validity" allow:"8h..10d"`

	// What to do with a nonce in a request (RFC 9654). "echo" signs an answer for
	// each such request, and leaves the nonce out when there is no time for that;
	// "insist" would then rather say that the client should come back later;
	// "ignore" gives the ready answer, as RFC 9919 has it.
	Nonce string `yaml:"nonce" allow:"echo|insist|ignore"`

	// How long after its end a certificate is answered for. All responses then have
	// the archive cutoff (RFC 6960 §4.4.4). 0: an expired one is unauthorized, as one
	// that was never issued.
	Archive Duration `yaml:"archive" allow:"0s..36500d"`

	// What is said of a serial number that was never assigned. "unauthorized" costs
	// no signature; "revoked" is signed, with the extended definition of revoked
	// (RFC 6960 §2.2), and is for policy internal only.
	Unissued string `yaml:"unissued" allow:"unauthorized|revoked"`

	// Whether all certificates in force are kept signed for before anybody asks, by
	// which hashes of CertIDs: old clients ask by SHA-1, those of RFC 9919 by SHA-256.
	Presign string `yaml:"presign" allow:"off|sha1|sha256|sha1+sha256"`

	// The most signatures a second that are made before anybody asks. They go last
	// before the device, whatever their number.
	PresignRate int `yaml:"presign_rate" allow:"1..100000"`
}

// CRL is the revocation lists.
type CRL struct {
	// A new list is signed this often, whether or not something was revoked.
	Period Duration `yaml:"period" allow:"5m..24h"`

	// From thisUpdate to nextUpdate of a list. At least twice the period, so
	// that one missed list does no harm.
	Validity Duration `yaml:"validity" allow:"1h..10d"`

	// A revocation is on the list at the latest after this time. At most the period.
	AfterRevocation Duration `yaml:"after_revocation" allow:"1s..24h"`
}
