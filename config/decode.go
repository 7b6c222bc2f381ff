package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// A decoder walks a YAML tree and the Config side by side, and goes on after
// an error, so that a file's errors come all at once.
type decoder struct {
	file string
	errs Errors
	at   map[string]*token.Position // where each key was found
}

// value sets dst to what node says.
func (d *decoder) value(node ast.Node, dst reflect.Value, key string) {
	if tk := node.GetToken(); tk != nil {
		if _, ok := d.at[key]; !ok {
			d.at[key] = tk.Position
		}
	}
	if text, ok := dst.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.text(node, text, key)
		return
	}
	switch dst.Kind() {
	case reflect.Struct:
		d.mapping(node, dst, key)
	case reflect.Slice:
		d.sequence(node, dst, key)
	case reflect.String:
		d.str(node, dst, key)
	case reflect.Int:
		d.integer(node, dst, key)
	case reflect.Bool:
		b, ok := node.(*ast.BoolNode)
		if !ok {
			d.mismatch(node, key, "want true or false")
			return
		}
		dst.SetBool(b.Value)
	default:
		// A test walks every field of Config through here.
		panic("config: no decoding for " + dst.Type().String())
	}
}

func (d *decoder) mapping(node ast.Node, dst reflect.Value, key string) {
	var entries []*ast.MappingValueNode
	switch n := node.(type) {
	case *ast.MappingNode:
		entries = n.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{n}
	case *ast.NullNode:
		return // a section whose keys are all commented out
	default:
		d.mismatch(node, key, "want a section of keys")
		return
	}
	seen := map[string]int{}
	for _, e := range entries {
		tk := e.Key.GetToken()
		name := tk.Value
		if line, ok := seen[name]; ok {
			d.fail(tk, join(key, name), fmt.Sprintf("given twice, first in line %d", line))
			continue
		}
		seen[name] = tk.Position.Line
		field, ok := fieldByKey(dst, name)
		if !ok {
			d.fail(tk, join(key, shown(name)), unknownKey(name, dst.Type()))
			continue
		}
		d.at[join(key, name)] = tk.Position
		d.value(e.Value, field, join(key, name))
	}
}

func (d *decoder) sequence(node ast.Node, dst reflect.Value, key string) {
	seq, ok := node.(*ast.SequenceNode)
	switch {
	case node.Type() == ast.NullType:
		return
	case !ok:
		d.mismatch(node, key, "want a list")
		return
	}
	list := reflect.MakeSlice(dst.Type(), len(seq.Values), len(seq.Values))
	for i, n := range seq.Values {
		entry := list.Index(i)
		if def, ok := entry.Addr().Interface().(defaulter); ok {
			def.setDefaults()
		}
		d.value(n, entry, fmt.Sprintf("%s[%d]", key, i))
	}
	if len(seq.Values) == 0 {
		list = reflect.Zero(dst.Type()) // one form for an empty list
	}
	dst.Set(list)
}

// text decodes the types that read themselves, from any scalar.
func (d *decoder) text(node ast.Node, dst encoding.TextUnmarshaler, key string) {
	s, ok := scalar(node)
	if !ok {
		d.mismatch(node, key, "want a single value")
		return
	}
	if err := dst.UnmarshalText([]byte(s)); err != nil {
		d.fail(node.GetToken(), key, fmt.Sprintf("%s: %v", quote(s), err))
	}
}

func (d *decoder) str(node ast.Node, dst reflect.Value, key string) {
	s, ok := scalar(node)
	if !ok {
		d.mismatch(node, key, "want a text")
		return
	}
	dst.SetString(s)
}

func (d *decoder) integer(node ast.Node, dst reflect.Value, key string) {
	n, ok := node.(*ast.IntegerNode)
	if !ok {
		d.mismatch(node, key, "want a whole number")
		return
	}
	switch v := n.Value.(type) {
	case int64:
		dst.SetInt(v)
	case uint64:
		if v > 1<<62 {
			d.fail(n.Token, key, "number out of range")
			return
		}
		dst.SetInt(int64(v))
	default:
		d.mismatch(node, key, "want a whole number")
	}
}

// scalar returns the text of a single value as it stands in the file.
func scalar(node ast.Node) (string, bool) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// mismatch says what was found in the place of what was wanted.
func (d *decoder) mismatch(node ast.Node, key, want string) {
	found := "a section of keys"
	switch node.(type) {
	case *ast.NullNode:
		found = "nothing"
	case *ast.SequenceNode:
		found = "a list"
	default:
		if s, ok := scalar(node); ok {
			found = quote(s)
		}
	}
	d.fail(node.GetToken(), key, want+", not "+found)
	if pos := d.at[key]; found == "nothing" && pos != nil {
		last := &d.errs[len(d.errs)-1]
		last.Line, last.Col = pos.Line, pos.Column // nothing has no place; its key has
	}
}

func (d *decoder) fail(tk *token.Token, key, msg string) {
	e := Error{File: d.file, Key: key, Msg: msg}
	if tk != nil && tk.Position != nil {
		e.Line, e.Col = tk.Position.Line, tk.Position.Column
	}
	d.errs = append(d.errs, e)
}

// failed reports whether key, or a part of it, has an error already.
func (d *decoder) failed(key string) bool {
	return slices.ContainsFunc(d.errs, func(e Error) bool {
		return within(key, e.Key) || within(e.Key, key)
	})
}

// locate gives e the place of its key, or of the closest section around it.
func (d *decoder) locate(e Error) Error {
	e.File = d.file
	for key := e.Key; ; {
		if pos, ok := d.at[key]; ok {
			e.Line, e.Col = pos.Line, pos.Column
			return e
		}
		i := strings.LastIndexAny(key, ".[")
		if i < 0 {
			return e
		}
		key = key[:i]
	}
}

// within reports whether key is outer or lies below it.
func within(key, outer string) bool {
	rest, ok := strings.CutPrefix(key, outer)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

func join(key, name string) string {
	if key == "" {
		return name
	}
	return key + "." + name
}

// shown keeps the name of a strange key short and in one line.
func shown(name string) string {
	if len(name) <= 40 && printable(name) {
		return name
	}
	return quote(name)
}

func fieldByKey(v reflect.Value, name string) (reflect.Value, bool) {
	for f, fv := range v.Fields() {
		if f.Tag.Get("yaml") == name {
			return fv, true
		}
	}
	return reflect.Value{}, false
}

func unknownKey(name string, t reflect.Type) string {
	best, least := "", min(3, 1+(len(name)+1)/3) // in a short word two edits make another word
	var all []string
	for f := range t.Fields() {
		key := f.Tag.Get("yaml")
		all = append(all, key)
		if n := distance(strings.ToLower(name), key, least); n < least {
			best, least = key, n
		}
	}
	if best != "" {
		return fmt.Sprintf("unknown key; did you mean %q?", best)
	}
	return "unknown key; allowed here: " + strings.Join(all, ", ")
}

// distance is the number of edits between two words, or bound if it is no less.
func distance(a, b string, bound int) int {
	if len(a)-len(b) >= bound || len(b)-len(a) >= bound {
		return bound
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return min(row[len(b)], bound)
}
