package app

import (
	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/admin"
	"github.com/secsy-pki/secsy-pki/config"
)

// binding is a binding mode in ACME's words.
func binding(mode string) acme.BindingMode {
	if mode == config.BindingOff {
		return acme.BindingOff
	}
	return acme.BindingMode(mode)
}

// operatorsDirectories are the ACME directories as the operator API knows them.
func (a *app) operatorsDirectories() []admin.Directory {
	c := a.cfg.ACME
	if !c.Enabled {
		return nil
	}
	return []admin.Directory{{Binds: binding(c.ExternalAccountBinding) != acme.BindingOff, Profiles: profileNames(a.cfg)}}
}
