package crl

import (
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/crypto/cryptobyte"

	"github.com/secsy-pki/secsy-pki/ca"
)

const (
	tagInteger         = 0x02
	tagBitString       = 0x03
	tagOctetString     = 0x04
	tagOID             = 0x06
	tagEnumerated      = 0x0a
	tagUTCTime         = 0x17
	tagGeneralizedTime = 0x18
	tagSequence        = 0x30
	tagExtensions      = 0xa0 // [0] EXPLICIT

	// maxSerial is how many octets a serial number has at most (RFC 5280
	// §4.1.2.2), sign octet aside.
	maxSerial = 20
	// maxEntry is how long an entry is at most.
	maxEntry = 2 + (2 + 1 + maxSerial) + 17 + 2 + 26 + 12
)

var (
	// id-ce-cRLReasons and id-ce-invalidityDate (RFC 5280 §5.3), whole elements.
	oidReason       = []byte{tagOID, 3, 0x55, 0x1d, 0x15}
	oidInvalidityAt = []byte{tagOID, 3, 0x55, 0x1d, 0x18}
)

// reasonAlone is crlEntryExtensions with a reason and nothing else, which most
// entries have, but for its last octet: the reason.
const reasonAlone = "\x30\x0c" + "\x30\x0a" + "\x06\x03\x55\x1d\x15" + "\x04\x03" + "\x0a\x01"

// A listed is an entry as it stands in a list.
type listed struct {
	serial    []byte // magnitude; only until the next entry
	revokedAt int64  // in seconds since 1970
	invalidAt int64  // noDate: not said
	reason    ca.Reason
}

const noDate = math.MinInt64

// listedOf writes e as it is to stand in a list. Its serial is in buf.
func listedOf(e Entry, buf *[maxSerial]byte) (listed, error) {
	l := listed{revokedAt: e.RevokedAt.Unix(), invalidAt: noDate, reason: e.Reason}
	if len(e.Serial) == 0 || len(e.Serial)%2 != 0 || len(e.Serial) > 2*maxSerial {
		return l, fmt.Errorf("serial %q is not 1 to %d octets of hex", string(e.Serial), maxSerial)
	}
	l.serial = buf[:len(e.Serial)/2]
	if !unhex(l.serial, string(e.Serial)) || buf[0] == 0 {
		return l, fmt.Errorf("serial %q is not a positive number in hex without leading zeros", string(e.Serial))
	}
	if !listable(e.Reason) {
		return l, fmt.Errorf("reason %d of %s is none", int(e.Reason), e.Serial)
	}
	if !e.InvalidAt.IsZero() {
		l.invalidAt = e.InvalidAt.Unix()
	}
	return l, nil
}

// unhex decodes text, which is twice as long, and says whether it is hex in
// lower case, as the order of serials has it. It looks at what is wrong once, not
// at every digit.
func unhex(b []byte, text string) bool {
	wrong := byte(0)
	for i := range b {
		pair := text[2*i : 2*i+2]
		high, low := hexDigits[pair[0]], hexDigits[pair[1]]
		b[i] = high<<4 | low
		wrong |= high | low
	}
	return wrong < 16
}

// hexDigits has the value of each digit, and 255 for what is none.
var hexDigits = func() (t [256]byte) {
	for i := range t {
		t[i] = 255
	}
	for i, c := range "0123456789abcdef" {
		t[c] = byte(i)
	}
	return t
}()

// listable says whether CRLReason has r (RFC 5280 §5.3.1).
func listable(r ca.Reason) bool { return r >= 0 && r <= ca.AACompromise && r != 7 }

// appendEntry appends the DER of one of revokedCertificates (RFC 5280 §5.1):
//
//	SEQUENCE { userCertificate INTEGER, revocationDate Time, crlEntryExtensions OPTIONAL }
//
// No entry is longer than maxEntry, so that all its lengths take one octet.
func appendEntry(b []byte, l listed, last *stamp) ([]byte, error) {
	start := len(b)
	b = append(b, tagSequence, 0)
	b = appendSerial(b, l.serial)
	b, err := last.append(b, l.revokedAt)
	if err != nil {
		return b, fmt.Errorf("revocation date: %w", err)
	}
	if b, err = appendEntryExtensions(b, l); err != nil {
		return b, err
	}
	b[start+1] = byte(len(b) - start - 2)
	return b, nil
}

// appendEntryExtensions appends what of reason and invalidity date is to be
// said. RFC 5280 §5.3.1: unspecified is said by silence.
func appendEntryExtensions(b []byte, l listed) ([]byte, error) {
	if l.reason == ca.Unspecified && l.invalidAt == noDate {
		return b, nil
	}
	if l.invalidAt == noDate {
		return append(append(b, reasonAlone...), byte(l.reason)), nil
	}
	start := len(b)
	b = append(b, tagSequence, 0)
	b = append(b, tagSequence, 24)
	b = append(b, oidInvalidityAt...)
	b = append(b, tagOctetString, 17)
	b, err := appendGeneralizedTime(b, l.invalidAt)
	if err != nil {
		return b, fmt.Errorf("invalidity date: %w", err)
	}
	if l.reason != ca.Unspecified {
		b = append(append(b, reasonAlone[2:]...), byte(l.reason))
	}
	b[start+1] = byte(len(b) - start - 2)
	return b, nil
}

// appendSerial appends a serial as the certificate has it: positive, minimal.
func appendSerial(b, magnitude []byte) []byte {
	if magnitude[0] < 0x80 {
		b = append(b, tagInteger, byte(len(magnitude)))
	} else {
		b = append(b, tagInteger, byte(len(magnitude)+1), 0)
	}
	return append(b, magnitude...)
}

// appendTime appends a Time: UTCTime through 2049, GeneralizedTime from 2050 on
// (RFC 5280 §5.1.2.4), never with fractions.
func appendTime(b []byte, at int64) ([]byte, error) {
	if at < firstUTC || at > lastUTC {
		return appendGeneralizedTime(b, at)
	}
	year, month, day, second := dateOf(at)
	b = append(b, "\x17\x0dYYMMDDhhmmssZ"...)
	t := b[len(b)-13:]
	put2(t, year%100)
	putFromMonth(t[2:], month, day, second)
	return b, nil
}

func appendGeneralizedTime(b []byte, at int64) ([]byte, error) {
	if at < firstSecond || at > lastSecond {
		return b, fmt.Errorf("year %d has not four digits", time.Unix(at, 0).UTC().Year())
	}
	year, month, day, second := dateOf(at)
	b = append(b, "\x18\x0fYYYYMMDDhhmmssZ"...)
	t := b[len(b)-15:]
	put2(t, year/100)
	put2(t[2:], year%100)
	putFromMonth(t[4:], month, day, second)
	return b, nil
}

func putFromMonth(b []byte, month, day, second int) {
	minute := second / 60
	b = b[:10]
	put2(b, month)
	put2(b[2:], day)
	put2(b[4:], minute/60)
	put2(b[6:], minute%60)
	put2(b[8:], second%60)
}

func put2(b []byte, n int) { b[0], b[1] = byte('0'+n/10), byte('0'+n%10) }

// A stamp is the last UTCTime that was written or read. Those of a mass
// revocation, which make lists long, are of few moments. Its zero value is none.
type stamp struct {
	at  int64
	der [15]byte
}

// append appends a Time as appendTime does.
func (s *stamp) append(b []byte, at int64) ([]byte, error) {
	if at == s.at && s.der[0] == tagUTCTime {
		return append(b, s.der[:]...), nil
	}
	start := len(b)
	b, err := appendTime(b, at)
	if err == nil && len(b)-start == len(s.der) {
		*s = stamp{at, [15]byte(b[start:])}
	}
	return b, err
}

// cut reads a Time as cutTime does.
func (s *stamp) cut(der []byte) (at int64, rest []byte, ok bool) {
	if len(der) >= len(s.der) && der[0] == tagUTCTime && [15]byte(der) == s.der {
		return s.at, der[len(s.der):], true
	}
	at, rest, ok = cutTime(der)
	if ok && len(der)-len(rest) == len(s.der) {
		*s = stamp{at, [15]byte(der)}
	}
	return at, rest, ok
}

// appendLength appends the length of an element's content.
func appendLength(b []byte, n int64) []byte {
	if n < 0x80 {
		return append(b, byte(n))
	}
	octets := 1
	for n>>(8*octets) > 0 {
		octets++
	}
	b = append(b, 0x80|byte(octets))
	for i := octets - 1; i >= 0; i-- {
		b = append(b, byte(n>>(8*i)))
	}
	return b
}

// A Header is what a list says besides its issuer and its entries.
type Header struct {
	ThisUpdate time.Time
	NextUpdate time.Time
	Extensions []pkix.Extension // in the order in which they are to stand
}

// A frame is what stands around the entries of a list: all that is signed is
// opening, entries, closing.
type frame struct {
	opening []byte // from the TBSCertList's first octet to the first entry
	closing []byte // from the last entry on
}

// newFrame encodes what stands around that many octets of entries. With none,
// revokedCertificates is absent (RFC 5280 §5.1.2.6).
func newFrame(issuer, alg []byte, h Header, octets int64) (frame, error) {
	closing, err := marshalExtensions(h.Extensions)
	if err != nil {
		return frame{}, err
	}
	fields := append([]byte{tagInteger, 1, 1}, alg...) // v2
	fields = append(fields, issuer...)
	for _, t := range []time.Time{h.ThisUpdate, h.NextUpdate} {
		if fields, err = appendTime(fields, t.Unix()); err != nil {
			return frame{}, err
		}
	}
	if octets > 0 {
		fields = appendLength(append(fields, tagSequence), octets)
	}
	opening := appendLength([]byte{tagSequence}, int64(len(fields))+octets+int64(len(closing)))
	return frame{append(opening, fields...), closing}, nil
}

// marshalExtensions encodes crlExtensions, which a v2 list always has.
func marshalExtensions(exts []pkix.Extension) ([]byte, error) {
	if len(exts) == 0 {
		return nil, errors.New("a list without extensions lacks its number")
	}
	inner, err := asn1.Marshal(exts)
	if err != nil {
		return nil, fmt.Errorf("encoding extensions: %w", err)
	}
	return append(appendLength([]byte{tagExtensions}, int64(len(inner))), inner...), nil
}

// appendSignature encodes the last two fields of a CertificateList.
func appendSignature(alg, sig []byte) ([]byte, error) {
	var b cryptobyte.Builder
	b.AddBytes(alg)
	b.AddASN1BitString(sig)
	return b.Bytes()
}
