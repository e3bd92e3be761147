package network_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/sdn"
)

// The owner of a subnet tags it with the ids of pools that kuryr-libnetwork might have made. They
// are of another project, of another range, or of another subnet, and stay.
func TestTaggedPools(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	n := e.theirs("prod", "10.1.0.0/24")
	subnets, err := sdn.All(e.sdn.FindSubnets(t.Context(), sdn.SubnetQuery{Networks: []sdn.ID{n.ID}}))
	e.must(err)
	var pools []sdn.ID
	for _, of := range []struct{ project, cidr, tag string }{
		{"victim", "10.1.0.0/24", string(subnets[0].ID)},
		{"", "10.9.0.0/24", string(subnets[0].ID)},
		{"", "10.1.0.0/24", "another subnet"},
	} {
		cidr := netip.MustParsePrefix(of.cidr)
		pool, err := e.sdn.EnsureSubnetPool(t.Context(), sdn.SubnetPoolSpec{
			Base:     sdn.Base{Name: "kuryrPool-" + of.cidr, Project: of.project, Tags: []string{of.tag}},
			Prefixes: []netip.Prefix{cidr}, DefaultLen: cidr.Bits(), MinLen: cidr.Bits(),
		})
		e.must(err)
		pools = append(pools, pool.ID)
	}
	r := e.create(1, existing(n), "10.1.0.0/24")
	e.idle()
	subnet, err := e.sdn.Subnet(t.Context(), subnets[0].ID)
	e.must(err)
	tags := slices.Clone(subnet.Tags)
	for _, id := range pools {
		tags = append(tags, string(id))
	}
	_, err = e.sdn.UpdateSubnet(t.Context(), subnet.ID, sdn.SubnetPatch{Patch: sdn.Patch{Tags: &tags}})
	e.must(err)
	e.remove(r)
	e.eventually(func() bool { _, ok := e.store.Rows()["network-tags/"+r.NetworkID]; return !ok })
	for i, id := range pools {
		if _, err := e.sdn.SubnetPool(t.Context(), id); err != nil {
			t.Errorf("pool %d: %v", i, err)
		}
	}
}

// Another project has a router with the name that an option gives. It is not used, by the first
// network or by the next, and one of Kuryr's project is.
func TestRouterOfOthers(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ensure := func(project string) sdn.Router {
		r, err := e.sdn.EnsureRouter(t.Context(), sdn.RouterSpec{Base: sdn.Base{Name: "edge", Project: project}})
		e.must(err)
		return r
	}
	uses := func(id sdn.ID, want int) {
		t.Helper()
		r, err := e.sdn.Router(t.Context(), id)
		e.must(err)
		if len(r.Interfaces) != want {
			t.Errorf("router %q has %d interfaces, not %d", r.Project, len(r.Interfaces), want)
		}
	}
	theirs := ensure("tenant")
	one := e.create(1, api.NetworkOptions{Router: "edge"}, "10.50.0.0/24")
	ours := ensure("")
	two := e.create(2, api.NetworkOptions{Router: "edge"}, "10.51.0.0/24") // on Kuryr's, as the first
	uses(theirs.ID, 0)
	uses(ours.ID, 0)
	e.remove(one)
	e.remove(two)
	e.create(3, api.NetworkOptions{Router: "edge"}, "10.50.0.0/24")
	uses(ours.ID, 1)
	e.create(4, api.NetworkOptions{Router: string(theirs.ID)}, "10.52.0.0/24")
	uses(theirs.ID, 1)
}

// Of several networks with the name that an option gives, that of Kuryr's project is meant.
func TestNetworkOfOthers(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	ours := e.theirs("prod", "10.50.0.0/24")
	_, err := e.sdn.EnsureNetwork(t.Context(), sdn.NetworkSpec{Base: sdn.Base{Name: "prod", Project: "tenant"}})
	e.must(err)
	o := api.NetworkOptions{Existing: api.Existing{Network: api.Reference{Option: api.OptNetName, Name: "prod"}}}
	r := e.create(1, o, "10.50.0.0/24")
	view, err := e.svc.Find(t.Context(), r.NetworkID)
	e.must(err)
	if view.ID != ours.ID {
		t.Errorf("network %s is used, not %s", view.ID, ours.ID)
	}
}
