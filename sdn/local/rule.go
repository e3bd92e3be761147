package local

import (
	"net/netip"

	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// The protocols that rules know more of than their number.
const (
	protocolICMP    = 1
	protocolDCCP    = 33
	protocolICMPv6  = 58
	protocolUDPLite = 136
)

func hasPorts(p sdn.Protocol) bool {
	switch p {
	case sdn.TCP, sdn.UDP, sdn.SCTP, protocolDCCP, protocolUDPLite:
		return true
	}
	return false
}

// checkRule wants a rule that a kernel can follow; at is its field's name.
func checkRule(at string, r sdn.Rule) error {
	bad := func(part, detail string, args ...any) error {
		return sdn.Invalid("security group", at+"."+part, detail, args...)
	}
	icmp := r.Protocol == protocolICMP || r.Protocol == protocolICMPv6
	switch {
	case r.Direction != sdn.Ingress && r.Direction != sdn.Egress:
		return bad("direction", "must be %s or %s, not %q", sdn.Ingress, sdn.Egress, r.Direction)
	case r.Protocol == protocolICMPv6 && !r.IPv6, r.Protocol == protocolICMP && r.IPv6:
		return bad("protocol", "%d is of the other family", r.Protocol)
	case r.ICMPType != nil && !icmp:
		return bad("icmp_type", "needs the protocol 1 or 58, not %d", r.Protocol)
	case r.ICMPCode != nil && r.ICMPType == nil:
		return bad("icmp_code", "needs a type")
	case r.Ports != sdn.PortRange{} && !hasPorts(r.Protocol):
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
		if err := valid.Addr("security group", at+".remote_prefix", r.RemotePrefix.Addr()); err != nil {
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
	return valid.Text("security group", at+".description", r.Description)
}

// normalRule is the one form in which a rule is stored: both ends of a range, and no bits beyond a prefix's length.
func normalRule(r sdn.Rule) sdn.Rule {
	r.Ports.Last = max(r.Ports.First, r.Ports.Last)
	if r.RemotePrefix.IsValid() {
		r.RemotePrefix = r.RemotePrefix.Masked()
	}
	return r
}

// ruleKey is what a rule says: rules are the same if their keys are equal.
type ruleKey struct {
	direction  sdn.Direction
	ipv6       bool
	protocol   sdn.Protocol
	ports      sdn.PortRange
	icmp, code int // -1 is any
	prefix     netip.Prefix
	group, set sdn.ID
}

// keyOfRule leaves out what selects nothing: every port, and every address of a family.
func keyOfRule(r sdn.Rule) ruleKey {
	r = normalRule(r)
	k := ruleKey{direction: r.Direction, ipv6: r.IPv6, protocol: r.Protocol, ports: r.Ports, icmp: -1, code: -1, group: r.RemoteGroup, set: r.RemoteSet}
	if r.ICMPType != nil {
		k.icmp = int(*r.ICMPType)
	}
	if r.ICMPCode != nil {
		k.code = int(*r.ICMPCode)
	}
	if k.ports == (sdn.PortRange{First: 1, Last: 65535}) {
		k.ports = sdn.PortRange{}
	}
	if r.RemotePrefix.IsValid() && r.RemotePrefix.Bits() > 0 {
		k.prefix = r.RemotePrefix
	}
	return k
}

// mergeRules makes rules be wanted: those that are there already stay as they are, with their ids, and the others follow with ids of their
// own. It tells whether anything changed.
func mergeRules(have, want []sdn.Rule) (rules []sdn.Rule, changed bool) {
	wanted := map[ruleKey]bool{}
	for _, r := range want {
		wanted[keyOfRule(r)] = true
	}
	there := map[ruleKey]bool{}
	for _, r := range have {
		if k := keyOfRule(r); wanted[k] && !there[k] {
			there[k] = true
			rules = append(rules, r)
		}
	}
	changed = len(rules) != len(have)
	for _, r := range want {
		if k := keyOfRule(r); !there[k] {
			there[k], changed = true, true
			r = normalRule(r)
			r.ID = newID()
			rules = append(rules, r)
		}
	}
	return rules, changed
}
