package config

import (
	"fmt"
	"reflect"
)

// A Change is one key whose value differs between two configurations.
type Change struct {
	Key string
	Old string // of a list of sections, how many
	New string
}

// Diff tells what changed: what the running program can take over, and what
// waits for its restart.
func Diff(before, after *Config) (reloadable, needsRestart []Change) {
	d := differ{}
	d.section(reflect.ValueOf(before).Elem(), reflect.ValueOf(after).Elem(), "", false)
	return d.live, d.restart
}

type differ struct{ live, restart []Change }

func (d *differ) section(before, after reflect.Value, key string, live bool) {
	for i, f := range reflect.VisibleFields(before.Type()) {
		b, a := before.Field(i), after.Field(i)
		if reflect.DeepEqual(b.Interface(), a.Interface()) {
			continue
		}
		reload := f.Tag.Get("reload")
		d.field(b, a, join(key, f.Tag.Get("yaml")), reload == "live" || live && reload != "restart")
	}
}

func (d *differ) field(before, after reflect.Value, key string, live bool) {
	switch t := before.Type(); {
	case isSection(t):
		d.section(before, after, key, live)
	case isSectionList(t) && before.Len() == after.Len():
		for i := range before.Len() {
			d.section(before.Index(i), after.Index(i), fmt.Sprintf("%s[%d]", key, i), live)
		}
	case isSectionList(t):
		entries := func(v reflect.Value) string { return fmt.Sprintf("%d entries", v.Len()) }
		d.add(Change{Key: key, Old: entries(before), New: entries(after)}, live)
	case t.Kind() == reflect.Slice:
		d.add(Change{Key: key, Old: flow(before), New: flow(after)}, live)
	default:
		d.add(Change{Key: key, Old: plain(before), New: plain(after)}, live)
	}
}

func (d *differ) add(c Change, live bool) {
	if live {
		d.live = append(d.live, c)
	} else {
		d.restart = append(d.restart, c)
	}
}
