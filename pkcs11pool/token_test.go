package pkcs11pool

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/pkcs11"

	"github.com/secsy-pki/secsy-pki/pkcs11pool/pkcs11test"
)

// onSoftHSM is a Config for a token of SoftHSM that no other test has.
func onSoftHSM(t *testing.T) Config {
	t.Helper()
	tok := hsm.Take(t)
	return Config{Tokens: []TokenConfig{{
		Module: tok.Module,
		Label:  tok.Label,
		PIN:    func() ([]byte, error) { return []byte(pkcs11test.PIN), nil },
	}}}
}

func TestARealTokenIsOpenedUsedAndGivenBack(t *testing.T) {
	t.Parallel()
	p, err := Open(t.Context(), onSoftHSM(t))
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			err := p.do(t.Context(), &job{op: "looking", run: func(c *conn) error {
				info, err := c.GetSessionInfo(c.session)
				if err == nil && info.State != pkcs11.CKS_RO_USER_FUNCTIONS {
					t.Errorf("state %d, want one of a user logged in", info.State)
				}
				return err
			}})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if s := p.Stat().Tokens[0]; s.State != Up || s.Borrows != 100 || s.Busy != 0 || s.Idle < 1 || s.Idle > defaultMaxSessions {
		t.Errorf("%+v", s)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if s := p.Stat().Tokens[0]; s.Idle+s.Busy+s.Opening+s.Closing+s.Hung != 0 {
		t.Errorf("sessions are left: %+v", s)
	}
}

func TestAWrongPINIsSaidOnceToARealToken(t *testing.T) {
	t.Parallel()
	cfg := onSoftHSM(t)
	cfg.Lenient = true
	wrong := cfg
	wrong.Tokens = []TokenConfig{cfg.Tokens[0]}
	wrong.Tokens[0].PIN = func() ([]byte, error) { return []byte("9999"), nil }
	for range 5 { // SoftHSM says after one wrong PIN that few are left
		if _, err := Open(t.Context(), wrong); !errors.Is(err, ErrPIN) {
			t.Fatalf("got %v, want ErrPIN", err)
		}
	}
	p, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestWhoeverWantsAnotherTokenIsToldWhichThereAre(t *testing.T) {
	t.Parallel()
	cfg := onSoftHSM(t)
	there := cfg.Tokens[0].Label
	cfg.Tokens[0].Label = "nowhere"
	_, err := Open(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), `label "nowhere"`) || !strings.Contains(err.Error(), `label "token-`) {
		t.Errorf("%v, want the label %q among others", err, there)
	}
}
