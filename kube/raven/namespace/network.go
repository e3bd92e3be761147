package namespace

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// networks makes a network in the SDN of each KuryrNetwork, and deletes it when the namespace
// and the last port have gone.
type networks struct{ *controllers }

// Reconcile makes or deletes one network.
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
		err = r.ensure(ctx, &n)
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

// ensure makes the network, and the status of its KuryrNetwork. The SDN is not asked for one
// that is ready: if something is wrong with it, the next port that is made fails.
func (r networks) ensure(ctx context.Context, n *v1.KuryrNetwork) error {
	ns, err := r.NamespaceOf(ctx, n)
	if err != nil {
		return err
	}
	if ns == nil {
		return core.Waiting("the namespace is gone")
	}
	r.follow(ns, n)
	if core.IsReady(n.Status.Conditions) && n.Status.Network != "" && n.Status.ObservedGeneration == n.Generation {
		return nil
	}
	network, err := r.networkInSDN(ctx, n)
	if err != nil {
		return err
	}
	r.ForgetSubnets(network.ID)
	subnets, err := r.SubnetsOf(ctx, network.ID)
	if err != nil {
		return err
	}
	ids, err := r.subnetsForPods(n, network, subnets)
	if err != nil {
		return err
	}
	var router sdn.ID
	for _, id := range ids {
		if router, err = r.attach(ctx, subnets[id], n.Spec.Network != ""); err != nil {
			return fmt.Errorf("interface of the router: %w", err)
		}
	}
	n.Status = statusOf(n.Status, network, router, ids, subnets)
	return nil
}

// follow writes what the namespace says of pools and groups into the status. It warns the
// owner if groups of its own end the isolation from the nodes' network: what one group
// allows, another does not forbid.
func (r networks) follow(ns *corev1.Namespace, n *v1.KuryrNetwork) {
	before := n.Status.SecurityGroups
	own := core.SplitList(ns.Annotations[v1.AnnotationSecurityGroups])
	n.Status.PoolPolicy = ns.Annotations[v1.AnnotationPool]
	n.Status.SecurityGroups = r.Infrastructure.WithNodes(own)
	if r.Isolated && len(own) > 0 && !core.SameSet(n.Status.SecurityGroups, before) {
		r.Warn(ns, core.EventUnserved, "Isolation", "security groups %s say what this namespace's pods reach: "+
			"controller.underlay_isolation does not keep them from the nodes' network", strings.Join(own, ", "))
	}
	if len(own) == 0 {
		n.Status.SecurityGroups = slices.Clone(r.Infrastructure.Groups)
	}
}

// networkInSDN returns the existing network that the namespace names, or ensures its own.
func (r networks) networkInSDN(ctx context.Context, n *v1.KuryrNetwork) (network sdn.Network, err error) {
	spec, err := r.specOf(n)
	if err != nil {
		return network, err
	}
	err = r.Call(ctx, func(ctx context.Context) (err error) {
		if n.Spec.Network != "" {
			network, err = r.SDN.Network(ctx, sdn.ID(n.Spec.Network))
		} else {
			network, err = r.SDN.EnsureNetwork(ctx, spec)
		}
		return err
	})
	if err == nil && network.ID == "" {
		err = sdn.Unavailable(nil, "network", "the SDN returned the network of %s with no id", n.Name)
	}
	return network, err
}

// specOf returns the namespace's own network, with a subnet of each subnet pool.
func (r networks) specOf(n *v1.KuryrNetwork) (spec sdn.NetworkSpec, err error) {
	name, project := "kuryr-ns-"+n.Spec.Namespace, n.Spec.ProjectID
	pools := r.Infrastructure.SubnetPools
	if len(pools) == 0 && n.Spec.Network == "" {
		return spec, sdn.Invalid("network", "ranges", "there is no range that a namespace's subnet could be cut from")
	}
	spec.Base = r.Base(v1.KeyKindNetwork, n.Name, name, project)
	for i, p := range pools {
		spec.Subnets = append(spec.Subnets, sdn.SubnetSpec{
			Base: r.Base(v1.KeyKindSubnet, fmt.Sprintf("%s.%d", n.Name, i), name, project),
			Pool: p, PrefixLen: r.Infrastructure.PrefixLens[i], NoDHCP: true,
		})
	}
	return spec, nil
}

// subnetsForPods returns the subnets of the network that pods get addresses on: those that the
// namespace names, or all but those of load balancers.
func (r networks) subnetsForPods(n *v1.KuryrNetwork, network sdn.Network, subnets map[sdn.ID]sdn.Subnet) (
	ids []sdn.ID, err error,
) {
	for i, s := range n.Spec.Subnets {
		if subnets[sdn.ID(s)].Network != network.ID {
			field := fmt.Sprintf("subnets[%d]", i)
			return nil, sdn.Invalid("network", field, "%s is no subnet of network %s", s, network.ID)
		}
		ids = append(ids, sdn.ID(s))
	}
	if len(n.Spec.Subnets) == 0 {
		ids = slices.DeleteFunc(slices.Clone(network.Subnets), func(id sdn.ID) bool {
			return r.IsLoadBalancerSubnet(subnets[id], n.Name)
		})
	}
	if len(ids) == 0 {
		return nil, sdn.Invalid("network", "subnets", "network %s has none", network.ID)
	}
	for _, id := range ids {
		if !subnets[id].CIDR.IsValid() {
			return nil, sdn.Unavailable(nil, "subnet",
				"the SDN returned subnet %s of network %s with no range", id, network.ID)
		}
	}
	return ids, nil
}

// statusOf returns the status of a network that is there.
func statusOf(before v1.KuryrNetworkStatus, network sdn.Network, router sdn.ID, ids []sdn.ID,
	subnets map[sdn.ID]sdn.Subnet,
) v1.KuryrNetworkStatus {
	status := v1.KuryrNetworkStatus{
		Network: string(network.ID), MTU: network.MTU, Router: string(router),
		SecurityGroups: before.SecurityGroups, PoolPolicy: before.PoolPolicy,
		Conditions: before.Conditions, ObservedGeneration: before.ObservedGeneration,
	}
	for _, id := range ids {
		shown := v1.NetworkSubnet{ID: string(id), CIDR: subnets[id].CIDR.String()}
		if gateway := subnets[id].Gateway; gateway.IsValid() {
			shown.Gateway = gateway.String()
		}
		status.Subnets = append(status.Subnets, shown)
	}
	return status
}

// attach attaches a subnet to the cluster's router, and returns the router that leads there. A
// subnet of an existing network stays without one if it has no gateway, and with another
// router if it has one.
func (r networks) attach(ctx context.Context, s sdn.Subnet, existing bool) (router sdn.ID, err error) {
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
		router = r.Infrastructure.Router
		return r.SDN.AttachSubnet(ctx, router, s.ID, netip.Addr{})
	})
	return router, err
}

// remove deletes the network in the SDN when no pool has ports on it. An existing network
// stays, and so does its interface of the router.
func (r networks) remove(ctx context.Context, n *v1.KuryrNetwork) error {
	if err := r.removePools(ctx, n); err != nil || n.Spec.Network != "" {
		return err
	}
	r.Removing(n.Name)
	query := sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{r.Key(v1.KeyKindNetwork, n.Name)}}}
	var network sdn.Network
	var found bool
	err := r.Call(ctx, func(ctx context.Context) (err error) {
		network, found, err = sdn.First(r.SDN.FindNetworks(ctx, query))
		return err
	})
	if err != nil || !found {
		return err
	}
	for _, s := range network.Subnets {
		err := r.Call(ctx, func(ctx context.Context) error {
			return r.SDN.DetachSubnet(ctx, r.Infrastructure.Router, s)
		})
		if err != nil && !sdn.IsNotFound(err) {
			return fmt.Errorf("interface of the router: %w", err)
		}
	}
	err = r.Call(ctx, func(ctx context.Context) error { return r.SDN.DeleteNetwork(ctx, network.ID) })
	if err == nil {
		r.ForgetSubnets(network.ID)
	}
	return err
}

// removePools deletes the network's pools, and returns an error while there are any. They stay
// while another namespace has the network too. An existing network is done with then; one of
// Raven's own waits for that namespace.
func (r networks) removePools(ctx context.Context, n *v1.KuryrNetwork) error {
	if n.Status.Network == "" {
		return nil
	}
	other, err := r.OneNetwork(ctx, core.ByStaying, n.Status.Network) // not n, which is being deleted
	if err != nil {
		return err
	}
	if other != nil {
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
		if !pools[i].DeletionTimestamp.IsZero() {
			continue
		}
		err := r.Client.Delete(ctx, &pools[i], client.Preconditions{UID: &pools[i].UID})
		if client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	if len(pools) > 0 {
		return core.Waiting(fmt.Sprintf("%d pools of ports are being emptied", len(pools)))
	}
	return nil
}
