package neutronapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/sdn/local"
	"github.com/kuryr/kuryr/sdn/neutronapi"
)

// many is how many clients ask at once.
const many = 64

type object = map[string]any

// api is the embedded SDN behind the API, over a real connection, asked as somebody by the header X-As: project/role.
type api struct {
	t   testing.TB
	url string
	as  string
}

func serveStore(t testing.TB) *api {
	t.Helper()
	store, err := local.Open(t.Context(), local.Options{Path: filepath.Join(t.TempDir(), "sdn.db"), Host: "here", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	handler := neutronapi.NewHandler(store, neutronapi.Options{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		project, role, _ := strings.Cut(r.Header.Get("X-As"), "/")
		neutronapi.As(neutronapi.Caller{Project: project, Role: neutronapi.Role(role)}, handler).ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.Close()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return &api{t: t, url: server.URL + "/v2.0", as: "operator/admin"}
}

// of is the same, asked as somebody else.
func (a *api) of(who string) *api {
	other := *a
	other.as = who
	return &other
}

// ask sends a request and gives status and body. header is pairs of names and values.
func (a *api) ask(method, path string, body any, header ...string) (int, object) {
	a.t.Helper()
	var sent io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			a.t.Error(err)
		}
		sent = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path, sent)
	if err != nil {
		a.t.Error(err)
		return 0, nil
	}
	r.Header.Set("X-As", a.as)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		a.t.Error(err)
		return 0, nil
	}
	defer response.Body.Close()
	var out object
	data, _ := io.ReadAll(response.Body)
	if len(bytes.TrimSpace(data)) > 0 && json.Unmarshal(data, &out) != nil {
		a.t.Errorf("%s %s: no JSON: %s", method, path, data)
	}
	return response.StatusCode, out
}

// make makes an object and gives it; item is its word in bodies.
func (a *api) make(path, item string, body object) object {
	a.t.Helper()
	status, answer := a.ask("POST", path, object{item: body})
	if status != http.StatusCreated {
		a.t.Fatalf("POST %s %v: %d %v", path, body, status, answer)
	}
	return answer[item].(object)
}

func id(o object) string { return o["id"].(string) }

// Many clients that ask for ports of one subnet at once get an address each, and those that count in one object with If-Match lose no count.
func TestManyClients(t *testing.T) {
	t.Parallel()
	const each = 3
	a := serveStore(t)
	network := id(a.make("/networks", "network", object{"name": "shared", "description": "0"}))
	subnet := id(a.make("/subnets", "subnet", object{"network_id": network, "ip_version": 4, "cidr": "10.0.0.0/24"}))
	var mu sync.Mutex
	holders := map[string]string{}
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			for range each {
				status, answer := a.ask("POST", "/ports", object{"port": object{"network_id": network}})
				port, ok := answer["port"].(object)
				if status != http.StatusCreated || !ok {
					t.Errorf("a port: %d %v", status, answer)
					return
				}
				addr := port["fixed_ips"].([]any)[0].(object)["ip_address"].(string)
				mu.Lock()
				if other := holders[addr]; other != "" {
					t.Errorf("%s was given to %s and to %s", addr, other, id(port))
				}
				holders[addr] = id(port)
				mu.Unlock()
			}
		})
		all.Go(func() { count(t, a, "/networks/"+network) })
	}
	all.Wait()
	if len(holders) != many*each {
		t.Errorf("%d addresses were given out of %d asked for", len(holders), many*each)
	}
	_, answer := a.ask("GET", "/networks/"+network, nil)
	if got := answer["network"].(object)["description"]; got != strconv.Itoa(many) {
		t.Errorf("%d clients have counted to %v", many, got)
	}
	_, answer = a.ask("GET", "/ports?fields=id&fixed_ips=subnet_id="+subnet, nil)
	if got := len(answer["ports"].([]any)); got != len(holders) {
		t.Errorf("%d ports are listed, %d were made", got, len(holders))
	}
}

// count adds one to the number in a network's description.
func count(t *testing.T, a *api, path string) {
	for {
		_, answer := a.ask("GET", path, nil)
		now, ok := answer["network"].(object)
		if !ok {
			t.Errorf("GET %s: %v", path, answer)
			return
		}
		n, err := strconv.Atoi(now["description"].(string))
		if err != nil {
			t.Error(err)
			return
		}
		status, answer := a.ask("PUT", path, object{"network": object{"description": strconv.Itoa(n + 1)}}, "If-Match", fmt.Sprintf("revision_number=%.0f", now["revision_number"]))
		switch status {
		case http.StatusOK:
			return
		case http.StatusPreconditionFailed:
		default:
			t.Errorf("PUT %s: %d %v", path, status, answer)
			return
		}
	}
}

// Changes of one value's parts, which are read, changed and written as a whole behind the API, lose none either.
func TestManyParts(t *testing.T) {
	t.Parallel()
	const tagged = 40 // tags, fewer than an object may have
	a := serveStore(t)
	group := id(a.make("/security-groups", "security_group", object{"name": "g"}))
	addresses := id(a.make("/address-groups", "address_group", object{"name": "a"}))
	var all sync.WaitGroup
	for i := range many {
		all.Go(func() {
			status, answer := a.ask("POST", "/security-group-rules", object{"security_group_rule": object{
				"security_group_id": group, "direction": "ingress", "protocol": "tcp", "port_range_min": i + 1, "port_range_max": i + 1}})
			if status != http.StatusCreated {
				t.Errorf("rule %d: %d %v", i, status, answer)
			}
			status, answer = a.ask("PUT", "/address-groups/"+addresses+"/add_addresses", object{"addresses": []string{fmt.Sprintf("192.0.2.%d/32", i)}})
			if status != http.StatusOK {
				t.Errorf("address %d: %d %v", i, status, answer)
			}
			if status, answer = a.ask("PUT", fmt.Sprintf("/security-groups/%s/tags/t%d", group, i%tagged), nil); status != http.StatusCreated {
				t.Errorf("tag %d: %d %v", i, status, answer)
			}
		})
	}
	all.Wait()
	_, answer := a.ask("GET", "/security-groups/"+group, nil)
	g := answer["security_group"].(object)
	if rules, tags := len(g["security_group_rules"].([]any)), len(g["tags"].([]any)); rules != many+2 || tags != tagged {
		t.Errorf("of %d rules and %d tags there are %d (with 2 of every new group) and %d", many, tagged, rules, tags)
	}
	_, answer = a.ask("GET", "/address-groups/"+addresses, nil)
	if got := len(answer["address_group"].(object)["addresses"].([]any)); got != many {
		t.Errorf("of %d addresses there are %d", many, got)
	}
}

// What one project has made is not there for another, whatever it is asked by; a reader changes nothing.
func TestProjectsApart(t *testing.T) {
	t.Parallel()
	root := serveStore(t)
	ours, theirs, reader := root.of("ours/member"), root.of("theirs/member"), root.of("ours/reader")
	outside := id(root.make("/networks", "network", object{"name": "outside", "router:external": true}))
	root.make("/subnets", "subnet", object{"network_id": outside, "ip_version": 4, "cidr": "198.51.100.0/24", "enable_dhcp": false})
	network := id(ours.make("/networks", "network", object{"name": "n"}))
	subnet := id(ours.make("/subnets", "subnet", object{"network_id": network, "ip_version": 4, "cidr": "10.0.0.0/24"}))
	pool := id(ours.make("/subnetpools", "subnetpool", object{"name": "p", "prefixes": []string{"10.1.0.0/16"}}))
	group := id(ours.make("/security-groups", "security_group", object{"name": "g"}))
	rule := id(ours.make("/security-group-rules", "security_group_rule", object{"security_group_id": group, "direction": "ingress"}))
	addresses := id(ours.make("/address-groups", "address_group", object{"name": "a"}))
	port := id(ours.make("/ports", "port", object{"network_id": network, "security_groups": []string{group}}))
	router := id(ours.make("/routers", "router", object{"name": "r", "external_gateway_info": object{"network_id": outside}}))
	if status, answer := ours.ask("PUT", "/routers/"+router+"/add_router_interface", object{"subnet_id": subnet}); status != http.StatusOK {
		t.Fatalf("%d %v", status, answer)
	}
	floating := id(ours.make("/floatingips", "floatingip", object{"floating_network_id": outside}))

	mine := id(theirs.make("/networks", "network", object{"name": "n"}))
	myRouter := id(theirs.make("/routers", "router", object{"name": "r"}))
	myGroup := id(theirs.make("/security-groups", "security_group", object{"name": "g"}))
	for _, o := range []struct{ path, items, item, id string }{
		{"/networks", "networks", "network", network}, {"/subnets", "subnets", "subnet", subnet}, {"/subnetpools", "subnetpools", "subnetpool", pool},
		{"/security-groups", "security_groups", "security_group", group}, {"/address-groups", "address_groups", "address_group", addresses},
		{"/ports", "ports", "port", port}, {"/routers", "routers", "router", router}, {"/floatingips", "floatingips", "floatingip", floating},
	} {
		at := o.path + "/" + o.id
		change := object{o.item: object{"description": "mine now"}}
		for _, q := range []struct {
			who        *api
			method, at string
			body       any
			want       int
		}{
			{theirs, "GET", at, nil, 404}, {theirs, "PUT", at, change, 404}, {theirs, "DELETE", at, nil, 404}, {theirs, "GET", at + "/tags", nil, 404}, {theirs, "PUT", at + "/tags/x", nil, 404},
			{reader, "GET", at, nil, 200}, {reader, "PUT", at, change, 403}, {reader, "DELETE", at, nil, 403}, {reader, "PUT", at + "/tags/x", nil, 403},
			{reader, "POST", o.path, object{o.item: object{}}, 403}, {ours, "GET", at, nil, 200}, {root, "GET", at, nil, 200},
		} {
			if status, answer := q.who.ask(q.method, q.at, q.body); status != q.want {
				t.Errorf("%s %s as %s: %d %v, want %d", q.method, q.at, q.who.as, status, answer, q.want)
			}
		}
		for _, query := range []string{"", "?id=" + o.id, "?project_id=ours", "?tenant_id=ours", "?project_id=ours&tenant_id=theirs", "?limit=1000&sort_key=id&sort_dir=asc", "?fields=id"} {
			_, answer := theirs.ask("GET", o.path+query, nil)
			for _, found := range answer[o.items].([]any) {
				if found.(object)["id"] == o.id {
					t.Errorf("GET %s%s: it finds another project's", o.path, query)
				}
			}
		}
	}
	for _, q := range []struct {
		method, at string
		body       object
	}{ // what is used of another's is not there either
		{"POST", "/ports", object{"port": object{"network_id": network}}},
		{"POST", "/subnets", object{"subnet": object{"network_id": network, "ip_version": 4, "cidr": "10.9.0.0/24"}}},
		{"POST", "/subnets", object{"subnet": object{"network_id": mine, "ip_version": 4, "subnetpool_id": pool}}},
		{"PUT", "/routers/" + myRouter + "/add_router_interface", object{"subnet_id": subnet}},
		{"PUT", "/routers/" + router + "/add_router_interface", object{"subnet_id": subnet}},
		{"PUT", "/routers/" + router + "/remove_router_interface", object{"subnet_id": subnet}},
		{"POST", "/floatingips", object{"floatingip": object{"floating_network_id": outside, "port_id": port}}},
		{"POST", "/floatingips/" + floating + "/port_forwardings", object{"port_forwarding": object{"protocol": "tcp", "external_port": 1, "internal_port": 1, "internal_port_id": port, "internal_ip_address": "10.0.0.2"}}},
		{"GET", "/floatingips/" + floating + "/port_forwardings", nil},
		{"POST", "/security-group-rules", object{"security_group_rule": object{"security_group_id": group, "direction": "ingress"}}},
		{"POST", "/security-group-rules", object{"security_group_rule": object{"security_group_id": myGroup, "direction": "ingress", "remote_group_id": group}}},
		{"POST", "/security-group-rules", object{"security_group_rule": object{"security_group_id": myGroup, "direction": "ingress", "remote_address_group_id": addresses}}},
		{"GET", "/security-group-rules/" + rule, nil}, {"DELETE", "/security-group-rules/" + rule, nil},
		{"PUT", "/address-groups/" + addresses + "/add_addresses", object{"addresses": []string{"192.0.2.1/32"}}},
	} {
		var body any
		if q.body != nil {
			body = q.body
		}
		if status, answer := theirs.ask(q.method, q.at, body); status != http.StatusNotFound {
			t.Errorf("%s %s %v: %d %v, want 404", q.method, q.at, q.body, status, answer)
		}
	}
	for _, q := range []struct {
		method, at string
		body       object
		want       int
	}{ // nor is anything made in another's name, or what is administrators' business
		{"POST", "/networks", object{"network": object{"project_id": "ours"}}, 400}, {"POST", "/networks", object{"network": object{"shared": true}}, 403},
		{"POST", "/networks", object{"network": object{"router:external": true}}, 403}, {"PUT", "/quotas/theirs", object{"quota": object{"network": 5}}, 403},
		{"POST", "/routers", object{"router": object{"project_id": ""}}, 400}, {"POST", "/routers", object{"router": object{"tenant_id": ""}}, 400},
		{"GET", "/quotas/ours", nil, 403}, {"POST", "/qos/policies", object{"policy": object{"name": "x"}}, 403},
	} {
		var body any
		if q.body != nil {
			body = q.body
		}
		if status, answer := theirs.ask(q.method, q.at, body); status != q.want {
			t.Errorf("%s %s %v: %d %v, want %d", q.method, q.at, q.body, status, answer, q.want)
		}
	}
	if r := root.make("/routers", "router", object{"project_id": ""}); r["project_id"] != "" {
		t.Errorf("an administrator's router that is to be nobody's: %v", r)
	}
	// nor does who only reads make anything in another's name: a project's default group comes to be when its groups are asked for
	for _, who := range []*api{theirs, reader} {
		for _, path := range []string{"/security-groups", "/security-group-rules", "/network-ip-availabilities", "/networks"} {
			for _, query := range []string{"?project_id=victim", "?tenant_id=victim", "?project_id=victim&tenant_id=victim", "?project_id=theirs&tenant_id=victim", "?tenant_id=victim&tenant_id=ours"} {
				if status, answer := who.ask("GET", path+query, nil); status != http.StatusOK {
					t.Errorf("GET %s%s: %d %v", path, query, status, answer)
				}
			}
		}
	}
	_, answer := root.ask("GET", "/security-groups", nil)
	for _, found := range answer["security_groups"].([]any) {
		if found.(object)["project_id"] == "victim" {
			t.Errorf("reading as others made %v", found)
		}
	}
	_, answer = root.ask("GET", "/security-group-rules?project_id=ours&tenant_id=theirs", nil)
	if rules := answer["security_group_rules"].([]any); len(rules) != 0 {
		t.Errorf("rules of one project and of another: %v", rules)
	}
}
