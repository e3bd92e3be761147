//go:build e2e

package neutron_test

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
)

// tagged is nil where an object has the tags.
func tagged(o object, want ...string) error {
	tags, _ := o["tags"].([]any)
	for _, w := range want {
		if !slices.Contains(tags, any(w)) {
			return fmt.Errorf("%s has tags %v, but not %s", o.ID(), tags, w)
		}
	}
	return nil
}

// asPeers makes what Kuryr made into what the Python kuryr-libnetwork would have made: the same names and tags, and no
// mark of ours.
func (r *rig) asPeers(nouns string, o object, name string, tags ...string) {
	r.Helper()
	if _, err := r.api.Update(r.ctx, nouns, o.ID(), object{"name": name, "description": ""}); err != nil {
		r.Fatal(err)
	}
	if err := r.api.Act(r.ctx, nouns+"/"+o.ID()+"/tags", object{"tags": append([]string{}, tags...)}); err != nil {
		r.Fatal(err)
	}
}

func halves(prefix, id string) []string {
	return []string{prefix + ".lh:" + id[:32], prefix + ".uh:" + id[32:]}
}

// The Python kuryr-libnetwork is replaced by Kuryr on a host with a network and running
// containers of its: they go on, more are started, and all of it is removed in the end.
func TestTakeOver(t *testing.T) {
	r := shared(t)
	r.h1.network("peer", "--subnet", "10.57.0.0/24", "--gateway", "10.57.0.1")
	group := r.group("peer", everything...)
	a, b := r.h1.run("peer-a", "peer", "--driver-opt", "kuryr.security_groups="+group.ID()),
		r.h1.run("peer-b", "peer", "--driver-opt", "kuryr.security_groups="+group.ID())
	r.reaches(a.in, b.ip4, a.ip4)

	r.fresh(func(ctx context.Context) error {
		if err := r.h1.KillKuryr(syscall.SIGTERM); err != nil {
			return err
		}
		return r.h1.StartKuryr(ctx)
	})
	if err := r.h1.KillKuryr(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	const idTag = "kuryr.net.uuid"
	netID := r.h1.docker("network", "inspect", "-f", "{{.Id}}", "peer")
	network := r.one("networks", "tags="+halves(idTag, netID)[0])
	subnet := r.one("subnets", "network_id="+network.ID())
	pool := r.get("subnetpools", subnet.Text("subnetpool_id"))
	r.asPeers("networks", network, "kuryr-net-"+netID[:8], halves(idTag, netID)...)
	r.asPeers("subnetpools", pool, "kuryrPool-10.57.0.0/24")
	r.asPeers("subnets", subnet, "kuryr-subnet-10.57.0.0/24", pool.ID())
	for _, x := range []box{a, b} {
		end := r.h1.docker("inspect", "-f", "{{.NetworkSettings.Networks.peer.EndpointID}}", x.name)
		p := x.port()
		r.asPeers("ports", p, "kuryr-unbound-port", append(halves(idTag, end), "compute:kuryr")...)
		if _, err := r.api.Update(
			r.ctx, "ports", p.ID(), object{"device_id": end, "device_owner": "compute:kuryr"},
		); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.h1.StartKuryr(r.ctx, "KURYR_STATE_DIR=/var/lib/kuryr/after-the-peer"); err != nil {
		t.Fatal(err)
	}

	r.reaches(b.in, a.ip4, b.ip4)
	c := r.h1.run("peer-c", "peer", "--driver-opt", "kuryr.security_groups="+group.ID())
	r.reaches(c.in, a.ip4, c.ip4)
	r.h1.docker("restart", "peer-b")
	b = r.h1.look("peer-b", "peer")
	r.reaches(b.in, c.ip4, b.ip4)
	r.h1.docker("rm", "-f", "peer-a", "peer-b", "peer-c")
	r.h1.docker("network", "rm", "peer")
	if left := r.find("networks", "id="+network.ID()); len(left) > 0 {
		t.Errorf("the network that the peer had made is still there: %v", left)
	}
	if left := r.find("subnetpools", "id="+pool.ID()); len(left) > 0 {
		t.Errorf("the pool that the peer had made is still there: %v", left)
	}
}
