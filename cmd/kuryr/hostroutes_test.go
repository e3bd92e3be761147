//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/internal/nstest"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What a project behind the API gives its networks for ranges leads nothing of the host's to it, nor does what an older Kuryr left of it. Root's own are reached.
func TestHostRoutesAreItsOwn(t *testing.T) {
	nstest.Require(t)
	m := newMachine(t)
	m.sdn(t)
	made := func(path, noun, attributes string) (id string) {
		t.Helper()
		status, answer := m.ask(t, "POST", path, `{"`+noun+`":{`+attributes+`}}`)
		var out map[string]struct{ ID string }
		if err := json.Unmarshal([]byte(answer), &out); err != nil || status != http.StatusCreated {
			t.Fatalf("%s: %d %s", path, status, answer)
		}
		return out[noun].ID
	}
	var external struct{ Networks []api.Network }
	if _, answer := m.ask(t, "GET", "/v2.0/networks?router:external=true", ""); json.Unmarshal([]byte(answer), &external) != nil || len(external.Networks) != 1 {
		t.Fatal(answer)
	}
	routers := map[string]string{}
	for project, ranges := range map[string][]string{"": {"10.5.0.0/24"}, "demo": {"1.1.1.0/24", "8.0.0.0/6", "128.0.0.0/1"}} {
		owner := `"project_id":"` + project + `"`
		router := made("/v2.0/routers", "router", owner+`,"name":"edge","external_gateway_info":{"network_id":"`+external.Networks[0].ID+`"}`)
		routers[project] = router
		for _, r := range ranges {
			network := made("/v2.0/networks", "network", owner)
			subnet := made("/v2.0/subnets", "subnet", owner+`,"network_id":"`+network+`","ip_version":4,"cidr":"`+r+`"`)
			if status, answer := m.ask(t, "PUT", "/v2.0/routers/"+router+"/add_router_interface", `{"subnet_id":"`+subnet+`"}`); status != http.StatusOK {
				t.Fatalf("%d %s", status, answer)
			}
		}
	}
	ways := func() (out []string) {
		t.Helper()
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		for errors.Is(err, netlink.ErrDumpInterrupted) { // a route came or went
			routes, err = netlink.RouteList(nil, netlink.FAMILY_V4)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range routes {
			if ones, _ := r.Dst.Mask.Size(); r.Gw != nil && ones < 32 {
				out = append(out, r.Dst.String())
			}
		}
		return out
	}
	if got := strings.Join(ways(), " "); got != "10.5.0.0/24" {
		t.Errorf("the host has routes into routers for %s, want 10.5.0.0/24 alone", got)
	}
	if out := m.must(t, "status"); !strings.Contains(out, "8.0.0.0/6 of router edge: the router is a project's") || strings.Contains(out, "10.5.0.0/24") {
		t.Errorf("status:\n%s", out)
	}
	if _, out, _ := m.run(t, "doctor"); strings.Contains(out, "does not reach") {
		t.Errorf("doctor:\n%s", out)
	}
	m.checkClean(t)

	for _, link := range ourLinks(t) {
		if link.Attrs().Alias != "kuryr:router:"+routers["demo"] {
			continue
		}
		var router struct{ Router api.Router }
		if _, answer := m.ask(t, "GET", "/v2.0/routers/"+routers["demo"], ""); json.Unmarshal([]byte(answer), &router) != nil {
			t.Fatal(answer)
		}
		_, dst, err := net.ParseCIDR("1.1.1.0/24")
		if err != nil {
			t.Fatal(err)
		}
		gw := net.ParseIP(router.Router.Gateway.FixedIPs[0].IPAddress)
		if err := netlink.RouteAdd(&netlink.Route{Dst: dst, Gw: gw, LinkIndex: link.Attrs().Index, Flags: unix.RTNH_F_ONLINK, Protocol: 75}); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(ways()); got != 2 {
		t.Fatalf("%d routes, want one more", got)
	}
	m.must(t, "sdn", "reconcile")
	if got := strings.Join(ways(), " "); got != "10.5.0.0/24" {
		t.Errorf("after a reconcile the host has routes into routers for %s", got)
	}
	m.must(t, "down", "--force", "--purge")
}
