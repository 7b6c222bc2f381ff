// Command lego does an ACME client's whole job with lego's library, which
// Traefik and others are built on. It is started as a script of interop is, with
// its settings in the environment, and says in its last line whether all went well.
package main

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-acme/lego/v4/acme"
	"github.com/go-acme/lego/v4/certcrypto"
	"github.com/go-acme/lego/v4/certificate"
	"github.com/go-acme/lego/v4/challenge/dns01"
	"github.com/go-acme/lego/v4/challenge/http01"
	"github.com/go-acme/lego/v4/challenge/tlsalpn01"
	"github.com/go-acme/lego/v4/lego"
	"github.com/go-acme/lego/v4/registration"
)

func main() {
	steps, err := job()
	if err != nil {
		fmt.Printf("FAIL lego-library: %s: %v\n", steps, err)
		os.Exit(1)
	}
	fmt.Printf("PASS lego-library: %s\n", steps)
}

// A user is an account as lego wants it.
type user struct {
	key crypto.Signer
	reg *registration.Resource
}

func (*user) GetEmail() string                          { return "admin@kit.example.com" }
func (u *user) GetRegistration() *registration.Resource { return u.reg }
func (u *user) GetPrivateKey() crypto.PrivateKey        { return u.key }

// A run is the job so far.
type run struct {
	roots  *x509.CertPool
	client *lego.Client
	user   *user
	name   string
	done   []string
}

func job() (steps string, err error) {
	pem, err := os.ReadFile(os.Getenv("ROOT_PEM"))
	if err != nil {
		return "starting", err
	}
	r := &run{roots: x509.NewCertPool(), name: fmt.Sprintf("lego-%d.example.com", time.Now().UnixNano())}
	r.roots.AppendCertsFromPEM(pem)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "making a key", err
	}
	if r.user, r.client, err = newClient(key); err != nil {
		return "making a client", err
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"register", r.register},
		{"http-01, renewal when and as the server says, revocation", r.http01},
		{"dns-01 with a wildcard", r.dns01},
		{"tls-alpn-01", r.tlsalpn01},
		{"a wrong answer refused", r.refused},
		{"account found, updated and deactivated", r.account},
	} {
		if err := step.do(); err != nil {
			return step.name, err
		}
		r.done = append(r.done, step.name)
	}
	return strings.Join(r.done, ", "), nil
}

func newClient(key crypto.Signer) (*user, *lego.Client, error) {
	bundle, err := os.ReadFile(os.Getenv("CA_BUNDLE"))
	if err != nil {
		return nil, nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	u := &user{key: key}
	cfg := lego.NewConfig(u)
	cfg.CADirURL = os.Getenv("ACME_DIRECTORY")
	cfg.Certificate.KeyType = certcrypto.EC256
	cfg.HTTPClient = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}}
	c, err := lego.NewClient(cfg)
	return u, c, err
}

func (r *run) register() (err error) {
	r.user.reg, err = r.client.Registration.Register(registration.RegisterOptions{TermsOfServiceAgreed: true})
	return err
}

// http01 has a certificate, renews it with what the server says of when, and
// revokes the old one.
func (r *run) http01() error {
	if err := r.client.Challenge.SetHTTP01Provider(http01.NewProviderServer("127.0.0.1", os.Getenv("HTTP01_PORT"))); err != nil {
		return err
	}
	cert, err := r.client.Certificate.Obtain(certificate.ObtainRequest{Domains: []string{r.name, "www." + r.name}, Bundle: true})
	if err != nil {
		return err
	}
	leaf, err := r.check(cert, r.name, "www."+r.name)
	if err != nil {
		return err
	}
	again := certificate.ObtainRequest{Domains: []string{r.name, "www." + r.name}, Bundle: true}
	info, err := r.client.Certificate.GetRenewalInfo(certificate.RenewalInfoRequest{Cert: leaf})
	if err != nil {
		return fmt.Errorf("asking when to renew: %w", err)
	}
	if w := info.SuggestedWindow; !w.Start.Before(w.End) || w.Start.After(leaf.NotAfter) || info.RetryAfter < time.Second {
		return fmt.Errorf("renewal window from %v to %v, asked again in %v", w.Start, w.End, info.RetryAfter)
	}
	if again.ReplacesCertID, err = certificate.MakeARICertID(leaf); err != nil {
		return err
	}
	next, err := r.client.Certificate.Obtain(again)
	if err != nil {
		return fmt.Errorf("renewing: %w", err)
	}
	if _, err := r.check(next, r.name, "www."+r.name); err != nil {
		return fmt.Errorf("renewed: %w", err)
	}
	superseded := uint(4)
	if err := r.client.Certificate.RevokeWithReason(cert.Certificate, &superseded); err != nil {
		return fmt.Errorf("revoking: %w", err)
	}
	if err := r.client.Certificate.Revoke(cert.Certificate); !refusedAs(err, "alreadyRevoked") {
		return fmt.Errorf("revoking again: %w", err)
	}
	return nil
}

func (r *run) dns01() error {
	r.client.Challenge.Remove("http-01")
	defer r.client.Challenge.Remove("dns-01")
	err := r.client.Challenge.SetDNS01Provider(txt{}, dns01.AddRecursiveNameservers([]string{os.Getenv("DNS_SERVER")}), dns01.PropagationWait(time.Millisecond, true))
	if err != nil {
		return err
	}
	d := "dns." + r.name
	cert, err := r.client.Certificate.Obtain(certificate.ObtainRequest{Domains: []string{d, "*." + d}, Bundle: true})
	if err != nil {
		return err
	}
	_, err = r.check(cert, d, "*."+d)
	return err
}

func (r *run) tlsalpn01() error {
	defer r.client.Challenge.Remove("tls-alpn-01")
	if err := r.client.Challenge.SetTLSALPN01Provider(tlsalpn01.NewProviderServer("127.0.0.1", os.Getenv("TLSALPN01_PORT"))); err != nil {
		return err
	}
	d := "alpn." + r.name
	cert, err := r.client.Certificate.Obtain(certificate.ObtainRequest{Domains: []string{d}, Bundle: true})
	if err != nil {
		return err
	}
	_, err = r.check(cert, d)
	return err
}

// refused answers a challenge wrongly.
func (r *run) refused() error {
	if err := r.client.Challenge.SetDNS01Provider(nothing{}, dns01.PropagationWait(time.Millisecond, true)); err != nil {
		return err
	}
	_, err := r.client.Certificate.Obtain(certificate.ObtainRequest{Domains: []string{"wrong." + r.name}, Bundle: true})
	if err == nil {
		return errors.New("a certificate without proof")
	}
	if !strings.Contains(err.Error(), "urn:ietf:params:acme:error:") {
		return fmt.Errorf("refused in another way: %w", err)
	}
	return nil
}

func (r *run) account() error {
	_, fresh, err := newClient(r.user.key) // one that knows its key only
	if err != nil {
		return err
	}
	found, err := fresh.Registration.ResolveAccountByKey()
	if err != nil {
		return err
	}
	if found.URI != r.user.reg.URI {
		return fmt.Errorf("the key's account is %s, and was %s", found.URI, r.user.reg.URI)
	}
	if _, err := r.client.Registration.QueryRegistration(); err != nil {
		return err
	}
	if _, err := r.client.Registration.UpdateRegistration(registration.RegisterOptions{TermsOfServiceAgreed: true}); err != nil {
		return err
	}
	if err := r.client.Registration.DeleteRegistration(); err != nil {
		return err
	}
	if _, err := r.client.Registration.QueryRegistration(); !refusedAs(err, "unauthorized") {
		return fmt.Errorf("deactivated, and then: %w", err)
	}
	return nil
}

// check holds a certificate against what was ordered.
func (r *run) check(res *certificate.Resource, names ...string) (*x509.Certificate, error) {
	chain := x509.NewCertPool()
	first, rest := pem.Decode(res.Certificate)
	if first == nil {
		return nil, errors.New("no certificate")
	}
	chain.AppendCertsFromPEM(rest)
	leaf, err := x509.ParseCertificate(first.Bytes)
	if err != nil {
		return nil, err
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: r.roots, Intermediates: chain}); err != nil {
		return nil, err
	}
	got := slices.Sorted(slices.Values(leaf.DNSNames))
	if slices.Sort(names); !slices.Equal(got, names) {
		return nil, fmt.Errorf("a certificate for %q; ordered was %q", got, names)
	}
	return leaf, nil
}

func refusedAs(err error, typ string) bool {
	p, ok := errors.AsType[*acme.ProblemDetails](err)
	return ok && p.Type == "urn:ietf:params:acme:error:"+typ
}

// txt sets TXT records at pebble-challtestsrv.
type txt struct{}

func (txt) Present(domain, _, keyAuth string) error {
	i := dns01.GetChallengeInfo(domain, keyAuth)
	return post("set-txt", map[string]string{"host": i.EffectiveFQDN, "value": i.Value})
}

func (txt) CleanUp(domain, _, keyAuth string) error {
	return post("clear-txt", map[string]string{"host": dns01.GetChallengeInfo(domain, keyAuth).EffectiveFQDN})
}

func post(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	res, err := http.Post(os.Getenv("DNS_ADMIN_URL")+"/"+path, "application/json", bytes.NewReader(b))
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// nothing proves nothing.
type nothing struct{}

func (nothing) Present(string, string, string) error { return nil }
func (nothing) CleanUp(string, string, string) error { return nil }
