package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a file. The parser's work grows with the square of the number of
// keys, and its memory with the square of the depth.
const (
	maxFile   = 1 << 20
	maxTokens = 50_000
	maxDepth  = 16
)

// Load reads a configuration file. What is wrong with its content is an Errors.
func Load(path string) (*Config, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading configuration: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading configuration %s: %w", path, err)
	}
	return data, nil
}

// Parse is Load for what has been read already; name is for messages, and its
// folder is where relative paths start.
func Parse(name string, data []byte) (*Config, error) {
	c := Default()
	if err := readDocument(name, data, c); err != nil {
		return nil, err
	}
	return c, nil
}

// A document is what one kind of file says.
type document interface {
	check() Errors         // the values that are wrong whatever the others are
	resolve(dir string)    // makes relative paths absolute
	checkTogether() Errors // the values that do not go together
}

// readDocument puts what a file says into c, which points to a struct that has
// the defaults.
func readDocument(name string, data []byte, c document) error {
	abs, err := filepath.Abs(name)
	if err != nil {
		return fmt.Errorf("finding the folder of %s: %w", name, err)
	}
	body, err := parse(name, data)
	if err != nil {
		return err
	}
	d := decoder{file: name, at: map[string]*token.Position{}}
	if body != nil {
		d.value(body, reflect.ValueOf(c).Elem(), "")
	}
	bad := d.errs
	for _, e := range c.check() {
		// A value that could not be decoded has its error already.
		if !d.failed(e.Key) {
			bad = append(bad, d.locate(e))
		}
	}
	if len(bad) > 0 {
		return bad.orNil()
	}
	c.resolve(filepath.Dir(abs))
	for _, e := range c.checkTogether() {
		bad = append(bad, d.locate(e))
	}
	return bad.orNil()
}

// parse returns the root of the one document in data, and nil if it is empty.
func parse(name string, data []byte) (root ast.Node, err error) {
	whole := func(msg string) error { return Errors{{File: name, Msg: msg}} }
	switch {
	case len(data) > maxFile:
		return nil, whole("larger than 1 MiB")
	case !utf8.Valid(data):
		return nil, whole("not UTF-8")
	}
	// The YAML library has panicked on malformed input before; here that is
	// one more way for a file to be unreadable.
	defer func() {
		if recover() != nil {
			root, err = nil, whole("not YAML")
		}
	}()
	tokens := lexer.Tokenize(string(data))
	if bad := refuseTokens(name, tokens); bad != nil {
		return nil, bad
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, syntaxError(name, err)
	}
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if root != nil {
			return nil, whole("more than one YAML document")
		}
		root = doc.Body
	}
	return root, nil
}

func syntaxError(name string, err error) error {
	e := Error{File: name, Msg: "not YAML"}
	if y, ok := errors.AsType[yaml.Error](err); ok {
		e.Msg += ": " + y.GetMessage()
		if tk := y.GetToken(); tk != nil && tk.Position != nil {
			e.Line, e.Col = tk.Position.Line, tk.Position.Column
		}
	}
	return Errors{e}
}

// refuseTokens says no to what the parser should not see: too much, too deep,
// and the parts of YAML that a configuration has no need of.
func refuseTokens(name string, tokens token.Tokens) error {
	if len(tokens) > maxTokens {
		return Errors{{File: name, Msg: "too many keys and values"}}
	}
	refuse := func(tk *token.Token, msg string) error {
		return Errors{{File: name, Line: tk.Position.Line, Col: tk.Position.Column, Msg: msg}}
	}
	flow, dashes, headers, indents := 0, 0, 0, []int{}
	for i, tk := range tokens {
		if i == 0 || tokens[i-1].Position.Line != tk.Position.Line {
			dashes = 0
			for len(indents) > 0 && indents[len(indents)-1] >= tk.Position.Column {
				indents = indents[:len(indents)-1]
			}
			indents = append(indents, tk.Position.Column)
		}
		switch tk.Type {
		case token.AnchorType, token.AliasType, token.MergeKeyType:
			return refuse(tk, "anchors, aliases and merge keys can't be used here: write the value out")
		case token.TagType:
			return refuse(tk, "tags can't be used here")
		case token.MappingKeyType, token.DirectiveType:
			return refuse(tk, "complex keys and directives can't be used here; a text that begins with ? or % needs quotes")
		case token.DocumentHeaderType:
			if headers++; headers > 1 || i > 0 {
				return refuse(tk, "more than one YAML document")
			}
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.SequenceEntryType:
			dashes++
		default:
		}
		if flow+dashes+len(indents) > maxDepth {
			return refuse(tk, "nested too deeply")
		}
	}
	return nil
}
