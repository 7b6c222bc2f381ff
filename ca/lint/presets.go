package lint

import (
	zl "github.com/zmap/zlint/v3/lint"

	"github.com/secsy-pki/secsy-pki/ca"
)

// A preset is which lints count, and from which result on.
type preset struct {
	sources  zl.SourceList
	blocking zl.LintStatus
	ignore   []ignored
}

// An ignored lint does not count, for a reason.
type ignored struct {
	name string
	kind ca.LintKind // "" means every kind
	why  string
}

var rfcs = zl.SourceList{zl.RFC3279, zl.RFC5280, zl.RFC5480, zl.RFC5891, zl.RFC6960, zl.RFC6962, zl.RFC8813, zl.Community}

// foreign looks for the signature of certain compromised authorities. What is
// linted here is signed by a key made at start, and looking costs five times as
// much as all other lints together.
var foreign = ignored{"e_cert_issued_by_compromised_emudhra_ca", "", "drafts are signed by a throwaway key"}

var presets = map[ca.Policy]preset{
	// Among themselves people break recommendations knowingly; what an error
	// lint says would break software.
	ca.Internal: {sources: rfcs, blocking: zl.Error, ignore: []ignored{foreign}},
	ca.Public: {
		sources: append(zl.SourceList{
			zl.CABFBaselineRequirements, zl.MozillaRootStorePolicy, zl.AppleRootStorePolicy, zl.ChromeRootStorePolicy,
		}, rfcs...),
		blocking: zl.Warn,
		ignore: []ignored{
			foreign,
			{"w_ext_subject_key_identifier_missing_sub_cert", ca.LintServer, "RFC 5280 wants the key id that BR §7.1.2.7.6 advises against"},
			// One day less than the limit is advice; the preset's own table holds to
			// the limit, to the second.
			{"w_tls_server_cert_valid_time_longer_than_397_days", ca.LintServer, "the limit is 398 days"},
			{"w_server_cert_valid_time_longer_than_199_days", ca.LintServer, "the limit is 200 days"},
			{"w_server_cert_valid_time_longer_than_99_days", ca.LintServer, "the limit is 100 days"},
			{"w_server_cert_valid_time_longer_than_46_days", ca.LintServer, "the limit is 47 days"},
			{"w_subject_common_name_included", ca.LintServer, "whether there is a common name is the profile's choice, and CN is in the SAN"},
		},
	},
}
