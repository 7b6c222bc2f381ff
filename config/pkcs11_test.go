package config

import (
	"reflect"
	"strings"
	"testing"
)

func TestTokensAreOffByDefaultAndHaveOneSession(t *testing.T) {
	t.Parallel()
	p := mustParse(t, "").Keys.PKCS11
	if p.Enabled() || p.Sessions.Min != 1 || p.Sessions.Max != 8 || p.Sessions.Idle.String() != "10m" || p.CallTimeout.String() != "30s" || p.MaxHung != 0 {
		t.Errorf("got %+v", p)
	}
}

func TestTokensThatCannotBeOpenedAreErrors(t *testing.T) {
	t.Parallel()
	const on = "module: /m.so, pin: {file: /p}, "
	for _, c := range []struct{ text, want string }{
		{"tokens: [{label: a}], pin: {env: P}", "keys.pkcs11.tokens[0].module: no module: set it here or in keys.pkcs11.module"},
		{"module: /m.so, pin: {env: P}", "keys.pkcs11.tokens: name at least one token: {label: …}"},
		{"pin: {env: P}", "keys.pkcs11.pin: it is for nothing without keys.pkcs11.module and keys.pkcs11.tokens"},
		{"module: /m.so, tokens: [{label: a}]", "keys.pkcs11.tokens[0].pin: no source: set one of file, env, credential and prompt, here or in keys.pkcs11.pin"},
		{"module: /m.so, tokens: [{label: a}], pin: {file: /p, prompt: true}", "keys.pkcs11.pin: more than one source: set exactly one of file, env, credential and prompt"},
		{on + "tokens: [{label: a, pin: {env: P, credential: c}}]", "keys.pkcs11.tokens[0].pin: more than one source: set exactly one of file, env, credential and prompt"},
		{on + "tokens: [{name: a}]", "keys.pkcs11.tokens[0]: set at least one of label, serial and slot"},
		{on + "tokens: [{label: a}, {label: a, name: b}]", "keys.pkcs11.tokens[1]: it is the same token as keys.pkcs11.tokens[0]"},
		{on + "tokens: [{label: a}, {label: a, module: /m.so}]", "keys.pkcs11.tokens[1]: it is the same token as keys.pkcs11.tokens[0]"},
		{on + "tokens: [{label: a, serial: 1}, {label: a, serial: 2}]", `keys.pkcs11.tokens[1].name: "a" is what keys.pkcs11.tokens[0] is called: give each a name of its own`},
		{on + "tokens: [{label: a, name: b}, {label: b}]", `keys.pkcs11.tokens[1].name: "b" is what keys.pkcs11.tokens[0] is called: give each a name of its own`},
		{on + "tokens: [" + strings.Repeat("{label: a},", 17) + "]", "keys.pkcs11.tokens: there are 17: want at most 16"},
		{on + "tokens: [{label: " + strings.Repeat("a", 33) + "}]", `keys.pkcs11.tokens[0].label: "` + strings.Repeat("a", 33) + `": want the label of a token, of at most 32 octets, without space at its end`},
		{on + "tokens: [{serial: " + strings.Repeat("1", 17) + "}]", `keys.pkcs11.tokens[0].serial: "11111111111111111": want the serial number of a token, of at most 16 octets`},
		{on + "tokens: [{slot: -1}]", `keys.pkcs11.tokens[0].slot: "-1": want the number of a slot, such as 0 or 0x1a2b`},
		{on + "tokens: [{lable: a}]", `keys.pkcs11.tokens[0].lable: unknown key; did you mean "label"?`},
		{on + "tokens: [{label: a}], sessions: {min: 9}", "keys.pkcs11.sessions.min: 9 is more than max, 8"},
		{on + "tokens: [{label: a}], sessions: {min: 0}", `keys.pkcs11.sessions.min: "0" is not allowed: want 1 to 256`},
		{on + "tokens: [{label: a}], sessions: {max: 257}", `keys.pkcs11.sessions.max: "257" is not allowed: want 1 to 256`},
		{on + "tokens: [{label: a}], sessions: {idle: 1s}", `keys.pkcs11.sessions.idle: "1s" is not allowed: want 10s to 1d`},
		{on + "tokens: [{label: a}], max_hung: 9", "keys.pkcs11.max_hung: 9 is more than keys.pkcs11.sessions.max, 8"},
		{on + "tokens: [{label: a}], max_hung: -1", `keys.pkcs11.max_hung: "-1" is not allowed: want 0 to 256`},
		{on + "tokens: [{label: a}], call_timeout: 500ms", `keys.pkcs11.call_timeout: "500ms" is not allowed: want 1s to 10m`},
	} {
		_, err := Parse("c.yaml", []byte("keys: {pkcs11: {"+c.text+"}}"))
		if err == nil || strings.Contains(err.Error(), "\n") || !strings.HasSuffix(err.Error(), ": "+c.want) || !strings.HasPrefix(err.Error(), "c.yaml:1:") {
			t.Errorf("%s:\ngot  %v\nwant %s", c.text, err, c.want)
		}
	}
}

func TestATokenHasWhatItsSectionSays(t *testing.T) {
	t.Parallel()
	c := mustParse(t, `
keys:
  pkcs11:
    module: lib/m.so
    pin: {file: pin}
    tokens:
      - {label: "one two", slot: 0x10}
      - {serial: 00ff, module: /n.so, pin: {prompt: true}, name: second}
`)
	want := []PKCS11Token{
		{Label: "one two", Slot: "16", Module: "/etc/secsy-pki/lib/m.so", PIN: PIN{File: "/etc/secsy-pki/pin"}},
		{Serial: "00ff", Module: "/n.so", PIN: PIN{Prompt: true}, Name: "second"},
	}
	got := c.Keys.PKCS11.Effective()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if id := got[0].Slot.Number(); id == nil || *id != 16 || got[1].Slot.Number() != nil {
		t.Errorf("slots are %v and %v", id, got[1].Slot.Number())
	}
	for i, called := range []string{"one two", "second"} {
		if got[i].Called() != called {
			t.Errorf("it is called %q, want %q", got[i].Called(), called)
		}
	}
	if (&PKCS11Token{Serial: "1"}).Called() != "serial 1" || (&PKCS11Token{Slot: "1"}).Called() != "slot 1" {
		t.Error("a token without label has no name")
	}
}

func TestAKeyByURINeedsTokensAndNamesOnlyTheKey(t *testing.T) {
	t.Parallel()
	const tokens = "keys: {pkcs11: {module: /m.so, pin: {env: P}, tokens: [{label: a}]}}\n"
	issuer := func(key string) string { return `issuers: [{name: a, certificate: a.pem, key: ` + key + `}]` }
	for text, want := range map[string]string{
		issuer(`"pkcs11:object=a"`):                         "a PKCS#11 URI, but keys.pkcs11 names no module and no token",
		tokens + issuer(`"pkcs11:object=a?pin-value=4711"`): "only object and id belong here: the module and the PIN are named in keys.pkcs11",
		tokens + issuer(`"pkcs11:object=\t4711"`):           "want a PKCS#11 URI of printable characters, at most 4096 octets",
		tokens + issuer(`"a b"`):                            `"a b": want a label of at most 64 letters`,
	} {
		_, err := Parse("c.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), ": issuers[0].key: "+want) || strings.Contains(err.Error(), "4711") {
			t.Errorf("%s: got %v", text, err)
		}
	}
	for _, key := range []string{`"pkcs11:object=a%20b;id=%01"`, `"PKCS11:id=%01"`, "plain-1"} {
		if c := mustParse(t, tokens+issuer(key)); string(c.Issuers[0].Key) != strings.Trim(key, `"`) {
			t.Errorf("%s became %s", key, c.Issuers[0].Key)
		}
	}
}

func TestWithTokensThePassphraseIsForTheListenerAlone(t *testing.T) {
	t.Parallel()
	const tokens = `
keys: {pkcs11: {module: /m.so, pin: {credential: pin}, tokens: [{label: a}]}}
issuers: [{name: a, certificate: a.pem, key: a}]
`
	const missing = "keys.passphrase: no source: set one of file, env and credential; it opens the key of the https listener, which is not on the HSM"
	for listen, want := range map[string]string{
		`listen: {http: {external_url: "http://a.example"}, https: {external_url: "https://a.example"}}`:                                     missing,
		`listen: {http: {external_url: "http://a.example"}, https: {external_url: "https://a.example", files: {cert_file: a, key_file: b}}}`: "",
		"acme: {enabled: false}\n" + `listen: {http: {external_url: "http://a.example"}, https: {address: ""}}`:                              "",
		"acme: {enabled: false}\n" + `listen: {http: {external_url: "http://a.example"}}`:                                                    missing,
	} {
		err := mustParse(t, listen+tokens).ValidateServe()
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s:\ngot  %v\nwant %s", listen, err, want)
		}
	}
}
