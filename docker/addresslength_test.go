package docker

import "testing"

// TestAddressLength checks that an endpoint's address must have the prefix length of its subnet.
func TestAddressLength(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	id := newID()
	b.ok("NetworkDriver.CreateNetwork", m{
		"NetworkID": id,
		"IPv4Data":  []m{{"AddressSpace": "LocalDefault", "Pool": "192.168.34.0/24"}},
		"IPv6Data":  []m{{"AddressSpace": "LocalDefault", "Pool": "fd34::/80"}},
	})
	for field, texts := range map[string][]string{
		"Address":     {"192.168.34.77/16", "192.168.34.77/25", "192.168.34.77/32", "192.168.34.77/0"},
		"AddressIPv6": {"fd34::77/64", "fd34::77/128"},
	} {
		for _, text := range texts {
			before := b.dump()
			said := b.fails("NetworkDriver.CreateEndpoint", m{
				"NetworkID": id, "EndpointID": newID(), "Interface": m{field: text},
			})
			b.contains(said, "Interface."+field+": ", text, "prefix length")
			b.unchanged(before, text)
		}
	}
	endpoint := m{"NetworkID": id, "EndpointID": newID()}
	b.ok("NetworkDriver.CreateEndpoint", m{
		"NetworkID": id, "EndpointID": endpoint["EndpointID"],
		"Interface": m{"Address": "192.168.34.77/24", "AddressIPv6": "fd34::77/80"},
	})
	b.ok("NetworkDriver.DeleteEndpoint", endpoint)
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": id})
	b.clean()
}
