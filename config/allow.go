package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// walk calls visit for every field of the struct v, sections before their keys,
// and the entries of lists of sections.
func walk(v reflect.Value, key string, visit func(f reflect.StructField, v reflect.Value, key string)) {
	for f, fv := range v.Fields() {
		k := join(key, f.Tag.Get("yaml"))
		visit(f, fv, k)
		switch {
		case isSection(fv.Type()):
			walk(fv, k, visit)
		case isSectionList(fv.Type()):
			for i := range fv.Len() {
				walk(fv.Index(i), fmt.Sprintf("%s[%d]", k, i), visit)
			}
		}
	}
}

var unmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()

// isSection reports whether t is a struct of keys, and not of a type that reads itself.
func isSection(t reflect.Type) bool {
	return t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(unmarshalerType)
}

func isSectionList(t reflect.Type) bool { return t.Kind() == reflect.Slice && isSection(t.Elem()) }

// eachPath calls fn for every path in c, for it to change.
func eachPath(c document, fn func(*Path)) {
	walk(reflect.ValueOf(c).Elem(), "", func(_ reflect.StructField, v reflect.Value, _ string) {
		switch p := v.Addr().Interface().(type) {
		case *Path:
			fn(p)
		case *[]Path:
			for i := range *p {
				fn(&(*p)[i])
			}
		}
	})
}

func (c *Config) check() Errors { return checkValues(reflect.ValueOf(c).Elem()) }

// checkValues finds the values that are wrong whatever the others are.
func checkValues(c reflect.Value) Errors {
	var bad Errors
	walk(c, "", func(f reflect.StructField, v reflect.Value, key string) {
		if f.Tag.Get("required") == "true" && v.IsZero() {
			bad = append(bad, Error{Key: key, Msg: "can't be left out or empty"})
			return
		}
		allow := f.Tag.Get("allow")
		if allow == "" {
			return
		}
		if v.Kind() != reflect.Slice {
			bad = append(bad, outside(allow, v, key)...)
			return
		}
		for i := range v.Len() {
			bad = append(bad, outside(allow, v.Index(i), fmt.Sprintf("%s[%d]", key, i))...)
		}
	})
	return bad
}

// outside holds one value against an allow tag: "low..high" or "this|that".
func outside(allow string, v reflect.Value, key string) Errors {
	low, high, isRange := strings.Cut(allow, "..")
	ok := false
	if isRange {
		ok = ordinal(low, v.Type()) <= v.Int() && v.Int() <= ordinal(high, v.Type())
	} else {
		ok = slices.Contains(strings.Split(allow, "|"), v.String())
	}
	if ok {
		return nil
	}
	return Errors{{Key: key, Msg: fmt.Sprintf("%s is not allowed: want %s", quote(plain(v)), allowed(allow))}}
}

// allowed puts an allow tag in words.
func allowed(allow string) string {
	if low, high, ok := strings.Cut(allow, ".."); ok {
		return low + " to " + high
	}
	return strings.ReplaceAll(allow, "|", ", ")
}

// ordinal reads one end of a range as the number behind a value of type t.
func ordinal(s string, t reflect.Type) int64 {
	v := reflect.New(t)
	if u, ok := v.Interface().(encoding.TextUnmarshaler); ok {
		if u.UnmarshalText([]byte(s)) != nil {
			panic("config: bad allow tag " + s) // a test reads every tag
		}
		return v.Elem().Int()
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic("config: bad allow tag " + s)
	}
	return n
}

// plain writes a single value as text.
func plain(v reflect.Value) string {
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		b, err := m.MarshalText()
		if err != nil {
			return ""
		}
		return string(b)
	}
	return fmt.Sprint(v.Interface())
}
