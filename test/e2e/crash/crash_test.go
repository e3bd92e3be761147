//go:build e2e

// Package crash_test kills Kuryr at each of its failpoints and looks at what the next
// start and the user's next try make of it. It plays the Docker engine itself
// (engine_test.go), on private hosts without one, with a Kuryr that was built with the
// tag "failpoints"; store and kernel are compared by "kuryr sdn check" and,
// independently, by ip and nft.
//
// KURYR_BIN names the program (bin/kuryr-crash), KURYR_CRASH_ONLY the failpoints to try alone,
// with commas between, and KURYR_CRASH_VISITS how many visits of each are tried at most.
package crash_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

var kuryr string

func TestMain(m *testing.M) {
	kuryr = privatehost.Program("../../../bin/kuryr-crash", "make crash")
	os.Exit(m.Run())
}

// visits returns the visits of a failpoint at which Kuryr is killed, each in a run of its own. The
// failpoints of the store and of namespaces are visited many times, in states that differ.
func visits(t *testing.T, name string) []int {
	t.Helper()
	all := []int{1, 2, 4, 5}
	if of, _, _ := strings.Cut(name, "."); of == "engine" || of == "local" || of == "netns" {
		all = []int{1, 2, 4, 7, 11, 16, 24}
	}
	limit := os.Getenv("KURYR_CRASH_VISITS")
	if limit == "" {
		return all
	}
	n, err := strconv.Atoi(limit)
	if err != nil || n < 1 {
		t.Fatalf("invalid KURYR_CRASH_VISITS %q: not a positive number", limit)
	}
	return all[:min(n, len(all))]
}

func TestFailpoints(t *testing.T) {
	names := failpoints(t, "../../..")
	if len(names) == 0 {
		t.Fatal("no failpoints found")
	}
	// A fault of the sequence without a kill is none of the failpoints'.
	passed := filepath.Join(t.TempDir(), "passed")
	if !t.Run("none", func(t *testing.T) {
		if killAt(t, "KURYR_FAILPOINTS_PASSED="+passed) {
			t.Error("kuryr died by itself")
		}
	}) {
		return
	}
	most := mostVisits(t, passed)
	known := map[string]bool{}
	for _, name := range names {
		known[name] = true
		if _, skip := elsewhere[name]; skip {
			continue
		}
		if only := os.Getenv("KURYR_CRASH_ONLY"); only != "" && !slices.Contains(strings.Split(only, ","), name) {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if most[name] == 0 {
				t.Fatalf("no call of the sequence passes %s: extend the sequence, or explain it in the list", name)
			}
			for _, visit := range visits(t, name) {
				if visit > most[name] || t.Failed() {
					return
				}
				// One that depends on what else is at work may be passed less often than it was, but once at least.
				if !killAt(t, fmt.Sprintf("KURYR_FAILPOINT=%s:%d", name, visit)) && visit == 1 {
					t.Errorf("kuryr did not die at %s, which the sequence passed before", name)
				}
			}
		})
	}
	for name, e := range elsewhere {
		if !known[name] {
			t.Errorf("%s is explained, but is no failpoint", name)
		}
		if !hasTest(t, filepath.Join("../../..", e.folder), e.test) {
			t.Errorf("%s has no %s that kills at %s", e.folder, e.test, name)
		}
	}
}

// mostVisits tells how often a process passed each failpoint, of the one that passed it
// most often: each start counts anew.
func mostVisits(t *testing.T, file string) map[string]int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	each, most := map[string]int{}, map[string]int{}
	for line := range strings.Lines(string(text)) {
		_, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		each[line]++
		most[name] = max(most[name], each[line])
	}
	return most
}

// goneWithin is how long the host may take to look as it should. Kuryr finishes some work after
// its answers, and the kernel deletes the links of a namespace after the namespace, on a busy
// machine many seconds later.
const goneWithin = time.Minute

// trial is one run of the whole sequence with one failpoint.
type trial struct {
	*engine
	target string // the variable of the environment that says where Kuryr is to die
	bare   privatehost.Snapshot
	armed  bool // the failpoint is yet to be reached, so each start has it
}

// killAt tells whether the failpoint was reached that a variable of the environment names.
func killAt(t *testing.T, target string) bool {
	t.Helper()
	h := privatehost.Start(t, privatehost.Options{Kuryr: kuryr, KuryrLater: true})
	x := &trial{engine: newEngine(t, h), target: target, armed: true}
	defer func() {
		if t.Failed() {
			t.Logf("the failpoint was %s, reached %v in %q", target, x.died, x.at)
		}
	}()
	x.firewall()
	x.engine.restart = func() {
		x.armed = false
		x.start()
		x.check("after the restart")
	}
	x.start()
	one, shared, inner, foreign, ipam := nets()
	web := &container{name: "web", on: one, port: 8080, free: 9090}
	db := &container{name: "db", on: one, ip: "10.90.0.77", mac: "02:aa:bb:cc:dd:02"}
	far := &container{name: "far", on: shared}
	in := &container{name: "in", on: inner}
	other := &container{name: "foreign", on: foreign}
	bare := &container{name: "ipam", on: ipam}
	networks := []*network{one, shared, inner, foreign, ipam}
	lost := &container{name: "lost", on: one, lost: true}
	containers := []*container{web, db, far, in, other, bare, lost}

	x.build(networks, containers)
	x.check("with everything there")
	x.pings(web, "10.90.0.77")
	x.pings(web, far.addrs[0].Addr().String())
	x.pings(far, privatehost.NeighbourIPv4.Addr().String())

	x.sdnRestore()
	// A new start over what is there, and over what is not.
	x.stop(syscall.SIGKILL)
	x.start()
	x.pings(web, "10.90.0.77")
	x.reboot(containers)
	x.build(nil, containers)
	x.check("after a reboot")
	x.pings(db, privatehost.NeighbourIPv4.Addr().String())

	for _, c := range containers {
		x.rm(c)
	}
	for _, n := range networks {
		x.remove(n)
	}
	// What errors of cleaning calls left is finished by the next start.
	x.stop(syscall.SIGTERM)
	x.start()
	x.check("with everything gone")
	x.nothingLeft()
	x.purge()
	return x.died
}

// firewall sets up what a Docker engine's presence means to packets: forwarding is
// forbidden, but for what the chain that is meant for others lets pass. What the host
// looks like then is what Kuryr has to leave behind.
func (x *trial) firewall() {
	x.t.Helper()
	script := "set -e\n"
	for _, tool := range []string{"iptables", "ip6tables"} {
		script += strings.ReplaceAll(
			"T -N DOCKER-USER\nT -A DOCKER-USER -j RETURN\nT -I FORWARD -j DOCKER-USER\nT -P "+
				"FORWARD DROP\n",
			"T ", tool+" ",
		)
	}
	if r := x.host("sh", "-c", script); !r.OK() {
		x.t.Fatal(r)
	}
	x.bare = x.snapshot()
}

func nets() (one, shared, inner, foreign, ipam *network) {
	router := map[string]string{"kuryr.router": "crash"}
	return &network{name: "one", subnets: []string{"10.90.0.0/24", "fd90::/64"}, options: router},
		&network{name: "shared", subnets: []string{"10.91.0.0/24"}, options: router},
		&network{name: "inner", subnets: []string{""}, internal: true, options: map[string]string{}},
		&network{name: "foreign", subnets: []string{"10.93.0.0/24"}, foreign: true, options: map[string]string{}},
		&network{name: "ipam", subnets: []string{"10.94.0.0/24"}, ipamOnly: true}
}

// build makes networks and containers. What fails because Kuryr was killed is asked for once more, as a user would.
func (x *trial) build(networks []*network, containers []*container) {
	x.t.Helper()
	x.again("Plugin.Activate", func() error { return x.call("Plugin.Activate", nil, nil) })
	x.again("NetworkDriver.GetCapabilities", func() error { return x.call("NetworkDriver.GetCapabilities", nil, nil) })
	for _, n := range networks {
		x.again("network create "+n.name, func() error { return x.create(n) })
	}
	for _, c := range containers {
		x.again("run "+c.name, func() error { return x.run(c) })
	}
}

func (x *trial) again(what string, f func() error) {
	x.t.Helper()
	before := x.died
	err := f()
	if err != nil && x.died && !before {
		x.check("after the engine's rollback of " + what)
		err = f()
	}
	if err != nil {
		x.t.Fatalf("%s: %v", what, err)
	}
}

// start starts Kuryr, armed if the failpoint is still ahead; if it dies at its start, it is started once more.
func (x *trial) start() {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	err := x.h.StartKuryr(ctx, nil, x.env())
	if err != nil && x.armed && x.gone() {
		x.disarm("its start")
		err = x.h.StartKuryr(ctx, nil, nil)
		if err == nil {
			x.check("after the restart")
		}
	}
	if err != nil {
		x.t.Fatal(err)
	}
}

func (x *trial) env() []string {
	if x.armed {
		return []string{x.target}
	}
	return nil
}

func (x *trial) disarm(at string) { x.armed, x.died, x.at = false, true, at }

// stop ends Kuryr. It may have died by itself shortly before, in work that no call waits for.
func (x *trial) stop(sig syscall.Signal) {
	x.t.Helper()
	select {
	case <-x.h.KuryrGone():
		if !x.armed {
			x.t.Fatal("kuryr has ended, and nothing killed it")
		}
		x.disarm("the background")
		return
	default:
	}
	_ = x.h.KillKuryr(sig)
	if sig != syscall.SIGKILL && x.armed && x.h.KuryrKilled() {
		x.disarm("its end")
	}
}

// reboot takes the kernel's part away, with the containers; the engine's start then clears up after them.
func (x *trial) reboot(containers []*container) {
	x.t.Helper()
	x.stop(syscall.SIGKILL)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := x.h.RebootBare(ctx); err != nil {
		x.t.Fatal(err)
	}
	x.firewall()
	x.start()
	for _, c := range containers {
		c.sandbox = ""
		x.stale(c)
	}
}

// command runs a kuryr command, which may be the one that is killed; then it is run once more.
func (x *trial) command(args ...string) {
	x.t.Helper()
	argv := append([]string{"env"}, append(append(x.env(), kuryr), args...)...)
	r := x.host(argv...)
	if x.armed && !r.OK() && (r.Code == -1 || r.Code == 137) {
		x.disarm("kuryr " + strings.Join(args, " "))
		r = x.host(append([]string{kuryr}, args...)...)
	}
	if !r.OK() {
		x.t.Fatal(r)
	}
}

// sdnRestore takes a backup and puts it back, with Kuryr stopped in between.
func (x *trial) sdnRestore() {
	x.t.Helper()
	file := filepath.Join(x.t.TempDir(), "backup")
	if r := x.host(kuryr, "sdn", "backup", file); !r.OK() {
		x.t.Fatal(r)
	}
	x.stop(syscall.SIGTERM)
	x.command("sdn", "restore", file)
	x.start()
	x.check("after a restore")
}

// purge takes away everything that Kuryr ever made on the host.
func (x *trial) purge() {
	x.t.Helper()
	x.stop(syscall.SIGTERM)
	x.command("down", "--purge")
	x.same("after kuryr down --purge", nil)
}

// check asks Kuryr whether store and kernel agree. Links are deleted behind the callers'
// backs, so it may take a moment.
func (x *trial) check(when string) {
	x.t.Helper()
	var r privatehost.Result
	for deadline := time.Now().Add(goneWithin); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if x.armed {
			select {
			case <-x.h.KuryrGone():
				x.disarm("the background")
				x.start()
			default:
			}
		}
		if r = x.host(kuryr, "sdn", "check"); r.OK() {
			return
		}
	}
	x.t.Errorf("store and kernel differ %s: %s", when, r)
}

func (x *trial) snapshot() privatehost.Snapshot {
	x.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	s, err := x.h.Snapshot(ctx)
	if err != nil {
		x.t.Fatal(err)
	}
	return s
}

// ours are names and addresses that belong to one object: in rules and set elements nothing of the kind may stay.
var ours = regexp.MustCompile(`\b(kr|tap)[-_]?[0-9a-f]{4,}|10\.9[0-4]\.|fd90::`)

// nothingLeft looks at the running Kuryr's host by ip and nft, and at its lists.
func (x *trial) nothingLeft() {
	x.t.Helper()
	x.same("with everything gone", func(line string) bool {
		if strings.HasPrefix(line, "+ "+privatehost.Firewall) {
			return ours.MatchString(line)
		}
		return !strings.Contains(line, privatehost.Firewall) && !strings.Contains(line, privatehost.Forwarding)
	})
	// Kuryr finishes what it was killed in while it serves already.
	var left []string
	for deadline := time.Now().Add(goneWithin); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if left = x.left(); len(left) == 0 {
			return
		}
	}
	x.t.Errorf("with everything gone there is still:\n%s", strings.Join(left, "\n"))
}

// left lists what Kuryr has. The network that stands for the outside is the host's, not a container's, and stays.
func (x *trial) left() (list []string) {
	x.t.Helper()
	outside := map[any]bool{}
	for _, noun := range []string{"network", "subnet", "port", "router"} {
		r := x.host(kuryr, noun, "list", "-o", "json")
		var objects []map[string]any
		if err := json.Unmarshal([]byte(r.Stdout), &objects); err != nil || !r.OK() {
			x.t.Fatalf("kuryr %s list with everything gone: %v %s", noun, err, r)
		}
		for _, o := range objects {
			if o["router:external"] == true {
				outside[o["id"]] = true
			} else if !outside[o["network_id"]] {
				list = append(list, fmt.Sprintf("%s %v", noun, o))
			}
		}
	}
	return list
}

// same compares the host with how it was before Kuryr's first start; counts says which differences do (all where nil).
func (x *trial) same(when string, counts func(string) bool) {
	x.t.Helper()
	var diff []string
	for deadline := time.Now().Add(goneWithin); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		diff = nil
		for _, line := range x.bare.Diff(x.snapshot()) {
			if counts == nil || counts(line) {
				diff = append(diff, line)
			}
		}
		if len(diff) == 0 {
			return
		}
	}
	x.t.Errorf("the host is not as it was, %s:\n%s", when, strings.Join(diff, "\n"))
}
