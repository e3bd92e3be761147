package neutron

import (
	"context"
	"crypto/rand"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// What a container's start and stop cost of ports on a real Neutron, whose revisions move by themselves when a port is bound and unbound.
func TestCallsOfAContainersPortOnARealNeutron(t *testing.T) {
	c := realConfig(t)
	p, proxy := openReal(t, c)
	if proxy == nil || c.Host == "" {
		t.Skip("it needs KURYR_NEUTRON_URL, to count requests, and KURYR_NEUTRON_HOST")
	}
	at := time.Now()
	p.cache.ports.now = func() time.Time { return at }
	key := func(kind, name string) sdn.Key { return sdn.Key{Owner: c.Installation, Kind: kind, Name: name} }
	n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{
		Base:    sdn.Base{Key: key("network", "calls")},
		Subnets: []sdn.SubnetSpec{{Base: sdn.Base{Key: key("subnet", "calls")}, CIDR: netip.MustParsePrefix("10.20.0.0/24")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.DeleteNetwork(context.Background(), n.ID); err != nil {
			t.Error(err)
		}
	})
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac)
	mac[0] = 2
	proxy.Reset()

	ports, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{{
		Base: sdn.Base{Key: key("port", string(n.ID)+"/"+mac.String())}, Network: n.ID, MAC: mac,
		Addresses: []sdn.Address{{Subnet: n.Subnets[0]}}, DeviceOwner: sdn.OwnerContainer,
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.DeletePort(context.Background(), ports[0].ID, 0); err != nil {
			t.Error(err)
		}
	})
	byAddress := sdn.PortQuery{Subnets: n.Subnets, Addresses: []netip.Addr{ports[0].Addresses[0].Addr}}
	find := func(q sdn.PortQuery) sdn.Port {
		t.Helper()
		port, found, err := sdn.First(p.FindPorts(t.Context(), q))
		if err != nil || !found {
			t.Fatalf("found %v, %v", found, err)
		}
		return port
	}
	device, none := "endpoint", ""
	update := func(patch sdn.PortPatch, port sdn.Port) {
		t.Helper()
		patch.IfRevision = port.Revision
		if _, err := p.UpdatePort(t.Context(), port.ID, patch); err != nil {
			t.Fatal(err)
		}
	}
	update(sdn.PortPatch{DeviceID: &device, Host: &c.Host}, find(byAddress))
	byDevice := sdn.PortQuery{Devices: []string{device}, Networks: []sdn.ID{n.ID}}
	find(byDevice)
	wantCalls(t, proxy, "the start", postPorts, putPorts)

	at = at.Add(time.Hour)
	update(sdn.PortPatch{DeviceID: &none, Host: &none}, find(byDevice))
	parked := find(byAddress)
	if err := p.DeletePort(t.Context(), parked.ID, parked.Revision); err != nil {
		t.Fatal(err)
	}
	wantCalls(t, proxy, "the stop", getPorts, putPorts, deletePorts)
	if left, err := sdn.All(p.FindPorts(t.Context(), byDevice)); err != nil || len(left) != 0 {
		t.Errorf("after it there are %v, %v", left, err)
	}
	if n := proxy.Count(neutrontest.Call{}); n != 1 {
		t.Errorf("that was %d requests", n)
	}
}
