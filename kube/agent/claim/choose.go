package claim

import (
	"cmp"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/kube/agent"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// topic is what an attachment waits for. The zero topic is nothing.
type topic struct {
	of   subject
	name string
}

type subject int

const (
	ofPod     subject = iota + 1 // the pod of this namespace and name
	ofOwn                        // the port that is made for the pod with this UID only
	ofNetwork                    // the namespace's network
	ofPorts                      // a free port of the pool of this name
)

// choose returns a free port for the attachment. Without one, the error says why, and the topic what
// to wait for. Without a topic there is nothing to wait for.
func (x *index) choose(a agent.Attachment) (*port, *pod, topic, error) {
	if err := x.mayClaim(); err != nil {
		return nil, nil, topic{}, err
	}
	pod, err := x.podOf(a)
	if err != nil {
		return nil, nil, topic{ofPod, a.Pod.Namespace + "/" + a.Pod.Name}, err
	}
	p, t, err := x.portFor(pod, a.Want)
	if p == nil && pod.leaving {
		return nil, nil, topic{}, errLeaving(pod.name)
	}
	return p, pod, t, err
}

// errLeaving is the answer for a pod that is being deleted.
func errLeaving(pod types.NamespacedName) error {
	return sdn.Conflict(sdn.Stale, "pod", "K8S_POD_NAME", "the pod %s is being deleted, or has been", pod)
}

func (x *index) portFor(pod *pod, want agent.Want) (*port, topic, error) {
	for _, p := range x.dedicated[pod.uid] {
		if x.free(p) && fits(p, want) {
			return p, topic{}, nil
		}
		if p.broken != nil {
			return nil, topic{}, p.broken
		}
	}
	if pod.alone {
		return nil, topic{ofOwn, string(pod.uid)}, sdn.Exhausted(sdn.NoPorts, "port",
			"the port made for the pod %s alone is not there yet", pod.name)
	}
	n, there := x.network(pod.name.Namespace)
	if n.pool == "" {
		why := "it is not there yet"
		if there {
			why = cmp.Or(n.why, "it is being made")
		}
		return nil, topic{ofNetwork, pod.name.Namespace}, sdn.Exhausted(sdn.NoPorts, "network",
			"of the namespace %s: %s", pod.name.Namespace, why)
	}
	name := n.pool
	pool := x.pools[name]
	if pool != nil {
		for e := pool.free.Front(); e != nil; e = e.Next() {
			if p := e.Value.(*port); x.free(p) && fits(p, want) {
				return p, topic{}, nil
			}
		}
	}
	if err := x.taken(want); err != nil {
		return nil, topic{}, err
	}
	why := "the node has no pool of it yet"
	if pool != nil && pool.object != nil {
		why = "the pool " + name + " is empty"
		if c := meta.FindStatusCondition(pool.object.Status.Conditions, v1.ConditionReady); c != nil && c.Message != "" {
			why += ": " + c.Message
		}
	}
	return nil, topic{ofPorts, name}, sdn.Exhausted(sdn.NoPorts, "port",
		"on the network of the namespace %s: %s", pod.name.Namespace, why)
}

// fits reports whether a port has the id, MAC and addresses that the caller asks for.
func fits(p *port, want agent.Want) bool {
	has := p.wiring.Port
	if want.Port != "" && want.Port != has.ID || want.MAC != nil && !slices.Equal(want.MAC, has.MAC) {
		return false
	}
	for _, ip := range want.IPs {
		if !slices.ContainsFunc(has.Addresses, func(a sdn.Address) bool { return is(a.Addr, ip) }) {
			return false
		}
	}
	return true
}

// is reports whether a text, with or without a prefix length, is the address.
func is(a netip.Addr, text string) bool {
	if p, err := netip.ParsePrefix(text); err == nil {
		return p.Addr() == a
	}
	b, err := netip.ParseAddr(text)
	return err == nil && a == b
}

// taken returns why the port that is asked for by id is not available; nil if none is.
func (x *index) taken(want agent.Want) error {
	if want.Port == "" {
		return nil
	}
	p := x.ports[string(want.Port)]
	switch {
	case p == nil:
		return sdn.NotFound("port", want.Port)
	case !x.free(p):
		return sdn.Conflict(sdn.InUse, "port", "id", "the port %s is another's, or on its way out", want.Port)
	}
	return sdn.Conflict(sdn.InUse, "port", "id", "the port %s is not of the pod's network, or made for another", want.Port)
}
