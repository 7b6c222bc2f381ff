// Package eggsampler pins the client library whose own tests are run against our
// directory: an import is what keeps a module in go.mod.
package eggsampler

import _ "github.com/eggsampler/acme/v3" // for its tests
