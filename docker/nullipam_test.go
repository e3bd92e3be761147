package docker

import (
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// nullNetwork creates a Docker network without an IPAM driver on an existing network.
func (b *box) nullNetwork(existing sdn.Network) string {
	b.t.Helper()
	id := newID()
	b.ok("NetworkDriver.CreateNetwork", m{
		"NetworkID": id, "IPv6Data": []m{},
		"Options":  m{optGeneric: m{optNetUUID: string(existing.ID)}},
		"IPv4Data": []m{{"AddressSpace": "null", "Pool": "0.0.0.0/0"}},
	})
	return id
}

// TestNullIPAMAddresses checks that CreateEndpoint answers the addresses of the port if the
// engine gave none, whether Kuryr creates the port or an option names an existing one.
func TestNullIPAMAddresses(t *testing.T) {
	t.Parallel()
	none := m{"Address": "", "AddressIPv6": "", "MacAddress": ""}
	all := []string{"Address", "AddressIPv6", "MacAddress"}
	dual := []string{"10.77.0.0/24", "fd77::/80"}
	for name, c := range map[string]struct {
		ranges   []string
		existing bool
		given    any
		want     []string // fields of the answer
	}{
		"dual stack":    {ranges: dual, given: none, want: all},
		"no Interface":  {ranges: dual[:1], want: []string{"Address", "MacAddress"}},
		"IPv6":          {ranges: dual[1:], given: none, want: all[1:]},
		"MAC given":     {ranges: dual[:1], given: m{"MacAddress": "02:00:00:00:00:07"}, want: all[:1]},
		"existing port": {ranges: dual, existing: true, given: none, want: all},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			theirs := b.theirs("net", c.ranges...)
			options := m{}
			if c.existing {
				ports, err := b.provider.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: theirs.ID}})
				b.must(err)
				options[optPort] = string(ports[0].ID)
			}
			before := b.dump()
			network, endpoint := b.nullNetwork(theirs), newID()
			body := m{"NetworkID": network, "EndpointID": endpoint, "Interface": c.given, "Options": options}
			answer := b.ok("NetworkDriver.CreateEndpoint", body)["Interface"].(map[string]any)
			port, _, err := b.driver.endpoints.LookUp(t.Context(), endpoint)
			b.must(err)
			want := m{}
			for _, a := range port.Addresses {
				if a.Addr.Is4() {
					want["Address"] = a.Addr.String() + "/24"
				} else {
					want["AddressIPv6"] = a.Addr.String() + "/80"
				}
			}
			if slices.Contains(c.want, "MacAddress") {
				want["MacAddress"] = port.MAC.String()
			}
			if len(want) != len(c.want) || encode(answer) != encode(want) {
				t.Errorf("the answer is %v, want %v of %v", answer, c.want, want)
			}
			again := b.ok("NetworkDriver.CreateEndpoint", body)["Interface"]
			if encode(again) != encode(answer) {
				t.Errorf("a repeated call is answered %v, the first %v", again, answer)
			}
			b.ok("NetworkDriver.DeleteEndpoint", m{"NetworkID": network, "EndpointID": endpoint})
			b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": network})
			b.unchanged(before)
		})
	}
}
