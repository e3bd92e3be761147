//go:build e2e

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
)

// resetDaemon restarts the node's daemon with its settings and more.
func (w *whole) resetDaemon(more ...string) {
	w.Helper()
	w.daemonMore = more
	w.must(errors.Join(w.claim.Stop(syscall.SIGTERM, limit), w.startDaemon(w.ctx)))
}

// NodePorts answer at all of the node's addresses, or at those that the administrator names alone.
func (b *balanced) nodePortAddresses() {
	const second = "192.0.2.77"
	b.must(b.node.Exec(b.ctx, "ip", "addr", "replace", second+"/32", "dev", "lo").Err())
	b.Cleanup(func() { b.node.Exec(context.WithoutCancel(b.ctx), "ip", "addr", "del", second+"/32", "dev", "lo") })
	b.routed(second + "/32")
	of := b.service("placed-ports", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort })
	places := b.places(of.Spec.Ports[0].NodePort)
	others := []string{net.JoinHostPort(second, strconv.Itoa(int(of.Spec.Ports[0].NodePort))), places[1]}
	for _, to := range others {
		b.answers(b.away, "tcp", to, "a", "b")
	}
	b.whole.resetDaemon("--node-node-port-addresses=" + b.node.Address.String() + "/32")
	defer b.whole.resetDaemon()
	for _, from := range []speaker{b.away, b.here, b.pod} {
		b.answers(from, "tcp", places[0], "a", "b")
		for _, to := range others {
			b.silence(from, "tcp", to, "refused")
		}
	}
}

// Where the SDN's quotas are reached, of load balancers and of floating IPs, those that
// are over them are told so and others are served, also as they change. With other quotas
// those are served too, by the same Raven.
func (b *balanced) quota() {
	limit := func(most int) {
		b.Helper()
		for path, noun := range map[string]string{"lbaas/quotas/tenant": "load_balancer", "quotas/tenant": "floatingip"} {
			var now any
			b.must(b.whole.node.sdn(b.ctx, http.MethodPut, path, map[string]any{"quota": map[string]int{noun: most}}, &now))
		}
	}
	within, outer := b.service("within", inIPv4), b.service("over-outside", inIPv4)
	for _, of := range []*corev1.Service{within, outer} {
		b.answers(b.pod, "tcp", at(of, 80)[0], "a", "b")
	}
	limit(0) // what is there stays
	defer limit(-1)
	over := b.service("over", inIPv4)
	b.change("over-outside", func(service *corev1.Service) { service.Spec.Type = corev1.ServiceTypeLoadBalancer })
	b.lacks("over", kuryrv1.ConditionProgrammed, kuryrv1.ReasonExhausted, "quota of 0 is used up")
	b.lacks("over-outside", kuryrv1.ConditionFloatingIP, kuryrv1.ReasonExhausted, "quota of 0 is used up")
	b.silence(b.pod, "tcp", at(over, 80)[0], nobodyAnswers...)
	b.change("within", func(service *corev1.Service) { service.Spec.Ports[0].Port = 81 })
	b.answers(b.pod, "tcp", at(within, 81)[0], "a", "b")
	b.answers(b.pod, "tcp", at(outer, 80)[0], "a", "b")

	limit(-1)
	b.answers(b.pod, "tcp", at(over, 80)[0], "a", "b")
	_, to := b.exposedAt("over-outside")
	b.answers(b.away, "tcp", to, "a", "b")
}

// loses has the SDN have a Service's load balancer no more.
func (b *balanced) loses(name string) {
	b.Helper()
	lb, err := b.klb(b.ctx, name)
	if b.must(err); len(lb.Status.LoadBalancers) == 0 {
		b.Fatalf("%s has no load balancer: %+v", name, lb.Status)
	}
	for _, of := range lb.Status.LoadBalancers {
		b.whole.erase("lbaas/loadbalancers/" + of.ID + "?cascade=true")
	}
}

// A load balancer that somebody deletes in the SDN is there again with the Service's next
// change, and its floating IP leads to it.
func (b *balanced) deletedInSDN() {
	b.balancer("deleted", "")
	of, err := b.Client.CoreV1().Services("default").Get(b.ctx, "deleted", metav1.GetOptions{})
	b.must(err)
	address, to := b.exposedAt("deleted")
	b.answers(b.pod, "tcp", at(of, 80)[0], "a", "b")
	b.loses("deleted")
	b.silence(b.pod, "tcp", at(of, 80)[0], nobodyAnswers...)
	b.change("deleted", func(service *corev1.Service) {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{
			Name: "more", Port: 81, TargetPort: intstr.FromInt32(talkTCP),
		})
	})
	for _, port := range []int{80, 81} {
		b.answers(b.pod, "tcp", at(of, port)[0], "a", "b")
	}
	b.floatingIP(address.String(), true)
	b.answers(b.away, "tcp", to, "a", "b")
}

// A load balancer and a floating IP that somebody deletes in the SDN, of a Service that nothing
// changes, are there again after Raven's next audit.
func (b *balanced) audited() {
	b.whole.reset("--controller-audit=1m") // the shortest
	defer b.whole.reset()
	// One that is made by that Raven it looks at again at an audit alone.
	of := b.service("audited", exposedIPv4)
	inside := at(of, 80)[0]
	address, _ := b.exposedAt("audited")
	b.answers(b.pod, "tcp", inside, "a", "b")
	b.loses("audited")
	b.whole.erase("floatingips/" + b.floatingIP(address.String(), false))
	b.silence(b.pod, "tcp", inside, nobodyAnswers...)
	begin := time.Now()
	b.within(80*time.Second, func(ctx context.Context) error {
		got, err := b.ask(ctx, b.pod, 1, "tcp", inside)
		if err == nil && got[0].failed != "" {
			took := time.Since(begin).Round(time.Second)
			err = fmt.Errorf("the load balancer is not there again after %s: %s", took, got[0].failed)
		}
		return err
	})
	b.answers(b.pod, "tcp", inside, "a", "b")
	// The SDN does not reuse a freed address immediately.
	b.ingress("audited", func(all []corev1.LoadBalancerIngress) bool {
		return len(all) == 1 && all[0].IP != address.String()
	})
	now, to := b.exposedAt("audited")
	b.floatingIP(now.String(), true)
	b.answers(b.away, "tcp", to, "a", "b")
}
