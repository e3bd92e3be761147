package engine

import (
	"net/netip"

	"github.com/kuryr/kuryr/sdn"
)

// normalRule is the one form in which a rule is stored: both ends of a range. A prefix keeps the bits
// beyond its length, because it is shown as it was sent.
func normalRule(r sdn.Rule) sdn.Rule {
	r.Ports.Last = max(r.Ports.First, r.Ports.Last)
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
		k.prefix = r.RemotePrefix.Masked()
	}
	return k
}

// mergeRules makes rules be wanted: those that are there already stay as they are, with their ids,
// and the others follow with ids of their own. It tells whether anything changed.
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
