package neutron

import (
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

func testCache() (*cache[sdn.Port], *time.Time) {
	now := time.Unix(1e9, 0)
	return newPortCache(Config{Installation: "test", Host: doubleHost}, func() time.Time { return now }), &now
}

// Where other hosts change ports that nothing is bound to, as a swarm's manager does after it made them, those are asked for.
func TestPortCacheOfASwarm(t *testing.T) {
	now := time.Unix(1e9, 0)
	cache := newPortCache(Config{Installation: "test", Host: doubleHost, Uncached: true}, func() time.Time { return now })
	byAddress := sdn.PortQuery{Subnets: []sdn.ID{"s"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5")}}
	for host, want := range map[string]bool{"": false, doubleHost: true} {
		cache.put(cachePort("p", host))
		if _, ok := knownPorts(cache, doubleHost, byAddress); ok != want {
			t.Errorf("on host %q: answered from the cache: %t", host, ok)
		}
	}
}

func cachePort(id sdn.ID, host string) sdn.Port {
	return sdn.Port{
		Meta: sdn.Meta{ID: id, Base: sdn.Base{Key: testKey(string(id))}, Revision: 1}, Host: host, DeviceID: "device-" + string(id), DeviceOwner: sdn.OwnerContainer,
		Addresses: []sdn.Address{address("s", "10.0.0.5")},
	}
}

func TestWhatThePortCacheAnswers(t *testing.T) {
	foreign := cachePort("p", doubleHost)
	foreign.Key.Owner = "somebody"
	subport := cachePort("p", "")
	subport.DeviceOwner = "trunk:subport"
	byID := sdn.PortQuery{Match: sdn.Match{IDs: []sdn.ID{"p"}}}
	byKey := sdn.PortQuery{Match: sdn.Match{Keys: []sdn.Key{testKey("p")}}}
	byAddress := sdn.PortQuery{Subnets: []sdn.ID{"s"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.5")}}
	byDevice := sdn.PortQuery{Devices: []string{"device-p"}}
	for _, c := range []struct {
		name  string
		port  sdn.Port
		query sdn.PortQuery
		want  bool
	}{
		{"bound here, by id", cachePort("p", doubleHost), byID, true},
		{"bound here, by Key", cachePort("p", doubleHost), byKey, true},
		{"bound here, by address", cachePort("p", doubleHost), byAddress, true},
		{"bound here, by device", cachePort("p", doubleHost), byDevice, true},
		{"parked, by address", cachePort("p", ""), byAddress, true},
		{"parked, by device", cachePort("p", ""), byDevice, false},
		{"bound elsewhere", cachePort("p", "n2"), byID, false},
		{"another's", foreign, byID, false},
		{"a subport", subport, byID, false},
		{"what is not named", cachePort("p", doubleHost), sdn.PortQuery{Hosts: []string{doubleHost}}, false},
		{"one of two", cachePort("p", doubleHost), sdn.PortQuery{Match: sdn.Match{IDs: []sdn.ID{"p", "q"}}}, false},
		{"an address on some subnet", cachePort("p", doubleHost), sdn.PortQuery{Addresses: byAddress.Addresses}, false},
		{"no device", cachePort("p", doubleHost), sdn.PortQuery{Devices: []string{""}}, false},
	} {
		cache, now := testCache()
		cache.put(c.port)
		found, ok := knownPorts(cache, doubleHost, c.query)
		if ok != c.want || ok && (len(found) != 1 || found[0].ID != "p") {
			t.Errorf("%s: %v, %v", c.name, found, ok)
		}
		if *now = now.Add(portAge); c.want {
			if _, ok := knownPorts(cache, doubleHost, c.query); ok {
				t.Errorf("%s: still after %v", c.name, portAge)
			}
		}
	}
}

func TestTheRestOfASearchCounts(t *testing.T) {
	cache, _ := testCache()
	cache.put(cachePort("p", doubleHost))
	found, ok := knownPorts(cache, doubleHost, sdn.PortQuery{Match: sdn.Match{IDs: []sdn.ID{"p"}}, Networks: []sdn.ID{"other"}})
	if !ok || len(found) != 0 {
		t.Errorf("by id on another network: %v, %v", found, ok)
	}
}

func TestThePortCacheForgets(t *testing.T) {
	byID := sdn.PortQuery{Match: sdn.Match{IDs: []sdn.ID{"p"}}}
	changed := cachePort("p", doubleHost)
	changed.Name = "changed"
	for _, c := range []struct {
		name string
		do   func(*cache[sdn.Port])
		want string // the name of the port that is known, "-" where none is
	}{
		{"a change", func(c *cache[sdn.Port]) { c.begin("p")(&changed) }, "changed"},
		{"a change that failed", func(c *cache[sdn.Port]) { c.begin("p")(nil) }, "-"},
		{"two at once", func(c *cache[sdn.Port]) { a, b := c.begin("p"), c.begin("p"); a(&changed); b(&changed) }, "-"},
		{"gone", func(c *cache[sdn.Port]) { c.drop("p") }, "-"},
		{"a read", func(c *cache[sdn.Port]) { c.reading()(changed) }, "changed"},
		{"a read that a change overtook", func(c *cache[sdn.Port]) {
			old := c.reading()
			c.begin("p")(nil)
			old(changed)
		}, "-"},
		{"a read while a change is under way", func(c *cache[sdn.Port]) { c.begin("p"); c.reading()(changed) }, ""},
		{"a read of what is not ours", func(c *cache[sdn.Port]) { c.reading()(cachePort("q", "n2")) }, ""},
	} {
		cache, _ := testCache()
		cache.put(cachePort("p", doubleHost))
		c.do(cache)
		name := "-"
		if found, ok := knownPorts(cache, doubleHost, byID); ok {
			name = found[0].Name
		}
		if name != c.want {
			t.Errorf("%s: known is %q, want %q", c.name, name, c.want)
		}
		if _, ok := cache.get("q"); ok {
			t.Errorf("%s: a port of another host is known", c.name)
		}
	}
}

func TestThePortCacheIsBounded(t *testing.T) {
	cache, now := testCache()
	for i := range maxPorts {
		cache.put(cachePort(sdn.ID(fmt.Sprint(i)), doubleHost))
	}
	*now = now.Add(portAge)
	cache.put(cachePort("young", doubleHost))
	if len(cache.objects) != 1 || len(cache.byKey) != 1 {
		t.Errorf("%d ports and %d keys are known", len(cache.objects), len(cache.byKey))
	}
	for i := range maxPorts {
		cache.put(cachePort(sdn.ID(fmt.Sprint(i)), doubleHost))
	}
	if len(cache.objects) > maxPorts || len(cache.byKey) != len(cache.objects) {
		t.Errorf("%d ports and %d keys are known", len(cache.objects), len(cache.byKey))
	}
}

// What the cache gives is a copy.
func TestThePortCacheKeepsItsOwn(t *testing.T) {
	cache, _ := testCache()
	cache.put(cachePort("p", doubleHost))
	found, _ := knownPorts(cache, doubleHost, sdn.PortQuery{Match: sdn.Match{IDs: []sdn.ID{"p"}}})
	found[0].Addresses[0].Subnet = "spoilt"
	if port, _ := cache.get("p"); port.Addresses[0].Subnet != "s" {
		t.Errorf("a caller changed it to %v", port.Addresses)
	}
}

// A port that is changed while an Ensure has just read it is not known as it was.
func TestAnEnsureThatAChangeOvertakes(t *testing.T) {
	p, _, _ := onPorts(t, newPortDouble(10))
	spec := portSpec("")
	spec.Key = testKey("a")
	port := ensurePort(t, p, spec)
	p.cache.ports.drop(port.ID)
	name, once := "changed", sync.Once{}
	p.client.observe = func(r Request) {
		if r.Method == http.MethodGet && r.Collection == "ports" {
			once.Do(func() {
				if _, err := p.UpdatePort(t.Context(), port.ID, sdn.PortPatch{Patch: sdn.Patch{Name: &name}}); err != nil {
					t.Error(err)
				}
			})
		}
	}
	ensurePort(t, p, spec)
	found, err := sdn.All(p.FindPorts(t.Context(), sdn.PortQuery{Match: sdn.Match{IDs: []sdn.ID{port.ID}}}))
	if err != nil || len(found) != 1 || found[0].Name != name {
		t.Errorf("the port is %+v, error %v", found, err)
	}
}
