package network_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// The tags of an existing network are kuryr-libnetwork's, and are deleted with the last use.
func TestExistingTags(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	n := e.theirs("net", "10.50.0.0/24")
	before := e.dump()
	r := e.create(1, existing(n), "10.50.0.0/24")
	e.idle()
	tagged, err := e.sdn.Network(t.Context(), n.ID)
	e.must(err)
	if !identity.HasID(tagged.Tags, r.NetworkID) || !slices.Contains(tagged.Tags, identity.ExistingTag(r.NetworkID)) {
		t.Errorf("the network has the tags %v", tagged.Tags)
	}
	subnet, err := e.sdn.Subnet(t.Context(), tagged.Subnets[0])
	e.must(err)
	if !slices.Contains(subnet.Tags, string(e.ids[r.NetworkID][0])) {
		t.Errorf("the subnet has the tags %v", subnet.Tags)
	}
	two := e.create(2, existing(n), "10.50.0.0/24")
	e.idle()
	e.remove(r)
	e.idle()
	e.remove(two)
	e.idle()
	e.same(before)
}

// Others change an existing network and its subnet while the tags are written. No tag is lost.
func TestTagsChangedByOthers(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	n := e.theirs("net", "10.50.0.0/24")
	theirs := []string{"blue"}
	e.stop()
	var first, second sync.Once
	e.hook = func(c dockertest.Call) error {
		if p, ok := dockertest.Arg[sdn.NetworkPatch](c); ok && p.Tags != nil {
			first.Do(func() {
				patch := sdn.NetworkPatch{Patch: sdn.Patch{Tags: &theirs}}
				if _, err := e.sdn.UpdateNetwork(t.Context(), n.ID, patch); err != nil {
					t.Error(err)
				}
			})
		}
		if p, ok := dockertest.Arg[sdn.SubnetPatch](c); ok && p.Tags != nil {
			second.Do(func() {
				id, _ := dockertest.Arg[sdn.ID](c)
				patch := sdn.SubnetPatch{Patch: sdn.Patch{Tags: &theirs}}
				if _, err := e.sdn.UpdateSubnet(t.Context(), *id, patch); err != nil {
					t.Error(err)
				}
			})
		}
		return nil
	}
	e.start()
	tags := func() []string {
		t.Helper()
		now, err := e.sdn.Network(t.Context(), n.ID)
		e.must(err)
		subnet, err := e.sdn.Subnet(t.Context(), now.Subnets[0])
		e.must(err)
		return slices.Sorted(slices.Values(slices.Concat(now.Tags, subnet.Tags)))
	}
	r := e.create(1, existing(n), "10.50.0.0/24")
	e.idle()
	want := append(identity.IDTags(id(1)), identity.ExistingTag(id(1)), string(e.ids[id(1)][0]), "blue", "blue")
	slices.Sort(want)
	if got := tags(); !slices.Equal(got, want) {
		t.Errorf("tags %v, want %v", got, want)
	}
	e.remove(r)
	e.idle()
	if got := tags(); !slices.Equal(got, []string{"blue", "blue"}) {
		t.Errorf("tags %v", got)
	}
}
