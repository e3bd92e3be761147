package raven

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/internal/failpoint"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// strays takes load balancers out of the SDN that this installation has made and no KuryrLoadBalancer stands for: somebody has torn its finalizer away, or the API server's store is one from
// before. And it has a KuryrLoadBalancer looked at of which there is more than it wants, as where it was lost and made anew, or is one of a backup: neither its generation nor its status
// tells of that. The SDN is asked for all that the installation has, once when Raven begins, and at each audit.
type strays struct{ *Raven }

// straysName stands for all of them in the queue.
const straysName = "strays"

// strayOf has the strays looked for.
func strayOf(context.Context, *corev1.Namespace) ([]ctrl.Request, error) {
	return core.One("", straysName), nil
}

// Reconcile looks for all of them, whatever it was asked for, where it is time.
func (r strays) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	due, in := r.strayed.Due(r.Now(), r.cfg.Audit)
	if !due {
		return core.Result(in, nil)
	}
	var all []sdn.LoadBalancer
	err := r.Call(ctx, func(ctx context.Context) (err error) {
		all, err = sdn.All(r.SDN.FindLoadBalancers(ctx, sdn.LoadBalancerQuery{Match: sdn.Match{Owner: r.SDN.Installation(), Kind: v1.KeyKindLoadBalancer}, Outline: true}))
		return err
	})
	if sdn.IsUnsupported(err) {
		err = nil // it has none at all
	}
	if err == nil {
		err = errors.Join(r.rouse(ctx, all), r.drop(ctx, all))
	}
	if err == nil {
		r.strayed.Set(r.Now())
	}
	return core.Result(r.cfg.Audit, err)
}

// rouse has those looked at of which the SDN has a load balancer or a floating IP that they do not want. What that is they find by their Keys, and it goes.
func (r strays) rouse(ctx context.Context, all []sdn.LoadBalancer) error {
	var floating []sdn.FloatingIP
	err := r.Call(ctx, func(ctx context.Context) (err error) {
		floating, err = sdn.All(r.SDN.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: sdn.Match{Owner: r.SDN.Installation(), Kind: v1.KeyKindFloatingIP}}))
		return err
	})
	if err != nil && !sdn.IsUnsupported(err) {
		return err
	}
	var objects v1.KuryrLoadBalancerList
	if err := r.Client.List(ctx, &objects); err != nil {
		return err
	}
	of := map[types.UID]*v1.KuryrLoadBalancer{}
	for i := range objects.Items {
		uid := objects.Items[i].Spec.ServiceUID
		if of[uid] != nil { // one of them is forged
			if forged, err := r.forged(ctx, &objects.Items[i]); err != nil || forged {
				continue
			}
		}
		of[uid] = &objects.Items[i]
	}
	more := map[types.UID]bool{}
	for _, lb := range all {
		if o := of[serviceOfKey(lb.Key)]; o != nil && !lb.Foreign && !wants(o, lb.Key.Name) {
			more[o.Spec.ServiceUID] = true
		}
	}
	for _, f := range floating { // one that leads nowhere was kept by the Service's wish
		if o := of[types.UID(f.Key.Name)]; o != nil && !f.Foreign && f.Target.Port != "" && o.Spec.FloatingIP == nil {
			more[o.Spec.ServiceUID] = true
		}
	}
	for uid := range more {
		r.applied.suspect(of[uid], true)
		r.balancerWakes.Enqueue(core.Request(of[uid].Namespace, of[uid].Name))
	}
	return nil
}

// wants tells whether a KuryrLoadBalancer is to have a load balancer whose Key has this name.
func wants(lb *v1.KuryrLoadBalancer, name string) bool {
	return slices.ContainsFunc(lb.Spec.VIPs, func(text string) bool {
		vip, err := netip.ParseAddr(text)
		return err == nil && (name == v1.LoadBalancerKey(lb.Spec.ServiceUID, vip.Is6()) || lb.Spec.OwnVIPs && name == v1.OwnLoadBalancerKey(lb.Spec.ServiceUID, vip.Is6()))
	})
}

// drop deletes those of all that nobody stands for, with the floating IPs that lead there.
func (r strays) drop(ctx context.Context, all []sdn.LoadBalancer) error {
	alone := slices.DeleteFunc(all, func(lb sdn.LoadBalancer) bool {
		return !r.owns(lb.Meta) || serviceOfKey(lb.Key) == ""
	})
	alone, err := r.orphans(ctx, alone, "")
	if err != nil {
		return err
	}
	var errs []error
	for _, lb := range alone {
		r.Log.WarnContext(ctx, "a load balancer that no KuryrLoadBalancer stands for is deleted", "load_balancer", lb.ID, "name", lb.Name)
		errs = append(errs, r.dropStray(ctx, lb, serviceOfKey(lb.Key)))
	}
	return errors.Join(errs...)
}

// orphans returns the load balancers that no KuryrLoadBalancer but one has, or shares. A Service without
// a KuryrLoadBalancer gets it again, which then has what there is.
func (r *Raven) orphans(ctx context.Context, all []sdn.LoadBalancer, but types.UID) ([]sdn.LoadBalancer, error) {
	all, err := orphansPer(ctx, r.Client, all, but)
	if err == nil && r.Live != nil { // a cache may be behind
		all, err = orphansPer(ctx, r.Live, all, but)
	}
	return all, err
}

func orphansPer(ctx context.Context, from client.Reader, all []sdn.LoadBalancer, but types.UID) ([]sdn.LoadBalancer, error) {
	if len(all) == 0 {
		return nil, nil
	}
	var services corev1.ServiceList
	if err := from.List(ctx, &services); err != nil {
		return nil, err
	}
	var owners v1.KuryrLoadBalancerList
	if err := from.List(ctx, &owners); err != nil {
		return nil, err
	}
	there := map[types.UID]bool{}
	for i := range services.Items {
		there[services.Items[i].UID] = balanced(&services.Items[i])
	}
	shared, asked := map[sdn.ID]bool{}, map[sdn.ID][]string{} // by namespaces
	for i := range owners.Items {
		lb := &owners.Items[i]
		there[lb.Spec.ServiceUID] = true
		if id := sdn.ID(lb.Spec.SharedID); id != "" && lb.UID != but && lb.DeletionTimestamp.IsZero() {
			shared[id] = shared[id] || shareOf(lb, lb.Spec.SharedID) != nil
			asked[id] = append(asked[id], lb.Namespace) // its status may have been lost
		}
	}
	return slices.DeleteFunc(all, func(lb sdn.LoadBalancer) bool {
		return there[serviceOfKey(lb.Key)] || shared[lb.ID] ||
			slices.ContainsFunc(asked[lb.ID], func(namespace string) bool { return namedIn(lb.Name, namespace) })
	}), nil
}

// dropStray deletes one, after its Service's floating IP. One that leads nowhere was kept by the Service's wish, and stays.
func (r *Raven) dropStray(ctx context.Context, lb sdn.LoadBalancer, uid types.UID) error {
	return r.Call(ctx, func(ctx context.Context) error {
		floating, err := sdn.All(r.SDN.FindFloatingIPs(ctx, sdn.FloatingIPQuery{Match: sdn.Match{Keys: []sdn.Key{r.Key(v1.KeyKindFloatingIP, string(uid))}}}))
		if err != nil && !sdn.IsUnsupported(err) {
			return err
		}
		for _, f := range floating {
			leads := slices.ContainsFunc(lb.VIPs, func(v sdn.VIP) bool { return v.Port != "" && v.Port == f.Target.Port })
			if !leads || !r.owns(f.Meta) {
				continue
			}
			err := r.SDN.DeleteFloatingIP(ctx, f.ID)
			failpoint.Here("raven.stray.sunk")
			if err != nil && !sdn.IsNotFound(err) {
				return err
			}
		}
		err = r.SDN.DeleteLoadBalancer(ctx, lb.ID)
		failpoint.Here("raven.stray.deleted")
		if sdn.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// serviceOfKey is the UID in a load balancer's Key; "" where it has none.
func serviceOfKey(k sdn.Key) types.UID {
	uid, _, found := strings.Cut(k.Name, ".")
	if !found || k.Kind != v1.KeyKindLoadBalancer {
		return ""
	}
	return types.UID(uid)
}
