package scep

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// BenchmarkWrongInside measures what an attacker could: how long messages are
// answered for that are wrong inside in different ways. They come in random order, so
// that whatever else the machine does hits all alike, and the medians are compared:
// "worst/best" is near 1 if time tells nothing.
func BenchmarkWrongInside(b *testing.B) {
	w := newWorld(b)
	s := w.served(nil)
	d := newDevice(b, s, deviceKey())
	good := csr(b, d.key, goodChallenge, "a.example.com")
	badSig := bytes.Clone(good)
	badSig[len(badSig)-1] ^= 1
	keyAt := func(der []byte) int { return bytes.Index(der, []byte{4, 0x82, 1, 0}) + 4 }
	kinds := []struct {
		name   string
		change func(der []byte) []byte
	}{
		{"rsa-padding", func(der []byte) []byte { der[keyAt(der)+100] ^= 1; return der }},
		{"cbc-padding", func(der []byte) []byte { der[len(der)-1] ^= 1; return der }},
		{"first-block", func(der []byte) []byte { der[len(der)-len(good)/16*16-16] ^= 0x80; return der }},
	}
	const each = 32
	messages := make([][][]byte, len(kinds))
	for i, k := range kinds {
		d.sealed = k.change
		for range each {
			messages[i] = append(messages[i], d.message(good))
		}
	}
	took := make([][]float64, len(kinds))
	b.ResetTimer()
	for n := range b.N {
		for _, i := range rand.Perm(len(kinds)) {
			s.replays = replays{}
			begin := time.Now()
			res := post(b, s, messages[i][n%each])
			took[i] = append(took[i], float64(time.Since(begin)))
			if res.Code != 200 {
				b.Fatal(res.Code)
			}
		}
	}
	medians := make([]float64, len(kinds))
	for i := range took {
		slices.Sort(took[i])
		medians[i] = took[i][len(took[i])/2]
		b.ReportMetric(medians[i]/1e3, kinds[i].name+"-µs")
	}
	b.ReportMetric(slices.Max(medians)/slices.Min(medians), "worst/best")
}
