package app

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/ca/catest"
)

func TestTheRootIsTheOneAboveTheChain(t *testing.T) {
	t.Parallel()
	c, other := catest.New(t), catest.New(t)
	dir := t.TempDir()
	write := func(name string, cert *x509.Certificate) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	root := write("root.pem", c.Root)
	for name, x := range map[string]struct {
		cert *x509.Certificate
		file string
		want *x509.Certificate
		err  string
	}{
		"its root":         {c.Issuer.Cert, root, c.Root, ""},
		"none":             {c.Issuer.Cert, "", nil, ""},
		"itself":           {c.Root, root, nil, ""},
		"another root":     {c.Issuer.Cert, write("other.pem", other.Root), nil, "didn't sign"},
		"no root":          {c.Issuer.Cert, write("issuing.pem", other.Issuer.Cert), nil, "is no root"},
		"a file not there": {c.Issuer.Cert, filepath.Join(dir, "gone.pem"), nil, "root: "},
	} {
		got, err := readRoot(x.cert, nil, x.file)
		if (got == nil) != (x.want == nil) || got != nil && !got.Equal(x.want) || (err == nil) != (x.err == "") || err != nil && !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
