//go:build e2e

// Package kurma_test has real OCI runtimes (crun, runc, podman) put containers on
// networks of `kuryr kurma`, on private hosts, whose plugins are the two images of `make
// kurma-images` and some that are ill-behaved. It checks packets, what users are told,
// and that nothing is left in SDN, kernel and files. It looks into Kuryr only through its
// programs and APIs.
//
// Every test boots a host of its own. A host without an engine boots in 0.2 seconds, so a
// pool would save nothing. The end of each test checks that nothing is left (end).
package kurma_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

var kuryr string // the program to test; the others are beside it

const (
	limit       = 2 * time.Minute // of a command
	kurmaSocket = "/run/kuryr/kurma.sock"
	sdnSocket   = "/run/kuryr/sdn.sock"
	config      = "/etc/kuryr/kurma.json"
)

func TestMain(m *testing.M) {
	privatehost.Init()
	kuryr = privatehost.Program("../../../bin/kuryr", "make kurma-images")
	os.Exit(m.Run())
}

// beside is another program, or image, of the same build.
func beside(name string) string { return filepath.Join(filepath.Dir(kuryr), name) }

// rig is a private host with the embedded SDN, which has the network blue, and `kuryr kurma`.
type rig struct {
	*privatehost.Host
	t       *testing.T
	runtime string // crun or runc: of the plugins and of the pods
	mapped  int    // root of the user namespaces of bundles; 0: the host's user namespace
	program string // of the daemon
	kurma   *privatehost.Service
	bare    privatehost.Snapshot // before the daemon's first start
}

// newRig starts a host whose networks are these entries of pod_networks.
func newRig(t *testing.T, runtime string, entries ...string) *rig {
	t.Helper()
	r := &rig{Host: privatehost.Start(t, privatehost.Options{}), t: t, runtime: runtime, program: kuryr}
	if _, err := r.serve("kuryr-sdn", nil, "/run/kuryr/kuryr.sock", "/readyz", kuryr, "sdn"); err != nil {
		t.Fatal(err)
	}
	network := r.create("networks", `{"network": {"name": "blue"}}`)
	r.create("subnets", fmt.Sprintf(`{"subnet": {"network_id": %q, "ip_version": 4, "cidr": "10.1.0.0/24"}}`, network))
	r.configure(entries...)
	r.bare = r.sight()
	t.Cleanup(r.end)
	return r
}

// end removes the networks, and with them the plugins' control groups, which are the
// machine's. Nothing of pods and plugins may be left then.
func (r *rig) end() {
	if r.kurma == nil {
		return
	}
	_ = r.kurma.Stop(syscall.SIGKILL, limit)
	r.configure()
	r.program = kuryr
	r.start()
	for _, p := range r.pods() {
		r.do(kuryr, "kurma", "del", p.UUID)
	}
	r.eventually("no network is left", func() bool { return len(r.networks()) == 0 })
	_ = r.kurma.Stop(syscall.SIGTERM, limit)
	r.same(r.bare, privatehost.Namespaces, "mounts", "containers", "pins", "leases", "ports")
}

// configure writes the configuration, whose reading is the daemon's start or SIGHUP.
func (r *rig) configure(entries ...string) {
	r.write(config, `{"pod_networks": [`+strings.Join(entries, ",\n")+"]}\n")
}

func (r *rig) write(path, text string) {
	r.t.Helper()
	if err := os.MkdirAll(r.Path(filepath.Dir(path)), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(r.Path(path), []byte(text), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

// start runs the daemon and returns when it answers.
func (r *rig) start(env ...string) {
	r.t.Helper()
	if err := r.tryStart(env...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) tryStart(env ...string) (err error) {
	r.kurma, err = r.serve(
		"kuryr-kurma", env, kurmaSocket, "/healthz", r.program, "kurma", "--kurma-config", config,
		"--kurma-runtime", r.runtime,
		"--kurma-volumes", "blue:/run/kuryr=/run/kuryr,blue:/etc/kuryr=/etc/kuryr:ro,blue:/run/openvswitch=/run/openvswitch")
	return err
}

// serve runs a daemon and returns when it answers at its socket.
func (r *rig) serve(name string, env []string, socket, path string, argv ...string) (*privatehost.Service, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), limit)
	defer cancel()
	client := r.UnixClient(socket)
	return r.StartService(ctx, name, env, argv, func(ctx context.Context) bool {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kuryr"+path, nil)
		if err != nil {
			return false
		}
		response, err := client.Do(request)
		if err != nil {
			return false
		}
		_ = response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}

func (r *rig) stop(sig syscall.Signal) {
	r.t.Helper()
	if err := r.kurma.Stop(sig, limit); err != nil {
		r.t.Fatal(err)
	}
}

// do runs a command on the host.
func (r *rig) do(argv ...string) privatehost.Result {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), limit)
	defer cancel()
	return r.Exec(ctx, argv...)
}

func (r *rig) must(argv ...string) string {
	r.t.Helper()
	result := r.do(argv...)
	if !result.OK() {
		r.t.Fatal(result)
	}
	return result.Out()
}

// eventually waits for what has no event here.
func (r *rig) eventually(what string, is func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(limit)
	for !is() {
		if time.Now().After(deadline) {
			r.t.Fatalf("not within %s: %s", limit, what)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// ask runs `kuryr kurma …` and reads its JSON.
func (r *rig) ask(into any, args ...string) {
	r.t.Helper()
	out := r.must(append(append([]string{kuryr, "kurma"}, args...), "-o", "json")...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		r.t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// network is what the tests look at of a network, and pod of a pod.
type (
	network struct {
		Name, State, Reason string
		PID                 int `json:"pid"`
		Pods                int
	}
	pod struct {
		UUID, State, Container string
		Attachments            []struct {
			Network   struct{ Name string }
			Interface string
			Result    struct {
				IPs []struct{ Address string }
			}
		}
	}
)

func (r *rig) networks() (all []network) { r.t.Helper(); r.ask(&all, "network"); return all }

func (r *rig) pods() (all []pod) { r.t.Helper(); r.ask(&all, "list"); return all }

// running waits until all networks, or those named, run.
func (r *rig) running(names ...string) {
	r.t.Helper()
	var all []network
	defer func() {
		if r.t.Failed() {
			r.t.Logf("networks: %+v", all)
		}
	}()
	r.eventually("networks run", func() bool {
		all = r.networks()
		return len(all) > 0 && !slices.ContainsFunc(all, func(n network) bool {
			return n.State != "running" && (len(names) == 0 || slices.Contains(names, n.Name))
		})
	})
}

// address is the address that a pod has on a network.
func (p pod) address(t *testing.T, network string) string {
	t.Helper()
	for _, a := range p.Attachments {
		if a.Network.Name == network && len(a.Result.IPs) > 0 {
			bare, _, _ := strings.Cut(a.Result.IPs[0].Address, "/")
			return bare
		}
	}
	t.Fatalf("pod has no address of %s: %+v", network, p)
	return ""
}

// api asks the SDN.
func (r *rig) api(method, path, body string, v any) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://kuryr/v2.0/"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	response, err := r.UnixClient(sdnSocket).Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		r.t.Fatalf("%s %s: %s", method, path, response.Status)
	}
	if err := json.NewDecoder(response.Body).Decode(v); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) create(nouns, body string) string {
	r.t.Helper()
	var made map[string]struct{ ID string }
	r.api(http.MethodPost, nouns, body, &made)
	return made[strings.TrimSuffix(nouns, "s")].ID
}

// ports are the devices of pods' ports in the SDN.
func (r *rig) ports() (devices []string) {
	r.t.Helper()
	var all struct {
		Ports []struct {
			DeviceID string `json:"device_id"`
		}
	}
	r.api(http.MethodGet, "ports", "", &all)
	for _, p := range all.Ports {
		if strings.HasPrefix(p.DeviceID, "kurma/") {
			devices = append(devices, p.DeviceID)
		}
	}
	return devices
}

// sight is what can be seen of a host that pods and plugins must leave as it was.
func (r *rig) sight() privatehost.Snapshot {
	r.t.Helper()
	s, err := r.Snapshot(context.WithoutCancel(r.t.Context()))
	if err != nil {
		r.t.Fatal(err)
	}
	// A daemon's own mounts, those of containers, and what they keep.
	for section, argv := range map[string][]string{
		"mounts": {"sh", "-c", "cut -d' ' -f5 /proc/self/mountinfo | grep -E '/kurma|/kuryr/kurma' || true"},
		"containers": {
			"sh", "-c",
			"find /run/kuryr/kurma/plugins /run/crun /run/runc -mindepth 1 -maxdepth 1 " +
				"2>/dev/null || true",
		},
		"pins":   {"sh", "-c", "ls /run/kuryr/kurma/netns 2>/dev/null || true"},
		"leases": {"sh", "-c", "find /var/lib/kuryr/kurma -path '*networks*' -name '10.*' 2>/dev/null || true"},
	} {
		s[section] = strings.Fields(r.must(argv...))
	}
	// The namespace of the SDN's network stays with the network.
	s[privatehost.Namespaces] = slices.DeleteFunc(
		s[privatehost.Namespaces],
		func(path string) bool { return strings.HasPrefix(path, "/run/kuryr/netns/") },
	)
	// The folder of the pins is a mount of its own, which stays: pins made later must be seen through it.
	s["mounts"] = slices.DeleteFunc(s["mounts"], func(path string) bool { return path == "/run/kuryr/kurma/netns" })
	s["ports"] = r.ports()
	slices.Sort(s["ports"])
	return s
}

// same wants the host to come to look as it did.
func (r *rig) same(before privatehost.Snapshot, sections ...string) {
	r.t.Helper()
	var diff []string
	deadline := time.Now().Add(limit)
	for {
		if diff = before.Diff(r.sight(), sections...); len(diff) == 0 {
			return
		}
		if time.Now().After(deadline) {
			r.t.Errorf("left over:\n%s", strings.Join(diff, "\n"))
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// podsGone are the sections of a sight that pods must leave as they were while networks
// run: a bridge of CNI's stays, and gets the address of its gateway.
var podsGone = []string{"pins", "leases", "ports", privatehost.Namespaces}
