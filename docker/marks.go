package docker

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/internal/jsonstore"
	"github.com/kuryr/kuryr/sdn"
)

// What is somebody else's and used carries kuryr-libnetwork's tags: for people, and for that program, should it have the deployment back. Kuryr
// itself goes by its links. Each tag of another's object is a call, so no engine waits for them: a network whose tags are to be seen to is written
// down before the engine is answered, and Run sees to them at once. What they are to be is not written down but looked up: they are on while
// there is a link, and off when there is none, whatever happened in between.

// marking is a network of an engine's whose tags are to be seen to.
type marking struct {
	Network sdn.ID   // the SDN's
	Pools   []sdn.ID // that the engine has, or had, for it

	turn        uint64    // counts what happened to the network
	held        bool      // something happens to it just now
	failed, due time.Time // when the SDN first failed at its tags, though it was there, and when they are seen to again
}

// marks are the networks whose tags are to be seen to, by the engine's ids. A Driver without a folder for them has none: its calls write the tags.
type marks struct {
	folder *jsonstore.Store
	more   chan struct{} // full: there is something to do

	mu  sync.Mutex
	all map[string]marking
}

// openMarks reads what an earlier process has left to do. What cannot be read stays as it is in the SDN.
func openMarks(dir string, log *slog.Logger) *marks {
	folder, err := jsonstore.Open(dir)
	if err != nil {
		log.Error("tags of existing networks cannot be left for later: the engine waits for them", "err", err)
	}
	m := &marks{folder: folder, more: make(chan struct{}, 1)}
	if m.all, err = jsonstore.Load[marking](folder); err != nil {
		log.Warn("what is to be done about tags of existing networks cannot all be read", "err", err)
	}
	return m
}

// hold writes down that the tags of a network are to be seen to when what happens to it has happened, which let tells. On an error they are not.
func (m *marks) hold(id string, what marking) error {
	if m.folder == nil {
		return fmt.Errorf("there is no folder for it")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	before, known := m.all[id]
	if err := m.folder.Put(id, what); err != nil && !known {
		return err
	}
	what.turn, what.held = before.turn+1, true
	m.all[id] = what
	return nil
}

// let ends hold.
func (m *marks) let(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	what, ok := m.all[id]
	if !ok || !what.held {
		return
	}
	what.held = false
	m.all[id] = what
	kick(m.more)
}

// due are the networks that can be seen to.
func (m *marks) due() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(m.all)), func(id string) bool { return m.all[id].held || m.all[id].due.After(now) })
}

// longestPause is how long a network's tags are left alone at most that an SDN fails at which is there.
const longestPause = time.Hour

// postpone has a network seen to again when as much time has passed as has since the first failure, a minute at least.
func (m *marks) postpone(id string, turn uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	what, ok := m.all[id]
	if !ok || what.turn != turn {
		return // since then something happened to it
	}
	now := time.Now()
	if what.failed.IsZero() {
		what.failed = now
	}
	what.due = now.Add(min(max(longestWait, now.Sub(what.failed)), longestPause))
	m.all[id] = what
}

// nextLook is when the first of the networks that were postponed is seen to again.
func (m *marks) nextLook() (at time.Time, waits bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, what := range m.all {
		if !what.due.IsZero() && (!waits || what.due.Before(at)) {
			at, waits = what.due, true
		}
	}
	return at, waits
}

func (m *marks) get(id string) (marking, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	what, ok := m.all[id]
	return what, ok
}

// done strikes a network out that was seen to as it was at a turn.
func (m *marks) done(id string, turn uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all[id].turn != turn {
		return nil // since then something happened to it
	}
	if err := m.folder.Delete(id); err != nil {
		return err
	}
	delete(m.all, id)
	return nil
}

// settleMarks sees to all tags that are to be seen to, one network after the other. The error is that of the first that is to be tried again. Only Run calls it.
func (d *Driver) settleMarks(ctx context.Context) error {
	return d.inTurn(ctx, d.marks.due(), func(ctx context.Context, id string) (bool, error) { return true, d.settleMark(ctx, id) })
}

// settleMark makes the tags of one network what they are to be. An error is one after which it is tried again; what is refused is not: nothing depends on it.
func (d *Driver) settleMark(ctx context.Context, id string) error {
	what, ok := d.marks.get(id)
	if !ok {
		return nil
	}
	l, linked, err := d.findLink(ctx, id)
	switch {
	case err != nil:
	case linked:
		err = d.markUse(ctx, l)
	default:
		var subnets []sdn.Subnet
		if subnets, err = sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{what.Network}})); err == nil {
			err = d.unmarkUse(ctx, link{id: id, network: what.Network, pools: what.Pools}, subnets)
		}
	}
	switch {
	case away(err) && d.sdn.Ping(ctx) == nil:
		d.log.WarnContext(ctx, "the SDN fails at the tags of an existing network; they are tried again ever more seldom", "network", what.Network, "in use", linked, "err", err)
		d.marks.postpone(id, what.turn)
		return nil
	case away(err) || sdn.ReasonOf(err) == sdn.Stale:
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		d.log.WarnContext(ctx, "the tags of an existing network do not say who uses it", "network", what.Network, "in use", linked, "err", err)
	}
	failpoint.Here("docker.marks.written")
	return d.marks.done(id, what.turn)
}

// markLater has Run see to the tags of a network that was linked. Where that cannot be, they are written now.
func (d *Driver) markLater(ctx context.Context, l link) {
	err := d.marks.hold(l.id, marking{Network: l.network, Pools: l.pools})
	if err == nil {
		d.marks.let(l.id)
		failpoint.Here("docker.marks.held")
		return
	}
	d.log.DebugContext(ctx, "the tags of an existing network cannot be left for later", "network", l.network, "err", err)
	if err := d.markUse(ctx, l); err != nil {
		d.log.WarnContext(ctx, "an existing network is used without tags that say so", "network", l.network, "err", err)
	}
}

// unlink deletes a link and has Run take the tags off. Where that cannot be, and where what others may have hangs on them, they are taken off before.
func (d *Driver) unlink(ctx context.Context, l link, subnets []sdn.Subnet) error {
	network, err := d.sdn.Network(ctx, l.network)
	if ignoreAbsent(err) != nil {
		return err
	}
	err = d.marks.hold(l.id, marking{Network: l.network, Pools: l.pools})
	defer d.marks.let(l.id)
	if err != nil || peersWork(network, subnets) {
		if err := d.unmarkUse(ctx, l, subnets); err != nil {
			return err
		}
	}
	failpoint.Here("docker.deletenetwork.unmarked")
	return d.sdn.DeleteSubnetPool(ctx, l.ID)
}
