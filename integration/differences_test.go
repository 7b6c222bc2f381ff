package integration

// differences are those that are meant to be, in the order of docs/acme.md.
var differences = []difference{
	{
		what: "all answers", facet: "Content-Type", ours: "application/json", pebble: "application/json; charset=utf-8", probes: []string{"*"},
		why: "acme.sh and acme4j compare the whole value",
	},
	{
		what: "all errors", facet: "Content-Type", ours: "application/problem+json", pebble: "application/problem+json; charset=utf-8", probes: []string{"*"},
		why: "the same",
	},
	{
		what: "a certificate", facet: "Content-Type", ours: "application/pem-certificate-chain", pebble: "application/pem-certificate-chain; charset=utf-8", probes: []string{"certificate: read"},
		why: "the same; RFC 8555 §9.1 registers no parameters",
	},
	{
		what: "the directory, and a wrong method", facet: "Replay-Nonce", ours: "yes", pebble: "no",
		probes: []string{"GET *", "HEAD *", "PUT *", "DELETE *", "PATCH *", "certificate: GET"},
		why:    "RFC 8555 §6.5 has one in every successful answer to a POST and wants one in errors; some clients hide an error that brings none",
	},
	{
		what: "the directory", facet: "Link", ours: "index", pebble: "", probes: []string{"GET directory", "HEAD directory", "POST directory, unsigned", "POST-as-GET directory"},
		why: "every answer has it; RFC 8555 §7.1 leaves it open here",
	},
	{
		what: "a challenge that is read", facet: "Link", ours: "index up", pebble: "index", probes: []string{"challenge: read"},
		why: "RFC 8555 §7.5.1: a link up to the authorization",
	},
	{
		what: "accounts, orders, authorizations and challenges that are read, updated or finalized", facet: "Location", ours: "yes", pebble: "no",
		probes: []string{"account: *", "order: *", "authorization: *", "challenge: read", "finalize: *", "key change: the new key afterwards"},
		why:    "clients poll the Location of whatever came last",
	},
	{
		what: "what is pending or processing", facet: "Retry-After", ours: "yes", pebble: "no",
		probes: []string{"JWS: *", "nonce: *", "newOrder: *", "order: read", "finalize: pending, and read", "authorization: read", "challenge: read"},
		why:    "without it some clients ask four times a second",
	},
	{
		what: "finalize with a right CSR", facet: "outcome", ours: "200 valid", pebble: "200 processing", probes: []string{"CSR: *"},
		why: "we wait for the signature for some seconds, Pebble never",
	},
	{
		what: "finalize again with the same CSR", facet: "outcome", ours: "200 valid", pebble: "403 orderNotReady", probes: []string{"finalize: again with the same CSR"},
		why: "certbot and acmez send it again after a lost answer; it makes no second certificate",
	},
	{
		what: "a challenge answered again after it ended", facet: "outcome", ours: "200 valid", pebble: "400 malformed", probes: []string{"challenge: valid, answered again"},
		why: "the client is told how it stands; nothing is validated again",
	},
	{
		what: "the same, of one that failed", facet: "outcome", ours: "200 invalid", pebble: "400 malformed", probes: []string{"challenge: invalid, answered again"},
		why: "the same",
	},
	{
		what: "a challenge answered with a key authorization", facet: "outcome", ours: "200 valid", pebble: "400 malformed", probes: []string{"challenge: with a key authorization of old"},
		why: "clients of old drafts send it; RFC 8555 §7.3 has unknown members ignored",
	},
	{
		what: "an order after its authorization was deactivated", facet: "outcome", ours: "200 invalid", pebble: "200 deactivated", probes: []string{"order: after its authorization was deactivated"},
		why: "RFC 8555 §7.1.6 knows no deactivated orders",
	},
	{
		what: "deactivating an authorization twice", facet: "outcome", ours: "400 malformed", pebble: "200 deactivated", probes: []string{"authorization: deactivated twice"},
		why: "it is final (RFC 8555 §7.1.6)",
	},
	{
		what: "an account update that changes nothing", facet: "outcome", ours: "200 valid", pebble: "400 malformed", probes: []string{"account: empty update", "account: status valid", "account: status revoked"},
		why: "RFC 8555 §7.3.2: what is not known, or not the client's to say, is ignored",
	},
	{
		what: "key change", facet: "outcome", ours: "200 valid", pebble: "200", probes: []string{"key change: right"},
		why: "we send the account along",
	},
	{
		what: "key change to a key that is taken", facet: "outcome", ours: "409 malformed", pebble: "500 serverInternal", probes: []string{"key change: to another account's key"},
		why: "RFC 8555 §7.3.5: 409, and Location of the account that has it",
	},
	{
		what: "key change to the same key", facet: "outcome", ours: "409 malformed", pebble: "400 malformed", probes: []string{"key change: to the same key"},
		why: "the same: the account that has it is this one",
	},
	{
		what: "key change with a nonce in the inner JWS", facet: "outcome", ours: "400 malformed", pebble: "200", probes: []string{"key change: inner with a nonce"},
		why: "RFC 8555 §7.3.5: it must have none",
	},
	{
		what: "another account's order, authorization, challenge, certificate", facet: "outcome", ours: "404 malformed", pebble: "403 unauthorized",
		probes: []string{"order: another's", "finalize: another's", "authorization: another's*", "challenge: another's*", "certificate: another's"},
		why:    "the same answer as for what is not there: ids cannot be probed for",
	},
	{
		what: "another account", facet: "outcome", ours: "404 malformed", pebble: "200 valid", probes: []string{"account: another's"},
		why: "nobody reads another's contacts",
	},
	{
		what: "what is not there", facet: "outcome", ours: "404 malformed", pebble: "404",
		probes: []string{"GET nothing", "POST nothing", "order: nobody's", "order: no id", "challenge: unknown", "certificate: nobody's"},
		why:    "every error is a problem document (RFC 8555 §6.7)",
	},
	{
		what: "`url` that is not the request's", facet: "outcome", ours: "403 unauthorized", pebble: "400 malformed", probes: []string{"url: *"},
		why: "RFC 8555 §6.4: unauthorized",
	},
	{
		what: "a nonce that is not base64url", facet: "outcome", ours: "400 malformed", pebble: "400 badNonce", probes: []string{"nonce: no base64url"},
		why: "RFC 8555 §6.5.2: malformed; no server gave it out",
	},
	{
		what: "a request whose own URL has a query", facet: "outcome", ours: "201 pending", pebble: "400 malformed", probes: []string{"url: with the request's query"},
		why: "`url` is the request's, query and all; the lists of orders have one",
	},
	{
		what: "`alg` that is not supported, or not the key's", facet: "outcome", ours: "400 badSignatureAlgorithm", pebble: "400 malformed", probes: []string{"alg: *"},
		why: "RFC 8555 §6.2: that type, with the algorithms that are",
	},
	{
		what: "a `jwk` that is no key, or a weak one", facet: "outcome", ours: "400 badPublicKey", pebble: "400 malformed", probes: []string{"signer: *"},
		why: "RFC 8555 §6.7 has a type for it",
	},
	{
		what: "`kid` that only begins like an account", facet: "outcome", ours: "400 malformed", pebble: "400 accountDoesNotExist", probes: []string{"signer: kid with a slash at its end", "signer: kid with a query"},
		why: "no account can have that URL; accountDoesNotExist makes clients register anew",
	},
	{
		what: "`Content-Type: application/jose+json; charset=utf-8`", facet: "outcome", ours: "201 pending", pebble: "415 malformed", probes: []string{"Content-Type: application/jose+json; charset=utf-8"},
		why: "it is that media type all the same; some HTTP libraries add parameters",
	},
	{
		what: "a body of 100 KiB", facet: "outcome", ours: "413 malformed", pebble: "400 malformed", probes: []string{"JWS: too large"},
		why: "the status that says what is wrong",
	},
	{
		what: "newAccount without agreement, no terms being configured", facet: "outcome", ours: "201 valid", pebble: "403 agreementRequired", probes: []string{"newAccount: terms not agreed to"},
		why: "nothing is to be agreed to; where there is, the type is userActionRequired (RFC 8555 §7.3)",
	},
	{
		what: "newAccount with payload `null`", facet: "outcome", ours: "400 malformed", pebble: "403 agreementRequired", probes: []string{"newAccount: payload null"},
		why: "it is no object",
	},
	{
		what: "newAccount with a binding that is none", facet: "outcome", ours: "201 valid", pebble: "400 badPublicKey", probes: []string{"newAccount: binding not asked for, junk"},
		why: "no binding is configured, so the member is unknown",
	},
	{
		what: "a binding that is no JWS, not by a MAC, or for another key", facet: "outcome", ours: "400 malformed", pebble: "400 badPublicKey", probes: []string{"binding: *"},
		why: "the account's key is not at fault",
	},
	{
		what: "a contact with header fields", facet: "outcome", ours: "400 invalidContact", pebble: "201 valid", probes: []string{"newAccount: contact with hfields"},
		why: "RFC 8555 §7.3: it must have none",
	},
	{
		what: "an identifier of a type that is not known", facet: "outcome", ours: "400 unsupportedIdentifier", pebble: "400 malformed", probes: []string{"newOrder: without type", "newOrder: type *"},
		why: "RFC 8555 §6.7 has a type for it",
	},
	{
		what: "a name that cannot be one, or an address that is none", facet: "outcome", ours: "400 rejectedIdentifier", pebble: "400 malformed", probes: []string{"newOrder: *"},
		why: "that type, with a subproblem for each name at fault (RFC 8555 §6.7.1)",
	},
	{
		what: "labels that are empty, too long, or with a hyphen at an end; more than 100 names", facet: "outcome", ours: "400 rejectedIdentifier", pebble: "201 pending",
		probes: []string{"newOrder: name .leading*", "newOrder: name -a*", "newOrder: name a-*", "newOrder: name a..*", "newOrder: name aaaa*", "newOrder: 101 names"},
		why:    "no host name; a bound",
	},
	{
		what: "notBefore, notAfter", facet: "outcome", ours: "400 malformed", pebble: "201 pending", probes: []string{"newOrder: not*"},
		why: "times that are none are refused; others where the profile has no `allow_requested_validity`, instead of being ignored",
	},
	{
		what: "a CSR that cannot be read", facet: "outcome", ours: "400 badCSR", pebble: "400 malformed", probes: []string{"CSR: *"},
		why: "RFC 8555 §7.4: badCSR, and the order stays ready",
	},
	{
		what: "a CSR for other names, or whose signature does not hold", facet: "outcome", ours: "400 badCSR", pebble: "403 unauthorized", probes: []string{"CSR: *"},
		why: "the same",
	},
	{
		what: "a CSR with another CN or an e-mail address, for a CA, with a weak key or a curve that the profile does not have", facet: "outcome", ours: "400 badCSR", pebble: "200 processing", probes: []string{"CSR: *"},
		why: "what would not be in the certificate, or may not be, is refused",
	},
	{
		what: "a CSR with its name in the CN alone", facet: "outcome", ours: "200 valid", pebble: "403 unauthorized", probes: []string{"CSR: name as CN alone"},
		why: "RFC 8555 §7.4 allows it; the certificate has a SAN",
	},
	{
		what: "a CSR padded with `=`", facet: "outcome", ours: "200 valid", pebble: "400 malformed", probes: []string{"CSR: padded"},
		why: "some clients pad; it hurts nobody",
	},
	{
		what: "the same of a certificate to revoke", facet: "outcome", ours: "200", pebble: "400 malformed", probes: []string{"revocation: padded"},
		why: "the same",
	},
	{
		what: "revocation by another account that proved all names", facet: "outcome", ours: "200", pebble: "403 unauthorized", probes: []string{"revocation: by another account that proved the name"},
		why: "RFC 8555 §7.6: it may",
	},
	{
		what: "reasons 2, 6, 8", facet: "outcome", ours: "400 badRevocationReason", pebble: "200", probes: []string{"revocation: reason *"},
		why: "those are the CA's to give",
	},
	{
		what: "reasons that are none", facet: "outcome", ours: "400 badRevocationReason", pebble: "400 malformed", probes: []string{"revocation: reason *"},
		why: "RFC 8555 §7.6: that type",
	},
	{
		what: "revocation of another CA's certificate", facet: "outcome", ours: "403 unauthorized", pebble: "400 malformed", probes: []string{"revocation: of another CA's certificate"},
		why: "the same answer as for one that is another's",
	},
}
