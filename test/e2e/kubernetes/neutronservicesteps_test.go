//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
)

// survives has a Service live on Octavia while one Raven after the other is killed that
// sees to it: after a request that changes something, of whose answer it never hears, and
// when it has told that Octavia is at work. The one that is not killed ends with one load
// balancer, by which exactly the endpoints answer, and in the end nothing is left.
func (c *cloudServices) survives() {
	c.Helper()
	const answered = "neutron.change.answered"
	var of *corev1.Service
	for _, one := range []struct {
		name    string
		act     func()
		killed  []string
		want    []string
		port    int      // 0 is none
		answers []string // there
	}{
		{"made", func() {
			of = c.web("mortal", func(spec *corev1.ServiceSpec) {
				spec.IPFamilyPolicy, spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{corev1.IPv4Protocol}
			})
		}, []string{answered, "raven.balancer.told"}, []string{"ovn ACTIVE 2 pools: TCP 80, UDP 80"}, 80, []string{"b", "c"}},
		{
			"an endpoint less", func() { c.asks.label("c", "spare") }, []string{answered},
			[]string{"ovn ACTIVE 2 pools: TCP 80, UDP 80"}, 80, []string{"b"},
		},
		{"another port", func() {
			c.asks.change("mortal", func(service *corev1.Service) { service.Spec.Ports[0].Port = 81 })
		}, []string{answered, answered}, []string{"ovn ACTIVE 2 pools: TCP 81, UDP 80"}, 81, []string{"b"}},
		{"gone", func() {
			c.must(c.Client.CoreV1().Services("default").Delete(c.ctx, "mortal", metav1.DeleteOptions{}))
		}, []string{answered}, nil, 0, nil},
	} {
		c.must(c.raven.Stop(syscall.SIGKILL, limit))
		one.act()
		for _, step := range one.killed {
			c.failpoint = step
			c.must(c.startRaven())
			c.killed(c.raven, step)
			has, err := c.has(c.ctx, "default/mortal")
			c.must(err)
			c.Logf("%s, killed at %s: Octavia has %q", one.name, step, has)
		}
		c.failpoint = ""
		c.must(c.startRaven())
		if one.port > 0 {
			c.ready("mortal", len(one.answers))
		}
		c.until(func(ctx context.Context) error {
			has, err := c.has(ctx, "default/mortal")
			if err == nil && !slices.Equal(has, one.want) {
				err = fmt.Errorf("%s: Octavia has %q, want %q", one.name, has, one.want)
			}
			return err
		})
		if one.port > 0 {
			for _, from := range c.everywhere() {
				c.asks.answers(from, "tcp", at(of, one.port)[0], one.answers...)
			}
			c.asks.answers(c.pods[0], "udp", at(of, 80)[0], one.answers...)
		}
	}
	c.nothingOf(of)
	c.asks.label("c", "web")
}

// stuck has Octavia be at work on a Service's load balancer without an end, as the
// Service goes and comes again: another is served meanwhile, and its owner is told what
// it waits for. One in ERROR is made anew.
func (c *cloudServices) stuck() {
	c.Helper()
	single := func(spec *corev1.ServiceSpec) {
		spec.IPFamilyPolicy, spec.IPFamilies = new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{corev1.IPv4Protocol}
	}
	c.web("stuck", single)
	c.ready("stuck", 2)
	first := c.balancer("stuck")
	c.must(c.lab.SetState(c.ctx, first, "PENDING_UPDATE"))
	c.must(c.Client.CoreV1().Services("default").Delete(c.ctx, "stuck", metav1.DeleteOptions{}))
	of, beside := c.web("stuck", single), c.web("beside", single)
	c.ready("beside", 2)
	c.asks.answers(c.pods[0], "tcp", at(beside, 80)[0], "b", "c")
	c.asks.warned("stuck", "the load balancer of the Service that had this name before has not gone yet: ")
	c.must(c.lab.SetState(c.ctx, first, "ACTIVE"))
	c.ready("stuck", 2)
	c.asks.answers(c.pods[0], "tcp", at(of, 80)[0], "b", "c")

	second := c.balancer("stuck")
	c.must(c.lab.SetState(c.ctx, second, "ERROR"))
	c.asks.change("stuck", func(service *corev1.Service) { service.Spec.Ports[0].Port = 81 })
	c.asks.answers(c.pods[0], "tcp", at(of, 81)[0], "b", "c")
	c.ready("stuck", 2)
	if third := c.balancer("stuck"); third == second || second == first {
		c.Errorf("the load balancers were %q, %q and %q", first, second, third)
	}
	for _, service := range []*corev1.Service{of, beside} {
		c.must(c.Client.CoreV1().Services("default").Delete(c.ctx, service.Name, metav1.DeleteOptions{}))
		c.nothingOf(service)
	}
}

// balancer is Octavia's id of a Service's only load balancer.
func (c *cloudServices) balancer(name string) string {
	c.Helper()
	var lb kuryrv1.KuryrLoadBalancer
	c.must(c.api.Get(c.ctx, types.NamespacedName{Namespace: "default", Name: name}, &lb))
	if len(lb.Status.LoadBalancers) != 1 {
		c.Fatalf("%s has %+v", name, lb.Status)
	}
	return lb.Status.LoadBalancers[0].ID
}

// has is what Octavia has of a Service: a line for each load balancer, with its listeners.
func (c *cloudServices) has(ctx context.Context, name string) (all []string, err error) {
	type ids []struct{ ID string }
	var balancers struct {
		LoadBalancers []struct {
			ID, Name, Provider string
			Status             string `json:"provisioning_status"`
			Pools              ids
		}
	}
	var listeners struct {
		Listeners []struct {
			Protocol      string
			Port          int `json:"protocol_port"`
			LoadBalancers ids
		}
	}
	if err := c.lab.Octavia(ctx, http.MethodGet, "loadbalancers", nil, &balancers); err != nil {
		return nil, err
	}
	if err := c.lab.Octavia(ctx, http.MethodGet, "listeners", nil, &listeners); err != nil {
		return nil, err
	}
	for _, lb := range balancers.LoadBalancers {
		if lb.Name != name {
			continue
		}
		var ports []string
		for _, l := range listeners.Listeners {
			if slices.ContainsFunc(l.LoadBalancers, func(of struct{ ID string }) bool { return of.ID == lb.ID }) {
				ports = append(ports, fmt.Sprint(l.Protocol, " ", l.Port))
			}
		}
		slices.Sort(ports)
		all = append(all, fmt.Sprintf("%s %s %d pools: %s", lb.Provider, lb.Status, len(lb.Pools), strings.Join(ports, ", ")))
	}
	return all, nil
}
