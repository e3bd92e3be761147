package claim

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/kube/agent"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
)

// index is all that is known of the node: what the API has, and which attachments have its ports.
// The node's table has the attachments by key. The index does no input or output and has no
// lock: its user has one.
type index struct {
	node  string
	raven bool // the node is labelled as one whose ports Raven allocates
	// row returns the intent of a row of the node's table.
	row func(key string) (agent.Intent, bool)

	ports     map[string]*port               // by name
	dedicated map[types.UID]map[string]*port // those made for one pod, by its UID
	pools     map[string]*pool               // by name
	pods      map[types.NamespacedName]*pod
	uids      map[types.UID]*pod
	networks  map[string]map[string]network // by namespace and name
	lives     map[string]types.UID          // the UIDs of namespaces, by name

	holders map[string]*attachment // by port's name
	// ofPod has the attachments whose row is stored, by the pod's UID and the port's name.
	ofPod map[types.UID]map[string]*attachment
	// released has, by the port's name, the rows that gave it back. The API may not know yet.
	released map[string]map[reconcile.Object]struct{}
}

func newIndex(name string) *index {
	return &index{
		node: name, row: func(string) (i agent.Intent, ok bool) { return i, false },
		ports: map[string]*port{}, dedicated: map[types.UID]map[string]*port{}, pools: map[string]*pool{},
		pods: map[types.NamespacedName]*pod{}, uids: map[types.UID]*pod{},
		networks: map[string]map[string]network{}, lives: map[string]types.UID{},
		holders: map[string]*attachment{}, ofPod: map[types.UID]map[string]*attachment{},
		released: map[string]map[reconcile.Object]struct{}{},
	}
}

// in returns the map within a map, made if it is missing.
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

// attachment is an attachment that has a port: its Port is never nil.
type attachment struct {
	agent.Intent
	stored  bool        // its row is stored
	leaving bool        // its interface is being unplugged
	from    *attachment // the earlier one whose port it takes over, until that one's row is deleted
}

func (a *attachment) port() string   { return string(a.Port.Wiring.Port.ID) }
func (a *attachment) uid() types.UID { return types.UID(a.Port.UID) }

func (a *attachment) podName() types.NamespacedName {
	if a.Pod == nil {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: a.Pod.Namespace, Name: a.Pod.Name}
}

// isOf reports whether a container runtime that names this UID, or "" if it names none, means the
// attachment's pod.
func (a *attachment) isOf(uid string) bool {
	return uid == "" || uid == a.Port.UID || a.Pod != nil && uid == a.Pod.UID
}

// after reports whether this is the newer of two attachments of one port. An adopted one is older
// than all others.
func (a *attachment) after(other *attachment) bool {
	if a.Port.Adopted != other.Port.Adopted {
		return other.Port.Adopted
	}
	return a.Port.Since.After(other.Port.Since)
}

// at returns the attachment that has a port by its stored row; nil is none.
func (x *index) at(key string) *attachment {
	i, ok := x.row(key)
	if !ok || i.Port == nil {
		return nil
	}
	a := x.holders[string(i.Port.Wiring.Port.ID)]
	switch {
	case a != nil && a.stored && a.Key() == key:
		return a
	case a != nil && a.from != nil && a.from.Key() == key:
		return a.from
	}
	return nil
}

// find returns the attachment that a container runtime means. If Raven allocated its port, the API
// does not have its container.
func (x *index) find(a agent.Attachment) *attachment {
	has := x.at(a.Key())
	if a.Pod == nil {
		return has
	}
	if has == nil {
		uid := types.UID(a.Pod.UID)
		if pod, err := x.podOf(a); err == nil {
			uid = pod.uid
		}
		has = x.at(agent.Attachment{Container: unnamed + string(uid), Interface: a.Interface}.Key())
	}
	if has == nil || !has.isOf(a.Pod.UID) {
		return nil
	}
	return has
}

// holder returns the attachment that has the intent's port by that intent; nil is none.
func (x *index) holder(i agent.Intent) *attachment {
	if i.Port == nil {
		return nil
	}
	a := x.holders[string(i.Port.Wiring.Port.ID)]
	if a == nil || a.Key() != i.Key() {
		return nil
	}
	return a
}

// predecessor returns the attachment of the pod's interface that only the API knew of. Its
// container is gone, because a pod has one sandbox at a time.
func (x *index) predecessor(a agent.Attachment) *attachment {
	pod, err := x.podOf(a)
	if err != nil || x.mayClaim() != nil {
		return nil
	}
	for _, old := range x.ofPod[pod.uid] {
		if old.Port.Adopted && old.Interface == a.Interface && !old.leaving && x.holders[old.port()] == old {
			return old
		}
	}
	return nil
}

// wiring returns what the API tells of an attachment's port now, or told when it was allocated.
func (x *index) wiring(a *attachment) agent.Wiring {
	if p := x.ports[a.port()]; p != nil && p.broken == nil {
		return p.wiring
	}
	return a.Port.Wiring
}

// hold records that the attachment has its port.
func (x *index) hold(a *attachment) {
	x.holders[a.port()] = a
	x.updateFreeOf(a.port())
}

// attach records that the row of an attachment that has its port is stored.
func (x *index) attach(a *attachment) {
	a.stored = true
	in(x.ofPod, a.uid())[a.port()] = a
}

// detach records that the attachment no longer has its port. It returns the topic whose waiters may
// get it.
func (x *index) detach(a *attachment) topic {
	if x.ofPod[a.uid()][a.port()] == a {
		out(x.ofPod, a.uid(), a.port())
	}
	if x.holders[a.port()] == a {
		delete(x.holders, a.port())
	}
	return x.updateFreeOf(a.port())
}

func (x *index) updateFreeOf(name string) topic {
	if p := x.ports[name]; p != nil {
		return x.updateFree(p)
	}
	return topic{}
}

// unknown reports whether the API has a pod for the port that the table does not have.
func (x *index) unknown(p *port) bool {
	o := p.object
	if x.raven || labelOf(o) != v1.PortBound || o.Status.Pod == nil ||
		x.holders[o.Name] != nil || len(x.released[o.Name]) > 0 {
		return false
	}
	pod := x.uids[o.Status.Pod.UID]
	key := agent.Attachment{Container: containerOf(o.Status.Pod), Interface: o.Status.Pod.Interface}.Key()
	return pod != nil && !pod.ended && x.at(key) == nil
}

// unnamed begins what stands for a container that the API does not have. No container's id does.
const unnamed = "pod:"

// containerOf returns the container in a port's status. Raven, which knows none, names the pod only.
func containerOf(p *v1.PortPod) string {
	if p.Container == "" {
		return unnamed + string(p.UID)
	}
	return p.Container
}

// want returns what the API should say of a port; not ok for what only Raven may change.
func (x *index) want(p *port) (status v1.PortStatus, of *v1.PortPod, ok bool) {
	o := p.object
	if a := x.holders[o.Name]; a != nil {
		return v1.PortBound, a.portPod(), a.stored
	}
	switch label := labelOf(o); {
	case x.raven:
		return "", nil, false
	case label == v1.PortDeleting, o.DeletionTimestamp != nil, label == v1.PortBound && x.unwanted(p):
		return v1.PortDeleting, nil, true // this lets Raven delete the port
	case label == v1.PortBound, label == v1.PortAvailable:
		return v1.PortAvailable, nil, true
	}
	return "", nil, false
}

func (a *attachment) portPod() *v1.PortPod {
	pod := a.podName()
	return &v1.PortPod{
		Namespace: pod.Namespace, Name: pod.Name, UID: a.uid(), Interface: a.Interface,
		Container: strings.TrimPrefix(a.Container, unnamed+a.Port.UID), Since: metav1.NewTime(a.Port.Since),
	}
}
