package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Balancing counts what kernels are told of load balancers and Services.
type Balancing struct {
	transactions *prometheus.CounterVec
	elements     prometheus.Counter
	seconds      prometheus.Histogram
}

// NewBalancing registers the counters with r.
func NewBalancing(r prometheus.Registerer) *Balancing {
	m := &Balancing{
		transactions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_balancing_transactions_total",
			Help: "Transactions by which kernels were told what they balance, by outcome (ok, error).",
		}, []string{"outcome"}),
		elements: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "kuryr_balancing_elements_total",
			Help: "Elements of sets and maps that those without an error added and removed.",
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kuryr_balancing_transaction_duration_seconds", Help: "How long they took.",
			Buckets: append([]float64{.0001, .0002}, Buckets...),
		}),
	}
	for _, outcome := range []string{"ok", "error"} {
		m.transactions.WithLabelValues(outcome)
	}
	r.MustRegister(m.transactions, m.elements, m.seconds)
	return m
}

// Done notes a transaction of so many elements that ended now.
func (m *Balancing) Done(elements int, took time.Duration, err error) {
	m.seconds.Observe(took.Seconds())
	if err != nil {
		m.transactions.WithLabelValues("error").Inc()
		return
	}
	m.transactions.WithLabelValues("ok").Inc()
	m.elements.Add(float64(elements))
}
