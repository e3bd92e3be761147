//go:build e2e

package neutron_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// load starts and removes containers on a host, one after the other, until stop is called. That a start fails
// while something is away is right; what stop returns are the failures since the last time that healthy was called.
type load struct {
	mu     sync.Mutex
	failed []string
	rounds int
	stop   context.CancelFunc
	done   sync.WaitGroup
}

func (h host) load(network string, args ...string) *load {
	ctx, cancel := context.WithCancel(h.rig.ctx)
	l := &load{stop: cancel}
	h.rig.Cleanup(func() {
		cancel()
		l.done.Wait()
	})
	l.done.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			name := fmt.Sprintf("load-%s-%d", h.Name, n)
			run := append([]string{"run", "-d", "--name", name, "--stop-timeout", "1"}, on(network, args...)...)
			// A container that is being made is not given up in the middle: the engine's commands have their own time.
			started := h.Docker(h.rig.ctx, append(run, "box", "probe", "serve", fmt.Sprint(port))...)
			removed := h.Docker(h.rig.ctx, "rm", "-f", name)
			l.mu.Lock()
			l.rounds++
			for _, res := range []interface {
				OK() bool
				String() string
			}{started, removed} {
				if !res.OK() && !strings.Contains(res.String(), "No such container") {
					l.failed = append(l.failed, res.String())
				}
			}
			l.mu.Unlock()
		}
	})
	return l
}

// healthy returns when the load has gone once round, from its beginning to its end, without a failure.
func (l *load) healthy(r *rig) {
	r.Helper()
	begin := -1
	r.until("containers do not start and stop again", func(context.Context) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		if begin < 0 || len(l.failed) > 0 {
			failed := l.failed
			begin, l.failed = l.rounds, nil
			return fmt.Errorf("%d failures:\n%s", len(failed), strings.Join(failed, "\n"))
		}
		// The round that was under way does not count.
		if l.rounds < begin+2 {
			return fmt.Errorf("only %d rounds", l.rounds-begin)
		}
		return nil
	})
}

// Kuryr, Neutron and OVN are killed, paused and started again while containers start and stop and two that run on two
// hosts talk to each other: those never notice, the others do again what they did, and nothing is left over.
func TestRestarts(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("restart", "10.80.0.0/22")
	group := r.group("restart", everything...)
	groups := []string{"--driver-opt", "kuryr.security_groups=" + group.ID()}
	for _, h := range []host{r.h1, r.h2} {
		h.use("restart", network, subnets)
	}
	p := &pairs{a: r.h1.run("restart-a", "restart", groups...), b: r.h2.run("restart-b", "restart", groups...)}
	same := object{"security_groups": []string{group.ID()}}
	p.va, p.vb = r.vm(r.h1, "restart-va", network.ID(), same), r.vm(r.h2, "restart-vb", network.ID(), same)
	r.reaches(p.a.in, p.b.ip4, p.a.ip4)
	r.reaches(r.inside(p.va), p.vb.Addrs[0].Addr(), p.va.Addrs[0].Addr())
	loads := []*load{r.h1.load("restart", groups...), r.h2.load("restart", groups...)}
	for _, l := range loads {
		l.healthy(r)
	}
	for _, c := range []struct {
		name      string
		away      func() error
		back      func() error
		harmless  bool // for who runs
		untouched bool // who runs, by OVN too
	}{
		{
			"kuryr killed", func() error { return r.h1.KillKuryr(syscall.SIGKILL) },
			func() error { return r.h1.StartKuryr(r.ctx) }, true, true,
		},
		{
			"kuryr ended", func() error { return r.h2.KillKuryr(syscall.SIGTERM) },
			func() error { return r.h2.StartKuryr(r.ctx) }, true, true,
		},
		{
			"neutron killed", func() error { return r.lab.StopNeutron(syscall.SIGKILL) },
			func() error { return r.lab.StartNeutron(r.ctx) }, true, true,
		},
		{"neutron paused", r.lab.PauseNeutron, r.lab.ResumeNeutron, true, true},
		{
			"ovn killed", func() error { return r.lab.StopOVN(syscall.SIGKILL) },
			func() error { return r.lab.StartOVN(r.ctx) }, true, false,
		},
		// What these do to those who run is theirs; but it passes.
		{
			"ovn-controller killed", func() error { return r.h1.StopController(syscall.SIGKILL) },
			func() error { return r.h1.StartController(r.ctx) }, false, false,
		},
		{
			"open vswitch killed", func() error { return r.h2.StopSwitch(syscall.SIGKILL) },
			func() error { return r.h2.StartSwitch(r.ctx) }, false, false,
		},
	} {
		p.begin()
		if err := c.away(); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		// The world goes on for a while without it.
		select {
		case <-time.After(3 * time.Second):
		case <-r.ctx.Done():
		}
		if err := c.back(); err != nil {
			t.Fatalf("%s, and not started again: %v", c.name, err)
		}
		for _, l := range loads {
			l.healthy(r)
		}
		r.reaches(p.a.in, p.b.ip4, p.a.ip4)
		r.reaches(p.b.in, p.a.ip4, p.b.ip4)
		p.end(r, c.name, c.harmless, c.untouched)
	}
	for _, l := range loads {
		l.stop()
		l.done.Wait()
	}
}

// While Neutron is away a start fails with a sentence that says so, what stops stops, Kuryr starts, and running
// containers do not notice; when it is back, what is owed to it is paid.
func TestNeutronAway(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("away", "10.84.0.0/24")
	group := r.group("away", everything...)
	groups := []string{"--driver-opt", "kuryr.security_groups=" + group.ID()}
	r.h1.use("away", network, subnets)
	r.h2.use("away", network, subnets)
	a, b := r.h1.run("away-a", "away", groups...), r.h2.run("away-b", "away", groups...)
	gone := r.h1.run("away-gone", "away", groups...)
	goneToo := r.h1.run("away-gone-too", "away", groups...)
	r.reaches(a.in, b.ip4, a.ip4)
	mustGo := []object{gone.port(), goneToo.port()}

	if err := r.lab.StopNeutron(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	back := sync.OnceValue(func() error { return r.lab.StartNeutron(r.ctx) })
	r.Cleanup(func() { _ = back() })
	r.h1.docker("rm", "-f", "away-gone")
	r.h1.refused([]string{"Neutron"}, "run", "--rm", "--network", "away", "box", "true")
	if err := r.h1.KillKuryr(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := r.h1.StartKuryr(r.ctx); err != nil { // its socket answers
		t.Fatalf("Kuryr does not start while Neutron is away: %v", err)
	}
	r.h1.refused([]string{"Neutron"}, "run", "--rm", "--network", "away", "box", "true")
	r.h1.docker("rm", "-f", "away-gone-too")
	r.reaches(a.in, b.ip4, a.ip4)
	if err := back(); err != nil {
		t.Fatal(err)
	}
	for _, p := range mustGo {
		r.until("a port whose container went while Neutron was away is still there", func(context.Context) error {
			if left := r.find("ports", "id="+p.ID()); len(left) > 0 {
				return fmt.Errorf("%v", left)
			}
			return nil
		})
	}
	r.until("no container starts again", func(context.Context) error {
		return r.h1.sh("docker", "run", "--rm", "--network", "away", "box", "true").Err()
	})
	r.reaches(a.in, b.ip4, a.ip4)
}

// A host that loses its power comes back with its containers: one on the port that its
// user made for it, one on a new port, and nothing is left of the old one.
func TestReboot(t *testing.T) {
	r := shared(t)
	network, subnets := r.ownNetwork("reboot", "10.85.0.0/24")
	group := r.group("reboot", everything...)
	r.h1.use("reboot", network, subnets)
	vm := r.vm(r.h2, "reboot-vm", network.ID(), nil)
	theirs := r.create("ports", object{
		"name": "reboot", "network_id": network.ID(), "security_groups": []string{group.ID()},
		"fixed_ips": []object{{"ip_address": "10.85.0.77"}}})
	names := []string{"reboot-new", "reboot-theirs"}
	for i, args := range [][]string{{"--driver-opt", "kuryr.security_groups=" + group.ID()}, {"--ip", "10.85.0.77"}} {
		box := r.h1.run(names[i], "reboot", append(args, "--restart", "always")...)
		r.reaches(box.in, vm.Addrs[0].Addr(), box.ip4)
	}
	if err := r.h1.Reboot(r.ctx); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		r.until("a container does not come back", func(context.Context) error {
			res := r.h1.sh("docker", "inspect", "-f", "{{.State.Running}}", name)
			if res.Out() != "true" {
				return fmt.Errorf("%s", res)
			}
			return nil
		})
		again := r.h1.look(name, "reboot")
		r.reaches(again.in, vm.Addrs[0].Addr(), again.ip4)
		r.reaches(r.inside(vm), again.ip4, vm.Addrs[0].Addr())
		if name == "reboot-theirs" && again.port().ID() != theirs.ID() {
			t.Errorf("%s is on port %s, not on its user's, %s", name, again.port().ID(), theirs.ID())
		}
	}
	r.until("what the host had before is left", func(ctx context.Context) error {
		res := r.h1.VSwitch(ctx, "--bare", "--columns=name", "find", "Interface", "external_ids:owner=kuryr")
		plugged, ports := strings.Fields(res.Out()), r.find("ports", "network_id="+network.ID()+"&device_owner=compute:kuryr")
		if len(plugged) != len(names) || len(ports) != len(names) {
			return fmt.Errorf("plugged are %v, and in Neutron %v", plugged, ports)
		}
		return nil
	})
}
