package metrics

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Requests counts and times the HTTP requests that are sent to an SDN:
// kuryr_neutron_requests_total{method,collection,status} and
// kuryr_neutron_request_duration_seconds{method,collection}.
type Requests struct {
	sent    *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

// NewRequests registers the metrics in r.
func NewRequests(r prometheus.Registerer) *Requests {
	m := &Requests{
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_neutron_requests_total",
			Help: "Requests sent to Neutron and Keystone, by method, collection and HTTP status (none: " +
				"no answer).",
		}, []string{"method", "collection", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kuryr_neutron_request_duration_seconds",
			Help: "How long Neutron and Keystone took to answer.", Buckets: Buckets,
		}, []string{"method", "collection"}),
	}
	r.MustRegister(m.sent, m.seconds)
	return m
}

// Done notes a request that has been answered, or has failed to be: status 0.
func (m *Requests) Done(method, collection string, status int, took time.Duration) {
	text := "none"
	if status != 0 {
		text = strconv.Itoa(status)
	}
	m.sent.WithLabelValues(method, collection, text).Inc()
	m.seconds.WithLabelValues(method, collection).Observe(took.Seconds())
}
