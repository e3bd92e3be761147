package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/pool"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// OwnPort is how the pool of a node's own port is kept: there is one, and it stays.
var OwnPort = pool.Policy{Minimum: 1, Maximum: 1, Batch: 1}

// nodes asks for the pool of each node's own port, where nodes have one.
type nodes struct{ *Node }

// Reconcile looks at one node.
func (r nodes) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var n corev1.Node
	if err := r.Client.Get(ctx, types.NamespacedName{Name: req.Name}, &n); err != nil {
		return core.Result(0, client.IgnoreNotFound(err))
	}
	if !r.HasOwnPort(&n) {
		return core.Result(0, nil) // the pool finds out itself that it is not wanted
	}
	p := &v1.KuryrPortPool{Spec: r.PoolKey(n.Name), ObjectMeta: metav1.ObjectMeta{
		Finalizers: []string{v1.Finalizer},
		Labels:     map[string]string{v1.LabelNode: v1.NodeLabel(n.Name), v1.LabelForNode: "true"},
	}}
	p.Name, p.Spec.NetworkName = v1.PoolName(p.Spec), r.cfg.Infrastructure.Nodes.Name
	p.Spec.Minimum, p.Spec.Maximum, p.Spec.Batch = OwnPort.Minimum, OwnPort.Maximum, OwnPort.Batch
	if err := r.Client.Get(ctx, types.NamespacedName{Name: p.Name}, &v1.KuryrPortPool{}); !apierrors.IsNotFound(err) {
		return core.Result(0, err)
	}
	if err := r.Client.Create(ctx, p); !apierrors.IsAlreadyExists(err) {
		return core.Result(0, err)
	}
	return core.Result(0, nil)
}

// HasOwnPort reports whether the node gets a port of its own: there is a network for
// them, and a daemon that plugs it.
func (r *Node) HasOwnPort(n *corev1.Node) bool {
	return r.cfg.Infrastructure.Nodes.Network.ID != "" && n.DeletionTimestamp.IsZero() &&
		n.Labels[v1.LabelClaimant] != v1.ClaimantRaven
}

// PoolKey is the key of the pool of a node's own port.
func (r *Node) PoolKey(node string) v1.KuryrPortPoolSpec {
	key := v1.KuryrPortPoolSpec{
		Node: node, Network: string(r.cfg.Infrastructure.Nodes.Network.ID), ProjectID: r.cfg.Project,
		SecurityGroups: r.cfg.Infrastructure.Nodes.Groups, ForNode: true,
	}
	for _, s := range r.cfg.Infrastructure.Nodes.Network.Subnets {
		key.Subnets = append(key.Subnets, string(s))
	}
	return key
}

// PlanPorts finds out of what ranges the nodes' own ports are: what their network has of
// a family stays, whatever the configuration says now, since nodes have addresses of it.
func (r *Node) PlanPorts(ctx context.Context) error {
	r.cfg.Infrastructure.NodeRanges = slices.Clone(r.cfg.Ranges)
	if len(r.cfg.Ranges) == 0 || r.SDN.Capabilities().HostReached {
		return nil
	}
	var there []sdn.Subnet
	keys := []sdn.Key{r.Key(v1.KeyKindSubnet, KeyName+"-v4"), r.Key(v1.KeyKindSubnet, KeyName+"-v6")}
	err := r.Call(ctx, func(ctx context.Context) (err error) {
		there, err = sdn.All(r.SDN.FindSubnets(ctx, sdn.SubnetQuery{Match: sdn.Match{Keys: keys}}))
		return err
	})
	if err != nil {
		return err
	}
	for i, p := range r.cfg.Infrastructure.NodeRanges {
		at := slices.IndexFunc(there, func(s sdn.Subnet) bool { return s.CIDR.Addr().Is6() == p.Addr().Is6() })
		if at >= 0 && there[at].CIDR != p {
			r.Log.WarnContext(ctx, "the nodes' network keeps the range that it has", "has", there[at].CIDR, "configured", p)
			r.cfg.Infrastructure.NodeRanges[i] = there[at].CIDR
		}
	}
	return nil
}

// PreparePorts makes the nodes' network with an interface of the router, unless the SDN's
// machine reaches its ports anyway.
func (r *Node) PreparePorts(ctx context.Context) error {
	r.cfg.Infrastructure.Nodes = core.NodeNetwork{}
	if len(r.cfg.Infrastructure.NodeRanges) == 0 || r.SDN.Capabilities().HostReached {
		return nil
	}
	claims := []core.Claim{}
	for _, p := range r.cfg.Networks {
		claims = append(claims, core.Claim{What: "the nodes' network", Prefix: p})
	}
	for _, p := range r.cfg.Infrastructure.NodeRanges {
		claims = append(claims, core.Claim{What: "the range of the nodes' own ports", Prefix: p})
	}
	if err := core.Overlap(claims); err != nil {
		return err
	}
	name := r.cfg.PortsNetwork
	spec := sdn.NetworkSpec{Base: r.Base(v1.KeyKindNetwork, KeyName, name, r.cfg.Project)}
	for _, p := range r.cfg.Infrastructure.NodeRanges {
		family := "-v4"
		if p.Addr().Is6() {
			family = "-v6"
		}
		base := r.Base(v1.KeyKindSubnet, KeyName+family, name+family, r.cfg.Project)
		spec.Subnets = append(spec.Subnets, sdn.SubnetSpec{Base: base, CIDR: p, NoDHCP: true})
	}
	network, err := r.routedNetwork(ctx, spec)
	if err != nil {
		return err
	}
	r.cfg.Infrastructure.Nodes.Network, r.cfg.Infrastructure.Nodes.Name = network, name
	return nil
}

// KeyName names in Keys what nodes have.
const KeyName = "nodes"

// PreparePortGroups makes the group of the nodes' own ports, to which hosts' own filters
// are enough, and the one that lets nodes in to pods whose groups might not: what the
// kubelet probes must always answer.
func (r *Node) PreparePortGroups(ctx context.Context) error {
	can := r.SDN.Capabilities()
	if r.cfg.Infrastructure.Nodes.Network.ID == "" || !can.SecurityGroups || can.GrouplessOpen {
		return nil
	}
	group, err := r.OpenGroup(ctx, KeyName, "kuryr-nodes", r.cfg.Project)
	if err != nil {
		return err
	}
	r.cfg.Infrastructure.Nodes.Groups = []string{group}
	spec := sdn.SecurityGroupSpec{Base: r.Base(v1.KeyKindSecurityGroup, "from-nodes", "kuryr-from-nodes", r.cfg.Project)}
	for _, p := range r.cfg.Infrastructure.NodeRanges {
		spec.Rules = append(spec.Rules, sdn.Rule{Direction: sdn.Ingress, IPv6: p.Addr().Is6(), RemotePrefix: p})
	}
	return r.Call(ctx, func(ctx context.Context) error {
		made, err := r.SDN.ApplySecurityGroup(ctx, spec)
		r.cfg.Infrastructure.Nodes.Admit = string(made.ID)
		return err
	})
}

// PathsOf are the ranges that a node reaches by its own port: where pods' subnets are cut
// from, and existing networks on the router. One that has an address of the node's own is
// left out: the node would cut itself off.
func (r *Node) PathsOf(ctx context.Context, n *corev1.Node) (paths []netip.Prefix, left []string, err error) {
	add := func(p netip.Prefix) {
		if slices.ContainsFunc(paths, func(o netip.Prefix) bool { return core.Covers(o, p) }) {
			return
		}
		for _, a := range n.Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil && p.Contains(addr) {
				left = append(left, fmt.Sprintf("%s has the node's address %s", p, addr))
				return
			}
		}
		paths = append(paths, p)
	}
	for _, p := range r.cfg.Infrastructure.Nodes.Reach {
		add(p)
	}
	for _, p := range r.cfg.ServicePrefixes() {
		add(p)
	}
	var networks v1.KuryrNetworkList
	if err := r.Client.List(ctx, &networks); err != nil {
		return nil, nil, err
	}
	for i := range networks.Items {
		s := &networks.Items[i].Status
		if s.Router != string(r.cfg.Infrastructure.Router) {
			continue
		}
		for _, subnet := range s.Subnets {
			if p, err := netip.ParsePrefix(subnet.CIDR); err == nil {
				add(p)
			}
		}
	}
	slices.SortFunc(paths, func(a, b netip.Prefix) int { return a.Compare(b) })
	return paths, left, nil
}

// PrefixesOf are the network's subnets, where it is on the router, that the ranges known
// from the start do not cover: nodes need routes to them.
func (r *Node) PrefixesOf(n *v1.KuryrNetwork) (all []netip.Prefix) {
	if n == nil || n.Status.Router != string(r.cfg.Infrastructure.Router) {
		return nil
	}
	for _, s := range n.Status.Subnets {
		p, err := netip.ParsePrefix(s.CIDR)
		covers := func(o netip.Prefix) bool { return core.Covers(o, p) }
		if err == nil && !slices.ContainsFunc(r.cfg.Infrastructure.Nodes.Reach, covers) {
			all = append(all, p)
		}
	}
	return all
}

// WithRoutes are a node's own port's subnets with routes to the paths by way of the
// router, and without a gateway: the node has its own.
func WithRoutes(subnets []v1.PortSubnet, paths []netip.Prefix) []v1.PortSubnet {
	for i := range subnets {
		s := &subnets[i]
		gateway, err := netip.ParseAddr(s.Gateway)
		if s.Gateway, s.Routes, s.DNS = "", nil, nil; err != nil {
			continue
		}
		for _, p := range paths {
			if p.Addr().Is4() == gateway.Is4() {
				s.Routes = append(s.Routes, v1.PortRoute{Destination: p.String(), NextHop: gateway.String()})
			}
		}
	}
	return subnets
}

// routedNetwork makes a network with an interface of the router on each of its subnets.
func (r *Node) routedNetwork(ctx context.Context, spec sdn.NetworkSpec) (network sdn.Network, err error) {
	err = r.Call(ctx, func(ctx context.Context) (err error) { network, err = r.SDN.EnsureNetwork(ctx, spec); return err })
	if err != nil {
		return network, err
	}
	for _, s := range network.Subnets {
		if err := r.Call(ctx, func(ctx context.Context) error {
			return r.SDN.AttachSubnet(ctx, r.cfg.Infrastructure.Router, s, netip.Addr{})
		}); err != nil {
			return network, fmt.Errorf("interface of the router: %w", err)
		}
	}
	return network, nil
}
