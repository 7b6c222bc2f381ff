package config

import (
	"fmt"
	"strings"
	"testing"
)

func TestDirectoriesStandWhereTheyAreNamedUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	c := mustParse(t, "acme: {external_account_binding: required, directories: [{name: a}, {name: b, path: bee, external_account_binding: optional}, {name: c, external_account_binding: off}]}")
	var got []string
	for _, d := range c.ACME.Directories {
		got = append(got, fmt.Sprint(d.Name, " ", d.Path, " ", d.ExternalAccountBinding))
	}
	if s := strings.Join(got, ", "); s != "a a off, b bee optional, c c off" || c.ACME.ExternalAccountBinding != "required" {
		t.Errorf("got %s, %s", s, c.ACME.ExternalAccountBinding)
	}
}

func TestDirectoriesAreBounded(t *testing.T) {
	t.Parallel()
	var list []string
	for i := range maxDirectories + 1 {
		list = append(list, fmt.Sprintf("{name: d%d}", i))
	}
	if _, err := Parse("c.yaml", []byte("acme: {directories: ["+strings.Join(list, ", ")+"]}")); err == nil || !strings.Contains(err.Error(), "want at most 32") {
		t.Errorf("got %v", err)
	}
}

func TestDevicesMayHaveADirectoryOfTheirOwn(t *testing.T) {
	t.Parallel()
	mustParse(t, "profiles: [{name: device, identifiers: {hardware_modules: true}}]\nacme: {device_attestation: {tpm_roots: a.pem}, directories: [{name: a, challenges: [device-attest-01]}]}")
}
