package acme

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"testing"
)

// tokens is what scanObject does, token by token with encoding/json, which is
// the reader that everything here is read by in the end.
func tokens(b []byte) error {
	var v map[string]json.RawMessage
	if err := json.Unmarshal(b, &v); err != nil || v == nil {
		return errors.Join(errNoJSON, err)
	}
	type level struct {
		names map[string]bool // nil: a list
		value bool            // a name was read, its value comes next
	}
	var (
		dec    = json.NewDecoder(bytes.NewReader(b))
		levels []level
	)
	dec.UseNumber()
	for {
		t, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errNoJSON
		}
		if t == json.Delim('}') || t == json.Delim(']') {
			levels = levels[:len(levels)-1]
			continue
		}
		if n := len(levels) - 1; n >= 0 && levels[n].names != nil {
			if name, ok := t.(string); ok && !levels[n].value {
				name = strings.Map(foldRune, name)
				if levels[n].names[name] {
					return errTwice
				}
				levels[n].names[name] = true
			}
			levels[n].value = !levels[n].value
		}
		switch t {
		case json.Delim('{'):
			levels = append(levels, level{names: make(map[string]bool)})
		case json.Delim('['):
			levels = append(levels, level{})
		}
	}
}

var oddJSON = []string{
	``, ` `, `{}`, ` { } `, `[]`, `null`, `{"a":1,"A":2}`, `{"a":[{"b":{},"c":[]},"b",{"b":null}]}`, "{\"\u212a\":1,\"k\":2}", "{\"\u017f\":1,\"S\":2}",
	`{"\u212a":1,"K":2}`, `{"a":{"a":1,"a":2}}`, `{"a":1}{}`, `{"a":1} x`, `[{"a":1}]`, `{"a":[1,2`, `{"\ud800":1,"\ud801":2}`, "{\"\xff\":1,\"\xfe\":2}",
	`{"a":01}`, `{"a":-}`, `{"a":-0.0e+1}`, `{"a":1.}`, `{"a":1e}`, `{"a":.1}`, `{"a":+1}`, `{"a":tru}`, `{"a":nul`, `{"a":true,}`, `{,}`, `{"a"}`, `{"a":}`, `{"a":1,"b":[1,]}`,
	`{"a":"\x"}`, `{"a":"\u12"}`, `{"a":"\u12G4"}`, "{\"a\":\"\n\"}", `{"a":"\"}`, `{a:1}`, `{"a":1 "b":2}`, "\ufeff{}", "{\"a\":1}\x00", `{"":1,"":2}`, `{"a":[[],[[]],{}]}`,
	`{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"C":1}`, `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1,"j":1,"J":1}`,
	strings.Repeat(`{"a":`, maxDepth) + "1" + strings.Repeat("}", maxDepth),
	strings.Repeat(`{"a":`, maxDepth+1) + "1" + strings.Repeat("}", maxDepth+1),
}

// agree holds a scan against encoding/json: both let the same through, and both
// find the same members in it.
func agree(t *testing.T, b []byte) {
	t.Helper()
	got, err := members(b)
	if errors.Is(err, errDepth) {
		return
	}
	if want := tokens(b); (err == nil) != (want == nil) {
		t.Fatalf("%q: %v; encoding/json: %v", b, err, want)
	}
	if err != nil {
		return
	}
	var want map[string]json.RawMessage
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	if !maps.EqualFunc(got, want, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
		t.Fatalf("%q has %q; encoding/json finds %q", b, got, want)
	}
}

func TestAScanAgreesWithEncodingJSON(t *testing.T) {
	t.Parallel()
	for _, s := range oddJSON {
		agree(t, []byte(s))
	}
	for i := range 40 { // names enough for every kind of set, with a twin at each place
		var b strings.Builder
		for j := range i {
			fmt.Fprintf(&b, `"n%c":1,`, 'A'+j)
		}
		for j := range i {
			agree(t, fmt.Appendf(nil, `{%s"N%c":1}`, b.String(), 'A'+j))
		}
		agree(t, []byte("{"+strings.TrimSuffix(b.String(), ",")+"}"))
	}
}

func FuzzScanAgreesWithEncodingJSON(f *testing.F) {
	for _, s := range oddJSON {
		f.Add([]byte(s))
	}
	f.Fuzz(agree)
}

// Nothing is read that is nested so deeply that reading it is work.
func TestDeepNestingIsRefused(t *testing.T) {
	t.Parallel()
	for _, s := range []string{strings.Repeat("[", 1<<16), strings.Repeat(`{"a":`, 1<<16)} {
		if err := unambiguous([]byte(`{"a":` + s)); !errors.Is(err, errDepth) {
			t.Error(err)
		}
	}
}

// A part with a line end in it is the same octets to some readers only.
func TestAPartOfAJWSHasOneForm(t *testing.T) {
	t.Parallel()
	raw, _ := signedOrder(t, 1, 1)
	m, err := members(raw)
	if err != nil {
		t.Fatal(err)
	}
	good := string(m["payload"])
	with := func(payload string) []byte { return []byte(strings.Replace(string(raw), good, payload, 1)) }
	end := len(good) - 1
	for payload, ok := range map[string]bool{
		good: true, good[:end] + `\n"`: false, good[:9] + `\r\n` + good[9:]: false, good[:end] + `="`: false, good[:9] + ` ` + good[9:]: false,
		`"e30"`: true, `"e31"`: false, `"e3+0"`: false, `"\u00653\u0030"`: true,
		good + `,"Payload":"e30"`: false, good + `,"payload":"e30"`: false, good + `,"x":[{"a":1,"A":2}]`: false, good + `,"x":[{"a":1,"b":2}]`: true,
	} {
		if _, err := parseMessage(with(payload)); (err == nil) != ok {
			t.Errorf("payload %s: %v", payload, err)
		}
	}
}
