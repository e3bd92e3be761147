package neutronapi

import (
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/sdn"
)

func etherType(ipv6 bool) string {
	if ipv6 {
		return "IPv6"
	}
	return "IPv4"
}

const whyProtocol = "rules for the protocol 0 alone are not supported; a rule without a protocol is for any"

// ruleAsked is what a request says of a rule, each part converted but not yet judged together.
type ruleAsked struct {
	group       sdn.ID
	direction   sdn.Direction
	ipv6        bool
	protocol    *string
	min, max    *int
	prefix      netip.Prefix // invalid: none
	remoteGroup sdn.ID
	remoteSet   sdn.ID
	description string

	rule sdn.Rule // what is asked, once it is judged
}

// judge returns the rule that was asked. It checks in the order that Neutron does.
func (a ruleAsked) judge() (sdn.Rule, error) {
	r := sdn.Rule{
		Description: a.description, Direction: a.direction, IPv6: a.ipv6,
		RemoteGroup: a.remoteGroup, RemoteSet: a.remoteSet, RemotePrefix: a.prefix,
	}
	if a.protocol != nil {
		protocol, numeric, known := ipproto.Parse(*a.protocol)
		if !known {
			return r, errProtocol(*a.protocol)
		}
		r.Protocol, r.Numeric = protocol, numeric && ipproto.Named(protocol)
		if r.Protocol == 0 {
			// In the contract 0 is any protocol: the rule would allow more than it says.
			return r, sdn.Unsupported("security group rule", whyProtocol)
		}
	}
	if r.IPv6 && r.Protocol == ipproto.ICMP {
		r.Protocol = ipproto.ICMPv6 // its older name and number
	}
	if err := a.ports(&r); err != nil {
		return r, err
	}
	if a.prefix.IsValid() && a.prefix.Addr().Is4() == a.ipv6 {
		return r, refuse(http.StatusBadRequest, "SecurityGroupRuleParameterConflict", "Conflicting value ethertype %s for CIDR %s", etherType(a.ipv6), a.prefix)
	}
	if !r.IPv6 && ipproto.OfIPv6(r.Protocol) {
		return r, refuse(http.StatusBadRequest, "SecurityGroupEthertypeConflictWithProtocol", "Invalid ethertype IPv4 for protocol %s.", *a.protocol)
	}
	remotes := 0
	for _, said := range []bool{a.prefix.IsValid(), a.remoteGroup != "", a.remoteSet != ""} {
		if said {
			remotes++
		}
	}
	if remotes > 1 {
		return r, refuse(http.StatusBadRequest, "SecurityGroupMultipleRemoteEntites", "Only one of remote_ip_prefix or remote_group_id or remote_address_group_id may be provided.")
	}
	return r, nil
}

func errProtocol(said string) error {
	return refuse(http.StatusBadRequest, "SecurityGroupRuleInvalidProtocol",
		"Security group rule protocol %s not supported. Only protocol values %s and integer representations [0 to 255] are supported.",
		said, strings.Join(ipproto.Names(), ", "))
}

// ports puts the port range into the rule, which for ICMP is its type and code. All ports are no range.
func (a ruleAsked) ports(r *sdn.Rule) error {
	first, last := a.min, a.max
	if first != nil && last != nil && *first == 1 && *last == 65535 {
		return nil
	}
	if first == nil && last == nil {
		return nil
	}
	switch {
	case a.protocol == nil:
		return refuse(http.StatusBadRequest, "SecurityGroupProtocolRequiredWithPorts", "Must also specify protocol if port range is given.")
	case ipproto.HasPorts(r.Protocol):
		if first != nil && *first == 0 || last != nil && *last == 0 {
			return refuse(http.StatusBadRequest, "SecurityGroupInvalidPortValue", "Invalid value for port 0")
		}
		if first == nil || last == nil || *first > *last {
			return refuse(http.StatusBadRequest, "SecurityGroupInvalidPortRange", "For TCP/UDP protocols, port_range_min must be <= port_range_max")
		}
		r.Ports = sdn.PortRange{First: uint16(*first), Last: uint16(*last)}
	case ipproto.IsICMP(r.Protocol):
		return a.icmp(r)
	default:
		return refuse(http.StatusBadRequest, "SecurityGroupInvalidProtocolForPort", "Ports cannot be specified for protocol %d. Ports are only supported for DCCP, SCTP, TCP, UDP, UDPLITE.", r.Protocol)
	}
	return nil
}

func (a ruleAsked) icmp(r *sdn.Rule) error {
	for _, part := range []struct {
		field, attribute string
		value            *int
		into             **uint8
	}{{"type", "port_range_min", a.min, &r.ICMPType}, {"code", "port_range_max", a.max, &r.ICMPCode}} {
		if part.value == nil {
			continue
		}
		if *part.value < 0 || *part.value > 255 {
			return refuse(http.StatusBadRequest, "SecurityGroupInvalidIcmpValue", "Invalid value for ICMP %s (%s) %d. It must be 0 to 255.", part.field, part.attribute, *part.value)
		}
		octet := uint8(*part.value)
		*part.into = &octet
	}
	if a.min == nil {
		return refuse(http.StatusBadRequest, "SecurityGroupMissingIcmpType", "ICMP code (port-range-max) %d is provided but ICMP type (port-range-min) is missing.", *a.max)
	}
	return nil
}

// ruleKey is what makes two rules of a group the same: all but their ids and descriptions. A remote prefix of everything is none.
func ruleKey(r sdn.Rule) string {
	text := func(o *uint8) string {
		if o == nil {
			return "+"
		}
		return strconv.Itoa(int(*o))
	}
	prefix := ""
	if r.RemotePrefix.IsValid() && r.RemotePrefix.Bits() > 0 {
		prefix = r.RemotePrefix.Masked().String()
	}
	last := r.Ports.Last
	if last == 0 {
		last = r.Ports.First
	}
	key := ""
	for _, part := range []string{string(r.Direction), etherType(r.IPv6), strconv.Itoa(int(r.Protocol)), strconv.Itoa(int(r.Ports.First)),
		strconv.Itoa(int(last)), text(r.ICMPType), text(r.ICMPCode), prefix, string(r.RemoteGroup), string(r.RemoteSet)} {
		key += part + "|"
	}
	return key
}

// addRules puts rules into a group's, and refuses one that is there, or is among the new ones twice.
func addRules(have, added []sdn.Rule) ([]sdn.Rule, error) {
	fresh := map[string]bool{}
	for _, r := range added {
		if fresh[ruleKey(r)] {
			return nil, refuse(http.StatusConflict, "DuplicateSecurityGroupRuleInPost", "Duplicate Security Group Rule in POST.")
		}
		fresh[ruleKey(r)] = true
	}
	for _, r := range have {
		if fresh[ruleKey(r)] {
			return nil, refuse(http.StatusConflict, "SecurityGroupRuleExists", "Security group rule already exists. Rule id is %s.", r.ID)
		}
	}
	return append(append([]sdn.Rule{}, have...), added...), nil
}

// ruleOf is a rule with the group it is in.
type ruleOf struct {
	group sdn.SecurityGroup
	rule  sdn.Rule
}
