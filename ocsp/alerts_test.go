package ocsp

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/ca"
)

// An alert that asks for a metric which is not there is silent when it matters.
func TestAlertsAskForMetricsThatExist(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		reg := prometheus.NewRegistry()
		s := w.server(func(c *Config) { c.Registerer, c.Ahead = reg, []Hash{SHA1} })
		stop := runServer(t, s)
		w.ask(s, 0, w.leaf(0, 5, Status{State: ca.Issued}))
		time.Sleep(time.Hour)
		stop()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		labels := map[string]string{} // of each metric
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					labels[f.GetName()] += " " + l.GetName()
				}
			}
			labels[f.GetName()] += " "
		}
		rules, err := os.ReadFile("../docs/monitoring/ocsp-alerts.yaml")
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`expr: .*(secsy_ocsp_[a-z_]+)`).FindAllStringSubmatch(string(rules), -1)
		if len(found) < 4 {
			t.Errorf("they ask for %d metrics only", len(found))
		}
		by := regexp.MustCompile(`by \(([a-z, ]+)\)`)
		for _, f := range found {
			has, there := labels[f[1]]
			if !there {
				t.Errorf("%s is not there", f[1])
			}
			for _, list := range by.FindAllStringSubmatch(f[0], -1) {
				for l := range strings.SplitSeq(list[1], ", ") {
					if l != "instance" && !strings.Contains(has, " "+l+" ") {
						t.Errorf("%s has no label %s, but%s", f[1], l, has)
					}
				}
			}
		}
	})
}
