package docker

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// TestOwedRefused: a port that something keeps there when its address is released goes when it can.
func TestOwedRefused(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	e := &endpoint{net: n}
	b.take(e)
	l.holds.Store(true)
	b.giveBack(e)
	if err := b.settle(); !sdn.IsConflict(err) {
		t.Errorf("the error is %v", err)
	}
	b.fails("IpamDriver.RequestAddress", m{"PoolID": n.v4[0].id, "Address": e.ip4, "Options": m{optMAC: "02:00:00:00:00:09"}})
	l.holds.Store(false)
	b.back(l)
	b.run(&endpoint{net: n, ip4: e.ip4})
	// What is never let go is left in the end, and said.
	gone := &endpoint{net: n}
	b.take(gone)
	l.holds.Store(true)
	b.giveBack(gone)
	for _, name := range b.driver.owed.names(func(owedCall) bool { return true }) {
		c := b.driver.owed.all[name]
		c.At = c.At.Add(-patience)
		b.driver.owed.all[name] = c
	}
	b.back(l)
}

// TestOwedStuck: a call that the SDN fails at each time keeps neither others nor what is to be done at the start from being done, but for those that are
// about the same.
func TestOwedStuck(t *testing.T) {
	t.Parallel()
	b, l := awayBox(t)
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	stuck, other := b.run(&endpoint{net: n}), b.run(&endpoint{net: n})
	gone := b.create(&network{v4: []*pool{{cidr: "10.2.0.0/24"}}})
	l.gone.Store(true)
	b.stop(stuck)
	b.stop(other)
	b.release(gone)
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": gone.id})
	l.gone.Store(false)
	port := string(b.portOf(stuck.id).ID)
	l.fails.Store(&port)
	if err := b.settle(); !away(err) {
		t.Errorf("the error is %v", err)
	}
	for _, name := range b.driver.owed.names(func(c owedCall) bool {
		return c.about.EndpointID != stuck.id && (len(c.Addresses) == 0 || c.Addresses[0].String() != stuck.ip4)
	}) {
		c, _ := b.driver.owed.get(name)
		t.Errorf("%s of %s is still owed", c.Method, c.Body)
	}
	if b.driver.owed.count() == 0 {
		t.Error("nothing is owed of the endpoint that could not be taken away")
	}
	l.fails.Store(nil)
	b.back(l)
	b.remove(n)
	b.clean()
}

// TestOwedStuckNetwork: a network that the SDN cannot delete keeps nobody from making another, where no pool is given twice.
func TestOwedStuckNetwork(t *testing.T) {
	t.Parallel()
	l := newLeaving(tagless(openStore(t, filepath.Join(t.TempDir(), "store"), true)))
	folder := t.TempDir()
	b := boxOn(t, l, func(c *Config) { c.StateDir, c.RunDir = filepath.Join(folder, "state"), filepath.Join(folder, "run") })
	n := b.create(&network{v4: []*pool{{cidr: "10.1.0.0/24"}}})
	found, _, err := b.driver.findNetwork(t.Context(), n.id)
	b.must(err)
	id := string(found.ID)
	l.gone.Store(true)
	b.release(n)
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
	l.gone.Store(false)
	l.fails.Store(&id)
	other := b.create(&network{v4: []*pool{{cidr: "10.2.0.0/24"}}})
	if b.driver.owed.count() == 0 {
		t.Error("the network that cannot be deleted is not owed any more")
	}
	l.fails.Store(nil)
	b.back(l)
	b.remove(other)
	b.clean()
}

// TestOwedStrange: what is no clean-up is not done, whoever wrote it down.
func TestOwedStrange(t *testing.T) {
	t.Parallel()
	b, _ := awayBox(t)
	for _, method := range []string{"NetworkDriver.CreateNetwork", "Nobody.Knows", "NetworkDriver.DeleteEndpoint"} {
		b.must(b.driver.owed.add(owedCall{Method: method, Body: []byte(`{"NetworkID":"x"}`)}))
	}
	b.must(b.settle())
	if n := b.driver.owed.count(); n != 0 {
		t.Errorf("%d are still owed", n)
	}
	b.clean()
}

// TestOwedBound: what is written down has a bound, and what cannot be read of it is passed over.
func TestOwedBound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var told bytes.Buffer
	log := slog.New(slog.NewTextHandler(&told, nil))
	o := openOwed(dir, log)
	for i := range maxOwed {
		o.all[fmt.Sprint(i)] = owedCall{}
	}
	if o.add(owedCall{}) == nil {
		t.Error("there is no bound")
	}
	if err := os.WriteFile(filepath.Join(dir, "00000000000000000007.json"), []byte(`{"Method":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if o = openOwed(dir, log); o.count() != 0 || !strings.Contains(told.String(), "00000000000000000007") {
		t.Errorf("%d are owed; the log says %q", o.count(), told.String())
	}
}

// contested is a provider that makes a network and says that it could not, and cannot take it away then.
type contested struct {
	*leaving
	times atomic.Int64
}

func (c *contested) EnsureNetwork(ctx context.Context, s sdn.NetworkSpec) (sdn.Network, error) {
	n, err := c.leaving.EnsureNetwork(ctx, s)
	if err == nil && c.times.Add(-1) >= 0 {
		id := string(n.ID)
		c.fails.Store(&id)
		return sdn.Network{}, sdn.Conflict(sdn.Exists, "network", "key", "it is being made by several at once")
	}
	return n, err
}

// TestOwedFirstTry: a network whose first try could not be undone is not made by a second, which what is owed would take away when the engine has it.
func TestOwedFirstTry(t *testing.T) {
	t.Parallel()
	l := newLeaving(openStore(t, filepath.Join(t.TempDir(), "store"), true))
	c := &contested{leaving: l}
	b := boxOn(t, c, func(config *Config) { config.StateDir = filepath.Join(t.TempDir(), "state") })
	n := &network{v4: []*pool{{cidr: "10.1.0.0/24"}}}
	body := b.request(n)
	c.times.Store(1)
	b.contains(b.fails("NetworkDriver.CreateNetwork", body), "made by several")
	if owed := b.driver.owed.count(); owed != 1 {
		t.Errorf("%d calls are owed, want the end of the first try", owed)
	}
	l.fails.Store(nil)
	// The engine asks anew: what was owed is done first.
	b.ok("NetworkDriver.CreateNetwork", body)
	b.must(b.settle())
	b.stop(b.run(&endpoint{net: n}))
	b.remove(n)
	b.back(l)
	b.clean()
}
