package claim

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/internal/reconcile"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/node"
)

// index is all that is known of the node, by what it is asked for. It does no input nor output and has no lock: its user has one.
type index struct {
	node  string
	raven bool // the node is labelled as one whose ports Raven claims

	ports     map[string]*port                         // by name
	dedicated map[types.UID]map[string]*port           // those made for one pod, by its UID
	pools     map[string]*pool                         // by name
	pods      map[types.NamespacedName]*pod            //
	uids      map[types.UID]*pod                       //
	networks  map[string]map[string]network            // by namespace and name
	lives     map[string]types.UID                     // the UIDs of namespaces, by name
	attached  map[key]*attachment                      // who has a port, written down
	ofPod     map[types.UID]map[key]*attachment        // the same by pod
	adopted   map[interfaceOf]*attachment              // those whose container was not seen on this boot
	holders   map[string]*attachment                   // by port's name; some not yet written down
	owed      map[string]map[reconcile.Object]struct{} // by port's name: rows of those that gave it back, which the API may not know yet
}

// interfaceOf is an interface of a pod, whichever of the pod's sandboxes it is in.
type interfaceOf struct {
	uid   types.UID
	iface string
}

// attachment is a record in memory.
type attachment struct {
	record
	wiring  node.Wiring
	written bool        // its row is stored
	leaving bool        // its interface is being unplugged
	from    *attachment // the adopted one whose port it takes over, until its row is deleted
}

func newIndex(node string) *index {
	return &index{
		node:  node,
		ports: map[string]*port{}, dedicated: map[types.UID]map[string]*port{},
		pools: map[string]*pool{},
		pods:  map[types.NamespacedName]*pod{}, uids: map[types.UID]*pod{},
		networks: map[string]map[string]network{}, lives: map[string]types.UID{},
		attached: map[key]*attachment{}, ofPod: map[types.UID]map[key]*attachment{}, adopted: map[interfaceOf]*attachment{},
		holders: map[string]*attachment{}, owed: map[string]map[reconcile.Object]struct{}{},
	}
}

// in is the map within a map, made where there is none.
func in[K, L comparable, V any](m map[K]map[L]V, k K) map[L]V {
	if m[k] == nil {
		m[k] = map[L]V{}
	}
	return m[k]
}

// out removes an element of a map within a map.
func out[K, L comparable, V any](m map[K]map[L]V, k K, l L) {
	if delete(m[k], l); len(m[k]) == 0 {
		delete(m, k)
	}
}

// hold says that the attachment has its port. It is not yet written down.
func (x *index) hold(a *attachment) {
	x.holders[a.Port] = a
	x.resettle(a.Port)
}

// attach says that what holds a port is written down.
func (x *index) attach(a *attachment) {
	a.written = true
	k := keyOf(a.Attachment)
	x.attached[k] = a
	in(x.ofPod, a.UID)[k] = a
	if a.Adopted {
		x.adopted[interfaceOf{a.UID, k.iface}] = a
	}
}

// detach says that the attachment has its port no longer.
func (x *index) detach(a *attachment) topic {
	k := keyOf(a.Attachment)
	if x.attached[k] == a {
		delete(x.attached, k)
		out(x.ofPod, a.UID, k)
	}
	x.unadopt(a)
	if x.holders[a.Port] == a {
		delete(x.holders, a.Port)
	}
	return x.resettle(a.Port)
}

// unadopt says that the attachment's container is known, or gone.
func (x *index) unadopt(a *attachment) {
	if of := (interfaceOf{a.UID, a.Attachment.Interface}); x.adopted[of] == a {
		delete(x.adopted, of)
	}
}

func (x *index) resettle(name string) topic {
	if p := x.ports[name]; p != nil {
		return x.settle(p)
	}
	return topic{}
}

// unknown reports whether the API has a pod for the port that the table does not have.
func (x *index) unknown(p *port) bool {
	o := p.object
	if x.raven || labelOf(o) != v1.PortBound || o.Status.Pod == nil || x.holders[o.Name] != nil || len(x.owed[o.Name]) > 0 {
		return false
	}
	has := x.attached[key{containerOf(o.Status.Pod), o.Status.Pod.Interface}]
	pod := x.uids[o.Status.Pod.UID]
	return has == nil && pod != nil && !pod.ended
}

// containerOf is the container that a port's status tells of. Where Raven claimed the port nobody knew it, and it goes by its pod.
func containerOf(p *v1.PortPod) string {
	if p.Container == "" {
		return unnamed + string(p.UID)
	}
	return p.Container
}

// unnamed begins what stands for a container that nobody knew; no container's id does.
const unnamed = "pod:"

// find is what has a port for the attachment, also where Raven claimed it and did not know the container.
func (x *index) find(a node.Attachment) *attachment {
	if has := x.attached[keyOf(a)]; has != nil || a.Pod == nil || len(x.adopted) == 0 {
		return has
	}
	pod, err := x.podOf(a)
	uid := types.UID(a.Pod.UID)
	if err == nil {
		uid = pod.uid
	}
	return x.attached[key{unnamed + string(uid), a.Interface}]
}

// want is what the API is to say of a port; not ok for what is Raven's to say.
func (x *index) want(p *port) (status v1.PortStatus, of *v1.PortPod, ok bool) {
	o := p.object
	if a := x.holders[o.Name]; a != nil {
		return v1.PortBound, a.portPod(), a.written
	}
	switch label := labelOf(o); {
	case x.raven:
		return "", nil, false
	case label == v1.PortDeleting, o.DeletionTimestamp != nil, label == v1.PortBound && x.unwanted(p):
		return v1.PortDeleting, nil, true // the answer to whoever gives the port up
	case label == v1.PortBound, label == v1.PortAvailable:
		return v1.PortAvailable, nil, true
	}
	return "", nil, false
}

func (a *attachment) portPod() *v1.PortPod {
	pp := &v1.PortPod{
		UID: a.UID, Container: strings.TrimPrefix(a.Attachment.Container, unnamed+string(a.UID)), Interface: a.Attachment.Interface, Since: metav1.NewTime(a.Since),
	}
	if a.Attachment.Pod != nil {
		pp.Namespace, pp.Name = a.Attachment.Pod.Namespace, a.Attachment.Pod.Name
	}
	return pp
}
