package valid

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// What makes no sense is refused by the name of its field; what does, is not.
func TestFields(t *testing.T) {
	t.Parallel()
	prefix, addr := netip.MustParsePrefix, netip.MustParseAddr
	ten := prefix("10.0.0.0/24")
	span := func(a, b string) sdn.AddressRange { return sdn.AddressRange{First: addr(a), Last: addr(b)} }
	key := sdn.Key{Owner: "o", Kind: "k", Name: "n"}
	for field, err := range map[string]error{
		"": Base("port", sdn.Base{
			Key: key, Name: strings.Repeat("n", MaxText), Tags: []string{"a"},
		}),
		"name":        Base("port", sdn.Base{Name: strings.Repeat("n", MaxText+1)}),
		"project":     Base("port", sdn.Base{Project: "a\x00b"}),
		"description": Base("port", sdn.Base{Key: key, Description: "free text"}),
		"tags":        Tags("port", []string{"a,b"}),
		"a":           Addr("port", "a", addr("::ffff:10.0.0.1")),
		"cidr":        Prefix("subnet", "cidr", prefix("10.0.0.1/24")),
		"routes[0].next_hop": Routes("router", "routes", []sdn.HostRoute{{
			Destination: ten, NextHop: addr("fd00::1"),
		}}),
		"host_routes[0].destination": RouteFamily(ten, []sdn.HostRoute{{
			Destination: prefix("fd00::/64"), NextHop: addr("fd00::1"),
		}}),
		"rules[0].direction": Rule("rules[0]", sdn.Rule{}),
		"rules[0].protocol":  Rule("rules[0]", sdn.Rule{Direction: sdn.Ingress, Protocol: 58}),
		"rules[0].ports": Rule("rules[0]", sdn.Rule{
			Direction: sdn.Ingress, Protocol: 47, Ports: sdn.PortRange{First: 1},
		}),
		"rules[0].ports.last": Rule("rules[0]", sdn.Rule{
			Direction: sdn.Ingress, Protocol: sdn.TCP, Ports: sdn.PortRange{First: 2, Last: 1},
		}),
		"rules[0].icmp_type": Rule("rules[0]", sdn.Rule{
			Direction: sdn.Ingress, Protocol: sdn.TCP, ICMPType: new(uint8),
		}),
		"rules[0].icmp_code":     Rule("rules[0]", sdn.Rule{Direction: sdn.Ingress, Protocol: 1, ICMPCode: new(uint8)}),
		"rules[0].remote_prefix": Rule("rules[0]", sdn.Rule{Direction: sdn.Ingress, RemotePrefix: ten, RemoteGroup: "g"}),
		"limits.egress_kbps":     Limits(sdn.Limits{EgressKbps: -1}),
		"limits.ingress_burst":   Limits(sdn.Limits{IngressBurst: 1}),
		"limits.dscp":            Limits(sdn.Limits{DSCP: MaxDSCP + 1}),
		"ranges[1]": Ranges(ten, []sdn.AddressRange{
			span("10.0.0.1", "10.0.0.9"), span("10.0.0.9", "10.0.0.20"),
		}),
	} {
		if sdn.IsInvalid(err) != (field != "") || sdn.FieldOf(err) != field {
			t.Errorf("got error %v, want one of the field %q", err, field)
		}
	}
	if got := TagSet([]string{"b", "a", "b"}); strings.Join(got, " ") != "a b" {
		t.Errorf("the set of tags is %q", got)
	}
}
