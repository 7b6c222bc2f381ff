package config

import (
	"fmt"
	"slices"
	"strings"
)

const (
	// maxDirectories bounds what each of them costs while it is idle.
	maxDirectories = 32
	// defaultDirectory is what operators call the directory at /acme.
	defaultDirectory = "default"
)

// checkDirectories finds ACME directories that clash, or offer what there is not.
func (c *Config) checkDirectories(r *report) {
	list := c.ACME.Directories
	if len(list) > maxDirectories {
		r.add("acme.directories", "there are %d: want at most %d", len(list), maxDirectories)
	}
	profiles := map[Name]bool{}
	for _, p := range c.Profiles {
		profiles[p.Name] = true
	}
	names, paths := map[Name]int{}, map[Name]int{}
	for i, d := range list {
		key := func(name string) string { return fmt.Sprintf("acme.directories[%d].%s", i, name) }
		for name, v := range map[string]Name{"name": d.Name, "path": d.Path} {
			if name == "path" && v == d.Name {
				continue // the default: one mistake, told once
			}
			if len(v) > 63 || strings.Trim(string(v), "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
				r.add(key(name), "%s: want at most 63 lower-case letters, digits and hyphens", quote(string(v)))
			}
		}
		if d.Name == defaultDirectory {
			r.add(key("name"), `"default" is the directory at /acme`)
		}
		first, taken := names[d.Name]
		if taken {
			r.add(key("name"), "%s is taken by acme.directories[%d]", quote(string(d.Name)), first)
		}
		if first, ok := paths[d.Path]; ok && (!taken || d.Path != d.Name) {
			r.add(key("path"), "%s is taken by acme.directories[%d]", quote(string(d.Path)), first)
		}
		names[d.Name], paths[d.Path] = i, i
		for j, name := range d.Challenges {
			if slices.Contains(d.Challenges[:j], name) {
				r.add(key(fmt.Sprintf("challenges[%d]", j)), "%s is given twice", name)
			}
		}
		c.checkOffered(r, fmt.Sprintf("acme.directories[%d]", i), d.Profiles)
		switch {
		case d.DefaultProfile == "":
		case !profiles[d.DefaultProfile]:
			r.add(key("default_profile"), "there is no profile %s", quote(string(d.DefaultProfile)))
		}
	}
}

// offers reports whether any directory offers a challenge.
func (a *ACME) offers(challenge string) bool { return a.offeredAt(challenge) != "" }

// offeredAt is the first key that offers a challenge, if any does.
func (a *ACME) offeredAt(challenge string) string {
	if slices.Contains(a.Challenges, challenge) {
		return "acme.challenges"
	}
	for i, d := range a.Directories {
		if slices.Contains(d.Challenges, challenge) {
			return fmt.Sprintf("acme.directories[%d].challenges", i)
		}
	}
	return ""
}

// certifiesDevices reports whether p is for what device-attest-01 proves.
func (p Profile) certifiesDevices() bool {
	return p.Identifiers.PermanentIdentifiers || p.Identifiers.HardwareModules
}
