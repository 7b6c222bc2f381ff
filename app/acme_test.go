package app

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// crossSign has another CA certify the issuer of dir, and writes that to a file.
func crossSign(t *testing.T, dir, file, rootName string) {
	t.Helper()
	issuer, err := readCertificate(filepath.Join(dir, issuingFile))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: rootName}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	cross := *issuer
	cross.SerialNumber, cross.SignatureAlgorithm, cross.AuthorityKeyId = big.NewInt(2), 0, nil
	der, err := x509.CreateCertificate(rand.Reader, &cross, root, issuer.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// What the configuration says of orders is what the directory says.
func TestKeysOfACMEReachTheDirectory(t *testing.T) {
	t.Parallel()
	dir := newCA(t)
	crossSign(t, dir, "cross.pem", "Another Root")
	edit(t, dir, "root: root.pem", "alternate_chains: [cross.pem]",
		"\nkeys:", "\nprofiles: [{name: tls-server, preferred_chain: Another Root}, {name: alone, subdomain_authorizations: false}]\nkeys:",
		"\nacme:\n", `
acme:
  profiles: [{name: alone, description: "for one name"}]
  pre_authorization: true
  subdomain_authorizations: true
`)
	a := built(t, dir)
	if chains := a.issuers[0].Chains(); len(chains) != 2 || bytes.Equal(chains[0][0].Raw, chains[1][0].Raw) || a.preferred["tls-server"] != "Another Root" {
		t.Errorf("%d chains; preferred %v", len(chains), a.preferred)
	}
	w := httptest.NewRecorder()
	a.acme.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, acmePath+"/directory", nil))
	var got struct {
		NewAuthz string `json:"newAuthz"`
		Meta     struct {
			Profiles   map[string]string `json:"profiles"`
			Subdomains bool              `json:"subdomainAuthAllowed"`
		} `json:"meta"`
	}
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.NewAuthz == "" || !got.Meta.Subdomains || len(got.Meta.Profiles) != 1 || got.Meta.Profiles["alone"] != "for one name" {
		t.Errorf("directory is %s", w.Body)
	}
}
