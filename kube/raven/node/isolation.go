package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/raven/core"
	"github.com/kuryr/kuryr/sdn"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// What the cluster has one of, in Keys.
const (
	isolatedName = "isolated" // the security group of pods that are kept from the nodes' network
	beyondName   = "beyond"   // the address group of all that is beyond the nodes' network
)

// APIService is the Service whose endpoints are the API servers; they write them
// themselves.
const APIService = "kubernetes"

// PortDNS is what name servers on the nodes' network are asked at.
const PortDNS = 53

// isolation keeps pods from the network of the nodes, but for the API servers and for
// name servers: a security group, which lets pods send to all that is beyond that
// network. What the nodes begin themselves passes, and so do the answers to it. It
// follows the nodes' addresses and the API servers'.
type isolation struct{ *Node }

// Reconcile has the group be what the cluster is at this moment; without isolation it is
// deleted, once no port has it any more.
func (r isolation) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	if !r.cfg.Isolated {
		return r.disband(ctx)
	}
	_, err := r.Isolate(ctx)
	return core.Result(0, err)
}

// disbandPause is when a group that ports still have is tried again.
const disbandPause = 10 * time.Second

// disband deletes what isolate has made.
func (r *Node) disband(ctx context.Context) (ctrl.Result, error) {
	if can := r.SDN.Capabilities(); !can.SecurityGroups {
		return ctrl.Result{}, nil
	}
	err := r.Call(ctx, func(ctx context.Context) error {
		match := func(name string) sdn.Match {
			return sdn.Match{Keys: []sdn.Key{r.Key(v1.KeyKindSecurityGroup, name)}}
		}
		group, found, err := sdn.First(r.SDN.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{Match: match(isolatedName)}))
		if found && err == nil {
			err = r.SDN.DeleteSecurityGroup(ctx, group.ID)
		}
		if err != nil && !sdn.IsNotFound(err) || !r.SDN.Capabilities().AddressGroups {
			return err
		}
		set, found, err := sdn.First(r.SDN.FindAddressGroups(ctx, sdn.AddressGroupQuery{Match: match(beyondName)}))
		if found && err == nil {
			err = r.SDN.DeleteAddressGroup(ctx, set.ID)
		}
		return err
	})
	switch {
	case sdn.IsConflict(err):
		return ctrl.Result{RequeueAfter: disbandPause}, nil
	case sdn.IsNotFound(err), sdn.IsUnsupported(err):
		err = nil
	}
	return core.Result(0, err)
}

// Isolate has the SDN have the group, and gives its id.
func (r *Node) Isolate(ctx context.Context) (sdn.ID, error) {
	if !r.SDN.Capabilities().SecurityGroups {
		return "", sdn.Unsupported("security group",
			"this SDN has none, by which controller.underlay_isolation keeps pods from the nodes' network")
	}
	underlay, err := r.underlay(ctx)
	if err != nil {
		return "", err
	}
	servers, err := r.apiServers(ctx)
	if err != nil {
		return "", err
	}
	if len(servers) == 0 {
		r.Log.WarnContext(ctx, "pods cannot reach the API servers: they have no endpoints")
	}
	if err := r.cfg.Isolating(ctx, underlay, servers); err != nil {
		return "", err
	}
	base := r.Base(v1.KeyKindSecurityGroup, isolatedName, "kuryr-pods-isolated", r.cfg.Project)
	spec := sdn.SecurityGroupSpec{Base: base}
	var beyond []netip.Prefix
	for _, zero := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		every := netip.PrefixFrom(zero, 0)
		six := every.Addr().Is6()
		spec.Rules = append(spec.Rules, sdn.Rule{Direction: sdn.Ingress, IPv6: six})
		if cut := without(every, underlay); len(cut) != 1 || cut[0] != every {
			beyond = append(beyond, cut...)
		} else {
			// Nothing of the nodes' is of this family.
			spec.Rules = append(spec.Rules, sdn.Rule{Direction: sdn.Egress, IPv6: six})
		}
	}
	spec.Rules = append(spec.Rules, doors(underlay, servers)...)
	var group sdn.SecurityGroup
	err = r.Call(ctx, func(ctx context.Context) error {
		rules, err := r.towards(ctx, beyond)
		if err != nil {
			return err
		}
		spec.Rules = append(spec.Rules, rules...)
		group, err = r.SDN.ApplySecurityGroup(ctx, spec)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("isolation from the nodes' network: %w", err)
	}
	return group.ID, nil
}

// towards are rules that let pass what goes to prefixes: by an address group, or where
// the SDN has none by a rule for each, of which its quota must allow enough.
func (r *Node) towards(ctx context.Context, prefixes []netip.Prefix) (rules []sdn.Rule, err error) {
	if !r.SDN.Capabilities().AddressGroups {
		for _, p := range prefixes {
			rules = append(rules, sdn.Rule{Direction: sdn.Egress, IPv6: p.Addr().Is6(), RemotePrefix: p})
		}
		return rules, nil
	}
	base := r.Base(v1.KeyKindSecurityGroup, beyondName, "kuryr-beyond-nodes", r.cfg.Project)
	set, err := r.SDN.ApplyAddressGroup(ctx, sdn.AddressGroupSpec{Base: base, Prefixes: prefixes})
	for _, six := range []bool{false, true} {
		if slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Addr().Is6() == six }) {
			rules = append(rules, sdn.Rule{Direction: sdn.Egress, IPv6: six, RemoteSet: set.ID})
		}
	}
	return rules, err
}

// doors are rules for what pods reach on the nodes' network all the same: name servers,
// and the API servers.
func doors(underlay []netip.Prefix, servers []netip.AddrPort) (rules []sdn.Rule) {
	for _, p := range underlay {
		for _, protocol := range []sdn.Protocol{sdn.UDP, sdn.TCP} {
			rules = append(rules, sdn.Rule{
				Direction: sdn.Egress, IPv6: p.Addr().Is6(), Protocol: protocol,
				Ports: sdn.PortRange{First: PortDNS, Last: PortDNS}, RemotePrefix: p,
			})
		}
	}
	for _, s := range servers {
		rules = append(rules, sdn.Rule{
			Direction: sdn.Egress, IPv6: s.Addr().Is6(), Protocol: sdn.TCP,
			Ports:        sdn.PortRange{First: s.Port(), Last: s.Port()},
			RemotePrefix: netip.PrefixFrom(s.Addr(), s.Addr().BitLen()),
		})
	}
	return rules
}

// underlay is the nodes' network: what the configuration says, with the nodes' own
// addresses and the public network's gateways, which are the host's with the embedded
// SDN. None of the prefixes is within another; they are in order.
func (r *Node) underlay(ctx context.Context) ([]netip.Prefix, error) {
	all := slices.Clone(r.cfg.Networks)
	if r.cfg.Infrastructure.Nodes.Network.ID != "" {
		all = append(all, r.cfg.Infrastructure.NodeRanges...) // by their own ports too
	}
	add := func(a netip.Addr) { all = append(all, netip.PrefixFrom(a, a.BitLen())) }
	var nodes corev1.NodeList
	if err := r.Client.List(ctx, &nodes); err != nil {
		return nil, err
	}
	for i := range nodes.Items {
		for _, a := range nodes.Items[i].Status.Addresses {
			if addr, err := netip.ParseAddr(a.Address); err == nil {
				add(addr.Unmap())
			}
		}
	}
	if r.cfg.Infrastructure.Public != "" {
		subnets, err := r.SubnetsOf(ctx, r.cfg.Infrastructure.Public)
		if err != nil {
			return nil, err
		}
		for _, s := range subnets {
			if s.Gateway.IsValid() {
				add(s.Gateway)
			}
		}
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return a.Compare(b) })
	all = slices.Compact(all)
	return slices.DeleteFunc(slices.Clone(all), func(p netip.Prefix) bool {
		return slices.ContainsFunc(all, func(o netip.Prefix) bool { return o.Bits() < p.Bits() && o.Contains(p.Addr()) })
	}), nil
}

// apiServers are where the API servers say that they listen.
func (r *Node) apiServers(ctx context.Context) (all []netip.AddrPort, err error) {
	var found discoveryv1.EndpointSliceList
	by := client.MatchingLabels{discoveryv1.LabelServiceName: APIService}
	if err := r.Client.List(ctx, &found, client.InNamespace(metav1.NamespaceDefault), by); err != nil {
		return nil, err
	}
	for _, s := range found.Items {
		if s.Name != APIService { // that one the API servers write, others have been made by hand
			continue
		}
		for _, e := range s.Endpoints {
			for _, text := range e.Addresses {
				a, err := netip.ParseAddr(text)
				if err != nil {
					continue // a name
				}
				for _, p := range s.Ports {
					if p.Port != nil && *p.Port > 0 && *p.Port <= 65535 {
						all = append(all, netip.AddrPortFrom(a, uint16(*p.Port)))
					}
				}
			}
		}
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	return slices.Compact(all), nil
}

// without is what is left of a range without holes, in as few prefixes as there can be.
func without(p netip.Prefix, holes []netip.Prefix) []netip.Prefix {
	holes = slices.DeleteFunc(slices.Clone(holes), func(h netip.Prefix) bool { return !h.Overlaps(p) })
	if len(holes) == 0 {
		return []netip.Prefix{p}
	}
	if slices.ContainsFunc(holes, func(h netip.Prefix) bool { return h.Bits() <= p.Bits() }) {
		return nil
	}
	bytes := p.Masked().Addr().AsSlice()
	bytes[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	upper, _ := netip.AddrFromSlice(bytes)
	lower := without(netip.PrefixFrom(p.Addr(), p.Bits()+1), holes)
	return append(lower, without(netip.PrefixFrom(upper, p.Bits()+1), holes)...)
}
