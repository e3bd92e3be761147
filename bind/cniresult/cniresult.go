// Package cniresult tells of a plugged port in the words of CNI: the result of an ADD.
//
// It owns that translation alone. It must not plug, nor ask an SDN, nor know which
// version of CNI a caller speaks.
package cniresult

import (
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/kuryr/kuryr/sdn"
)

// Plugged is an interface that has been plugged into a container, with all that a result
// tells of it.
type Plugged struct {
	Port      sdn.Port
	MTU       int
	Subnets   []sdn.Subnet
	Host      string // name of the host end; "" where there is none in the host's namespace
	Name      string // of the container end
	Namespace string // its path
	// KeptRoutes are destinations that another interface of the container routes
	// (bind.Result). A result does not list them.
	KeptRoutes []netip.Prefix
}

// Result is what is told of the interface, in the newest version.
func (p Plugged) Result() *types100.Result {
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	if p.Host != "" {
		r.Interfaces = append(r.Interfaces, &types100.Interface{Name: p.Host})
	}
	at := len(r.Interfaces)
	r.Interfaces = append(r.Interfaces, &types100.Interface{
		Name: p.Name, Mac: p.Port.MAC.String(), Mtu: p.MTU, Sandbox: p.Namespace,
	})
	kept := map[netip.Prefix]bool{}
	for _, to := range p.KeptRoutes {
		kept[to] = true
	}
	add := func(to netip.Prefix, via net.IP) {
		if !kept[to.Masked()] {
			r.Routes = append(r.Routes, &types.Route{Dst: ipNet(to), GW: via})
		}
	}
	routed := map[bool]bool{} // by whether IPv6
	told := map[sdn.ID]bool{}
	for _, a := range p.Port.Addresses {
		s := p.subnet(a.Subnet)
		if !s.CIDR.IsValid() {
			continue
		}
		ip := &types100.IPConfig{Interface: types100.Int(at), Address: ipNet(netip.PrefixFrom(a.Addr, s.CIDR.Bits()))}
		if s.Gateway.IsValid() {
			ip.Gateway = s.Gateway.AsSlice()
		}
		r.IPs = append(r.IPs, ip)
		if told[s.ID] {
			continue
		}
		told[s.ID] = true
		if s.Gateway.IsValid() && s.Gateway != a.Addr && !routed[a.Addr.Is6()] {
			routed[a.Addr.Is6()] = true
			every := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			if a.Addr.Is6() {
				every = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			}
			add(every, s.Gateway.AsSlice())
		}
		for _, h := range s.HostRoutes {
			var via net.IP
			if !h.Connected() {
				via = h.NextHop.AsSlice()
			}
			add(h.Destination, via)
		}
		for _, n := range s.Nameservers {
			r.DNS.Nameservers = append(r.DNS.Nameservers, n.String())
		}
	}
	return r
}

func (p Plugged) subnet(id sdn.ID) sdn.Subnet {
	for _, s := range p.Subnets {
		if s.ID == id {
			return s
		}
	}
	return sdn.Subnet{}
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
