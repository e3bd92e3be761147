package neutron

import (
	"net/netip"
	"strconv"

	"github.com/kuryr/kuryr/sdn"
)

// ruleWire is a security group rule as Neutron says it. The ports of ICMP are its type and code.
type ruleWire struct {
	ID          string  `json:"id,omitempty"`
	Project     string  `json:"project_id,omitempty"`
	Group       string  `json:"security_group_id"`
	Description string  `json:"description"`
	Direction   string  `json:"direction"`
	EtherType   string  `json:"ethertype"`
	Protocol    *string `json:"protocol"`
	Min         *int    `json:"port_range_min"`
	Max         *int    `json:"port_range_max"`
	Prefix      *string `json:"remote_ip_prefix"`
	RemoteGroup *string `json:"remote_group_id"`
	RemoteSet   *string `json:"remote_address_group_id,omitempty"` // not known to Neutrons without address groups
}

func (w *ruleWire) common() *meta { return &meta{ID: w.ID} }

// ruleKey is what a rule says in its normal form: rules are the same if their keys are equal. Neutron's own comparison is poorer, it
// takes 10.0.0.0/8 and 10.1.2.3/8 for two rules, so what is sent is normal already.
type ruleKey struct {
	direction   sdn.Direction
	ipv6        bool
	protocol    int // -1 is any
	first, last int // ports, or ICMP's type and code; -1 is any
	prefix      netip.Prefix
	group, set  sdn.ID
}

const (
	anything = -1

	protocolICMP   = 1
	protocolICMPv6 = 58
)

// protocolNames are the names that Neutron takes for protocols. Those it is sent by name, because operators read them, come first.
var protocolNames = map[string]int{
	"tcp": 6, "udp": 17, "sctp": 132, "icmp": protocolICMP, "ipv6-icmp": protocolICMPv6,
	"icmpv6": protocolICMPv6, "ah": 51, "dccp": 33, "egp": 8, "esp": 50, "gre": 47, "hopopt": 0, "ip": 0, "igmp": 2, "ipip": 4, "ipv6-encap": 41,
	"ipv6-frag": 44, "ipv6-nonxt": 59, "ipv6-opts": 60, "ipv6-route": 43, "ospf": 89, "pgm": 113, "rsvp": 46, "udplite": 136, "vrrp": 112,
}

// sentNames are the protocols that are sent by name.
var sentNames = map[sdn.Protocol]string{sdn.TCP: "tcp", sdn.UDP: "udp", sdn.SCTP: "sctp", protocolICMP: "icmp", protocolICMPv6: "ipv6-icmp"}

// hasPorts tells whether Neutron knows a protocol's ports.
func hasPorts(protocol int) bool {
	switch protocol {
	case int(sdn.TCP), int(sdn.UDP), int(sdn.SCTP), protocolNames["dccp"], protocolNames["udplite"]:
		return true
	}
	return false
}

// keyOf gives a rule's normal form, or an error that IsInvalid and names the field below field.
func keyOf(r sdn.Rule, field string) (ruleKey, error) {
	bad := func(part, detail string, args ...any) (ruleKey, error) {
		return ruleKey{}, sdn.Invalid("security group", field+"."+part, detail, args...)
	}
	k := ruleKey{direction: r.Direction, ipv6: r.IPv6, protocol: int(r.Protocol), first: anything, last: anything, group: r.RemoteGroup, set: r.RemoteSet}
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
	case r.Ports != sdn.PortRange{} && !hasPorts(k.protocol):
		return bad("ports", "the protocol %d has none", r.Protocol)
	case r.Ports.First == 0 && r.Ports.Last != 0:
		return bad("ports.first", "is missing")
	case r.Ports.Last != 0 && r.Ports.Last < r.Ports.First:
		return bad("ports.last", "%d comes before the first, %d", r.Ports.Last, r.Ports.First)
	}
	if r.Protocol == 0 {
		k.protocol = anything
	}
	if r.Ports.First != 0 {
		k.first, k.last = int(r.Ports.First), int(max(r.Ports.First, r.Ports.Last))
	}
	if r.ICMPType != nil {
		k.first = int(*r.ICMPType)
	}
	if r.ICMPCode != nil {
		k.last = int(*r.ICMPCode)
	}
	remotes := 0
	if r.RemotePrefix != (netip.Prefix{}) {
		remotes++
		if !r.RemotePrefix.IsValid() || r.RemotePrefix.Addr().Is4() == r.IPv6 {
			return bad("remote_prefix", "%v is not of the rule's family", r.RemotePrefix)
		}
		k.prefix = r.RemotePrefix
	}
	if r.RemoteGroup != "" {
		remotes++
	}
	if r.RemoteSet != "" {
		remotes++
	}
	if remotes > 1 {
		return bad("remote_prefix", "a rule has one remote: a prefix, a group or an address group")
	}
	return k.normal(), nil
}

// normal removes what selects nothing, as Neutron does.
func (k ruleKey) normal() ruleKey {
	if k.prefix.IsValid() {
		k.prefix = k.prefix.Masked()
		if k.prefix.Bits() == 0 {
			k.prefix = netip.Prefix{}
		}
	}
	if hasPorts(k.protocol) && k.first == 1 && k.last == 65535 {
		k.first, k.last = anything, anything
	}
	return k
}

// key gives the normal form of a rule that Neutron has. It reports false for one that the contract cannot say, such as a protocol by a name of
// tomorrow or hop-by-hop options: that one is not shown, and never what is wanted.
func (w *ruleWire) key() (ruleKey, bool) {
	k := ruleKey{direction: sdn.Direction(w.Direction), ipv6: w.EtherType == "IPv6", protocol: anything, first: anything, last: anything,
		group: sdn.ID(text(w.RemoteGroup)), set: sdn.ID(text(w.RemoteSet))}
	if p := text(w.Protocol); p != "" && p != "any" {
		n, known := protocolNames[p]
		if !known {
			parsed, err := strconv.Atoi(p)
			if err != nil {
				return k, false
			}
			n = parsed
		}
		if k.ipv6 && n == protocolICMP {
			n = protocolICMPv6 // its legacy number
		}
		if n == 0 {
			return k, false
		}
		k.protocol = n
	}
	if w.Min != nil {
		k.first = *w.Min
	}
	if w.Max != nil {
		k.last = *w.Max
	}
	if p := text(w.Prefix); p != "" {
		prefix, err := parsePrefix(p)
		if err != nil {
			return k, false
		}
		k.prefix = prefix
	}
	return k.normal(), true
}

// decode gives the rule as the contract has it, if the contract has such rules.
func (w *ruleWire) decode() (sdn.Rule, bool) {
	k, ok := w.key()
	if !ok {
		return sdn.Rule{}, false
	}
	r := sdn.Rule{ID: sdn.ID(w.ID), Description: w.Description, Direction: k.direction, IPv6: k.ipv6, RemotePrefix: k.prefix, RemoteGroup: k.group, RemoteSet: k.set}
	if k.protocol != anything {
		r.Protocol = sdn.Protocol(k.protocol)
	}
	switch {
	case hasPorts(k.protocol) && k.first != anything:
		r.Ports = sdn.PortRange{First: uint16(k.first), Last: uint16(k.last)}
	case k.protocol == protocolICMP || k.protocol == protocolICMPv6:
		r.ICMPType, r.ICMPCode = octet(k.first), octet(k.last)
	}
	return r, true
}

// body is what makes this rule.
func (k ruleKey) body(group sdn.ID, project, description string) ruleWire {
	w := ruleWire{Group: string(group), Project: project, Description: description, Direction: string(k.direction), EtherType: "IPv4",
		Min: limitOf(k.first), Max: limitOf(k.last), RemoteGroup: optional(string(k.group)), RemoteSet: optional(string(k.set))}
	if k.ipv6 {
		w.EtherType = "IPv6"
	}
	if k.protocol != anything {
		name, known := sentNames[sdn.Protocol(k.protocol)]
		if !known {
			name = strconv.Itoa(k.protocol)
		}
		w.Protocol = &name
	}
	if k.prefix.IsValid() {
		w.Prefix = optional(k.prefix.String())
	}
	return w
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func limitOf(n int) *int {
	if n == anything {
		return nil
	}
	return &n
}

func octet(n int) *uint8 {
	if n == anything {
		return nil
	}
	o := uint8(n)
	return &o
}
