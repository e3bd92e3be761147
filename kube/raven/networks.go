package raven

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// networks makes of each KuryrNetwork a network with its subnets on the router, and takes it away when its namespace and the last port are gone.
type networks struct{ *Raven }

// Reconcile looks at one KuryrNetwork.
func (r networks) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var n v1.KuryrNetwork
	if err := r.Client.Get(ctx, req.NamespacedName, &n); err != nil {
		return core.Result(0, client.IgnoreNotFound(err))
	}
	before := n.DeepCopy()
	var err error
	if !n.DeletionTimestamp.IsZero() {
		if err = r.remove(ctx, &n); err == nil {
			controllerutil.RemoveFinalizer(&n, v1.Finalizer)
			return core.Result(0, client.IgnoreNotFound(r.Client.Update(ctx, &n)))
		}
	} else {
		err = r.make(ctx, &n)
	}
	if core.HasFailure(err) {
		r.Warn(&n, core.EventFailed, "Network", "%s", core.Message(err))
	}
	core.SetReady(&n.Status.Conditions, n.Generation, err)
	n.Status.ObservedGeneration = n.Generation
	if !equality.Semantic.DeepEqual(before.Status, n.Status) {
		if failed := r.Client.Status().Update(ctx, &n); failed != nil {
			return core.Result(0, errors.Join(client.IgnoreNotFound(failed), err))
		}
	}
	return core.Result(0, err)
}

// make has the SDN have the network. One that is ready is not asked for again: whatever is wrong with it then shows when ports are made.
func (r networks) make(ctx context.Context, n *v1.KuryrNetwork) error {
	ns, err := r.NamespaceOf(ctx, n)
	if err != nil {
		return err
	}
	if ns == nil {
		return core.Waiting("the namespace is gone")
	}
	n.Status.PoolPolicy = ns.Annotations[v1.AnnotationPool]
	had := n.Status.SecurityGroups
	own := core.SplitList(ns.Annotations[v1.AnnotationSecurityGroups])
	n.Status.SecurityGroups = r.chosen(own)
	if r.cfg.UnderlayIsolation && len(own) > 0 && !core.SameSet(n.Status.SecurityGroups, had) {
		r.ownGroups(ns, own)
	}
	if len(n.Status.SecurityGroups) == 0 {
		n.Status.SecurityGroups = slices.Clone(r.ground.groups)
	}
	if core.IsReady(n.Status.Conditions) && n.Status.Network != "" && n.Status.ObservedGeneration == n.Generation {
		return nil
	}
	var network sdn.Network
	if n.Spec.Network != "" {
		err = r.Call(ctx, func(ctx context.Context) (err error) {
			network, err = r.SDN.Network(ctx, sdn.ID(n.Spec.Network))
			return err
		})
	} else {
		network, err = r.ensure(ctx, n)
	}
	if err != nil {
		return err
	}
	if network.ID == "" {
		return sdn.Unavailable(nil, "network", "the SDN returned the network of %s with no id", n.Name)
	}
	r.ForgetSubnets(network.ID)
	return r.lead(ctx, n, network)
}

// ensure makes the namespace's own network.
func (r networks) ensure(ctx context.Context, n *v1.KuryrNetwork) (network sdn.Network, err error) {
	spec := sdn.NetworkSpec{Base: r.Base(v1.KeyKindNetwork, n.Name, "kuryr-ns-"+n.Spec.Namespace, n.Spec.ProjectID)}
	if len(r.ground.pools) == 0 {
		return network, sdn.Invalid("network", "ranges", "there is no range that a namespace's subnet could be cut from")
	}
	for i, p := range r.ground.pools {
		spec.Subnets = append(spec.Subnets, sdn.SubnetSpec{
			Base: r.Base(v1.KeyKindSubnet, fmt.Sprintf("%s.%d", n.Name, i), "kuryr-ns-"+n.Spec.Namespace, n.Spec.ProjectID), Pool: p, PrefixLen: r.ground.lens[i], NoDHCP: true,
		})
	}
	err = r.Call(ctx, func(ctx context.Context) error { network, err = r.SDN.EnsureNetwork(ctx, spec); return err })
	return network, err
}

// lead puts the network's subnets on the router and writes down what pods get.
func (r networks) lead(ctx context.Context, n *v1.KuryrNetwork, network sdn.Network) error {
	subnets, err := r.SubnetsOf(ctx, network.ID)
	if err != nil {
		return err
	}
	ids := slices.DeleteFunc(slices.Clone(network.Subnets), func(id sdn.ID) bool { return r.isLBSubnet(subnets[id], n.Name) })
	if len(n.Spec.Subnets) > 0 {
		ids = nil
		for i, s := range n.Spec.Subnets {
			if subnets[sdn.ID(s)].Network != network.ID {
				return sdn.Invalid("network", fmt.Sprintf("subnets[%d]", i), "%s is no subnet of network %s", s, network.ID)
			}
			ids = append(ids, sdn.ID(s))
		}
	}
	if len(ids) == 0 {
		return sdn.Invalid("network", "subnets", "network %s has none", network.ID)
	}
	status := v1.KuryrNetworkStatus{
		Network: string(network.ID), MTU: network.MTU, SecurityGroups: n.Status.SecurityGroups, PoolPolicy: n.Status.PoolPolicy, Conditions: n.Status.Conditions, ObservedGeneration: n.Status.ObservedGeneration,
	}
	for _, id := range ids {
		if !subnets[id].CIDR.IsValid() {
			return sdn.Unavailable(nil, "subnet", "the SDN returned subnet %s of network %s with no range", id, network.ID)
		}
		router, err := r.legOn(ctx, subnets[id], n.Spec.Network != "")
		if err != nil {
			return fmt.Errorf("leg of the router: %w", err)
		}
		status.Router = string(router)
		shown := v1.NetworkSubnet{ID: string(id), CIDR: subnets[id].CIDR.String()}
		if subnets[id].Gateway.IsValid() {
			shown.Gateway = subnets[id].Gateway.String()
		}
		status.Subnets = append(status.Subnets, shown)
	}
	n.Status = status
	return nil
}

// legOn has a router lead to the subnet: ours, unless it is an existing network's that another one leads to already, or that has no gateway.
func (r networks) legOn(ctx context.Context, s sdn.Subnet, existing bool) (router sdn.ID, err error) {
	err = r.Call(ctx, func(ctx context.Context) error {
		if existing {
			if !s.Gateway.IsValid() {
				return nil
			}
			found, ok, err := sdn.First(r.SDN.FindRouters(ctx, sdn.RouterQuery{Subnets: []sdn.ID{s.ID}}))
			if err != nil || ok {
				router = found.ID
				return err
			}
		}
		router = r.ground.router
		return r.SDN.AttachSubnet(ctx, router, s.ID, netip.Addr{})
	})
	return router, err
}

// remove takes the network out of the SDN, once no pool has ports on it. An existing network stays, and so does its leg.
func (r networks) remove(ctx context.Context, n *v1.KuryrNetwork) error {
	if err := r.removePools(ctx, n); err != nil {
		return err
	}
	if n.Spec.Network != "" {
		return nil
	}
	for _, six := range []bool{false, true} { // before their legs go, which an audit would put back
		r.lbSubnets.set(r.lbSubnetKey(n.Name, six), "")
	}
	var network sdn.Network
	var found bool
	err := r.Call(ctx, func(ctx context.Context) (err error) {
		network, found, err = sdn.First(r.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{r.Key(v1.KeyKindNetwork, n.Name)}}}))
		return err
	})
	if err != nil || !found {
		return err
	}
	for _, s := range network.Subnets {
		if err := r.Call(ctx, func(ctx context.Context) error { return r.SDN.DetachSubnet(ctx, r.ground.router, s) }); err != nil && !sdn.IsNotFound(err) {
			return fmt.Errorf("leg of the router: %w", err)
		}
	}
	if err := r.Call(ctx, func(ctx context.Context) error { return r.SDN.DeleteNetwork(ctx, network.ID) }); err != nil {
		return err
	}
	r.ForgetSubnets(network.ID)
	return nil
}

// removePools has the network's pools go. Where another namespace has the network too they stay; then an existing network is done with, and one of Raven's own waits for that namespace.
func (r networks) removePools(ctx context.Context, n *v1.KuryrNetwork) error {
	if n.Status.Network == "" {
		return nil
	}
	others, err := r.OneNetwork(ctx, core.ByStaying, n.Status.Network) // not n, which goes
	if err != nil {
		return err
	}
	if others != nil {
		if n.Spec.Network == "" {
			return core.Waiting("another namespace is on the network too")
		}
		return nil
	}
	pools, err := r.PoolsWith(ctx, n.Status.Network)
	if err != nil {
		return err
	}
	for i := range pools {
		if pools[i].DeletionTimestamp.IsZero() {
			if err := r.Client.Delete(ctx, &pools[i], client.Preconditions{UID: &pools[i].UID}); client.IgnoreNotFound(err) != nil {
				return err
			}
		}
	}
	if len(pools) > 0 {
		return core.Waiting(fmt.Sprintf("%d pools of ports are being emptied", len(pools)))
	}
	return nil
}
