package raven

import (
	"context"
	"slices"
	"testing"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// A namespace that is on another's network keeps its way out when that one goes; the network goes with the last of them.
func TestNetworkOfANamespaceThatGoes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("owner", nil)
	c.pod("owner", "first", "n1", nil)
	c.settle()
	own := c.networkOf("owner")
	c.namespace("guest", map[string]string{v1.AnnotationNetwork: own.Status.Network})
	c.pod("guest", "second", "n1", nil)
	c.settle()
	end := func(namespace, pod string) {
		c.remove(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}})
		c.remove(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	}
	end("owner", "first")
	c.settle()
	if _, led, err := sdn.First(c.sdn.FindRouters(t.Context(), sdn.RouterQuery{Subnets: []sdn.ID{sdn.ID(own.Status.Subnets[0].ID)}})); err != nil || !led {
		t.Fatalf("the network of a namespace that is there has lost its leg of the router (%v)", err)
	}
	if c.bound()["second"] == "" {
		t.Fatal("its pod has lost its port")
	}
	c.check()

	guest := c.networkOf("guest")
	end("guest", "second")
	want := []ctrl.Request{core.Request("", own.Name)}
	if told := c.enqueued("networks", change{old: guest}); !slices.Contains(told, want[0]) {
		t.Errorf("when the last namespace goes %v are looked at, want %v", told, want)
	}
	c.settle()
	c.check()
	if _, err := c.sdn.Network(t.Context(), sdn.ID(own.Status.Network)); !sdn.IsNotFound(err) {
		t.Errorf("the network stays: %v", err)
	}
}

// The same where no pool is left on the network whose end could tell: the end of the last namespace itself does.
func TestEmptyNetworkOfANamespaceThatGoes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, func(cfg *Config) { cfg.Pool = pool.Policy{Batch: 1, TTL: time.Minute} })
	c.addNode("n1", nil)
	c.namespace("owner", nil)
	first := c.pod("owner", "first", "n1", nil)
	c.settle()
	own := c.networkOf("owner")
	c.namespace("guest", map[string]string{v1.AnnotationNetwork: own.Status.Network})
	second := c.pod("guest", "second", "n1", nil)
	c.settle()
	c.remove(first)
	c.remove(second)
	c.settle()
	c.now = c.now.Add(time.Hour)
	c.settle()
	if left := c.pools(); len(left) != 0 {
		t.Fatalf("pools are left: %v", left)
	}
	c.remove(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "owner"}})
	c.settle()
	c.remove(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "guest"}})
	c.settle()
	c.whole()
	if _, err := c.sdn.Network(t.Context(), sdn.ID(own.Status.Network)); !sdn.IsNotFound(err) {
		t.Errorf("the network stays: %v", err)
	}
}

// A KuryrNetwork that somebody deletes goes with the last pod on it, and is made again for a namespace that needs it.
func TestNetworkDeletedByHand(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	c.namespace("blue", nil)
	web := c.pod("blue", "web", "n1", nil)
	c.settle()
	c.remove(c.networkOf("blue"))
	c.pod("blue", "next", "n1", nil)
	c.settle()
	if c.bound()["web"] == "" {
		t.Error("a pod that runs has lost its port")
	}
	c.remove(web)
	c.settle()
	c.whole()
}

// Namespaces that share a network and say different things of its pools: the last by name counts, in whatever order a cache lists them, and nothing is written twice.
func TestPolicyOfASharedNetwork(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.addNode("n1", nil)
	shared := string(c.existing("shared", "10.9.0.0/24"))
	c.namespace("a", map[string]string{v1.AnnotationNetwork: shared, v1.AnnotationPool: "minimum=3,maximum=9"})
	c.namespace("b", map[string]string{v1.AnnotationNetwork: shared, v1.AnnotationPool: "minimum=1"})
	c.pod("a", "pa", "n1", nil)
	c.pod("b", "pb", "n1", nil)
	c.settle()
	backwards := false
	c.raven.Client = interceptor.NewClient(c.raven.Client.(client.WithWatch), interceptor.Funcs{
		List: func(ctx context.Context, w client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			err := w.List(ctx, l, opts...)
			if all, ok := l.(*v1.KuryrNetworkList); ok && backwards {
				slices.Reverse(all.Items)
			}
			return err
		},
	})
	for range 4 {
		c.settle()
		for _, p := range c.pools() {
			if p.Spec.Network == shared && (p.Spec.Minimum != 1 || p.Spec.Maximum != 9) {
				t.Errorf("minimum %d, maximum %d; backwards: %v", p.Spec.Minimum, p.Spec.Maximum, backwards)
			}
		}
		backwards = !backwards
	}
}
