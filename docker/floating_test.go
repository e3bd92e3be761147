package docker

import (
	"context"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// floats is an endpoint that is started with a floating IP.
func (b *box) floats(n *network, asked string) *endpoint {
	b.t.Helper()
	e := &endpoint{net: n}
	b.take(e)
	b.ok("NetworkDriver.CreateEndpoint", e.with(m{optFloatingIP: asked}))
	e.joined = b.ok("NetworkDriver.Join", e.joinBody())
	return e
}

func (b *box) floatingIPs(q sdn.FloatingIPQuery) []sdn.FloatingIP {
	b.t.Helper()
	found, err := sdn.All(b.provider.FindFloatingIPs(b.t.Context(), q))
	b.must(err)
	return found
}

// usersFloatingIP makes an unmanaged one.
func (b *box) usersFloatingIP(target sdn.Target) sdn.FloatingIP {
	b.t.Helper()
	f, err := b.provider.EnsureFloatingIP(
		b.t.Context(),
		sdn.FloatingIPSpec{Network: b.provider.Capabilities().ExternalNetwork, Target: target},
	)
	b.must(err)
	return f
}

// A floating IP is made for a container, leads to it through restarts and repeats, and
// goes with it whatever call comes.
func TestFloatingIPAuto(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	for _, end := range []string{"Leave", "DeleteEndpoint", "ReleaseAddress"} {
		e := b.floats(n, floatingAuto)
		b.restart()
		b.ok("NetworkDriver.Join", e.joinBody())
		port := b.portOf(e.id)
		found := b.floatingIPs(sdn.FloatingIPQuery{Ports: []sdn.ID{port.ID}})
		if len(found) != 1 || found[0].Target.Addr.String() != e.ip4 ||
			found[0].Key != b.driver.daemon.Names.GlobalKey(identity.KindFloating, e.id) {
			t.Fatalf("floating IPs %+v", found)
		}
		b.binder.unplugAll()
		switch end {
		case "ReleaseAddress":
			b.giveBack(e)
		default:
			b.ok("NetworkDriver."+end, e.body())
		}
		if left := b.floatingIPs(sdn.FloatingIPQuery{}); len(left) != 0 {
			t.Errorf("after %s: %+v", end, left)
		}
		b.stop(e)
	}
	b.remove(n)
	b.clean()
}

// An unused address is made a floating IP, which is deleted with the endpoint.
func TestFloatingIPOfAddress(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	free := b.usersFloatingIP(sdn.Target{})
	b.must(b.provider.DeleteFloatingIP(t.Context(), free.ID))
	e := b.floats(n, free.Address.String())
	if found := b.floatingIPs(sdn.FloatingIPQuery{}); len(found) != 1 ||
		found[0].Address != free.Address || found[0].Foreign {
		t.Errorf("floating IPs %+v", found)
	}
	b.ok("NetworkDriver.Join", e.joinBody())
	b.stop(e)
	b.remove(n)
	b.clean()
}

// A floating IP that its user made is taken by its id or its address, and leads nowhere
// in the end; one that led to the user's port before stays.
func TestFloatingIPOfUser(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	f := b.usersFloatingIP(sdn.Target{})
	for _, asked := range []string{string(f.ID), f.Address.String()} {
		e := b.floats(n, asked)
		found := b.floatingIPs(sdn.FloatingIPQuery{})
		if len(found) != 1 || found[0].ID != f.ID || found[0].Target.Port != b.portOf(e.id).ID {
			t.Errorf("floating IPs %+v", found)
		}
		second := &endpoint{net: n}
		b.take(second)
		b.contains(b.fails("NetworkDriver.CreateEndpoint", second.with(m{optFloatingIP: asked})), optFloatingIP, "is in use")
		b.giveBack(second)
		b.restart()
		b.stop(e)
		if found = b.floatingIPs(sdn.FloatingIPQuery{}); len(found) != 1 ||
			found[0].Target != (sdn.Target{}) || found[0].ID != f.ID {
			t.Errorf("in the end %+v", found)
		}
	}
	users := b.port(n, usersPort, "10.50.0.93", "fd50::93")
	target := sdn.Target{Port: users.ID, Addr: users.Addresses[0].Addr}
	_, err := b.provider.UpdateFloatingIP(t.Context(), f.ID, sdn.FloatingIPPatch{Target: &target})
	b.must(err)
	e := &endpoint{net: n, ip4: "10.50.0.93", ip6: "fd50::93"}
	b.take(e)
	b.ok("NetworkDriver.CreateEndpoint", e.with(m{optFloatingIP: string(f.ID)}))
	b.ok("NetworkDriver.Join", e.joinBody())
	b.stop(e)
	b.same(users)
	if found := b.floatingIPs(sdn.FloatingIPQuery{}); len(found) != 1 || found[0].Target != target {
		t.Errorf("what led to the user's port before: %+v", found)
	}
}

// What cannot be is refused by the option's name, and before anything is made where it can be known.
func TestFloatingIPRefused(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	n := b.create(dualNetwork())
	e := &endpoint{net: n}
	b.take(e)
	b.contains(
		b.fails("NetworkDriver.CreateEndpoint", e.with(
			m{optFloatingIP: "8a5d6a63-0d5d-4a9c-8d3b-6a1f5a0ffb11"},
		)),
		optFloatingIP, "there is no floating IP",
	)
	alone := b.create(&network{v4: []*pool{{cidr: "10.53.0.0/24"}}, internal: true})
	inside := &endpoint{net: alone}
	b.take(inside)
	b.ok("NetworkDriver.CreateEndpoint", inside.with(m{optFloatingIP: floatingAuto}))
	b.contains(b.fails("NetworkDriver.Join", inside.joinBody()), optFloatingIP, "no router")
	b.stop(inside)
	b.giveBack(e)
	b.remove(alone)
	b.remove(n)
	b.clean()
}

// noPick is an SDN that leaves the choice of a floating IP's address to its administrators.
func noPick(p sdn.Provider) sdn.Provider {
	return &dockertest.Provider{Provider: p, Before: func(c dockertest.Call) error {
		if spec, ok := dockertest.Arg[sdn.FloatingIPSpec](c); ok && spec.Address.IsValid() {
			return errDenied
		}
		return nil
	}}
}

func TestFloatingIPAddressDenied(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.Provider = noPick(c.Provider) })
	n := b.create(dualNetwork())
	e := &endpoint{net: n}
	b.take(e)
	b.ok("NetworkDriver.CreateEndpoint", e.with(m{optFloatingIP: "198.18.0.99"}))
	b.contains(b.fails("NetworkDriver.Join", e.joinBody()), optFloatingIP, "give its id")
}

// alike is an SDN in which another floating IP, of another external network, has the address of each.
type alike struct{ sdn.Provider }

const otherFloating = sdn.ID("0d9f3c52-55e4-4a57-9d2c-2f0e5f2ab7c1")

func (p alike) FindFloatingIPs(ctx context.Context, q sdn.FloatingIPQuery) iter.Seq2[sdn.FloatingIP, error] {
	return func(yield func(sdn.FloatingIP, error) bool) {
		for f, err := range p.Provider.FindFloatingIPs(ctx, q) {
			other := sdn.FloatingIP{Meta: sdn.Meta{ID: otherFloating, Foreign: true}, Address: f.Address}
			if err == nil && len(q.Addresses) > 0 && !yield(other, nil) || !yield(f, err) {
				return
			}
		}
	}
}

// An address that two floating IPs have means none of them, and both are named; an id
// means one. What an endpoint has already is not put into question.
func TestFloatingIPAmbiguous(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.Provider = alike{c.Provider} })
	n := b.create(dualNetwork())
	f := b.usersFloatingIP(sdn.Target{})
	e := &endpoint{net: n}
	b.take(e)
	answer := b.fails("NetworkDriver.CreateEndpoint", e.with(m{optFloatingIP: f.Address.String()}))
	for _, want := range []string{optFloatingIP, string(f.ID), string(otherFloating), "id of the one that is meant"} {
		b.contains(answer, want)
	}
	if found := b.floatingIPs(sdn.FloatingIPQuery{}); len(found) != 1 || found[0].Target != (sdn.Target{}) {
		t.Errorf("floating IPs %+v", found)
	}
	b.giveBack(e)

	e = b.floats(n, string(f.ID))
	b.ok("NetworkDriver.CreateEndpoint", e.with(m{optFloatingIP: f.Address.String()}))
	b.ok("NetworkDriver.Join", e.joinBody())
	if found := b.floatingIPs(sdn.FloatingIPQuery{}); len(found) != 1 || found[0].Target.Port != b.portOf(e.id).ID {
		t.Errorf("floating IPs %+v", found)
	}
	b.stop(e)
}

// The floating IP of an endpoint that Docker has forgotten is deleted with it, also if its port is gone.
func TestOrphanedFloatingIP(t *testing.T) {
	withEngine(t, func(t *testing.T, c *engineBox) {
		n := c.create(dualNetwork())
		c.engine.has(n)
		e := c.floats(n, floatingAuto)
		time.Sleep(5 * time.Minute)
		c.must(c.provider.DeletePorts(t.Context(), []sdn.ID{c.portOf(e.id).ID}))
		c.binder.unplugAll()
		c.expire()
		if left := c.floatingIPs(sdn.FloatingIPQuery{}); slices.ContainsFunc(
			left, func(f sdn.FloatingIP) bool { return f.Key.Kind == identity.KindFloating },
		) {
			t.Errorf("left %+v", left)
		}
	})
}
