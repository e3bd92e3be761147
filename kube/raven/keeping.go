package raven

import (
	"context"
	"fmt"
	"sync"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// keeping decides which floating IPs stay when their Services go (annotation keep-floatingip). A
// namespace has so many of them at a time as it is granted: those of Services that are there, and
// those that Services have left. The decision is part of the status once it is written.
type keeping struct {
	mu      sync.Mutex
	decided map[types.UID]bool // Services of this process that were let keep theirs
}

// forget drops what was decided of a Service.
func (k *keeping) forget(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.decided, uid)
}

// keeps reports whether the Service's floating IP stays when the Service goes. It asks the SDN
// only where that was not decided before.
func (w *balancing) keeps(ctx context.Context) (bool, error) {
	wish, have, uid := w.lb.Spec.FloatingIP, w.lb.Status.FloatingIP, w.lb.Spec.ServiceUID
	if wish == nil || !wish.Keep {
		w.keeping.forget(uid)
		return false, nil
	}
	if have != nil && have.Keep {
		return true, nil
	}
	w.keeping.mu.Lock()
	defer w.keeping.mu.Unlock()
	if w.keeping.decided[uid] {
		return true, nil
	}
	n, err := w.kept(ctx)
	if err != nil {
		return false, err
	}
	if most := w.grants.KeptFloatingIPs(); n >= most {
		const format = "annotation %skeep-floatingip has no effect: the namespace keeps %d floating IPs, and may keep %d (%s)"
		w.refuse(fmt.Sprintf(format, balancerPrefix, n, max(most, 0), v1.AnnotationAllowKeptFloatingIPs))
		return false, nil
	}
	if w.keeping.decided == nil {
		w.keeping.decided = map[types.UID]bool{}
	}
	w.keeping.decided[uid] = true
	return true, nil
}

// kept counts the floating IPs that stay for other Services of the namespace, and those that
// Services of the namespace which have gone have left. The caller holds the lock.
func (w *balancing) kept(ctx context.Context) (n int, err error) {
	var lbs v1.KuryrLoadBalancerList
	if err := w.Client.List(ctx, &lbs, client.InNamespace(w.lb.Namespace)); err != nil {
		return 0, err
	}
	there := map[types.UID]bool{w.lb.Spec.ServiceUID: true}
	for i := range lbs.Items {
		uid, f := lbs.Items[i].Spec.ServiceUID, lbs.Items[i].Status.FloatingIP
		if !there[uid] && (w.keeping.decided[uid] || f != nil && f.Keep) {
			n++
		}
		there[uid] = true
	}
	err = w.Call(ctx, func(ctx context.Context) error {
		query := sdn.FloatingIPQuery{Match: sdn.Match{Owner: w.SDN.Installation(), Kind: v1.KeyKindFloatingIP}}
		for f, err := range w.SDN.FindFloatingIPs(ctx, query) {
			if err != nil {
				return err
			}
			left := namedIn(f.Name, w.lb.Namespace) && !there[types.UID(f.Key.Name)]
			// An SDN without tags does not tell whose it was: it counts for each namespace.
			unknown := f.Name == "" && f.Target.Port == ""
			if w.owns(f.Meta) && (left || unknown) {
				n++
			}
		}
		return nil
	})
	return n, err
}
