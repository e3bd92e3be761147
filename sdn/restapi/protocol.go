package restapi

import (
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// The protocols that rules treat in ways of their own.
const (
	protocolICMP   sdn.Protocol = 1
	protocolICMPv6 sdn.Protocol = 58
)

// protocolNumbers are Neutron's names of protocols; "icmpv6" is an older one of ipv6-icmp.
var protocolNumbers = map[string]sdn.Protocol{
	"ah": 51, "dccp": 33, "egp": 8, "esp": 50, "gre": 47, "icmp": 1, "icmpv6": 58, "igmp": 2, "ipip": 4, "ipv6-encap": 41, "ipv6-frag": 44,
	"ipv6-icmp": 58, "ipv6-nonxt": 59, "ipv6-opts": 60, "ipv6-route": 43, "ospf": 89, "pgm": 113, "rsvp": 46, "sctp": 132, "tcp": 6, "udp": 17,
	"udplite": 136, "vrrp": 112,
}

// protocolNames are the names that protocols are shown by.
var protocolNames = func() map[sdn.Protocol]string {
	names := map[sdn.Protocol]string{}
	for name, number := range protocolNumbers {
		if name != "icmpv6" {
			names[number] = name
		}
	}
	return names
}()

// parseProtocol reads a protocol by name, in any case, or by number. It reports false for what is neither. Number 0, which is also "ip" and "hopopt",
// is read as 0.
func parseProtocol(text string) (sdn.Protocol, bool) {
	if number, err := strconv.Atoi(strings.TrimSpace(text)); err == nil {
		return sdn.Protocol(number), number >= 0 && number <= 255
	}
	name := strings.ToLower(text)
	if name == "ip" || name == "hopopt" {
		return 0, true
	}
	number, known := protocolNumbers[name]
	return number, known
}

// protocolName is how a protocol is shown: by its name where it has one that Neutron knows.
func protocolName(p sdn.Protocol) string {
	if name, known := protocolNames[p]; known {
		return name
	}
	return strconv.Itoa(int(p))
}

// protocolHasPorts tells whether a protocol's ports can be selected.
func protocolHasPorts(p sdn.Protocol) bool {
	switch p {
	case sdn.TCP, sdn.UDP, sdn.SCTP, protocolNumbers["dccp"], protocolNumbers["udplite"]:
		return true
	}
	return false
}

// protocolIsIPv6 tells whether a protocol is of IPv6 alone.
func protocolIsIPv6(p sdn.Protocol) bool {
	switch p {
	case 41, 43, 44, protocolICMPv6, 59, 60:
		return true
	}
	return false
}
