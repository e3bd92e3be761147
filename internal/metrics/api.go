package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// API counts and times the requests that the SDN's API has served:
// kuryr_api_requests_total{method,noun,code},
// kuryr_api_request_duration_seconds{method,noun} and, of those that were not let in,
// kuryr_api_refused_total{reason}.
type API struct {
	served  *prometheus.CounterVec
	seconds *prometheus.HistogramVec
	refused *prometheus.CounterVec
}

// NewAPI registers the metrics in r.
func NewAPI(r prometheus.Registerer) *API {
	m := &API{
		served: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_api_requests_total", Help: "Requests that the SDN's API has answered, by method, noun and HTTP status.",
		}, []string{"method", "noun", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kuryr_api_request_duration_seconds", Help: "How long the SDN's API took to answer.", Buckets: Buckets,
		}, []string{"method", "noun"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_api_refused_total",
			Help: "Requests that were not let in to the SDN's API: unauthenticated, rate (too many of " +
				"one client) or failures (too many wrong credentials of one address).",
		}, []string{"reason"}),
	}
	r.MustRegister(m.served, m.seconds, m.refused)
	return m
}

// Done notes a request that has been answered. The words must be of a small set.
func (m *API) Done(method, noun string, status int, took time.Duration) {
	m.served.WithLabelValues(method, noun, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(method, noun).Observe(took.Seconds())
}

// Refused notes a request that was not let in.
func (m *API) Refused(reason string) { m.refused.WithLabelValues(reason).Inc() }
