package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/peertest"
	"github.com/kuryr/kuryr/sdn"
)

// scattered is an id of an engine's that differs from others in its first characters too.
func scattered() string {
	sum := sha256.Sum256([]byte(newID()))
	return hex.EncodeToString(sum[:])
}

// peers is a network of kuryr-libnetwork's as the engine holds it.
func (b *box) peers(made peertest.Network, err error) *network {
	b.t.Helper()
	b.must(err)
	n := &network{id: made.ID}
	for _, r := range made.Ranges {
		p := &pool{id: string(r.Pool.ID), cidr: r.Subnet.CIDR.String(), gateway: r.Subnet.Gateway.String()}
		if r.Subnet.CIDR.Addr().Is4() {
			n.v4 = append(n.v4, p)
		} else {
			n.v6 = append(n.v6, p)
		}
	}
	return n
}

// What kuryr-libnetwork made is used, and removed as if it were ours; an operator's default pool stays.
func TestTakeoverMade(t *testing.T) {
	t.Parallel()
	for _, restarts := range []bool{false, true} {
		b := newBox(t, unrouted)
		again := func() {
			if restarts {
				b.restart()
				b.reconcile()
			}
		}
		_, err := b.provider.EnsureSubnetPool(t.Context(), sdn.SubnetPoolSpec{
			Base: sdn.Base{Name: "kuryr"}, Prefixes: somePrefixes(), DefaultLen: 24,
		})
		b.must(err)
		before := b.dump()
		n := b.peers(peertest.Make(
			t.Context(), b.provider, scattered(), netip.MustParsePrefix("10.50.0.0/24"),
			netip.MustParsePrefix("fd50::/64"),
		))
		again()
		e := b.run(&endpoint{net: n})
		if e.joined["Gateway"] != "10.50.0.1" || e.joined["GatewayIPv6"] != "fd50::1" {
			t.Errorf("join %v", e.joined)
		}
		if now := b.networkOf(n); !b.driver.daemon.Names.Ours(now.Meta, identity.KindNetwork) ||
			now.Name != identity.NetworkTitle(n.id) ||
			!identity.HasAll(now.Tags, identity.IDTags(n.id)) {
			t.Errorf("the network is %+v", now)
		}
		again()
		b.stop(e)
		again()
		b.release(n)
		again()
		b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
		b.unchanged(before)
		b.restart()
	}
}

// An existing network that two hosts use by kuryr-libnetwork's way goes on to be used by
// the one when the other has left it, and is its owner's as before when both have. Each
// host is an installation of its own, or both are one.
func TestTakeoverUsed(t *testing.T) {
	t.Parallel()
	b := newBox(t, unrouted)
	other := boxOn(t, b.provider, func(c *Config) { c.Routed, c.Host = false, "crate" })
	theirs := b.theirs("net", "10.50.0.0/24", "fd50::/64")
	before := b.dump()
	subnets := []sdn.ID{b.subnetAt(theirs, "10.50.0.0/24").ID, b.subnetAt(theirs, "fd50::/64").ID}
	here := b.peers(peertest.Use(t.Context(), b.provider, scattered(), theirs.ID, subnets...))
	there := other.peers(peertest.Use(t.Context(), b.provider, scattered(), theirs.ID, subnets...))
	if here.v4[0].id != there.v4[0].id {
		t.Fatal("the hosts do not share the pool")
	}
	e := b.run(&endpoint{net: here})
	if b.portOf(e.id).Network != theirs.ID {
		t.Errorf("port %+v", b.portOf(e.id))
	}
	b.stop(e)
	b.restart()
	b.remove(here)
	b.reconcile()
	b.idle()
	far := &endpoint{net: there}
	other.take(far)
	other.giveBack(far)
	other.restart()
	other.remove(there)
	other.idle()
	b.unchanged(before)
}

// An operator's pool that kuryr-libnetwork used stays, without that one's tag in the end,
// be it for a network of its own or an existing one.
func TestTakeoverOperatorsPool(t *testing.T) {
	t.Parallel()
	for _, existing := range []bool{false, true} {
		b := newBox(t, unrouted)
		cidr := netip.MustParsePrefix("10.50.0.0/24")
		pool, err := b.provider.EnsureSubnetPool(t.Context(), sdn.SubnetPoolSpec{
			Base: sdn.Base{Name: "tenants"}, Prefixes: []netip.Prefix{cidr}, DefaultLen: 24,
		})
		b.must(err)
		spec := sdn.SubnetSpec{Base: sdn.Base{Name: "theirs"}, CIDR: cidr, Pool: pool.ID}
		var made peertest.Network
		if existing {
			theirs := b.theirs("net")
			spec.Network = theirs.ID
		}
		var before string
		mark := func() {
			before = b.dump()
			tags := []string{"kuryr.subnetpool.existing"}
			pool, err = b.provider.UpdateSubnetPool(t.Context(), pool.ID, sdn.SubnetPoolPatch{Patch: sdn.Patch{Tags: &tags}})
			b.must(err)
		}
		var subnet sdn.Subnet
		if existing {
			subnet, err = b.provider.EnsureSubnet(t.Context(), spec)
			b.must(err)
			mark()
			made, err = peertest.Use(t.Context(), b.provider, scattered(), spec.Network)
			b.must(err)
			tags := []string{string(pool.ID)}
			subnet, err = b.provider.UpdateSubnet(t.Context(), subnet.ID, sdn.SubnetPatch{Patch: sdn.Patch{Tags: &tags}})
		} else {
			mark()
			made, err = peertest.Make(t.Context(), b.provider, scattered())
			b.must(err)
			spec.Network, spec.Name, spec.Tags = made.Network.ID, "kuryr-subnet-"+cidr.String(), []string{string(pool.ID)}
			subnet, err = b.provider.EnsureSubnet(t.Context(), spec)
		}
		b.must(err)
		made.Ranges = []peertest.Range{{Subnet: subnet, Pool: pool}}
		n := b.peers(made, nil)
		b.stop(b.run(&endpoint{net: n}))
		b.remove(n)
		b.idle()
		b.unchanged(before, "existing", existing)
	}
}

// Of two networks of one operator's pool, which have one PoolID, the one goes, and its
// release is repeated, before and after: the pool keeps the tag, without which
// kuryr-libnetwork would delete it, as long as the other has it.
func TestTakeoverOperatorsPoolOfTwo(t *testing.T) {
	t.Parallel()
	b := newBox(t, unrouted)
	operators, err := b.provider.EnsureSubnetPool(t.Context(), sdn.SubnetPoolSpec{Base: sdn.Base{Name: "tenants"},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.48.0.0/14")}, DefaultLen: 24})
	b.must(err)
	before := b.dump()
	tags := []string{identity.TagExistingPool}
	operators, err = b.provider.UpdateSubnetPool(
		t.Context(), operators.ID, sdn.SubnetPoolPatch{Patch: sdn.Patch{Tags: &tags}},
	)
	b.must(err)
	var both []*network
	for _, cidr := range []string{"10.50.0.0/24", "10.51.0.0/24"} {
		made, err := peertest.Make(t.Context(), b.provider, scattered())
		b.must(err)
		subnet, err := b.provider.EnsureSubnet(t.Context(), sdn.SubnetSpec{
			Base:    sdn.Base{Name: "kuryr-subnet-" + cidr, Tags: []string{string(operators.ID)}},
			Network: made.Network.ID, CIDR: netip.MustParsePrefix(cidr), Pool: operators.ID,
		})
		b.must(err)
		made.Ranges = []peertest.Range{{Subnet: subnet, Pool: operators}}
		both = append(both, b.peers(made, nil))
	}
	marked := func(when string) {
		t.Helper()
		now, err := b.provider.SubnetPool(t.Context(), operators.ID)
		b.must(err)
		if !identity.HasAll(now.Tags, tags) {
			t.Fatalf("%s the pool has the tags %v", when, now.Tags)
		}
	}
	release := m{"PoolID": string(operators.ID)}
	b.ok("IpamDriver.ReleasePool", release)
	b.ok("IpamDriver.ReleasePool", release)
	marked("before the first has gone")
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": both[0].id})
	marked("when the first has gone")
	b.ok("IpamDriver.ReleasePool", release)
	marked("after the repeated release")
	b.stop(b.run(&endpoint{net: both[1]}))
	b.remove(both[1])
	b.unchanged(before)
}

// What we make has kuryr-libnetwork's names and tags, so that it could have it back.
func TestGivenBack(t *testing.T) {
	t.Parallel()
	b := newBox(t, unrouted)
	n := b.create(dualNetwork())
	peers, err := peertest.Make(
		t.Context(), newBox(t).provider, n.id, netip.MustParsePrefix("10.50.0.0/24"),
		netip.MustParsePrefix("fd50::/64"),
	)
	b.must(err)
	made := b.networkOf(n)
	if made.Name != peers.Network.Name || !identity.HasAll(made.Tags, peers.Network.Tags) {
		t.Errorf("the network %+v is not like %+v", made, peers.Network)
	}
	for i, p := range []*pool{n.v4[0], n.v6[0]} {
		s := b.subnetAt(made, p.cidr)
		found, err := b.provider.SubnetPool(t.Context(), sdn.ID(p.id))
		b.must(err)
		if s.Name != "kuryr-subnet-"+p.cidr || s.Pool != found.ID ||
			!identity.HasAll(s.Tags, []string{p.id}) || found.Name != "kuryrPool-"+p.cidr ||
			found.Prefixes[0].String() != p.cidr {
			t.Errorf("range %d: subnet %+v of pool %+v", i, s, found)
		}
	}
}

// Existing networks are compared with the engine like others, and what Kuryr made of them is deleted.
func TestOrphanedExisting(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		theirs := c.theirs("net", "10.50.0.0/24")
		before := c.dump()
		kept, lost := c.create(c.zun(theirs, "10.50.0.0/24", "")), c.create(c.zun(theirs, "10.50.0.0/24", ""))
		e := c.run(&endpoint{net: kept})
		c.engine.has(kept, lost)
		c.engine.runs(e)
		c.wants("")
		c.compare(0)
		c.engine.forgets(lost)
		c.wants("network")
		c.expire()
		c.wants("")
		c.stop(c.run(&endpoint{net: kept}))
		c.expire()
		c.requestPool(&pool{cidr: "10.50.0.0/24", options: kept.options}, false)
		c.again() // before it answered
		c.wants("pool")
		c.expire()
		c.wants("")
		c.stop(e)
		c.remove(kept)
		c.idle()
		c.unchanged(before)
	})
}
