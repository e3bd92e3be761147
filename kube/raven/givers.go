package raven

import (
	"context"
	"errors"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// A pod whose namespace comes to wish other groups, or another network, has its port of another pool than the one that pods of it get theirs from now. It is to get no second one,
// although the pools are worked on at once and the cache may be behind: Raven remembers which pool it gives a pod a port of, and asks the API server itself where it cannot know.

// lookAway finds the pods that have a port of another pool of their node. Those that have one of this need no look. What another node says of them counts for nothing.
func (w *poolWork) lookAway(ctx context.Context) error {
	w.away = map[types.UID]bool{}
	here := map[types.UID]bool{}
	for _, p := range w.ports {
		here[p.Spec.Dedicated] = true
		if p.Status.Pod != nil {
			here[p.Status.Pod.UID] = true
		}
	}
	var unsure []*corev1.Pod
	asked := w.memory.askedFor(w.name)
	still := map[types.UID]bool{}
	for _, pod := range w.pods {
		if here[pod.UID] {
			continue
		}
		ports, err := w.PortsOfPod(ctx, pod.UID)
		if err != nil {
			return err
		}
		giver, doubt := w.memory.giver(pod.UID)
		w.away[pod.UID] = w.anyAway(ports, pod) != nil || giver != "" && giver != w.name
		switch before := pod.CreationTimestamp.Time.Before(w.ground.Began.Add(beganSlack)); {
		case w.away[pod.UID] || !w.claims():
		case doubt, before && !asked[pod.UID]:
			unsure = append(unsure, pod)
			still[pod.UID] = true
		case before:
			still[pod.UID] = true
		}
	}
	if err := w.lookLive(ctx, unsure); err != nil {
		return err
	}
	w.memory.setAskedFor(w.name, still)
	return nil
}

// beganSlack is how far apart the clocks of Raven and of the API server may be.
const beganSlack = 5 * time.Second

// lookLive asks the API server for what the cache may not show: which pods have been given a port by the Raven before this one, or by a write whose answer was lost.
func (w *poolWork) lookLive(ctx context.Context, pods []*corev1.Pod) error {
	if len(pods) == 0 || w.Core.Live == nil {
		return nil
	}
	var ports v1.KuryrPortList
	if err := w.Core.Live.List(ctx, &ports, client.MatchingLabels{v1.LabelNode: v1.NodeLabel(w.node.Name)}); err != nil {
		return err
	}
	for _, pod := range pods {
		w.memory.taken(pod.UID, "")
		if port := w.anyAway(ports.Items, pod); port != nil {
			w.away[pod.UID] = true
			w.memory.give(pod.UID, port.Spec.Pool) // the cache may go on not showing it
		}
	}
	return nil
}

// anyAway gives one of the ports that is the pod's and of another pool of its node; nil is none.
func (w *poolWork) anyAway(ports []v1.KuryrPort, pod *corev1.Pod) *v1.KuryrPort {
	for i := range ports {
		if p := &ports[i]; p.Spec.Pool != w.name && p.Spec.Node == pod.Spec.NodeName && p.Status.Pod != nil && p.Status.Pod.UID == pod.UID {
			return p
		}
	}
	return nil
}

// errTwoPools has a pool that would give a pod a second port look again.
var errTwoPools = errors.New("another pool gives the pod a port at this moment")

// giver is a pool that gives a pod a port, or has.
type giver struct {
	pool  string
	doubt bool // whether it has is not known: the API server has not answered
}

// giver is the pool that gives the pod a port, or has; "" is none that is known of. Where there is a doubt the API server is to be asked.
func (m *memory) giver(uid types.UID) (pool string, doubt bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.givers[uid]
	if g.doubt {
		return "", true
	}
	return g.pool, false
}

// give tells whether the pool may give the pod a port: no other does.
func (m *memory) give(uid types.UID, pool string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.givers[uid]; g.pool != "" && g.pool != pool {
		return false
	}
	if m.givers == nil {
		m.givers = map[types.UID]giver{}
	}
	m.givers[uid] = giver{pool: pool}
	return true
}

// doubt notes that the pool may have given the pod a port.
func (m *memory) doubt(uid types.UID, pool string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.givers[uid].pool == pool {
		m.givers[uid] = giver{pool, true}
	}
}

// taken notes that the pod has no port of the pool any more; of "", that the API server has told of all doubts.
func (m *memory) taken(uid types.UID, pool string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.givers[uid]; g.pool == pool || pool == "" && g.doubt {
		delete(m.givers, uid)
	}
}

// askedFor are the pods without a port of the pool that the API server has been asked for.
func (m *memory) askedFor(name string) map[types.UID]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.of(name).asked
}

func (m *memory) setAskedFor(name string, pods map[types.UID]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(name).asked = pods
}
