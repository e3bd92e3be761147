package agent

import (
	"time"

	"github.com/kuryr/kuryr/internal/metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// requests counts and times the calls of kuryr-cni: kuryr_cni_requests_total{verb,outcome} and
// kuryr_cni_request_duration_seconds{verb}.
type requests struct {
	answered *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newRequests(r prometheus.Registerer) *requests {
	m := &requests{
		answered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_cni_requests_total",
			Help: "CNI calls answered, by verb and outcome (ok, or the kind of error as docs/cni.md lists them).",
		}, []string{"verb", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kuryr_cni_request_duration_seconds", Help: "How long a CNI call took in the daemon.",
			Buckets: metrics.Buckets,
		}, []string{"verb"}),
	}
	if r != nil {
		r.MustRegister(m.answered, m.seconds)
	}
	return m
}

func (m *requests) done(verb, outcome string, took time.Duration) {
	m.answered.WithLabelValues(verb, outcome).Inc()
	m.seconds.WithLabelValues(verb).Observe(took.Seconds())
}
