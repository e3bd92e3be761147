//go:build linux

package lb

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/sdn"

	"github.com/kuryr/kuryr/datapath/nft"
)

// A client that calls a frontend of TCP or SCTP before it is there, and has no answer, leaves an
// entry in connection tracking that leads nowhere, for two minutes and longer where the
// client calls again: its next attempts, and later connections from that port, go the
// same way past the frontend, and are refused when the address is the namespace's own. So
// what came before a frontend is forgotten when it comes. The kernel goes through all it
// tracks for that, of all namespaces, which takes it ten milliseconds where it tracks
// nothing. Hence it is done behind the change, for all frontends together that came until then.

// lookShare is how much longer than a look took it is until the next one begins.
const lookShare = 19

// called are the frontends of TCP and SCTP that came, whose earlier flows are not removed yet.
type called struct {
	mu    sync.Mutex
	keys  map[Key]bool
	stop  context.CancelFunc // ends the look that is to come or at work; nil: there is none
	ended sync.WaitGroup
	next  time.Time // before which no look begins
}

// cameEarly reports whether an entry is of what was sent to one of the frontends before it
// was there. own are the namespace's addresses.
func cameEarly(f flow, keys map[Key]bool, own map[netip.Addr]bool) bool {
	if f.status&establishes(f.protocol) != 0 {
		return false
	}
	key := Key{f.to.Addr(), f.protocol, f.to.Port()}
	if keys[key] {
		return true
	}
	key.Addr = unspecified(nft.VersionOf(key.Addr))
	return keys[key] && own[f.to.Addr()]
}

// came notes frontends that came, and begins to look for what was sent before. It is
// called with the Table's lock held.
func (t *Table) came(keys []Key) {
	c := &t.called
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keys == nil {
		c.keys = map[Key]bool{}
	}
	for _, key := range keys {
		if key.Protocol != sdn.UDP {
			c.keys[key] = true
		}
	}
	if len(c.keys) == 0 || c.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	c.ended.Go(func() { t.look(ctx) })
}

// lookNoMore ends the look that is to come or at work, and leaves what was not forgotten
// to the next one. It is called with the Table's lock held.
func (t *Table) lookNoMore() {
	c := &t.called
	c.mu.Lock()
	if c.stop != nil {
		c.stop()
	}
	c.mu.Unlock()
	c.ended.Wait()
}

// look looks until no more frontends came. What fails is left to when others come.
func (t *Table) look(ctx context.Context) {
	c := &t.called
	c.mu.Lock()
	defer c.mu.Unlock()
	for ctx.Err() == nil && len(c.keys) > 0 {
		pause := time.After(time.Until(c.next))
		c.mu.Unlock()
		select {
		case <-pause:
		case <-ctx.Done():
		}
		c.mu.Lock()
		keys := c.keys
		c.keys = map[Key]bool{}
		c.mu.Unlock()
		began := time.Now()
		err := t.forgetEarly(ctx, keys)
		took := time.Since(began)
		c.mu.Lock()
		c.next = began.Add((1 + lookShare) * took)
		if err == nil {
			continue
		}
		maps.Copy(c.keys, keys)
		if ctx.Err() == nil {
			t.config.log().Warn(
				"early connections not removed, they may fail for 2 minutes",
				"table", t.config.name(), "err", err,
			)
		}
		break
	}
	c.stop()
	c.stop = nil
}

// forgetEarly has connection tracking forget what was sent to frontends before they came.
func (t *Table) forgetEarly(ctx context.Context, keys map[Key]bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	asks := map[ask]ask{} // by what all of them have in common
	var own map[netip.Addr]bool
	for key := range keys {
		all := ask{Version: nft.VersionOf(key.Addr), protocol: key.Protocol}
		one := all
		if _, others := asks[all]; !others {
			one.to = netip.AddrPortFrom(key.Addr, key.Port)
		}
		asks[all] = one
		if key.Addr.IsUnspecified() && own == nil {
			var err error
			if own, err = t.addresses(); err != nil {
				return err
			}
		}
	}
	var c conntrack
	err := t.config.run(func() (err error) {
		c.Conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("connection tracking: %w", err)
	}
	defer func() { _ = c.Close() }() // it was only asked
	for _, a := range asks {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.forgetThose(a, func(f flow) bool { return cameEarly(f, keys, own) }); err != nil {
			return err
		}
	}
	return nil
}
