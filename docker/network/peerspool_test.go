package network

import (
	"net/netip"
	"testing"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// TestIsPeersPool checks which pool is deleted with the last use of an existing network.
func TestIsPeersPool(t *testing.T) {
	cidr := netip.MustParsePrefix("10.50.0.0/24")
	subnet := sdn.Subnet{Meta: sdn.Meta{ID: "subnet"}, CIDR: cidr}
	pool := func(project string, tags ...string) sdn.SubnetPool {
		p := sdn.SubnetPool{Prefixes: []netip.Prefix{cidr}}
		p.ID, p.Foreign, p.Name, p.Project, p.Tags = "pool", true, identity.PoolTitle(cidr), project, tags
		return p
	}
	ofPool := subnet
	ofPool.Pool = "pool"
	for _, c := range []struct {
		what   string
		known  string // Kuryr's project, "" if it is unknown
		subnet sdn.Subnet
		pool   sdn.SubnetPool
		want   bool
	}{
		{"names the subnet", "ours", subnet, pool("ours", "subnet"), true},
		{"has the subnet", "ours", ofPool, pool("ours"), true},
		{"does not know the subnet", "ours", subnet, pool("ours", "other"), false},
		{"of another project", "ours", ofPool, pool("theirs", "subnet"), false},
		{"names the subnet, project unknown", "", subnet, pool("ours", "subnet"), true},
		{"has the subnet, project unknown", "", ofPool, pool("theirs"), false},
		{"an operator's", "ours", subnet, pool("ours", "subnet", identity.TagExistingPool), false},
	} {
		if got := isPeersPool(TagSpec{Project: c.known, Unknown: c.known == ""}, c.subnet, c.pool); got != c.want {
			t.Errorf("pool that %s: %t, want %t", c.what, got, c.want)
		}
	}
}
