//go:build e2e

// Package neutron_test drives real Docker engines by the docker command, with Kuryr as
// network and IPAM driver on a real Neutron and OVN, and checks packets, Neutron, OVN and
// Open vSwitch. It owns its lab and nothing else on the machine, and must not look into
// Kuryr but through its commands.
//
// The tests share one lab and run one after the other; each leaves it as it was, which is checked.
// A test that boots a lab of its own says why. KURYR_BIN names the program to test (bin/kuryr).
package neutron_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/neutronlab"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

var (
	kuryr string // path of the program under test
	probe string // path of the static test program
)

// limit bounds what a test waits for at a time; what takes longer has failed.
const limit = 2 * time.Minute

// port is where every container and VM answers TCP and UDP with the caller's address.
const port = 7000

type object = neutronlab.Object

func TestMain(m *testing.M) {
	privatehost.Init()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	kuryr = os.Getenv("KURYR_BIN")
	if kuryr == "" {
		kuryr = "../../../bin/kuryr"
	}
	var err error
	if kuryr, err = filepath.Abs(kuryr); err == nil {
		_, err = os.Stat(kuryr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "no program to test, run \"make build\" first:", err)
		return 1
	}
	dir, err := os.MkdirTemp("", "kuryr-probe-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	probe = filepath.Join(dir, "probe")
	build := exec.Command("go", "build", "-o", probe, "../cmd/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the probe: %v\n%s", err, out)
		return 1
	}
	defer func() {
		for _, l := range []*neutronlab.Lab{sharedLab, agentsLab} {
			if l != nil {
				l.Close()
			}
		}
	}()
	return m.Run()
}

var sharedLab *neutronlab.Lab

// start makes the lab that tests share: two hosts with Docker and Kuryr, a Neutron that asks for no
// token, and what Octavia needs, which startOctavia starts.
var start = sync.OnceValue(func() error {
	// The first lab of a machine migrates databases.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	opts := neutronlab.Options{Hosts: 2, Docker: true, Kuryr: kuryr, Octavia: true}
	var err error
	if sharedLab, err = neutronlab.New(ctx, opts); err != nil {
		return err
	}
	return prepare(ctx, sharedLab)
})

// startOctavia starts the load balancers of the shared lab.
var startOctavia = sync.OnceValue(func() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return sharedLab.StartOctavia(ctx)
})

// prepare furnishes a lab and starts Kuryr on every host.
func prepare(ctx context.Context, l *neutronlab.Lab) error {
	if err := furnish(ctx, l); err != nil {
		return err
	}
	for _, h := range l.Hosts {
		if err := h.StartKuryr(ctx); err != nil {
			return fmt.Errorf("%w\n%s", err, l.Logs(20))
		}
	}
	return nil
}

// furnish makes what is made once in a project's life, so that tests find it there, and gives every host the image.
func furnish(ctx context.Context, l *neutronlab.Lab) error {
	// A project gets its default security group with its first network.
	first, err := l.API().Create(ctx, "networks", object{"name": "first", "project_id": l.Project()})
	if err == nil {
		err = l.API().Delete(ctx, "networks", first.ID())
	}
	if err != nil {
		return err
	}
	if _, err := l.ExternalNetwork(ctx); err != nil {
		return err
	}
	for _, h := range l.Hosts {
		if err := h.ImportImage(ctx, "box", map[string]string{"probe": probe}); err != nil {
			return err
		}
	}
	return nil
}

// rig is a lab for one test.
type rig struct {
	*testing.T
	ctx context.Context
	lab *neutronlab.Lab
	api neutronlab.API
	h1  host
	h2  host

	managed []string          // hosts whose Kuryr is a managed plugin, by their names
	plugins map[string]string // folders of other plugins than the one under test, by hosts
}

// host is a lab's host for one test.
type host struct {
	*neutronlab.Host
	rig *rig
}

// shared is the lab that tests share. The test must leave it as it found it: Neutron, OVN, Open vSwitch and the kernel.
func shared(t *testing.T) *rig {
	t.Helper()
	if err := start(); err != nil {
		t.Fatalf("start the lab: %v", err)
	}
	return newRig(t, sharedLab)
}

// balanced is the shared lab with load balancers.
func balanced(t *testing.T) *rig {
	t.Helper()
	r := shared(t)
	if err := startOctavia(); err != nil {
		t.Fatalf("start Octavia: %v", err)
	}
	return r
}

// newRig is a lab for a test that leaves it as it is now.
func newRig(t *testing.T, l *neutronlab.Lab) *rig {
	t.Helper()
	r := freeRig(t, l)
	r.leavesNothing()
	return r
}

// freeRig is a lab for a test that says itself what it leaves.
func freeRig(t *testing.T, l *neutronlab.Lab) *rig {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	t.Cleanup(cancel)
	r := &rig{T: t, ctx: ctx, lab: l, api: l.API()}
	r.h1, r.h2 = host{l.Hosts[0], r}, host{l.Hosts[1], r}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", l.Logs(12))
			l.KeepLogs()
		}
	})
	return r
}

// fresh runs f with a context of its own, for clean-ups: they must run also when the test's time is over.
func (r *rig) fresh(f func(context.Context) error) {
	r.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := f(ctx); err != nil {
			r.Error(err)
		}
	})
}

// until waits for something that has no event.
func (r *rig) until(what string, try func(context.Context) error) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, limit)
	defer cancel()
	if err := neutronlab.Until(ctx, try); err != nil {
		r.Fatalf("%s: %v", what, err)
	}
}

// create makes an object of the project in Neutron, as an operator would; the test removes it at its end.
func (r *rig) create(nouns string, o object) object {
	r.Helper()
	if _, ok := o["project_id"]; !ok {
		o["project_id"] = r.lab.Project()
	}
	made, err := r.api.Create(r.ctx, nouns, o)
	if err != nil {
		r.Fatalf("make one of %s: %v", nouns, err)
	}
	r.fresh(func(ctx context.Context) error {
		// Ports of containers and routers may be on their way out.
		return neutronlab.Until(ctx, func(ctx context.Context) error { return r.api.Delete(ctx, nouns, made.ID()) })
	})
	return made
}

// get reads an object that must be there.
func (r *rig) get(nouns, id string) object {
	r.Helper()
	o, err := r.api.Get(r.ctx, nouns, id)
	if err != nil {
		r.Fatalf("read one of %s: %v", nouns, err)
	}
	return o
}

// find lists the objects that a query matches.
func (r *rig) find(nouns, query string) []object {
	r.Helper()
	all, err := r.api.List(r.ctx, nouns, query)
	if err != nil {
		r.Fatalf("list %s: %v", nouns, err)
	}
	return all
}

// one is find for what must be there once.
func (r *rig) one(nouns, query string) object {
	r.Helper()
	all := r.find(nouns, query)
	if len(all) != 1 {
		r.Fatalf("%d of %s are there for %s: %v", len(all), nouns, query, all)
	}
	return all[0]
}

// ownNetwork makes a network with subnets in Neutron, as an operator would.
func (r *rig) ownNetwork(name string, cidrs ...string) (network object, subnets []object) {
	r.Helper()
	network = r.create("networks", object{"name": name})
	for i, cidr := range cidrs {
		version := 4
		if netip.MustParsePrefix(cidr).Addr().Is6() {
			version = 6
		}
		subnets = append(subnets, r.create("subnets", object{
			"name": fmt.Sprintf("%s-%d", name, i), "network_id": network.ID(),
			"ip_version": version, "cidr": cidr,
		}))
	}
	return network, subnets
}

// routed makes a router between a subnet and the external network.
func (r *rig) routed(name string, external, subnet object) {
	r.Helper()
	router := r.create("routers", object{"name": name, "external_gateway_info": object{"network_id": external.ID()}})
	if err := r.api.Act(
		r.ctx, "routers/"+router.ID()+"/add_router_interface", object{"subnet_id": subnet.ID()},
	); err != nil {
		r.Fatal(err)
	}
	r.fresh(func(ctx context.Context) error {
		return r.api.Act(ctx, "routers/"+router.ID()+"/remove_router_interface", object{"subnet_id": subnet.ID()})
	})
}

// group makes a security group that lets in what the rules say; egress is free.
func (r *rig) group(name string, rules ...object) object {
	r.Helper()
	g := r.create("security-groups", object{"name": name})
	for _, rule := range rules {
		r.allow(g, rule)
	}
	return g
}

func (r *rig) allow(group, rule object) {
	r.Helper()
	body := object{"security_group_id": group.ID(), "direction": "ingress", "project_id": r.lab.Project()}
	for k, v := range rule {
		body[k] = v
	}
	if _, err := r.api.Create(r.ctx, "security-group-rules", body); err != nil {
		r.Fatal(err)
	}
}

// everything are rules that let all of IPv4 and IPv6 in.
var everything = []object{{"ethertype": "IPv4"}, {"ethertype": "IPv6"}}

// vm plugs a virtual machine that answers on port, with a group that lets all in unless more says which groups.
func (r *rig) vm(h host, name, network string, more object) *neutronlab.VM {
	r.Helper()
	body := object{"project_id": r.lab.Project()}
	for k, v := range more {
		body[k] = v
	}
	if body["security_groups"] == nil {
		body["security_groups"] = []string{r.group(name, everything...).ID()}
	}
	vm, err := h.NewVM(r.ctx, name, network, body)
	if err != nil {
		r.Fatal(err)
	}
	r.fresh(vm.Remove)
	cmd := h.Command(context.Background(), "nsenter", "--net=/run/netns/"+name, "--", probe, "serve", fmt.Sprint(port))
	if err := h.StartCommand(cmd); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return vm
}

// sh runs a command on the host and returns what it left.
func (h host) sh(argv ...string) privatehost.Result {
	ctx, cancel := context.WithTimeout(h.rig.ctx, limit)
	defer cancel()
	return h.Exec(ctx, argv...)
}

// docker runs the docker command, which must succeed, and returns its standard output.
func (h host) docker(args ...string) string {
	h.rig.Helper()
	res := h.sh(append([]string{"docker"}, args...)...)
	if !res.OK() {
		h.rig.Fatalf("on %s: %s", h.Name, res)
	}
	return res.Out()
}

// refused runs the docker command, which must fail with a message that holds every one of words.
func (h host) refused(words []string, args ...string) {
	h.rig.Helper()
	res := h.sh(append([]string{"docker"}, args...)...)
	if res.OK() {
		h.rig.Errorf("on %s docker %s succeeded", h.Name, strings.Join(args, " "))
		return
	}
	for _, w := range words {
		if !strings.Contains(strings.ToLower(res.Stderr), strings.ToLower(w)) {
			h.rig.Errorf("docker %s: the message does not name %q:\n%s", strings.Join(args, " "), w, res.Stderr)
		}
	}
}

// network creates a Docker network that the test removes at its end.
func (h host) network(name string, args ...string) {
	h.rig.Helper()
	h.networkBy(h.driver(), name, args...)
}

// networkBy is network with an IPAM driver.
func (h host) networkBy(ipam, name string, args ...string) {
	h.rig.Helper()
	argv := append([]string{"network", "create", "-d", h.driver(), "--ipam-driver", ipam}, args...)
	h.docker(append(argv, name)...)
	h.rig.fresh(func(ctx context.Context) error {
		// The engine may still count endpoints of containers that were removed just now.
		return neutronlab.Until(ctx, func(ctx context.Context) error { return h.gone(ctx, "network", "rm", name) })
	})
}

// use creates a Docker network of a Neutron network that is there.
func (h host) use(name string, network object, subnets []object, args ...string) {
	h.rig.Helper()
	args = append(args, "-o", "neutron.net.uuid="+network.ID())
	for _, s := range subnets {
		args = append(args, "--subnet", s.Text("cidr"))
		if gate := s.Text("gateway_ip"); gate != "" {
			args = append(args, "--gateway", gate)
		}
		if s["ip_version"] == 6.0 {
			args = append(args, "--ipv6", "-o", "neutron.subnet.v6.uuid="+s.ID(), "--ipam-opt", "neutron.subnet.v6.uuid="+s.ID())
		} else {
			args = append(args, "-o", "neutron.subnet.uuid="+s.ID(), "--ipam-opt", "neutron.subnet.uuid="+s.ID())
		}
	}
	h.network(name, args...)
}

// gone runs a docker command that removes something; that it is not there is no error.
func (h host) gone(ctx context.Context, args ...string) error {
	r := h.Docker(ctx, args...)
	if !r.OK() && strings.Contains(strings.ToLower(r.Stderr), "no such") {
		return nil
	}
	return r.Err()
}

// box is a container that answers on port.
type box struct {
	host
	name string
	pid  string // of its first process, on the host
	mac  string
	ip4  netip.Addr
	ip6  netip.Addr // not valid where the network has no IPv6
}

// on are the arguments of docker run for a network, with options of the endpoint where
// there are some: the docker command takes those in the network's argument only.
// Arguments that are not such options follow.
func on(network string, args ...string) []string {
	options, rest := "", []string(nil)
	for len(args) > 0 {
		if args[0] == "--driver-opt" {
			options += fmt.Sprintf(",%q", "driver-opt="+args[1])
			args = args[2:]
			continue
		}
		rest = append(rest, args[0])
		args = args[1:]
	}
	if options != "" {
		network = "name=" + network + options
	}
	return append([]string{"--network", network}, rest...)
}

// run starts a container on a network; the test removes it at its end.
func (h host) run(name, network string, args ...string) box {
	h.rig.Helper()
	h.rig.fresh(func(ctx context.Context) error { return h.gone(ctx, "rm", "-f", name) })
	argv := append([]string{"run", "-d", "--name", name, "--stop-timeout", "1"}, on(network, args...)...)
	h.docker(append(argv, "box", "probe", "serve", fmt.Sprint(port))...)
	return h.look(name, network)
}

// look reads a running container's place on a network anew.
func (h host) look(name, network string) box {
	h.rig.Helper()
	var info []struct {
		State           struct{ Pid int }
		NetworkSettings struct {
			Networks map[string]struct{ IPAddress, GlobalIPv6Address, MacAddress string }
		}
	}
	text := h.docker("inspect", name)
	if err := json.Unmarshal([]byte(text), &info); err != nil || len(info) != 1 {
		h.rig.Fatalf("docker inspect %s: %v\n%s", name, err, text)
	}
	end, ok := info[0].NetworkSettings.Networks[network]
	if !ok {
		h.rig.Fatalf("container %s is not on network %s:\n%s", name, network, text)
	}
	b := box{host: h, name: name, pid: fmt.Sprint(info[0].State.Pid), mac: end.MacAddress}
	b.ip4, _ = netip.ParseAddr(end.IPAddress)
	b.ip6, _ = netip.ParseAddr(end.GlobalIPv6Address)
	if !b.ip4.IsValid() && !b.ip6.IsValid() {
		h.rig.Fatalf("container %s has no address:\n%s", name, text)
	}
	return b
}

// in runs a command of the host in the container's network namespace.
func (b box) in(argv ...string) privatehost.Result {
	return b.sh(append([]string{"nsenter", "-t", b.pid, "-n", "--"}, argv...)...)
}

// port is the container's in Neutron.
func (b box) port() object {
	b.rig.Helper()
	return b.rig.one("ports", "mac_address="+b.mac+"&project_id="+b.rig.lab.Project())
}

// runner runs a command somewhere: in a container, a VM, a host, outside.
type runner func(argv ...string) privatehost.Result

func (r *rig) inside(vm *neutronlab.VM) runner {
	return func(argv ...string) privatehost.Result { return vm.Exec(r.ctx, argv...) }
}

// outside is the central host, behind the external network.
func (r *rig) outside(argv ...string) privatehost.Result { return r.lab.Central.Exec(r.ctx, argv...) }

// asks asks who answers on port of an address, by "tcp" or "udp"; the answer is the caller as that one sees it.
func asks(from runner, proto string, to netip.Addr, on int) privatehost.Result {
	return from("timeout", "3", probe, proto, netip.AddrPortFrom(to, uint16(on)).String())
}

// reaches checks that to answers ping, TCP and UDP, and that it sees the caller as seen (any address if not valid). It
// waits for the way to be there: a security group's change and a new port take OVN a moment, and the first packets of a
// way may be lost by design, as somebody on it asks for an address first.
func (r *rig) reaches(from runner, to, seen netip.Addr) {
	r.Helper()
	r.until(fmt.Sprintf("no way to %s", to), func(context.Context) error {
		return from("ping", "-n", "-c1", "-W2", to.String()).Err()
	})
	for _, proto := range []string{"tcp", "udp"} {
		var res privatehost.Result
		r.until(fmt.Sprintf("no %s to %s", proto, to), func(context.Context) error {
			res = asks(from, proto, to, port)
			return res.Err()
		})
		if seen.IsValid() && res.Out() != seen.String() {
			r.Errorf("%s: %s sees the caller as %s, not %s", proto, to, res.Out(), seen)
		}
	}
}

// cut checks that nothing gets from there to to any more. It waits for that, since a change of the rules takes OVN a
// moment; what is never let through is checked after something that was asked for later works.
func (r *rig) cut(from runner, to netip.Addr) {
	r.Helper()
	r.until(fmt.Sprintf("the way to %s is open", to), func(context.Context) error {
		if res := from("ping", "-n", "-c1", "-W1", to.String()); res.OK() {
			return errors.New("a ping passed")
		}
		for _, proto := range []string{"tcp", "udp"} {
			if asks(from, proto, to, port).OK() {
				return fmt.Errorf("%s passed", proto)
			}
		}
		return nil
	})
}

// front is the address of a server before Neutron, until the end of the test.
func (r *rig) front(wrap func(*httputil.ReverseProxy) http.Handler) string {
	r.Helper()
	return r.frontOf(neutronlab.Endpoint, nil, wrap)
}

// frontOf is front before the server at a URL, over TLS where there is secure.
func (r *rig) frontOf(before string, secure *tls.Config, wrap func(*httputil.ReverseProxy) http.Handler) string {
	r.Helper()
	f, err := r.lab.NewFront(r.ctx, before, secure, wrap)
	if err != nil {
		r.Fatal(err)
	}
	r.fresh(func(context.Context) error { return f.Close() })
	return f.Endpoint
}
