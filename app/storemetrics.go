package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/secsy-pki/secsy-pki/store"
)

// storeMetrics reads the counters of the database when it is asked.
type storeMetrics struct{ db *store.DB }

var (
	descStatements = desc("store_statements_total", "Statements that the database was asked, background work included.")
	descReads      = desc("store_reads_total", "Transactions that only read.")
	descWrites     = desc("store_writes_total", "Changes that were kept.")
	descCommits    = desc("store_commits_total", "Commits, each of which waits for the disk. On SQLite changes share them.")
)

// Describe implements prometheus.Collector.
func (m storeMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descStatements, descReads, descWrites, descCommits} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m storeMetrics) Collect(ch chan<- prometheus.Metric) {
	o, s := out{ch}, m.db.Stat()
	o.counter(descStatements, float64(s.Statements))
	o.counter(descReads, float64(s.Reads))
	o.counter(descWrites, float64(s.Writes))
	o.counter(descCommits, float64(s.Commits))
}
