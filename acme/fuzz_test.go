package acme_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/secsy-pki/secsy-pki/acme"
)

// nobody has no accounts, orders or anything.
type nobody struct{ acme.Store }

func (nobody) Account(context.Context, string) (acme.Account, error) {
	return acme.Account{}, acme.ErrNotFound
}

// FuzzHandler sends anything anywhere without a right signature: always a
// problem of the client's, never one of ours, always with a nonce.
func FuzzHandler(f *testing.F) {
	h := strangerHandler(f)
	for _, path := range []string{"new-account", "new-order", "revoke-cert", "key-change", "order/1/finalize", "authz/1", "challenge/1/http-01", "cert/1", "account/1/orders?cursor=x", "%2f..", ""} {
		f.Add(path, "application/jose+json", []byte(`{"protected":"e30","payload":"","signature":""}`))
	}
	f.Add("new-account", "text/html; charset=", []byte(nil))
	f.Fuzz(func(t *testing.T, path, contentType string, body []byte) {
		u, err := url.Parse("https://ca.example/acme/" + path)
		if err != nil || u.Host != "ca.example" {
			return
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "https://ca.example/acme/", bytes.NewReader(body))
		r.URL = u
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code < 400 || w.Code >= 500 {
			t.Errorf("POST %s: %d %s", path, w.Code, w.Body)
		}
		if w.Header().Get("Content-Type") != "application/problem+json" || w.Header().Get("Replay-Nonce") == "" || !strings.Contains(w.Body.String(), `"detail"`) {
			t.Errorf("POST %s: %v %s", path, w.Header(), w.Body)
		}
	})
}

func strangerHandler(f *testing.F) http.Handler {
	base, err := url.Parse("https://ca.example")
	if err != nil {
		f.Fatal(err)
	}
	s, err := acme.New(acme.Config{BaseURL: base, Store: nobody{}, CA: noCA{}, Validator: &validator{}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	return s.Handler()
}

type noCA struct{ acme.CA }
