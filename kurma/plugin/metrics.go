//go:build linux

package plugin

import "github.com/prometheus/client_golang/prometheus"

var (
	runningDesc = prometheus.NewDesc("kuryr_kurma_network_running",
		"1 where a network's plugin takes calls, else 0.", []string{"network"}, nil)
	restartsDesc = prometheus.NewDesc("kuryr_kurma_plugin_failures_total",
		"How often a network's plugin has failed, and was started again.", []string{"network"}, nil)
)

// Collector is what a Pod registers in Config.Metrics.
func Collector(p *Pod) prometheus.Collector { return collector{p} }

// collector tells Prometheus how the networks of the configuration are.
type collector struct{ pod *Pod }

// Describe names the metrics.
func (collector) Describe(out chan<- *prometheus.Desc) { out <- runningDesc; out <- restartsDesc }

// Collect gives their values.
func (c collector) Collect(out chan<- prometheus.Metric) {
	for _, s := range c.pod.Status() {
		if !s.Current {
			continue
		}
		running := 0.0
		if s.State == Running {
			running = 1
		}
		out <- prometheus.MustNewConstMetric(runningDesc, prometheus.GaugeValue, running, s.Name)
		out <- prometheus.MustNewConstMetric(restartsDesc, prometheus.CounterValue, float64(s.Restarts), s.Name)
	}
}
