package config

import "fmt"

// maxPKCS11Tokens bounds the tokens of one program.
const maxPKCS11Tokens = 16

// Enabled reports whether the CA's keys are on PKCS#11 tokens.
func (p *PKCS11) Enabled() bool { return p.Module != "" || len(p.Tokens) > 0 }

// Effective returns the tokens with what they have from the section around them.
func (p *PKCS11) Effective() []PKCS11Token {
	out := make([]PKCS11Token, len(p.Tokens))
	for i, t := range p.Tokens {
		if t.Module == "" {
			t.Module = p.Module
		}
		if !t.PIN.IsSet() {
			t.PIN = p.PIN
		}
		out[i] = t
	}
	return out
}

// checkPKCS11 finds what keeps the tokens from being opened, whatever the device
// says.
func (c *Config) checkPKCS11(r *report) {
	p := &c.Keys.PKCS11
	if !p.Enabled() {
		if p.PIN.IsSet() {
			r.add("keys.pkcs11.pin", "it is for nothing without keys.pkcs11.module and keys.pkcs11.tokens")
		}
		return
	}
	checkPIN(r, "keys.pkcs11.pin", p.PIN)
	switch n := len(p.Tokens); {
	case n == 0:
		r.add("keys.pkcs11.tokens", "name at least one token: {label: …}")
	case n > maxPKCS11Tokens:
		r.add("keys.pkcs11.tokens", "there are %d: want at most %d", n, maxPKCS11Tokens)
		return
	}
	if p.Sessions.Min > p.Sessions.Max {
		r.add("keys.pkcs11.sessions.min", "%d is more than max, %d", p.Sessions.Min, p.Sessions.Max)
	}
	if p.MaxHung > p.Sessions.Max {
		r.add("keys.pkcs11.max_hung", "%d is more than keys.pkcs11.sessions.max, %d", p.MaxHung, p.Sessions.Max)
	}
	for i, t := range p.Tokens {
		checkPIN(r, fmt.Sprintf("keys.pkcs11.tokens[%d].pin", i), t.PIN)
	}
	checkTokens(r, p.Effective())
}

// Called is what logs, metrics and people call a token.
func (t *PKCS11Token) Called() string {
	switch {
	case t.Name != "":
		return string(t.Name)
	case t.Label != "":
		return string(t.Label)
	case t.Serial != "":
		return "serial " + string(t.Serial)
	}
	return "slot " + string(t.Slot)
}

func checkTokens(r *report, tokens []PKCS11Token) {
	type which struct {
		module Path
		label  TokenLabel
		serial TokenSerial
		slot   SlotID
	}
	seen, names := map[which]int{}, map[string]int{}
	for i, t := range tokens {
		key := fmt.Sprintf("keys.pkcs11.tokens[%d]", i)
		if t.Module == "" {
			r.add(key+".module", "no module: set it here or in keys.pkcs11.module")
		}
		if !t.PIN.IsSet() {
			r.add(key+".pin", "no source: set one of file, env, credential and prompt, here or in keys.pkcs11.pin")
		}
		w := which{t.Module, t.Label, t.Serial, t.Slot}
		if w == (which{module: t.Module}) {
			r.add(key, "set at least one of label, serial and slot")
			continue
		}
		if first, twice := seen[w]; twice {
			r.add(key, "it is the same token as keys.pkcs11.tokens[%d]", first)
			continue
		}
		seen[w] = i
		if first, twice := names[t.Called()]; twice {
			r.add(key+".name", "%s is what keys.pkcs11.tokens[%d] is called: give each a name of its own", quote(t.Called()), first)
			continue
		}
		names[t.Called()] = i
	}
}

func checkPIN(r *report, key string, p PIN) {
	if p.sources() > 1 {
		r.add(key, "more than one source: set exactly one of file, env, credential and prompt")
	}
}
