package claim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/kuryr/kuryr/kube/agent"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

// View is what an Allocator knows of its node, for people.
type View struct {
	Ports   []PortView // by pod; those without one last
	Pools   []PoolView // by name
	Waiting int        // attachments that wait for a port, a pod or a network
}

// PortView is a port of the node: one that the API knows, or that the table has for a pod.
type PortView struct {
	Wiring agent.Wiring
	Name   string
	Pool   string
	Status v1.PortStatus     // in the API; "" if there is no KuryrPort
	Holder *agent.Attachment // by the table; nil if there is none
	UID    string            // of the holder's pod
	Since  time.Time
	Wrong  string // how API and table differ; "" if they agree
}

// PoolView is how full a pool is.
type PoolView struct {
	Name, Network        string
	Ports, Free, Waiting int
	Minimum, Maximum     int    // 0: no maximum
	Why                  string // why Raven does not fill it; "" if it does
}

// View describes the node's ports and pools. It makes no call.
func (c *Allocator) View() View {
	c.mu.Lock()
	defer c.mu.Unlock()
	var v View
	sizes := map[string]int{}
	for name, p := range c.index.ports {
		v.Ports = append(v.Ports, c.index.portView(name, p))
		sizes[p.object.Spec.Pool]++
	}
	for name, a := range c.index.holders {
		if c.index.ports[name] == nil {
			v.Ports = append(v.Ports, PortView{
				Wiring: a.Port.Wiring, Name: name, Pool: a.Port.Pool, Wrong: "it has no KuryrPort any more",
			}.of(a))
		}
	}
	slices.SortFunc(v.Ports, func(a, b PortView) int { return cmp.Compare(a.order(), b.order()) })
	for _, l := range c.waiting {
		v.Waiting += l.Len()
	}
	for _, name := range slices.Sorted(maps.Keys(c.index.pools)) {
		if p := c.index.pools[name]; p.object != nil {
			one := PoolView{
				Name: name, Network: cmp.Or(p.object.Spec.NetworkName, p.object.Spec.Network),
				Ports: sizes[name], Free: p.free.Len(),
				Minimum: p.object.Spec.Minimum, Maximum: p.object.Spec.Maximum,
			}
			if l := c.waiting[topic{ofPorts, name}]; l != nil {
				one.Waiting = l.Len()
			}
			if f := meta.FindStatusCondition(p.object.Status.Conditions, v1.ConditionReady); f != nil && f.Status == "False" {
				one.Why = f.Message
			}
			v.Pools = append(v.Pools, one)
		}
	}
	return v
}

func (p PortView) order() string {
	if p.Holder == nil || p.Holder.Pod == nil {
		return "~" + p.Name
	}
	return p.Holder.Pod.Namespace + "/" + p.Holder.Pod.Name + "/" + p.Name
}

func (p PortView) of(a *attachment) PortView {
	holder := a.Attachment
	p.Holder, p.UID, p.Since = &holder, a.Port.UID, a.Port.Since
	return p
}

func (x *index) portView(name string, p *port) PortView {
	v := PortView{Wiring: p.wiring, Name: name, Pool: p.object.Spec.Pool, Status: labelOf(p.object)}
	if a := x.holders[name]; a != nil {
		v.Wiring = a.Port.Wiring
		v = v.of(a)
	}
	want, _, ok := x.want(p)
	switch {
	case p.broken != nil:
		v.Wrong = "it cannot be plugged: " + p.broken.Error()
	case x.unknown(p):
		pod := p.object.Status.Pod
		v.Wrong = fmt.Sprintf("the API server has it for the pod %s/%s, the node's table for nobody", pod.Namespace, pod.Name)
	case ok && v.Status != want:
		v.Wrong = fmt.Sprintf("it is labelled %q and should be %q", v.Status, want)
	case ok && x.differs(p):
		v.Wrong = "its status tells of another pod than the node's table"
	}
	return v
}
