package pkcs11pool

import (
	"reflect"
	"strings"
	"testing"
)

func slotNumber(n uint) *uint { return &n }

func TestURIsAreReadAsTheStandardHasThem(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]URI{
		"pkcs11:": {},
		// RFC 7512 §3, but for the PIN that one of them holds.
		"pkcs11:object=my-pubkey;type=public": {Object: "my-pubkey", Type: "public"},
		"pkcs11:object=my-key;type=private?pin-source=file:/etc/token": {
			Object: "my-key", Type: "private", PINSource: "file:/etc/token",
		},
		"pkcs11:token=The%20Software%20PKCS%2311%20Softtoken;manufacturer=Snake%20Oil,%20Inc.;model=1.0;object=my-certificate;type=cert;id=%69%95%3E%5C%F4%BD%EC%91?pin-source=file:/etc/token_pin": {
			Token: "The Software PKCS#11 Softtoken", Manufacturer: "Snake Oil, Inc.", Model: "1.0", Object: "my-certificate",
			Type: "cert", ID: []byte("\x69\x95\x3e\x5c\xf4\xbd\xec\x91"), PINSource: "file:/etc/token_pin",
		},
		"pkcs11:object=my-sign-key;type=private?module-name=mypkcs11": {Object: "my-sign-key", Type: "private", ModuleName: "mypkcs11"},
		"pkcs11:object=my-sign-key;type=private?module-path=/mnt/libmypkcs11.so.1": {
			Object: "my-sign-key", Type: "private", ModulePath: "/mnt/libmypkcs11.so.1",
		},
		"pkcs11:token=Software%20PKCS%2311%20softtoken;manufacturer=Snake%20Oil,%20Inc.?pin-source=|/usr/bin/token-pin": {
			Token: "Software PKCS#11 softtoken", Manufacturer: "Snake Oil, Inc.", PINSource: "|/usr/bin/token-pin",
		},
		"pkcs11:slot-description=Sun%20Metaslot": {SlotDescription: "Sun Metaslot"},
		"pkcs11:library-manufacturer=Snake%20Oil,%20Inc.;library-description=Soft%20Token;library-version=1.23": {LibraryManufacturer: "Snake Oil, Inc.", LibraryDescription: "Soft Token", LibraryVersion: "1.23"},
		"pkcs11:slot-id=0;slot-manufacturer=M": {SlotID: slotNumber(0), SlotManufacturer: "M"},
		"PKCS11:serial=0a&b=c":                 {Serial: "0a&b=c"},
		"pkcs11:token=Schl%C3%BCssel":          {Token: "Schlüssel"},
		"pkcs11:?module-path=/m%3fx":           {ModulePath: "/m?x"},
	} {
		got, err := ParseURI(s)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v", s, got, err)
		}
	}
}

func TestAURIIsRefusedByTheAttributeAtFault(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"":                                       `it does not begin with "pkcs11:"`,
		"token=x":                                `it does not begin with "pkcs11:"`,
		"pkcs11:" + strings.Repeat("a", 5000):    "it has 5007 octets",
		"pkcs11:id=" + strings.Repeat("a", 4000): "it has 12010 octets with all",
		"pkcs11:token":                           "attribute 1 of its path has no =",
		"pkcs11:token=a;":                        "attribute 2 of its path has no =",
		"pkcs11:token=a?":                        "attribute 1 of its query has no =",
		"pkcs11:token=a;token=a":                 "token: it is there twice",
		"pkcs11:token=":                          "token: it has no value",
		"pkcs11:token=" + strings.Repeat("a", 33):  "token: its value has 33 octets, at most 32",
		"pkcs11:serial=" + strings.Repeat("1", 17): "serial: its value has 17 octets, at most 16",
		"pkcs11:token=a%0Ab":                       "token: its value has a control character",
		"pkcs11:token=a%ffb":                       "token: its value is not UTF-8",
		"pkcs11:token=a%2":                         "token: want two hexadecimal digits after each %",
		"pkcs11:token=a%zz":                        "token: want two hexadecimal digits after each %",
		"pkcs11:token=my token":                    `token: write %20 where its value has " "`,
		"pkcs11:object=a/b":                        `object: write %2F where its value has "/"`,
		"pkcs11:object=a#b":                        `object: write %23 where its value has "#"`,
		"pkcs11:?module-path=a;b":                  `module-path: write %3B where its value has ";"`,
		"pkcs11:token=a?b=c?d":                     "b: there is no such attribute in the query",
		"pkcs11:x-vendor=1":                        "x-vendor: attributes of vendors are not understood",
		"pkcs11:tokn=1":                            "tokn: there is no such attribute in the path",
		"pkcs11:=1":                                "its path has an attribute whose name is none",
		"pkcs11:module-path=a":                     "module-path: it belongs after the question mark",
		"pkcs11:?token=a":                          "token: it belongs before the question mark",
		"pkcs11:slot-id=-1":                        "slot-id: want a slot's number",
		"pkcs11:slot-id=99999999999999999999":      "slot-id: want a slot's number",
		"pkcs11:type=key":                          "type: want private,",
		"pkcs11:library-version=2.":                "library-version: want a version",
		"pkcs11:library-version=a":                 "library-version: want a version",
	} {
		_, err := ParseURI(s)
		if err == nil || !strings.HasPrefix(err.Error(), "pkcs11pool: reading a PKCS#11 URI: "+want) {
			t.Errorf("%.60s: error = %v, want %s…", s, err, want)
		}
	}
}

func TestAPINInAURIIsRefusedAndNotRepeated(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"pkcs11:token=a?pin-value=4711", "pkcs11:pin-value=4711", "pkcs11:token=a?PIN-Value=4711",
		"pkcs11:token=a?module-path=/m&pin-value=4711&pin-value=4711",
	} {
		_, err := ParseURI(s)
		if err == nil || !strings.Contains(err.Error(), "pin-value: ") || !strings.Contains(err.Error(), "pin-source") || strings.Contains(err.Error(), "4711") {
			t.Errorf("%s: error = %v", s, err)
		}
	}
	for _, s := range []string{"4711", "pkcs11:4711", "pkcs11:token=a?pin-value:4711", "pkcs11:token=a?pin=4711", "pkcs11:slot-id=a4711", "pkcs11:type=4711"} {
		if _, err := ParseURI(s); err == nil || strings.Contains(err.Error(), "4711") {
			t.Errorf("%s: error = %v", s, err)
		}
	}
}

func TestAURIIsWrittenInOneForm(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]string{
		"PKCS11:":                               "pkcs11:",
		"pkcs11:type=private;id=a%01;token=%41": "pkcs11:token=A;type=private;id=%61%01",
		"pkcs11:slot-id=007":                    "pkcs11:slot-id=7",
		"pkcs11:token=a,b?pin-source=file:/p&module-path=/m": "pkcs11:token=a%2Cb?module-path=/m&pin-source=file:/p",
	} {
		u, err := ParseURI(s)
		if err != nil || u.String() != want {
			t.Errorf("%s: got %s, %v", s, u, err)
		}
	}
}

// FuzzParseURI: what is read, written and read again is the same.
func FuzzParseURI(f *testing.F) {
	for _, s := range []string{
		"pkcs11:", "pkcs11:token=a;object=b;id=%00;type=private", "PKCS11:slot-id=01?module-path=/a%26b&pin-source=file:c",
		"pkcs11:library-version=2.40;library-description=;x-a=b", "pkcs11:token=%C3%BC;token=%", "pkcs11:?pin-value=1",
		"pkcs11:manufacturer=a&b=c;model='*'?module-name=|x?",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseURI(s)
		if err != nil {
			return
		}
		written := u.String()
		again, err := ParseURI(written)
		if err != nil || !reflect.DeepEqual(again, u) || again.String() != written {
			t.Errorf("%q is %+v, written %q, read again %+v, %v", s, u, written, again, err)
		}
	})
}
