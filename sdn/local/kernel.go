package local

import (
	"context"
	"errors"
	"net/netip"

	"github.com/kuryr/kuryr/datapath/lb"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// realm is the engine's Realm: the kernel behind the provider's Datapath. Without a Datapath it has
// everything immediately.
type realm struct{ p *Provider }

// Supports implements Realm. Without a kernel that is everything.
func (r realm) Supports() engine.Support {
	s := engine.Support{Groups: true, Limits: true, VLANs: true, SCTP: true, Members: lb.MaxEndpoints, Affinity: lb.MaxAffinity}
	if r.p.datapath != nil {
		can := r.p.datapath.Supports()
		s.Groups, s.Limits, s.VLANs, s.SCTP, s.Routes = can.Groups, can.Limits, can.VLANs, can.SCTP, true
	}
	return s
}

// Location implements Realm.
func (r realm) Location(domain, network sdn.ID) (nsPath, bridge string) {
	if r.p.datapath != nil {
		return r.p.datapath.Location(string(domain), string(network))
	}
	return "/run/kuryr/netns/" + string(domain), "br-" + network.Short()
}

// ExternalMTU implements Realm. It is that of the start.
func (r realm) ExternalMTU() int { return r.p.mtu }

// UplinkMTU implements Realm. It may have changed since the start, of which the uplinks of routers take
// no notice before the next one: the kernel tells senders by itself when a packet is too large.
func (r realm) UplinkMTU(ctx context.Context) int {
	p := r.p
	if p.datapath == nil {
		return p.mtu
	}
	mtu, err := p.datapath.UplinkMTU(ctx)
	if err != nil {
		p.log.WarnContext(ctx, "the uplink's MTU cannot be read; that of the start is used", "error", err, "mtu", p.mtu)
		return p.mtu
	}
	return mtu
}

// Unreached implements Realm.
func (r realm) Unreached(router sdn.ID) []sdn.Unreached { return r.p.sync.unreachedOf(router) }

// HasPort implements Realm.
func (r realm) HasPort(domain, port sdn.ID) bool { return r.p.sync.portSettled(domain, port) }

// HasBalancer implements Realm.
func (r realm) HasBalancer(domain, balancer sdn.ID, at netip.Addr) bool {
	return r.p.sync.balanceSettled(domain, balancer, at)
}

// News implements Realm.
func (r realm) News() <-chan struct{} { return r.p.sync.nextNews() }

// Expect implements Realm.
func (r realm) Expect(b engine.Tx, changes map[engine.RowID]*engine.RowChange) (engine.Expectation, error) {
	e := &expectation{p: r.p, changes: changes}
	if r.p.datapath == nil {
		return e, nil
	}
	keys, err := r.p.sync.keysOf(b, changes)
	if err != nil {
		return nil, err
	}
	r.p.sync.assume(r.p.view, keys) // not what the transaction has
	e.claims, err = r.p.sync.expect(b, keys)
	return e, err
}

// expectation is what the caller of a transaction waits for in the data path.
type expectation struct {
	p       *Provider
	changes map[engine.RowID]*engine.RowChange
	claims  []*claim
}

// Join implements Expectation.
func (e *expectation) Join() {
	e.p.sync.redefined(e.changes)
	e.p.sync.join(e.claims)
	if e.p.datapath != nil {
		return
	}
	for _, c := range e.changes {
		if c.Written {
			e.p.sync.changed()
			return
		}
	}
}

// Drop implements Expectation.
func (e *expectation) Drop() { e.p.sync.drop(e.claims) }

// Wait implements Expectation.
func (e *expectation) Wait(ctx context.Context) error {
	err := e.p.sync.wait(ctx, e.claims)
	if err == nil {
		return nil
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return sdn.Unavailable(err, "data path", "the change is stored, the kernel is to follow")
	}
	return sdn.Unavailable(sdn.OfHost(err), "data path", "the change is stored, the kernel could not follow yet")
}
