package reconcile

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are of one store.
type metrics struct {
	store      *Store
	rows       *prometheus.Desc
	unsure     *prometheus.Desc
	commits    prometheus.Counter
	candidates prometheus.Gauge
	orphans    *prometheus.CounterVec
	attempts   *prometheus.CounterVec
}

func newMetrics(s *Store, r prometheus.Registerer) *metrics {
	m := &metrics{
		store: s,
		rows: prometheus.NewDesc("kuryr_intent_rows",
			"Intents in the daemon's table.", []string{"kind", "phase"}, nil),
		unsure: prometheus.NewDesc("kuryr_intent_unconfirmed",
			"Objects whose creation was not confirmed and that are looked for.", []string{"kind"}, nil),
		commits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kuryr_intent_commits_total", Help: "Transactions of the daemon's table.",
		}),
		candidates: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kuryr_intent_orphan_candidates",
			Help: "Intents that the last list of their engine did not have.",
		}),
		orphans: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_intent_orphans_total",
			Help: "Intents that were deleted because their engine no longer has them.",
		}, []string{"kind"}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_intent_attempts_total",
			Help: "Calls that create, change or delete what an intent asks for.",
		}, []string{"kind", "verb", "result"}),
	}
	if r != nil {
		// A process can have several stores.
		name := strings.TrimSuffix(filepath.Base(s.cfg.Path), ".db")
		r = prometheus.WrapRegistererWith(prometheus.Labels{"store": name}, r)
		r.MustRegister(m, m.commits, m.candidates, m.orphans, m.attempts)
	}
	return m
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(c chan<- *prometheus.Desc) { c <- m.rows; c <- m.unsure }

// Collect implements prometheus.Collector.
func (m *metrics) Collect(c chan<- prometheus.Metric) {
	for _, k := range m.store.allKinds() {
		n, gauge := k.countRows(), prometheus.GaugeValue
		c <- prometheus.MustNewConstMetric(m.rows, gauge, float64(n.wanted), k.name, Wanted.String())
		c <- prometheus.MustNewConstMetric(m.rows, gauge, float64(n.deleting), k.name, Deleting.String())
		c <- prometheus.MustNewConstMetric(m.unsure, gauge, float64(n.unconfirmed), k.name)
	}
}

func (m *metrics) attempt(k *kind, verb string, err error) {
	result := "ok"
	switch {
	case errors.Is(err, ErrAbsent):
		result = "absent"
	case errors.Is(err, ErrWaiting):
		result = "waiting"
	case err != nil:
		result = "error"
	}
	m.attempts.WithLabelValues(k.name, verb, result).Inc()
}
