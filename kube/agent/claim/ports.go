package claim

import (
	"container/list"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kuryr/kuryr/kube/agent"
	"github.com/kuryr/kuryr/kube/agent/wiring"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

type port struct {
	object *v1.KuryrPort
	wiring agent.Wiring
	broken error         // the spec cannot be plugged
	unsure bool          // a write failed, so the API may have a newer version than object
	in     *pool         // the pool whose free ports it is among, even if its spec names another; nil is none
	place  *list.Element // in that pool's list
}

// pool exists while it is in the API or has free ports.
type pool struct {
	name   string
	object *v1.KuryrPortPool // nil until it is seen
	free   *list.List        // of *port, the longest free first, so that addresses rest between two pods
}

// setPort takes in a KuryrPort, and returns the topic whose waiters may get it. A version older than
// the known one is ignored.
func (x *index) setPort(o *v1.KuryrPort) topic {
	if o.Spec.Node != x.node {
		return topic{}
	}
	p := x.ports[o.Name]
	if p == nil {
		p = &port{}
		x.ports[o.Name] = p
	} else if o.UID == p.object.UID {
		order, err := resourceversion.CompareResourceVersion(o.ResourceVersion, p.object.ResourceVersion)
		if err == nil && order <= 0 {
			return topic{}
		}
	}
	if p.object != nil && p.object.Spec.Dedicated != o.Spec.Dedicated {
		out(x.dedicated, p.object.Spec.Dedicated, o.Name)
	}
	p.object, p.unsure = o, false
	p.wiring, p.broken = wiring.Of(&o.Spec)
	if o.Spec.Dedicated != "" {
		in(x.dedicated, o.Spec.Dedicated)[o.Name] = p
	}
	return x.updateFree(p)
}

func (x *index) dropPort(name string) {
	p := x.ports[name]
	if p == nil {
		return
	}
	delete(x.ports, name)
	out(x.dedicated, p.object.Spec.Dedicated, name)
	x.updateFree(p)
}

// updateFree puts a port among the free ones of its pool or removes it, and returns the topic whose waiters
// may get it.
func (x *index) updateFree(p *port) topic {
	s := &p.object.Spec
	free := x.ports[p.object.Name] == p && x.free(p)
	shared := free && s.Dedicated == ""
	var to *pool
	if shared {
		to = x.pool(s.Pool)
	}
	if from := p.in; from != nil && from != to {
		from.free.Remove(p.place)
		p.in, p.place = nil, nil
		x.tidy(from)
	}
	switch {
	case shared && p.in == nil:
		p.in, p.place = to, to.free.PushBack(p)
		return topic{ofPorts, s.Pool}
	case free && !shared:
		return topic{ofOwn, string(s.Dedicated)}
	}
	return topic{}
}

// free reports whether the port may be allocated. A released port is free before the API says so.
func (x *index) free(p *port) bool {
	o := p.object
	if p.broken != nil || o.Spec.ForNode || x.holders[o.Name] != nil || o.DeletionTimestamp != nil {
		return false
	}
	switch labelOf(o) {
	case v1.PortAvailable:
		return true
	case v1.PortBound:
		return len(x.released[o.Name]) > 0 && !x.unwanted(p)
	}
	return false
}

// unwanted reports whether a released port must not be used again.
func (x *index) unwanted(p *port) bool {
	o := p.object
	if o.DeletionTimestamp != nil || labelOf(o) == v1.PortDeleting {
		return true
	}
	if o.Spec.Dedicated == "" {
		return false
	}
	// The port made for one pod waits for the pod's next sandbox.
	pod := x.uids[o.Spec.Dedicated]
	return pod == nil || pod.ended || pod.leaving
}

func labelOf(o *v1.KuryrPort) v1.PortStatus { return v1.PortStatus(o.Labels[v1.LabelPortStatus]) }

// pool returns a pool, made if it is missing.
func (x *index) pool(name string) *pool {
	if x.pools[name] == nil {
		x.pools[name] = &pool{name: name, free: list.New()}
	}
	return x.pools[name]
}

// empty reports whether a pool has no free port.
func (x *index) empty(name string) bool {
	p := x.pools[name]
	return p == nil || p.free.Len() == 0
}

// tidy forgets a pool that is not in the API and has no free ports.
func (x *index) tidy(p *pool) {
	if p.object == nil && p.free.Len() == 0 {
		delete(x.pools, p.name)
	}
}

func (x *index) setPool(o *v1.KuryrPortPool) topic {
	if o.Spec.Node != x.node {
		return topic{}
	}
	x.pool(o.Name).object = o
	return topic{ofPorts, o.Name}
}

func (x *index) dropPool(name string) {
	if p := x.pools[name]; p != nil {
		p.object = nil
		x.tidy(p)
	}
}
