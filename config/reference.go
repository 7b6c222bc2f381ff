package config

import (
	_ "embed"
	"encoding"
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml/token"
)

//go:embed schema.go
var schema string

const referenceHead = `# Every key of the configuration file of secsy-pki, with its default.
#
# Lengths of time are written 90d, 12h, 1h30m or 10s; sizes 64KiB or 1MiB. Paths
# that do not begin with / start at the folder of this file. A key that is left
# out has the default shown here. Changes need a restart, except to the keys
# that say "Reloads on SIGHUP".

`

// Reference is the whole configuration, each key under its comment and with its
// default. It is a valid file that means the same as an empty one.
func Reference() string {
	w := writer{docs: fieldDocs(), all: true}
	return referenceHead + w.section(reflect.ValueOf(Default()).Elem(), reflect.Value{})
}

// Marshal writes c as a file that reads back as c.
func (c *Config) Marshal() []byte {
	return []byte((&writer{all: true}).section(reflect.ValueOf(c).Elem(), reflect.Value{}))
}

// MarshalCommented writes only what in c differs from the defaults, each key
// under its comment: a file for a person to go on with.
func (c *Config) MarshalCommented() []byte {
	w := writer{docs: fieldDocs()}
	return []byte(w.section(reflect.ValueOf(c).Elem(), reflect.ValueOf(Default()).Elem()))
}

// fieldDocs returns the comment of each field of this package's structs, by
// Type.Field, as schema.go and perspective.go have them.
func fieldDocs() map[string]string {
	docs := map[string]string{}
	for _, source := range []string{schema, perspectiveSchema} {
		file, err := parser.ParseFile(gotoken.NewFileSet(), "schema.go", source, parser.ParseComments)
		if err != nil {
			continue // it was compiled into this program: it parses
		}
		commentsOf(file, docs)
	}
	return docs
}

func commentsOf(file *ast.File, docs map[string]string) {
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		fields, ok := spec.Type.(*ast.StructType)
		if !ok {
			return false
		}
		for _, f := range fields.Fields.List {
			for _, name := range f.Names {
				docs[spec.Name.Name+"."+name.Name] = f.Doc.Text()
			}
		}
		return false
	})
}

// A writer puts values as YAML. Without docs there are no comments.
type writer struct {
	docs map[string]string
	all  bool // in the entries of lists, also the keys that have their default
}

// section writes the keys of a struct. Where base is valid, keys that are the
// same in it are left out.
func (w *writer) section(v, base reflect.Value) string {
	var blocks []string
	for i, f := range reflect.VisibleFields(v.Type()) {
		fv, fb := v.Field(i), reflect.Value{}
		if base.IsValid() {
			fb = base.Field(i)
			if reflect.DeepEqual(fv.Interface(), fb.Interface()) {
				continue
			}
		}
		blocks = append(blocks, w.comment(v.Type(), f)+w.field(f, fv, fb))
	}
	sep := ""
	if w.docs != nil {
		sep = "\n"
	}
	return strings.Join(blocks, sep)
}

// comment is what stands above a key.
func (w *writer) comment(t reflect.Type, f reflect.StructField) string {
	if w.docs == nil {
		return ""
	}
	text := strings.TrimSpace(w.docs[t.Name()+"."+f.Name])
	var facts []string
	if f.Tag.Get("required") == "true" {
		facts = append(facts, "Required.")
	}
	if allow := f.Tag.Get("allow"); allow != "" {
		facts = append(facts, "Allowed: "+allowed(allow)+".")
	}
	switch f.Tag.Get("reload") {
	case "live":
		facts = append(facts, "Reloads on SIGHUP.")
	case "restart":
		facts = append(facts, "Needs a restart.")
	}
	if len(facts) > 0 {
		text += "\n" + strings.Join(facts, " ")
	}
	return prefix("# ", text)
}

func (w *writer) field(f reflect.StructField, v, base reflect.Value) string {
	key := f.Tag.Get("yaml") + ":"
	switch {
	case isSection(v.Type()):
		return key + "\n" + prefix("  ", w.section(v, base))
	case isSectionList(v.Type()) && v.Len() == 0:
		return key + " []\n" + w.example(v.Type().Elem())
	case isSectionList(v.Type()):
		return key + "\n" + w.entries(v)
	case v.Kind() == reflect.Slice:
		return key + " " + flow(v) + "\n"
	default:
		return key + " " + yamlScalar(v) + "\n"
	}
}

// entries writes a list of sections. One comment for each key is enough.
func (w *writer) entries(v reflect.Value) string {
	var b strings.Builder
	base := reflect.Value{}
	if !w.all {
		base = entryDefaults(v.Type().Elem())
	}
	each := w
	for i := range v.Len() {
		b.WriteString(dash(each.section(v.Index(i), base)))
		each = &writer{all: w.all}
	}
	return b.String()
}

func entryDefaults(t reflect.Type) reflect.Value {
	v := reflect.New(t)
	if d, ok := v.Interface().(defaulter); ok {
		d.setDefaults()
	}
	return v.Elem()
}

// example shows, as a comment, what an entry of an empty list looks like.
func (w *writer) example(t reflect.Type) string {
	if w.docs == nil {
		return ""
	}
	v := reflect.New(t).Elem()
	v.Set(entryDefaults(t))
	for i, f := range reflect.VisibleFields(t) {
		if text := f.Tag.Get("example"); text != "" {
			v.Field(i).SetString(text)
		}
	}
	return prefix("# ", dash(w.section(v, reflect.Value{})))
}

// dash turns a section into the entry of a list, the dash before its first key.
func dash(section string) string {
	var b strings.Builder
	dashed := false
	for line := range strings.Lines(section) {
		switch {
		case dashed && line == "\n":
			b.WriteString(line)
		case dashed:
			b.WriteString("    " + line)
		case strings.HasPrefix(line, "#"):
			b.WriteString("  " + line)
		default:
			b.WriteString("  - " + line)
			dashed = true
		}
	}
	return b.String()
}

// prefix puts p before each line of s, and ends it with a line end.
func prefix(p, s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		if line == "\n" {
			b.WriteString(strings.TrimRight(p, " ") + "\n")
			continue
		}
		b.WriteString(p + line)
	}
	if !strings.HasSuffix(s, "\n") {
		b.WriteByte('\n')
	}
	return b.String()
}

func flow(v reflect.Value) string {
	parts := make([]string, v.Len())
	for i := range parts {
		parts[i] = yamlScalar(v.Index(i))
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// yamlScalar writes a single value, quoted where YAML could mistake it.
func yamlScalar(v reflect.Value) string {
	s := plain(v)
	_, isText := v.Interface().(encoding.TextMarshaler)
	if v.Kind() == reflect.Float64 || v.Kind() != reflect.String && !isText {
		return s
	}
	const safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./"
	if s == "" || strings.Trim(s, safe) != "" || s[0] == '-' || token.IsNeedQuoted(s) {
		return fmt.Sprintf("%q", s)
	}
	return s
}
