package store_test

import (
	"testing"

	"github.com/secsy-pki/secsy-pki/store"
	"github.com/secsy-pki/secsy-pki/store/storetest"
)

// TestEngines runs every suite over every engine. A room adds its suite here.
func TestEngines(t *testing.T) {
	t.Parallel()
	engines := []struct {
		name string
		open func(t *testing.T) *store.DB
	}{
		{"sqlite", storetest.SQLite},
		{"postgres", storetest.Postgres},
	}
	suites := []struct {
		name string
		run  func(t *testing.T, open func(t *testing.T) *store.DB)
	}{
		{"engine", storetest.Engine},
		{"acmefairness", storetest.ACMEFairness},
		{"acmeaccounts", storetest.ACMEAccounts},
		{"audit", storetest.Audit},
		{"ca", storetest.CA},
		{"acme", storetest.ACME},
		{"acmedevices", storetest.ACMEDevices},
		{"acmereuse", storetest.ACMEReuse},
		{"renewals", storetest.Renewals},
		{"acmecaa", storetest.ACMECAA},
		{"stars", storetest.Stars},
		{"status", storetest.Status},
		{"crlshards", storetest.CRLShards},
		{"scep", storetest.SCEP},
		{"admission", storetest.Admission},
		{"acmenonces", storetest.ACMENonces},
		{"acmecontested", storetest.ACMEContested},
		{"acmepauses", storetest.ACMEPauses},
		{"enrol", storetest.Enrol},
	}
	for _, engine := range engines {
		for _, suite := range suites {
			t.Run(engine.name+"/"+suite.name, func(t *testing.T) {
				t.Parallel()
				suite.run(t, engine.open)
			})
		}
	}
}
