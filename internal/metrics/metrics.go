// Package metrics counts and times what Kuryr does, for Prometheus.
//
// It owns the names that begin with kuryr_sdn_, kuryr_reconcile_, kuryr_balancing_ and
// kuryr_build_info; front ends and providers register their own. It only watches: nothing
// in it may change what a call does or answers.
package metrics

import (
	"net/http"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// New makes a registry with the metrics of the process, of the Go runtime and of the build.
func New(version string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGaugeVec(
		prometheus.GaugeOpts{Name: "kuryr_build_info", Help: "Always 1; the labels tell the version."},
		[]string{"version", "go"},
	)
	build.WithLabelValues(version, runtime.Version()).Set(1)
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Handler serves what r has gathered.
func Handler(r *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true})
}

// Buckets are the upper bounds of durations, in seconds, from half a millisecond on.
var Buckets = []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30}

// Reconciles counts how often the kernel was compared with the store, and what came of it.
type Reconciles struct {
	runs    *prometheus.CounterVec
	changes prometheus.Counter
	seconds prometheus.Histogram
	success prometheus.Gauge
}

// NewReconciles registers the counters with r.
func NewReconciles(r prometheus.Registerer) *Reconciles {
	m := &Reconciles{
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_reconcile_total", Help: "Reconciles of the kernel with the store, by outcome (ok, error).",
		}, []string{"outcome"}),
		changes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kuryr_reconcile_changes_total", Help: "Things that reconciles found different in the kernel and mended.",
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kuryr_reconcile_duration_seconds", Help: "How long reconciles took.", Buckets: Buckets,
		}),
		success: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "kuryr_reconcile_last_success_timestamp_seconds", Help: "When the last reconcile without an error ended.",
		}),
	}
	for _, outcome := range []string{"ok", "error"} {
		m.runs.WithLabelValues(outcome)
	}
	r.MustRegister(m.runs, m.changes, m.seconds, m.success)
	return m
}

// Done notes a reconcile that ended now.
func (m *Reconciles) Done(took time.Duration, changes int, err error) {
	m.seconds.Observe(took.Seconds())
	m.changes.Add(float64(changes))
	if err != nil {
		m.runs.WithLabelValues("error").Inc()
		return
	}
	m.runs.WithLabelValues("ok").Inc()
	m.success.SetToCurrentTime()
}
