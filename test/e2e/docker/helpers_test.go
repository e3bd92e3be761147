//go:build e2e

// Package docker_test drives a real Docker engine by the docker command, on private hosts, with Kuryr as network and
// IPAM driver, and checks packets. It owns its hosts and nothing else on the machine, and must not look into Kuryr but
// through its commands.
//
// KURYR_BIN names the program to test (bin/kuryr). KURYR_E2E_DRIVER=bridge runs the
// scenarios that hold for Docker's own bridge too on that, which tells a fault of these
// tests, or of the machine, from one of Kuryr. KURYR_E2E_PROVIDER=neutron runs them on
// hosts of a lab with a real Neutron, but for what Neutron has not, which is a table in
// provider_test.go; KURYR_E2E_PROVIDER=sdn on hosts where the SDN is a process of its
// own.
//
// Tests share a pool of hosts (newRig): a host serves one test at a time, and a test that
// leaves anything on it fails. A test that needs another kind of host, or that leaves a
// host in another state, boots its own (ownHost, newPluginRig) and says why. On Neutron
// every test has its own host.
package docker_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

var (
	driver = "kuryr"
	kuryr  string // path of the program under test
	probe  string // path of the static test program
)

// limit bounds a command; what waits longer has failed.
const limit = 2 * time.Minute

func TestMain(m *testing.M) {
	privatehost.Init()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if d := os.Getenv("KURYR_E2E_DRIVER"); d != "" {
		driver = d
	}
	if driver == "kuryr" {
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
		if lab != nil {
			lab.Close()
		}
	}()
	defer func() { hosts().Close() }()
	return m.Run()
}

// onlyKuryr skips what Docker's own bridge cannot do.
func onlyKuryr(t *testing.T) {
	t.Helper()
	if driver != "kuryr" {
		t.Skipf("does not hold for driver %s", driver)
	}
}

// The neighbour's addresses, and the host's as the neighbour sees it.
var (
	out4, out6   = privatehost.NeighbourIPv4.Addr(), privatehost.NeighbourIPv6.Addr()
	host4, host6 = privatehost.HostIPv4.Addr(), privatehost.HostIPv6.Addr()
)

// port is where every container, and the neighbour, answers TCP and UDP with the caller's address.
const port = "7000"

// rig is a private host for the tests of one group.
type rig struct {
	*privatehost.Host
	project string // of Kuryr's objects, with Neutron
}

// newRig leases a host of the pool until the end of the test. The test must leave it as it was.
func newRig(t *testing.T) rig {
	t.Helper()
	if onNeutron {
		return ownHost(t, "Kuryr works in a project of the test's own", privatehost.Options{})
	}
	r := rig{Host: hosts().For(t)}
	r.serveOutside(t)
	return r
}

// ownHost boots a host for one test alone. reason says why it cannot lease one of the pool.
func ownHost(t *testing.T, reason string, opts privatehost.Options) rig {
	t.Helper()
	t.Logf("boots a host of its own: %s", reason)
	opts.Docker, opts.Kuryr = true, cmp.Or(opts.Kuryr, kuryr)
	if onShared && opts.Booted == nil {
		opts, _ = shared(opts)
	}
	var r rig
	if onNeutron {
		r = newLabHost(t, opts)
	} else {
		r = rig{Host: privatehost.Start(t, opts)}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := importBox(ctx, r.Host); err != nil {
		t.Fatal(err)
	}
	r.serveOutside(t)
	return r
}

// importBox makes the image of the tests' containers.
func importBox(ctx context.Context, h *privatehost.Host) error {
	return h.ImportImage(ctx, "box", map[string]string{"probe": probe})
}

func (r rig) serveOutside(t *testing.T) {
	t.Helper()
	stop, err := r.StartOutside(context.Background(), probe, "serve", port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
}

// routeOutside gives the neighbour a route by way of the host until the test ends.
func (r rig) routeOutside(t *testing.T, to string, host netip.Addr) {
	t.Helper()
	if res := r.outside("ip", "route", "replace", to, "via", host.String()); !res.OK() {
		t.Fatal(res)
	}
	t.Cleanup(func() {
		if res := r.outside("ip", "route", "del", to, "via", host.String()); !res.OK() {
			t.Error(res)
		}
	})
}

// sh runs a command in the host and returns what it left.
func (r rig) sh(argv ...string) privatehost.Result {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return r.Exec(ctx, argv...)
}

// must is sh for what has to succeed; it returns the standard output.
func (r rig) must(t *testing.T, argv ...string) string {
	t.Helper()
	res := r.sh(argv...)
	if !res.OK() {
		t.Fatal(res)
	}
	return res.Out()
}

func (r rig) outside(argv ...string) privatehost.Result {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return r.Outside(ctx, argv...)
}

// docker runs the docker command, which must succeed.
func (r rig) docker(t *testing.T, args ...string) string {
	t.Helper()
	return r.must(t, append([]string{"docker"}, args...)...)
}

// refused runs the docker command, which must fail with a message that holds every one of words.
func (r rig) refused(t *testing.T, words []string, args ...string) {
	t.Helper()
	res := r.sh(append([]string{"docker"}, args...)...)
	if res.OK() {
		t.Errorf("docker %s succeeded", strings.Join(args, " "))
		return
	}
	for _, w := range words {
		if !strings.Contains(strings.ToLower(res.Stderr), strings.ToLower(w)) {
			t.Errorf("docker %s: the message does not name %q:\n%s", strings.Join(args, " "), w, res.Stderr)
		}
	}
}

func createArgs(name string, args ...string) []string {
	all := []string{"network", "create", "-d", driver}
	if driver == "kuryr" {
		all = append(all, "--ipam-driver", "kuryr")
	}
	return append(append(all, askingOut(args)...), name)
}

// network creates a Docker network that the test removes at its end.
func (r rig) network(t *testing.T, name string, args ...string) {
	t.Helper()
	r.create(t, name, createArgs(name, args...)...)
}

// create is network with all arguments of the docker command given.
func (r rig) create(t *testing.T, name string, args ...string) {
	t.Helper()
	r.removed(t, name)
	if onNeutron {
		r.created(t, args...)
		return
	}
	r.docker(t, args...)
}

// removed sees to it that the test removes a network at its end.
func (r rig) removed(t *testing.T, name string) {
	t.Helper()
	t.Cleanup(func() {
		// The engine may still count endpoints of containers that were removed just now, many at once.
		eventually(t, 10*time.Second, func() string {
			if res := r.sh("docker", "network", "rm", name); !res.OK() && !strings.Contains(res.Stderr, "No such network") {
				return res.String()
			}
			return ""
		})
	})
}

// box is a container that answers on port.
type box struct {
	rig
	name    string
	network string
	pid     string // of its first process, in the host
	mac     string
	ip4     netip.Addr
	ip6     netip.Addr // not valid where the network has no IPv6
}

// run starts a container on a network; the test removes it at its end.
func (r rig) run(t *testing.T, name, network string, args ...string) box {
	t.Helper()
	t.Cleanup(func() { r.sh("docker", "rm", "-f", name) })
	argv := append([]string{"run", "-d", "--name", name, "--network", network, "--stop-timeout", "1"}, args...)
	r.docker(t, append(argv, "box", "probe", "serve", port)...)
	return r.look(t, name, network)
}

// look reads a running container's place on a network anew.
func (r rig) look(t *testing.T, name, network string) box {
	t.Helper()
	b := box{rig: r, name: name, network: network}
	var info []struct {
		State           struct{ Pid int }
		NetworkSettings struct {
			Networks map[string]struct{ IPAddress, GlobalIPv6Address, MacAddress string }
		}
	}
	text := r.docker(t, "inspect", name)
	if err := json.Unmarshal([]byte(text), &info); err != nil || len(info) != 1 {
		t.Fatalf("docker inspect %s: %v\n%s", name, err, text)
	}
	end, ok := info[0].NetworkSettings.Networks[network]
	if !ok {
		t.Fatalf("container %s is not on network %s:\n%s", name, network, text)
	}
	b.pid, b.mac = fmt.Sprint(info[0].State.Pid), end.MacAddress
	b.ip4, _ = netip.ParseAddr(end.IPAddress)
	b.ip6, _ = netip.ParseAddr(end.GlobalIPv6Address)
	if !b.ip4.IsValid() && !b.ip6.IsValid() {
		t.Fatalf("container %s has no address:\n%s", name, text)
	}
	b.listening(t)
	b.carried(t)
	return b
}

// listening waits until the container answers on port, if its program is to do so: the engine says that a
// container runs when its program has only begun.
func (b box) listening(t *testing.T) {
	t.Helper()
	proc := b.Path(filepath.Join("/proc", b.pid))
	eventually(t, limit, func() string {
		command, _ := os.ReadFile(filepath.Join(proc, "cmdline"))
		switch {
		case bytes.HasPrefix(command, []byte("runc")):
			return "container " + b.name + " has not begun"
		case !bytes.Contains(command, []byte("probe\x00serve\x00"+port+"\x00")):
			return ""
		}
		for _, table := range []string{"tcp", "udp"} { // IPv4's; those of IPv6 come next
			sockets, err := os.ReadFile(filepath.Join(proc, "net", table))
			if err != nil {
				return "" // it has ended, which is for the caller to see
			}
			if !strings.Contains(string(sockets), ":1B58 ") { // 7000
				return "container " + b.name + " does not listen: " + string(sockets)
			}
		}
		return ""
	})
}

// in runs a command of the host in the container's network namespace, which is quicker than docker exec and needs
// nothing in the image.
func (b box) in(argv ...string) privatehost.Result {
	return b.sh(append([]string{"nsenter", "-t", b.pid, "-n", "--"}, argv...)...)
}

// addresses are the container's, of both families.
func (b box) addresses() []netip.Addr {
	return slices.DeleteFunc([]netip.Addr{b.ip4, b.ip6}, func(a netip.Addr) bool { return !a.IsValid() })
}

// runner runs a command somewhere: in a container, in the host, on the neighbour.
type runner func(argv ...string) privatehost.Result

func ping(from runner, to netip.Addr) privatehost.Result {
	return from("ping", "-n", "-c", "2", "-i", "0.2", "-W", "1", to.String())
}

// reaches checks that to answers ping, TCP and UDP, and that it sees the caller as seen (any address if not valid). On
// a machine that is busy an answer may come too late for a try, so there are several.
func reaches(t *testing.T, from runner, to, seen netip.Addr) {
	t.Helper()
	if onNeutron {
		arrives(t, from, to)
	}
	const tries = 3
	var res privatehost.Result
	// A first packet may wait for a neighbour to be resolved; ping sends two and is content with one.
	for range tries {
		if res = ping(from, to); strings.Contains(res.Stdout, "bytes from") {
			break
		}
	}
	if !strings.Contains(res.Stdout, "bytes from") {
		t.Errorf("no ping: %s", res)
	}
	for _, proto := range []string{"tcp", "udp"} {
		for range tries {
			if res = from(probe, proto, netip.AddrPortFrom(to, 7000).String()); res.OK() {
				break
			}
		}
		if !res.OK() {
			t.Errorf("no %s: %s", proto, res)
		} else if seen.IsValid() && res.Out() != seen.String() {
			t.Errorf("%s: %s sees the caller as %s, not %s", proto, to, res.Out(), seen)
		}
	}
}

// arrives waits until there is a way: OVN makes it some time after Neutron has answered.
func arrives(t *testing.T, from runner, to netip.Addr) {
	t.Helper()
	eventually(t, patience, func() string {
		if res := ping(from, to); !strings.Contains(res.Stdout, "bytes from") {
			return res.String()
		}
		return ""
	})
}

// cut checks that nothing gets from there to to. Each try waits for the time a packet
// would need many times over; all wait at once.
func cut(t *testing.T, from runner, to netip.Addr) {
	t.Helper()
	var tries sync.WaitGroup
	var pinged privatehost.Result
	tries.Go(func() { pinged = ping(from, to) })
	asked := make([]privatehost.Result, 2)
	for i, proto := range []string{"tcp", "udp"} {
		tries.Go(func() { asked[i] = from("timeout", "1", probe, proto, netip.AddrPortFrom(to, 7000).String()) })
	}
	tries.Wait()
	if strings.Contains(pinged.Stdout, "bytes from") {
		t.Errorf("a ping passed: %s", pinged)
	}
	for _, res := range asked {
		if res.OK() {
			t.Errorf("an answer came: %s", res)
		}
	}
}

// eventually tries until ok is empty or the time is over, and then fails with what it
// last said. Neutron gets the time it needs, and so does a machine that is busy.
func eventually(t *testing.T, within time.Duration, try func() string) {
	t.Helper()
	within = max(within, patience)
	deadline := time.Now().Add(within)
	for {
		said := try()
		if said == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("still so after %s: %s", within, said)
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// stream is a ping that goes on while something happens.
type stream struct {
	cmd *exec.Cmd
	mu  sync.Mutex
	out bytes.Buffer
}

// Write is io.Writer's.
func (s *stream) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(p)
}

func (s *stream) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// pingOn pings ten times a second until lost is called. It returns after the first answer.
func (b box) pingOn(t *testing.T, to netip.Addr) *stream {
	t.Helper()
	s := &stream{cmd: b.Command(
		context.Background(), "nsenter", "-t", b.pid, "-n", "--", "ping", "-n", "-i", "0.1",
		to.String(),
	)}
	s.cmd.Stdout = s
	if err := b.StartCommand(s.cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait() // a host does not end before its last process is reaped
	})
	eventually(t, limit, func() string {
		if said := s.said(); !strings.Contains(said, "bytes from") {
			return "no answer to a ping: " + said
		}
		return ""
	})
	return s
}

// lost ends the ping and tells how many of its packets were sent and how many had no answer. The answer to the last
// one may be on its way.
func (s *stream) lost(t *testing.T) (sent, lost int) {
	t.Helper()
	_ = s.cmd.Process.Signal(os.Interrupt)
	_ = s.cmd.Wait()
	var received, last int
	for line := range strings.Lines(s.said()) {
		if _, after, ok := strings.Cut(line, "bytes from "); ok {
			_, after, _ = strings.Cut(after, "icmp_seq=")
			_, _ = fmt.Sscanf(after, "%d", &last)
		}
		if _, err := fmt.Sscanf(line, "%d packets transmitted, %d received", &sent, &received); err == nil {
			if received < sent && last == sent-1 {
				sent--
			}
			return sent, sent - received
		}
	}
	t.Fatalf("ping said nothing of packets:\n%s", s.said())
	return 0, 0
}

// list asks kuryr for its objects of one noun, but for the network that stands for the outside and what is on it: that
// is the host's and no container's.
func (r rig) list(t *testing.T, noun string) []map[string]any {
	t.Helper()
	get := func(noun string) (all []map[string]any) {
		text := r.must(t, kuryr, noun, "list", "-o", "json")
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			t.Fatalf("kuryr %s list -o json: %v\n%s", noun, err, text)
		}
		return all
	}
	outside := map[any]bool{}
	for _, n := range get("network") {
		if n["router:external"] == true {
			outside[n["id"]] = true
		}
	}
	return slices.DeleteFunc(get(noun), func(o map[string]any) bool {
		return outside[o["id"]] || outside[o["network_id"]] || onNeutron && o["project_id"] != r.project
	})
}
