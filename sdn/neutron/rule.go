package neutron

import (
	"net/netip"
	"strconv"

	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// ruleWire is a security group rule as Neutron says it. The ports of ICMP are its type and code.
// gophercloud's SecGroupRule has no null: ICMP type 0 and every type are the same there.
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

// ruleKey is the normal form of a rule: rules are the same if their keys are equal.
// Neutron takes 10.0.0.0/8 and 10.1.2.3/8 for two rules, so what is sent is normal
// already.
type ruleKey struct {
	direction   sdn.Direction
	ipv6        bool
	protocol    int // -1 is any
	first, last int // ports, or ICMP's type and code; -1 is any
	prefix      netip.Prefix
	group, set  sdn.ID
}

const anything = -1

// keyOf returns a rule's normal form, or an error that IsInvalid and names the field
// below field.
func keyOf(r sdn.Rule, field string) (ruleKey, error) {
	if err := valid.Rule(field, r); err != nil {
		return ruleKey{}, err
	}
	k := ruleKey{direction: r.Direction, ipv6: r.IPv6, protocol: int(r.Protocol), first: anything, last: anything, prefix: r.RemotePrefix, group: r.RemoteGroup,
		set: r.RemoteSet}
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
	return k.normal(), nil
}

// hasPorts reports whether the protocol has ports.
func (k ruleKey) hasPorts() bool {
	return k.protocol != anything && ipproto.HasPorts(sdn.Protocol(k.protocol))
}

// normal removes conditions that are always met, as Neutron does.
func (k ruleKey) normal() ruleKey {
	if k.prefix.IsValid() {
		k.prefix = k.prefix.Masked()
		if k.prefix.Bits() == 0 {
			k.prefix = netip.Prefix{}
		}
	}
	if k.hasPorts() && k.first == 1 && k.last == 65535 {
		k.first, k.last = anything, anything
	}
	return k
}

// key returns the normal form of a rule of Neutron's. It is false for one that the
// contract does not have, such as a protocol of an unknown name: that one is not shown,
// and never wanted.
func (w *ruleWire) key() (ruleKey, bool) {
	k := ruleKey{direction: sdn.Direction(w.Direction), ipv6: w.EtherType == "IPv6", protocol: anything, first: anything, last: anything,
		group: sdn.ID(text(w.RemoteGroup)), set: sdn.ID(text(w.RemoteSet))}
	if p := text(w.Protocol); p != "" && p != "any" {
		n, _, known := ipproto.Parse(p)
		if !known || n == 0 {
			return k, false
		}
		if k.ipv6 && n == ipproto.ICMP {
			n = ipproto.ICMPv6 // its legacy number
		}
		k.protocol = int(n)
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

// decode returns the rule as the contract has it, if it has such rules.
func (w *ruleWire) decode() (sdn.Rule, bool) {
	k, ok := w.key()
	if !ok {
		return sdn.Rule{}, false
	}
	r := sdn.Rule{ID: sdn.ID(w.ID), Description: w.Description, Direction: k.direction, IPv6: k.ipv6, RemotePrefix: k.prefix, RemoteGroup: k.group, RemoteSet: k.set}
	if k.protocol != anything {
		r.Protocol = sdn.Protocol(k.protocol)
		_, numeric, _ := ipproto.Parse(text(w.Protocol))
		r.Numeric = numeric && ipproto.Named(r.Protocol)
	}
	switch {
	case k.hasPorts() && k.first != anything:
		r.Ports = sdn.PortRange{First: uint16(k.first), Last: uint16(k.last)}
	case ipproto.IsICMP(r.Protocol):
		r.ICMPType, r.ICMPCode = octet(k.first), octet(k.last)
	}
	return r, true
}

// body returns the request for this rule, which the caller wrote as said.
func (k ruleKey) body(group sdn.ID, project string, said sdn.Rule) ruleWire {
	w := ruleWire{Group: string(group), Project: project, Description: said.Description, Direction: string(k.direction), EtherType: "IPv4",
		Min: limitOf(k.first), Max: limitOf(k.last), RemoteGroup: nonZero(string(k.group)), RemoteSet: nonZero(string(k.set))}
	if k.ipv6 {
		w.EtherType = "IPv6"
	}
	if k.protocol != anything {
		name := ipproto.Name(sdn.Protocol(k.protocol))
		if said.Numeric {
			name = strconv.Itoa(k.protocol)
		}
		w.Protocol = &name
	}
	if k.prefix.IsValid() {
		w.Prefix = nonZero(k.prefix.String())
	}
	return w
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
