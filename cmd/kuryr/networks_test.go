//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/kube/cni"
)

// One daemon serves Docker and CNI, on a network that a command makes and deletes.
func TestCreateNetwork(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	stop, _ := m.up(t)
	if out := m.must(t, "status"); !strings.Contains(out, m.path("run/node.sock")) {
		t.Errorf("status does not name the socket of CNI\n%s", out)
	}
	m.must(t, "network", "create", "blue", "--subnet", "10.10.0.0/24", "--subnet", "fd00:10::/64",
		"--gateway", "10.10.0.254")
	if out := m.must(t, "router", "list"); !strings.Contains(out, "blue") || !strings.Contains(out, "10.10.0.254") {
		t.Errorf("routers:\n%s", out)
	}
	m.must(t, "network", "create", "green", "--subnet", "10.20.0.0/24", "--internal")
	if out := m.must(t, "router", "list"); strings.Contains(out, "green") {
		t.Errorf("an internal network has a router:\n%s", out)
	}
	m.must(t, "network", "delete", "green")

	container := nstest.New(t)
	call := cni.Call{
		Container: "a", Interface: "eth0", Namespace: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(container)),
		Config: []byte(`{"cniVersion": "1.0.0", "name": "blue", "type": "kuryr"}`),
	}
	do := func(verb string) []byte {
		t.Helper()
		call.Verb = verb
		out, err := cni.Ask(m.path("run/node.sock"), call, time.Minute)
		if err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
		return out
	}
	var result types100.Result
	if out := do(cni.Add); json.Unmarshal(out, &result) != nil || len(result.IPs) != 2 || result.IPs[0].Gateway == nil {
		t.Errorf("ADD: %s", out)
	}
	for text, args := range map[string][]string{
		"uses it":                 {"network", "delete", "blue"},
		`network "blue": exists`:  {"network", "create", "blue", "--subnet", "10.30.0.0/24"},
		"--subnet: missing":       {"network", "create", "red"},
		`--subnet "10.30.0.1/24"`: {"network", "create", "red", "--subnet", "10.30.0.1/24"},
		`--gateway "10.31.0.1"`:   {"network", "create", "red", "--subnet", "10.30.0.0/24", "--gateway", "10.31.0.1"},
		"an internal network": {
			"network", "create", "red", "--subnet", "10.30.0.0/24", "--gateway", "10.30.0.1", "--internal",
		},
		`name or id "none"`:     {"network", "delete", "none"},
		"overlaps 10.30.0.0/24": {"network", "create", "red", "--subnet", "10.30.0.0/24", "--subnet", "10.30.0.0/25"},
	} {
		if code, _, complaint := m.run(t, args...); code == exitOK || !strings.Contains(complaint, text) {
			t.Errorf("%v: exit %d, %s; want %q", args, code, complaint, text)
		}
	}
	if out := m.must(t, "network", "list"); strings.Contains(out, "red") {
		t.Errorf("a network that failed is left:\n%s", out)
	}
	do(cni.Del)
	m.must(t, "network", "delete", "blue")
	for _, noun := range []string{"network", "router", "subnet"} {
		if out := m.must(t, noun, "list"); strings.Contains(out, "blue") || strings.Contains(out, "10.10.0") {
			t.Errorf("%ss are left:\n%s", noun, out)
		}
	}
	for _, path := range []string{"state/cni/owed", "state/cni/bound"} {
		if err := os.MkdirAll(m.path(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(m.path(path+"/a.json"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m.must(t, "down", "--purge")
	stop()
	for _, path := range []string{"state", "run"} {
		if _, err := os.Stat(m.path(path)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

// Another process that serves CNI already does not keep Docker from being served.
func TestSocketOfCNIInUse(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	m.env = append(m.env, "KURYR_NODE_SOCKET="+m.path("other.sock"))
	other := newMachine(t)
	other.env = append(other.env, "KURYR_NODE_SOCKET="+m.path("other.sock"))
	m.up(t)
	other.up(t)
	if out := other.must(t, "status"); strings.Contains(out, "other.sock") || !strings.Contains(out, other.plugin) {
		t.Errorf("status of the second:\n%s", out)
	}
}
