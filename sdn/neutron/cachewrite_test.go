package neutron

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// What the cache has given to others is not written by what finishes an object that exists.
func TestCacheIsNotWritten(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n", "description": testKey("n").String(), "tags": []any{"old"}})
	d.add("subnets", map[string]any{"id": "s", "network_id": "n", "cidr": "10.0.0.0/24", "description": testKey("s").String(), "tags": []any{"old"}})
	d.add("subnetpools", map[string]any{"id": "p", "prefixes": []any{"10.0.0.0/8"}, "description": testKey("p").String(), "tags": []any{"old"}})
	p, _ := onDouble(t, d, nil)
	for _, read := range []func() error{
		func() error { _, err := p.Network(t.Context(), "n"); return err },
		func() error { _, err := p.Subnet(t.Context(), "s"); return err },
		func() error { _, err := p.SubnetPool(t.Context(), "p"); return err },
	} {
		if err := read(); err != nil {
			t.Fatal(err)
		}
	}
	n, _ := p.cache.networks.get("n")
	s, _ := p.cache.subnets.get("s")
	held, _ := p.cache.pools.get("p")
	tags := []string{"new"}
	network, _ := p.cache.networks.get("n")
	spec := sdn.NetworkSpec{Base: sdn.Base{Key: testKey("n"), Tags: tags}}
	if _, err := p.finishNetwork(t.Context(), network, spec); err != nil {
		t.Fatal(err)
	}
	subnet, _ := p.cache.subnets.get("s")
	out := []*subnetWire{subnet}
	specs := []sdn.SubnetSpec{{Base: sdn.Base{Key: testKey("s"), Tags: tags}}}
	if err := p.tagSubnets(t.Context(), specs, out); err != nil {
		t.Fatal(err)
	}
	pool, _ := p.cache.pools.get("p")
	if _, err := writeTags(t.Context(), p, p.cache.pools, subnetPools, pool, tags); err != nil {
		t.Fatal(err)
	}
	for noun, tags := range map[string][]string{"network": n.Tags, "subnet": s.Tags, "subnet pool": held.Tags} {
		if !slices.Equal(tags, []string{"old"}) {
			t.Errorf("the %s that others may have has the tags %v now", noun, tags)
		}
	}
	for noun, tags := range map[string][]string{"subnet": out[0].Tags, "subnet pool": pool.Tags} {
		if !slices.Equal(tags, []string{"new"}) {
			t.Errorf("the %s that is given has the tags %v", noun, tags)
		}
	}
}

// A read that Neutron has served just before it wrote the tags is not given afterwards.
func TestCacheAfterTags(t *testing.T) {
	t.Parallel()
	d := newDouble()
	d.add("networks", map[string]any{"id": "n", "description": testKey("n").String()})
	d.add("subnets", map[string]any{"id": "s", "network_id": "n", "cidr": "10.0.0.0/24", "ip_version": 4, "gateway_ip": "10.0.0.1", "enable_dhcp": true,
		"allocation_pools": []any{map[string]any{"start": "10.0.0.2", "end": "10.0.0.254"}}, "description": testKey("s").String()})
	d.add("subnetpools", map[string]any{"id": "p", "prefixes": []any{"10.0.0.0/8"}, "ip_version": 4, "default_prefixlen": "24", "description": testKey("p").String()})
	p, _ := onDouble(t, d, nil)
	read := map[string]func() ([]string, error){
		"networks":    func() ([]string, error) { n, err := p.Network(t.Context(), "n"); return n.Tags, err },
		"subnets":     func() ([]string, error) { s, err := p.Subnet(t.Context(), "s"); return s.Tags, err },
		"subnetpools": func() ([]string, error) { s, err := p.SubnetPool(t.Context(), "p"); return s.Tags, err },
	}
	overtaken := 0
	d.arriving = func(r *http.Request) {
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v2.0/"), "/")
		if len(parts) == 3 && parts[2] == "tags" {
			overtaken++
			if _, err := read[parts[0]](); err != nil {
				t.Error(err)
			}
		}
	}
	tags := []string{"one"}
	if _, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: sdn.Base{Key: testKey("n"), Tags: tags}}); err != nil {
		t.Error(err)
	}
	if _, err := p.EnsureSubnet(t.Context(), sdn.SubnetSpec{Base: sdn.Base{Key: testKey("s"), Tags: tags}, Network: "n", CIDR: netip.MustParsePrefix("10.0.0.0/24")}); err != nil {
		t.Error(err)
	}
	spec := sdn.SubnetPoolSpec{Base: sdn.Base{Key: testKey("p"), Tags: tags}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	if _, err := p.EnsureSubnetPool(t.Context(), spec); err != nil {
		t.Error(err)
	}
	if overtaken != len(read) {
		t.Errorf("%d tags were written, want %d", overtaken, len(read))
	}
	for collection, read := range read {
		if got, err := read(); err != nil || !slices.Equal(got, tags) {
			t.Errorf("%s: the tags are %v, error %v", collection, got, err)
		}
	}
}
