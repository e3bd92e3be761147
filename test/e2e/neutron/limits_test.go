//go:build e2e

package neutron_test

import (
	"context"
	"fmt"
	"syscall"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// A project that may have no more ports: the container is refused with the reason, and starts when there is room.
func TestQuota(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("quota", "10.60.0.0/24")
	r.h1.use("quota", network, subnets)
	r.h1.run("quota-a", "quota")
	used := len(r.find("ports", "project_id="+r.lab.Project()))
	quota := "quotas/" + r.lab.Project()
	if err := r.api.Act(r.ctx, quota, object{"quota": object{"port": used}}); err != nil {
		t.Fatal(err)
	}
	r.fresh(func(ctx context.Context) error { return r.api.Delete(ctx, "quotas", r.lab.Project()) })
	r.h1.refused([]string{"quota"}, "run", "--rm", "--network", "quota", "box", "true")
	if err := r.api.Act(r.ctx, quota, object{"quota": object{"port": -1}}); err != nil {
		t.Fatal(err)
	}
	r.h1.docker("run", "--rm", "--network", "quota", "box", "true")
}

// Two installations in one project, that is two hosts which know nothing of each other: networks of one name, range
// and all, and neither sweeps what is the other's, also not when it starts anew.
func TestTwoInstallations(t *testing.T) {
	r := shared(t)
	boxes := map[string]box{}
	for _, h := range []host{r.h1, r.h2} {
		h.network("twin", "--subnet", "10.61.0.0/24", "--gateway", "10.61.0.1")
		boxes[h.Name] = h.run("twin-box", "twin", "--ip", "10.61.0.9")
	}
	if a, b := boxes["h1"].port(), boxes["h2"].port(); a.Text("network_id") == b.Text("network_id") {
		t.Fatal("the two networks are one")
	}
	for _, h := range []host{r.h1, r.h2} {
		if err := h.KillKuryr(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := h.StartKuryr(r.ctx); err != nil {
			t.Fatal(err)
		}
	}
	r.h1.docker("rm", "-f", "twin-box")
	r.h1.docker("network", "rm", "twin")
	again := r.h2.run("twin-more", "twin")
	r.reaches(again.in, boxes["h2"].ip4, again.ip4)
}

// Two hosts use one network and give it up at the same moment: both succeed, and it stays, being the operator's.
func TestTwoHostsDelete(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("both", "10.62.0.0/24")
	for round := range 3 {
		name := fmt.Sprintf("both-%d", round)
		r.h1.use(name, network, subnets)
		r.h2.use(name, network, subnets)
		a, b := r.h1.run(name+"-a", name), r.h2.run(name+"-b", name)
		r.reaches(a.in, b.ip4, a.ip4)
		results := make(chan privatehost.Result, 2)
		for _, x := range []box{a, b} {
			go func() {
				x.sh("docker", "rm", "-f", x.name)
				results <- x.sh("docker", "network", "rm", name)
			}()
		}
		for range 2 {
			if res := <-results; !res.OK() {
				t.Error(res)
			}
		}
		r.until("the network keeps a mark of those who left it", func(context.Context) error {
			if tags := fmt.Sprint(r.get("networks", network.ID())["tags"]); tags != "[]" {
				return fmt.Errorf("it has tags %s", tags)
			}
			return nil
		})
	}
}

// A network that one host made is used by another as an existing one; the one that made it cannot remove it
// while the other's container is there; that is done afterwards.
func TestNetworkOfAnotherHost(t *testing.T) {
	r := shared(t)
	r.h1.network("lent", "--subnet", "10.63.0.0/24", "--gateway", "10.63.0.1")
	id := r.h1.docker("network", "inspect", "-f", "{{.Id}}", "lent")
	network := r.one("networks", "tags="+halves("kuryr.net.uuid", id)[0])
	subnet := r.one("subnets", "network_id="+network.ID())
	r.h2.use("borrowed", network, []object{subnet})
	a, b := r.h1.run("lent-a", "lent"), r.h2.run("lent-b", "borrowed")
	r.reaches(a.in, b.ip4, a.ip4)
	// Docker forgets the network whatever the driver says; what Docker has forgotten is
	// removed, when nobody has a port on it any more, after a time that is minutes by
	// default.
	r.restarted(r.h1, "KURYR_DOCKER_FORGET_AFTER=5s")
	r.h1.docker("rm", "-f", "lent-a")
	r.h1.sh("docker", "network", "rm", "lent")
	r.reaches(b.in, b.ip4, b.ip4)
	if left := r.find("networks", "id="+network.ID()); len(left) != 1 {
		t.Fatal("the network is gone while a container is on it")
	}
	again := r.h2.run("lent-c", "borrowed")
	r.reaches(again.in, b.ip4, again.ip4)
	r.h2.docker("rm", "-f", "lent-b", "lent-c")
	r.h2.docker("network", "rm", "borrowed")
	r.until("the network stays, that nobody has any more", func(context.Context) error {
		if left := r.find("networks", "id="+network.ID()); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}
