package gate_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/secsy-pki/secsy-pki/gate"
)

// What alerts and screens are made of names no client, and neither does the error.
func TestAGovernorTellsOfNoClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const client = "192.0.2.66"
		g := gate.NewGovernor(gate.GovernorConfig{Ceiling: 1})
		release := hold(t, g, client)
		told := ""
		for range 3 {
			for _, l := range logInAll(t, g, client, 12) {
				if verdictOf(l) != "ok" {
					told += fmt.Sprintf("%v %+v\n", l.err, l.err)
				}
			}
			n, _ := g.Notice()
			told += fmt.Sprintf("%+v %+v\n", n, g.Stat())
			time.Sleep(time.Minute)
		}
		release()
		if n := strings.Count(told, "turned away"); n < 30 {
			t.Fatalf("%d were turned away: nothing was told of\n%s", n, told)
		}
		if strings.Contains(told, client) {
			t.Errorf("a client is named: %s", told)
		}
	})
}
