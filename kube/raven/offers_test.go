package raven

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// reading counts the objects that Raven is given while it does something, as its cache gives them: no more than it asks for.
func (c *cluster) reading(do func()) (n int) {
	was := c.raven.Client
	defer func() { c.raven.Client = was }()
	c.raven.Client = interceptor.NewClient(was.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, w client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			n++
			return w.Get(ctx, key, o, opts...)
		},
		List: func(ctx context.Context, w client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
			err := w.List(ctx, l, opts...)
			var of client.ListOptions
			of.ApplyOptions(opts)
			if networks, is := l.(*v1.KuryrNetworkList); is {
				if of.Limit > 0 && len(networks.Items) > int(of.Limit) {
					networks.Items = networks.Items[:of.Limit]
				}
				n += len(networks.Items)
			}
			return err
		},
	})
	do()
	return n
}

// told are the pools that the watch of KuryrNetworks has looked at for a change.
func (c *cluster) told(old, is *v1.KuryrNetwork) []string {
	c.t.Helper()
	c.tellAll()
	q := workqueue.NewTypedRateLimitingQueue(c.raven.options().RateLimiter)
	defer q.ShutDown()
	for _, r := range c.raven.registrations() {
		for _, w := range r.Watches {
			if _, ours := w.Of.(*v1.KuryrNetwork); r.Name != "pools" || !ours {
				continue
			}
			switch {
			case old == nil:
				w.Handler.Create(c.t.Context(), event.CreateEvent{Object: is}, q)
			case is == nil:
				w.Handler.Delete(c.t.Context(), event.DeleteEvent{Object: old}, q)
			default:
				w.Handler.Update(c.t.Context(), event.UpdateEvent{ObjectOld: old, ObjectNew: is}, q)
			}
		}
	}
	all := map[string]bool{}
	for q.Len() > 0 {
		one, _ := q.Get()
		all[one.Name] = true
		q.Done(one)
	}
	return slices.Sorted(maps.Keys(all))
}

// shared makes many namespaces on one network, the first of which has a pod on each of four nodes.
func shared(t *testing.T, namespaces int) *cluster {
	t.Helper()
	c := newCluster(t, nil)
	network := c.existing("shared", "10.9.0.0/20")
	c.cfg.Network = string(network)
	c.start()
	for i := range namespaces {
		c.namespace(fmt.Sprint("ns", i), nil)
		c.pod(fmt.Sprint("ns", i), "p", "n0", nil)
	}
	for i := range 4 {
		c.addNode(fmt.Sprint("n", i), nil)
		if i > 0 {
			c.pod("ns0", fmt.Sprint("more", i), fmt.Sprint("n", i), nil)
		}
	}
	c.settle()
	return c
}

// A pool that somebody has made by a name of his own is nobody's, whatever it says.
func TestPoolByAnotherName(t *testing.T) {
	t.Parallel()
	c := shared(t, 1)
	twin := &v1.KuryrPortPool{Spec: v1.PoolKey(c.networkOf("ns0"), "n1")}
	twin.Name, twin.UID, twin.Finalizers, twin.Spec.Minimum, twin.Spec.Batch = "twin", c.uid(), []string{v1.Finalizer}, 2, 2
	c.must(c.api.Create(t.Context(), twin))
	c.settle()
	for _, p := range c.ports() {
		if p.Spec.Pool == twin.Name {
			t.Errorf("it has port %s", p.Name)
		}
	}
}

// However many namespaces share a network, a look at one of its pools costs the same.
func TestLookAtASharedNetwork(t *testing.T) {
	t.Parallel()
	var costs []int
	for _, namespaces := range []int{2, 12} {
		c := shared(t, namespaces)
		n := c.networkOf("ns0")
		pool := v1.PoolName(v1.PoolKey(n, "n1"))
		costs = append(costs, c.reading(func() {
			if _, err := (pools{c.raven}).Reconcile(t.Context(), core.Request("", pool)); err != nil {
				t.Error(err)
			}
		}))
	}
	if costs[0] != costs[1] || costs[0] == 0 {
		t.Errorf("objects that are read: %d with 2 namespaces, %d with 12", costs[0], costs[1])
	}
}

// A change of one of many networks that are one in the SDN concerns the pools of its namespace's pods, and others where they take something else from it.
func TestChangeOfASharedNetwork(t *testing.T) {
	t.Parallel()
	c := shared(t, 3)
	ready := c.networkOf("ns1")
	one := []string{v1.PoolName(v1.PoolKey(ready, "n0"))}
	var all []string
	for i := range 4 {
		all = append(all, v1.PoolName(v1.PoolKey(ready, fmt.Sprint("n", i))))
	}
	slices.Sort(all)
	with := func(change func(*v1.KuryrNetwork)) *v1.KuryrNetwork {
		n := ready.DeepCopy()
		change(n)
		return n
	}
	now := metav1.Now()
	fresh := with(func(n *v1.KuryrNetwork) { n.Status = v1.KuryrNetworkStatus{} })
	for name, row := range map[string]struct {
		old, is *v1.KuryrNetwork
		want    []string
	}{
		"becomes ready":   {fresh, ready, one},
		"is told late":    {nil, ready, one},
		"another message": {with(func(n *v1.KuryrNetwork) { n.Status.Conditions[0].Message, n.Status.MTU = "x", 9000 }), ready, nil},
		"policy":          {ready, with(func(n *v1.KuryrNetwork) { n.Status.PoolPolicy = "minimum=1" }), all},
		"no policy":       {with(func(n *v1.KuryrNetwork) { n.Status.PoolPolicy = "minimum=1" }), ready, all},
		"goes":            {ready, with(func(n *v1.KuryrNetwork) { n.DeletionTimestamp = &now }), one},
		"is gone":         {ready, nil, one},
	} {
		if got := c.told(row.old, row.is); !slices.Equal(got, row.want) {
			t.Errorf("%s: %d pools are looked at, want %d: %v", name, len(got), len(row.want), got)
		}
	}

	// Other groups for one namespace of them, and then for the last.
	a := c.group("a")
	grouped := func(namespace string) (old, is *v1.KuryrNetwork) {
		old = c.networkOf(namespace)
		is = old.DeepCopy()
		is.Status.SecurityGroups = []string{a}
		c.must(c.api.Status().Update(t.Context(), is))
		return old, is
	}
	other := v1.PoolName(v1.PoolKey(with(func(n *v1.KuryrNetwork) { n.Status.SecurityGroups = []string{a} }), "n0"))
	both := append(slices.Clone(one), other)
	slices.Sort(both)
	if got := c.told(grouped("ns1")); !slices.Equal(got, both) {
		t.Errorf("another's groups change: %v, want %v", got, both)
	}
	grouped("ns2")
	grouped("default")
	if got := c.told(grouped("ns0")); !slices.Equal(slices.DeleteFunc(got, func(p string) bool { return !slices.Contains(all, p) }), all) {
		t.Errorf("the last one's groups change: %v, want all of %v among them", got, all)
	}
}

// What a pool of a shared network is concerned by when it goes: those networks that wait, and the namespaces with pods on its node.
func TestPoolOfASharedNetworkGoes(t *testing.T) {
	t.Parallel()
	c := shared(t, 3)
	pool := &v1.KuryrPortPool{Spec: v1.PoolKey(c.networkOf("ns0"), "n1")}
	placed, err := c.raven.placementsOfPool(t.Context(), pool)
	c.must(err)
	if !slices.Equal(placed, []ctrl.Request{core.Request("ns0", "n1")}) {
		t.Errorf("placements %v", placed)
	}
	if waiting := c.enqueued("networks", change{old: pool}); len(waiting) != 0 {
		t.Errorf("networks %v", waiting)
	}
	c.must(c.api.Delete(t.Context(), c.networkOf("ns1")))
	c.tellAll()
	want := []ctrl.Request{core.Request("", c.networkOf("ns1").Name)}
	if waiting := c.enqueued("networks", change{old: pool}); !slices.Equal(waiting, want) {
		t.Errorf("networks %v, want %v", waiting, want)
	}
}

// Nodes' own ports get a route with the first network of a range, and lose it with the last.
func TestRoutedOnce(t *testing.T) {
	t.Parallel()
	var r routed
	a, b := []netip.Prefix{netip.MustParsePrefix("172.20.0.0/24")}, []netip.Prefix{netip.MustParsePrefix("172.21.0.0/24")}
	for i, row := range []struct {
		was, is []netip.Prefix
		changed bool
	}{{nil, a, true}, {nil, a, false}, {a, a, false}, {a, b, true}, {a, b, true}, {b, nil, false}, {b, nil, true}} {
		if got := r.change(row.was, row.is); got != row.changed {
			t.Errorf("%d: changed %v", i, got)
		}
	}
	if len(r.n) > 0 {
		t.Errorf("%v stay", r.n)
	}
}

// A namespace that says how its pools are to be kept is heard by way of its network; one that makes no sense is told so.
func TestPolicyOfANamespaceChanges(t *testing.T) {
	t.Parallel()
	c := shared(t, 2)
	c.annotate("ns1", map[string]string{v1.AnnotationPool: "minimum=1"})
	c.settle()
	for _, p := range c.pools() {
		if p.Spec.Minimum != 1 {
			t.Errorf("pool %s has a minimum of %d", p.Name, p.Spec.Minimum)
		}
	}
	_, wrong, err := c.raven.policyOf(t.Context(), &c.pools()[0])
	if err != nil || len(wrong) > 0 {
		t.Errorf("%v, %v", wrong, err)
	}
	c.annotate("ns1", map[string]string{v1.AnnotationPool: "minimum=x"})
	c.settle()
	_, wrong, err = c.raven.policyOf(t.Context(), &c.pools()[0])
	if err != nil || len(wrong) != 1 || wrong[0].about.(*corev1.Namespace).Name != "ns1" {
		t.Errorf("%v, %v", wrong, err)
	}
}
