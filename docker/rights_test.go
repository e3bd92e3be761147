package docker

import (
	"testing"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

var errDenied = &sdn.Error{Kind: sdn.KindDenied, Noun: "port", Detail: "the policy forbids it"}

// Rights that are missing are told in words, and what the user made beforehand needs none.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	p, deniesChanges := &dockertest.Provider{}, false
	b := newBox(t, func(c *Config) { p.Provider = c.Provider; c.Provider = p })
	n := b.create(dualNetwork())
	p.Before = func(c dockertest.Call) error {
		specs, creates := dockertest.Arg[[]sdn.PortSpec](c)
		patch, changes := dockertest.Arg[sdn.PortPatch](c)
		if creates && (*specs)[0].MAC != nil || changes && deniesChanges && (patch.Host != nil || patch.MAC != nil) {
			return errDenied
		}
		return nil
	}
	b.contains(
		b.fails("IpamDriver.RequestAddress", m{
			"PoolID": n.v4[0].id, "Options": m{optMAC: "02:00:00:00:00:0b"},
		}),
		"--ip and --mac-address", "10.50.0.0/24",
	)
	unbound := b.port(n, usersPort, "10.50.0.88", "fd50::88")
	bound := b.port(n, sdn.PortSpec{DeviceOwner: sdn.OwnerContainer, Host: testHost}, "10.50.0.89", "fd50::89")
	for _, denied := range []func(){
		func() { p.Can = func(c *sdn.Capabilities) { c.HostBinding, c.ChooseMAC = false, false } },
		func() { p.Can, deniesChanges = nil, true },
	} {
		denied()
		e := &endpoint{net: n, ip4: "10.50.0.88", ip6: "fd50::88", mac: unbound.MAC.String()}
		b.take(e)
		b.contains(b.fails("NetworkDriver.CreateEndpoint", e.createBody()), "binding:host_id")
		b.giveBack(e)
		b.same(unbound)
		e = &endpoint{net: n, ip4: "10.50.0.88", ip6: "fd50::88", mac: "02:00:00:00:00:0d"}
		b.take(e)
		if refusal := b.fails("NetworkDriver.CreateEndpoint", e.createBody()); p.Can == nil {
			b.contains(refusal, "binding:host_id", "--mac-address")
		}
		b.giveBack(e)
		b.same(unbound)
		other := &endpoint{net: n, ip4: "10.50.0.89", ip6: "fd50::89", mac: "02:00:00:00:00:0c"}
		b.take(other)
		b.contains(b.fails("NetworkDriver.CreateEndpoint", other.createBody()), "--mac-address")
		b.giveBack(other)
		b.same(bound)
		b.stop(b.run(&endpoint{net: n, ip4: "10.50.0.89", ip6: "fd50::89", mac: bound.MAC.String()}))
		b.same(bound)
	}
}

// Where an SDN does not tell whom a port is bound to, it may be plugged elsewhere: it is not taken.
func TestHiddenBinding(t *testing.T) {
	t.Parallel()
	var hidden []string
	b := newBox(t, func(c *Config) {
		c.Provider = &dockertest.Provider{Provider: c.Provider, Found: func(_ dockertest.Call, object any) {
			if port, ok := object.(*sdn.Port); ok {
				port.VIF.Hidden = hidden
			}
		}}
	})
	n := b.create(dualNetwork())
	unbound := b.port(n, usersPort, "10.50.0.88", "fd50::88")
	hidden = []string{"binding:host_id"}
	b.contains(
		b.fails("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Address": "10.50.0.88"}),
		"binding:host_id", string(unbound.ID),
	)
	hidden = nil
	b.same(unbound)
}
