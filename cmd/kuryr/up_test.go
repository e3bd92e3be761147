//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/admin"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netlink"
)

const (
	networkID  = "1111111111111111111111111111111111111111111111111111111111111111"
	endpointID = "2222222222222222222222222222222222222222222222222222222222222222"
)

// call asks the plugin as the engine does.
func (m *machine) call(t *testing.T, method, body string) map[string]any {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", m.plugin)
	}}}
	response, err := client.Post("http://plugin/"+method, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var out map[string]any
	if err := json.NewDecoder(response.Body).Decode(&out); err != nil {
		t.Fatal(err)
	}
	if out["Err"] != nil && out["Err"] != "" {
		t.Fatalf("%s: %v", method, out["Err"])
	}
	return out
}

// plug makes a network and an endpoint on it, as `docker run` does up to the join.
func (m *machine) plug(t *testing.T) {
	t.Helper()
	pool := m.call(t, "IpamDriver.RequestPool", `{"AddressSpace":"local_scope","Pool":"10.77.0.0/24"}`)["PoolID"].(string)
	m.call(t, "IpamDriver.RequestAddress", `{"PoolID":"`+pool+`","Options":{"RequestAddressType":"com.docker.network.gateway"}}`)
	m.call(t, "NetworkDriver.CreateNetwork", `{"NetworkID":"`+networkID+`","Options":{},"IPv4Data":[{"AddressSpace":"local_scope","Pool":"10.77.0.0/24","Gateway":"10.77.0.1/24"}],"IPv6Data":[]}`)
	address := m.call(t, "IpamDriver.RequestAddress", `{"PoolID":"`+pool+`"}`)["Address"].(string)
	m.call(t, "NetworkDriver.CreateEndpoint", `{"NetworkID":"`+networkID+`","EndpointID":"`+endpointID+`","Interface":{"Address":"`+address+`"},"Options":{}}`)
}

func forwarding(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// The whole life: up, a network, status and the rest of the commands, an end that leaves the kernel alone, up again, down, up
// from the store, and down with everything.
func TestLife(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	before := forwarding(t)
	stop, _ := m.up(t)
	if now := forwarding(t); now != before {
		t.Errorf("forwarding went from %s to %s though no router needs it", before, now)
	}
	m.plug(t)
	if now := forwarding(t); now != "1" {
		t.Errorf("forwarding is %s though a router needs it", now)
	}

	out := m.must(t, "status")
	for _, want := range []string{"ready", "1 router, ", "0 QoS policies, ", "2 networks, "} {
		if !strings.Contains(out, want) {
			t.Errorf("status lacks %q:\n%s", want, out)
		}
	}
	if out := m.must(t, "status", "-o", "json"); strings.Contains(out, "null") {
		t.Errorf("status has an empty list that is none:\n%s", out)
	}
	if out := m.must(t, "topology"); !strings.Contains(out, "10.77.0.0/24 gateway 10.77.0.1") || !strings.Contains(out, "endpoint 222222222222") {
		t.Errorf("topology:\n%s", out)
	}
	forms := map[string]string{"svg": "<svg ", "dot": "graph kuryr {\n", "json": "{\n", "yaml": "host: testhost\n"}
	for form, begins := range forms {
		out := m.must(t, "topology", "-o", form)
		if !strings.HasPrefix(out, begins) || strings.Contains(out, "null") {
			t.Errorf("topology as %s:\n%s", form, out)
		}
	}
	for _, args := range [][]string{
		{"topology", "-o", "json", "--file", m.path("topology")},
		{"sdn", "backup", m.path("copy")},
		{"support-bundle", m.path("bundle")},
	} {
		file := args[len(args)-1]
		if out := m.must(t, args...); !strings.Contains(out, "wrote "+file+" (") {
			t.Errorf("%q says %s", args, out)
		}
		code, _, complaint := m.run(t, args...)
		if code != exitError || !strings.Contains(complaint, file+" exists: --force overwrites it") {
			t.Errorf("%q again: exit %d, %s", args, code, complaint)
		}
		m.must(t, append(args, "--force")...)
	}
	var ports []api.Port
	if err := json.Unmarshal([]byte(m.must(t, "port", "list", "-o", "json", "--filter", "device_id="+endpointID)), &ports); err != nil || len(ports) != 1 {
		t.Fatalf("%d ports, %v", len(ports), err)
	}
	if out := m.must(t, "__complete", "port", "show", ""); !strings.Contains(out, ports[0].ID+"\t") || !strings.HasSuffix(out, ":4\n") {
		t.Errorf("completion:\n%s", out)
	}
	if out := m.must(t, "port", "show", ports[0].ID); !strings.Contains(out, ports[0].MACAddress) {
		t.Errorf("port show:\n%s", out)
	}
	m.checkClean(t)
	if status, answer := m.ask(t, "GET", "/v2.0/ports?device_id="+endpointID, ""); status != http.StatusOK || !strings.Contains(answer, ports[0].ID) {
		t.Errorf("the API at its socket: %d %s", status, answer)
	}

	if code, _, complaint := m.run(t, "up"); code != exitError || !strings.Contains(complaint, "another kuryr has it open") {
		t.Errorf("a second kuryr: exit %d, %s", code, complaint)
	}
	if code, _, complaint := m.run(t, "sdn", "restore", "/dev/null"); code != exitError || complaint == "" {
		t.Errorf("restore under a running kuryr: exit %d, %s", code, complaint)
	}

	// It ends and the kernel stays as it is; the next one finds nothing to mend.
	links := uplinks(t)
	if links == 0 {
		t.Fatal("the router has no link in the host")
	}
	if code := stop(); code != 0 {
		t.Fatalf("ended with %d", code)
	}
	if got := uplinks(t); got != links {
		t.Errorf("%d links in the host after its end, %d before", got, links)
	}
	if code, _, complaint := m.run(t, "status"); code != exitError || !strings.HasPrefix(complaint, "kuryr: kuryr is not running: nothing answers at "+m.socket) {
		t.Errorf("status without kuryr: exit %d, %s", code, complaint)
	}
	_, ended := m.up(t)
	if out := m.must(t, "status"); !strings.Contains(out, "the kernel was as the store says") {
		t.Errorf("status of the second:\n%s", out)
	}

	// Down refuses to cut a container off, unless forced.
	if code, _, complaint := m.run(t, "down"); code != exitError || !strings.Contains(complaint, "--force") {
		t.Fatalf("down with a container: exit %d, %s", code, complaint)
	}
	m.must(t, "down", "--force")
	if code := ended(); code != 0 {
		t.Fatalf("ended with %d after down", code)
	}
	if got := uplinks(t); got != 0 {
		t.Errorf("%d links in the host after down", got)
	}
	if spaces, _ := os.ReadDir(m.path("run/netns")); len(spaces) != 0 {
		t.Errorf("namespaces after down: %v", spaces)
	}

	// The store brings everything back.
	_, ended = m.up(t)
	if got := uplinks(t); got != links {
		t.Errorf("%d links in the host after the next up, %d before", got, links)
	}
	m.checkClean(t)
	m.must(t, "sdn", "backup", m.path("backup"))
	m.must(t, "down", "--force", "--purge")
	if code := ended(); code != 0 {
		t.Fatalf("ended with %d after down --purge", code)
	}
	if now := forwarding(t); now != before {
		t.Errorf("forwarding is %s after down --purge, was %s", now, before)
	}
	for _, dir := range []string{"state", "run"} {
		if _, err := os.Stat(m.path(dir)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", dir, err)
		}
	}

	// Down of nothing is down, and a backup is a way back.
	m.must(t, "down", "--purge")
	m.must(t, "sdn", "restore", m.path("backup"))
	m.up(t)
	if out := m.must(t, "network", "list"); !strings.Contains(out, "1500") {
		t.Errorf("networks after the restore:\n%s", out)
	}
	m.checkClean(t)
}

func (m *machine) checkClean(t *testing.T) {
	t.Helper()
	if out := m.must(t, "sdn", "check"); !strings.Contains(out, "the kernel is as the store says") {
		t.Errorf("check:\n%s", out)
	}
}

// What cannot be started ends the whole with one sentence, and leaves nothing that hinders the next start.
func TestUpFails(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	if err := os.MkdirAll(m.path("plugins"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.plugin, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, complaint := m.run(t, "up")
	if code != exitError || !strings.Contains(complaint, "kuryr: docker's plugin socket: socket "+m.plugin+": a file that is not a socket is there: remove it\n") {
		t.Fatalf("exit %d: %s", code, complaint)
	}
	if err := os.Remove(m.plugin); err != nil {
		t.Fatal(err)
	}
	m.up(t)
	m.must(t, "down", "--purge")
}

// What is asked for too early is refused, since the start would make again what is taken down.
func TestDownWhileStarting(t *testing.T) {
	t.Parallel()
	if _, err := (&daemon{}).Down(t.Context(), admin.DownOptions{}); err == nil || !strings.Contains(err.Error(), "try again") {
		t.Errorf("error = %v", err)
	}
}

// Down works without a running kuryr.
func TestDownAlone(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	stop, _ := m.up(t)
	m.plug(t)
	stop()
	if code, _, complaint := m.run(t, "down"); code != exitError || !strings.Contains(complaint, "--force") {
		t.Fatalf("down with a container: exit %d, %s", code, complaint)
	}
	m.must(t, "down", "--force", "--purge")
	if got := uplinks(t); got != 0 {
		t.Errorf("%d links in the host", got)
	}
	if _, err := os.Stat(m.path("state")); !os.IsNotExist(err) {
		t.Errorf("state is still there: %v", err)
	}
}

// A kernel that lost something is mended on demand.
func TestReconcileMends(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	m.up(t)
	m.plug(t)
	for _, link := range ourLinks(t) {
		if err := netlink.LinkDel(link); err != nil {
			t.Fatal(err)
		}
	}
	if code, out, _ := m.run(t, "sdn", "check"); code != exitError || !strings.Contains(out, "want") {
		t.Errorf("check: exit %d\n%s", code, out)
	}
	m.must(t, "sdn", "reconcile")
	m.checkClean(t)
	m.must(t, "down", "--force", "--purge")
}

func ourLinks(t *testing.T) (out []netlink.Link) {
	t.Helper()
	links, err := netlink.LinkList()
	for errors.Is(err, netlink.ErrDumpInterrupted) { // a link came or went
		links, err = netlink.LinkList()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, "kr") {
			out = append(out, l)
		}
	}
	return out
}

func uplinks(t *testing.T) int { return len(ourLinks(t)) }

// Who has configured another SDN and starts `kuryr up` is told that it is not served.
func TestUpOfAnotherProvider(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	m.env = append(m.env, "KURYR_PROVIDER=neutron")
	var daemon *app
	stop, _ := m.start(t, func(ctx context.Context, a *app) int { daemon = a; return a.run(ctx, []string{"up"}) })
	stop()
	if said := daemon.err.(*buffer).String(); !strings.Contains(said, "serves the embedded SDN") || !strings.Contains(said, "provider=neutron") {
		t.Errorf("it said:\n%s", said)
	}
}
