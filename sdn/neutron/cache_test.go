package neutron

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

// What the cache holds grows old, and what contradicts it drops it.
func TestCache(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n", "name": "old"})
	p, proxy := onDouble(t, d, nil)
	now := time.Now()
	p.cache.networks.now = func() time.Time { return now }
	name := func() string {
		t.Helper()
		n, err := p.Network(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		return n.Name
	}
	name()
	d.mu.Lock()
	d.objects["networks"][0]["name"] = "new"
	d.mu.Unlock()
	if got := name(); got != "old" {
		t.Errorf("the name is %q before the cache is old", got)
	}
	now = now.Add(cacheAge)
	if got := name(); got != "new" {
		t.Errorf("the name is %q after the cache is old", got)
	}
	change := "mine"
	if _, err := p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{Name: &change}}); err != nil || name() != "mine" {
		t.Errorf("the name is %q after an own change, error %v", name(), err)
	}
	proxy.Reset()
	if _, err := p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: 999, Name: &change}}); sdn.ReasonOf(err) != sdn.Stale {
		t.Errorf("the error is %v", err)
	}
	name()
	if n := proxy.Count(getNetworks); n != 1 {
		t.Errorf("after a stale change it was read %d times, want once", n)
	}
}

// What other hosts change is read anew for each use where that was asked for, by its Key too, and a change of one tag is made on its condition.
func TestUncached(t *testing.T) {
	t.Parallel()
	d := newDouble()
	key := sdn.Key{Owner: "test", Kind: "network", Name: "n"}
	d.add("networks", map[string]any{"id": "n", "description": key.String(), "name": "old", "revision_number": 1})
	p, _ := onDouble(t, d, func(c *Config) { c.Uncached = true })
	n, err := p.Network(t.Context(), "n")
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.objects["networks"][0]["name"], d.objects["networks"][0]["revision_number"] = "new", 2
	d.mu.Unlock()
	if now, err := p.Network(t.Context(), "n"); err != nil || now.Name != "new" {
		t.Errorf("the network is %q, error %v", now.Name, err)
	}
	found, _, err := sdn.First(p.FindNetworks(t.Context(), sdn.NetworkQuery{Match: sdn.Match{Keys: []sdn.Key{key}}}))
	if err != nil || found.Name != "new" {
		t.Errorf("the network of the key is %q, error %v", found.Name, err)
	}
	_, err = p.UpdateNetwork(t.Context(), "n", sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: n.Revision, Tags: &[]string{"b"}}})
	if sdn.ReasonOf(err) != sdn.Stale {
		t.Errorf("the error of a change that another has overtaken is %v", err)
	}
}

// A network or a subnet that Neutron says is not there is not given out of the cache again.
func TestCacheForgetsWhatIsGone(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n"})
	p, proxy := onDouble(t, d, nil)
	if _, err := p.Network(t.Context(), "n"); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	d.objects["networks"] = nil
	d.mu.Unlock()
	proxy.Say(neutrontest.Call{Method: "POST", Collection: "ports"}, 1, neutrontest.Answer{Status: 404, Body: `{"NeutronError": {"type": "NetworkNotFound", "message": "Network n could not be found."}}`})
	if _, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{{Network: "n"}}); err == nil {
		t.Error("a port was made on a network that is not there")
	}
	if _, err := p.Network(t.Context(), "n"); !sdn.IsNotFound(err) {
		t.Errorf("the error is %v", err)
	}
}

// What is no longer fresh is given at once, and read again once behind the caller's back.
func TestCacheRenews(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n", "name": "old"})
	p, proxy := onDouble(t, d, nil)
	var passed atomic.Int64
	p.cache.networks.now = func() time.Time { return time.Unix(0, passed.Load()) }
	name := func() string {
		t.Helper()
		n, err := p.Network(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		return n.Name
	}
	name()
	d.mu.Lock()
	d.objects["networks"][0]["name"] = "new"
	d.mu.Unlock()
	proxy.Reset()
	passed.Add(int64(cacheFresh))
	if got := name(); got != "old" {
		t.Errorf("the name is %q, want what was held", got)
	}
	for deadline := time.Now().Add(time.Minute); name() != "new"; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("it was never read again")
		}
	}
	if n := proxy.Count(getNetworks); n != 1 {
		t.Errorf("it was read again %d times, want once", n)
	}

	// One that has gone is dropped.
	d.mu.Lock()
	d.objects["networks"] = nil
	d.mu.Unlock()
	passed.Add(int64(cacheFresh))
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		if _, err := p.Network(t.Context(), "n"); sdn.IsNotFound(err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a network that has gone is still there")
		}
	}
}

// A read that a change has overtaken is not kept.
func TestCacheOvertaken(t *testing.T) {
	t.Parallel()
	c := newCache(time.Now, cacheAge, maxObjects, ofWire[*networkWire](nil))
	read := c.reading()
	c.drop("n")
	read(&networkWire{meta: meta{ID: "n"}})
	if _, ok := c.get("n"); ok {
		t.Error("what was read before it was dropped is kept")
	}
}

// After a change that failed nothing is known, whatever was read meanwhile; nor where the answer to a later one was faster.
func TestCacheOfChanges(t *testing.T) {
	t.Parallel()
	at := func(r revision) *networkWire { return &networkWire{meta: meta{ID: "n", Revision: r}} }
	c := newCache(time.Now, cacheAge, maxObjects, ofWire[*networkWire](nil))
	failed := errors.New("failed")
	if _, err := c.changing("n", func() (*networkWire, error) {
		c.reading()(at(1))
		return nil, failed
	}); !errors.Is(err, failed) {
		t.Error(err)
	}
	if w, ok := c.get("n"); ok {
		t.Errorf("after a change that failed revision %d is known", w.Revision)
	}
	if _, err := c.changing("n", func() (*networkWire, error) {
		c.put(at(3))
		return at(2), nil
	}); err != nil {
		t.Error(err)
	}
	if w, ok := c.get("n"); ok {
		t.Errorf("after two changes at once revision %d is known", w.Revision)
	}
	if _, err := c.changing("n", func() (*networkWire, error) { return at(4), nil }); err != nil {
		t.Error(err)
	}
	if w, ok := c.get("n"); !ok || w.Revision != 4 {
		t.Error("after a change alone nothing is known")
	}
}

// A subnet that is deleted costs no other network its place in the cache.
func TestCacheAfterASubnet(t *testing.T) {
	t.Parallel()
	d := newDouble()
	for _, id := range []string{"n", "other"} {
		d.add("networks", map[string]any{"id": id})
	}
	d.add("subnets", map[string]any{"id": "s", "network_id": "n", "cidr": "10.0.0.0/24"})
	p, proxy := onDouble(t, d, nil)
	look := func() {
		t.Helper()
		for _, id := range []sdn.ID{"n", "other"} {
			if _, err := p.Network(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		}
	}
	look()
	if _, err := p.Subnet(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if err := p.DeleteSubnet(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	proxy.Reset()
	look()
	if n := proxy.Count(getNetworks); n != 1 {
		t.Errorf("%d networks were read again, want that of the subnet", n)
	}
}

// A network that was read before somebody gave it a subnet is read again once that subnet is seen, however it was found.
func TestCacheOfANetworkWithoutItsSubnet(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n", "subnets": []string{}})
	p, _ := onDouble(t, d, nil)
	subnets := func() int {
		t.Helper()
		n, err := p.Network(t.Context(), "n")
		if err != nil {
			t.Fatal(err)
		}
		return len(n.Subnets)
	}
	for i, see := range []func(id sdn.ID) error{
		func(id sdn.ID) error {
			_, err := p.Subnet(t.Context(), id)
			return err
		},
		func(sdn.ID) error {
			_, err := sdn.All(p.FindSubnets(t.Context(), sdn.SubnetQuery{CIDRs: []netip.Prefix{pfx("10.0.0.0/24")}}))
			return err
		},
	} {
		if n := subnets(); n != i {
			t.Fatalf("there are %d subnets before, want %d", n, i)
		}
		id := fmt.Sprintf("s%d", i)
		d.add("subnets", map[string]any{"id": id, "network_id": "n", "cidr": "10.0.0.0/24"})
		if err := see(sdn.ID(id)); err != nil {
			t.Fatal(err)
		}
		if n := subnets(); n != i+1 {
			t.Errorf("there are %d subnets after the one that was added was seen, want %d", n, i+1)
		}
	}
}
