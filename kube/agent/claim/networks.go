package claim

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

// network is what is kept of a KuryrNetwork. Every node has those of all namespaces.
type network struct {
	namespace types.UID // that it is made for
	since     int64     // when it was made, in seconds
	pool      string    // the name of the pool that pods get ports of; "" if it does not exist yet
	why       string    // why it does not exist yet, by Raven
}

func (x *index) setNetwork(o *v1.KuryrNetwork) []topic {
	if o.DeletionTimestamp != nil {
		return x.dropNetwork(o.Spec.Namespace, o.Name)
	}
	n := network{namespace: o.Spec.UID, since: o.CreationTimestamp.Unix()}
	if o.Status.Network != "" && len(o.Status.Subnets) > 0 {
		n.pool = v1.PoolName(v1.PoolKey(o, x.node))
	} else if c := meta.FindStatusCondition(o.Status.Conditions, v1.ConditionReady); c != nil {
		n.why = c.Message
	}
	return x.changing(o.Spec.Namespace, func() { in(x.networks, o.Spec.Namespace)[o.Name] = n })
}

func (x *index) dropNetwork(namespace, name string) []topic {
	return x.changing(namespace, func() { out(x.networks, namespace, name) })
}

// setNamespace takes in a namespace. One that is being deleted gets no new pods, and another may have
// its name before this node hears of it.
func (x *index) setNamespace(o *corev1.Namespace) []topic {
	if o.DeletionTimestamp != nil {
		return x.dropNamespace(o.Name)
	}
	return x.changing(o.Name, func() { x.lives[o.Name] = o.UID })
}

func (x *index) dropNamespace(name string) []topic {
	return x.changing(name, func() { delete(x.lives, name) })
}

// changing returns the topics to reconsider after a change that may concern a namespace's network: the
// network, and the ports of the pool that its pods had.
func (x *index) changing(namespace string, change func()) []topic {
	was, _ := x.network(namespace)
	change()
	is, _ := x.network(namespace)
	switch {
	case was == is:
		return nil
	case was.pool != "":
		return []topic{{ofNetwork, namespace}, {ofPorts, was.pool}}
	}
	return []topic{{ofNetwork, namespace}}
}

// network returns the network of a namespace, the oldest if there are several. That of an earlier
// namespace of the name does not count: it has another project and other security groups.
func (x *index) network(namespace string) (best network, ok bool) {
	name := ""
	for other, n := range x.networks[namespace] {
		if n.namespace == x.lives[namespace] && (!ok || n.since < best.since || n.since == best.since && other < name) {
			best, name, ok = n, other, true
		}
	}
	return best, ok
}
