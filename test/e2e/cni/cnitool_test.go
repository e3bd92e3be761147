//go:build e2e

package cni_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// tool runs cnitool for a namespace that `ip netns` has made.
func (r *rig) tool(t *testing.T, verb, ns string, env ...string) privatehost.Result {
	t.Helper()
	argv := append([]string{"env", "CNI_PATH=" + plugins, "NETCONFPATH=" + lists}, env...)
	return r.do(t, append(argv, cnitool, verb, "blue", "/run/netns/"+ns)...)
}

// add is cnitool's ADD, and gives the result.
func (r *rig) add(t *testing.T, ns string, env ...string) types100.Result {
	t.Helper()
	out := r.tool(t, "add", ns, env...)
	if !out.OK() {
		t.Fatal(out)
	}
	var result types100.Result
	if err := json.Unmarshal([]byte(out.Stdout), &result); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return result
}

func (r *rig) mustTool(t *testing.T, verb, ns string, env ...string) {
	t.Helper()
	if out := r.tool(t, verb, ns, env...); !out.OK() {
		t.Fatal(out)
	}
}

func (r *rig) ping(t *testing.T, ns, to string) {
	t.Helper()
	r.must(t, "ip", "netns", "exec", ns, "ping", "-c", "1", "-W", "5", to)
}

// Two containers talk in both families; one has the address and MAC that were asked for;
// CHECK sees what is changed by hand; nothing is left.
func TestCnitool(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.must(t, "ip", "netns", "add", "a")
	r.must(t, "ip", "netns", "add", "b")
	before := r.snapshot(t)
	first := r.add(t, "a")
	second := r.add(
		t, "b",
		`CAP_ARGS={"ips": ["10.1.0.77/24", "fd00:1::77"], "mac": "02:00:00:00:00:77", `+
			`"bandwidth": {"ingressRate": 80000000, "egressRate": 80000000}}`,
	)
	if got := second.IPs[0].Address.String(); got != "10.1.0.77/24" || second.IPs[1].Address.IP.String() != "fd00:1::77" {
		t.Errorf("the addresses asked for are not those given: %+v", second.IPs)
	}
	if mac := second.Interfaces[len(second.Interfaces)-1].Mac; mac != "02:00:00:00:00:77" {
		t.Errorf("MAC %s", mac)
	}
	r.ping(t, "a", "10.1.0.77")
	r.ping(t, "a", "fd00:1::77")
	r.ping(t, "b", first.IPs[0].Address.IP.String())
	for _, p := range r.ports(t) {
		if limited := p.MAC == "02:00:00:00:00:77"; (p.Policy != "") != limited {
			t.Errorf("port %s has QoS policy %q", p.DeviceID, p.Policy)
		}
	}
	r.mustTool(t, "check", "a")
	r.must(t, "ip", "-n", "a", "link", "set", "eth0", "mtu", "1300")
	if out := r.tool(t, "check", "a"); out.OK() || !strings.Contains(out.Stderr, "its MTU is 1300") {
		t.Errorf("CHECK does not see another MTU: %s", out)
	}
	r.must(t, "ip", "-n", "a", "link", "set", "eth0", "mtu", "1500")
	r.must(t, "ip", "-n", "b", "addr", "del", "10.1.0.77/24", "dev", "eth0")
	if out := r.tool(t, "check", "b"); out.OK() || !strings.Contains(out.Stderr, "it lacks the address 10.1.0.77/24") {
		t.Errorf("CHECK does not see a missing address: %s", out)
	}
	for _, ns := range []string{"a", "b", "b"} { // DEL of what is gone succeeds
		r.mustTool(t, "del", ns)
	}
	r.clean(t, before)
}

// What is refused leaves nothing, and says what was wrong.
func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.must(t, "ip", "netns", "add", "a")
	r.must(t, "ip", "netns", "add", "b")
	r.must(t, "ip", "-n", "b", "link", "add", "eth0", "type", "veth", "peer", "name", "other")
	before := r.snapshot(t)
	for _, row := range []struct {
		name, ns string
		env      []string
		exit     int
		want     string
	}{
		{"interface in use", "b", nil, 102, "eth0"},
		{"interface too long", "a", []string{"CNI_IFNAME=abcdefghijklmnop"}, 14, "CNI_IFNAME"},
		{"namespace gone", "gone", nil, 13, "CNI_NETNS"},
		{"malformed arguments", "a", []string{"CNI_ARGS=IgnoreUnknown=1;MTU=none"}, 14, "MTU"},
		{"unknown argument", "a", []string{"CNI_ARGS=COLOUR=red"}, 14, "COLOUR"},
		{"address outside", "a", []string{`CAP_ARGS={"ips": ["192.0.2.9/24"]}`}, 17, "192.0.2.9"},
		{"unknown port", "a", []string{"CNI_ARGS=PORT_UUID=a28c7404-7495-4557-b7fc-3e293508dbc6"}, 100, "a28c7404"},
	} {
		code, out := r.plugin(t, "ADD", row.ns, `"runtimeConfig": `+capabilities(row.env), row.env...)
		if code != row.exit || !strings.Contains(out, row.want) {
			t.Errorf("%s: exit status %d, want %d and %q\n%s", row.name, code, row.exit, row.want, out)
		}
	}
	if code, out := r.plugin(t, "DEL", "a", `"args": {}`); code != 0 {
		t.Errorf("DEL before ADD: %d %s", code, out)
	}
	r.clean(t, before)
}

func capabilities(env []string) string {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "CAP_ARGS="); ok {
			return v
		}
	}
	return "{}"
}

// plugin runs kuryr-cni itself for a container named as the namespace, and gives the exit status and what it printed.
func (r *rig) plugin(t *testing.T, verb, ns, more string, env ...string) (int, string) {
	t.Helper()
	vars := append(
		[]string{
			"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + ns, "CNI_NETNS=/run/netns/" + ns,
			"CNI_IFNAME=eth0", "CNI_PATH=" + plugins,
		},
		env...,
	)
	config := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "blue", "type": "kuryr", %s}`, more)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), limit)
	defer cancel()
	out := r.ExecIn(ctx, strings.NewReader(config), append(append([]string{"env"}, vars...), plugins+"/kuryr")...)
	return out.Code, out.Stdout + out.Stderr
}

// A daemon that is killed loses nothing; what is taken away while there is none is taken
// away when it is back; GC takes what nobody has.
func TestKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	before := r.snapshot(t)
	namespaces := []string{"a", "b", "c", "d"}
	for _, ns := range namespaces {
		r.must(t, "ip", "netns", "add", ns)
	}
	for _, ns := range []string{"a", "b"} {
		r.add(t, ns)
	}
	address := r.add(t, "c").IPs[0].Address.IP.String()
	r.kill(t)
	r.ping(t, "a", address)
	if code, out := r.plugin(t, "ADD", "d", `"args": {}`); code != 21 || !strings.Contains(out, `"code": 11`) {
		t.Errorf("ADD without a daemon: exit status %d\n%s", code, out)
	}
	r.mustTool(t, "del", "a")
	if code, out := r.plugin(t, "STATUS", "", `"args": {}`); code != 50 {
		t.Errorf("STATUS without a daemon: exit status %d\n%s", code, out)
	}
	r.start(t)
	r.eventually(t, func() bool { return len(r.ports(t)) == 2 })
	r.mustTool(t, "check", "b")
	r.ping(t, "b", address)
	if code, out := r.plugin(t, "GC", "", `"cni.dev/valid-attachments": []`); code != 0 {
		t.Errorf("GC: exit status %d\n%s", code, out)
	}
	if left := r.ports(t); len(left) != 0 {
		t.Errorf("GC has left %+v", left)
	}
	for _, ns := range namespaces {
		r.must(t, "ip", "netns", "del", ns)
	}
	r.clean(t, before)
}
