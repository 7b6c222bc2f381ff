package cms

const (
	// MaxSize is how many octets a message may have.
	MaxSize = 64 << 10
	// maxDepth is how deep elements may lie in one another.
	maxDepth = 32
	// maxElements is how many elements a message may have.
	maxElements = 4096
)

const (
	tagOctetString  = 0x04
	tagSequence     = 0x30
	tagSet          = 0x31
	constructed     = 0x20
	classMask       = 0xc0
	highTag         = 0x1f
	indefiniteLong  = 0x80
	mostLengthBytes = 4
)

// DER returns ber with definite lengths of the fewest octets and with octet
// strings in one piece. Values and orders stay as they are, so that what was
// signed as received is found again.
//
// What implicit tags hide it cannot know: a string in pieces below one of those is
// left in pieces.
func DER(ber []byte) ([]byte, error) {
	der, _, err := transcode(ber)
	return der, err
}

// An element is one of the input, on its way out.
type element struct {
	tag        byte
	silent     bool  // a piece of a string, whose header does not go out
	start, end int32 // of the contents of a primitive, in the input
	size       int32 // of the contents, in the output
}

// A frame is a constructed element that is being read.
type frame struct {
	at         int32 // in elements
	end        int   // of its contents; of those of what is around it, if indefinite
	indefinite bool
	text       bool // an octet string in pieces
}

// A transcoder reads elements in the order of the input, and adds their sizes up
// as they close. Then every header that goes out is known, and they go out in the
// same order: no element is copied or looked at more than once.
type transcoder struct {
	in       []byte
	pos      int
	elements []element
	open     []frame
	steps    int
}

// transcode is DER. It also returns how many steps it took.
func transcode(ber []byte) (der []byte, steps int, err error) {
	if len(ber) > MaxSize {
		return nil, 0, malformed("too long")
	}
	t := &transcoder{in: ber}
	for first := true; first || len(t.open) > 0; first = false {
		if err := t.next(); err != nil {
			return nil, t.steps, err
		}
	}
	if t.pos != len(t.in) {
		return nil, t.steps, malformed("something follows")
	}
	return t.emit(), t.steps, nil
}

// next reads one header, with the contents if they are primitive, and closes what
// ends there.
func (t *transcoder) next() error {
	t.steps++
	limit := len(t.in)
	if n := len(t.open); n > 0 {
		limit = t.open[n-1].end
	}
	tag, length, indefinite, err := t.header(limit)
	if err != nil {
		return err
	}
	if tag == 0 { // end of contents
		if n := len(t.open); n == 0 || !t.open[n-1].indefinite || length != 0 {
			return malformed("end of contents out of place")
		}
		t.closeTop()
		t.closeEnded()
		return nil
	}
	silent, err := t.admit(tag)
	if err != nil {
		return err
	}
	e := element{tag: tag, silent: silent}
	if tag&constructed == 0 {
		e.start, e.end, e.size = int32(t.pos), int32(t.pos+length), int32(length)
		t.elements = append(t.elements, e)
		t.pos += length
		t.add(e)
		t.closeEnded()
		return nil
	}
	f := frame{at: int32(len(t.elements)), end: t.pos + length, indefinite: indefinite, text: tag == tagOctetString|constructed}
	if indefinite {
		f.end = limit
	}
	if f.text {
		e.tag = tagOctetString
	}
	t.elements = append(t.elements, e)
	t.open = append(t.open, f)
	t.closeEnded()
	return nil
}

// header reads a tag and a length of which the contents end before limit.
func (t *transcoder) header(limit int) (tag byte, length int, indefinite bool, err error) {
	if limit-t.pos < 2 {
		return 0, 0, false, malformed("it ends early")
	}
	tag, first := t.in[t.pos], t.in[t.pos+1]
	t.pos += 2
	switch {
	case tag&highTag == highTag:
		return 0, 0, false, malformed("a tag above 30")
	case first == indefiniteLong:
		if tag&constructed == 0 {
			return 0, 0, false, malformed("a primitive of indefinite length")
		}
		return tag, 0, true, nil
	case first < indefiniteLong:
		length = int(first)
	default:
		n := int(first &^ indefiniteLong)
		if n > mostLengthBytes || n > limit-t.pos {
			return 0, 0, false, malformed("a length")
		}
		for _, b := range t.in[t.pos : t.pos+n] {
			length = length<<8 | int(b)
		}
		t.pos += n
	}
	if length < 0 || length > limit-t.pos {
		return 0, 0, false, malformed("it ends early")
	}
	return tag, length, false, nil
}

// admit says whether an element may stand where it is, and whether it is a piece
// of a string.
func (t *transcoder) admit(tag byte) (silent bool, err error) {
	switch {
	case len(t.elements) == maxElements:
		return false, malformed("too many elements")
	case tag&constructed != 0 && len(t.open) == maxDepth:
		return false, malformed("too deep")
	}
	if n := len(t.open); n > 0 && t.open[n-1].text {
		if tag&^constructed != tagOctetString {
			return false, malformed("a piece of an octet string is none")
		}
		return true, nil
	}
	if tag&classMask == 0 && tag&constructed != 0 {
		switch tag {
		case tagSequence, tagSet, tagOctetString | constructed:
		default:
			return false, malformed("a string in pieces, or no string at all")
		}
	}
	return false, nil
}

// closeEnded closes the elements of definite length that end here.
func (t *transcoder) closeEnded() {
	for len(t.open) > 0 {
		if f := t.open[len(t.open)-1]; f.indefinite || f.end != t.pos {
			return
		}
		t.closeTop()
	}
}

func (t *transcoder) closeTop() {
	t.steps++
	f := t.open[len(t.open)-1]
	t.open = t.open[:len(t.open)-1]
	t.add(t.elements[f.at])
}

// add adds the size of e to that of what is around it.
func (t *transcoder) add(e element) {
	if len(t.open) == 0 {
		return
	}
	around := &t.elements[t.open[len(t.open)-1].at]
	around.size += e.size
	if !e.silent {
		around.size += headerSize(e.size)
	}
}

func (t *transcoder) emit() []byte {
	root := t.elements[0].size
	out := make([]byte, 0, root+headerSize(root))
	for _, e := range t.elements {
		t.steps++
		if !e.silent {
			out = appendHeader(out, e.tag, int(e.size))
		}
		out = append(out, t.in[e.start:e.end]...)
	}
	return out
}

func headerSize(size int32) int32 {
	switch {
	case size < 0x80:
		return 2
	case size < 0x100:
		return 3
	case size < 0x10000:
		return 4
	}
	return 5
}

func appendHeader(out []byte, tag byte, size int) []byte {
	switch {
	case size < 0x80:
		return append(out, tag, byte(size))
	case size < 0x100:
		return append(out, tag, 0x81, byte(size))
	case size < 0x10000:
		return append(out, tag, 0x82, byte(size>>8), byte(size))
	}
	return append(out, tag, 0x83, byte(size>>16), byte(size>>8), byte(size))
}
