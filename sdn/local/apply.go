package local

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// apply makes parts of a domain be what they are in the store. It returns the parts as it has read them. A
// part that needs the shape applies it too, unless that was refused in this round. The caller runs the round.
func (s *syncer) apply(ctx context.Context, t *target, r *round, keys []partKey) (*wanted, error) {
	a := &applier{syncer: s, target: t, ctx: ctx, round: r}
	err := a.start(keys, len(keys) > 0 && s.isNew(t))
	if errors.Is(err, errNoBridge) {
		err = a.start(keys, true)
	}
	if err != nil {
		return nil, err
	}
	knew := len(t.applied.known) > 0
	switch err = a.parts(); {
	case errors.Is(err, errNoBridge):
		keys = append(slices.Clip(keys), shapeKey)
	case knew && errors.Is(err, os.ErrNotExist):
		t.applied.known = nil // the domain has forgotten a definition that no port had any more
	default:
		return a.want, err
	}
	return s.apply(ctx, t, r, keys)
}

// start reads the parts and applies the shape, if it is one of them or they need it. It locks the networks of
// the domain: no other domain applies a shape with one of them until then, so the shape is not stale.
func (a *applier) start(keys []partKey, needed bool) (err error) {
	switch asked := slices.Contains(keys, shapeKey); {
	case !asked && !needed:
		a.want, err = a.read(a.target, keys)
		return err
	case !asked && a.round.refused != nil:
		return a.round.refused
	case !asked:
		keys = append(slices.Clip(keys), shapeKey)
	}
	networks := a.networksOf(a.target)
	for done := false; !done && err == nil; {
		done, err = a.startLocked(keys, networks)
	}
	return err
}

// startLocked is start for a shape that has none but these networks. It adds those that it has otherwise.
func (a *applier) startLocked(keys []partKey, networks map[sdn.ID]bool) (done bool, err error) {
	var names []string
	for network := range networks {
		names = append(names, string(network))
	}
	unlock, err := a.moves.LockAll(a.ctx, names...)
	if err != nil {
		return false, err
	}
	defer unlock()
	if a.want, err = a.read(a.target, keys); err != nil {
		return false, err
	}
	if maps.Copy(networks, networksIn(a.want.shape)); len(networks) > len(names) {
		return false, nil
	}
	a.round.refused = a.shape()
	return true, a.round.refused
}

// applier applies parts of one domain.
type applier struct {
	*syncer
	*target
	ctx   context.Context //nolint:containedctx // it lives as long as one call
	want  *wanted
	round *round
}

// parts changes what is in the domain: ports and published ports in one call, and then what it
// balances. So a load balancer that the kernel refuses leaves no doubt about ports.
func (a *applier) parts() error {
	if a.want.shaped && a.want.shape == nil {
		return nil // everything went with it
	}
	defined := a.want.defined.revisions()
	if err := a.set(a.comparePorts()); err != nil {
		if len(defined) > 0 {
			a.applied.known = nil
		}
		return err
	}
	a.noteDefined(defined)
	moved := a.notePorts()
	if err := a.set(a.compareBalances()); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.applied.noteBalances(a.want.balances, nil)
	return moved
}

func (a *applier) set(c router.Change) error {
	if c.IsEmpty() {
		return nil
	}
	if _, err := a.p.datapath.Set(a.ctx, c); err != nil {
		return err
	}
	failpoint.Here("local.sync.parts")
	return nil
}

// comparePorts returns the difference between the applied ports and published ports and the
// wanted ones. From now on the domain may have either, and its ports may go to another domain
// with their network.
func (a *applier) comparePorts() router.Change {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := router.Change{
		Router: string(a.id), Groups: slices.Collect(maps.Values(a.want.defined.groups)),
		Sets:  slices.Collect(maps.Values(a.want.defined.sets)),
		Ports: a.applied.ports.differ(a.want.ports), Forwards: a.applied.forwards.differ(a.want.forwards),
	}
	if !c.Ports.IsEmpty() {
		a.applied.ports.note(a.want.ports, errUnfinished)
	}
	if !c.Forwards.IsEmpty() {
		a.applied.forwards.note(a.want.forwards, errUnfinished)
	}
	return c
}

// compareBalances does the same for what the domain balances.
func (a *applier) compareBalances() router.Change {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := router.Change{Router: string(a.id)}
	c.VIPs, c.Frontends = a.applied.balanced(a.want.balances)
	if !c.VIPs.IsEmpty() || !c.Frontends.IsEmpty() {
		a.applied.noteBalances(a.want.balances, errUnfinished)
	}
	return c
}

// notePorts remembers that the domain has the wanted ports and published ports. The error is
// errNoBridge if another domain has taken the network of a port since that was read.
func (a *applier) notePorts() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.applied.forwards.note(a.want.forwards, nil)
	has := networksIn(a.applied.shape)
	for _, p := range a.want.ports {
		if p != nil && !has[sdn.ID(p.Network)] {
			return errNoBridge
		}
	}
	a.applied.ports.note(a.want.ports, nil)
	for id := range a.want.ports {
		delete(a.target.failed, portKey(sdn.ID(id)))
	}
	return nil
}

// noteDefined remembers definitions that the domain was told.
func (a *applier) noteDefined(defined map[partKey]revision) {
	if len(defined) == 0 {
		return
	}
	if a.applied.known == nil || len(a.applied.known) >= mostKnown {
		a.applied.known = map[partKey]revision{}
	}
	maps.Copy(a.applied.known, defined)
}

// shape applies the domain itself, or removes it with all that is in it.
func (a *applier) shape() error {
	d, was := a.want.shape, a.applied.shape
	again := a.takeAgain(a.target)
	if !again && !a.applied.unsure && reflect.DeepEqual(d, was) {
		a.noteShape(a.target, a.want)
		return nil
	}
	a.begin()
	came := map[partKey]bool{}
	if d == nil {
		if err := a.p.datapath.Delete(a.ctx, string(a.id)); err != nil {
			return err
		}
		failpoint.Here("local.sync.gone")
		a.mu.Lock()
		a.applied, a.again = applied{}, false
		a.mu.Unlock()
		a.noteShape(a.target, a.want)
		a.noteUnreached(a.ctx, a.target, nil)
	} else {
		a.inherit(came)
		result, err := a.p.datapath.Set(a.ctx, router.Change{Router: string(a.id), Shape: d})
		if err != nil {
			return err
		}
		failpoint.Here("local.sync.shape")
		a.inherit(came) // what was added before the networks came
		a.noteShape(a.target, a.want)
		a.noteUnreached(a.ctx, a.target, result.Unreached)
	}
	for _, p := range reachOf(was) {
		if !slices.Contains(reachOf(d), p) {
			a.round.freed = append(a.round.freed, p)
		}
	}
	return a.readMore(came)
}

// begin notes that the shape is about to change. Networks may leave, and come from other domains, which are
// applied again. They may be here from now on, but others do not rely on that.
func (a *applier) begin() {
	networks := networksIn(a.want.shape)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.target.doubt(func(network sdn.ID) bool { return !networks[network] })
	for network := range networks {
		for other := range a.holders[network] {
			if other != a.target {
				other.doubt(func(n sdn.ID) bool { return n == network })
				other.failed[shapeKey] = true
				other.recovered() // it waits for this shape only
				a.wake()
			}
		}
	}
	maps.Copy(networks, a.networks)
	a.place(a.target, networks)
}

// doubt notes that the shape may have changed, and that some of its networks may have left. The caller holds
// the mutex.
func (t *target) doubt(left func(network sdn.ID) bool) {
	t.applied.unsure = true
	if t.applied.shape == nil {
		return
	}
	shape := *t.applied.shape
	shape.Bridges = slices.DeleteFunc(
		slices.Clone(shape.Bridges), func(b router.Bridge) bool { return left(sdn.ID(b.Network)) },
	)
	t.applied.shape = &shape
}

// inherit takes over what other domains have of the ports of networks that come with them: the data path
// may have it here then. That is so too for a network that went and comes back before the domain was applied
// without it. It adds the ports to the keys.
func (a *applier) inherit(keys map[partKey]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for network := range networksIn(a.want.shape) {
		for other := range a.holders[network] {
			if other == a.target {
				continue
			}
			for id, port := range other.applied.ports.all() {
				if port.Network == string(network) {
					a.applied.ports.suspect(id, &port)
					keys[portKey(sdn.ID(id))] = true
				}
			}
		}
	}
}

// readMore adds ports to the wanted parts. They have failed until they are applied.
func (a *applier) readMore(keys map[partKey]bool) error {
	if len(keys) == 0 {
		return nil
	}
	a.mu.Lock()
	maps.Copy(a.target.failed, keys)
	a.mu.Unlock()
	more, err := a.read(a.target, slices.Collect(maps.Keys(keys)))
	if err != nil {
		return err
	}
	maps.Copy(a.want.ports, more.ports)
	maps.Copy(a.want.defined.groups, more.defined.groups)
	maps.Copy(a.want.defined.sets, more.defined.sets)
	return nil
}

// reachOf returns what the host reaches by a domain, which may be nil.
func reachOf(d *router.Shape) []netip.Prefix {
	if d == nil || d.Uplink == nil {
		return nil
	}
	return d.Uplink.Reach
}
