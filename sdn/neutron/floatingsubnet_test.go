package neutron

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// A floating IP is asked for of a subnet as Neutron wants it, and what it says of the subnet names the field.
func TestFloatingIPOfASubnet(t *testing.T) {
	for name, c := range map[string]struct {
		said   says
		kind   sdn.Kind
		reason sdn.Reason
		field  string
	}{
		"made":               {says{201, `{"floatingip": {"id": "f", "floating_network_id": "n", "floating_ip_address": "203.0.113.5"}}`}, "", "", ""},
		"another network's":  {says{400, neutronError("InvalidInput", "Invalid input for operation: Failed to create port on network n, because fixed_ips included invalid subnet s.")}, sdn.KindInvalid, "", "subnet"},
		"absent":             {says{404, neutronError("SubnetNotFound", "Subnet s could not be found.")}, sdn.KindNotFound, "", ""},
		"full":               {says{409, neutronError("IpAddressGenerationFailure", "No more IP addresses available on network n.")}, sdn.KindExhausted, sdn.NoAddresses, ""},
		"not of the address": {says{400, neutronError("InvalidIpForSubnet", "IP address 203.0.113.5 is not a valid IP for the specified subnet.")}, sdn.KindInvalid, "", "address"},
	} {
		t.Run(name, func(t *testing.T) {
			p, s, _ := onScript(t, map[string][]says{"POST /floatingips": {c.said}})
			_, err := p.EnsureFloatingIP(t.Context(), sdn.FloatingIPSpec{Network: "n", Subnet: "s"})
			want(t, err, c.kind, c.reason, c.field)
			if len(s.asked) != 1 || !strings.Contains(s.asked[0], `"subnet_id":"s"`) {
				t.Errorf("asked %q", s.asked)
			}
		})
	}
	p, s, _ := onScript(t, map[string][]says{"POST /floatingips": {{201, `{"floatingip": {"id": "f", "floating_network_id": "n", "floating_ip_address": "203.0.113.5"}}`}}})
	_, err := p.EnsureFloatingIP(t.Context(), sdn.FloatingIPSpec{Network: "n"})
	if want(t, err, "", "", ""); len(s.asked) != 1 || strings.Contains(s.asked[0], "subnet_id") {
		t.Errorf("of any subnet it asked %q", s.asked)
	}
}

// One that is there is of the subnet or cannot become so, as far as Neutron shows the subnet.
func TestFloatingIPOfAnotherSubnet(t *testing.T) {
	subnet := func(network, cidr string) says {
		return says{200, fmt.Sprintf(`{"subnet": {"id": "s", "network_id": %q, "cidr": %q}}`, network, cidr)}
	}
	const there = `{"floatingips": [{"id": "f", "description": "kuryr/test/t/fip", "project_id": "p1", "floating_network_id": "n", "floating_ip_address": "203.0.113.5"}]}`
	for name, c := range map[string]struct {
		subnet  says
		address string
		kind    sdn.Kind
		reason  sdn.Reason
		field   string
	}{
		"of it":              {subnet("n", "203.0.113.0/24"), "", "", "", ""},
		"of another":         {subnet("n", "198.51.100.0/24"), "", sdn.KindConflict, sdn.Immutable, "subnet"},
		"of another network": {subnet("m", "203.0.113.0/24"), "", sdn.KindInvalid, "", "subnet"},
		"not of the address": {subnet("n", "198.51.100.0/24"), "203.0.113.5", sdn.KindInvalid, "", "address"},
		"hidden":             {says{404, neutronError("SubnetNotFound", "Subnet s could not be found.")}, "", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p, s, _ := onScript(t, map[string][]says{"GET /floatingips": {{200, there}}, "GET /subnets/s": {c.subnet}})
			spec := sdn.FloatingIPSpec{Base: sdn.Base{Key: testKey("fip")}, Network: "n", Subnet: "s"}
			if c.address != "" {
				spec.Address = netip.MustParseAddr(c.address)
			}
			_, err := p.EnsureFloatingIP(t.Context(), spec)
			want(t, err, c.kind, c.reason, c.field)
			if len(s.asked) != 0 {
				t.Errorf("changed %q", s.asked)
			}
		})
	}
}
