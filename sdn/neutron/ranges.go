package neutron

import (
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
	"go4.org/netipx"
)

// checkSubnet refuses what makes no sense whatever the network.
func checkSubnet(spec sdn.SubnetSpec) error {
	if err := valid.Base("subnet", spec.Base); err != nil {
		return err
	}
	if !spec.CIDR.IsValid() {
		if spec.Pool == "" {
			return sdn.Invalid("subnet", "cidr", "is missing, and there is no pool to cut one from")
		}
		if spec.Gateway.Addr.IsValid() || len(spec.Ranges) > 0 {
			return sdn.Invalid("subnet", "cidr", "is missing: gateway and ranges need it")
		}
		return nil
	}
	if err := valid.Prefix("subnet", "cidr", spec.CIDR); err != nil {
		return err
	}
	if spec.PrefixLen != 0 && spec.PrefixLen != spec.CIDR.Bits() {
		return sdn.Invalid("subnet", "prefix_len", "is %d, but that of the cidr is %d", spec.PrefixLen, spec.CIDR.Bits())
	}
	if err := checkGateway(spec.CIDR, spec.Gateway); err != nil {
		return err
	}
	if spec.Mode != sdn.Static && spec.CIDR.Addr().Is4() {
		return sdn.Invalid("subnet", "mode", "%s is for IPv6", spec.Mode)
	}
	if err := valid.Ranges(spec.CIDR, spec.Ranges); err != nil {
		return err
	}
	if spec.WithoutRanges && len(spec.Ranges) > 0 {
		return sdn.Invalid("subnet", "ranges", "must be empty without automatic allocation")
	}
	if err := valid.Routes("subnet", "host_routes", spec.HostRoutes); err != nil {
		return err
	}
	if err := valid.RouteFamily(spec.CIDR, spec.HostRoutes); err != nil {
		return err
	}
	if spec.CIDR.Addr().Is6() && spec.CIDR.Bits() == 127 {
		return sdn.Unsupported("subnet", "of the two addresses of %v Neutron would give out one", spec.CIDR)
	}
	if gateway := gatewayOf(spec.CIDR, spec.Gateway); gateway.IsValid() && spec.Mode == sdn.Static && spec.CIDR.Bits() >= gateway.BitLen()-1 {
		return sdn.Unsupported("subnet", "Neutron has no gateway in a range as small as %v", spec.CIDR)
	}
	if len(allocatable(spec.CIDR, gatewayOf(spec.CIDR, spec.Gateway), spec.Ranges, spec.Reserved)) == 0 && len(spec.Ranges)+len(spec.Reserved) > 0 {
		return sdn.Invalid("subnet", "ranges", "leave no address to be given out")
	}
	return nil
}

func checkGateway(cidr netip.Prefix, g sdn.Gateway) error {
	switch {
	case g.None && g.Addr.IsValid():
		return sdn.Invalid("subnet", "gateway", "is %v and none at once", g.Addr)
	case g.Addr.IsValid() && !cidr.Contains(g.Addr):
		return sdn.Invalid("subnet", "gateway", "%v is not inside %v", g.Addr, cidr)
	}
	return nil
}

// whole is what of a subnet can be given out at all, as Neutron has it: of IPv4 neither the network's address nor the broadcast address, of
// IPv6 not the routers' anycast address; of two addresses or one all.
func whole(cidr netip.Prefix) sdn.AddressRange {
	r := sdn.AddressRange{First: cidr.Addr(), Last: netipx.PrefixLastIP(cidr)}
	if cidr.Bits() >= cidr.Addr().BitLen()-1 {
		return r
	}
	r.First = r.First.Next()
	if cidr.Addr().Is4() {
		r.Last = r.Last.Prev()
	}
	return r
}

// allocatable returns the ranges that are given out automatically, in order: those of the subnet,
// or the whole subnet if it has none, without the gateway and the reserved addresses.
func allocatable(
	cidr netip.Prefix, gateway netip.Addr, ranges []sdn.AddressRange, reserved []netip.Addr,
) (out []sdn.AddressRange) {
	if len(ranges) == 0 {
		ranges = []sdn.AddressRange{whole(cidr)}
	}
	var left netipx.IPSetBuilder
	for _, r := range ranges {
		left.AddRange(netipx.IPRangeFrom(r.First, r.Last))
	}
	for _, hole := range append(slices.Clone(reserved), gateway) {
		if hole.IsValid() {
			left.Remove(hole)
		}
	}
	set, _ := left.IPSet() // without ranges that are invalid
	for _, r := range set.Ranges() {
		out = append(out, sdn.AddressRange{First: r.From(), Last: r.To()})
	}
	return out
}

// inRanges reports whether an address is in one of the ranges. An invalid one is in none.
func inRanges(ranges []sdn.AddressRange, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r sdn.AddressRange) bool {
		return a.IsValid() && a.BitLen() == r.First.BitLen() && !a.Less(r.First) && !r.Last.Less(a)
	})
}

// touches tells whether an address lies right before or after a range: it was left out of it, as the gateway is.
func touches(ranges []sdn.AddressRange, a netip.Addr) bool {
	return inRanges(ranges, a.Next()) || inRanges(ranges, a.Prev())
}
