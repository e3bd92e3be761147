package local

import (
	"context"
	"encoding/binary"
	"errors"
	"reflect"
	"slices"
	"time"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// tx is a transaction that changes the store, and notes on its way what the kernel must learn of it.
type tx struct {
	engine.Tx
	ctx     context.Context //nolint:containedctx // it tells for whom the change is, and ends nothing
	p       *Provider
	now     time.Time
	wrote   bool
	before  map[sdn.ID]*router.Shape // shapes of domains, as they were when the transaction first came near them; nil: absent
	changes map[string]*change       // by domain
	// rewritten are the security groups and address groups whose definitions the transaction changes, and those written along with it.
	rewritten map[sdn.ID]bool
	balances  map[sdn.ID]balance // of load balancers, as they were when the transaction first came near them
	beyond    bool               // quotas do not hold
	hostLink  bool               // addresses are for a link of the host's own, see hostLinks
}

// update runs f in a transaction and then brings the kernel after it. Where f fails nothing has changed. Where the kernel
// fails the store has changed: the error IsUnavailable, and the kernel is tried again by Run and by any later change of the domain.
func (p *Provider) update(ctx context.Context, f func(*tx) error) error {
	tk, err := p.commit(ctx, f)
	if tk == nil {
		return err
	}
	if err != nil {
		return errors.Join(err, p.settle(ctx, tk))
	}
	return p.settle(ctx, tk)
}

// release is update for deletions: once the store has forgotten something, the kernel's failure to do so is no concern of
// the caller's. Run and Reconcile finish it.
func (p *Provider) release(ctx context.Context, f func(*tx) error) error {
	tk, err := p.commit(ctx, f)
	if tk == nil {
		return err
	}
	if err := p.settle(ctx, tk); err != nil {
		p.log.WarnContext(ctx, "deleted, but the kernel is to be cleaned up later", "error", err)
	}
	return err
}

// noteFreed writes into the changes which ranges the host reached through their domains and will not any more.
func (t *tx) noteFreed() {
	for id, before := range t.before {
		c := t.changes[string(id)]
		if c == nil || before == nil || before.Uplink == nil || !c.reshapes() {
			continue
		}
		for _, p := range before.Uplink.Reach {
			if c.gone || c.shape.Uplink == nil || !slices.Contains(c.shape.Uplink.Reach, p) {
				c.freed = append(c.freed, p)
			}
		}
	}
}

// change is what the kernel must learn about a domain.
func (t *tx) change(domain sdn.ID) *change {
	c := t.changes[string(domain)]
	if c == nil {
		c = &change{domain: string(domain)}
		t.changes[string(domain)] = c
	}
	return c
}

// near notes the shape of a domain before the transaction changes what it is made of.
func (t *tx) near(domain sdn.ID) error {
	if _, noted := t.before[domain]; noted || domain == "" {
		return nil
	}
	d, err := t.p.projectDomain(t.Tx, domain)
	if err != nil {
		return err
	}
	t.before[domain] = d
	return nil
}

// touch has the transaction wait for the kernel to be done with a domain, and mend what failed there before.
func (t *tx) touch(domain sdn.ID) {
	if domain != "" {
		t.change(domain)
	}
}

// shapes compares the domains the transaction came near with what they were.
func (t *tx) shapes() error {
	for id, before := range t.before {
		after, err := t.p.projectDomain(t.Tx, id)
		if err != nil {
			return err
		}
		switch {
		case after == nil && before != nil:
			t.change(id).gone = true
		case after != nil && !reflect.DeepEqual(before, after):
			t.change(id).shape = after
			if err := t.moved(id, before, after); err != nil {
				return err
			}
		case after != nil:
			t.touch(id)
		}
	}
	return t.rebalance()
}

// moved notes the networks that come to a domain from another.
func (t *tx) moved(id sdn.ID, before, after *router.Shape) error {
	for _, bridge := range after.Bridges {
		if hasBridge(before, bridge.Network) {
			continue
		}
		for other, left := range t.before {
			if other == id || !hasBridge(left, bridge.Network) {
				continue
			}
			if err := t.noteMoved(other, id, bridge.Network); err != nil {
				return err
			}
			break
		}
	}
	return nil
}

// putPort writes a port and notes what that means to the kernel.
func (t *tx) putPort(r *portRow) error {
	old, err := ports.get(t.Tx, r.ID)
	if err != nil {
		return err
	}
	if err := t.notePort(old, r); err != nil {
		return err
	}
	return ports.put(t, r)
}

func (t *tx) delPort(r *portRow) error {
	if err := t.notePort(r, nil); err != nil {
		return err
	}
	return ports.del(t, r.ID)
}

func (t *tx) notePort(old, new *portRow) error {
	row := new
	if row == nil {
		row = old
	}
	domain, err := domainOf(t.Tx, row.Network)
	if err != nil || domain == "" {
		return err
	}
	was, err := projectPort(t.Tx, old)
	if err != nil {
		return err
	}
	is, err := projectPort(t.Tx, new)
	if err != nil {
		return err
	}
	switch {
	case was != nil && is != nil && reflect.DeepEqual(was, is):
		t.touch(domain)
	case was != nil || is != nil:
		return t.tellPort(domain, was, is)
	}
	return nil
}

func (t *tx) putForward(r *forwardRow) error {
	for _, f := range projectForward(r) {
		t.change(r.Router).forward(nil, &f)
	}
	return forwards.put(t, r)
}

func (t *tx) delForward(r *forwardRow) error {
	for _, f := range projectForward(r) {
		t.change(r.Router).forward(&f, nil)
	}
	return forwards.del(t, r.Meta.ID)
}

// tally moves the counter of all rows of a table.
func (t *tx) tally(noun sdn.Noun, by int64) error {
	k := tallyKey(noun)
	return t.Put(usageTable, k, binary.BigEndian.AppendUint64(nil, uint64(counter(t.Tx, k)+by)))
}

// tallyKey cannot be a project's: those have no zero byte.
func tallyKey(noun sdn.Noun) []byte { return []byte(key("", "", string(noun))) }

func counter(b engine.Tx, k []byte) int64 {
	v := b.Get(usageTable, k)
	if len(v) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(v))
}
