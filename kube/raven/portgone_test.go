package raven

import (
	"fmt"
	"net/netip"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// A port that goes is told to its own pool, and to those where a pod waits for one by an address: not to every pool of its network.
func TestPortGone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.namespace("blue", map[string]string{v1.AnnotationAllowAddresses: "any"})
	for i := range 5 {
		c.addNode(fmt.Sprint("n", i), nil)
		c.pod("blue", fmt.Sprint("p", i), fmt.Sprint("n", i), nil)
	}
	c.settle()
	of := func(pod string) *v1.KuryrPort {
		t.Helper()
		for _, p := range c.ports() {
			if p.Status.Pod != nil && p.Status.Pod.Name == pod {
				return &p
			}
		}
		t.Fatalf("%s has no port", pod)
		return nil
	}
	address := netip.MustParsePrefix(of("p0").Spec.Network.Subnets[0].CIDR).Addr()
	for range 200 {
		address = address.Next()
	}
	wish := map[string]string{v1.AnnotationAddress: address.String()}
	c.pod("blue", "first", "n0", wish)
	c.settle()
	c.pod("blue", "second", "n1", wish)
	c.round()
	first := of("first")
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer q.ShutDown()
	c.raven.portChanged(first, q, true)
	told := map[string]bool{}
	for q.Len() > 0 {
		request, _ := q.Get()
		told[request.Name] = true
		q.Done(request)
	}
	if len(told) != 2 || !told[first.Spec.Pool] || !told[of("p1").Spec.Pool] {
		t.Errorf("told are %v", told)
	}
}
