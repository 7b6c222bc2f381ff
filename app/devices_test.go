package app

import (
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca/catest"
	"github.com/secsy-pki/secsy-pki/config"
)

// A file of roots that can't be used is named with its key, and no challenge of
// devices goes out to the network.
func TestRootsOfDevicesAreReadWhole(t *testing.T) {
	t.Parallel()
	root := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: catest.New(t).Root.Raw})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")})
	file := func(content []byte) config.Path {
		p := filepath.Join(t.TempDir(), "roots.pem")
		if err := os.WriteFile(p, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return config.Path(p)
	}
	for says, path := range map[string]config.Path{
		"no such file":          config.Path(filepath.Join(t.TempDir(), "none")),
		"no certificate in PEM": file([]byte("hello")),
		"not only certificates": file(append(root, key...)),
		"certificate 2 of":      file(append(root, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")})...)),
	} {
		_, err := withDevices(nil, config.DeviceAttestation{TPMRoots: path})
		if err == nil || !strings.Contains(err.Error(), says) || !strings.HasPrefix(err.Error(), "acme.device_attestation.tpm_roots: ") {
			t.Errorf("%v, want one that says %q", err, says)
		}
	}
	if v, err := withDevices(nil, config.DeviceAttestation{}); v != nil || err != nil {
		t.Errorf("without roots: %v, %v", v, err)
	}
	v, err := withDevices(nil, config.DeviceAttestation{AppleRoots: file(append(root, root...))})
	if err != nil {
		t.Fatal(err)
	}
	if _, p := v.Validate(t.Context(), acme.Validation{Type: acme.DeviceAttest01}); p == nil || p.Type != acme.BadAttestationStatement {
		t.Errorf("an empty answer: %v", p)
	}
}
