package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kuryr/kuryr/internal/metrics"
)

// counts are what Prometheus is told.
type counts struct {
	frontends prometheus.Gauge
	changes   *prometheus.CounterVec
	seconds   prometheus.Histogram
}

func newCounts(r prometheus.Registerer) *counts {
	m := &counts{
		frontends: prometheus.NewGauge(prometheus.GaugeOpts{Name: "kuryr_node_frontends", Help: "Addresses and ports of Services that the node's kernel balances."}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_node_service_changes_total", Help: "Changes of Services brought into the node's kernel, by outcome (ok, error).",
		}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kuryr_node_service_change_duration_seconds", Help: "How long a change of Services took in the kernel.", Buckets: metrics.Buckets,
		}),
	}
	if r != nil {
		r.MustRegister(m.frontends, m.changes, m.seconds)
	}
	return m
}

// NewMetrics registers the metrics of Services with r alone, for who lists them.
func NewMetrics(r prometheus.Registerer) { newCounts(r) }

func (m *counts) done(err error, took time.Duration) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	m.changes.WithLabelValues(outcome).Inc()
	m.seconds.Observe(took.Seconds())
}
