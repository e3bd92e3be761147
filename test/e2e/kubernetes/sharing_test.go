//go:build e2e

package kubernetes_test

import (
	"context"
	"fmt"
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	kuryrv1 "github.com/kuryr/kuryr/kube/api/v1"
)

// shared has another Service share the load balancer of one that is reached outside at an
// address by a VIP of its own: there both answer, the other one alone when that has gone,
// and nobody when it has gone too.
func (s *services) shared(host, outside string, of, asks []string) {
	s.Helper()
	all := s.Client.CoreV1().Services("default")
	of80, of81 := net.JoinHostPort(outside, "80"), net.JoinHostPort(outside, "81")
	nobody := []string{"timeout", "refused", "unreachable"}
	var id string
	s.until(func(ctx context.Context) error {
		var lb kuryrv1.KuryrLoadBalancer
		if err := s.api(s.Config).Get(ctx, types.NamespacedName{Namespace: "default", Name: host}, &lb); err != nil {
			return err
		}
		i := slices.IndexFunc(lb.Status.LoadBalancers, func(of kuryrv1.LoadBalancerOfVIP) bool { return of.Own })
		if i < 0 {
			return fmt.Errorf("%s has no VIP of its own: %+v", host, lb.Status)
		}
		id = lb.Status.LoadBalancers[i].ID
		return nil
	})
	s.service("guest", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.IPFamilyPolicy, spec.IPFamilies = corev1.ServiceTypeLoadBalancer,
			new(corev1.IPFamilyPolicySingleStack), []corev1.IPFamily{corev1.IPv4Protocol}
		spec.Selector = map[string]string{"app": "asks"}
		spec.Ports = []corev1.ServicePort{{Name: "tcp", Port: 81, TargetPort: intstr.FromInt32(talkTCP)}}
	})
	s.change("guest", func(service *corev1.Service) {
		service.Annotations = map[string]string{"loadbalancer.openstack.org/load-balancer-id": id}
	})
	s.until(func(ctx context.Context) error {
		now, err := all.Get(ctx, "guest", metav1.GetOptions{})
		if err == nil && (len(now.Status.LoadBalancer.Ingress) != 1 || now.Status.LoadBalancer.Ingress[0].IP != outside) {
			err = fmt.Errorf("the status of guest is %+v, want %s", now.Status.LoadBalancer.Ingress, outside)
		}
		return err
	})
	s.answers(s.away, "tcp", of81, asks...)
	s.answers(s.away, "tcp", of80, of...)
	s.must(all.Delete(s.ctx, host, metav1.DeleteOptions{}))
	s.silence(s.away, "tcp", of80, nobody...)
	s.answers(s.away, "tcp", of81, asks...)
	s.must(all.Delete(s.ctx, "guest", metav1.DeleteOptions{}))
	s.silence(s.away, "tcp", of81, nobody...)
}
