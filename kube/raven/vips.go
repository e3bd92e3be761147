package raven

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/kuryr/kuryr/internal/failpoint"
	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
)

// vipNetwork names the network of ClusterIPs in its Key.
const vipNetwork = "services"

// vips is the VIP network. It changes while Raven runs where the cluster gets another range of ClusterIPs.
type vips struct {
	making sync.Mutex   // has who changes it in the SDN, which takes its time
	public []core.Claim // the public network's subnets, which none may overlap; written by Prepare

	mu      sync.Mutex     // of what is known
	known   []netip.Prefix // the cluster's ranges that the plan is for
	plan    vipPlan        // its subnets without ids
	subnets []sdn.Subnet   // that are there, each with a leg of the router
	served  []netip.Prefix // the ranges of the plan whose subnet is there and gives none of their addresses away
	project *string        // that the VIP network is in; nil before it is there
}

// ownProject returns the project of the VIP network, which is Raven's.
func (v *vips) ownProject() (id string, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.project == nil {
		return "", false
	}
	return *v.project, true
}

// planned is what the VIP network is to be, and for which ranges that was planned.
func (v *vips) planned() (known []netip.Prefix, plan vipPlan) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.known, v.plan
}

// subnetOf finds the subnet of a ClusterIP of a range that is served.
func (v *vips) subnetOf(addr netip.Addr) (id sdn.ID, found bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	i := slices.IndexFunc(v.subnets, func(s sdn.Subnet) bool { return s.CIDR.Contains(addr) })
	if i < 0 || !slices.ContainsFunc(v.served, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return "", false
	}
	return v.subnets[i].ID, true
}

// there are the subnets that are there.
func (v *vips) there() []sdn.Subnet {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.subnets // never changed, only replaced
}

// serviceRanges are the cluster's ranges of ClusterIPs, the oldest first: those that its ServiceCIDR objects tell, or where it has none those of the configuration.
func (r *Raven) serviceRanges(ctx context.Context) (all []netip.Prefix, err error) {
	if !r.cfg.Services && !r.cfg.NodeBalanced {
		return r.cfg.ServiceRanges, nil
	}
	var objects networkingv1.ServiceCIDRList
	if err := r.Client.List(ctx, &objects); err != nil && !meta.IsNoMatchError(err) { // Kubernetes has them since 1.33
		return nil, err
	}
	slices.SortFunc(objects.Items, func(a, b networkingv1.ServiceCIDR) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
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

// planVIPs finds out what subnets the VIP network is to have. Without Services it has the ranges themselves, or what it has. A range that cannot be served keeps no other out; that none
// can is an error.
func (r *Raven) planVIPs(ctx context.Context, public sdn.ID) error {
	r.vips.making.Lock()
	defer r.vips.making.Unlock()
	ranges, err := r.serviceRanges(ctx)
	if err != nil {
		return err
	}
	r.vips.public = nil
	if public != "" && (r.cfg.Services || r.cfg.NodeBalanced) {
		subnets, err := r.SubnetsOf(ctx, public)
		if err != nil {
			return err
		}
		for _, s := range subnets {
			if s.CIDR.Bits() > 0 { // the host's own network of the embedded SDN may stand for every address
				r.vips.public = append(r.vips.public, core.Claim{What: "the public network's subnet", Prefix: s.CIDR})
			}
		}
	}
	plan, err := r.replanVIPs(ctx, ranges)
	if err == nil && len(plan.ranges) == 0 {
		for _, p := range ranges {
			err = errors.Join(err, plan.refused[p])
		}
	}
	return err
}

// replanVIPs plans for these ranges. The caller holds making.
func (r *Raven) replanVIPs(ctx context.Context, ranges []netip.Prefix) (plan vipPlan, err error) {
	there, err := r.vipSubnetsThere(ctx)
	if err != nil {
		return plan, err
	}
	others := append(r.otherClaims(), r.vips.public...)
	switch {
	case r.cfg.Services:
		plan = planVIPs(ranges, r.cfg.VIPSubnets, cidrsOf(there), others)
	case r.cfg.NodeBalanced:
		plan = planNodeBalanced(ranges, others)
	default:
		plan = planUnserved(ranges, there)
	}
	for p, why := range plan.refused {
		r.Log.WarnContext(ctx, "Services of this range are not served", "range", p, "error", why)
	}
	r.vips.mu.Lock()
	defer r.vips.mu.Unlock()
	r.vips.known, r.vips.plan = ranges, plan
	return plan, nil
}

// planUnserved is the plan where Services are another's: the VIP network has the ranges themselves, or what it has.
func planUnserved(ranges []netip.Prefix, there []sdn.Subnet) vipPlan {
	plan := vipPlan{ranges: ranges}
	for _, p := range ranges {
		s := vipSubnet{cidr: p, gateway: core.LastAddress(p)} // the first ones are Kubernetes' own
		if i := slices.IndexFunc(there, func(s sdn.Subnet) bool { return s.CIDR.Overlaps(p) }); i >= 0 {
			s.cidr, s.gateway = there[i].CIDR, there[i].Gateway
		}
		if !slices.ContainsFunc(plan.subnets, func(o vipSubnet) bool { return o.cidr == s.cidr }) {
			plan.subnets = append(plan.subnets, s)
		}
	}
	return plan
}

// vipSubnetsThere are those that the VIP network has.
func (r *Raven) vipSubnetsThere(ctx context.Context) (there []sdn.Subnet, err error) {
	err = r.Call(ctx, func(ctx context.Context) error {
		network, found, err := sdn.First(r.SDN.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{r.Key(v1.KeyKindNetwork, vipNetwork)}}}))
		if err != nil || !found {
			return err
		}
		there, err = sdn.All(r.SDN.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network.ID}}))
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
func (r *Raven) vipClaims() (claims []core.Claim) {
	_, plan := r.vips.planned()
	for _, s := range plan.subnets {
		claims = append(claims, core.Claim{What: "the services' range", Prefix: s.cidr})
	}
	if r.cfg.NodeBalanced {
		for _, p := range plan.ranges {
			claims = append(claims, core.Claim{What: "the services' range", Prefix: p})
		}
	}
	return claims
}

// otherClaims are the cluster's ranges but for those of Services.
func (r *Raven) otherClaims() (claims []core.Claim) {
	for _, p := range r.cfg.Ranges {
		claims = append(claims, core.Claim{What: "the pods' range", Prefix: p.Prefix})
	}
	if !r.SDN.Capabilities().HostReached {
		for _, p := range r.ground.NodeRanges {
			claims = append(claims, core.Claim{What: "the nodes' range", Prefix: p})
		}
	}
	return claims
}

// prepareVIPs makes the network of ClusterIPs with what was planned. A subnet that the SDN refuses keeps no other out, and is asked for again with the first Service that needs it.
func (r *Raven) prepareVIPs(ctx context.Context) error {
	r.vips.making.Lock()
	defer r.vips.making.Unlock()
	err := r.makeVIPs(ctx)
	r.legged.Set(r.Now())
	if made := len(r.vips.subnets) > 0; err != nil && made && ctx.Err() == nil && !slices.ContainsFunc(core.Errors(err), core.Passing) {
		r.Log.WarnContext(ctx, "the VIP network is not whole", "error", err)
		return nil
	}
	return err
}

// makeVIPs has the VIP network be as planned, with a leg of the router on each subnet. What one of them fails at holds up no other: a subnet that served before goes on. The caller holds making.
func (r *Raven) makeVIPs(ctx context.Context) error {
	_, plan := r.vips.planned()
	if len(plan.subnets) == 0 && !r.cfg.NodeBalanced {
		return nil
	}
	there, err := r.vipSubnetsThere(ctx)
	if err != nil {
		return err
	}
	if r.cfg.NodeBalanced { // packets would come to the subnets, and not to nodes
		return r.dropVIPs(ctx, there)
	}
	blocked := r.clearVIPs(ctx, plan, there)
	var network sdn.Network
	spec := sdn.NetworkSpec{Base: r.Base(v1.KeyKindNetwork, vipNetwork, "kuryr-services", r.cfg.Project)}
	if err := r.Call(ctx, func(ctx context.Context) (err error) { network, err = r.SDN.EnsureNetwork(ctx, spec); return err }); err != nil {
		return err
	}
	failpoint.Here("raven.vips.network")
	r.vips.mu.Lock()
	before, servedBefore := r.vips.subnets, r.vips.served
	r.vips.project = &network.Project
	r.vips.mu.Unlock()
	var made []sdn.Subnet
	var served []netip.Prefix
	var errs []error
	for _, s := range plan.subnets {
		subnet, err := sdn.Subnet{}, blocked[s.cidr]
		if err == nil {
			subnet, err = r.makeVIPSubnet(ctx, network.ID, s, plan.ranges, there)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("subnet %s: %w", s.cidr, err))
			i := slices.IndexFunc(before, func(o sdn.Subnet) bool { return o.CIDR == s.cidr })
			if i < 0 {
				continue
			}
			subnet = before[i]
		}
		made = append(made, subnet)
		for _, p := range plan.ranges {
			if s.cidr.Contains(p.Addr()) && (err == nil || slices.Contains(servedBefore, p)) {
				served = append(served, p)
			}
		}
	}
	r.vips.mu.Lock()
	defer r.vips.mu.Unlock()
	r.vips.subnets, r.vips.served = made, served
	return errors.Join(errs...)
}

// dropVIPs takes the VIP network's subnets away.
func (r *Raven) dropVIPs(ctx context.Context, there []sdn.Subnet) error {
	for _, s := range there {
		if s.Foreign {
			r.Log.WarnContext(ctx, "somebody's subnet is on the VIP network: ClusterIPs of it do not come to nodes", "subnet", s.CIDR)
			continue
		}
		if err := r.dropSubnet(ctx, s.ID); sdn.IsConflict(err) {
			r.Log.WarnContext(ctx, "a subnet of the VIP network is in use: ClusterIPs of it do not come to nodes before it has gone and Raven starts anew", "subnet", s.CIDR, "error", err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// clearVIPs takes away the subnets that are not planned any more. One that overlaps with what is planned is from before Services were served, and nothing is on it; one that does not is of a
// range that the cluster has no more, and stays while there are ports on it, or it cannot go: it is in nobody's way. blocked are the planned subnets that one which cannot go is in the way of.
func (r *Raven) clearVIPs(ctx context.Context, plan vipPlan, there []sdn.Subnet) (blocked map[netip.Prefix]error) {
	blocked = map[netip.Prefix]error{}
	for _, s := range there {
		if s.Foreign || slices.ContainsFunc(plan.subnets, func(p vipSubnet) bool { return p.cidr == s.CIDR }) {
			continue
		}
		i := slices.IndexFunc(plan.subnets, func(p vipSubnet) bool { return p.cidr.Overlaps(s.CIDR) })
		used, err := r.usedVIPs(ctx, s.ID)
		if err == nil && !used {
			err = r.dropSubnet(ctx, s.ID)
		}
		switch {
		case err == nil && !used:
		case i < 0:
			r.Log.WarnContext(ctx, "a subnet of the VIP network is of no range of ClusterIPs, and stays", "subnet", s.CIDR, "used", used, "error", err)
		case err != nil:
			blocked[plan.subnets[i].cidr] = fmt.Errorf("the subnet %s, which is in its place: %w", s.CIDR, err)
		default:
			blocked[plan.subnets[i].cidr] = fmt.Errorf("the subnet %s is in its place, with ports", s.CIDR)
		}
	}
	return blocked
}

// usedVIPs tells whether ports have addresses of a subnet, but for the SDN's own, such as the router's leg.
func (r *Raven) usedVIPs(ctx context.Context, subnet sdn.ID) (used bool, err error) {
	err = r.Call(ctx, func(ctx context.Context) error {
		for p, err := range r.SDN.FindPorts(ctx, sdn.PortQuery{Subnets: []sdn.ID{subnet}}) {
			if err != nil {
				return err
			}
			if !strings.HasPrefix(p.DeviceOwner, "network:") {
				used = true
				return nil
			}
		}
		return nil
	})
	return used, err
}

func (r *Raven) makeVIPSubnet(ctx context.Context, network sdn.ID, s vipSubnet, ranges []netip.Prefix, there []sdn.Subnet) (subnet sdn.Subnet, err error) {
	i := slices.IndexFunc(there, func(t sdn.Subnet) bool { return t.CIDR == s.cidr })
	err = r.Call(ctx, func(ctx context.Context) (err error) {
		if i < 0 {
			name := "services-v4"
			if s.cidr.Addr().Is6() {
				name = "services-v6"
			}
			subnet, err = r.SDN.EnsureSubnet(ctx, sdn.SubnetSpec{
				Base: r.Base(v1.KeyKindSubnet, vipNetwork+"."+s.cidr.String(), "kuryr-"+name, r.cfg.Project), Network: network, CIDR: s.cidr, Gateway: sdn.Gateway{Addr: s.gateway}, Ranges: s.free, NoDHCP: true,
			})
			return err
		}
		subnet = there[i]
		if !subnet.Foreign && r.cfg.Services && overlap(subnet.Ranges, ranges) { // a range of ClusterIPs has come into it
			subnet, err = r.SDN.UpdateSubnet(ctx, subnet.ID, sdn.SubnetPatch{Ranges: &s.free})
		}
		return err
	})
	if err != nil {
		return subnet, err
	}
	failpoint.Here("raven.vips.subnet")
	if r.cfg.Services && slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(subnet.Gateway) }) {
		r.Log.WarnContext(ctx, "the VIP network's gateway is in a range of ClusterIPs: no Service can have that one", "gateway", subnet.Gateway)
	}
	err = r.Call(ctx, func(ctx context.Context) error {
		return r.SDN.AttachSubnet(ctx, r.ground.Router, subnet.ID, netip.Addr{})
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
	return r.Call(ctx, func(ctx context.Context) error {
		if err := r.SDN.DetachSubnet(ctx, r.ground.Router, id); err != nil && !sdn.IsNotFound(err) {
			return err
		}
		failpoint.Here("raven.vips.detached")
		if err := r.SDN.DeleteSubnet(ctx, id); err != nil && !sdn.IsNotFound(err) {
			return err
		}
		return nil
	})
}

// refused is of a ClusterIP whose range cannot be served, until the cluster has other ranges.
type refused string

func (r refused) Error() string { return string(r) }

// Unwrap makes it an error that waits.
func (r refused) Unwrap() error { return core.Waiting(r) }

// underway is of a ClusterIP whose subnet may be what another is making: it is looked for again in a moment, as nothing tells.
type underway string

func (u underway) Error() string { return string(u) }

// Unwrap makes it an error that waits.
func (u underway) Unwrap() error { return core.Waiting(u) }

// vipSubnetOf gives the subnet of a ClusterIP. One of a range that the cluster has got since has its subnet made, for which nobody waits here: see underway.
func (r *Raven) vipSubnetOf(ctx context.Context, addr netip.Addr) (sdn.ID, error) {
	if id, found := r.vips.subnetOf(addr); found {
		return id, nil
	}
	if !r.vips.making.TryLock() {
		return "", underway(fmt.Sprintf("ClusterIP %s: the VIP network is being changed", addr))
	}
	defer r.vips.making.Unlock()
	if id, found := r.vips.subnetOf(addr); found { // another has made it
		return id, nil
	}
	ranges, err := r.serviceRanges(ctx)
	if err != nil {
		return "", err
	}
	known, plan := r.vips.planned()
	if !slices.Equal(ranges, known) {
		if plan, err = r.replanVIPs(ctx, ranges); err != nil {
			return "", fmt.Errorf("VIP network: %w", err)
		}
	}
	if in := func(p netip.Prefix) bool { return p.Contains(addr) }; !slices.ContainsFunc(plan.ranges, in) {
		if i := slices.IndexFunc(ranges, in); i >= 0 {
			return "", refused(fmt.Sprintf("ClusterIP %s: %v", addr, plan.refused[ranges[i]]))
		}
		return "", core.Waiting(fmt.Sprintf("ClusterIP %s is in none of the cluster's ranges that Raven knows (%v)", addr, ranges))
	}
	err = r.makeVIPs(ctx)
	if id, found := r.vips.subnetOf(addr); found { // what else failed is others'
		return id, nil
	}
	if err != nil {
		return "", fmt.Errorf("VIP network: %w", err)
	}
	return "", core.Waiting(fmt.Sprintf("ClusterIP %s is on no subnet of the VIP network", addr))
}

// rangesForNodes are the ranges of ClusterIPs that nodes balance, as the cluster has them now.
func (r *Raven) rangesForNodes(ctx context.Context) ([]netip.Prefix, error) {
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

// servicePrefixes returns what a node's own programs reach ClusterIPs by: none where neither the SDN nor
// nodes balance them.
func (r *Raven) servicePrefixes() (all []netip.Prefix) {
	if !r.cfg.Services && !r.cfg.NodeBalanced {
		return nil
	}
	for _, c := range r.vipClaims() {
		all = append(all, c.Prefix)
	}
	return all
}
