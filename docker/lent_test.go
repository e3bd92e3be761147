package docker

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// port makes an unmanaged port: without a Key.
func (b *box) port(n *network, s sdn.PortSpec, addresses ...string) sdn.Port {
	b.t.Helper()
	s.Network = b.networkOf(n).ID
	for _, a := range addresses {
		s.Addresses = append(s.Addresses, sdn.Address{Addr: netip.MustParseAddr(a)})
	}
	ports, err := b.provider.EnsurePorts(b.t.Context(), []sdn.PortSpec{s})
	b.must(err)
	return ports[0]
}

// same checks that a port is as it was.
func (b *box) same(was sdn.Port) {
	b.t.Helper()
	now, err := b.provider.Port(b.t.Context(), was.ID)
	b.must(err)
	now.Revision, now.Updated, now.Status, now.VIF = was.Revision, was.Updated, was.Status, was.VIF
	now.Tags, was.Tags = slices.Sorted(slices.Values(now.Tags)), slices.Sorted(slices.Values(was.Tags))
	if encode(now) != encode(was) {
		b.t.Errorf("the port is\n%s\nand was\n%s", encode(now), encode(was))
	}
}

var usersPort = sdn.PortSpec{Base: sdn.Base{Name: "theirs", Description: "hands off", Tags: []string{"mine"}}}

// A port of the user's is taken by its addresses; it keeps all that is the user's, and in
// the end nothing of ours is left on it.
func TestExistingPortByAddress(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	was := b.port(n, usersPort, "10.50.0.77", "fd50::77")
	for _, restarts := range []bool{false, true} {
		e := b.run(&endpoint{net: n, ip4: "10.50.0.77", ip6: "fd50::77"})
		p, err := b.provider.Port(t.Context(), was.ID)
		b.must(err)
		if p.Name != "theirs" || p.Description != "hands off" || p.DeviceID != e.id ||
			p.Host != testHost || p.DeviceOwner != sdn.OwnerContainer ||
			p.MAC.String() != e.mac || !identity.HasAll(
			p.Tags, append(identity.IDTags(e.id), "mine", identity.TagExistingPort),
		) || slices.Contains(p.Tags, identity.TagPort) || !p.Key.IsZero() {
			t.Errorf("port in use: %+v", p)
		}
		if b.binder.plugged[was.ID].Port.ID != was.ID {
			t.Error("it is not plugged")
		}
		if restarts {
			b.restart()
		}
		b.stop(e)
		b.same(was)
	}
	b.must(b.provider.DeletePorts(t.Context(), []sdn.ID{was.ID}))
	b.remove(n)
	b.clean()
}

// The user of a port writes the tags by which Kuryr restores what it set, before an
// endpoint has the port or while it does. Kuryr restores only what it set.
func TestUsersRestoreTags(t *testing.T) {
	t.Parallel()
	forged := []string{identity.TagMAC + "fa:16:3e:de:ad:01", identity.TagSet + identity.SetOwner}
	for _, before := range []bool{false, true} {
		for _, restarts := range []bool{false, true} {
			b := newBox(t)
			n := b.create(dualNetwork())
			spec := usersPort
			spec.DeviceOwner = sdn.OwnerContainer
			if before {
				spec.Tags = slices.Concat(spec.Tags, forged,
					[]string{identity.TagExistingPort, identity.TagBorrower + b.provider.Installation()})
			}
			was := b.port(n, spec, "10.50.0.77", "fd50::77")
			e := b.run(&endpoint{net: n, ip4: "10.50.0.77", ip6: "fd50::77", mac: was.MAC.String()})
			if !before {
				used, err := b.provider.Port(t.Context(), was.ID)
				b.must(err)
				tags := slices.Concat(used.Tags, forged)
				_, err = b.provider.UpdatePort(t.Context(), was.ID, sdn.PortPatch{Patch: sdn.Patch{Tags: &tags}})
				b.must(err)
			}
			if restarts {
				b.restart()
			}
			b.stop(e)
			was.Tags = []string{"mine"}
			b.same(was)
		}
	}
}

// A port of the user's is found by its MAC for both families.
func TestExistingPortByMAC(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	was := b.port(n, usersPort, "10.50.0.78", "fd50::78")
	e := b.run(&endpoint{net: n, mac: was.MAC.String()})
	if e.ip4 != "10.50.0.78" || e.ip6 != "fd50::78" {
		t.Errorf("addresses %s %s", e.ip4, e.ip6)
	}
	b.stop(e)
	b.same(was)
}

// Zun makes a container's port beforehand, bound and with the container's id as its
// device, and starts the container with its addresses and its MAC. The network is its
// user's, and the port stays as it was wherever the plugin is restarted.
func TestZunsPort(t *testing.T) {
	t.Parallel()
	for _, restarts := range []bool{false, true} {
		b := newBox(t)
		again := func() {
			if restarts {
				b.restart()
				b.reconcile()
			}
		}
		theirs := b.theirs("net", "10.50.0.0/24", "fd50::/64", "10.51.0.0/24")
		n := b.create(b.zun(theirs, "10.50.0.0/24", "fd50::/64"))
		was := b.port(n, sdn.PortSpec{
			Base: sdn.Base{Name: "zun"}, DeviceID: "8a5d6a63-0d5d-4a9c-8d3b-6a1f5a0ffb11",
			DeviceOwner: sdn.OwnerContainer, Host: testHost,
		},
			"10.50.0.79", "fd50::79")
		again()
		e := &endpoint{net: n, mac: was.MAC.String(), ip4: "10.50.0.79", ip6: "fd50::79"}
		b.take(e)
		again()
		b.ok("NetworkDriver.CreateEndpoint", e.createBody())
		again()
		e.joined = b.ok("NetworkDriver.Join", e.joinBody())
		p, err := b.provider.Port(t.Context(), was.ID)
		b.must(err)
		if p.DeviceID != was.DeviceID || p.Name != "zun" ||
			!identity.HasAll(p.Tags, append(identity.IDTags(e.id), identity.TagExistingPort)) {
			t.Errorf("port in use: %+v", p)
		}
		if e.joined["Gateway"] != "10.50.0.1" || e.joined["GatewayIPv6"] != "fd50::1" ||
			e.joined["InterfaceName"].(m)["SrcName"] != bind.ContainerName(was.ID) {
			t.Errorf("joined %v", e.joined)
		}
		again()
		b.ok("NetworkDriver.RevokeExternalConnectivity", e.body())
		b.ok("NetworkDriver.Leave", e.body())
		again()
		b.ok("NetworkDriver.DeleteEndpoint", e.body())
		again()
		b.giveBack(e)
		b.same(was)
		b.remove(n)
		b.same(was)
	}
}

// TestExistingPortRefused: ports that are not the user's to give are refused, and do not
// change whatever the engine releases then.
func TestExistingPortRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec  sdn.PortSpec
		says  string
		takes bool // RequestAddress cannot know
	}{
		"a virtual machine's": {
			spec: sdn.PortSpec{DeviceID: "vm", DeviceOwner: "compute:nova", Host: testHost},
			says: "compute:nova",
		},
		"a subport": {spec: sdn.PortSpec{DeviceOwner: "trunk:subport"}, says: "trunk:subport"},
		"another endpoint's": {
			spec: sdn.PortSpec{DeviceID: newID(), DeviceOwner: sdn.OwnerContainer, Host: testHost},
			says: "another endpoint",
		},
		"another installation's": {
			spec: sdn.PortSpec{Base: sdn.Base{Key: sdn.Key{Owner: "other", Kind: identity.KindPort, Name: "x"}}},
			says: "in use",
		},
		"used by another": {
			spec: sdn.PortSpec{
				Base: sdn.Base{Tags: append(identity.IDTags(newID()), identity.TagExistingPort)},
				Host: testHost,
			},
			says: "another endpoint",
		},
		"of the same, without a key": {
			spec: sdn.PortSpec{Base: sdn.Base{Key: sdn.Key{Owner: "other", Kind: identity.KindPort, Name: "y"}}, Host: testHost},
			says: "in use",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			n := b.create(dualNetwork())
			was := b.port(n, c.spec, "10.50.0.80")
			b.contains(
				b.fails("IpamDriver.RequestAddress", m{
					"PoolID": n.v4[0].id, "Address": "10.50.0.80",
					"Options": m{optMAC: "02:00:00:00:00:09"},
				}),
				c.says,
			)
			e := &endpoint{net: n, id: newID(), mac: "02:00:00:00:00:09", ip4: "10.50.0.80"}
			b.contains(b.fails("NetworkDriver.CreateEndpoint", e.createBody()), c.says)
			b.giveBack(e)
			b.same(was)
		})
	}
}

// A port that is bound to another host stays there.
func TestExistingPortBoundElsewhere(t *testing.T) {
	t.Parallel()
	boxes := hostsOn(t, "two")
	b := boxes[0]
	n := b.create(v4Network("10.50.0.0/24"))
	was := b.port(n, sdn.PortSpec{DeviceOwner: sdn.OwnerContainer, Host: "two"}, "10.50.0.81")
	b.contains(b.fails("IpamDriver.RequestAddress", m{
		"PoolID": n.v4[0].id, "Address": "10.50.0.81", "Options": m{optMAC: "02:00:00:00:00:09"},
	}),
		"10.50.0.81", "bound to host two")
	b.ok("IpamDriver.ReleaseAddress", m{"PoolID": n.v4[0].id, "Address": "10.50.0.81"})
	b.same(was)
	other := boxes[1].create(boxes[1].zun(b.networkOf(n), "10.50.0.0/24", ""))
	e := boxes[1].run(&endpoint{net: other, ip4: "10.50.0.81", mac: was.MAC.String()})
	boxes[1].stop(e)
	b.same(was)
}

// hostsOn are hosts that share an SDN and, as with the engines of one installation, what is on it.
func hostsOn(t testing.TB, hosts ...string) []*box {
	t.Helper()
	return widen(newBox(t), hosts...)
}

// The same address of a user's port for two endpoints: the second is refused, and the first keeps it.
func TestExistingPortTwice(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(v4Network("10.50.0.0/24"))
	was := b.port(n, usersPort, "10.50.0.82")
	first, second := &endpoint{net: n, ip4: "10.50.0.82"}, &endpoint{net: n, ip4: "10.50.0.82"}
	b.take(first)
	b.take(second) // neither is known yet
	b.ok("NetworkDriver.CreateEndpoint", first.createBody())
	b.contains(b.fails("NetworkDriver.CreateEndpoint", second.createBody()), "in use by another endpoint")
	b.giveBack(second)
	b.ok("NetworkDriver.Join", first.joinBody())
	if p := b.portOf(first.id); p.ID != was.ID {
		t.Errorf("the first has %s", p.ID)
	}
	b.contains(
		b.fails("IpamDriver.RequestAddress", m{
			"PoolID": n.v4[0].id, "Address": "10.50.0.82",
			"Options": m{optMAC: "02:00:00:00:00:0a"},
		}),
		"another endpoint",
	)
	b.stop(first)
	b.same(was)
}

// A start on a user's port was cut off, and the engine releases the address without deleting the
// endpoint. The next start has the port, with an address by this driver or by another one.
func TestExistingPortAfterCutStart(t *testing.T) {
	t.Parallel()
	for name, foreign := range map[string]bool{"own addresses": false, "addresses of another driver": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			n := b.create(v4Network("10.50.0.0/24"))
			was := b.port(n, usersPort, "10.50.0.83")
			cut, next := &endpoint{net: n, ip4: "10.50.0.83"}, &endpoint{net: n, ip4: "10.50.0.83"}
			b.take(cut)
			b.ok("NetworkDriver.CreateEndpoint", cut.createBody())
			b.giveBack(cut)
			b.ok("Plugin.Activate", nil) // the engine process that started it is gone
			if foreign {
				next.id = newID()
			} else {
				b.take(next)
			}
			b.ok("NetworkDriver.CreateEndpoint", next.createBody())
			b.ok("NetworkDriver.Join", next.joinBody())
			if p := b.portOf(next.id); p.ID != was.ID {
				t.Errorf("the next start has port %s, want %s", p.ID, was.ID)
			}
			b.ok("NetworkDriver.DeleteEndpoint", cut.body())
			if p := b.portOf(next.id); p.DeviceID != next.id {
				t.Errorf("after the late deletion the port is of %s", p.DeviceID)
			}
			b.stop(next)
			b.same(was)
		})
	}
}

// The same endpoint id comes twice, on one host and on two.
func TestSameEndpointTwice(t *testing.T) {
	t.Parallel()
	boxes := hostsOn(t, "two")
	b, n := boxes[0], boxes[0].create(dualNetwork())
	e := b.run(&endpoint{net: n})
	port := b.portOf(e.id)
	b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	b.contains(boxes[1].fails("NetworkDriver.CreateEndpoint", e.createBody()), "bound to host "+testHost)
	b.contains(boxes[1].fails("NetworkDriver.Join", e.joinBody()), "bound to host")
	boxes[1].ok("NetworkDriver.Leave", e.body())
	boxes[1].ok("NetworkDriver.DeleteEndpoint", e.body())
	boxes[1].giveBack(e)
	if now := b.portOf(e.id); now.Host != testHost || now.ID != port.ID || len(now.Addresses) != 2 {
		t.Errorf("the first host's port is %+v", now)
	}
	b.stop(e)
	b.remove(n)
	b.clean()
}

// What kuryr-libnetwork made is used: a port that its RequestAddress left, and gets a Key then.
func TestPeersPortUsed(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	b.port(n, sdn.PortSpec{Base: sdn.Base{Name: identity.UnboundPort, Tags: []string{identity.TagPort}}}, "10.50.0.83")
	e := b.run(&endpoint{net: n, ip4: "10.50.0.83"})
	if p := b.portOf(e.id); p.Key.IsZero() || p.Name != identity.PortTitle(e.id) ||
		!identity.HasAll(p.Tags, append(identity.IDTags(e.id), identity.TagPort)) ||
		len(p.Addresses) != 2 {
		t.Errorf("port %+v", p)
	}
	b.stop(e)
	b.remove(n)
	b.clean()
}

// What kuryr-libnetwork left running goes by the engine's calls: ports of its
// RequestAddress, and those of its CreateEndpoint, which have no tags.
func TestPeersPortRemoved(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]func(endpoint string) sdn.PortSpec{
		"tagged": func(id string) sdn.PortSpec {
			return sdn.PortSpec{
				Base: sdn.Base{
					Name: identity.UnboundPort, Tags: append(identity.IDTags(id), identity.TagPort),
				},
				DeviceID: id, DeviceOwner: sdn.OwnerContainer, Host: testHost,
			}
		},
		"named": func(id string) sdn.PortSpec {
			return sdn.PortSpec{
				Base: sdn.Base{Name: identity.PortTitle(id)}, DeviceID: id,
				DeviceOwner: sdn.OwnerContainer, Host: testHost,
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBox(t)
			n := b.create(dualNetwork())
			e := &endpoint{net: n, id: newID(), ip4: "10.50.0.84", ip6: "fd50::84"}
			p := b.port(n, spec(e.id), e.ip4, e.ip6)
			b.binder.put(p.ID, bind.Interface{Port: p})
			b.stop(e)
			b.remove(n)
			b.clean()
		})
	}
}

// A user's port that an endpoint of kuryr-libnetwork has is given back as that would.
func TestPeersExistingPortGivenBack(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	e := &endpoint{net: n, id: newID(), ip4: "10.50.0.85"}
	p := b.port(
		n,
		sdn.PortSpec{
			Base: sdn.Base{
				Name: "theirs", Tags: append(identity.IDTags(e.id), identity.TagExistingPort),
			},
			DeviceID: e.id, DeviceOwner: sdn.OwnerContainer, Host: testHost,
		},
		e.ip4,
	)
	b.stop(e)
	p.DeviceID, p.DeviceOwner, p.Host, p.Tags = "", "", "", nil
	b.same(p)
}

// A port is named by its id; it must have the addresses that the engine says.
func TestPortByID(t *testing.T) {
	t.Parallel()
	for _, option := range []string{optPort, optNeutronPort} {
		b := newBox(t)
		n := b.create(dualNetwork())
		was := b.port(n, usersPort, "10.50.0.86", "fd50::86")
		far := b.port(b.create(v4Network("10.51.0.0/24")), usersPort, "10.51.0.86")
		e := &endpoint{net: n, ip4: "10.50.0.86", ip6: "fd50::86"}
		b.take(e)
		body := e.createBody()
		body["Options"].(m)[option] = string(was.ID)
		b.ok("NetworkDriver.CreateEndpoint", body)
		b.ok("NetworkDriver.Join", e.joinBody())
		b.stop(e)
		b.same(was)
		auto := &endpoint{net: n}
		b.take(auto)
		for id, says := range map[string]string{
			string(was.ID): "give the container its addresses", newID(): "there is no port",
			string(far.ID): "is not of network",
		} {
			body = auto.createBody()
			body["Options"].(m)[option] = id
			b.contains(b.fails("NetworkDriver.CreateEndpoint", body), option, says)
		}
		b.giveBack(auto)
		b.same(was)
	}
}

// An option that would change a user's port is refused.
func TestExistingPortStaysAsItIs(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	was := b.port(n, usersPort, "10.50.0.87", "fd50::87")
	for option, value := range map[string]string{optPortSecurity: "false", optAllowed: "10.9.0.0/16"} {
		e := &endpoint{net: n, ip4: "10.50.0.87", ip6: "fd50::87"}
		b.take(e)
		body := e.createBody()
		body["Options"].(m)[option] = value
		b.contains(b.fails("NetworkDriver.CreateEndpoint", body), "leave out "+option)
		b.giveBack(e)
		b.same(was)
	}
}

// An engine that forgot an endpoint on a user's port: the port is given back, not deleted.
func TestOrphanedEndpointOnExistingPort(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n := c.create(dualNetwork())
		c.engine.has(n)
		was := c.port(n, usersPort, "10.50.0.92", "fd50::92")
		c.run(&endpoint{net: n, ip4: "10.50.0.92", ip6: "fd50::92"})
		time.Sleep(5 * time.Minute)
		c.binder.unplugAll()
		c.expire()
		c.same(was)
	})
}
