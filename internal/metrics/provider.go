package metrics

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/prometheus/client_golang/prometheus"
)

// Observe gives a provider that does what p does and has its calls counted and timed in r:
// kuryr_sdn_calls_total{method,outcome} and kuryr_sdn_call_duration_seconds{method}.
func Observe(p sdn.Provider, r prometheus.Registerer) sdn.Provider {
	o := &observed{
		Provider: p,
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_sdn_calls_total", Help: "Calls of the SDN, by method and outcome (ok, or the kind of error).",
		}, []string{"method", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kuryr_sdn_call_duration_seconds", Help: "How long calls of the SDN took.", Buckets: Buckets,
		}, []string{"method"}),
	}
	r.MustRegister(o.calls, o.seconds)
	return o
}

type observed struct {
	sdn.Provider
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

// time notes a call that began at start and ends now.
func (o *observed) time(method string, start time.Time, err *error) {
	o.calls.WithLabelValues(method, outcome(*err)).Inc()
	o.seconds.WithLabelValues(method).Observe(time.Since(start).Seconds())
}

func stream[Q, T any](
	ctx context.Context, o *observed, method string, find func(context.Context, Q) iter.Seq2[T, error],
	q Q,
) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var failed error
		defer o.time(method, time.Now(), &failed)
		for v, err := range find(ctx, q) {
			if err != nil {
				failed = err
			}
			if !yield(v, err) {
				return
			}
		}
	}
}

// outcome names an error by its kind.
func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case sdn.IsNotFound(err):
		return "not_found"
	case sdn.IsConflict(err):
		return "conflict"
	case sdn.IsExhausted(err):
		return "exhausted"
	case sdn.IsInvalid(err):
		return "invalid"
	case sdn.IsDenied(err):
		return "denied"
	case sdn.IsUnsupported(err):
		return "unsupported"
	case sdn.IsPending(err):
		return "pending"
	case sdn.IsUnavailable(err):
		return "unavailable"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "cancelled"
	}
	return "error"
}
