package node

import (
	"context"
	"errors"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// nodeRoutes has pods' packets for ClusterIPs come to a node, where nodes' kernels
// balance these (Config.NodeBalanced): the router has a route to each range of ClusterIPs
// by the own port of each node that is ready, and those ports may have what is for the
// ranges. Otherwise it removes such routes, once.
type nodeRoutes struct{ *Node }

// nodeWays is what each node contributes, so that a change of one costs a look at that
// one: the port of its own, and one value of the router's, which has all routes. At the
// start, at an audit, where the ranges are others and where something has failed, all of
// them are looked at.
type nodeWays struct {
	mu      sync.Mutex
	changed map[string]bool // the nodes to compare

	// The other fields belong to the reconciler, which runs once at a time.
	whole  core.LastSync
	ranges []netip.Prefix // as they were led to then
	of     map[string]nodeWay
}

// nodeWay is one node's: its own ports, and their addresses where it balances.
type nodeWay struct {
	ports []sdn.ID
	hops  []netip.Addr
}

// mark has a node looked at.
func (w *nodeWays) mark(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed == nil {
		w.changed = map[string]bool{}
	}
	w.changed[node] = true
}

// marked returns the nodes to compare, once.
func (w *nodeWays) marked() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Collect(maps.Keys(w.changed))
	w.changed = nil
	return all
}

// hops are the next hops of all nodes, in order.
func (w *nodeWays) hops() (all []netip.Addr) {
	for _, way := range w.of {
		all = append(all, way.hops...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// Reconcile looks at the nodes that have changed, or at all of them, whatever it was
// asked for.
func (r nodeRoutes) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	ways := &r.routes
	nodes := ways.marked()
	if r.cfg.Infrastructure.Nodes.Network.ID == "" || !r.cfg.Balanced && r.unrouted.Load() {
		return core.Result(0, nil)
	}
	whole, in := ways.whole.Due(r.Now(), r.cfg.Audit)
	err := r.lead(ctx, nodes, whole)
	if err != nil {
		ways.whole.Set(time.Time{})
	}
	r.unrouted.Store(err == nil && !r.cfg.Balanced)
	switch {
	case !r.cfg.Balanced:
		in = 0
	case whole:
		in = r.cfg.Audit
	}
	return core.Result(in, err)
}

// lead has the SDN lead to what the nodes are, of which these have changed; whole has all
// of them and all of the SDN be looked at.
func (r nodeRoutes) lead(ctx context.Context, nodes []string, whole bool) (err error) {
	ways := &r.routes
	var ranges []netip.Prefix
	if r.cfg.Balanced {
		if ranges, err = r.cfg.ServiceRanges(ctx); err != nil {
			return err
		}
	}
	if whole = whole || !slices.Equal(ranges, ways.ranges); whole {
		if nodes, err = r.nodesWithPorts(ctx); err != nil {
			return err
		}
		ways.of = map[string]nodeWay{}
	}
	var fresh []sdn.ID
	moved := whole
	for _, node := range nodes {
		was := ways.of[node]
		is, err := r.wayOf(ctx, node)
		if err != nil {
			return err
		}
		for _, id := range is.ports {
			if !slices.Contains(was.ports, id) {
				fresh = append(fresh, id)
			}
		}
		moved = moved || !slices.Equal(was.hops, is.hops)
		if ways.of[node] = is; len(is.ports) == 0 {
			delete(ways.of, node)
		}
	}
	err = r.admitRanges(ctx, fresh, ranges) // what is led to a port must be let in there
	if moved {
		err = errors.Join(err, r.routeBy(ctx, ranges, ways.hops()))
	}
	if err == nil && whole {
		ways.ranges = ranges
		ways.whole.Set(r.Now())
	}
	return err
}

// nodesWithPorts are the nodes that have ports of their own, or are to have.
func (r nodeRoutes) nodesWithPorts(ctx context.Context) (all []string, err error) {
	pools, err := r.PoolsWith(ctx, string(r.cfg.Infrastructure.Nodes.Network.ID))
	for i := range pools {
		all = append(all, pools[i].Spec.Node)
	}
	slices.Sort(all)
	return slices.Compact(all), err
}

// wayOf is what a node contributes. One that has gone has its ports for a while.
func (r nodeRoutes) wayOf(ctx context.Context, node string) (way nodeWay, err error) {
	var ports v1.KuryrPortList
	if err := r.Client.List(ctx, &ports, client.MatchingFields{core.ByOwner: node}); err != nil {
		return way, err
	}
	var n corev1.Node
	if err := r.Client.Get(ctx, client.ObjectKey{Name: node}, &n); client.IgnoreNotFound(err) != nil {
		return way, err
	}
	for i := range ports.Items {
		p := &ports.Items[i]
		if p.Spec.Network.ID != string(r.cfg.Infrastructure.Nodes.Network.ID) || !p.DeletionTimestamp.IsZero() {
			continue
		}
		way.ports = append(way.ports, sdn.ID(p.Spec.ID))
		for _, s := range p.Spec.Network.Subnets {
			for _, text := range s.IPs {
				if addr, err := netip.ParseAddr(text); err == nil && IsReady(&n) {
					way.hops = append(way.hops, addr)
				}
			}
		}
	}
	slices.Sort(way.ports)
	slices.SortFunc(way.hops, netip.Addr.Compare)
	return way, nil
}

// IsReady reports whether a node balances. Its daemon need not run: what it has brought
// into the kernel stays there, until the node boots. A node is ready to the kubelet
// before that, as the network's file is there from before the boot: what tells is that
// the daemon says that it begins from nothing.
func IsReady(n *corev1.Node) bool {
	has := func(of corev1.NodeConditionType) (c corev1.NodeCondition) {
		if i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == of }); i >= 0 {
			c = n.Status.Conditions[i]
		}
		return c
	}
	network := has(corev1.NodeNetworkUnavailable)
	starting := network.Status == corev1.ConditionTrue && network.Reason == v1.ReasonNodeStarting
	return n.DeletionTimestamp.IsZero() && has(corev1.NodeReady).Status == corev1.ConditionTrue && !starting
}

// admitRanges has the ports' allowed address pairs be the ranges.
func (r nodeRoutes) admitRanges(ctx context.Context, ids []sdn.ID, ranges []netip.Prefix) error {
	if len(ids) == 0 {
		return nil
	}
	var ports []sdn.Port
	err := r.Call(ctx, func(ctx context.Context) (err error) {
		ports, err = sdn.All(r.SDN.FindPorts(ctx, sdn.PortQuery{Match: sdn.Match{IDs: ids}}))
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
		has := slices.SortedFunc(slices.Values(port.AllowedPairs), byPrefix)
		if slices.EqualFunc(has, wanted, func(a, b sdn.AllowedPair) bool { return a.Prefix == b.Prefix }) {
			continue
		}
		errs = append(errs, r.Call(ctx, func(ctx context.Context) error {
			_, err := r.SDN.UpdatePort(ctx, port.ID, sdn.PortPatch{AllowedPairs: &wanted})
			failpoint.Here("raven.noderoutes.admitted")
			return err
		}))
	}
	return errors.Join(errs...)
}

// allRoutes stands for all routes in the queue.
const allRoutes = "cluster"

// mostRoutes is how many routes a router may have in a Neutron whose operator has not
// said otherwise (max_routes).
const mostRoutes = 30

// routeBy has the router lead to the ranges by these hops, which are nodes' ports. Its
// routes to elsewhere are others'. How many it may have the SDN does not tell: where it
// refuses all, mostRoutes are what it has from then on.
func (r nodeRoutes) routeBy(ctx context.Context, ranges []netip.Prefix, hops []netip.Addr) error {
	return r.Call(ctx, func(ctx context.Context) error {
		router, err := r.SDN.Router(ctx, r.cfg.Infrastructure.Router)
		if err != nil {
			return err
		}
		var others []sdn.HostRoute
		now := map[sdn.HostRoute]bool{}
		for _, route := range router.Routes {
			leads := func(p netip.Prefix) bool { return p.Contains(route.NextHop) }
			if slices.ContainsFunc(r.cfg.Infrastructure.NodeRanges, leads) {
				now[route] = true
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
			if len(routes) == len(now) && !slices.ContainsFunc(routes, func(route sdn.HostRoute) bool { return !now[route] }) {
				return nil
			}
			if left > 0 {
				r.Log.WarnContext(ctx, "the router has no room for routes by all ready nodes",
					"routes", len(routes), "of", len(routes)+left, "others", len(others), "most", mostRoutes)
			}
			all := slices.Concat(others, routes)
			_, err := r.SDN.UpdateRouter(ctx, r.cfg.Infrastructure.Router, sdn.RouterPatch{Routes: &all})
			failpoint.Here("raven.noderoutes.led")
			if few || len(all) <= mostRoutes || !sdn.IsInvalid(err) || sdn.FieldOf(err) != "routes" {
				return err
			}
			r.fewRoutes.Store(true)
		}
	})
}

// spread gives the ranges routes by the hops of their family, in turns while there is
// room. A range keeps the hops that it has now before it gets others, as there are
// connections on them. left is for how many there was no room.
func spread(ranges []netip.Prefix, hops []netip.Addr, now map[sdn.HostRoute]bool, room int) (
	routes []sdn.HostRoute, left int,
) {
	could := make([][]sdn.HostRoute, len(ranges))
	most := 0
	for i, p := range ranges {
		var fresh []sdn.HostRoute
		for _, hop := range hops {
			route := sdn.HostRoute{Destination: p, NextHop: hop}
			switch {
			case hop.Is6() != p.Addr().Is6():
			case now[route]:
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
