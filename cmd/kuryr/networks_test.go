//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/kuryr/kuryr/kube/cni"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
	"github.com/kuryr/kuryr/sdn/neutronapi"
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

var errKilled = errors.New("killed")

// killedAfter is the transport of a process that is killed after so many writes.
type killedAfter struct {
	http.RoundTripper
	writes int
}

func (k *killedAfter) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		if k.writes == 0 {
			return nil, errKilled
		}
		k.writes--
	}
	return k.RoundTripper.RoundTrip(r)
}

// A create that was killed at any step is completed by a repeat, as is one that succeeded.
func TestCreateNetworkRepeated(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "sdn.db")
	store, err := local.Open(ctx, local.Options{Path: path, Host: "here", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	handler := neutronapi.As(rootCaller, neutronapi.NewHandler(store, neutronapi.Options{}))
	client := func(transport http.RoundTripper) *api.Client {
		return &api.Client{HTTP: &http.Client{Transport: transport}, Base: "http://kuryr"}
	}
	c := client(inProcess{handler})
	n := newNetwork{name: "my blue", subnets: []string{"10.10.0.0/24", "fd00:10::/64"}, gateways: []string{"10.10.0.254"}}
	for _, other := range []sdn.NetworkSpec{
		{Base: sdn.Base{Name: n.name, Project: "other"}},
		{Base: sdn.Base{Name: "taken"}},
	} {
		if _, err := store.EnsureNetwork(ctx, other); err != nil {
			t.Fatal(err)
		}
	}
	const last = 6 // network, subnets, router, interfaces
	for writes := range last + 1 {
		made, err := n.create(ctx, client(&killedAfter{inProcess{handler}, writes}))
		if killed := writes < last; killed != errors.Is(err, errKilled) || !killed && err != nil {
			t.Fatalf("after %d writes: %v", writes, err)
		}
		if made, err = n.create(ctx, c); err != nil {
			t.Fatalf("repeat after %d writes: %v", writes, err)
		}
		routers, err := api.List(ctx, c, api.Routers, url.Values{"name": {n.name}})
		if err != nil || len(routers) != 1 || len(routers[0].Interfaces) != 2 || len(made.Subnets) != 2 {
			t.Fatalf("after %d writes: network %+v, routers %+v, %v", writes, made, routers, err)
		}
		for _, differs := range []newNetwork{
			{name: n.name, subnets: []string{"10.11.0.0/24"}},
			{name: n.name, subnets: n.subnets, gateways: []string{"10.10.0.1"}},
			{name: n.name, subnets: n.subnets, internal: true},
			{name: "taken", subnets: n.subnets},
		} {
			if _, err := differs.create(ctx, c); err == nil || !strings.Contains(err.Error(), "exists") {
				t.Errorf("create %+v: %v", differs, err)
			}
		}
		if _, err := store.UpdateRouter(ctx, sdn.ID(routers[0].ID), sdn.RouterPatch{
			Patch: sdn.Patch{Name: new("renamed")},
		}); err != nil {
			t.Fatal(err)
		}
		if err := deleteNetwork(ctx, c, made); err != nil {
			t.Fatal(err)
		}
		all, err := api.List(ctx, c, api.Routers, nil)
		if err != nil || len(all) != 0 {
			t.Fatalf("routers are left: %+v, %v", all, err)
		}
	}
}

// Only what kuryr network create made is deleted.
func TestRefuseOthers(t *testing.T) {
	t.Parallel()
	network := func(description string) api.Network {
		return api.Network{Common: api.Common{ID: "1", Name: "db", Description: description}}
	}
	key := func(kind string) string { return sdn.Key{Owner: "0a1b2c3d", Kind: kind, Name: "77"}.String() }
	for description, want := range map[string]string{
		newNetwork{name: "db"}.key().String(): "",
		"":                                    "not made by kuryr network create",
		key("docker-network"):                 "docker network rm 77",
		key("node-network"):                   "kuryr/0a1b2c3d/node-network/77 owns it",
		subnetKey(network(""), netip.MustParsePrefix("10.0.0.0/24")).String(): "owns it",
	} {
		err := refuseOthers(userNames{}, network(description), "db")
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", description, err, want)
		}
	}
}
