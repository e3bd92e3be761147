package claim

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/node/feed"
)

// feeds are all that the index is filled by.
func (c *Claimant) feeds() []*feed.Feed {
	own := client.MatchingLabels{v1.LabelNode: v1.NodeLabel(c.Node)}
	of := func(list client.ObjectList, selector client.ListOption, e feed.Events) *feed.Feed {
		return feed.New(feed.Config{Client: c.Client, List: list, Selector: selector, Events: e, Log: c.Log, Backoff: c.backoff})
	}
	return []*feed.Feed{
		of(&v1.KuryrPortList{}, own, c.portEvents()),
		of(&v1.KuryrPortPoolList{}, own, c.poolEvents()),
		// Of all namespaces: which of them have pods here changes with each pod, and no selector of the API server's says "one of these". A watch for each would be more of them than there are nodes.
		of(&v1.KuryrNetworkList{}, nil, c.networkEvents()),
		of(&corev1.NamespaceList{}, nil, c.namespaceEvents()),
		of(&corev1.PodList{}, client.MatchingFields{"spec.nodeName": c.Node}, c.podEvents()),
		of(&corev1.NodeList{}, client.MatchingFields{"metadata.name": c.Node}, c.nodeEvents()),
	}
}

func (c *Claimant) portEvents() feed.Events {
	return feed.Events{
		Set: func(o client.Object) { c.seePort(o.(*v1.KuryrPort)) },
		Drop: func(n types.NamespacedName) {
			c.mu.Lock()
			c.index.dropPort(n.Name)
			c.mu.Unlock()
			c.queue.Add(task{port: n.Name})
		},
	}
}

// seePort takes in a port, from a watch or from the answer to a write.
func (c *Claimant) seePort(o *v1.KuryrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offer(c.index.setPort(o))
	if p := c.index.ports[o.Name]; p != nil && c.index.differs(p) {
		c.queue.Add(task{port: o.Name})
	}
}

func (c *Claimant) poolEvents() feed.Events {
	return feed.Events{
		Set: func(o client.Object) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.offer(c.index.setPool(o.(*v1.KuryrPortPool)))
		},
		Drop: func(n types.NamespacedName) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.index.dropPool(n.Name)
		},
	}
}

func (c *Claimant) networkEvents() feed.Events {
	of := map[string]string{} // namespaces by the names of their KuryrNetworks
	return feed.Events{
		Set: func(o client.Object) {
			n := o.(*v1.KuryrNetwork)
			of[n.Name] = n.Spec.Namespace
			c.mu.Lock()
			defer c.mu.Unlock()
			c.reconsider(c.index.setNetwork(n))
		},
		Drop: func(n types.NamespacedName) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.reconsider(c.index.dropNetwork(of[n.Name], n.Name))
			delete(of, n.Name)
		},
	}
}

func (c *Claimant) namespaceEvents() feed.Events {
	return feed.Events{
		Set: func(o client.Object) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.reconsider(c.index.setNamespace(o.(*corev1.Namespace)))
		},
		Drop: func(n types.NamespacedName) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.reconsider(c.index.dropNamespace(n.Name))
		},
	}
}

func (c *Claimant) podEvents() feed.Events {
	return feed.Events{
		Set: func(o client.Object) {
			c.mu.Lock()
			defer c.mu.Unlock()
			pod := o.(*corev1.Pod)
			t, gone := c.index.setPod(pod)
			c.offer(t)
			c.offer(topic{ofOwn, string(pod.UID)}) // should it wish for nothing any more
			name, now := client.ObjectKeyFromObject(pod), c.index.uids[pod.UID]
			if gone != nil {
				c.podGone(gone.uid)
				// Who says no UID, or that of a static pod whose mirror alone was made anew, means the one that is there.
				c.waiting.forsake(name, func(uid types.UID) bool { return gone.isCalled(uid) && (now == nil || !now.isCalled(uid)) })
			}
			if now != nil && now.leaving {
				c.waiting.forsake(name, func(uid types.UID) bool { return uid == "" || now.isCalled(uid) })
			}
			if c.index.misannotated(now) {
				c.queue.Add(task{pod: name})
			}
		},
		Drop: func(n types.NamespacedName) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if gone := c.index.dropPod(n); gone != nil {
				c.podGone(gone.uid)
				c.waiting.forsake(n, func(uid types.UID) bool { return uid == "" || gone.isCalled(uid) })
			}
		},
	}
}

// podGone looks after what a pod had that is not there any more. The lock is held.
func (c *Claimant) podGone(uid types.UID) {
	for _, a := range c.index.ofPod[uid] {
		c.queue.Add(task{gone: a.Key()})
	}
}

func (c *Claimant) nodeEvents() feed.Events {
	set := func(raven bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.index.raven == raven {
			return
		}
		c.index.raven = raven
		for name := range c.index.ports {
			c.queue.Add(task{port: name})
		}
		c.reconsider(slices.Collect(maps.Keys(c.waiting))) // nobody waits for what is another's to give
	}
	return feed.Events{
		Set: func(o client.Object) {
			if o.GetName() != c.Node {
				return
			}
			set(o.GetLabels()[v1.LabelClaimant] == v1.ClaimantRaven)
			if c.Own != nil {
				c.Own(o.(*corev1.Node))
			}
		},
		Drop: func(types.NamespacedName) {},
	}
}
