package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// enrolment is the section of a configuration with one endpoint, and the profile
// that it issues by.
const enrolment = `  endpoints:
    - name: devices
      profile: tls-server
      scep: true
      challenge: {file: scep-challenge}
      allow:
        - names: ["dns:*.kit.example.com"]
`

// TestRealClientsOfSCEP has strongSwan, certmonger, micromdm's scepclient and curl do
// their whole job at the program.
func TestRealClientsOfSCEP(t *testing.T) {
	t.Parallel()
	s := startQuickstart(t, quickstart{})
	s.stop()
	const challenge = "Kq7vT2mZ"
	if err := os.WriteFile(filepath.Join(s.dir, "scep-challenge"), []byte(challenge), 0o600); err != nil {
		t.Fatal(err)
	}
	file := configOf(s.dir)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(b, "\nenrolment:\n"+enrolment...), 0o600); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	s.env["SCEP_URL"] = strings.TrimSuffix(s.env["OCSP_URL"], "/ocsp") + "/scep/devices"
	s.env["SCEP_CHALLENGE"] = challenge
	runClients(t, s, dnsMock{}, "scep-curl", "scep-strongswan", "scep-certmonger", "scep-scepclient")
	verifyAudit(t, s)
}
