//go:build linux

package pod

import (
	"errors"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kuryr/kuryr/internal/metrics"
)

// calls counts and times the calls of plugins: kuryr_kurma_calls_total{network,verb,outcome} and
// kuryr_kurma_call_duration_seconds{network,verb}.
type calls struct {
	ended   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

// newCalls registers them, and kuryr_kurma_pods{state}, whose value is count's.
func newCalls(r prometheus.Registerer, count func(State) int) *calls {
	c := &calls{
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_kurma_calls_total",
			Help: "Calls of Kurma's network plugins, by network, verb and outcome.",
		}, []string{"network", "verb", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kuryr_kurma_call_duration_seconds", Help: "How long a network plugin took.",
			Buckets: append(slices.Clone(metrics.Buckets), 60),
		}, []string{"network", "verb"}),
	}
	if r == nil {
		return c
	}
	r.MustRegister(c.ended, c.seconds)
	for _, state := range []State{Adding, Ready, Removing} {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kuryr_kurma_pods", Help: "Pods that Kurma has.",
			ConstLabels: prometheus.Labels{"state": string(state)},
		}, func() float64 { return float64(count(state)) }))
	}
	return c
}

// done counts a call that has ended.
func (c *calls) done(network, verb string, err error, took time.Duration) {
	c.ended.WithLabelValues(network, verb, outcome(err)).Inc()
	c.seconds.WithLabelValues(network, verb).Observe(took.Seconds())
}

// outcome is a word of a small set: "ok", the error's own, or "failed".
func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	var own interface{ Outcome() string }
	if errors.As(err, &own) {
		return own.Outcome()
	}
	return "failed"
}
