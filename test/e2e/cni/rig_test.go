//go:build e2e

// Package cni_test has real runtimes of CNI (cnitool, podman, containerd) put containers
// on networks of `kuryr node`, on private hosts, and checks packets, what CNI is told,
// and that nothing is left in the SDN and the kernel. It looks into Kuryr only through
// its programs and the SDN's API.
//
// KURYR_BIN names the program to test (bin/kuryr); kuryr-cni is beside it.
//
// Every test boots a host of its own. A host without an engine boots in 0.2 seconds, so a
// pool would save nothing. Each test checks that nothing is left (clean).
package cni_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

var kuryr, cnitool string // paths of the programs

const limit = 2 * time.Minute // of a command

func TestMain(m *testing.M) {
	kuryr = privatehost.Program("../../../bin/kuryr", "make build")
	dir, err := os.MkdirTemp("", "kuryr-cni-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	cnitool = filepath.Join(dir, "cnitool")
	build := exec.Command("go", "build", "-o", cnitool, "github.com/containernetworking/cni/cnitool")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build cnitool: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

const (
	sdnSocket  = "/run/kuryr/sdn.sock"
	nodeSocket = "/run/kuryr/node.sock"
	plugins    = "/opt/cni/bin"
	lists      = "/etc/cni/net.d"
)

// rig is a private host with `kuryr node` on the embedded SDN, and the network blue.
type rig struct {
	*privatehost.Host
	node    *privatehost.Service
	program string
	network string // id
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Host: privatehost.Start(t, privatehost.Options{}), program: kuryr}
	r.must(t, "mount", "-t", "tmpfs", "tmpfs", "/opt")
	r.must(t, "mkdir", "-p", plugins, lists)
	r.must(t, "cp", filepath.Join(filepath.Dir(kuryr), "kuryr-cni"), plugins+"/kuryr")
	r.must(t, "cp", filepath.Join(filepath.Dir(kuryr), "kuryr-cni-api"), plugins+"/kuryr-cni-api")
	r.start(t)
	r.network = r.create(t, "networks", `{"network": {"name": "blue"}}`)
	for _, subnet := range []string{`"ip_version": 4, "cidr": "10.1.0.0/24"`, `"ip_version": 6, "cidr": "fd00:1::/64"`} {
		r.create(t, "subnets", fmt.Sprintf(`{"subnet": {"network_id": %q, %s}}`, r.network, subnet))
	}
	return r
}

// start runs the daemon and returns when it is ready.
func (r *rig) start(t *testing.T, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var err error
	argv := []string{r.program, "node", "--node-conflist", lists + "/10-blue.conflist", "--node-network", "blue"}
	client := r.UnixClient("/run/kuryr/kuryr.sock")
	r.node, err = r.StartService(ctx, "kuryr-node", env, argv, func(ctx context.Context) bool {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://kuryr/readyz", nil)
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
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) kill(t *testing.T) {
	t.Helper()
	if err := r.node.Stop(syscall.SIGKILL, limit); err != nil {
		t.Fatal(err)
	}
}

// do runs a command on the host.
func (r *rig) do(t *testing.T, argv ...string) privatehost.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	defer cancel()
	return r.Exec(ctx, argv...)
}

func (r *rig) must(t *testing.T, argv ...string) string {
	t.Helper()
	result := r.do(t, argv...)
	if !result.OK() {
		t.Fatal(result)
	}
	return result.Out()
}

// api asks the SDN and reads the answer into v.
func (r *rig) api(t *testing.T, method, path, body string, v any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://kuryr/v2.0/"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := r.UnixClient(sdnSocket).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode >= 300 {
		t.Fatalf("%s %s: %s", method, path, response.Status)
	}
	if v == nil {
		return
	}
	if err := json.NewDecoder(response.Body).Decode(v); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) create(t *testing.T, nouns, body string) string {
	t.Helper()
	var made map[string]struct{ ID string }
	r.api(t, http.MethodPost, nouns, body, &made)
	return made[strings.TrimSuffix(nouns, "s")].ID
}

// port is what the tests look at of a port.
type port struct {
	ID       string `json:"id"`
	DeviceID string `json:"device_id"`
	MAC      string `json:"mac_address"`
	Policy   string `json:"qos_policy_id"`
	FixedIPs []struct {
		Address string `json:"ip_address"`
	} `json:"fixed_ips"`
}

// ports are those of containers.
func (r *rig) ports(t *testing.T) (list []port) {
	t.Helper()
	var all struct{ Ports []port }
	r.api(t, http.MethodGet, "ports", "", &all)
	for _, p := range all.Ports {
		if strings.HasPrefix(p.DeviceID, "cni/") {
			list = append(list, p)
		}
	}
	return list
}

// clean wants nothing of containers left: no port, no policy, no record, and links as they were.
func (r *rig) clean(t *testing.T, before privatehost.Snapshot) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		left := r.left(t, before)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("left over:\n%s", strings.Join(left, "\n"))
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (r *rig) left(t *testing.T, before privatehost.Snapshot) (left []string) {
	t.Helper()
	for _, p := range r.ports(t) {
		left = append(left, "port "+p.DeviceID)
	}
	var policies struct{ Policies []struct{ Name string } }
	r.api(t, http.MethodGet, "qos/policies", "", &policies)
	for _, p := range policies.Policies {
		left = append(left, "policy "+p.Name)
	}
	for _, folder := range []string{"owed", "bound"} {
		files, _ := filepath.Glob(r.Path("/var/lib/kuryr/cni/" + folder + "/*"))
		left = append(left, files...)
	}
	// A port's host end is in the network's namespace, which the SDN pins.
	pins, _ := filepath.Glob(r.Path("/run/kuryr/netns/*"))
	for _, pin := range pins {
		out := r.do(t, "nsenter", "--net="+strings.TrimPrefix(pin, r.Path("/")[:len(r.Path("/"))-1]), "ip", "-o", "link")
		for line := range strings.Lines(out.Stdout) {
			if strings.Contains(line, ": tap") {
				left = append(left, line)
			}
		}
	}
	now, err := r.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return append(left, before.Diff(now, privatehost.Links, privatehost.Addresses)...)
}

func (r *rig) snapshot(t *testing.T) privatehost.Snapshot {
	t.Helper()
	s, err := r.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}
