//go:build linux

package netavark

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/kube/cni"
)

// daemon is a socket that answers one call of kuryr-cni.
type daemon struct {
	socket string
	asked  chan cni.Call
}

func newDaemon(t *testing.T, out string, failure error) daemon {
	t.Helper()
	d := daemon{filepath.Join(t.TempDir(), "s"), make(chan cni.Call, 1)}
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		defer close(d.asked)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		request, reply, err := cni.ReadRequest(conn)
		if err != nil {
			t.Error(err)
			return
		}
		call, err := request.Call()
		if err != nil {
			t.Error(err)
		}
		d.asked <- call
		_ = reply(conn, []byte(out), failure)
	}()
	return d
}

func run(t *testing.T, input string, args ...string) (int, string) {
	t.Helper()
	var out bytes.Buffer
	code := Plugin{Version: "7", Stdin: strings.NewReader(input), Stdout: &out}.Run(t.Context(), args)
	return code, out.String()
}

// same compares JSON.
func same(t *testing.T, what, got, want string) {
	t.Helper()
	var a, b any
	if json.Unmarshal([]byte(got), &a) != nil || json.Unmarshal([]byte(want), &b) != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("%s is\n%s\nwant\n%s", what, got, want)
	}
}

// networkOf is the network of the plugin API's documentation, without what Kuryr refuses.
func networkOf(socket, more string) string {
	return fmt.Sprintf(`{"name": "example1", "driver": "kuryr", "ipv6_enabled": false, "dns_enabled": true,
		"future": [1], "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
		"options": {"network": "green", "socket": %q}%s}`, socket, more)
}

// execOf is the input of setup and teardown in the plugin API's documentation.
func execOf(network string) string {
	return `{
    "container_id": "752947ff91f961eb3cb47ffe9315016979f3ffbec09e4d96a4fae3fb03391697",
    "container_name": "testctr",
    "port_mappings": [
        {"container_port": 80, "host_ip": "127.0.0.1", "host_port": 8080, "protocol": "tcp", "range": 1},
        {"container_port": 53, "host_ip": "", "host_port": 5300, "protocol": "tcp,udp", "range": 2}
    ],
    "network": ` + network + `,
    "network_options": {
        "aliases": ["752947ff91f9"],
        "interface_name": "eth0",
        "static_ips": ["10.88.0.50"],
        "static_mac": "aa:bb:cc:dd:aa:00"
    }
}`
}

const namespace = "/run/netns/a"

func TestInfo(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"info"}, nil} {
		code, out := run(t, "", args...)
		if code != 0 {
			t.Errorf("exit status %d", code)
		}
		same(t, "info", out, `{"version": "7", "api_version": "1.0.0"}`)
	}
}

// TestSetup translates a call and its result as the plugin API's documentation shows
// them.
func TestSetup(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, `{"cniVersion": "1.1.0",
		"interfaces": [{"name": "tap1"}, {"name": "eth0", "mac": "aa:bb:cc:dd:aa:00", "sandbox": "/run/netns/a"}],
		"ips": [{"interface": 1, "address": "10.88.0.50/16", "gateway": "10.88.0.1"},
			{"interface": 1, "address": "fd00::5/64"}],
		"dns": {"nameservers": ["10.88.0.2"]}}`, nil)
	code, out := run(t, execOf(networkOf(d.socket, "")), "setup", namespace)
	if code != 0 {
		t.Fatalf("exit status %d\n%s", code, out)
	}
	same(t, "status block", out, `{"dns_search_domains": [], "dns_server_ips": ["10.88.0.2"], "interfaces": {"eth0": {
		"mac_address": "aa:bb:cc:dd:aa:00",
		"subnets": [{"gateway": "10.88.0.1", "ipnet": "10.88.0.50/16"}, {"ipnet": "fd00::5/64"}]}}}`)
	c := <-d.asked
	ours := strings.HasPrefix(c.Container, "752947ff") && c.Namespace == namespace && c.Interface == "eth0"
	if c.Verb != cni.Add || !ours {
		t.Errorf("called as %+v", c)
	}
	conf, err := cni.ParseConfig(c.Verb, c.Config)
	if err != nil || conf.Name != "example1" || conf.Network != "green" {
		t.Errorf("configuration %s, %v", c.Config, err)
	}
	want := []cni.PortMapping{
		{HostPort: 8080, ContainerPort: 80, Protocol: "tcp", HostIP: "127.0.0.1"},
		{HostPort: 5300, ContainerPort: 53, Protocol: "tcp"}, {HostPort: 5301, ContainerPort: 54, Protocol: "tcp"},
		{HostPort: 5300, ContainerPort: 53, Protocol: "udp"}, {HostPort: 5301, ContainerPort: 54, Protocol: "udp"},
	}
	r := conf.Runtime
	if !reflect.DeepEqual(r.PortMappings, want) || fmt.Sprint(r.IPs) != "[10.88.0.50]" || r.MAC != "aa:bb:cc:dd:aa:00" {
		t.Errorf("asked for %+v", r)
	}
}

// TestManyPorts publishes the range of a voice server.
func TestManyPorts(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, `{"cniVersion": "1.1.0"}`, nil)
	input := fmt.Sprintf(`{"container_id": "a", "network": %s, "network_options": {"interface_name": "eth0"},
		"port_mappings": [{"container_port": 10000, "host_port": 10000, "protocol": "udp", "range": 10001}]}`,
		networkOf(d.socket, ""))
	if code, out := run(t, input, "setup", namespace); code != 0 {
		t.Fatalf("exit status %d\n%s", code, out)
	}
	c := <-d.asked
	conf, err := cni.ParseConfig(c.Verb, c.Config)
	if err != nil {
		t.Fatal(err)
	}
	last := cni.PortMapping{HostPort: 20000, ContainerPort: 20000, Protocol: "udp"}
	if all := conf.Runtime.PortMappings; len(all) != 10001 || all[10000] != last {
		t.Errorf("asked for %d ports", len(all))
	}
}

// TestNoPorts refuses mappings of ports that do not exist, and too many.
func TestNoPorts(t *testing.T) {
	t.Parallel()
	for mapping, says := range map[string]string{
		`"container_port": 1, "host_port": 1, "range": -1`:                  "range",
		`"container_port": 1, "host_port": 1, "range": 9223372036854775807`: "range",
		`"container_port": 1, "host_port": 0, "range": 3`:                   "host_port",
		`"container_port": 1, "host_port": -1, "range": 3`:                  "host_port",
		`"container_port": 1, "host_port": 65535, "range": 2`:               "host_port",
		`"container_port": 1, "host_port": 65536`:                           "host_port",
		`"container_port": 65535, "host_port": 1, "range": 2`:               "container_port",
		`"container_port": 0, "host_port": 1`:                               "container_port",
		`"container_port": 1, "host_port": 1, "range": 65535`:               "more than",
		`"container_port": 1, "host_port": 1, "range": 20000`:               "more ports",
	} {
		code, out := run(t, `{"port_mappings": [{`+mapping+`}]}`, "setup", namespace)
		if code != 1 || !strings.Contains(out, "port_mappings") || !strings.Contains(out, says) {
			t.Errorf("%s: exit status %d, want an error that names %q\n%s", mapping, code, says, out)
		}
	}
	list, err := mappings([]portMapping{
		{ContainerPort: 80}, {ContainerPort: 65535, HostPort: 65535, Range: 1},
	})
	if err != nil || len(list) != 2 {
		t.Errorf("ports %v, %v", list, err)
	}
}

func TestTeardown(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, "", nil)
	if code, out := run(t, execOf(networkOf(d.socket, "")), "teardown", namespace); code != 0 || out != "" {
		t.Errorf("exit status %d, output %q", code, out)
	}
	if c := <-d.asked; c.Verb != cni.Del || c.Namespace != namespace || c.Interface != "eth0" {
		t.Errorf("called as %+v", c)
	}
}

// TestCreate keeps what it does not know, and takes DNS and addresses from netavark.
func TestCreate(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, "", nil)
	input := networkOf(d.socket, "")
	code, out := run(t, input, "create")
	if code != 0 {
		t.Fatalf("exit status %d\n%s", code, out)
	}
	want := strings.Replace(input, `"dns_enabled": true`, `"dns_enabled": false, "ipam_options": {"driver": "none"}`, 1)
	same(t, "network", out, want)
	c := <-d.asked
	if conf, err := cni.ParseConfig(c.Verb, c.Config); c.Verb != cni.Status || err != nil || conf.Network != "green" {
		t.Errorf("called as %s with %s, %v", c.Verb, c.Config, err)
	}
}

// TestRefused shows errors in netavark's form. The daemon is not asked.
func TestRefused(t *testing.T) {
	t.Parallel()
	long := `"` + strings.Repeat("x", cni.MaxInput) + `"`
	mapping := `"port_mappings": [{"container_port": 1, "host_port": 1, "range": 65535}]`
	for _, row := range []struct {
		input string
		args  []string
		says  string
	}{
		{"", []string{"destroy"}, "destroy"},
		{"", []string{"setup"}, "network namespace"},
		{"", []string{"create"}, "unexpected end"},
		{"{", []string{"create"}, "unexpected end"},
		{"null", []string{"create"}, "name"},
		{"[]", []string{"create"}, "array"},
		{`{"name": 1}`, []string{"create"}, "name"},
		{long, []string{"create"}, "bytes"},
		{networkOf("/s", `, "subnets": [{"subnet": "10.0.0.0/16"}]`), []string{"create"}, "subnets"},
		{networkOf("/s", `, "routes": [{"destination": "10.0.0.0/16"}]`), []string{"create"}, "routes"},
		{networkOf("/s", `, "network_dns_servers": ["10.0.0.1"]`), []string{"create"}, "network_dns_servers"},
		{networkOf("/s", `, "ipam_options": {"driver": "host-local"}`), []string{"create"}, "ipam_options.driver"},
		{networkOf("/s", `, "internal": true`), []string{"create"}, "internal"},
		{networkOf("/s", `, "network_interface": "enp1"`), []string{"create"}, "network_interface"},
		{networkOf("/s", `, "options": {"custom": "opt"}`), []string{"create"}, "options.custom"},
		{networkOf("/absent", ""), []string{"create"}, "does not run"},
		{"{}", []string{"setup", namespace}, "CNI_CONTAINERID"},
		{"[", []string{"teardown", namespace}, "unexpected end"},
		{execOf(networkOf("/absent", "")), []string{"setup", namespace}, "does not run"},
		{execOf(networkOf("/absent", "")), []string{"setup", "netns"}, "CNI_NETNS"},
		{`{` + mapping + `}`, []string{"setup", namespace}, "port_mappings[0]"},
		{`{"network_options": {"options": {"mode": "x"}}}`, []string{"setup", namespace}, "options.mode"},
	} {
		code, out := run(t, row.input, row.args...)
		var e struct{ Error string }
		if err := json.Unmarshal([]byte(out), &e); err != nil || code != 1 || !strings.Contains(e.Error, row.says) {
			t.Errorf("%v: exit status %d, want an error that names %q\n%s", row.args, code, row.says, out)
		}
	}
}

// TestDaemonRefuses shows the daemon's error.
func TestDaemonRefuses(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, "", cni.NotReady.Errorf("network green: the SDN has none"))
	code, out := run(t, networkOf(d.socket, ""), "create")
	if code != 1 {
		t.Errorf("exit status %d", code)
	}
	same(t, "error", out, `{"error": "not available (code 50): network green: the SDN has none"}`)
}
