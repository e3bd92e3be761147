package valid

import (
	"net/netip"

	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/sdn"
)

// Rule refuses a security group's rule that no data path can follow; field is what it is
// called in its group, such as rules[2].
func Rule(field string, r sdn.Rule) error {
	bad := func(part, detail string, args ...any) error {
		return sdn.Invalid("security group", field+"."+part, detail, args...)
	}
	switch {
	case r.Direction != sdn.Ingress && r.Direction != sdn.Egress:
		return bad("direction", "must be %s or %s, not %q", sdn.Ingress, sdn.Egress, r.Direction)
	case r.Protocol == ipproto.ICMPv6 && !r.IPv6, r.Protocol == ipproto.ICMP && r.IPv6:
		return bad("protocol", "%d is of the other family", r.Protocol)
	case r.ICMPType != nil && !ipproto.IsICMP(r.Protocol):
		return bad("icmp_type", "needs the protocol 1 or 58, not %d", r.Protocol)
	case r.ICMPCode != nil && r.ICMPType == nil:
		return bad("icmp_code", "needs a type")
	case r.Ports != sdn.PortRange{} && !ipproto.HasPorts(r.Protocol):
		return bad("ports", "the protocol %d has none", r.Protocol)
	case r.Ports.First == 0 && r.Ports.Last != 0:
		return bad("ports.first", "is missing")
	case r.Ports.Last != 0 && r.Ports.Last < r.Ports.First:
		return bad("ports.last", "%d comes before the first, %d", r.Ports.Last, r.Ports.First)
	}
	remotes := 0
	if r.RemotePrefix != (netip.Prefix{}) {
		remotes++
		if !r.RemotePrefix.IsValid() || r.RemotePrefix.Addr().Is4() == r.IPv6 {
			return bad("remote_prefix", "%v is not of the rule's family", r.RemotePrefix)
		}
		if err := Addr("security group", field+".remote_prefix", r.RemotePrefix.Addr()); err != nil {
			return err
		}
	}
	for _, id := range []sdn.ID{r.RemoteGroup, r.RemoteSet} {
		if id != "" {
			remotes++
		}
	}
	if remotes > 1 {
		return bad("remote_prefix", "a rule has one remote: a prefix, a group or an address group")
	}
	return Text("security group", field+".description", r.Description)
}
