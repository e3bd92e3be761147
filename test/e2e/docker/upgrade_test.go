//go:build e2e

package docker_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// upgraded is a host whose Kuryr the test replaces by another version. It starts with the
// version that upgrades start from.
type upgraded struct {
	rig
	earlier string
	sdn     *process // nil unless the SDN is a process of its own
	down    bool     // the SDN is unavailable
}

// newUpgraded boots the host. Both versions collect what Docker does not know after grace.
func newUpgraded(t *testing.T, twoProcesses bool, env ...string) *upgraded {
	t.Helper()
	u := &upgraded{earlier: privatehost.Earlier(t)}
	opts := privatehost.Options{Kuryr: u.earlier, KuryrEnv: append(env, "KURYR_DOCKER_FORGET_AFTER="+grace)}
	if twoProcesses {
		opts, u.sdn = shared(opts)
	}
	u.rig = ownHost(t, "has an earlier version of Kuryr", opts)
	return u
}

// become replaces the running version by another. The SDN, if it is a process of its own,
// is replaced first and never goes back: its store has a newer form.
func (u *upgraded) become(ctx context.Context, t *testing.T, program string) {
	t.Helper()
	if err := u.KillKuryr(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	u.UseKuryr(program)
	if u.sdn != nil && (u.down || u.sdn.program != kuryr) {
		if err := u.sdn.Stop(syscall.SIGTERM, limit); err != nil {
			t.Fatal(err)
		}
		u.sdn.program = kuryr
		if err := u.sdn.start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	u.down = false
	u.startKuryr(ctx, t)
}

// unavailable runs docker commands while the SDN is unavailable, if the SDN can be. The next
// become ends that. Each call of an engine waits for an SDN in another process, so the
// commands run concurrently.
func (u *upgraded) unavailable(ctx context.Context, t *testing.T, commands ...[]string) {
	t.Helper()
	switch {
	case onNeutron:
		if err := u.KillKuryr(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if err := u.StartKuryr(ctx, nil, []string{"KURYR_NEUTRON_ENDPOINT=http://127.0.0.1:9"}); err != nil {
			t.Fatal(err)
		}
	case u.sdn != nil:
		if err := u.sdn.Stop(syscall.SIGKILL, limit); err != nil {
			t.Fatal(err)
		}
	}
	u.down = onNeutron || u.sdn != nil
	var wait sync.WaitGroup
	for _, argv := range commands {
		wait.Go(func() {
			if res := u.Docker(ctx, argv...); !res.OK() {
				t.Error(res)
			}
		})
	}
	wait.Wait()
	// Nothing is cleaned up before the version is replaced.
	if err := u.KillKuryr(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// answeredToNobody requests a pool and an address on a network's subnet as an engine does
// that is killed before it has the answers.
func (u *upgraded) answeredToNobody(t *testing.T, cidr, network string) {
	t.Helper()
	u.plugin(t, "IpamDriver.RequestPool", map[string]any{"AddressSpace": "local_scope", "Pool": cidr})
	for _, s := range u.list(t, "subnet") {
		if s["cidr"] != network {
			continue
		}
		u.plugin(t, "IpamDriver.RequestAddress", map[string]any{"PoolID": s["subnetpool_id"],
			"Options": map[string]any{"com.docker.network.endpoint.macaddress": "02:00:00:00:00:77"}})
		return
	}
	t.Fatalf("no subnet has range %s", network)
}

// collected waits until what answeredToNobody requested is gone. The garbage collector has
// then judged everything else, too.
func (u *upgraded) collected(t *testing.T, cidr string) {
	t.Helper()
	eventually(t, 30*time.Second, func() string {
		for _, noun := range []string{"subnetpool", "port"} {
			for _, o := range u.list(t, noun) {
				if text := fmt.Sprint(o); strings.Contains(text, cidr) || strings.Contains(text, "02:00:00:00:00:77") {
					return "not collected: " + text
				}
			}
		}
		return ""
	})
}

// connection is a TCP connection that exchanges lines while something happens.
type connection struct {
	cmd   *exec.Cmd
	input io.WriteCloser
	out   bytes.Buffer
}

// connect starts a connection to a port of an address by a command of the host, which in
// precedes.
func (r rig) connect(t *testing.T, in []string, to string) *connection {
	t.Helper()
	c := &connection{cmd: r.Command(context.Background(), append(in, probe, "stream", to)...)}
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	var err error
	if c.input, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := r.StartCommand(c.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	return c
}

// unbroken ends the connection, which must have exchanged lines until now.
func (c *connection) unbroken(t *testing.T, what string) {
	t.Helper()
	_ = c.input.Close()
	err := c.cmd.Wait()
	lines, _ := strconv.Atoi(strings.TrimSpace(c.out.String()))
	if err != nil || lines < 10 {
		t.Errorf("TCP connection %s: %v, %s", what, err, c.out.String())
	}
}

// traffic is pings and connections of running containers while something happens.
type traffic struct {
	pings       map[string]*stream
	connections map[string]*connection
}

// enter precedes a command that runs in the container's network namespace.
func (b box) enter() []string { return []string{"nsenter", "-t", b.pid, "-n", "--"} }

// echo runs a server for connections in the container's network namespace.
func (b box) echo(t *testing.T) {
	t.Helper()
	cmd := b.Command(context.Background(), append(b.enter(), probe, "echo", "7001")...)
	if err := b.StartCommand(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

func (u *upgraded) traffic(t *testing.T, from, to box) *traffic {
	t.Helper()
	return &traffic{
		pings: map[string]*stream{
			"between containers": from.pingOn(t, to.ip4), "by IPv6": from.pingOn(t, to.ip6), "outwards": from.pingOn(t, out4),
		},
		connections: map[string]*connection{"between containers": u.connect(t, from.enter(), at(to.ip4, 7001))},
	}
}

// unbroken ends the traffic, of which nothing must have been lost.
func (tr *traffic) unbroken(t *testing.T) {
	t.Helper()
	for what, s := range tr.pings {
		// A ping in flight at the end counts as lost; a switch in user space loses single packets.
		sent, lost := s.lost(t)
		if most := 1 + sent/100; sent < 5 || lost > most && !onNeutron || lost > most+2 {
			t.Errorf("pings %s: %d of %d lost", what, lost, sent)
		}
	}
	for what, c := range tr.connections {
		c.unbroken(t, what)
	}
}

// made creates an object in the SDN as an operator does. The test deletes it at its end.
func (r rig) made(t *testing.T, noun string, o object) object {
	t.Helper()
	var remove func() error
	var made object
	if onNeutron {
		o["project_id"] = r.project
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		n, err := lab.API().Create(ctx, noun+"s", neutronlab.Object(o))
		if err != nil {
			t.Fatal(err)
		}
		made = n
		remove = func() error {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			return neutronlab.Until(ctx, func(ctx context.Context) error { return lab.API().Delete(ctx, noun+"s", n.ID()) })
		}
	} else {
		made = r.sdn(t, http.MethodPost, noun+"s", object{noun: o})
		remove = func() error {
			r.sdn(t, http.MethodDelete, fmt.Sprintf("%ss/%s", noun, made["id"]), nil)
			return nil
		}
	}
	t.Cleanup(func() {
		if err := remove(); err != nil {
			t.Error(err)
		}
	})
	return made
}

// existing creates a network with a subnet in the SDN and a Docker network that uses it.
func (u *upgraded) existing(t *testing.T, name, cidr string) (id string) {
	t.Helper()
	id = fmt.Sprint(u.made(t, "network", object{"name": name})["id"])
	u.made(t, "subnet", object{"network_id": id, "cidr": cidr, "ip_version": 4})
	return id
}

func (u *upgraded) use(t *testing.T, name, id, cidr string) {
	t.Helper()
	u.network(t, name, "--subnet", cidr, "-o", "neutron.net.uuid="+id)
}

// tagsOf returns the tags of an object as the kuryr command lists it.
func (r rig) tagsOf(t *testing.T, noun, id string) string {
	t.Helper()
	for _, o := range r.list(t, noun) {
		if o["id"] == id {
			return fmt.Sprint(o["tags"])
		}
	}
	t.Fatalf("no %s has id %s", noun, id)
	return ""
}

// TestUpgrade replaces the landed version on a host with networks, containers and pending
// cleanups: traffic goes on, all of it is used and removed by the new version, and nothing
// is left.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	if onNeutron {
		upgrade(t, newUpgraded(t, false, deletesEmpty))
		return
	}
	upgrade(t, newUpgraded(t, onShared))
}

// deletesEmpty is the setting to delete a subnet with its last endpoint.
const deletesEmpty = "KURYR_DOCKER_DELETE_EMPTY_SUBNETS=true"

// TestUpgradeTwoProcesses is TestUpgrade with the SDN in a process of its own, which is
// unavailable when the last containers of the landed version are removed.
func TestUpgradeTwoProcesses(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	needs(t, ownKernel)
	upgrade(t, newUpgraded(t, true, deletesEmpty))
}

func upgrade(t *testing.T, u *upgraded) {
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	theirs, left := u.existing(t, "theirs", "10.142.0.0/24"), u.existing(t, "left", "10.145.0.0/24")
	unmanaged := u.made(t, "port", object{
		"network_id": theirs, "name": "theirs", "fixed_ips": []object{{"ip_address": "10.142.0.20"}},
	})
	operators := u.counts(t)

	u.network(t, "old", wayOut, "--ipv6", "--subnet", "10.140.0.0/24", "--subnet", "fd8c::/64")
	a := u.run(t, "old-a", "old", "-p", "8140:7000", "-p", "8140:7000/udp", "-p", "8141:7001")
	b := u.run(t, "old-b", "old")
	u.run(t, "old-stopped", "old", "--ip", "10.140.0.66")
	u.docker(t, "stop", "old-stopped")
	u.network(t, "automatic")
	u.run(t, "automatic-a", "automatic")
	u.network(t, "empty", "--subnet", "10.141.0.0/24")
	u.network(t, "emptied", "--subnet", "10.146.0.0/24")
	u.docker(t, "run", "--rm", "--network", "emptied", "box", "true")
	u.use(t, "theirs", theirs, "10.142.0.0/24")
	u.run(t, "theirs-a", "theirs")
	attached := u.run(t, "theirs-port", "theirs",
		"--ip", "10.142.0.20", "--mac-address", fmt.Sprint(unmanaged["mac_address"]))
	u.use(t, "left", left, "10.145.0.0/24")
	u.network(t, "gone", "--subnet", "10.144.0.0/24")
	u.run(t, "gone-a", "old", "--ip", "10.140.0.77")
	reaches(t, a.in, b.ip4, a.ip4)
	getsOut(t, a)
	answers(t, u.rig, host4, 8140)

	a.echo(t)
	b.echo(t)
	tr := u.traffic(t, a, b)
	if has(translation) {
		tr.connections["to the published port"] = u.connect(t, nil, at(host4, 8141))
	}
	u.answeredToNobody(t, "10.143.0.0/24", "10.140.0.0/24")
	u.unavailable(ctx, t,
		[]string{"rm", "-f", "gone-a"}, []string{"network", "rm", "gone"}, []string{"network", "rm", "left"})
	u.become(ctx, t, kuryr)

	answers(t, u.rig, host4, 8140)
	u.collected(t, "10.143.0.0/24")
	eventually(t, 30*time.Second, func() string {
		for _, p := range u.list(t, "port") {
			if text := fmt.Sprint(p["fixed_ips"]); strings.Contains(text, "10.140.0.77") {
				return "the port of a removed container stays: " + text
			}
		}
		for _, p := range u.list(t, "subnet") {
			if p["cidr"] == "10.144.0.0/24" {
				return fmt.Sprintf("the subnet of a removed network stays: %v", p)
			}
		}
		if tags := u.tagsOf(t, "network", left); tags != "[]" {
			return "an existing network keeps tags: " + tags
		}
		return ""
	})
	tr.unbroken(t)
	u.usable(t, a, b)
	id := u.docker(t, "network", "inspect", "-f", "{{.Id}}", "theirs")
	if tags := u.tagsOf(t, "network", theirs); !strings.Contains(tags, "kuryr.net.existing:"+id[:12]) {
		t.Errorf("the existing network that Docker uses has tags %s", tags)
	}
	beside := u.run(t, "theirs-new", "theirs")
	reaches(t, beside.in, attached.ip4, beside.ip4)

	u.docker(t, append([]string{"rm", "-f"}, strings.Fields(u.docker(t, "ps", "-aq"))...)...)
	u.docker(t, "network", "rm", "old", "automatic", "empty", "emptied", "theirs", "new")
	u.left(t, 30*time.Second, operators)
	for _, p := range u.list(t, "port") {
		if p["id"] == unmanaged["id"] && (p["device_id"] != "" || p["name"] != "theirs" || fmt.Sprint(p["tags"]) != "[]") {
			t.Errorf("the operator's port was not restored: %v", p)
		}
	}
	if tags := u.tagsOf(t, "network", theirs); tags != "[]" {
		t.Errorf("the operator's network keeps tags: %s", tags)
	}
	u.sound(t)
}

// sound checks that the SDN is consistent and the doctor finds nothing.
func (u *upgraded) sound(t *testing.T) {
	t.Helper()
	u.consistent(t)
	if u.sdn != nil { // the doctor knows from the configuration which process serves Docker
		u.settings(t, "provider: sdn\n")
	}
	u.healthy(t)
}

// usable checks that what the earlier version made serves new and restarted containers.
func (u *upgraded) usable(t *testing.T, a, b box) {
	t.Helper()
	fresh := u.run(t, "new-a", "old", "-p", "8142:7000")
	for _, other := range []box{a, b} {
		if fresh.ip4 == other.ip4 || fresh.ip6 == other.ip6 || fresh.mac == other.mac {
			t.Errorf("container %s has an address of %s: %+v", fresh.name, other.name, fresh)
		}
		reaches(t, fresh.in, other.ip4, fresh.ip4)
		reaches(t, other.in, fresh.ip6, other.ip6)
	}
	getsOut(t, fresh)
	answers(t, u.rig, host4, 8142)
	u.refused(t, []string{"8140"}, "run", "--rm", "-p", "8140:7000", "--network", "old", "box", "true")
	u.refused(t, []string{"in use"}, "run", "--rm", "--ip", a.ip4.String(), "--network", "old", "box", "true")

	u.docker(t, "restart", "-t", "1", "old-a")
	u.docker(t, "start", "old-stopped")
	a, stopped := u.look(t, "old-a", "old"), u.look(t, "old-stopped", "old")
	reaches(t, a.in, b.ip4, a.ip4)
	reaches(t, stopped.in, b.ip4, netip.MustParseAddr("10.140.0.66"))
	answers(t, u.rig, host4, 8140)

	inside(t, "10.141.0.0/24", u.run(t, "empty-a", "empty").ip4)
	inside(t, "10.146.0.0/24", u.run(t, "emptied-a", "emptied").ip4)
	u.network(t, "new")
	const subnet = "{{(index .IPAM.Config 0).Subnet}}"
	was := u.docker(t, "network", "inspect", "-f", subnet, "automatic")
	now := u.docker(t, "network", "inspect", "-f", subnet, "new")
	if was == now {
		t.Errorf("two networks have the automatic range %s", was)
	}
	inside(t, strings.TrimSpace(was), u.run(t, "automatic-b", "automatic").ip4)
	inside(t, strings.TrimSpace(now), u.run(t, "new-b", "new").ip4)
}

// TestRollback goes from the landed version to this one, back, and to this one again. Each
// version serves and removes what the other has made.
func TestRollback(t *testing.T) {
	t.Parallel()
	onlyKuryr(t)
	u := newUpgraded(t, !onNeutron)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	theirs := u.existing(t, "theirs", "10.150.0.0/24")
	operators := u.counts(t)
	u.become(ctx, t, u.earlier) // on this version's SDN
	u.network(t, "steady", wayOut, "--ipv6", "--subnet", "10.151.0.0/24", "--subnet", "fd97::/64")
	a, b := u.run(t, "steady-a", "steady", "-p", "8150:7000"), u.run(t, "steady-b", "steady")
	b.echo(t)
	tr := u.traffic(t, a, b)
	u.use(t, "theirs", theirs, "10.150.0.0/24")

	programs := []string{u.earlier, kuryr, u.earlier, kuryr}
	for i := range programs {
		pair := u.madeInPhase(t, i)
		if i+1 == len(programs) {
			break
		}
		u.answeredToNobody(t, fmt.Sprintf("10.153.%d.0/24", i), "10.151.0.0/24")
		if i == 1 { // a cleanup that this version does not finish before the rollback
			u.run(t, "pending", "steady", "--ip", "10.151.0.200")
			u.unavailable(ctx, t, []string{"rm", "-f", "pending"})
		}
		u.become(ctx, t, programs[i+1])
		u.collected(t, fmt.Sprintf("10.153.%d.0/24", i))
		for _, c := range pair {
			reaches(t, a.in, c.ip4, a.ip4)
		}
		answers(t, u.rig, host4, 8150)
		answers(t, u.rig, host4, 8151+i)
		// The other version restarts one container and removes the others.
		u.docker(t, "restart", "-t", "1", fmt.Sprintf("stays-%d", i))
		again := u.look(t, fmt.Sprintf("stays-%d", i), "steady")
		reaches(t, a.in, again.ip4, a.ip4)
		answers(t, u.rig, host4, 8151+i)
		u.docker(t, "rm", "-f", fmt.Sprintf("goes-%d", i), fmt.Sprintf("theirs-%d", i))
		u.docker(t, "network", "rm", fmt.Sprintf("phase-%d", i))
	}
	tr.unbroken(t)
	reaches(t, a.in, b.ip4, a.ip4)
	u.docker(t, append([]string{"rm", "-f"}, strings.Fields(u.docker(t, "ps", "-aq"))...)...)
	u.docker(t, "network", "rm", "steady", "theirs", "phase-3")
	u.left(t, 30*time.Second, operators)
	if tags := u.tagsOf(t, "network", theirs); tags != "[]" {
		t.Errorf("the operator's network keeps tags: %s", tags)
	}
	u.sound(t)
}

// madeInPhase makes a network and three containers by the version that runs. It returns the
// containers on the network steady.
func (u *upgraded) madeInPhase(t *testing.T, i int) []box {
	t.Helper()
	network := fmt.Sprintf("phase-%d", i)
	u.network(t, network, "--subnet", fmt.Sprintf("10.152.%d.0/24", i))
	u.run(t, fmt.Sprintf("theirs-%d", i), "theirs")
	stays := u.run(t, fmt.Sprintf("stays-%d", i), "steady", "-p", fmt.Sprintf("%d:7000", 8151+i))
	goes := u.run(t, fmt.Sprintf("goes-%d", i), network)
	u.docker(t, "network", "connect", "steady", goes.name)
	return []box{stays, u.look(t, goes.name, "steady")}
}
