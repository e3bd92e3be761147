package local

import (
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// The gateway of an external network is the host: no port, router or floating IP can have its address.
func TestExternalGatewayIsTheHosts(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	p := open(t, Options{})
	n, err := p.EnsureNetwork(ctx, sdn.NetworkSpec{External: true, Subnets: []sdn.SubnetSpec{{CIDR: prefix("203.0.113.0/24")}}})
	ok(t, err)
	for _, network := range []sdn.ID{n.ID, p.external} {
		subnets, err := sdn.All(p.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network}}))
		ok(t, err)
		asked := []sdn.Address{{Subnet: subnets[0].ID, Addr: subnets[0].Gateway}}
		_, port := p.EnsureAllPorts(ctx, []sdn.PortSpec{{Network: network, Addresses: asked}})
		_, floating := p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Network: network, Address: subnets[0].Gateway})
		for what, err := range map[string]error{"port": port, "floating IP": floating} {
			if sdn.ReasonOf(err) != sdn.AddressInUse {
				t.Errorf("%s at %v: %v", what, subnets[0].Gateway, err)
			}
		}
		if network != p.external {
			continue
		}
		if _, err := p.EnsureRouter(ctx, sdn.RouterSpec{Gateway: &sdn.ExternalGateway{Network: network, Addresses: asked}}); sdn.ReasonOf(err) != sdn.AddressInUse {
			t.Errorf("router at %v: %v", subnets[0].Gateway, err)
		}
	}
	checkSum(t, p)
}
