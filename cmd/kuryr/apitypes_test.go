//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/sdn/local"
	"github.com/kuryr/kuryr/sdn/neutronapi"
)

type attributes = map[string]any

// attributesOf takes what encodes an object apart.
func attributesOf(t *testing.T, encoded any) (out attributes) {
	t.Helper()
	data, err := json.Marshal(encoded)
	if err == nil {
		err = json.Unmarshal(data, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// apiWorld is the embedded SDN behind its API, and a client.
type apiWorld struct {
	*testing.T
	c *api.Client
}

func newAPIWorld(t *testing.T) apiWorld {
	t.Helper()
	store, err := local.Open(t.Context(), local.Options{
		Path: filepath.Join(t.TempDir(), "sdn.db"), Host: "h", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	handler := neutronapi.NewHandler(store, neutronapi.Options{MaxPage: 4})
	server := httptest.NewServer(neutronapi.As(neutronapi.Caller{Role: neutronapi.Admin}, handler))
	t.Cleanup(func() {
		server.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return apiWorld{t, &api.Client{HTTP: server.Client(), Base: server.URL}}
}

// raw is what the server answers below a member.
func (w apiWorld) raw(path, member string) any {
	w.Helper()
	response, err := w.c.HTTP.Get(w.c.Base + "/v2.0/" + path)
	if err != nil {
		w.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	var body attributes
	if err := errors.Join(err, json.Unmarshal(data, &body)); err != nil || response.StatusCode != http.StatusOK {
		w.Fatalf("%s: %s %s %v", path, response.Status, data, err)
	}
	return body[member]
}

func (w apiWorld) same(what string, got, want any) {
	w.Helper()
	if !reflect.DeepEqual(got, want) {
		w.Errorf("%s as the client reads it\n got %v\nwant %v", what, got, want)
	}
}

// made creates an object and compares it with what the server shows of it.
func made[E any](w apiWorld, noun api.Resource[E], path string, body attributes) (id string) {
	w.Helper()
	object, err := api.Create(w.Context(), w.c, noun, body)
	if err != nil {
		w.Fatal(err)
	}
	id = attributesOf(w.T, object)["id"].(string)
	read(w, noun, path, id)
	return id
}

// read compares an object, alone and in a list, with what the server shows of it: the client's type
// has all attributes and no others.
func read[E any](w apiWorld, noun api.Resource[E], path, id string) {
	w.Helper()
	shown := w.raw(path+"/"+id, noun.Member)
	one, err := api.Get(w.Context(), w.c, noun, id)
	if err != nil {
		w.Fatal(err)
	}
	all, err := api.List(w.Context(), w.c, noun, url.Values{"id": {id}})
	if err != nil || len(all) != 1 {
		w.Fatalf("%d %s with the id %s: %v", len(all), noun.Collection, id, err)
	}
	w.same(noun.Member, attributesOf(w.T, one), shown)
	w.same(noun.Member+" in a list", attributesOf(w.T, all[0]), shown)
}

// The types of package api have the attributes of the server's tables.
func TestAPITypes(t *testing.T) {
	w := newAPIWorld(t)
	external, err := api.List(t.Context(), w.c, api.Networks, url.Values{"router:external": {"true"}})
	if err != nil || len(external) != 1 {
		t.Fatalf("%d external networks: %v", len(external), err)
	}
	network := made(w, api.Networks, "networks", attributes{"name": "blue", "description": "kuryr/a/b/c"})
	made(w, api.SubnetPools, "subnetpools", attributes{
		"name": "p", "prefixes": []string{"10.0.0.0/8"}, "default_quota": 5, "is_default": true,
	})
	subnet := made(w, api.Subnets, "subnets", attributes{
		"network_id": network, "ip_version": 4, "cidr": "10.1.0.0/24", "dns_nameservers": []string{"192.0.2.1"},
		"host_routes":              []attributes{{"destination": "192.0.2.0/24", "nexthop": "10.1.0.9"}},
		"kuryr:reserved_addresses": []string{"10.1.0.8"}, "service_types": []string{"compute:x", "network:floatingip"},
	})
	port := made(w, api.Ports, "ports", attributes{
		"network_id": network, "binding:host_id": "h", "device_owner": "compute:x", "binding:profile": attributes{"a": 1},
		"trusted": true, "allowed_address_pairs": []attributes{{"ip_address": "10.9.0.0/24"}},
	})
	router := made(w, api.Routers, "routers", attributes{
		"name": "r", "external_gateway_info": attributes{"network_id": external[0].ID},
	})
	if err := w.c.RouterInterface(t.Context(), router, subnet, true); err != nil {
		t.Fatal(err)
	}
	read(w, api.Routers, "routers", router)
	floating := made(w, api.FloatingIPs, "floatingips", attributes{"floating_network_id": external[0].ID})
	w.forwards(floating, port)
	made(w, api.SecurityGroups, "security-groups", attributes{"name": "g"})
	w.balancers(made(w, api.Subnets, "subnets", attributes{"network_id": network, "ip_version": 4, "cidr": "10.2.0.0/24"}))
	if _, err := api.Get(t.Context(), w.c, api.Ports, "none"); !isAPIError(err, http.StatusNotFound, "PortNotFound") {
		t.Errorf("the error for a port that is absent: %v", err)
	}
}

func isAPIError(err error, status int, kind string) bool {
	var refused *api.Error
	return errors.As(err, &refused) && refused.Status == status && refused.Type == kind && refused.Message != ""
}

func (w apiWorld) forwards(floating, port string) {
	w.Helper()
	path := "floatingips/" + floating + "/port_forwardings"
	for _, ports := range []string{
		`"external_port":80,"internal_port":80`, `"external_port_range":"90:91","internal_port_range":"90:91"`,
	} {
		body := `{"port_forwarding":{"protocol":"tcp","internal_port_id":"` + port + `",` + ports + `}}`
		w.send(path, body)
	}
	all, err := w.c.PortForwardings(w.Context(), floating)
	if err != nil || len(all) != 2 {
		w.Fatalf("%d port forwardings: %v", len(all), err)
	}
	for i, one := range w.raw(path, "port_forwardings").([]any) {
		w.same("port forwarding", attributesOf(w.T, all[i]), one)
	}
}

func (w apiWorld) balancers(subnet string) {
	w.Helper()
	balancer := made(w, api.LoadBalancers, "lbaas/loadbalancers", attributes{"vip_subnet_id": subnet, "name": "lb"})
	listener := made(w, api.Listeners, "lbaas/listeners", attributes{
		"loadbalancer_id": balancer, "protocol": "TCP", "protocol_port": 80, "tags": []string{"t"},
	})
	pool := made(w, api.Pools, "lbaas/pools", attributes{
		"listener_id": listener, "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN",
		"session_persistence": attributes{"type": "SOURCE_IP", "persistence_timeout": 5},
	})
	w.send("lbaas/pools/"+pool+"/members", `{"member":{"address":"10.2.0.5","protocol_port":80}}`)
	members, err := w.c.PoolMembers(w.Context(), pool)
	if err != nil || len(members) != 1 {
		w.Fatalf("%d members: %v", len(members), err)
	}
	w.same("member", attributesOf(w.T, members[0]), w.raw("lbaas/pools/"+pool+"/members/"+members[0].ID, "member"))
	read(w, api.LoadBalancers, "lbaas/loadbalancers", balancer)
	read(w, api.Listeners, "lbaas/listeners", listener)
}

// send creates an object.
func (w apiWorld) send(path, body string) {
	w.Helper()
	request, err := http.NewRequestWithContext(w.Context(), http.MethodPost, w.c.Base+"/v2.0/"+path, strings.NewReader(body))
	if err != nil {
		w.Fatal(err)
	}
	response, err := w.c.HTTP.Do(request)
	if err != nil {
		w.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		w.Fatalf("%s: %s", path, response.Status)
	}
}

// A list is all pages of the server, whose largest has 4 objects.
func TestAPIPages(t *testing.T) {
	w := newAPIWorld(t)
	for range 9 {
		if _, err := api.Create(t.Context(), w.c, api.Networks, attributes{"project_id": "p"}); err != nil {
			t.Fatal(err)
		}
	}
	found, err := api.List(t.Context(), w.c, api.Networks, url.Values{"project_id": {"p"}})
	if err != nil || len(found) != 9 {
		t.Errorf("the client lists %d of 9: %v", len(found), err)
	}
}
