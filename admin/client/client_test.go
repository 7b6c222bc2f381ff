package client_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/secsy-pki/secsy-pki/admin/client"
)

func serve(t *testing.T, h http.HandlerFunc) *client.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "secsy") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ln) }()
	t.Cleanup(func() { _ = srv.Close(); <-done })
	c := client.New(filepath.Join(dir, "s"))
	t.Cleanup(c.Close)
	return c
}

func TestAbsentServerIsSaidToBeAbsent(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "secsy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	left := filepath.Join(dir, "left")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: left, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	for _, socket := range []string{filepath.Join(dir, "none"), left} {
		_, err := client.New(socket).ListIssuers(t.Context())
		if !errors.Is(err, client.ErrNotRunning) || !strings.Contains(err.Error(), socket) {
			t.Errorf("%s: %v", socket, err)
		}
	}
}

func TestAnswersThatAreNotTheAPIsAreErrors(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.HandlerFunc{
		"text": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<b>no</b>", http.StatusTeapot) },
		"redirect": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "http://192.0.2.1/")
			w.WriteHeader(http.StatusFound)
		},
		"not JSON":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) },
		"no answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"bad problem": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", client.ProblemType)
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte("{"))
		},
	} {
		if _, err := serve(t, h).ListIssuers(t.Context()); err == nil || strings.Contains(err.Error(), "<b>") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCancelledRequestSaysSo(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	})
	if _, err := c.ListIssuers(ctx); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "http://") {
		t.Errorf("%v", err)
	}
}

func TestIteratingEndsAfterAnError(t *testing.T) {
	t.Parallel()
	n := 0
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) })
	for _, err := range c.AllAudit(t.Context(), client.AuditFilter{}) {
		if n++; err == nil || n > 1 {
			t.Errorf("%d: %v", n, err)
		}
	}
}
