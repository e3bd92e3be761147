package claim

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kuryr/kuryr/kube/agent/feed"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

// feeds returns the watches that fill the index.
//
// Those of KuryrNetworks and namespaces are of all namespaces: which of them have pods here changes
// with each pod, and no selector of the API server's says "one of these". A watch of each would
// be more watches than there are nodes.
func (c *Allocator) feeds() []*feed.Feed {
	own := client.MatchingLabels{v1.LabelNode: v1.NodeLabel(c.Node)}
	of := func(list client.ObjectList, selector client.ListOption, e feed.Events) *feed.Feed {
		return feed.New(feed.Config{
			Client: c.Client, List: list, Selector: selector, Events: e, Log: c.Log, Backoff: c.backoff,
		})
	}
	networks := map[string]string{} // namespaces by the names of their KuryrNetworks
	return []*feed.Feed{
		of(&v1.KuryrPortList{}, own, feed.Events{
			Set: func(o client.Object) { c.seePort(o.(*v1.KuryrPort)) },
			Drop: c.locked(func(n types.NamespacedName) {
				c.index.dropPort(n.Name)
				c.queue.Add(task{port: n.Name})
			}),
		}),
		of(&v1.KuryrPortPoolList{}, own, feed.Events{
			Set:  c.lockedSet(func(o client.Object) { c.offer(c.index.setPool(o.(*v1.KuryrPortPool))) }),
			Drop: c.locked(func(n types.NamespacedName) { c.index.dropPool(n.Name) }),
		}),
		of(&v1.KuryrNetworkList{}, nil, feed.Events{
			Set: c.lockedSet(func(o client.Object) {
				n := o.(*v1.KuryrNetwork)
				networks[n.Name] = n.Spec.Namespace
				c.reconsider(c.index.setNetwork(n))
			}),
			Drop: c.locked(func(n types.NamespacedName) {
				c.reconsider(c.index.dropNetwork(networks[n.Name], n.Name))
				delete(networks, n.Name)
			}),
		}),
		of(&corev1.NamespaceList{}, nil, feed.Events{
			Set:  c.lockedSet(func(o client.Object) { c.reconsider(c.index.setNamespace(o.(*corev1.Namespace))) }),
			Drop: c.locked(func(n types.NamespacedName) { c.reconsider(c.index.dropNamespace(n.Name)) }),
		}),
		of(&corev1.PodList{}, client.MatchingFields{"spec.nodeName": c.Node}, feed.Events{
			Set:  c.lockedSet(func(o client.Object) { c.setPod(o.(*corev1.Pod)) }),
			Drop: c.locked(c.dropPod),
		}),
		of(&corev1.NodeList{}, client.MatchingFields{"metadata.name": c.Node}, feed.Events{
			Set:  func(o client.Object) { c.setNode(o.(*corev1.Node)) },
			Drop: func(types.NamespacedName) {},
		}),
	}
}

func (c *Allocator) locked(do func(types.NamespacedName)) func(types.NamespacedName) {
	return func(n types.NamespacedName) {
		c.mu.Lock()
		defer c.mu.Unlock()
		do(n)
	}
}

func (c *Allocator) lockedSet(do func(client.Object)) func(client.Object) {
	return func(o client.Object) {
		c.mu.Lock()
		defer c.mu.Unlock()
		do(o)
	}
}

// seePort takes in a port, from a watch or from the answer to a write.
func (c *Allocator) seePort(o *v1.KuryrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offer(c.index.setPort(o))
	if p := c.index.ports[o.Name]; p != nil && c.index.differs(p) {
		c.queue.Add(task{port: o.Name})
	}
}

// setPod takes in a pod. The lock is held.
func (c *Allocator) setPod(o *corev1.Pod) {
	t, gone := c.index.setPod(o)
	c.offer(t)
	c.offer(topic{ofOwn, string(o.UID)}) // it may no longer ask for a port of its own
	name, now := client.ObjectKeyFromObject(o), c.index.uids[o.UID]
	if gone != nil {
		c.podGone(gone.uid)
		// A waiter without a UID means the pod that exists now, and so does one with the UID of a
		// static pod of which only the mirror was recreated.
		c.waiting.forsake(name, func(uid types.UID) bool {
			return gone.isCalled(uid) && (now == nil || !now.isCalled(uid))
		})
	}
	if now != nil && now.leaving {
		c.waiting.forsake(name, func(uid types.UID) bool { return uid == "" || now.isCalled(uid) })
	}
	if c.index.misannotated(now) {
		c.queue.Add(task{pod: name})
	}
}

// dropPod forgets a pod. The lock is held.
func (c *Allocator) dropPod(n types.NamespacedName) {
	if gone := c.index.dropPod(n); gone != nil {
		c.podGone(gone.uid)
		c.waiting.forsake(n, func(uid types.UID) bool { return uid == "" || gone.isCalled(uid) })
	}
}

// podGone queues the attachments of a pod that is gone. The lock is held.
func (c *Allocator) podGone(uid types.UID) {
	for _, a := range c.index.ofPod[uid] {
		c.queue.Add(task{gone: a.Key()})
	}
}

// setNode takes in the own Node.
func (c *Allocator) setNode(o *corev1.Node) {
	if o.Name != c.Node {
		return
	}
	c.mu.Lock()
	if raven := o.Labels[v1.LabelClaimant] == v1.ClaimantRaven; c.index.raven != raven {
		c.index.raven = raven
		for name := range c.index.ports {
			c.queue.Add(task{port: name})
		}
		c.reconsider(slices.Collect(maps.Keys(c.waiting)))
	}
	c.mu.Unlock()
	if c.Own != nil {
		c.Own(o)
	}
}
