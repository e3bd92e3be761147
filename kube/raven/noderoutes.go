package raven

import (
	"context"
	"errors"
	"math"
	"net/netip"
	"slices"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// nodeRoutes has pods' packets for ClusterIPs come to a node, where nodes' kernels balance these (Config.NodeBalanced): the router has a route to each range of ClusterIPs by the own port
// of each node that is ready, and those ports may have what is for the ranges. Elsewhere it takes such routes away, once.
type nodeRoutes struct{ *Raven }

// Reconcile looks at all of it, whatever it was asked for.
func (r nodeRoutes) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	if r.ground.nodes.network.ID == "" || !r.cfg.NodeBalanced && r.unrouted.Load() {
		return done(0, nil)
	}
	var ranges []netip.Prefix
	if r.cfg.NodeBalanced {
		var err error
		if ranges, err = r.rangesForNodes(ctx); err != nil {
			return done(0, err)
		}
	}
	ids, hops, err := r.readyNodes(ctx)
	if err != nil {
		return done(0, err)
	}
	// What is led to a port must be let in there.
	err = errors.Join(r.admitRanges(ctx, ids, ranges), r.routeBy(ctx, ranges, hops))
	r.unrouted.Store(err == nil && !r.cfg.NodeBalanced)
	if r.cfg.NodeBalanced {
		return done(r.cfg.Audit, err) // somebody may change it in the SDN, which tells nobody
	}
	return done(0, err)
}

// rangesForNodes are the ranges of ClusterIPs that nodes balance, as the cluster has them now.
func (r nodeRoutes) rangesForNodes(ctx context.Context) ([]netip.Prefix, error) {
	r.vips.making.Lock()
	defer r.vips.making.Unlock()
	ranges, err := r.serviceRanges(ctx)
	if err != nil {
		return nil, err
	}
	known, plan := r.vips.planned()
	if !slices.Equal(ranges, known) {
		plan, err = r.replanVIPs(ctx, ranges)
	}
	return plan.ranges, err
}

// readyNodes are the nodes' own ports, and the addresses of those whose node is ready.
func (r nodeRoutes) readyNodes(ctx context.Context) (ids []sdn.ID, hops []netip.Addr, err error) {
	pools, err := r.poolsWith(ctx, string(r.ground.nodes.network.ID))
	if err != nil {
		return nil, nil, err
	}
	for i := range pools {
		ports, err := r.portsOf(ctx, pools[i].Name)
		if err != nil {
			return nil, nil, err
		}
		var n corev1.Node
		if err := r.api.Get(ctx, client.ObjectKey{Name: pools[i].Spec.Node}, &n); client.IgnoreNotFound(err) != nil {
			return nil, nil, err
		}
		for j := range ports {
			p := &ports[j]
			if !p.Spec.ForNode || !p.DeletionTimestamp.IsZero() {
				continue
			}
			ids = append(ids, sdn.ID(p.Spec.ID))
			for _, s := range p.Spec.Network.Subnets {
				for _, text := range s.IPs {
					if addr, err := netip.ParseAddr(text); err == nil && nodeReady(&n) {
						hops = append(hops, addr)
					}
				}
			}
		}
	}
	slices.Sort(ids)
	slices.SortFunc(hops, netip.Addr.Compare)
	return ids, hops, nil
}

// nodeReady tells whether a node balances. Its daemon need not run: what it has brought into the kernel stays there, until the node boots. A node is ready to the kubelet before that, as the network's
// file is there from before the boot: what tells is that the daemon says that it begins from nothing.
func nodeReady(n *corev1.Node) bool {
	has := func(of corev1.NodeConditionType) (c corev1.NodeCondition) {
		if i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == of }); i >= 0 {
			c = n.Status.Conditions[i]
		}
		return c
	}
	network := has(corev1.NodeNetworkUnavailable)
	return n.DeletionTimestamp.IsZero() && has(corev1.NodeReady).Status == corev1.ConditionTrue && (network.Status != corev1.ConditionTrue || network.Reason != v1.ReasonNodeStarting)
}

// admitRanges has the ports' allowed address pairs be the ranges.
func (r nodeRoutes) admitRanges(ctx context.Context, ids []sdn.ID, ranges []netip.Prefix) error {
	if len(ids) == 0 {
		return nil
	}
	var ports []sdn.Port
	err := r.ask(ctx, func(ctx context.Context) (err error) {
		ports, err = sdn.All(r.sdn.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{IDs: ids}}))
		return err
	})
	if err != nil {
		return err
	}
	wanted := make([]sdn.AllowedPair, 0, len(ranges))
	for _, p := range ranges {
		wanted = append(wanted, sdn.AllowedPair{Prefix: p})
	}
	byPrefix := func(a, b sdn.AllowedPair) int { return a.Prefix.Compare(b.Prefix) }
	slices.SortFunc(wanted, byPrefix)
	var errs []error
	for _, port := range ports {
		if slices.EqualFunc(slices.SortedFunc(slices.Values(port.AllowedPairs), byPrefix), wanted, func(a, b sdn.AllowedPair) bool { return a.Prefix == b.Prefix }) {
			continue
		}
		errs = append(errs, r.ask(ctx, func(ctx context.Context) error {
			_, err := r.sdn.UpdatePort(ctx, port.ID, sdn.PortPatch{AllowedPairs: &wanted})
			return err
		}))
	}
	return errors.Join(errs...)
}

// mostRoutes is how many routes a router may have in a Neutron whose operator has not said otherwise (max_routes).
const mostRoutes = 30

// routeBy has the router lead to the ranges by these hops, which are nodes' ports. Its routes to elsewhere are others'. How many it may have the SDN does not tell: where it refuses all,
// mostRoutes are what it has from then on.
func (r nodeRoutes) routeBy(ctx context.Context, ranges []netip.Prefix, hops []netip.Addr) error {
	return r.ask(ctx, func(ctx context.Context) error {
		router, err := r.sdn.Router(ctx, r.ground.router)
		if err != nil {
			return err
		}
		var others, now []sdn.HostRoute
		for _, route := range router.Routes {
			if slices.ContainsFunc(r.ground.nodeRanges, func(p netip.Prefix) bool { return p.Contains(route.NextHop) }) {
				now = append(now, route)
			} else {
				others = append(others, route)
			}
		}
		for {
			few, room := r.fewRoutes.Load(), math.MaxInt
			if few {
				room = max(mostRoutes-len(others), len(ranges)) // one of each range is tried whatever others have
			}
			routes, left := spread(ranges, hops, now, room)
			if len(routes) == len(now) && !slices.ContainsFunc(routes, func(route sdn.HostRoute) bool { return !slices.Contains(now, route) }) {
				return nil
			}
			if left > 0 {
				r.log.WarnContext(ctx, "the router has no room for routes by all nodes that are ready: pods' connections to ClusterIPs go by some of them",
					"routes", len(routes), "of", len(routes)+left, "others", len(others), "most", mostRoutes)
			}
			all := slices.Concat(others, routes)
			_, err := r.sdn.UpdateRouter(ctx, r.ground.router, sdn.RouterPatch{Routes: &all})
			if few || len(all) <= mostRoutes || !sdn.IsInvalid(err) || sdn.FieldOf(err) != "routes" {
				return err
			}
			r.fewRoutes.Store(true)
		}
	})
}

// spread gives the ranges routes by the hops of their family, in turns while there is room. A range keeps the hops that it has now before it gets others, as there are connections on them.
// left is for how many there was no room.
func spread(ranges []netip.Prefix, hops []netip.Addr, now []sdn.HostRoute, room int) (routes []sdn.HostRoute, left int) {
	could := make([][]sdn.HostRoute, len(ranges))
	most := 0
	for i, p := range ranges {
		var fresh []sdn.HostRoute
		for _, hop := range hops {
			route := sdn.HostRoute{Destination: p, NextHop: hop}
			switch {
			case hop.Is6() != p.Addr().Is6():
			case slices.Contains(now, route):
				could[i] = append(could[i], route)
			default:
				fresh = append(fresh, route)
			}
		}
		could[i] = append(could[i], fresh...)
		most = max(most, len(could[i]))
	}
	for turn := range most {
		for _, of := range could {
			switch {
			case turn >= len(of):
			case len(routes) < room:
				routes = append(routes, of[turn])
			default:
				left++
			}
		}
	}
	return routes, left
}

// becameReady tells whether a node has become ready, or is so no more.
func becameReady(e event.UpdateEvent) bool {
	return nodeReady(e.ObjectOld.(*corev1.Node)) != nodeReady(e.ObjectNew.(*corev1.Node))
}

// routesOf is the one object that stands for all routes.
func routesOf[T client.Object](context.Context, T) ([]ctrl.Request, error) {
	return just("", clusterName), nil
}

// routesOfPort is the same where a port is a node's own.
func routesOfPort(_ context.Context, p *v1.KuryrPort) ([]ctrl.Request, error) {
	if !p.Spec.ForNode {
		return nil, nil
	}
	return just("", clusterName), nil
}
