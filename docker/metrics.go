package docker

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count calls. A nil *metrics counts nothing.
type metrics struct {
	calls    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// The outcomes of a call.
const (
	outcomeOK      = "ok"      // answered
	outcomeFailed  = "failed"  // answered 200 with an error
	outcomeInvalid = "invalid" // answered 4xx or 5xx
)

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	if r == nil {
		return nil, nil
	}
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_docker_calls_total", Help: "Calls of the Docker engine, by method and outcome (ok, failed, invalid).",
		}, []string{"method", "outcome"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kuryr_docker_call_duration_seconds", Help: "How long calls of the Docker engine took.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30},
		}, []string{"method"}),
	}
	for _, c := range []prometheus.Collector{m.calls, m.duration} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("docker: metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) observe(method, outcome string, took time.Duration) {
	if m == nil {
		return
	}
	m.calls.WithLabelValues(method, outcome).Inc()
	m.duration.WithLabelValues(method).Observe(took.Seconds())
}
