module github.com/secsy-pki/secsy-pki/integration/clients

go 1.26.0

require (
	github.com/eggsampler/acme/v3 v3.8.0
	github.com/go-acme/lego/v4 v4.35.2
	github.com/smallstep/pkcs7 v0.2.3
)

require (
	github.com/cenkalti/backoff/v5 v5.0.3 // indirect
	github.com/go-jose/go-jose/v4 v4.1.4 // indirect
	github.com/miekg/dns v1.1.72 // indirect
	golang.org/x/crypto v0.50.0 // indirect
	golang.org/x/mod v0.35.0 // indirect
	golang.org/x/net v0.53.0 // indirect
	golang.org/x/sync v0.20.0 // indirect
	golang.org/x/sys v0.43.0 // indirect
	golang.org/x/text v0.36.0 // indirect
	golang.org/x/tools v0.44.0 // indirect
)
