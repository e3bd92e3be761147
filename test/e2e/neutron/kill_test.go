//go:build e2e

package neutron_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// anyChange is the failpoint that Kuryr passes after each change of something in Neutron.
// Killed there, it never hears what it has made.
const anyChange = "neutron.change.answered"

// ofNested begins the failpoints of ports in a virtual machine, at which the provider's own tests kill.
const ofNested = "nested."

// job is what a user does with a network and a container, as docker commands, and the failpoints at
// which Kuryr is killed in each of them.
type job struct {
	network, container pair
}

// pair is a command and the one that undoes it. In both, NAME is what is made.
type pair struct {
	make, unmake []string
	failed       []string // what a user does before making it again; nothing where empty
	killedMaking []string
	killedUnmake []string
	made         map[string]int // how many objects of Neutron's Kuryr makes for it
}

// Kuryr is killed at each of its failpoints, on one host with a network that it makes and on another
// with one that was there, while Docker creates and removes networks, and runs and removes
// containers. Docker goes on as it does, Kuryr is started again, the user does again what failed;
// then Neutron, Open vSwitch and the kernel are as before, and nothing was made twice.
func TestKilledAnywhere(t *testing.T) { killedThrough(t, false) }

// The same after each change that Kuryr asks Neutron for.
func TestKilledAfterChanges(t *testing.T) { killedThrough(t, true) }

// killedThrough kills Kuryr at each named failpoint, or after each change in Neutron, on both hosts at once.
func killedThrough(t *testing.T, changes bool) {
	t.Helper()
	program, err := filepath.Abs("../../../bin/kuryr-failpoints")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		t.Fatalf("no program to kill, run \"make e2e-neutron\": %v", err)
	}
	r := shared(t)
	for _, h := range []host{r.h1, r.h2} {
		h.UseKuryr(program)
		r.fresh(func(ctx context.Context) error {
			h.UseKuryr(kuryr)
			return errors.Join(h.KillKuryr(syscall.SIGKILL), h.StartKuryr(ctx))
		})
	}
	external, err := r.lab.ExternalNetwork(r.ctx)
	if err != nil {
		t.Fatal(err)
	}
	theirs, subnets := r.ownNetwork("killed", "10.87.0.0/24")
	r.routed("killed", external, subnets[0])
	port := r.create("ports", object{
		"name": "theirs", "network_id": theirs.ID(),
		"fixed_ips": []object{{"ip_address": "10.87.0.77"}},
	})
	jobs := map[string]job{"made": ownJob, "existing": existingJob(theirs, subnets[0])}
	checkPoints(t, jobs)
	t.Run("group", func(t *testing.T) {
		t.Run("made", func(t *testing.T) {
			t.Parallel()
			newKiller(t, r.h1, changes).through(jobs["made"])
		})
		t.Run("existing", func(t *testing.T) {
			t.Parallel()
			newKiller(t, r.h2, changes, theirs.ID(), subnets[0].ID(), port.ID()).through(jobs["existing"])
		})
	})
}

// ownJob has all that Kuryr makes for a network: two families, a router with a way out,
// and for a container a floating IP and a group for its exposed port.
var ownJob = job{
	network: pair{
		make: []string{
			"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "--ipv6", "--subnet",
			"10.86.0.0/24", "--gateway", "10.86.0.1",
			"--subnet", "fd86::/64", "--gateway", "fd86::1", "-o", "kuryr.external_network=external", "killed"},
		unmake: []string{"network", "rm", "killed"},
		made:   map[string]int{"networks": 1, "subnets": 2, "subnetpools": 2, "routers": 1},
	},
	container: pair{
		make: []string{
			"run", "-d", "--name", "killed", "--expose", "80", "--network",
			`name=killed,"driver-opt=kuryr.floating_ip=auto"`, "box", "probe", "serve", "7000",
		},
		unmake: []string{"rm", "-f", "killed"},
		failed: []string{"rm", "-f", "killed"},
		made:   map[string]int{"ports": 1, "floatingips": 1, "security-groups": 1},
	},
}

// existingJob is on a network with a router that was there, with a port that was there,
// which is plugged, and published by a floating IP.
func existingJob(network, subnet object) job {
	return job{
		network: pair{
			make: []string{
				"network", "create", "-d", "kuryr", "--ipam-driver", "kuryr", "--subnet",
				subnet.Text("cidr"), "--gateway", subnet.Text("gateway_ip"),
				"-o", "neutron.net.uuid=" + network.ID(), "-o",
				"neutron.subnet.uuid=" + subnet.ID(), "--ipam-opt",
				"neutron.subnet.uuid=" + subnet.ID(),
				"-o", "kuryr.publish=floatingip", "killed"},
			unmake: []string{"network", "rm", "killed"},
		},
		container: pair{
			make: []string{
				"run", "-d", "--name", "killed", "-p", "8080:80", "-p", "81", "--network", "killed",
				"--ip", "10.87.0.77", "box", "probe", "serve", "7000",
			},
			unmake: []string{"rm", "-f", "killed"},
			failed: []string{"rm", "-f", "killed"},
			killedMaking: []string{"bind.plug.created", "bind.plug.hosted", "bind.ovs.transacted", "bind.plug.joined",
				"docker.publish.reserved", "docker.publish.done"},
			killedUnmake: []string{"bind.ovs.removed", "bind.ovs.left", "bind.unplug.left", "bind.retire.down"},
			made:         map[string]int{"floatingips": 1},
		},
	}
}

// killing is how long all kills of a job may take: some forty on a machine that may be busy.
const killing = 25 * time.Minute

// killer kills Kuryr on a host.
type killer struct {
	host
	counts func(object) bool // what of Neutron's is this host's
	armed  bool              // Kuryr may die by itself

	changes bool // it is killed after each change in Neutron, not at the named failpoints
}

// newKiller starts Kuryr with failpoints on the host; the objects with these ids are the job's too.
func newKiller(t *testing.T, h host, changes bool, ids ...string) *killer {
	t.Helper()
	sub := *h.rig
	sub.T = t
	ctx, cancel := context.WithTimeout(context.Background(), killing)
	t.Cleanup(cancel)
	sub.ctx = ctx
	k := &killer{host: host{h.Host, &sub}, armed: true, changes: changes}
	k.restart("")
	installation := k.sh("cat", "/var/lib/kuryr/installation").Out()
	if installation == "" {
		t.Fatal("Kuryr has not written down the name of its installation")
	}
	k.counts = func(o object) bool {
		return strings.HasPrefix(o.Text("description"), "kuryr/"+installation+"/") || slices.Contains(ids, o.ID())
	}
	return k
}

// through does the job, again and again until all is killed that can be.
func (k *killer) through(j job) {
	k.rig.Helper()
	before, err := k.look(k.rig.ctx)
	if err != nil {
		k.rig.Fatal(err)
	}
	k.rig.fresh(func(ctx context.Context) error {
		return errors.Join(k.gone(ctx, j.container.unmake...), k.gone(ctx, j.network.unmake...))
	})
	k.kill(j.network, func() { k.kill(j.container, nil, nil) }, func() {
		k.rig.until("the host, and Neutron, are not as before", func(ctx context.Context) error {
			after, err := k.look(ctx)
			if err != nil {
				return err
			}
			if diff := before.diff(after); len(diff) > 0 {
				return errors.New(strings.Join(diff, "\n"))
			}
			return nil
		})
	})
}

// kill makes and unmakes until each failpoint of the two had its turn. Once, when it is
// made, inside is done; gone is called each time that it was unmade.
func (k *killer) kill(p pair, inside, gone func()) {
	k.rig.Helper()
	making, unmaking := k.series(p.killedMaking), k.series(p.killedUnmake)
	for making.more() || unmaking.more() || inside != nil {
		before := k.ids(p)
		if res := k.do(making, p.make); !res.OK() {
			if p.failed != nil {
				k.docker(p.failed...)
			}
			continue // with the next failpoint, at last with none
		}
		k.once(p, before)
		if inside != nil {
			inside()
			inside = nil
		}
		if res := k.do(unmaking, p.unmake); !res.OK() {
			if err := k.gone(k.rig.ctx, p.unmake...); err != nil {
				k.rig.Fatalf("a second time: %v", err)
			}
		}
		if gone != nil {
			k.anew("") // with it goes what Docker has released right after the last start
			gone()
		}
	}
}

// ids are those of what there is of the nouns of a pair.
func (k *killer) ids(p pair) map[string]bool {
	k.rig.Helper()
	there := map[string]bool{}
	for noun := range p.made {
		for _, o := range k.rig.find(noun, "") {
			there[o.ID()] = k.counts(o)
		}
	}
	return there
}

// once checks that everything was made once. What was there before is left of commands
// that failed: it goes by itself, or with the network.
func (k *killer) once(p pair, before map[string]bool) {
	k.rig.Helper()
	for noun, number := range p.made {
		all := slices.DeleteFunc(k.rig.find(noun, ""), func(o object) bool { return before[o.ID()] || !k.counts(o) })
		if len(all) != number {
			k.rig.Errorf("%v: %d of %s were made, not %d: %v", p.make, len(all), noun, number, all)
		}
	}
}

// do runs a docker command while Kuryr has the next failpoint of the series, and starts
// it again when it has died there. Without a failpoint the command must succeed.
func (k *killer) do(s *series, argv []string) privatehost.Result {
	k.rig.Helper()
	target := s.target()
	died := k.restart(target)
	done := make(chan privatehost.Result, 1)
	go func() { done <- k.sh(append([]string{"docker"}, argv...)...) }()
	var res privatehost.Result
	select {
	case res = <-done:
		select {
		case <-k.KuryrGone():
			died = true
		default:
		}
	case <-k.KuryrGone():
		died = true
		k.start("") // the engine is still waiting
		res = <-done
	}
	if k.armed && died {
		k.restart("")
	}
	k.rig.Logf("%s %s: %s: died %v, status %d", k.Name, strings.Join(argv[:2], " "), target, died, res.Code)
	switch {
	case !died && !res.OK() && s.slow < maxSlow && strings.Contains(res.Stderr, "has not answered"):
		s.slow++ // once more with this one
		return res
	case target == "" && died || !died && !res.OK():
		k.rig.Fatalf("with failpoint %q, at which Kuryr died: %v, failed: %s", target, died, res)
	case target != "":
		s.note(k.rig, died)
	}
	s.slow = 0
	return res
}

// maxSlow is how often in a row a Neutron on a busy machine may fail a command by its slowness.
const maxSlow = 5

// restart ends Kuryr, where it has a failpoint or is to have one, and starts it with
// target. It tells whether it died there at once.
func (k *killer) restart(target string) (died bool) {
	k.rig.Helper()
	if target == "" && !k.armed {
		return false
	}
	return k.anew(target)
}

// anew ends Kuryr and starts it, and tells likewise.
func (k *killer) anew(target string) (died bool) {
	k.rig.Helper()
	if err := k.KillKuryr(syscall.SIGKILL); err != nil {
		k.rig.Fatal(err)
	}
	return k.start(target)
}

// forgetful has Kuryr remove soon what Docker was never told of.
const forgetful = "KURYR_DOCKER_FORGET_AFTER=15s"

// start starts Kuryr with a failpoint, or none. What it does at its start may come by
// there: then it is started without.
func (k *killer) start(target string) (died bool) {
	k.rig.Helper()
	k.armed = target != ""
	env := []string{forgetful}
	if k.armed {
		// to compare with the engine takes longer than to be killed
		env = []string{"KURYR_DOCKER_API=", "KURYR_FAILPOINT=" + target}
	}
	err := k.StartKuryr(k.rig.ctx, env...)
	if err != nil && k.armed && k.KuryrKilled() {
		k.armed, died = false, true
		err = k.StartKuryr(k.rig.ctx, forgetful)
	}
	if err != nil {
		k.rig.Fatal(err)
	}
	return died
}

// look takes the inventory of the host, of what it has in Neutron, and of its notes.
func (k *killer) look(ctx context.Context) (inventory, error) {
	seen := inventory{}
	if err := seen.neutron(ctx, k.rig.lab, func(o neutronlab.Object) bool { return k.counts(o) }); err != nil {
		return nil, err
	}
	if err := seen.host(ctx, k.Host); err != nil {
		return nil, err
	}
	notes := k.Exec(ctx, "find", "/run/kuryr", "/var/lib/kuryr", "-type", "f")
	seen[k.Name+" notes"] = lines(notes)
	return seen, notes.Err()
}

// series are the failpoints of a command that are still to have their turn: the named ones, or
// anyChange at each passage there is.
type series struct {
	names   []string
	changes bool // there are passages of anyChange that had no turn
	passage int
	slow    int // commands in a row that failed because Neutron was too slow
}

// chosen are the named failpoints that KURYR_CRASH_ONLY names, with commas between; none are all.
func chosen() []string {
	return strings.FieldsFunc(os.Getenv("KURYR_CRASH_ONLY"), func(r rune) bool { return r == ',' })
}

// series leaves out all but the chosen ones, if some are.
func (k *killer) series(names []string) *series {
	if k.changes {
		return &series{changes: true}
	}
	only := chosen()
	return &series{names: slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return len(only) > 0 && !slices.Contains(only, n)
	})}
}

func (s *series) more() bool { return len(s.names) > 0 || s.changes }

// target is the next as KURYR_FAILPOINT has it.
func (s *series) target() string {
	switch {
	case len(s.names) > 0:
		return s.names[0]
	case !s.changes:
		return ""
	}
	return fmt.Sprintf("%s:%d", anyChange, s.passage+1)
}

// note goes on to the next, by whether Kuryr died at this one.
func (s *series) note(r *rig, died bool) {
	r.Helper()
	switch {
	case len(s.names) == 0:
		if s.passage == 0 && !died {
			r.Errorf("the command makes no change in Neutron")
		}
		s.passage++
		s.changes = died
	default:
		if !died {
			r.Errorf("the command does not come by %s", s.names[0])
		}
		s.names = s.names[1:]
	}
}

// checkPoints fails where a failpoint is in no job, or a chosen one is in none.
func checkPoints(t *testing.T, jobs map[string]job) {
	t.Helper()
	var known []string
	for _, j := range jobs {
		known = slices.Concat(
			known, j.network.killedMaking, j.network.killedUnmake, j.container.killedMaking,
			j.container.killedUnmake,
		)
	}
	for _, name := range chosen() {
		if !slices.Contains(known, name) {
			t.Errorf("KURYR_CRASH_ONLY: no job comes by %s", name)
		}
	}
	for _, pattern := range []string{"docker/*/*.go", "bind/ovs.go", "sdn/neutron/*.go"} {
		files, err := filepath.Glob(filepath.Join("../../..", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("no files %s: %v", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`failpoint\.Here\("([^"]+)"\)`).FindAllStringSubmatch(string(text), -1) {
				elsewhere := m[1] == anyChange || strings.HasPrefix(m[1], ofNested)
				if !elsewhere && !slices.Contains(known, m[1]) {
					t.Errorf("failpoint %s is in no job", m[1])
				}
			}
		}
	}
}
