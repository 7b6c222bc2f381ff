package app

import (
	"testing"

	"github.com/secsy-pki/secsy-pki/config"
)

func TestAnOrderMayHaveAsManyNamesAsAProfile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		profiles []config.Profile
		want     int
	}{
		{[]config.Profile{{MaxNames: 100}}, 100},
		{[]config.Profile{{MaxNames: 5}, {MaxNames: 250}, {MaxNames: 100}}, 250},
	} {
		if got := mostNames(c.profiles); got != c.want {
			t.Errorf("%d, want %d", got, c.want)
		}
	}
}
