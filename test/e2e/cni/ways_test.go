//go:build e2e

package cni_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/test/e2e/privatehost"
)

// givenArgs name a port that nobody else knows.
const givenArgs = "CNI_ARGS=K8S_POD_NAME=nginx;PORT_UUID=a28c7404-7495-4557-b7fc-3e293508dbc6," +
	"IPV4=10.9.0.15/16,GW=10.9.0.1,PORT_TYPE=tap"

// What CNI_ARGS say is bound without a daemon and with one, which knows what was bound
// without it; the interface's own MAC stays the same.
func TestGiven(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.must(t, "ip", "netns", "add", "a")
	before := r.snapshot(t)
	add := func() string {
		t.Helper()
		code, out := r.plugin(t, "ADD", "a", `"args": {}`, givenArgs)
		if code != 0 || !strings.Contains(out, `"address": "10.9.0.15/16"`) {
			t.Fatalf("ADD: exit status %d\n%s", code, out)
		}
		return r.must(t, "ip", "-n", "a", "-br", "link", "show", "eth0")
	}
	expect := func(verb string) {
		t.Helper()
		if code, out := r.plugin(t, verb, "a", `"args": {}`, givenArgs); code != 0 {
			t.Errorf("%s: exit status %d\n%s", verb, code, out)
		}
	}
	r.kill(t)
	alone := add()
	r.must(t, "ip", "link", "show", "tapa28c7404-74")
	expect("CHECK")
	r.start(t)
	if with := add(); with != alone {
		t.Errorf("without the daemon %q, with it %q", alone, with)
	}
	expect("CHECK")
	expect("DEL")
	r.clean(t, before)
	add()
	r.kill(t)
	expect("DEL")
	r.start(t)
	r.clean(t, before)
}

// netavark runs the plugin as netavark does.
func (r *rig) netavark(t *testing.T, input string, args ...string) string {
	t.Helper()
	program := filepath.Join(filepath.Dir(kuryr), "kuryr-netavark")
	return r.must(t, append([]string{"sh", "-c", `printf %s "$1" | "$0" "$2" $3`, program, input}, args...)...)
}

// A container of podman 5 gets a port by netavark's plugin, at the address that it asks
// for, and nothing is left of it, also where its DEL comes while the daemon does not run.
func TestNetavark(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, ns := range []string{"a", "b"} {
		r.must(t, "ip", "netns", "add", ns)
	}
	before := r.snapshot(t)
	network := `{"name": "blue", "id": "2f25", "driver": "kuryr",
		"dns_enabled": true, "internal": false, "ipv6_enabled": false}`
	created := r.netavark(t, network, "create", "")
	if !strings.Contains(created, `"ipam_options":{"driver":"none"}`) {
		t.Errorf("created as %s", created)
	}
	of := func(container, address string) string {
		return fmt.Sprintf(`{"container_id": %q, "container_name": "x", "port_mappings": null, "network": %s,
			"network_options": {"interface_name": "eth0", "static_ips": [%q]}}`, container, created, address)
	}
	for container, address := range map[string]string{"a": "10.1.0.50", "b": "10.1.0.51"} {
		status := r.netavark(t, of(container, address), "setup", "/run/netns/"+container)
		if !strings.Contains(status, `"ipnet":"`+address+`/24"`) {
			t.Errorf("status block of %s: %s", container, status)
		}
	}
	r.must(t, "ip", "netns", "exec", "a", "ping", "-c", "1", "-W", "5", "10.1.0.51")
	if out := r.netavark(t, of("a", "10.1.0.50"), "teardown", "/run/netns/a"); out != "" {
		t.Errorf("teardown prints %s", out)
	}
	r.kill(t)
	r.netavark(t, of("b", "10.1.0.51"), "teardown", "/run/netns/b")
	if r.do(t, "ip", "-n", "b", "link", "show", "eth0").OK() {
		t.Error("eth0 stays while the daemon does not run")
	}
	r.start(t)
	r.clean(t, before)
}

// routed gives the rig's network a router with a way out.
func (r *rig) routed(t *testing.T) {
	t.Helper()
	var external struct{ Networks []struct{ ID string } }
	r.api(t, http.MethodGet, "networks?router:external=true", "", &external)
	if len(external.Networks) != 1 {
		t.Fatalf("external networks: %+v", external)
	}
	router := r.create(t, "routers", fmt.Sprintf(
		`{"router": {"external_gateway_info": {"network_id": %q}}}`, external.Networks[0].ID,
	))
	var subnets struct{ Subnets []struct{ ID string } }
	r.api(t, http.MethodGet, "subnets?network_id="+r.network, "", &subnets)
	for _, s := range subnets.Subnets {
		r.api(t, http.MethodPut, "routers/"+router+"/add_router_interface", fmt.Sprintf(`{"subnet_id": %q}`, s.ID), nil)
	}
}

// A port of the host leads to the container, from the outside, also after the daemon was
// killed; it is free again afterwards.
func TestPublished(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.routed(t)
	for _, ns := range []string{"a", "b"} {
		r.must(t, "ip", "netns", "add", ns)
	}
	before := r.snapshot(t)
	mapping := `CAP_ARGS={"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}`
	r.add(t, "a", mapping)
	_, err := r.StartService(
		t.Context(), "web", nil,
		[]string{"ip", "netns", "exec", "a", "busybox", "httpd", "-f", "-p", "80", "-h", "/etc"},
		nil,
	)
	if err != nil {
		t.Fatal(err)
	}
	get := func() bool {
		script := fmt.Sprintf(
			`exec 3<>/dev/tcp/%s/8080 && printf 'GET /debian_version HTTP/1.0\r\n\r\n' >&3 && `+
				`read -r line <&3 && [ -n "$line" ]`,
			privatehost.HostIPv4.Addr(),
		)
		return r.Outside(t.Context(), "timeout", "5", "bash", "-c", script).OK()
	}
	r.eventually(t, get)
	r.kill(t)
	if !get() {
		t.Error("it is not reached without a daemon")
	}
	r.start(t)
	if out := r.tool(t, "add", "b", mapping); out.OK() || !strings.Contains(out.Stderr, "8080") {
		t.Errorf("the host's port is given twice: %s", out)
	}
	r.mustTool(t, "del", "a", mapping)
	if get() {
		t.Error("it is still published")
	}
	r.add(t, "b", mapping)
	r.mustTool(t, "del", "b", mapping)
	r.clean(t, before)
}
