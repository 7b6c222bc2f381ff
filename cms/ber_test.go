package cms

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"golang.org/x/crypto/cryptobyte"
	casn1 "golang.org/x/crypto/cryptobyte/asn1"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestBERBecomesDER(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ ber, der string }{
		"DER already":                   {"30 03 02 01 05", "30 03 02 01 05"},
		"indefinite":                    {"30 80 02 01 05 00 00", "30 03 02 01 05"},
		"indefinite and empty":          {"30 80 00 00", "30 00"},
		"indefinite in indefinite":      {"30 80 31 80 02 01 05 00 00 00 00", "30 05 31 03 02 01 05"},
		"indefinite in definite":        {"30 07 31 80 02 01 05 00 00", "30 05 31 03 02 01 05"},
		"definite in indefinite":        {"30 80 31 03 02 01 05 00 00", "30 05 31 03 02 01 05"},
		"long lengths":                  {"30 84 00 00 00 04 02 82 00 01 05", ""},
		"longer lengths than needed":    {"30 84 00 00 00 05 02 82 00 01 05", "30 03 02 01 05"},
		"string in pieces":              {"24 06 04 01 61 04 01 62", "04 02 61 62"},
		"string in no pieces":           {"24 00", "04 00"},
		"string in endless pieces":      {"24 80 04 01 61 04 01 62 00 00", "04 02 61 62"},
		"string in pieces of pieces":    {"24 80 24 80 04 01 61 00 00 24 03 04 01 62 00 00", "04 02 61 62"},
		"string in pieces, in a set":    {"31 80 24 80 04 01 61 00 00 02 01 05 00 00", "31 06 04 01 61 02 01 05"},
		"a string's piece is no string": {"24 03 02 01 05", ""},
		"implicit tags stay":            {"a0 80 04 01 61 04 01 62 00 00", "a0 06 04 01 61 04 01 62"},
		"order and values stay":         {"31 80 02 01 09 02 01 01 01 01 17 00 00", "31 09 02 01 09 02 01 01 01 01 17"},
		"ends of nothing":               {"30 02 00 00", ""},
		"end with a length":             {"30 80 00 01 00", ""},
		"end before a definite's end":   {"30 80 31 05 02 01 05 00 00", ""},
		"no end":                        {"30 80 02 01 05", ""},
		"half an end":                   {"30 80 02 01 05 00", ""},
		"runs over what is around it":   {"30 04 31 80 02 01 05 00 00", ""},
		"longer than what is around it": {"30 03 02 05 01", ""},
		"something follows":             {"30 00 00", ""},
		"indefinite primitive":          {"04 80 00 00", ""},
		"reserved length":               {"30 ff 00", ""},
		"length of five octets":         {"30 85 00 00 00 00 00", ""},
		"length of four gigabytes":      {"30 84 ff ff ff ff", ""},
		"bit string in pieces":          {"23 04 03 02 00 61", ""},
		"nothing":                       {"", ""},
		"only a tag":                    {"30", ""},
		// smallstep/pkcs7 and others panic on these (GHSA-mq3g-qwhv-4hgw).
		"high tag without end":    {"1f 80", ""},
		"high tag":                {"1f 05", ""},
		"length without octets":   {"30 81", ""},
		"length of too few":       {"30 84 01", ""},
		"those, inside":           {"30 05 30 84 01 00 00", ""},
		"those in an endless one": {"30 80 1f 80 00 00", ""},
	} {
		got, err := DER(unhex(t, c.ber))
		if c.der == "" {
			if !errors.Is(err, ErrMalformed) || got != nil {
				t.Errorf("%s: %x, %v; want ErrMalformed", name, got, err)
			}
			continue
		}
		if err != nil || !bytes.Equal(got, unhex(t, c.der)) {
			t.Errorf("%s: %x, %v; want %s", name, got, err, c.der)
		}
	}
}

// nested is n SEQUENCEs in one another.
func nested(n int) []byte {
	var b []byte
	for range n {
		b = append(appendHeader(nil, tagSequence, len(b)), b...)
	}
	return b
}

func TestDepthElementsAndLengthAreBounded(t *testing.T) {
	t.Parallel()
	many := func(n int) []byte { return append(appendHeader(nil, tagSet, 2*n), bytes.Repeat([]byte{5, 0}, n)...) }
	long := func(n int) []byte { return append(appendHeader(nil, tagOctetString, n-4), make([]byte, n-4)...) }
	if n := len(long(MaxSize - 1)); n != MaxSize-1 {
		t.Fatal(n)
	}
	for name, c := range map[string]struct{ fits, over []byte }{
		"depth":    {nested(maxDepth), nested(maxDepth + 1)},
		"elements": {many(maxElements - 1), many(maxElements)},
		"length":   {long(MaxSize - 1), append([]byte{tagSequence, 0x83, 0, 0xff, 0xfc}, long(MaxSize-4)...)},
	} {
		if _, err := DER(c.fits); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := DER(c.over); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s beyond the bound: %v", name, err)
		}
	}
}

// hostile are messages that cost other readers seconds or gigabytes: nested ever
// deeper, or of as many elements as there is room for.
func hostile() map[string][]byte {
	return map[string][]byte{
		"nested":                  nested(16_000),
		"nested without end":      bytes.Repeat([]byte{0x30, 0x80}, MaxSize/2),
		"pieces without end":      bytes.Repeat([]byte{0x24, 0x80}, MaxSize/2),
		"nulls":                   append(appendHeader(nil, tagSet, MaxSize-4), bytes.Repeat([]byte{5, 0}, MaxSize/2-2)...),
		"ends":                    make([]byte, MaxSize),
		"empty pieces":            append([]byte{0x24, 0x80}, bytes.Repeat([]byte{4, 0}, MaxSize/2-1)...),
		"empty pieces that close": append([]byte{0x24, 0x80}, bytes.Repeat([]byte{0x24, 0}, MaxSize/2-1)...),
	}
}

// Whatever there is to read, it is looked at once on its way in and once on its
// way out.
func TestWorkGrowsWithLengthAndHasAnEnd(t *testing.T) {
	t.Parallel()
	for name, in := range hostile() {
		_, steps, err := transcode(in)
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
		if steps > 4*maxElements {
			t.Errorf("%s: %d steps", name, steps)
		}
	}
}

func BenchmarkDEROfHostile(b *testing.B) {
	for name, in := range hostile() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = DER(in)
			}
		})
	}
}

func FuzzDER(f *testing.F) {
	for _, s := range []string{
		"30 80 24 80 04 01 61 24 80 04 01 62 00 00 00 00 00 00", "30 84 00 00 00 03 02 01 05", "1f 80", "30 84 01",
		"a0 80 04 01 61 00 00", "31 07 31 80 02 01 05 00 00",
	} {
		b, _ := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		der, steps, err := transcode(in)
		if steps > 4*min(maxElements, len(in))+1 {
			t.Fatalf("%d steps for %d octets", steps, len(in))
		}
		if err != nil {
			if !errors.Is(err, ErrMalformed) || der != nil {
				t.Fatalf("%x, %v", der, err)
			}
			return
		}
		// A definite length takes at most one octet more than an indefinite one.
		if len(der) > len(in)+steps {
			t.Fatalf("%d octets became %d", len(in), len(der))
		}
		again, err := DER(der)
		if len(der) <= MaxSize && (err != nil || !bytes.Equal(der, again)) {
			t.Fatalf("DER is not taken as such: %x became %x, %v", der, again, err)
		}
	})
}

// asBER returns the one element of der in some other encoding: with lengths longer
// than needed or without any, and with strings in pieces.
func asBER(t testing.TB, r *rand.Rand, der []byte) []byte {
	t.Helper()
	in := cryptobyte.String(der)
	var out []byte
	for !in.Empty() {
		var content cryptobyte.String
		var tag casn1.Tag
		if !in.ReadAnyASN1(&content, &tag) {
			t.Fatalf("no DER: %x", der)
		}
		switch {
		case tag == casn1.OCTET_STRING && r.IntN(2) == 0:
			at := r.IntN(len(content) + 1)
			pieces := append(enclose(r, tagOctetString, content[:at]), enclose(r, tagOctetString, content[at:])...)
			out = append(out, enclose(r, tagOctetString|constructed, pieces)...)
		case byte(tag)&constructed != 0:
			out = append(out, enclose(r, byte(tag), asBER(t, r, content))...)
		default:
			out = append(out, enclose(r, byte(tag), content)...)
		}
	}
	return out
}

func enclose(r *rand.Rand, tag byte, content []byte) []byte {
	n := len(content)
	var head []byte
	switch choice := r.IntN(4); {
	case choice == 0 && tag&constructed != 0:
		return append(append([]byte{tag, 0x80}, content...), 0, 0)
	case choice == 1:
		head = []byte{tag, 0x84, 0, 0, byte(n >> 8), byte(n)}
	case choice == 2:
		head = []byte{tag, 0x83, 0, byte(n >> 8), byte(n)}
	default:
		head = appendHeader(nil, tag, n)
	}
	return append(head, content...)
}

// Of a message without certificates and names, which openssl passes on as they
// came, openssl makes the same DER: of all but parameters of algorithms, which it
// passes on, too, and if it takes the message: some lengths it does not.
func TestOpenSSLMakesTheSameDER(t *testing.T) {
	t.Parallel()
	signed := mustOpenssl(t, []byte("content"), signArgs(t, rsaOwner(), "-keyid", "-nocerts", "-nosmimecap")...)
	sealed, err := Seal(OIDData, []byte("content"), AES128CBC, ByPassword{[]byte("secret"), 2})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	taken := 0
	for _, der := range [][]byte{signed, sealed} {
		for range 50 {
			ber := asBER(t, r, der)
			ours, err := DER(ber)
			if err != nil || !bytes.Equal(ours, der) {
				t.Fatalf("%x became %x, %v; want %x", ber, ours, err, der)
			}
			theirs, err := openssl(t, ber, "cms", "-cmsout", "-inform", "DER", "-outform", "DER")
			if err != nil {
				continue
			}
			taken++
			if theirs, err = DER(theirs); err != nil || !bytes.Equal(theirs, ours) {
				t.Errorf("%x became %x, by openssl %x, %v", ber, ours, theirs, err)
			}
		}
	}
	if taken < 20 {
		t.Errorf("openssl took %d of 100", taken)
	}
	t.Logf("openssl took %d of 100", taken)
}
