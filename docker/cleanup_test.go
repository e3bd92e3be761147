package docker

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

// workUntil runs the pending work until a condition is met.
func (b *box) workUntil(met func() bool) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.driver.database.Run(ctx)
	}()
	for !met() && ctx.Err() == nil {
		b.driver.database.Retry() // as the next call that the SDN serves does
		time.Sleep(time.Millisecond)
	}
	if ctx.Err() != nil {
		b.t.Errorf("the condition is not met; pending: %v", b.pendingRows())
	}
	cancel()
	<-ended
}

// pendingKinds returns the kinds of the pending rows, sorted.
func (b *box) pendingKinds() string {
	b.t.Helper()
	var kinds []string
	for _, row := range b.pendingRows() {
		kind, _, _ := strings.Cut(row, "/")
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return strings.Join(kinds, " ")
}

// TestCleanupRefused: a port that the SDN does not delete when its address is released is
// deleted when it can be, also after a restart. Docker is answered that it is done, no
// other container gets the address until then, and other addresses are served.
func TestCleanupRefused(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		b, l := awayBox(t)
		n := b.create(v4Network("10.1.0.0/24"))
		b.idle() // the pool has a gateway
		e := &endpoint{net: n}
		b.take(e)
		l.holds.Store(true)
		b.giveBack(e)
		if restart {
			b.restart()
		}
		again := m{"PoolID": n.v4[0].id, "Address": e.ip4, "Options": m{optMAC: "02:00:00:00:00:09"}}
		b.contains(b.fails("IpamDriver.RequestAddress", again), "address "+e.ip4+" is in use")
		again["Address"], again["Options"] = "", m{optMAC: e.mac}
		b.contains(b.fails("IpamDriver.RequestAddress", again), "MAC "+e.mac+" is in use")
		other := b.run(&endpoint{net: n})
		if got := b.pendingKinds(); got != "address" {
			t.Errorf("pending %q, want the address", got)
		}
		l.holds.Store(false)
		b.idle()
		b.stop(b.run(&endpoint{net: n, ip4: e.ip4}))
		b.stop(other)
		b.remove(n)
		b.clean()
	}
}

// TestCleanupStuck: a deletion that the SDN fails each time holds up no other, and nothing but the
// container that asks for the same.
func TestCleanupStuck(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(v4Network("10.1.0.0/24"))
	stuck, other := b.run(&endpoint{net: n}), b.run(&endpoint{net: n})
	gone := b.create(v4Network("10.2.0.0/24"))
	port := string(b.portOf(stuck.id).ID)
	l.gone.Store(true)
	b.stop(stuck)
	b.stop(other)
	b.remove(gone)
	l.fails.Store(&port)
	l.gone.Store(false)
	b.workUntil(func() bool { return b.pendingKinds() == "address" })
	b.run(&endpoint{net: n, ip4: other.ip4, mac: other.mac})
	again := m{"PoolID": n.v4[0].id, "Address": stuck.ip4, "Options": m{optMAC: stuck.mac}}
	b.contains(b.fails("IpamDriver.RequestAddress", again), "it answers 500 to this one")
	b.stop(b.run(&endpoint{net: b.create(v4Network("10.2.0.0/24"))}))
	l.fails.Store(nil)
	b.idle()
	b.stop(b.run(&endpoint{net: n, ip4: stuck.ip4, mac: stuck.mac}))
}

// TestCleanupStuckNetwork: a network that the SDN cannot delete does not prevent the creation of another,
// also of the same range, and is deleted in the end. The same network is refused until then.
func TestCleanupStuckNetwork(t *testing.T) {
	t.Parallel()
	l := newLeaving(tagless(openStore(t, filepath.Join(t.TempDir(), "store"), true)))
	b := boxOn(t, l)
	n := v4Network("10.1.0.0/24")
	body := b.request(n)
	b.ok("NetworkDriver.CreateNetwork", body)
	id := string(b.networkOf(n).ID)
	l.gone.Store(true)
	b.remove(n)
	l.fails.Store(&id)
	l.gone.Store(false)
	same, other := b.create(v4Network("10.1.0.0/24")), b.create(v4Network("10.2.0.0/24"))
	b.contains(b.fails("NetworkDriver.CreateNetwork", body), "10.1.0.0/24")
	b.restart()
	b.workUntil(func() bool { return b.pendingKinds() == "network pool" })
	l.fails.Store(nil)
	b.idle()
	b.stop(b.run(&endpoint{net: same}))
	b.remove(same)
	b.remove(other)
	b.clean()
}

// TestCleanupOfFirstTry: a network whose first creation could not be rolled back is not
// created again as long as the rollback would delete it.
func TestCleanupOfFirstTry(t *testing.T) {
	t.Parallel()
	l := newLeaving(openStore(t, filepath.Join(t.TempDir(), "store"), true))
	var contested atomic.Bool
	b := boxOn(t, &dockertest.Provider{Provider: l, After: func(c dockertest.Call, err error) error {
		n, ok := c.Result.(*sdn.Network)
		if err != nil || !ok || c.Method != "EnsureNetwork" || !contested.Swap(false) {
			return err
		}
		id := string(n.ID)
		l.fails.Store(&id)
		return sdn.Conflict(sdn.Exists, "network", "key", "it is being made by several callers")
	}})
	n := v4Network("10.1.0.0/24")
	body := b.request(n)
	b.idle() // the pool has a gateway
	contested.Store(true)
	b.contains(b.fails("NetworkDriver.CreateNetwork", body), "made by several callers")
	if got := b.pendingKinds(); got != "network" {
		t.Errorf("pending %q, want the end of the first try", got)
	}
	b.contains(b.fails("NetworkDriver.CreateNetwork", body), "it answers 500 to this one")
	l.fails.Store(nil)
	b.ok("NetworkDriver.CreateNetwork", body) // it completes the rollback first
	b.idle()
	b.stop(b.run(&endpoint{net: n}))
	b.remove(n)
	b.clean()
}
