package docker

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron"
)

var errDied = errors.New("died")

// lateTags is an SDN that writes tags in a call of its own, after the rest, as Neutron
// does. It can die before.
type lateTags struct {
	sdn.Provider
	die bool
}

func (l *lateTags) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	specs = slices.Clone(specs)
	tags := specs[0].Tags
	specs[0].Tags = nil
	ports, err := l.Provider.EnsurePorts(ctx, specs)
	if err != nil || len(tags) == 0 {
		return ports, err
	}
	p, err := l.UpdatePort(ctx, ports[0].ID, sdn.PortPatch{Patch: sdn.Patch{Tags: &tags}})
	return []sdn.Port{p}, err
}

func (l *lateTags) UpdatePort(ctx context.Context, id sdn.ID, patch sdn.PortPatch) (sdn.Port, error) {
	tags := patch.Tags
	patch.Tags = nil
	p, err := l.Provider.UpdatePort(ctx, id, patch)
	if err != nil || tags == nil {
		return p, err
	}
	if l.die {
		return p, sdn.Unavailable(errDied, "port", "the SDN does not answer")
	}
	return l.Provider.UpdatePort(ctx, id, sdn.PortPatch{Patch: sdn.Patch{Tags: tags}})
}

// An SDN that dies before it has written tags: the engine repeats or gives back, and nothing is lost or left.
func TestTagsLost(t *testing.T) {
	t.Parallel()
	l := &lateTags{}
	b := newBox(t, func(c *Config) { l.Provider = c.Provider; c.Provider = l })
	n := b.create(dualNetwork())
	users := b.port(n, usersPort, "10.50.0.90", "fd50::90")
	zuns := b.port(
		n, sdn.PortSpec{DeviceID: "container", DeviceOwner: sdn.OwnerContainer, Host: testHost},
		"10.50.0.91", "fd50::91",
	)
	for _, of := range []endpoint{{}, {ip4: "10.50.0.90", ip6: "fd50::90"}, {
		ip4: "10.50.0.91", ip6: "fd50::91", mac: zuns.MAC.String(),
	}} {
		for _, repeats := range []bool{true, false} {
			e := of
			e.net = n
			l.die = true
			b.take(&e)
			b.fails("NetworkDriver.CreateEndpoint", e.createBody())
			l.die = false
			b.restart()
			if repeats {
				b.ok("NetworkDriver.CreateEndpoint", e.createBody())
				b.ok("NetworkDriver.Join", e.joinBody())
				b.restart()
				b.stop(&e)
			} else {
				b.giveBack(&e)
			}
			// While it stops, too.
			e = of
			e.net = n
			b.run(&e)
			b.ok("NetworkDriver.Leave", e.body())
			l.die = true
			b.post("NetworkDriver.DeleteEndpoint", encode(e.body()))
			l.die = false
			b.restart()
			b.giveBack(&e)
			b.same(users)
			b.same(zuns)
		}
	}
	b.must(b.provider.DeletePorts(t.Context(), []sdn.ID{users.ID, zuns.ID}))
	b.remove(n)
	b.clean()
}

// noTags is an SDN that has no tags, such as a Neutron without the extension: it ignores them.
func noTags(p sdn.Provider) *dockertest.Provider {
	return &dockertest.Provider{
		Provider: p, Before: dropTags, Can: func(can *sdn.Capabilities) { can.MaxTagLen = 0 },
	}
}

func dropTags(c dockertest.Call) error {
	for _, a := range c.Args {
		switch a := a.(type) {
		case *sdn.NetworkSpec:
			a.Tags = nil
		case *sdn.SubnetSpec:
			a.Tags = nil
		case *sdn.SubnetPoolSpec:
			a.Tags = nil
		case *[]sdn.PortSpec:
			*a = slices.Clone(*a)
			for i := range *a {
				(*a)[i].Tags = nil
			}
		case *sdn.NetworkPatch:
			a.Tags = nil
		case *sdn.SubnetPatch:
			a.Tags = nil
		case *sdn.SubnetPoolPatch:
			a.Tags = nil
		case *sdn.PortPatch:
			a.Tags = nil
		}
	}
	return nil
}

// Without tags kuryr-libnetwork renamed an existing network and deleted it with the
// engine's, or required an id.
func TestPeerB14ExistingNetworkWithoutTags(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.Provider, c.Routed = noTags(c.Provider), false })
	theirs := b.theirs("theirs", "10.50.0.0/24")
	before := b.dump()
	for _, options := range []m{{optNetName: "theirs"}, {optNetUUID: string(theirs.ID)}} {
		n := b.create(&network{v4: []*pool{{cidr: "10.50.0.0/24"}}, options: options})
		e := b.run(&endpoint{net: n})
		if b.portOf(e.id).Network != theirs.ID {
			t.Error("the network was not used")
		}
		b.restart()
		b.stop(e)
		b.remove(n)
		b.unchanged(before)
	}
}

// Without tags Kuryr cannot know what to restore of a user's port: it is refused before
// anything is set. Ports of Kuryr need no tags.
func TestExistingPortWithoutTags(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.Provider, c.Routed = noTags(c.Provider), false })
	n := b.create(dualNetwork())
	users := b.port(n, sdn.PortSpec{Base: sdn.Base{Name: "theirs"}}, "10.50.0.92", "fd50::92")
	e := &endpoint{net: n, ip4: "10.50.0.92", ip6: "fd50::92"}
	b.take(e)
	b.contains(b.fails("NetworkDriver.CreateEndpoint", e.createBody()), "needs tags")
	b.giveBack(e)
	b.same(users)
	b.stop(b.run(&endpoint{net: n}))
	b.must(b.provider.DeletePorts(t.Context(), []sdn.ID{users.ID}))
	b.remove(n)
	b.clean()
}

// Options of a network that are kept in tags are refused without tags, by the names in
// the manual, and nothing is left.
func TestOptionsWithoutTags(t *testing.T) {
	t.Parallel()
	manual, err := os.ReadFile("../docs/neutron.md")
	if err != nil {
		t.Fatal(err)
	}
	b := newBox(t, func(c *Config) { c.Provider, c.Routed = noTags(c.Provider), false })
	_, err = b.provider.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{
		Base: sdn.Base{Key: sdn.Key{Owner: "tests", Kind: "group", Name: "web"}, Name: "web"},
	})
	b.must(err)
	b.empty = b.dump()
	for option, value := range map[string]string{
		optRouter: "lab", optExternal: string(b.provider.Capabilities().ExternalNetwork),
		optGroups: "web", optPublish: publishFloating, optBinding: "198.51.100.1",
	} {
		n := &network{v4: []*pool{{cidr: "10.57.0.0/24"}}, options: m{option: value}}
		b.contains(b.fails("NetworkDriver.CreateNetwork", b.request(n)), "option "+option+":", "standard-attr-tag")
		if !strings.Contains(string(manual), "`"+option+"`") {
			t.Errorf("docs/neutron.md does not name %s", option)
		}
		b.release(n)
	}
	n := b.create(&network{v4: []*pool{{cidr: "10.57.0.0/24"}}, internal: true})
	b.remove(n)
	b.clean()
	existing := b.zun(b.theirs("net", "10.58.0.0/24"), "10.58.0.0/24", "")
	before := b.dump()
	existing.options = maps.Clone(existing.options) // the pool's are its own
	existing.options[optPublish] = publishFloating
	b.contains(b.fails("NetworkDriver.CreateNetwork", b.request(existing)), "option "+optPublish+":", "standard-attr-tag")
	b.release(existing)
	b.unchanged(before)
}

// So are an endpoint's, which would be forgotten silently; the endpoint is made without them.
func TestEndpointOptionsWithoutTags(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.Provider, c.Routed = noTags(c.Provider), false })
	n := b.create(dualNetwork())
	for option, value := range map[string]string{
		optFloatingIP: floatingAuto, optPublish: publishFloating, optPortSecurity: "false",
		optIfname: "net1",
	} {
		e := &endpoint{net: n, driver: m{option: value}}
		b.take(e)
		b.contains(b.fails("NetworkDriver.CreateEndpoint", e.createBody()), "option "+option+":", "standard-attr-tag")
		b.giveBack(e)
	}
	b.stop(b.run(&endpoint{net: n, driver: m{optPublish: publishProxy}}))
	b.remove(n)
	b.clean()
}

// In a virtual machine no port is attached: its owner would be unknown afterwards.
func TestNestedWithoutTags(t *testing.T) {
	t.Parallel()
	for _, mode := range []neutron.NestedMode{neutron.NestedMacvlan, neutron.NestedVLAN} {
		for _, known := range []bool{true, false} {
			vm := newMachine(t, mode)
			tagless := noTags(vm.sdn)
			if !known {
				tagless.Can = nil // it has not learned yet that there are no tags
			}
			p, err := neutron.NewNested(
				tagless,
				neutron.NestedConfig{Mode: mode, Host: testHost, MACs: func() ([]net.HardwareAddr, error) {
					return []net.HardwareAddr{machineMAC}, nil
				}},
			)
			vm.must(err)
			vm.config.Provider = p
			vm.box.restart()
			n := vm.network()
			e := &endpoint{net: n}
			vm.take(e)
			vm.contains(vm.fails("NetworkDriver.CreateEndpoint", e.createBody()), "bind.nested", "standard-attr-tag")
			vm.giveBack(e)
			vm.wantAttached(0)
			vm.remove(n)
		}
	}
}
