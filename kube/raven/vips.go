package raven

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/kuryr/kuryr/internal/failpoint"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// vipNetwork names the network of ClusterIPs in its Key.
const vipNetwork = "services"

// vips is the VIP network. It changes while Raven runs where the cluster gets another range of ClusterIPs.
type vips struct {
	mu      sync.Mutex
	ranges  []netip.Prefix // of ClusterIPs
	planned []vipSubnet    // without their ids before they are there
	subnets []sdn.Subnet
	public  []claim // the public network's subnets, which none may overlap
}

// serviceRanges are the cluster's ranges of ClusterIPs: those that its ServiceCIDR objects tell, or where it has none those of the configuration.
func (r *Raven) serviceRanges(ctx context.Context) (all []netip.Prefix, err error) {
	if !r.cfg.Services && !r.cfg.NodeBalanced {
		return r.cfg.ServiceRanges, nil
	}
	var objects networkingv1.ServiceCIDRList
	if err := r.api.List(ctx, &objects); err != nil && !meta.IsNoMatchError(err) { // Kubernetes has them since 1.33
		return nil, err
	}
	for _, o := range objects.Items {
		for _, text := range o.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				all = append(all, p.Masked())
			}
		}
	}
	if len(all) == 0 {
		return r.cfg.ServiceRanges, nil
	}
	return all, nil
}

// planVIPs finds out what subnets the VIP network is to have. Without Services it has the ranges themselves, or what it has.
func (r *Raven) planVIPs(ctx context.Context, public sdn.ID) error {
	r.vips.mu.Lock()
	defer r.vips.mu.Unlock()
	ranges, err := r.serviceRanges(ctx)
	if err != nil {
		return err
	}
	r.vips.public = nil
	if public != "" && r.cfg.Services {
		subnets, err := r.subnetsOf(ctx, public)
		if err != nil {
			return err
		}
		for _, s := range subnets {
			if s.CIDR.Bits() > 0 { // the host's own network of the embedded SDN may stand for every address
				r.vips.public = append(r.vips.public, claim{"the public network's subnet", s.CIDR})
			}
		}
	}
	return r.replanVIPs(ctx, ranges)
}

// replanVIPs plans for these ranges. The caller has the lock.
func (r *Raven) replanVIPs(ctx context.Context, ranges []netip.Prefix) (err error) {
	there, err := r.vipSubnetsThere(ctx)
	if err != nil {
		return err
	}
	if r.cfg.Services {
		r.vips.ranges = ranges
		r.vips.planned, err = planVIPs(ranges, r.cfg.VIPSubnets, cidrsOf(there), append(r.otherClaims(), r.vips.public...))
		return err
	}
	r.vips.ranges, r.vips.planned = ranges, nil
	for _, p := range ranges {
		if r.cfg.NodeBalanced {
			break
		}
		s := vipSubnet{cidr: p, gateway: lastAddress(p)} // the first ones are Kubernetes' own
		if i := slices.IndexFunc(there, func(s sdn.Subnet) bool { return s.CIDR.Overlaps(p) }); i >= 0 {
			s.cidr, s.gateway = there[i].CIDR, there[i].Gateway
		}
		if !slices.ContainsFunc(r.vips.planned, func(o vipSubnet) bool { return o.cidr == s.cidr }) {
			r.vips.planned = append(r.vips.planned, s)
		}
	}
	return nil
}

// vipSubnetsThere are those that the VIP network has.
func (r *Raven) vipSubnetsThere(ctx context.Context) (there []sdn.Subnet, err error) {
	err = r.ask(ctx, func(ctx context.Context) error {
		network, found, err := sdn.First(r.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{r.key(v1.KeyKindNetwork, vipNetwork)}}}))
		if err != nil || !found {
			return err
		}
		there, err = sdn.All(r.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network.ID}}))
		return err
	})
	slices.SortFunc(there, func(a, b sdn.Subnet) int { return a.CIDR.Compare(b.CIDR) })
	return there, err
}

func cidrsOf(subnets []sdn.Subnet) (all []netip.Prefix) {
	for _, s := range subnets {
		all = append(all, s.CIDR)
	}
	return all
}

// vipClaims are the subnets of the VIP network, as claims.
func (r *Raven) vipClaims() (claims []claim) {
	r.vips.mu.Lock()
	defer r.vips.mu.Unlock()
	for _, s := range r.vips.planned {
		claims = append(claims, claim{"the services' range", s.cidr})
	}
	if r.cfg.NodeBalanced {
		for _, p := range r.vips.ranges {
			claims = append(claims, claim{"the services' range", p})
		}
	}
	return claims
}

// otherClaims are the cluster's ranges but for those of Services.
func (r *Raven) otherClaims() (claims []claim) {
	for _, p := range r.cfg.Ranges {
		claims = append(claims, claim{"the pods' range", p.Prefix})
	}
	if !r.sdn.Capabilities().HostReached {
		for _, p := range r.ground.nodeRanges {
			claims = append(claims, claim{"the nodes' range", p})
		}
	}
	return claims
}

// prepareVIPs makes the network of ClusterIPs with what was planned.
func (r *Raven) prepareVIPs(ctx context.Context) error {
	r.vips.mu.Lock()
	defer r.vips.mu.Unlock()
	return r.makeVIPs(ctx)
}

// makeVIPs has the VIP network be as planned, with a leg of the router on each subnet. One that overlaps with what is planned is from before Services were served, and nothing is on
// it. The caller has the lock.
func (r *Raven) makeVIPs(ctx context.Context) error {
	if len(r.vips.planned) == 0 && !r.cfg.NodeBalanced {
		return nil
	}
	there, err := r.vipSubnetsThere(ctx)
	if err != nil {
		return err
	}
	if r.cfg.NodeBalanced { // packets would come to the subnets, and not to nodes
		for _, s := range there {
			if s.Foreign {
				r.log.WarnContext(ctx, "somebody's subnet is on the VIP network: ClusterIPs of it do not come to nodes", "subnet", s.CIDR)
				continue
			}
			if err := r.dropSubnet(ctx, s.ID); sdn.IsConflict(err) {
				r.log.WarnContext(ctx, "a subnet of the VIP network is in use: ClusterIPs of it do not come to nodes before it has gone and Raven starts anew", "subnet", s.CIDR, "error", err)
			} else if err != nil {
				return err
			}
		}
		return nil
	}
	wanted := func(p netip.Prefix) bool {
		return slices.ContainsFunc(r.vips.planned, func(s vipSubnet) bool { return s.cidr == p })
	}
	for _, s := range there {
		if !wanted(s.CIDR) && !s.Foreign && slices.ContainsFunc(r.vips.planned, func(p vipSubnet) bool { return p.cidr.Overlaps(s.CIDR) }) {
			if err := r.dropSubnet(ctx, s.ID); err != nil {
				return fmt.Errorf("subnet %s, in place of which a larger one is to be: %w", s.CIDR, err)
			}
		}
	}
	var network sdn.Network
	spec := sdn.NetworkSpec{Base: r.base(v1.KeyKindNetwork, vipNetwork, "kuryr-services", r.cfg.Project)}
	if err := r.ask(ctx, func(ctx context.Context) (err error) { network, err = r.sdn.EnsureNetwork(ctx, spec); return err }); err != nil {
		return err
	}
	failpoint.Here("raven.vips.network")
	var made []sdn.Subnet
	for _, s := range r.vips.planned {
		subnet, err := r.makeVIPSubnet(ctx, network.ID, s, there)
		if err != nil {
			return fmt.Errorf("subnet %s: %w", s.cidr, err)
		}
		made = append(made, subnet)
	}
	r.vips.subnets = made
	return nil
}

func (r *Raven) makeVIPSubnet(ctx context.Context, network sdn.ID, s vipSubnet, there []sdn.Subnet) (subnet sdn.Subnet, err error) {
	i := slices.IndexFunc(there, func(t sdn.Subnet) bool { return t.CIDR == s.cidr })
	err = r.ask(ctx, func(ctx context.Context) (err error) {
		if i < 0 {
			name := "services-v4"
			if s.cidr.Addr().Is6() {
				name = "services-v6"
			}
			subnet, err = r.sdn.EnsureSubnet(ctx, sdn.SubnetSpec{
				Base: r.base(v1.KeyKindSubnet, vipNetwork+"."+s.cidr.String(), "kuryr-"+name, r.cfg.Project), Network: network, CIDR: s.cidr, Gateway: sdn.Gateway{Addr: s.gateway}, Ranges: s.free, NoDHCP: true,
			})
			return err
		}
		subnet = there[i]
		if !subnet.Foreign && r.cfg.Services && overlap(subnet.Ranges, r.vips.ranges) { // a range of ClusterIPs has come into it
			subnet, err = r.sdn.UpdateSubnet(ctx, subnet.ID, sdn.SubnetPatch{Ranges: &s.free})
		}
		return err
	})
	if err != nil {
		return subnet, err
	}
	failpoint.Here("raven.vips.subnet")
	if r.cfg.Services && slices.ContainsFunc(r.vips.ranges, func(p netip.Prefix) bool { return p.Contains(subnet.Gateway) }) {
		r.log.WarnContext(ctx, "the VIP network's gateway is in a range of ClusterIPs: no Service can have that one", "gateway", subnet.Gateway)
	}
	err = r.ask(ctx, func(ctx context.Context) error {
		return r.sdn.AttachSubnet(ctx, r.ground.router, subnet.ID, netip.Addr{})
	})
	if err != nil {
		return subnet, fmt.Errorf("leg of the router: %w", err)
	}
	failpoint.Here("raven.vips.attached")
	return subnet, nil
}

// overlap tells whether addresses to be given away are in one of the prefixes.
func overlap(given []sdn.AddressRange, prefixes []netip.Prefix) bool {
	return slices.ContainsFunc(given, func(r sdn.AddressRange) bool {
		return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool {
			return p.Contains(r.First) || p.Contains(r.Last) || !p.Addr().Less(r.First) && !r.Last.Less(p.Addr())
		})
	})
}

// dropSubnet deletes a subnet with the router's leg.
func (r *Raven) dropSubnet(ctx context.Context, id sdn.ID) error {
	return r.ask(ctx, func(ctx context.Context) error {
		if err := r.sdn.DetachSubnet(ctx, r.ground.router, id); err != nil && !sdn.IsNotFound(err) {
			return err
		}
		failpoint.Here("raven.vips.detached")
		if err := r.sdn.DeleteSubnet(ctx, id); err != nil && !sdn.IsNotFound(err) {
			return err
		}
		return nil
	})
}

// vipSubnetOf gives the subnet of a ClusterIP. One of a range that the cluster has got since has its subnet made.
func (r *Raven) vipSubnetOf(ctx context.Context, addr netip.Addr) (sdn.ID, error) {
	r.vips.mu.Lock()
	defer r.vips.mu.Unlock()
	in := func(p netip.Prefix) bool { return p.Contains(addr) }
	if !slices.ContainsFunc(r.vips.ranges, in) {
		ranges, err := r.serviceRanges(ctx)
		if err != nil {
			return "", err
		}
		if !slices.ContainsFunc(ranges, in) {
			return "", waiting{fmt.Sprintf("ClusterIP %s is in none of the cluster's ranges that Raven knows (%v)", addr, ranges)}
		}
		planned, known := r.vips.planned, r.vips.ranges
		err = r.replanVIPs(ctx, ranges)
		if err == nil {
			err = r.makeVIPs(ctx)
		}
		if err != nil {
			r.vips.planned, r.vips.ranges = planned, known
			return "", fmt.Errorf("VIP network: %w", err)
		}
	}
	for _, s := range r.vips.subnets {
		if s.CIDR.Contains(addr) {
			return s.ID, nil
		}
	}
	return "", waiting{fmt.Sprintf("ClusterIP %s is on no subnet of the VIP network", addr)}
}
