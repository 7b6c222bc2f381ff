package app

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/acme/attestation"
	"github.com/secsy-pki/secsy-pki/config"
)

// A byChallenge asks one validator about devices, and another about all else.
type byChallenge struct{ network, devices acme.Validator }

func (v byChallenge) Validate(ctx context.Context, q acme.Validation) (acme.ValidationRecord, *acme.Problem) {
	if q.Type == acme.DeviceAttest01 {
		return v.devices.Validate(ctx, q)
	}
	return v.network.Validate(ctx, q)
}

// withDevices adds to network what judges devices, if anybody's word is taken.
func withDevices(network acme.Validator, c config.DeviceAttestation) (acme.Validator, error) {
	roots := make(map[attestation.Format]*x509.CertPool)
	for _, f := range []struct {
		format attestation.Format
		key    string
		path   config.Path
	}{
		{attestation.Apple, "apple_roots", c.AppleRoots}, {attestation.TPM, "tpm_roots", c.TPMRoots}, {attestation.Step, "step_roots", c.StepRoots},
	} {
		if f.path == "" {
			continue
		}
		pool, err := readRoots(string(f.path))
		if err != nil {
			return nil, fmt.Errorf("acme.device_attestation.%s: %w", f.key, err)
		}
		roots[f.format] = pool
	}
	if len(roots) == 0 {
		return network, nil
	}
	devices, err := attestation.New(attestation.Config{Roots: roots})
	if err != nil {
		return nil, fmt.Errorf("acme.device_attestation: %w", err)
	}
	return byChallenge{network, devices}, nil
}

// readRoots reads certificates, and nothing but certificates, in PEM.
func readRoots(path string) (*x509.CertPool, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool, n := x509.NewCertPool(), 0
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("%s holds a %q, not only certificates", path, block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d of %s: %w", n+1, path, err)
		}
		pool.AddCert(c)
		n++
	}
	if n == 0 {
		return nil, fmt.Errorf("%s holds no certificate in PEM", path)
	}
	return pool, nil
}
