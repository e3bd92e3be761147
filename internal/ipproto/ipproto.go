// Package ipproto names IP protocols as Neutron does, and tells what rules of security
// groups must know of them.
//
// It owns the names, by which operators write and read rules, and which protocols have
// ports and which are of one family. It must not judge a rule: package valid does.
package ipproto

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// The protocols that rules know more of than their number, besides those of package sdn
// (IANA, protocol numbers).
const (
	ICMP    sdn.Protocol = 1
	DCCP    sdn.Protocol = 33
	ICMPv6  sdn.Protocol = 58
	UDPLite sdn.Protocol = 136
)

// older is a name that is read for ICMPv6 and never shown.
const older = "icmpv6"

var numbers = map[string]sdn.Protocol{
	"ah": 51, "dccp": DCCP, "egp": 8, "esp": 50, "gre": 47, "icmp": ICMP, older: ICMPv6, "igmp": 2,
	"ipip": 4, "ipv6-encap": 41, "ipv6-frag": 44,
	"ipv6-icmp": ICMPv6, "ipv6-nonxt": 59, "ipv6-opts": 60, "ipv6-route": 43, "ospf": 89, "pgm": 113,
	"rsvp": 46, "sctp": sdn.SCTP, "tcp": sdn.TCP, "udp": sdn.UDP,
	"udplite": UDPLite, "vrrp": 112,
}

var names = func() map[sdn.Protocol]string {
	out := map[sdn.Protocol]string{}
	for name, number := range numbers {
		if name != older {
			out[number] = name
		}
	}
	return out
}()

// Names are all names that are read, in order.
func Names() []string { return slices.Sorted(maps.Keys(numbers)) }

// Named reports whether a protocol has a name.
func Named(p sdn.Protocol) bool { return names[p] != "" }

// Name is a protocol's name, or its number where it has none.
func Name(p sdn.Protocol) string {
	if name, named := names[p]; named {
		return name
	}
	return strconv.Itoa(int(p))
}

// Parse reads a protocol by name, in any case, or by number from 0 to 255, and tells
// which it was. It reports false for what is neither. The names "ip" and "hopopt" are 0.
func Parse(text string) (p sdn.Protocol, numeric, ok bool) {
	if number, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
		return sdn.Protocol(number), true, number >= 0 && number <= 255
	}
	name := strings.ToLower(text)
	if name == "ip" || name == "hopopt" {
		return 0, false, true
	}
	p, ok = numbers[name]
	return p, false, ok
}

// HasPorts reports whether rules can select a protocol's ports.
func HasPorts(p sdn.Protocol) bool {
	switch p {
	case sdn.TCP, sdn.UDP, sdn.SCTP, DCCP, UDPLite:
		return true
	}
	return false
}

// IsICMP reports whether a protocol has types and codes.
func IsICMP(p sdn.Protocol) bool { return p == ICMP || p == ICMPv6 }

// OfIPv6 reports whether a protocol is of IPv6 alone.
func OfIPv6(p sdn.Protocol) bool {
	switch p {
	case 41, 43, 44, ICMPv6, 59, 60:
		return true
	}
	return false
}
