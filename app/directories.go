package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/admin"
	"github.com/secsy-pki/secsy-pki/config"
	"github.com/secsy-pki/secsy-pki/store"
)

// directoriesPath is above the ACME directories beside the one that every server
// has: whatever that one serves in time, none of their names is in its way.
const directoriesPath = acmePath + "/d/"

// buildDirectories makes a server for each directory in the configuration: as
// the first one is, but for what the directory says otherwise.
func (a *app) buildDirectories(first acme.Config) error {
	for i, d := range a.cfg.ACME.Directories {
		s, err := acme.New(a.directoryConfig(first, d))
		if err != nil {
			return fmt.Errorf("acme.directories[%d] (%s): %w", i, d.Name, err)
		}
		a.beside = append(a.beside, s)
	}
	return nil
}

func (a *app) directoryConfig(c acme.Config, d config.Directory) acme.Config {
	c.Directory, c.Beside, c.Path = string(d.Name), a.acme, directoriesPath+string(d.Path)
	c.Store = store.NewACME(a.db).Directory(string(d.Name))
	c.Logger = c.Logger.With("directory", string(d.Name))
	c.Binding = binding(d.ExternalAccountBinding)
	c.Scope = acme.Scope{IP: prefixes(d.PermittedIP)}
	for _, n := range d.PermittedDNS {
		c.Scope.DNS = append(c.Scope.DNS, string(n))
	}
	if d.TermsOfService != "" {
		c.TermsOfService = string(d.TermsOfService)
	}
	if d.Website != "" {
		c.Website = string(d.Website)
	}
	if len(d.Challenges) > 0 {
		c.Challenges = nil
		for _, t := range d.Challenges {
			c.Challenges = append(c.Challenges, acme.ChallengeType(t))
		}
	}
	if d.MaxPendingOrders > 0 {
		c.MaxOpenOrders = d.MaxPendingOrders
	}
	c.Profiles, c.DefaultProfile, c.Scope.Profiles = map[string]string{}, usualProfile(d, c.DefaultProfile), profilesOf(d, c.DefaultProfile)
	for _, p := range d.Profiles {
		c.Profiles[string(p.Name)] = p.Description
	}
	return c
}

// usualProfile is that of orders in a directory that name none; ours is the CA's.
func usualProfile(d config.Directory, ours string) string {
	switch {
	case d.DefaultProfile != "":
		return string(d.DefaultProfile)
	case len(d.Profiles) > 0:
		return string(d.Profiles[0].Name)
	}
	return ours
}

// profilesOf are the profiles that can be ordered in a directory.
func profilesOf(d config.Directory, ours string) []string {
	out := []string{usualProfile(d, ours)}
	for _, p := range d.Profiles {
		if string(p.Name) != out[0] {
			out = append(out, string(p.Name))
		}
	}
	return out
}

// acmeServers are those of all directories, the first one first; none if ACME is off.
func (a *app) acmeServers() []*acme.Server {
	if a.acme == nil {
		return nil
	}
	return append([]*acme.Server{a.acme}, a.beside...)
}

// saveNonces hands the nonces of all directories on to the next start.
func (a *app) saveNonces(ctx context.Context) error {
	var errs []error
	for _, s := range a.acmeServers() {
		errs = append(errs, s.SaveNonces(ctx))
	}
	return errors.Join(errs...)
}

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
	out := []admin.Directory{{Binds: binds(c.ExternalAccountBinding), Profiles: profileNames(a.cfg)}}
	for _, d := range c.Directories {
		out = append(out, admin.Directory{Name: string(d.Name), Binds: binds(d.ExternalAccountBinding), Profiles: profilesOf(d, a.ca.DefaultProfile())})
	}
	return out
}

func binds(mode string) bool { return binding(mode) != acme.BindingOff }
