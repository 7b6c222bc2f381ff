package perspective

import (
	"bytes"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
)

const someID = "0123456789abcdef0123456789abcdef"

func goodAsks() []ask {
	v := askValidation(acme.Validation{
		Type: acme.HTTP01, Identifier: ca.Identifier{Type: ca.DNS, Value: "www.example.org"},
		Token: "tok", KeyAuthorization: "tok.thumb", AccountURL: "https://ca.example/acme/account/1",
	})
	q := askCAA(acme.CAAQuery{Name: "example.org", Wildcard: true, Method: acme.DNS01, AccountURL: "https://ca.example/acme/account/1"})
	v.ID, v.TimeoutMS, q.ID, q.TimeoutMS = someID, 9000, someID, 1
	return []ask{v, q}
}

func goodAnswers() []answer {
	return []answer{
		{Version: version, ID: someID, Name: "fra", Region: RIPENCC, OK: true, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, TookMS: 12},
		{Version: version, ID: someID, Name: "nrt", Region: APNIC, Problem: &objection{Type: acme.Unauthorized, Detail: `found "<html>", not it`}},
	}
}

func must(t testing.TB, v any) string {
	t.Helper()
	b, err := encode(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestMessagesComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	for _, want := range goodAsks() {
		if got, err := decodeAsk([]byte(must(t, want))); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
	for _, want := range goodAnswers() {
		if got, err := decodeAnswer([]byte(must(t, want))); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	}
}

func TestEveryFieldOfAQuestionIsSentOrLeftOutOnPurpose(t *testing.T) {
	t.Parallel()
	// AccountID is ours alone; the others are for what is proven without a network.
	out := map[string]bool{"AccountID": true, "Answer": true, "IssuedAt": true, "Onion": true}
	for _, c := range []struct{ from, to reflect.Type }{
		{reflect.TypeFor[acme.Validation](), reflect.TypeFor[validation]()},
		{reflect.TypeFor[acme.CAAQuery](), reflect.TypeFor[caaQuery]()},
	} {
		for f := range c.from.Fields() {
			if _, sent := c.to.FieldByName(f.Name); sent == out[f.Name] {
				t.Errorf("%s.%s: sent %v, left out on purpose %v", c.from.Name(), f.Name, sent, out[f.Name])
			}
		}
	}
}

func TestMessagesHaveOneForm(t *testing.T) {
	t.Parallel()
	a, b := must(t, goodAsks()[0]), must(t, goodAnswers()[0])
	swap := func(s, from, to string) string {
		if !strings.Contains(s, from) {
			t.Fatalf("no %s in %s", from, s)
		}
		return strings.Replace(s, from, to, 1)
	}
	for name, text := range map[string]string{
		"another member": swap(a, `"id"`, `"more":1,"id"`),
		"twice":          swap(a, `"id"`, `"version":1,"id"`),
		"upper case":     swap(a, `"id"`, `"ID"`),
		"a space":        swap(a, `:1,`, `: 1,`),
		"another value":  a + "{}",
		"a line end":     a + "\n",
		"null":           swap(a, `}}`, `},"caa":null}`),
		"an escape":      swap(a, `"tok"`, `"t\u006fk"`),
		"not UTF-8":      swap(a, `"tok"`, "\"t\xffk\""),
		"version 2":      swap(a, `"version":1`, `"version":2`),
		"a bad id":       swap(a, someID, someID[1:]+"G"),
		"no time":        swap(a, `"timeout_ms":9000`, `"timeout_ms":0`),
		"all the time":   swap(a, `"timeout_ms":9000`, `"timeout_ms":9000000`),
		"two questions":  swap(a, `}}`, `},"caa":{"name":"a"}}`),
		"a control":      swap(a, `"tok"`, `"t\nk"`),
		"a long name":    swap(a, `www.example.org`, strings.Repeat("a", 254)),
		"no question":    `{"version":1,"id":"` + someID + `","timeout_ms":1}`,
		"nothing":        "",
		"no object":      "[]",
		"huge":           `{"version":1,"id":"` + strings.Repeat("a", maxMessage) + `"}`,
	} {
		if got, err := decodeAsk([]byte(text)); err == nil {
			t.Errorf("ask, %s: got %+v", name, got)
		}
	}
	for name, text := range map[string]string{
		"yes with a problem":   swap(b, `"ok":true`, `"ok":true,"problem":{"type":"dns"}`),
		"no without":           swap(b, `"ok":true`, `"ok":false`),
		"an address of a zone": swap(b, `2001:db8::1`, `fe80::1%eth0`),
		"no address":           swap(b, `2001:db8::1`, ``),
		"too many addresses":   swap(b, `"192.0.2.1"`, strings.TrimSuffix(strings.Repeat(`"192.0.2.1",`, 16), ",")),
		"a bad time":           swap(b, `"took_ms":12`, `"took_ms":-1`),
		"another member":       swap(b, `"id"`, `"valid":true,"id"`),
		"another type":         must(t, answer{Version: 1, ID: someID, Name: "a", Region: ARIN, Problem: &objection{Type: acme.BadNonce}}),
		"a long detail":        must(t, answer{Version: 1, ID: someID, Name: "a", Region: ARIN, Problem: &objection{Type: acme.DNSError, Detail: strings.Repeat("x", 300)}}),
		"a strange detail":     must(t, answer{Version: 1, ID: someID, Name: "a", Region: ARIN, Problem: &objection{Type: acme.DNSError, Detail: "\x1b[2J"}}),
	} {
		if got, err := decodeAnswer([]byte(text)); err == nil {
			t.Errorf("answer, %s: got %+v", name, got)
		}
	}
}

func TestWhatGoesOutComesIn(t *testing.T) {
	t.Parallel()
	// Whatever a validator says is told in a form that the other side takes.
	for _, p := range []*acme.Problem{
		nil,
		{Type: acme.DNSError, Detail: strings.Repeat("é\n", 5000)},
		{Type: acme.BadNonce, Detail: "no look says that"},
		{},
	} {
		a := answer{Version: version, ID: someID, Name: "fra", Region: RIPENCC, OK: p == nil, Problem: told(p), Addrs: seen(make([]netip.Addr, 40))}
		if got, err := decodeAnswer([]byte(must(t, a))); err != nil || !reflect.DeepEqual(got, a) {
			t.Errorf("%+v: %v", p, err)
		}
	}
	many := make([]netip.Addr, 40)
	for i := range many {
		many[i] = netip.MustParseAddr("fe80::1%eth0")
	}
	if got := seen(many); len(got) != maxAddrs || got[0].Zone() != "" {
		t.Errorf("got %v", got)
	}
}

// FuzzAsk holds that whatever is taken for a question is within bounds, and has
// no other text.
func FuzzAsk(f *testing.F) {
	for _, a := range goodAsks() {
		f.Add([]byte(must(f, a)))
	}
	f.Add([]byte(`{"version":1,"id":"` + someID + `","timeout_ms":1,"validation":{"type":"x","identifier":{"type":"dns","value":"a"},"token":"<"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := decodeAsk(data)
		if err != nil {
			return
		}
		if again := must(t, a); again != string(data) {
			t.Errorf("%q means %+v, which is %q", data, a, again)
		}
		for _, s := range texts(a) {
			if len(s) > maxURL || plain(s, maxURL) != s {
				t.Errorf("%q got through", s)
			}
		}
	})
}

// FuzzAnswer holds likewise of an answer: it is a yes or an objection of the few
// types, and of plain text.
func FuzzAnswer(f *testing.F) {
	for _, a := range goodAnswers() {
		f.Add([]byte(must(f, a)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := decodeAnswer(data)
		if err != nil {
			return
		}
		if again := must(t, a); !bytes.Equal([]byte(again), data) {
			t.Errorf("%q means %+v, which is %q", data, a, again)
		}
		if a.OK == (a.Problem != nil) || len(a.Addrs) > maxAddrs {
			t.Errorf("got through: %+v", a)
		}
		for _, s := range texts(a) {
			if len(s) > maxDetail+3 || plain(s, maxDetail+3) != s {
				t.Errorf("%q got through", s)
			}
		}
	})
}

// texts are all strings in v.
func texts(v any) []string {
	var out []string
	var walk func(reflect.Value)
	walk = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.String:
			out = append(out, v.String())
		case reflect.Pointer:
			if !v.IsNil() {
				walk(v.Elem())
			}
		case reflect.Struct:
			if v.Type() == reflect.TypeFor[netip.Addr]() {
				return
			}
			for _, f := range v.Fields() {
				walk(f)
			}
		case reflect.Slice:
			for i := range v.Len() {
				walk(v.Index(i))
			}
		}
	}
	walk(reflect.ValueOf(v))
	return out
}
