package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"iter"
	"math/big"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/secsy-pki/secsy-pki/bench/measure"
	"github.com/secsy-pki/secsy-pki/ca"
	"github.com/secsy-pki/secsy-pki/crl"
	"github.com/secsy-pki/secsy-pki/keys"
)

func newIssuer() (*ca.Issuer, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, NotAfter: time.Now().AddDate(10, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	return &ca.Issuer{ID: ca.IDOf(cert), Name: "bench", Cert: cert, Key: keys.FromSigner(key)}, key, nil
}

func precise(s measure.Sample) string {
	return fmt.Sprintf("%.3f (%.3f-%.3f)", s.Median(), s.Least(), s.Most())
}

// A subject makes the same list each time and says how long it is.
type subject struct {
	name string
	make func(ctx context.Context) (octets int64, err error)
	cpu  measure.Sample // seconds
	peak measure.Sample // MiB beyond what was there before
}

// encoders measures ours beside the standard library and returns the median of
// the ratios.
func (b *bench) encoders(ctx context.Context) (float64, error) {
	is, key, err := newIssuer()
	if err != nil {
		return 0, err
	}
	entries := make([]crl.Entry, b.entries)
	theirs := make([]x509.RevocationListEntry, b.entries)
	at := time.Now().UTC().Truncate(time.Second)
	for i := range entries {
		serial := make([]byte, 17)
		_, _ = rand.Read(serial) // never fails
		copy(serial, []byte{1, byte(i >> 24), byte(i >> 16), byte(i >> 8), byte(i)})
		n := new(big.Int).SetBytes(serial)
		entries[i] = crl.Entry{Serial: ca.SerialOf(n), RevokedAt: at, Reason: ca.Superseded}
		theirs[i] = x509.RevocationListEntry{SerialNumber: n, RevocationTime: at, ReasonCode: int(ca.Superseded)}
	}
	var stdlib []byte
	subjects := []*subject{
		{name: "x509.CreateRevocationList", make: func(context.Context) (int64, error) {
			stdlib, err = x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
				Number: big.NewInt(1), ThisUpdate: at, NextUpdate: at.Add(time.Hour), RevokedCertificateEntries: theirs,
			}, is.Cert, key)
			return int64(len(stdlib)), err
		}},
		{name: "the same, read back", make: func(context.Context) (int64, error) {
			stdlib, err = x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
				Number: big.NewInt(1), ThisUpdate: at, NextUpdate: at.Add(time.Hour), RevokedCertificateEntries: theirs,
			}, is.Cert, key)
			if err != nil {
				return 0, err
			}
			l, err := x509.ParseRevocationList(stdlib)
			if err != nil {
				return 0, err
			}
			return int64(len(stdlib)), l.CheckSignatureFrom(is.Cert)
		}},
		{name: "crl.Sign, which reads back", make: func(ctx context.Context) (int64, error) { return ours(ctx, is, entries, at) }},
	}
	var ratios, readBack measure.Sample
	for round := range b.rounds {
		for i := range subjects {
			s := subjects[(i+round)%len(subjects)]
			if err := s.measure(ctx); err != nil {
				return 0, fmt.Errorf("%s: %w", s.name, err)
			}
		}
		ratios = append(ratios, subjects[2].cpu[round]/subjects[0].cpu[round])
		readBack = append(readBack, subjects[2].cpu[round]/subjects[1].cpu[round])
	}
	fmt.Fprintf(b.out, "\n%-28s %22s %22s   %d entries, %.1f MB\n", "from memory", "s of CPU", "MiB more at the peak", b.entries, float64(len(stdlib))/1e6)
	for _, s := range subjects {
		fmt.Fprintf(b.out, "%-28s %22s %22s\n", s.name, s.cpu, s.peak)
	}
	fmt.Fprintf(b.out, "ours of the first %s, of what is read back %s\n", precise(ratios), precise(readBack))
	return ratios.Median(), nil
}

func ours(ctx context.Context, is *ca.Issuer, entries []crl.Entry, at time.Time) (int64, error) {
	body, _, err := crl.Sign(ctx, is, each(entries), func(crl.Summary) (crl.Header, error) {
		return crl.Header{
			ThisUpdate: at, NextUpdate: at.Add(time.Hour),
			Extensions: []pkix.Extension{crl.AuthorityKeyID(is.Cert.SubjectKeyId), crl.NumberOf(1)},
		}, nil
	})
	if err != nil {
		return 0, err
	}
	size := body.Size()
	return size, body.Release()
}

func each(entries []crl.Entry) iter.Seq2[crl.Entry, error] {
	return func(yield func(crl.Entry, error) bool) {
		for _, e := range entries {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func (s *subject) measure(ctx context.Context) error {
	peak, err := startPeak()
	if err != nil {
		return err
	}
	idle := collecting() // what the benchmark itself holds
	before := measure.CPU()
	if _, err := s.make(ctx); err != nil {
		return err
	}
	used := measure.CPU() - before + collecting() // what was allocated is also to be collected
	s.cpu = append(s.cpu, (used - idle).Seconds())
	grown, err := peak.grown()
	s.peak = append(s.peak, grown)
	return err
}

// collecting is what one collection of garbage costs now.
func collecting() time.Duration {
	before := measure.CPU()
	runtime.GC()
	return measure.CPU() - before
}

// A peak is where the process's memory was when it was started.
type peak struct{ base float64 }

func startPeak() (peak, error) {
	debug.FreeOSMemory()
	p, err := resetPeak()
	return peak{p}, err
}

// grown is how many MiB more the process has had in memory since, at the most.
func (p peak) grown() (float64, error) {
	most, err := statusMiB("VmHWM:")
	return most - p.base, err
}
