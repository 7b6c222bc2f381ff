package crl

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/bits"
	"time"

	"golang.org/x/crypto/cryptobyte"
	cryptobyte_asn1 "golang.org/x/crypto/cryptobyte/asn1"

	"github.com/secsy-pki/secsy-pki/ca"
)

const (
	// maxField bounds the fields of a list besides its entries: a name, the
	// extensions, a signature.
	maxField = 64 << 10
	// readBuffer holds the longest field with its header.
	readBuffer = maxField + 16
)

// An Info is what a list says, its entries left out.
type Info struct {
	Issuer     []byte // Name, DER
	ThisUpdate time.Time
	NextUpdate time.Time
	Number     Number
	Extensions []pkix.Extension
	Entries    int
	SHA256     [sha256.Size]byte // of the whole list

	digest digest // of the entries
	alg    []byte
	sig    []byte
}

// Scope is the value of the issuing distribution point, nil if there is none.
func (i Info) Scope() []byte {
	for _, e := range i.Extensions {
		if e.Id.Equal(oidDistributionPoint) {
			return e.Value
		}
	}
	return nil
}

func (l listed) Serial() ca.Serial { return ca.Serial(hex.EncodeToString(l.serial)) }

// A reader goes through a list from its first octet to its last, once. It takes
// nothing but what Sign writes: DER, serials in order, extensions known.
type reader struct {
	from *io.SectionReader
	buf  []byte
	at   int // in buf, of the first octet that was not taken yet
	have int // octets in buf
	pos  int64
	end  int64 // of what is being read

	// What was taken is hashed as long as it is in buf, before more is read.
	hashed int         // octets of buf
	whole  hash.Hash   // nil: not asked for
	scheme *scheme     // of the signature; nil: not asked for
	signed *message    // what the signature is over
	crc    hash.Hash32 // of the same; nil: not asked for
	inTBS  bool

	info    Info
	tbsEnd  int64
	listEnd int64 // of the entries; 0: there are none
	last    []byte
	date    stamp
}

var errSyntax = errors.New("it is not DER of a version 2 list")

// read returns a reader that stands before the first entry.
func read(b *Body) (*reader, error) { return newReader(b).open() }

func newReader(b *Body) *reader {
	return &reader{from: b.Open(), buf: make([]byte, readBuffer), end: b.Size()}
}

func (r *reader) open() (*reader, error) {
	if err := r.readOpening(); err != nil {
		return nil, fmt.Errorf("reading a list's opening: %w", err)
	}
	return r, nil
}

// peek returns the next n octets, of which there are as many.
func (r *reader) peek(n int) ([]byte, error) {
	if r.have-r.at < n {
		if err := r.fill(n); err != nil {
			return nil, err
		}
	}
	return r.buf[r.at : r.at+n], nil
}

func (r *reader) fill(n int) error {
	r.hash()
	r.have = copy(r.buf, r.buf[r.at:r.have])
	r.at, r.hashed = 0, 0
	more, err := io.ReadAtLeast(r.from, r.buf[r.have:], n-r.have)
	r.have += more
	return err
}

// take goes on behind n octets that were peeked at, which stay where they are.
func (r *reader) take(n int) {
	r.at += n
	r.pos += int64(n)
}

// hash hashes what was taken since the last time.
func (r *reader) hash() {
	taken := r.buf[r.hashed:r.at]
	r.hashed = r.at
	if r.whole != nil {
		r.whole.Write(taken) // never fails
	}
	if r.inTBS && r.signed != nil {
		_, _ = r.signed.Write(taken) // likewise
	}
	if r.inTBS && r.crc != nil {
		_, _ = r.crc.Write(taken) // likewise
	}
}

func (r *reader) readOpening() error {
	n, err := r.header(tagSequence)
	if err != nil {
		return err
	}
	if r.pos+n != r.end {
		return errSyntax
	}
	if err := r.enterTBS(); err != nil {
		return err
	}
	version, err := r.element(tagInteger)
	if err != nil || !bytes.Equal(version, []byte{tagInteger, 1, 1}) {
		return errors.Join(err, errSyntax)
	}
	for _, field := range []*[]byte{&r.info.alg, &r.info.Issuer} {
		e, err := r.element(tagSequence)
		if err != nil {
			return err
		}
		*field = bytes.Clone(e)
	}
	if err := r.readTimes(); err != nil {
		return err
	}
	if tag, err := r.peekTag(); err != nil || tag != tagSequence {
		return err
	}
	if n, err = r.header(tagSequence); err != nil {
		return err
	}
	if r.listEnd = r.pos + n; n == 0 || r.listEnd > r.end {
		return errSyntax // RFC 5280 §5.1.2.6: absent when empty
	}
	return nil
}

func (r *reader) enterTBS() error {
	head, n, err := r.peekHeader(tagSequence)
	if err != nil {
		return err
	}
	size := int64(head) + n
	if r.pos+size > r.end {
		return errSyntax
	}
	r.tbsEnd = r.pos + size
	r.end = r.tbsEnd
	if r.scheme != nil {
		if r.signed, err = r.scheme.message(size); err != nil {
			return err
		}
	}
	r.hash()
	r.inTBS = true
	r.take(head)
	return nil
}

func (r *reader) leaveTBS() {
	r.hash()
	r.inTBS = false
	r.end = r.from.Size()
}

func (r *reader) readTimes() error {
	for _, field := range []*time.Time{&r.info.ThisUpdate, &r.info.NextUpdate} {
		tag, err := r.peekTag()
		if err != nil {
			return err
		}
		e, err := r.element(tag)
		if err != nil {
			return err
		}
		at, rest, ok := cutTime(e)
		if !ok || len(rest) > 0 {
			return errSyntax
		}
		*field = time.Unix(at, 0).UTC()
	}
	return nil
}

// next returns the next entry, and false after the last.
func (r *reader) next() (listed, bool, error) {
	if r.pos >= r.listEnd {
		return listed{}, false, nil
	}
	b, err := r.peek(int(min(r.listEnd-r.pos, maxEntry)))
	if err != nil {
		return listed{}, false, err
	}
	l, n, ok := cutEntry(b, &r.date)
	if !ok {
		return listed{}, false, fmt.Errorf("entry %d: %w", r.info.Entries+1, errSyntax)
	}
	r.take(n)
	if bytes.Compare(r.last, l.serial) >= 0 {
		return listed{}, false, fmt.Errorf("serial %s comes after %x", l.Serial(), r.last)
	}
	r.last = append(r.last[:0], l.serial...)
	r.info.Entries++
	r.info.digest.add(l)
	return l, true, nil
}

// finish reads what comes after the entries.
func (r *reader) finish() (Info, error) {
	if err := r.readClosing(); err != nil {
		return Info{}, fmt.Errorf("reading a list's closing: %w", err)
	}
	r.hash()
	if r.whole != nil {
		r.whole.Sum(r.info.SHA256[:0])
	}
	return r.info, nil
}

func (r *reader) readClosing() error {
	exts, err := r.element(tagExtensions)
	if err != nil || r.pos != r.tbsEnd {
		return errors.Join(err, errSyntax)
	}
	if err := r.parseExtensions(exts); err != nil {
		return err
	}
	r.leaveTBS()
	alg, err := r.element(tagSequence)
	if err != nil || !bytes.Equal(alg, r.info.alg) {
		return errors.Join(err, errSyntax)
	}
	bits, err := r.element(tagBitString)
	if err != nil || r.pos != r.end {
		return errors.Join(err, errSyntax)
	}
	s := cryptobyte.String(bytes.Clone(bits))
	if !s.ReadASN1BitStringAsBytes(&r.info.sig) {
		return errSyntax
	}
	return nil
}

func (r *reader) parseExtensions(der []byte) error {
	s := cryptobyte.String(bytes.Clone(der))
	var inner cryptobyte.String
	if !s.ReadASN1(&inner, cryptobyte_asn1.Tag(0).Constructed().ContextSpecific()) {
		return errSyntax
	}
	if rest, err := asn1.Unmarshal(inner, &r.info.Extensions); err != nil || len(rest) > 0 {
		return errors.Join(err, errSyntax)
	}
	numbers := 0
	for _, e := range r.info.Extensions {
		if !e.Id.Equal(oidNumber) {
			continue
		}
		value := cryptobyte.String(e.Value)
		if !value.ReadASN1Integer((*int64)(&r.info.Number)) || !value.Empty() || r.info.Number < 0 {
			return errSyntax
		}
		numbers++
	}
	if numbers != 1 {
		return errSyntax
	}
	return nil
}

// peekTag returns the tag of the next element without reading it.
func (r *reader) peekTag() (byte, error) {
	if r.pos >= r.end {
		return 0, errSyntax
	}
	b, err := r.peek(1)
	if err != nil {
		return 0, err
	}
	return b[0], nil
}

// header reads a tag and a length, which it returns.
func (r *reader) header(tag byte) (int64, error) {
	head, n, err := r.peekHeader(tag)
	if err != nil {
		return 0, err
	}
	r.take(head)
	return n, nil
}

// peekHeader returns how long the next element's header and content are.
func (r *reader) peekHeader(tag byte) (head int, n int64, err error) {
	b, err := r.peek(int(min(r.end-r.pos, 10)))
	if err != nil {
		return 0, 0, err
	}
	if len(b) < 2 || b[0] != tag {
		return 0, 0, errSyntax
	}
	if b[1] < 0x80 {
		return 2, int64(b[1]), nil
	}
	octets := int(b[1] & 0x7f)
	if octets == 0 || octets > 5 || len(b) < 2+octets || b[2] == 0 {
		return 0, 0, errSyntax
	}
	for _, o := range b[2 : 2+octets] {
		n = n<<8 | int64(o)
	}
	if n < 0x80 {
		return 0, 0, errSyntax // not minimal
	}
	return 2 + octets, n, nil
}

// element reads a whole element. What it returns is good until the next call.
func (r *reader) element(tag byte) ([]byte, error) {
	head, n, err := r.peekHeader(tag)
	if err != nil {
		return nil, err
	}
	if n > maxField || r.pos+int64(head)+n > r.end {
		return nil, errSyntax
	}
	whole := head + int(n)
	b, err := r.peek(whole)
	if err != nil {
		return nil, err
	}
	r.take(whole)
	return b, nil
}

// cutEntry reads what appendEntry writes, and says how long it is.
func cutEntry(der []byte, last *stamp) (l listed, n int, ok bool) {
	if len(der) < 2 || der[0] != tagSequence || int(der[1]) > len(der)-2 || der[1] >= 0x80 {
		return listed{}, 0, false
	}
	n = 2 + int(der[1])
	l, ok = parseEntry(der[2:n], last)
	return l, n, ok
}

func parseEntry(rest []byte, last *stamp) (listed, bool) {
	var ok bool
	l := listed{invalidAt: noDate}
	if l.serial, rest, ok = cutSerial(rest); !ok {
		return l, false
	}
	if l.revokedAt, rest, ok = last.cut(rest); !ok {
		return l, false
	}
	return l, l.parseExtensions(rest)
}

func (l *listed) parseExtensions(der []byte) bool {
	if len(der) == 0 {
		return true
	}
	if alone := len(reasonAlone); len(der) == alone+1 && string(der[:alone]) == reasonAlone {
		return l.parseReason(der[alone])
	}
	if len(der) < 3 || der[0] != tagSequence || int(der[1]) != len(der)-2 {
		return false
	}
	der = der[2:]
	if value, rest, ok := cutExtension(der, oidInvalidityAt); ok {
		at, left, ok := cutGeneralizedTime(value)
		if !ok || len(left) > 0 {
			return false
		}
		l.invalidAt, der = at, rest
	}
	if value, rest, ok := cutExtension(der, oidReason); ok {
		if len(value) != 3 || value[0] != tagEnumerated || value[1] != 1 || !l.parseReason(value[2]) {
			return false
		}
		der = rest
	}
	return len(der) == 0
}

func (l *listed) parseReason(code byte) bool {
	l.reason = ca.Reason(code)
	return l.reason != ca.Unspecified && listable(l.reason)
}

// cutExtension returns the value of the extension that der begins with, if it
// is that of id, which is not critical.
func cutExtension(der, id []byte) (value, rest []byte, ok bool) {
	head := 2 + len(id) + 2
	if len(der) < head || der[0] != tagSequence || !bytes.Equal(der[2:2+len(id)], id) || der[head-2] != tagOctetString {
		return nil, der, false
	}
	n := int(der[head-1])
	if int(der[1]) != len(id)+2+n || len(der) < head+n {
		return nil, der, false
	}
	return der[head : head+n], der[head+n:], true
}

// cutSerial returns the magnitude of a positive, minimal INTEGER.
func cutSerial(der []byte) (serial, rest []byte, ok bool) {
	if len(der) < 3 || der[0] != tagInteger || der[1] == 0 || int(der[1]) > len(der)-2 {
		return nil, der, false
	}
	serial, rest = der[2:2+int(der[1])], der[2+int(der[1]):]
	switch {
	case serial[0] >= 0x80: // negative
		return nil, der, false
	case serial[0] == 0 && (len(serial) < 2 || serial[1] < 0x80): // zero, or not minimal
		return nil, der, false
	case serial[0] == 0:
		serial = serial[1:]
	}
	return serial, rest, len(serial) <= maxSerial
}

// cutTime returns the seconds since 1970 of a Time as appendTime writes it.
func cutTime(der []byte) (at int64, rest []byte, ok bool) {
	if len(der) > 0 && der[0] == tagGeneralizedTime {
		at, rest, ok = cutGeneralizedTime(der)
		return at, rest, ok && (at < firstUTC || at > lastUTC)
	}
	if len(der) < 15 || der[0] != tagUTCTime || der[1] != 13 {
		return 0, der, false
	}
	year := digits(der[2:4])
	if year < 0 {
		return 0, der, false
	}
	if year += 1900; year < 1950 {
		year += 100
	}
	at, ok = parseFromMonth(year, der[4:15])
	return at, der[15:], ok
}

// The years of UTCTime, 1950 to 2049.
const (
	firstUTC = -631152000
	lastUTC  = 2524607999
)

func cutGeneralizedTime(der []byte) (at int64, rest []byte, ok bool) {
	if len(der) < 17 || der[0] != tagGeneralizedTime || der[1] != 15 {
		return 0, der, false
	}
	century, year := digits(der[2:4]), digits(der[4:6])
	if century < 0 || year < 0 || century+year == 0 {
		return 0, der, false
	}
	at, ok = parseFromMonth(100*century+year, der[6:17])
	return at, der[17:], ok
}

// parseFromMonth parses MMDDhhmmssZ of a date that exists.
func parseFromMonth(year int, text []byte) (int64, bool) {
	month, day := digits(text[0:2]), digits(text[2:4])
	hour, minute, second := digits(text[4:6]), digits(text[6:8]), digits(text[8:10])
	if month < 1 || month > 12 || day < 1 || day > 31 || uint(hour) > 23 || uint(minute) > 59 || uint(second) > 59 || text[10] != 'Z' {
		return 0, false
	}
	at := secondsOf(year, month, day)
	if day > 28 {
		if _, m, _, _ := dateOf(at); m != month { // 31 June has become 1 July
			return 0, false
		}
	}
	return at + int64(60*(60*hour+minute)+second), true
}

// digits returns the number that two digits write, -1 if they are none.
func digits(b []byte) int {
	tens, ones := uint(b[0]-'0'), uint(b[1]-'0')
	if tens > 9 || ones > 9 {
		return -1
	}
	return int(10*tens + ones)
}

// A digest stands for a sequence of entries: by accident, two that differ have
// the same one once in 2^64. It is no protection from intent, nor meant as one.
type digest uint64

func (d *digest) add(l listed) {
	// Without the digest so far, which the processor does not have to wait for.
	h := mix(mix(0, uint64(l.revokedAt)), uint64(l.invalidAt))
	h = mix(h, uint64(len(l.serial))<<8|uint64(l.reason))
	rest := l.serial
	for ; len(rest) >= 8; rest = rest[8:] {
		h = mix(h, binary.LittleEndian.Uint64(rest))
	}
	tail := uint64(0)
	for _, octet := range rest {
		tail = tail<<8 | uint64(octet)
	}
	*d = digest(mix(uint64(*d), mix(h, tail)))
}

// mix loses nothing: its factor is odd.
func mix(h, n uint64) uint64 { return bits.RotateLeft64((h^n)*0x9e3779b97f4a7c15, 29) }
