package acme

import (
	"bytes"
	"encoding/json"
	"testing"
)

// FuzzUnambiguous: what is let through is one object that names every member
// once, so that whoever reads it keeps as many members as were written.
func FuzzUnambiguous(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1,"A":2}`, `{"a":[{"b":{},"c":[]},"b",{"b":null}]}`, `{"K":1,"k":2}`, `{"a":{"a":1,"a":2}}`, `{"a":1}{}`, `[{"a":1}]`, `{"a":[1,2`, `{"\ud800":1,"\ud801":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := members(b); err != nil {
			return
		}
		if unambiguous(b) != nil {
			return
		}
		var v any
		dec := json.NewDecoder(bytes.NewReader(b))
		dec.UseNumber() // of any size
		if err := dec.Decode(&v); err != nil {
			t.Fatalf("%q is not JSON: %v", b, err)
		}
		again, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := unambiguous(again); err != nil {
			t.Errorf("%q became %q: %v", b, again, err)
		}
		if colons(b) != colons(again) {
			t.Errorf("%q lost members: %q", b, again)
		}
	})
}

// colons counts members: those outside of strings.
func colons(b []byte) (n int) {
	in := false
	for i := 0; i < len(b); i++ {
		switch {
		case in && b[i] == '\\':
			i++
		case b[i] == '"':
			in = !in
		case b[i] == ':' && !in:
			n++
		}
	}
	return n
}
