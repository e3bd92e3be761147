package raven

import (
	"context"
	"errors"
	"strings"
	"sync"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// counts are Raven's metrics.
type counts struct {
	made, deleted *prometheus.CounterVec
	ports         *prometheus.GaugeVec
	short         *prometheus.CounterVec

	balancers *prometheus.GaugeVec
	applies   *prometheus.CounterVec

	mu     sync.Mutex
	last   map[string]poolCounts // by pool
	states map[string]string     // by load balancer
}

func newCounts(r prometheus.Registerer) *counts {
	c := &counts{
		last:   map[string]poolCounts{},
		states: map[string]string{},
		made: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_raven_ports_made_total", Help: "Ports asked of the SDN for pools and single pods, by outcome (ok, or the kind of error).",
		}, []string{"outcome"}),
		deleted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_raven_ports_deleted_total", Help: "Ports deleted in the SDN, by outcome (ok, error).",
		}, []string{"outcome"}),
		ports: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kuryr_raven_ports", Help: "Ports of all pools, by state (available, bound, leaving, pending).",
		}, []string{"state"}),
		short: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_raven_pool_short_total", Help: "Looks at which a pool got fewer ports than it needed, by what was in the way (maximum, cap, exhausted, sdn).",
		}, []string{"reason"}),
		balancers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "kuryr_raven_load_balancers", Help: "KuryrLoadBalancers, by state: ready, or the reason why they are not.",
		}, []string{"state"}),
		applies: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kuryr_raven_load_balancers_applied_total", Help: "Load balancers that the SDN was asked to have as Services say, by outcome (ok, error).",
		}, []string{"outcome"}),
	}
	if r != nil {
		r.MustRegister(c.made, c.deleted, c.ports, c.short, c.balancers, c.applies)
	}
	return c
}

// NewMetrics registers Raven's metrics with r alone, for who lists them.
func NewMetrics(r prometheus.Registerer) { newCounts(r) }

// poolCounts are a pool's ports by their states.
type poolCounts [len(portStates)]int

var portStates = [...]string{"available", "bound", "leaving", "pending"}

// pool notes what a pool has; the sum over all pools is what is shown.
func (c *counts) pool(name string, ports []*v1.KuryrPort, pending int) {
	var is poolCounts
	for _, p := range ports {
		is[stateOf(p)]++
	}
	is[len(portStates)-1] = pending
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, state := range portStates {
		c.ports.WithLabelValues(state).Add(float64(is[i] - c.last[name][i]))
	}
	c.last[name] = is
	if is == (poolCounts{}) {
		delete(c.last, name)
	}
}

// lacks counts a look at a pool that did not get all the ports it needed, once for each reason.
func (c *counts) lacks(err error) {
	reasons := map[string]bool{}
	for _, e := range core.Errors(err) {
		var limit core.Short
		switch {
		case errors.As(e, &limit):
			reasons[string(limit.Limit)] = true
		case sdn.IsExhausted(e):
			reasons["exhausted"] = true
		case sdn.IsUnavailable(e), errors.Is(e, context.DeadlineExceeded):
			reasons["sdn"] = true
		}
	}
	for reason := range reasons {
		c.short.WithLabelValues(reason).Inc()
	}
}

// balanced counts a load balancer that the SDN was asked for.
func (c *counts) balanced(err error) {
	outcome := "ok"
	if err != nil {
		outcome = "error"
	}
	c.applies.WithLabelValues(outcome).Inc()
}

// balancer notes how a load balancer is; "" is that it has gone.
func (c *counts) balancer(name, state string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if was := c.states[name]; was != "" {
		c.balancers.WithLabelValues(was).Dec()
	}
	delete(c.states, name)
	if state != "" {
		c.states[name] = state
		c.balancers.WithLabelValues(state).Inc()
	}
}

// stateOfBalancer is what its conditions say.
func stateOfBalancer(conditions []metav1.Condition) string {
	ready := meta.FindStatusCondition(conditions, v1.ConditionReady)
	if ready == nil || ready.Status == metav1.ConditionTrue {
		return "ready"
	}
	return strings.ToLower(ready.Reason)
}
