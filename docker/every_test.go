package docker

import (
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/sdn"
)

// everyRoute has a row for every method of the protocol: a body that makes sense, whether
// the call succeeds where there is nothing at all (and then changes nothing), and fields
// of a wrong type, each of which must be refused by name.
var everyRoute = map[string]struct {
	body    m
	nothing bool
	wrong   map[string]any
}{
	"/Plugin.Activate":                     {nothing: true},
	"/NetworkDriver.GetCapabilities":       {nothing: true},
	"/IpamDriver.GetCapabilities":          {nothing: true},
	"/IpamDriver.GetDefaultAddressSpaces":  {nothing: true},
	"/IpamDriver.GetDefaultAddressSpcaces": {nothing: true},
	"/NetworkDriver.GwAllocCheck":          {m{"Options": m{optInternal: true}}, true, m{"Options": 7}},
	"/NetworkDriver.AllocateNetwork": {
		m{"NetworkID": "net", "Options": m{"a": "b"}, "IPv4Data": []m{}, "IPv6Data": nil}, true,
		m{"NetworkID": []int{}, "Options": m{"a": 1}}},
	"/NetworkDriver.FreeNetwork": {m{"NetworkID": "net"}, true, m{"NetworkID": 1.5}},
	"/NetworkDriver.CreateNetwork": {m{
		"NetworkID": "net", "IPv4Data": []m{{"AddressSpace": localSpace, "Pool": "10.50.0.0/24"}},
	}, false,
		m{"NetworkID": nil, "IPv4Data": "x", "IPv6Data": []int{1}, "Options": []string{}}},
	"/NetworkDriver.DeleteNetwork": {m{"NetworkID": "net"}, true, m{"NetworkID": m{}}},
	"/NetworkDriver.CreateEndpoint": {
		m{"NetworkID": "net", "EndpointID": "ep", "Interface": m{"Address": "10.50.0.9/24"}}, false,
		m{"NetworkID": true, "EndpointID": 0, "Interface": "eth0", "Options": "x"}},
	"/NetworkDriver.EndpointOperInfo": {m{"NetworkID": "net", "EndpointID": "ep"}, true, m{"EndpointID": m{}}},
	"/NetworkDriver.DeleteEndpoint":   {m{"NetworkID": "net", "EndpointID": "ep"}, true, m{"EndpointID": 7}},
	"/NetworkDriver.Join": {
		m{"NetworkID": "net", "EndpointID": "ep", "SandboxKey": "/run/docker/netns/x"}, false,
		m{"SandboxKey": 7, "Options": 7},
	},
	"/NetworkDriver.Leave": {m{"NetworkID": "net", "EndpointID": "ep"}, true, m{"NetworkID": []string{"net"}}},
	"/NetworkDriver.ProgramExternalConnectivity": {m{"NetworkID": "net", "EndpointID": "ep",
		"Options": m{optPortMap: []m{{"Proto": 6, "Port": 80, "HostPort": 8080}}}}, false, m{
		"Options": []int{}, "EndpointID": nil,
	}},
	"/NetworkDriver.RevokeExternalConnectivity": {m{"NetworkID": "net", "EndpointID": "ep"}, true, m{"EndpointID": false}},
	"/NetworkDriver.DiscoverNew":                {discovered, true, m{"DiscoveryType": "one"}},
	"/NetworkDriver.DiscoverDelete":             {discovered, true, m{"DiscoveryType": m{}}},
	"/IpamDriver.RequestPool": {m{"AddressSpace": localSpace, "Pool": "10.50.0.0/24", "Options": m{}, "V6": false}, true,
		m{"AddressSpace": 7, "Pool": m{}, "SubPool": 7, "Options": "x", "V6": "no"}},
	"/IpamDriver.ReleasePool": {m{"PoolID": "gone"}, true, m{"PoolID": 7}},
	"/IpamDriver.RequestAddress": {
		m{"PoolID": "gone", "Address": "", "Options": m{optMAC: "02:00:00:00:00:01"}}, false,
		m{"PoolID": 7, "Address": m{}, "Options": 7},
	},
	"/IpamDriver.ReleaseAddress": {m{"PoolID": "gone", "Address": "10.50.0.9"}, true, m{"PoolID": nil, "Address": 7}},
}

var discovered = m{"DiscoveryType": 1, "DiscoveryData": m{
	"Address": "192.0.2.1", "BindAddress": "192.0.2.1", "Self": true,
}}

// Every method there is, where nothing is: twice, with the retried empty body in between,
// with what later engines may add, and with fields of wrong types. Nothing is ever left
// but what RequestPool is for.
func TestEveryMethod(t *testing.T) {
	t.Parallel()
	methods := newBox(t).driver.routes
	for path := range methods {
		if _, covered := everyRoute[path]; !covered {
			t.Errorf("%s has no row", path)
		}
	}
	for path, c := range everyRoute {
		if _, known := methods[path]; !known {
			t.Errorf("%s is no method", path)
			continue
		}
		t.Run(path[1:], func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			method := path[1:]
			for range 2 {
				if c.nothing {
					b.ok(method, c.body)
				} else {
					b.fails(method, c.body)
				}
				if c.body != nil {
					b.refused(method, "")
				}
				b.restart()
			}
			if c.body != nil {
				later := maps.Clone(c.body)
				later["SomethingNew"] = []any{m{"a": nil}, 7}
				if status, _ := b.post(method, encode(later)); status != http.StatusOK {
					t.Errorf("what later engines may send is answered %d", status)
				}
			}
			for field, value := range c.wrong {
				body := maps.Clone(c.body)
				body[field] = value
				b.contains(b.refused(method, encode(body)), field)
			}
			for _, junk := range []string{
				"{", "{}{}", `"x"`, "\x00", `{"NetworkID":"` + strings.Repeat("a", 70000) + `"}`,
				strings.Repeat(`{"a":`, 20000),
			} {
				if status, _ := b.post(method, junk); c.body != nil && method != "NetworkDriver.DiscoverNew" && status >= 500 {
					t.Errorf("%.20q is answered %d", junk, status)
				}
			}
			if method == "IpamDriver.RequestPool" {
				pools, err := sdn.All(b.provider.FindSubnetPools(t.Context(), sdn.SubnetPoolQuery{}))
				b.must(err)
				if len(pools) != 2 { // one that was asked for time and again, and one by a body without any field it knows
					t.Errorf("%d pools: %+v", len(pools), pools)
				}
				for _, p := range pools {
					b.ok("IpamDriver.ReleasePool", m{"PoolID": string(p.ID)})
				}
			}
			b.clean()
		})
	}
}

// skewed is an SDN whose clock jumps ten years back and forth with every pool that it shows.
func skewed(p sdn.Provider) sdn.Provider {
	n := 0
	return &dockertest.Provider{Provider: p, Found: func(_ dockertest.Call, object any) {
		if pool, ok := object.(*sdn.SubnetPool); ok {
			n++
			pool.Created = pool.Created.AddDate(10-20*(n%2), 0, 0)
		}
	}}
}

// TestClockJumps: the wall clock may jump by years. Stored times are compared only where
// nothing better tells two pools of a range apart. Times of calls are of the monotonic
// clock.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	b := newBox(t, func(c *Config) { c.Provider = skewed(c.Provider) })
	for range 3 {
		var nets []*network
		for i := range 3 {
			if i == 1 {
				b.requestPool(&pool{cidr: "10.77.0.0/24"}, false) // its answer is lost
				b.restart()
			}
			nets = append(nets, b.create(dualNetwork()))
		}
		for _, n := range nets {
			if e := b.run(&endpoint{net: n}); b.portOf(e.id).Network != b.networkOf(n).ID {
				t.Error("an endpoint is on another network of its range")
			} else {
				b.stop(e)
			}
		}
		for _, n := range nets {
			b.remove(n)
		}
		p := &pool{cidr: "10.77.0.0/24"}
		b.requestPool(p, false)
		b.ok("IpamDriver.ReleasePool", m{"PoolID": p.id})
	}
	b.clean()
}
