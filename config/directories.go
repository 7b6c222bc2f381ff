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
			if len(v) > 63 || strings.Trim(string(v), "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
				r.add(key(name), "%s: want at most 63 lower-case letters, digits and hyphens", quote(string(v)))
			}
		}
		if d.Name == defaultDirectory {
			r.add(key("name"), `"default" is the directory at /acme`)
		}
		if first, ok := names[d.Name]; ok {
			r.add(key("name"), "%s is taken by acme.directories[%d]", quote(string(d.Name)), first)
		}
		if first, ok := paths[d.Path]; ok {
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
func (a *ACME) offers(challenge string) bool {
	return slices.Contains(a.Challenges, challenge) || slices.ContainsFunc(a.Directories, func(d Directory) bool {
		return slices.Contains(d.Challenges, challenge)
	})
}
