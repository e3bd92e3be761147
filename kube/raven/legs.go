package raven

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
)

// legs puts back the router's legs on subnets of VIPs that somebody has taken away in the SDN. Whoever makes such a subnet gives it its leg, so the router is asked at audits alone, once for all of them.
type legs struct{ *Raven }

// legsOf has the legs looked at, when Raven begins.
func legsOf(context.Context, *corev1.Namespace) ([]ctrl.Request, error) {
	return core.One("", clusterName), nil
}

// Reconcile looks at all of them, whatever it was asked for, where it is time.
func (r legs) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	due, in := r.legged.Due(r.Now(), r.cfg.Audit)
	if !due {
		return core.Result(in, nil)
	}
	err := r.restore(ctx)
	if err == nil {
		r.legged.Set(r.Now())
	}
	return core.Result(r.cfg.Audit, err)
}

// restore gives the subnets that have no leg one.
func (r legs) restore(ctx context.Context) error {
	r.vips.making.Lock() // so that nobody is taking a subnet of the VIP network away
	release := sync.OnceFunc(r.vips.making.Unlock)
	defer release()
	services, own := r.vips.there(), r.lbSubnets.all()
	if len(services)+len(own) == 0 {
		return nil
	}
	var router sdn.Router
	if err := r.Call(ctx, func(ctx context.Context) (err error) { router, err = r.SDN.Router(ctx, r.ground.Router); return err }); err != nil {
		return err
	}
	has := map[sdn.ID]bool{}
	for _, leg := range router.Interfaces {
		has[leg.Subnet] = true
	}
	var errs []error
	if slices.ContainsFunc(services, func(s sdn.Subnet) bool { return !has[s.ID] }) {
		r.Log.WarnContext(ctx, "the router has lost a leg on the VIP network, and gets it back")
		errs = append(errs, r.makeVIPs(ctx)) // the subnet may have gone too
	}
	release() // the namespaces' subnets may be many, and are none of the VIP network's
	for key, id := range own {
		if now, known := r.lbSubnets.get(key); has[id] || !known || now != id { // or its network began to go meanwhile
			continue
		}
		r.Log.WarnContext(ctx, "the router has lost a leg on a namespace's subnet of load balancers, and gets it back", "subnet", id, "key", key.String())
		err := r.Call(ctx, func(ctx context.Context) error { return r.SDN.AttachSubnet(ctx, r.ground.Router, id, netip.Addr{}) })
		failpoint.Here("raven.legs.attached")
		if sdn.IsNotFound(err) { // its network is going, or it is made anew when it is asked for
			r.lbSubnets.set(key, "")
			err = nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
