package raven

import (
	"context"
	"slices"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	if told, err := c.raven.heldUp(t.Context(), guest); err != nil || len(told) != 1 || told[0].Name != own.Name {
		t.Errorf("when the last namespace goes %v are looked at, want %s; %v", told, own.Name, err)
	}
	c.settle()
	c.check()
	if _, err := c.sdn.Network(t.Context(), sdn.ID(own.Status.Network)); !sdn.IsNotFound(err) {
		t.Errorf("the network stays: %v", err)
	}
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
	c.raven.api = interceptor.NewClient(c.raven.api.(client.WithWatch), interceptor.Funcs{
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
