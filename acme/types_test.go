package acme_test

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/acme"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/ca/catest"
)

// refusing is an authority that refuses what it has allowed before: its rules
// changed between the order and its finalization.
type refusing struct {
	acme.CA
	err error
}

func (r *refusing) Issue(ctx context.Context, req ca.Request, led ca.Ledger) (ca.Certificate, error) {
	if r.err != nil {
		return ca.Certificate{}, r.err
	}
	return r.CA.Issue(ctx, req, led)
}

// broken is a store that fails to read orders.
type broken struct{ acme.Store }

func (broken) OrderOf(context.Context, acme.Signer, string) (acme.Order, error) {
	return acme.Order{}, errors.New("the disk is on fire")
}

// typeWorld is a world in which every type can be provoked.
func typeWorld(t *testing.T) (*world, *refusing) {
	t.Helper()
	r := &refusing{}
	return newWorld(t, func(c *acme.Config) {
		r.CA = c.CA
		c.CA, c.MaxOpenOrders = r, 50
	}), r
}

// elsewhere are the types that other tests provoke on the wire.
var elsewhere = map[string]string{
	"externalAccountRequired": "TestAccountsAreBoundAsTheDirectorySays",
	"alreadyReplaced":         "TestReplacementIsEchoedAndKeptForGood",
	"onionCAARequired":        "TestOnionServicesGetCertificates",

	"autoRenewalCanceled":               "TestCanceledRowIsOver",
	"autoRenewalCancellationInvalid":    "TestCanceledRowIsOver",
	"autoRenewalExpired":                "TestRowOfCertificatesIsIssuedAheadOfTime",
	"autoRenewalRevocationNotSupported": "TestStarCertificatesAreNotRevoked",

	"badAttestationStatement": "TestAttestationThatIsNotBelievedEndsTheOrder",
}

// TestEveryErrorTypeIsSaid provokes each type of RFC 8555 §6.7, and those of
// its extensions, on the wire, with its status.
func TestEveryErrorTypeIsSaid(t *testing.T) {
	t.Parallel()
	type provoke func(t *testing.T, w *world, r *refusing) (*reply, int)
	// inChallenge is how a failed validation is told: in the challenge.
	inChallenge := func(typ acme.ProblemType) provoke {
		return func(t *testing.T, w *world, _ *refusing) (*reply, int) {
			t.Helper()
			c := w.client()
			w.validator.fail("a.example.com", &acme.Problem{Type: typ, Detail: "as the validator says"})
			_, r := c.order("a.example.com")
			a := c.prove(r.strs("authorizations")[0], "http-01")
			ch, _ := a.json["challenges"].([]any)[0].(map[string]any)
			p, _ := ch["error"].(map[string]any)
			if a.str("status") != "invalid" || ch["status"] != "invalid" {
				t.Errorf("authorization: %s", a.body)
			}
			o := c.get(r.location())
			if e, _ := o.json["error"].(map[string]any); o.str("status") != "invalid" || e["type"] != p["type"] || e["subproblems"] == nil {
				t.Errorf("order: %s", o.body)
			}
			status, _ := p["status"].(float64)
			return &reply{t: t, status: int(status), header: a.header, body: a.body, json: p}, 0
		}
	}
	finalize := func(t *testing.T, c *client, names ...string) *reply {
		t.Helper()
		_, r := c.ready(names...)
		return c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), names...)))
	}
	table := map[string]provoke{
		"accountDoesNotExist": func(_ *testing.T, w *world, _ *refusing) (*reply, int) {
			return w.stranger().post(w.url("new-account"), map[string]any{"onlyReturnExisting": true}), 400
		},
		"alreadyRevoked": func(t *testing.T, w *world, _ *refusing) (*reply, int) {
			c := w.client()
			cert, _ := c.issue("a.example.com")
			body := map[string]any{"certificate": b64(cert.Raw)}
			c.post(w.url("revoke-cert"), body).want(200)
			return c.post(w.url("revoke-cert"), body), 400
		},
		"badCSR": func(t *testing.T, w *world, _ *refusing) (*reply, int) {
			c := w.client()
			_, r := c.ready("a.example.com")
			got := c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "b.example.com")))
			if s := c.get(r.location()).str("status"); r.location() != "" && s != "ready" {
				t.Errorf("order is %s", s)
			}
			return got, 400
		},
		"badNonce": func(_ *testing.T, w *world, _ *refusing) (*reply, int) {
			c := w.client()
			c.nonce = b64([]byte("none of ours"))
			return c.get(c.kid), 400
		},
		"badPublicKey": func(t *testing.T, w *world, _ *refusing) (*reply, int) {
			// A key that was reported is no account's.
			c, bad := w.client(), w.stranger()
			cert, key := c.issue("a.example.com")
			holder := &client{t: t, w: w, key: key}
			holder.post(w.url("revoke-cert"), map[string]any{"certificate": b64(cert.Raw), "reason": 1}).want(200)
			bad.key = key
			return bad.post(w.url("new-account"), map[string]any{"termsOfServiceAgreed": true}), 400
		},
		"badRevocationReason": func(_ *testing.T, w *world, _ *refusing) (*reply, int) {
			c := w.client()
			cert, _ := c.issue("a.example.com")
			return c.post(w.url("revoke-cert"), map[string]any{"certificate": b64(cert.Raw), "reason": 6}), 400
		},
		"badSignatureAlgorithm": func(t *testing.T, w *world, _ *refusing) (*reply, int) {
			c := w.client()
			r := c.send(c.kid, jws(t, c.key, c.header(c.kid, map[string]any{"alg": "HS256"}), ""))
			if algs := r.strs("algorithms"); !slices.Contains(algs, "ES256") {
				t.Errorf("algorithms are %v", algs)
			}
			return r, 400
		},
		"caa": inChallenge(acme.CAA),
		"compound": func(t *testing.T, w *world, r *refusing) (*reply, int) {
			r.err = &ca.Refusal{
				Code: ca.RejectedIdentifier, Detail: "no more", Identifier: &ca.Identifier{Type: ca.DNS, Value: "a.example.com"},
				Others: []*ca.Refusal{{Code: ca.Unsupported, Detail: "nor that", Identifier: &ca.Identifier{Type: ca.DNS, Value: "b.example.com"}}},
			}
			c := w.client()
			got := finalize(t, c, "a.example.com", "b.example.com")
			list, _ := got.json["subproblems"].([]any)
			var types []string
			for _, v := range list {
				sub, _ := v.(map[string]any)
				id, _ := sub["identifier"].(map[string]any)
				types = append(types, strings.TrimPrefix(sub["type"].(string), "urn:ietf:params:acme:error:")+" "+id["value"].(string))
			}
			if !slices.Equal(types, []string{"rejectedIdentifier a.example.com", "unsupportedIdentifier b.example.com"}) || got.json["identifier"] != nil {
				t.Errorf("problem is %s", got.body)
			}
			return got, 400
		},
		"connection":        inChallenge(acme.Connection),
		"dns":               inChallenge(acme.DNSError),
		"tls":               inChallenge(acme.TLSError),
		"incorrectResponse": inChallenge(acme.IncorrectResponse),
		"invalidContact": func(_ *testing.T, w *world, _ *refusing) (*reply, int) {
			return w.stranger().post(w.url("new-account"), map[string]any{"contact": []string{"mailto:a@b@c"}}), 400
		},
		"malformed": func(_ *testing.T, w *world, _ *refusing) (*reply, int) {
			return w.client().post(w.url("new-order"), map[string]any{}), 400
		},
		"orderNotReady": func(t *testing.T, w *world, _ *refusing) (*reply, int) {
			c := w.client()
			_, r := c.order("a.example.com")
			return c.post(r.str("finalize"), csrBody(catest.CSR(t, newKey(t), "a.example.com"))), 403
		},
		"rateLimited": func(_ *testing.T, w *world, _ *refusing) (*reply, int) {
			c := w.client()
			for range 50 {
				c.order("a.example.com")
			}
			r := c.post(w.url("new-order"), dns("a.example.com"))
			if r.header.Get("Retry-After") == "" || !strings.Contains(strings.Join(r.header["Link"], " "), `rel="help"`) {
				r.t.Errorf("no time or help: %v", r.header)
			}
			return r, 429
		},
		"rejectedIdentifier": func(_ *testing.T, w *world, _ *refusing) (*reply, int) {
			return w.client().post(w.url("new-order"), dns("a_b.example.com")), 400
		},
		"serverInternal": func(t *testing.T, _ *world, _ *refusing) (*reply, int) {
			w := newWorld(t, func(c *acme.Config) { c.Store = broken{c.Store} })
			c := w.client()
			r := c.get(w.url("order/" + strings.Repeat("0", 32)))
			if strings.Contains(string(r.body), "fire") {
				t.Errorf("told to strangers: %s", r.body)
			}
			return r, 500
		},
		"unauthorized": func(_ *testing.T, w *world, _ *refusing) (*reply, int) {
			c := w.client()
			c.post(c.kid, map[string]any{"status": "deactivated"}).want(200)
			return c.get(c.kid), 403
		},
		"unsupportedContact": func(_ *testing.T, w *world, _ *refusing) (*reply, int) {
			return w.stranger().post(w.url("new-account"), map[string]any{"contact": []string{"tel:+12025551212"}}), 400
		},
		"unsupportedIdentifier": func(_ *testing.T, w *world, _ *refusing) (*reply, int) {
			return w.client().post(w.url("new-order"), map[string]any{"identifiers": []map[string]string{{"type": "email", "value": "a@example.com"}}}), 400
		},
		"userActionRequired": func(t *testing.T, _ *world, _ *refusing) (*reply, int) {
			w := newWorld(t, func(c *acme.Config) { c.TermsOfService = "https://ca.example/terms" })
			r := w.stranger().post(w.url("new-account"), map[string]any{})
			if !slices.Contains(r.header["Link"], `<https://ca.example/terms>;rel="terms-of-service"`) {
				t.Errorf("Link is %q", r.header["Link"])
			}
			return r, 403
		},
		"invalidProfile": func(_ *testing.T, w *world, _ *refusing) (*reply, int) {
			body := dns("a.example.com")
			body["profile"] = "none"
			return w.client().post(w.url("new-order"), body), 400
		},
	}
	for _, typ := range problemTypes(t) {
		f := table[typ]
		if f == nil {
			if elsewhere[typ] == "" {
				t.Errorf("nothing provokes %s", typ)
			}
			continue
		}
		t.Run(typ, func(t *testing.T) {
			t.Parallel()
			w, r := typeWorld(t)
			got, status := f(t, w, r)
			if got.str("type") != "urn:ietf:params:acme:error:"+typ || got.str("detail") == "" {
				t.Fatalf("problem is %s", got.body)
			}
			if status != 0 {
				got.problem(status, typ)
			}
			if got.status == http.StatusUnauthorized {
				t.Error("401 is for other schemes of authentication")
			}
		})
	}
	if extra := slices.DeleteFunc(slices.Collect(maps.Keys(table)), func(s string) bool { return slices.Contains(problemTypes(t), s) }); len(extra) > 0 {
		t.Errorf("no such types: %v", extra)
	}
}

// problemTypes are all that the source knows of.
func problemTypes(t *testing.T) (out []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "problem.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if id, ok := v.Type.(*ast.Ident); ok && id.Name == "ProblemType" {
				s, _ := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
				out = append(out, s)
			}
		}
		return true
	})
	if len(out) < 26 {
		t.Fatalf("only %d types", len(out))
	}
	return out
}
