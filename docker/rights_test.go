package docker

import (
	"context"
	"iter"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// policy is an SDN with less than all rights.
type policy struct {
	sdn.Provider
	can    func(*sdn.Capabilities)
	ensure func(sdn.PortSpec) error
	update func(sdn.PortPatch) error
}

func (p *policy) Capabilities() sdn.Capabilities {
	can := p.Provider.Capabilities()
	if p.can != nil {
		p.can(&can)
	}
	return can
}

func (p *policy) EnsurePorts(ctx context.Context, specs []sdn.PortSpec) ([]sdn.Port, error) {
	if p.ensure != nil {
		if err := p.ensure(specs[0]); err != nil {
			return nil, err
		}
	}
	return p.Provider.EnsurePorts(ctx, specs)
}

func (p *policy) UpdatePort(ctx context.Context, id sdn.ID, patch sdn.PortPatch) (sdn.Port, error) {
	if p.update != nil {
		if err := p.update(patch); err != nil {
			return sdn.Port{}, err
		}
	}
	return p.Provider.UpdatePort(ctx, id, patch)
}

var errDenied = &sdn.Error{Kind: sdn.KindDenied, Noun: "port", Detail: "the policy forbids it"}

// Rights that are missing are told in words, and what the user made beforehand needs none.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	p := &policy{}
	b := newBox(t, func(c *Config) { p.Provider = c.Provider; c.Provider = p })
	n := b.create(dualNetwork())
	p.ensure = func(s sdn.PortSpec) error {
		if s.MAC != nil {
			return errDenied
		}
		return nil
	}
	b.contains(b.fails("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Options": m{optMAC: "02:00:00:00:00:0b"}}), "--ip and --mac-address", "10.50.0.0/24")
	unbound := b.port(n, usersPort, "10.50.0.88", "fd50::88")
	bound := b.port(n, sdn.PortSpec{DeviceOwner: sdn.OwnerContainer, Host: testHost}, "10.50.0.89", "fd50::89")
	for _, denied := range []func(){
		func() { p.can = func(c *sdn.Capabilities) { c.HostBinding, c.ChooseMAC = false, false } },
		func() {
			p.can = nil
			p.update = func(c sdn.PortPatch) error {
				if c.Host != nil || c.MAC != nil {
					return errDenied
				}
				return nil
			}
		},
	} {
		denied()
		e := &endpoint{net: n, ip4: "10.50.0.88", ip6: "fd50::88", mac: unbound.MAC.String()}
		b.take(e)
		b.contains(b.fails("NetworkDriver.CreateEndpoint", e.createBody()), "binding:host_id")
		b.giveBack(e)
		b.same(unbound)
		e = &endpoint{net: n, ip4: "10.50.0.88", ip6: "fd50::88", mac: "02:00:00:00:00:0d"}
		b.take(e)
		if refusal := b.fails("NetworkDriver.CreateEndpoint", e.createBody()); p.can == nil {
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
	var hidden *[]string
	b := newBox(t, func(c *Config) { p := &hiding{Provider: c.Provider}; hidden, c.Provider = &p.hidden, p })
	n := b.create(dualNetwork())
	unbound := b.port(n, usersPort, "10.50.0.88", "fd50::88")
	*hidden = []string{"binding:host_id"}
	b.contains(b.fails("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Address": "10.50.0.88"}), "binding:host_id", string(unbound.ID))
	*hidden = nil
	b.same(unbound)
}

// hiding is an SDN that does not tell all of its ports.
type hiding struct {
	sdn.Provider
	hidden []string
}

func (h *hiding) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return func(yield func(sdn.Port, error) bool) {
		for port, err := range h.Provider.FindPorts(ctx, q) {
			if port.VIF.Hidden = h.hidden; !yield(port, err) {
				return
			}
		}
	}
}
