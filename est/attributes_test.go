package est

import (
	"bytes"
	"encoding/asn1"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

// An attrs reads what /csrattrs says: OIDs, and attributes by their type.
func attrs(t *testing.T, der []byte) (oids []string, attributes map[string][]byte) {
	t.Helper()
	var list []asn1.RawValue
	if rest, err := asn1.Unmarshal(der, &list); err != nil || len(rest) > 0 {
		t.Fatalf("not CsrAttrs: %v", err)
	}
	attributes = map[string][]byte{}
	for _, v := range list {
		if v.Tag == asn1.TagOID {
			var oid asn1.ObjectIdentifier
			if _, err := asn1.Unmarshal(v.FullBytes, &oid); err != nil {
				t.Fatal(err)
			}
			oids = append(oids, oid.String())
			continue
		}
		var a struct {
			Type   asn1.ObjectIdentifier
			Values []asn1.RawValue `asn1:"set"`
		}
		if _, err := asn1.Unmarshal(v.FullBytes, &a); err != nil || len(a.Values) != 1 {
			t.Fatalf("%d values: %v", len(a.Values), err)
		}
		attributes[a.Type.String()] = a.Values[0].FullBytes
	}
	return oids, attributes
}

// RFC 9908 §3.4, byte by byte: version, subject with a type and a value, a P-256
// key, and a subjectAltName that the device is to fill in.
func TestTemplatesAreThoseOfRFC9908(t *testing.T) {
	t.Parallel()
	der, err := Attributes{
		Subject:    []SubjectAttribute{{Type: asn1.ObjectIdentifier{2, 5, 4, 10}, Value: "Org"}, {Type: asn1.ObjectIdentifier{2, 5, 4, 3}}},
		Key:        ECP256,
		Extensions: []Extension{{ID: asn1.ObjectIdentifier{2, 5, 29, 17}}, {ID: asn1.ObjectIdentifier{2, 5, 29, 15}, Critical: true, Value: []byte{3, 2, 7, 0x80}}},
	}.encode(false)
	if err != nil {
		t.Fatal(err)
	}
	_, attributes := attrs(t, der)
	if got := hex.EncodeToString(attributes["1.2.840.10045.2.1"]); got != "06082a8648ce3d030107" {
		t.Errorf("the key for older clients is %s", got)
	}
	want := "305f" + "020100" +
		"3017" + "310c" + "300a" + "060355040a" + "0c034f7267" + "3107" + "3005" + "0603550403" +
		"a015" + "3013" + "06072a8648ce3d0201" + "06082a8648ce3d030107"
	got := hex.EncodeToString(attributes["1.2.840.113549.1.9.16.2.61"])
	if !strings.HasPrefix(got, want) {
		t.Errorf("template\n%s, want it to begin as\n%s", got, want)
	}
	if tail := "3017" + "30050603551d11" + "300e0603551d0f0101ff0404" + "03020780"; !strings.HasSuffix(got, tail) || !strings.Contains(got, "060b2a864886f70d010910023e") {
		t.Errorf("template\n%s, want it to end as\n%s", got, tail)
	}
}

func TestRSAKeysAreAskedForByTheirLength(t *testing.T) {
	t.Parallel()
	der, err := Attributes{Key: RSA3072}.encode(false)
	if err != nil {
		t.Fatal(err)
	}
	if _, attributes := attrs(t, der); hex.EncodeToString(attributes["1.2.840.113549.1.1.1"]) != "02020c00" {
		t.Errorf("attributes %x", attributes)
	}
}

func TestAttributesThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	for _, a := range []Attributes{{Key: "dsa"}, {Extensions: []Extension{{ID: asn1.ObjectIdentifier{2, 5, 29, 15}, Value: []byte{3}}}}} {
		if _, err := a.encode(false); err == nil {
			t.Errorf("%+v is taken", a)
		}
	}
}

// Nothing to say is no body; and through a hop that ends TLS nobody is asked for
// what can't be there.
func TestCSRAttributesSayWhatTheConnectionAllows(t *testing.T) {
	w := newWorld(t)
	get := call{path: "/.well-known/est/csrattrs", method: http.MethodGet}
	if a := w.want(w.do(w.listen(w.server(nil), nil), get), http.StatusNoContent); len(a.text) != 0 {
		t.Errorf("body %q", a.text)
	}
	at := w.listen(w.server(func(c *Config) {
		c.Endpoints[0].Challenge = Required
		c.Forwarders = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	}), nil)
	a := w.want(w.do(at, get), http.StatusOK)
	der, err := base64.StdEncoding.DecodeString(string(bytes.ReplaceAll(a.text, []byte("\n"), nil)))
	if err != nil {
		t.Fatal(err)
	}
	if oids, _ := attrs(t, der); len(oids) != 1 || oids[0] != "1.2.840.113549.1.9.7" || a.Header.Get("Content-Type") != "application/csrattrs" {
		t.Errorf("%q says %q", a.Header.Get("Content-Type"), oids)
	}
	w.hop = netip.MustParseAddr("198.51.100.7")
	w.want(w.do(at, get), http.StatusNoContent)
}
