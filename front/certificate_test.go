package front_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/front"
)

func subject(t *testing.T, c *front.FileCertificate) string {
	t.Helper()
	got, err := c.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	return got.Leaf.Subject.CommonName
}

func TestReloadTakesGoodFilesAndKeepsTheOldForBadOnes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := writeCertificate(t, dir, "one.test")
	c, err := front.NewFileCertificate(front.FileCertificateConfig{CertFile: certFile, KeyFile: keyFile, Registerer: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	writeCertificate(t, dir, "two.test")
	if got := subject(t, c); got != "one.test" {
		t.Errorf("before Reload: %s", got)
	}
	if err := c.Reload(); err != nil || subject(t, c) != "two.test" {
		t.Errorf("after Reload: %s, %v", subject(t, c), err)
	}
	otherCert, _ := writeCertificate(t, t.TempDir(), "three.test")
	b, err := os.ReadFile(otherCert)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(certFile, b, 0o600); err != nil { // the key is still that of two.test
		t.Fatal(err)
	}
	if err := c.Reload(); err == nil || !strings.Contains(err.Error(), certFile) {
		t.Errorf("Reload of files that don't fit = %v", err)
	}
	if got := subject(t, c); got != "two.test" {
		t.Errorf("after a bad Reload: %s", got)
	}
}

func TestOtherFilesAreUsedOnlyIfTheyAreGood(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	certFile, keyFile := writeCertificate(t, dir, "one.test")
	c, err := front.NewFileCertificate(front.FileCertificateConfig{CertFile: certFile, KeyFile: keyFile})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Use(certFile, filepath.Join(other, "absent.pem")); err == nil {
		t.Error("a key that isn't there was taken")
	}
	writeCertificate(t, dir, "two.test")
	if err := c.Reload(); err != nil || subject(t, c) != "two.test" {
		t.Errorf("the old files are followed no more: %s, %v", subject(t, c), err)
	}
	otherCert, otherKey := writeCertificate(t, other, "three.test")
	if err := c.Use(otherCert, otherKey); err != nil || subject(t, c) != "three.test" {
		t.Errorf("after Use: %s, %v", subject(t, c), err)
	}
}

func TestBadFilesAtStartAreAnError(t *testing.T) {
	t.Parallel()
	_, err := front.NewFileCertificate(front.FileCertificateConfig{CertFile: "/nonexistent/cert.pem", KeyFile: "/nonexistent/key.pem"})
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("error = %v, want one line", err)
	}
}

func TestNewFilesAreFoundAndBadOnesReportedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir, log := t.TempDir(), newLogbook()
		certFile, keyFile := writeCertificate(t, dir, "one.test")
		c, err := front.NewFileCertificate(front.FileCertificateConfig{CertFile: certFile, KeyFile: keyFile, Poll: time.Minute, Log: log.logger()})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Run(ctx)
		}()
		if err := os.WriteFile(certFile, []byte("half writ"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := strings.Count(log.text(), "keeping the old one"); n != 1 || subject(t, c) != "one.test" {
			t.Errorf("%d complaints, certificate of %s", n, subject(t, c))
		}
		writeCertificate(t, dir, "two.test")
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := subject(t, c); got != "two.test" {
			t.Errorf("after a minute: %s, want two.test", got)
		}
		cancel()
		<-done
	})
}
