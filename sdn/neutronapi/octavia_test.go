package neutronapi_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// balancing is a store behind the API, with a subnet on a router, asked by a member of a project.
type balancing struct {
	*api
	subnet, network string
}

func serveBalancing(t *testing.T) *balancing {
	t.Helper()
	a := serveStore(t).of("ours/member")
	network := id(a.make("/networks", "network", object{"name": "blue"}))
	return &balancing{a, id(a.make("/subnets", "subnet", object{"network_id": network, "ip_version": 4, "cidr": "10.0.0.0/24"})), network}
}

// balancer makes a load balancer and gives it; more are further attributes.
func (b *balancing) balancer(more object) object {
	b.t.Helper()
	body := object{"name": "lb", "vip_subnet_id": b.subnet}
	for name, value := range more {
		body[name] = value
	}
	return b.make("/lbaas/loadbalancers", "loadbalancer", body)
}

// get gives an object.
func (b *balancing) get(path, item string) object {
	b.t.Helper()
	status, answer := b.ask("GET", path, nil)
	if status != http.StatusOK {
		b.t.Fatalf("GET %s: %d %v", path, status, answer)
	}
	return answer[item].(object)
}

// put changes an object and gives it.
func (b *balancing) put(path, item string, body object) object {
	b.t.Helper()
	status, answer := b.ask("PUT", path, object{item: body})
	if status != http.StatusOK {
		b.t.Fatalf("PUT %s %v: %d %v", path, body, status, answer)
	}
	return answer[item].(object)
}

// refused wants an answer that is Octavia's refusal with these words.
func (b *balancing) refused(status int, words, method, path string, body any) {
	b.t.Helper()
	got, answer := b.ask(method, path, body)
	said, _ := answer["faultstring"].(string)
	code := map[bool]string{true: "Client", false: "Server"}[status < 500]
	if _, has := answer["debuginfo"]; got != status || !strings.Contains(said, words) || answer["faultcode"] != code || !has {
		b.t.Errorf("%s %s: %d %v; want %d with %q", method, path, got, answer, status, words)
	}
}

// gone deletes an object, and wants it to be away.
func (b *balancing) gone(path string) {
	b.t.Helper()
	if status, answer := b.ask("DELETE", path, nil); status != http.StatusNoContent {
		b.t.Errorf("DELETE %s: %d %v", path, status, answer)
	}
	b.refused(404, "not found", "GET", strings.SplitN(path, "?", 2)[0], nil)
}

// listed gives what a list has of an attribute.
func (b *balancing) listed(path, attribute string) string {
	b.t.Helper()
	status, answer := b.ask("GET", path, nil)
	collection := strings.SplitN(path[strings.LastIndex(path, "/")+1:], "?", 2)[0]
	all, ok := answer[collection].([]any)
	if status != http.StatusOK || !ok {
		b.t.Fatalf("GET %s: %d %v", path, status, answer)
	}
	var out []string
	for _, o := range all {
		out = append(out, fmt.Sprint(o.(object)[attribute]))
	}
	return strings.Join(out, " ")
}

// is wants an object's attributes to be these.
func (b *balancing) is(o object, pairs ...any) {
	b.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := o[pairs[i].(string)]; fmt.Sprint(got) != fmt.Sprint(pairs[i+1]) {
			b.t.Errorf("%s is %v, want %v", pairs[i], got, pairs[i+1])
		}
	}
}

// What is made and changed by single calls keeps its ids, and nothing else changes with it.
func TestBalancerByParts(t *testing.T) {
	t.Parallel()
	b := serveBalancing(t)
	lb := b.balancer(object{"description": "words", "vip_address": "10.0.0.50", "tags": []string{"a"}})
	b.is(lb, "name", "lb", "description", "words", "vip_address", "10.0.0.50", "vip_subnet_id", b.subnet, "vip_network_id", b.network, "provisioning_status", "ACTIVE", "operating_status", "ONLINE",
		"admin_state_up", true, "provider", "kuryr", "tags", []string{"a"}, "listeners", []any{}, "pools", []any{}, "project_id", "ours", "flavor_id", nil)
	if port := b.get("/ports/"+lb["vip_port_id"].(string), "port"); fmt.Sprint(port["device_owner"]) != "Octavia" {
		t.Errorf("the VIP's port is %v", port)
	}
	at := "/lbaas/loadbalancers/" + id(lb)

	listener := b.make("/lbaas/listeners", "listener", object{"loadbalancer_id": id(lb), "name": "web", "protocol": "TCP", "protocol_port": 80, "allowed_cidrs": []string{"10.0.0.0/8"}})
	b.is(listener, "default_pool_id", nil, "connection_limit", -1, "timeout_client_data", 50000, "loadbalancers", []any{object{"id": id(lb)}}, "allowed_cidrs", []string{"10.0.0.0/8"}, "protocol", "TCP", "protocol_port", 80)
	pool := b.make("/lbaas/pools", "pool", object{"listener_id": id(listener), "name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "session_persistence": object{"type": "SOURCE_IP", "persistence_timeout": 600}})
	b.is(pool, "listeners", []any{object{"id": id(listener)}}, "lb_algorithm", "ROUND_ROBIN", "healthmonitor_id", nil, "protocol", "TCP")
	b.is(pool["session_persistence"].(object), "type", "SOURCE_IP", "persistence_timeout", 600)
	members := "/lbaas/pools/" + id(pool) + "/members"
	first := b.make(members, "member", object{"address": "10.0.0.5", "protocol_port": 8080, "name": "m1", "subnet_id": b.subnet})
	second := b.make(members, "member", object{"address": "10.0.0.6", "protocol_port": 8080, "weight": 0})
	b.is(first, "weight", 1, "operating_status", "NO_MONITOR", "subnet_id", b.subnet, "backup", false)
	b.is(second, "weight", 0, "subnet_id", nil)
	b.is(b.put(members+"/"+id(first), "member", object{"weight": 7, "name": "m"}), "weight", 7, "name", "m", "address", "10.0.0.5", "id", id(first))
	b.is(b.put("/lbaas/listeners/"+id(listener), "listener", object{"name": "web2", "allowed_cidrs": nil}), "id", id(listener), "name", "web2", "allowed_cidrs", []any{}, "default_pool_id", id(pool))
	b.is(b.put("/lbaas/pools/"+id(pool), "pool", object{"lb_algorithm": "SOURCE_IP", "session_persistence": nil}), "id", id(pool), "lb_algorithm", "SOURCE_IP", "session_persistence", nil, "name", "p")
	b.is(b.put(at, "loadbalancer", object{"name": "lb2", "tags": []string{"b"}}), "name", "lb2", "tags", []string{"b"}, "description", "words", "vip_address", "10.0.0.50")
	b.is(b.put(at, "loadbalancer", object{"description": nil}), "description", "", "name", "lb2")
	b.is(b.get(members+"/"+id(second), "member"), "weight", 0, "address", "10.0.0.6")

	batch := func(query string, wanted ...object) {
		t.Helper()
		if status, answer := b.ask("PUT", members+query, object{"members": append([]object{}, wanted...)}); status != http.StatusAccepted || answer != nil {
			t.Errorf("a batch: %d %v", status, answer)
		}
	}
	batch("", object{"address": "10.0.0.5", "protocol_port": 8080}, object{"address": "10.0.0.9", "protocol_port": 8080, "weight": 3})
	b.is(b.get(members+"/"+id(first), "member"), "weight", 7, "name", "m")
	if got := b.listed(members+"?sort=address:desc", "address"); got != "10.0.0.9 10.0.0.5" {
		t.Errorf("members %s", got)
	}
	batch("?additive_only=true", object{"address": "10.0.0.6", "protocol_port": 8080})
	if got := b.listed(members+"?sort=address", "address"); got != "10.0.0.5 10.0.0.6 10.0.0.9" {
		t.Errorf("members %s", got)
	}
	batch("")
	if got := b.listed(members, "address"); got != "" {
		t.Errorf("members %s", got)
	}

	b.refused(400, "has children", "DELETE", at, nil)
	b.gone("/lbaas/listeners/" + id(listener))
	b.is(b.get("/lbaas/pools/"+id(pool), "pool"), "listeners", []any{}, "protocol", "TCP")
	again := b.make("/lbaas/listeners", "listener", object{"loadbalancer_id": id(lb), "protocol": "TCP", "protocol_port": 81, "default_pool_id": id(pool)})
	b.is(again, "default_pool_id", id(pool))
	b.is(b.put("/lbaas/listeners/"+id(again), "listener", object{"default_pool_id": nil}), "default_pool_id", nil)
	b.gone("/lbaas/pools/" + id(pool))
	b.gone(at + "?cascade=true")
	b.refused(404, "not found", "GET", "/lbaas/listeners/"+id(again), nil)
}

// A whole tree is one call, and one that is taken down by one.
func TestBalancerAsTree(t *testing.T) {
	t.Parallel()
	b := serveBalancing(t)
	lb := b.balancer(object{
		"listeners": []object{
			{"name": "web", "protocol": "TCP", "protocol_port": 80, "default_pool": object{"name": "webs", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "members": []object{{"address": "10.0.0.5", "protocol_port": 80}, {"address": "10.0.0.6", "protocol_port": 80}}}},
			{"name": "dns", "protocol": "UDP", "protocol_port": 80, "default_pool": object{"name": "shared"}}, {"name": "none", "protocol": "TCP", "protocol_port": 81},
		},
		"pools": []object{{"name": "shared", "protocol": "UDP", "lb_algorithm": "SOURCE_IP"}, {"name": "spare", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}},
	})
	if got := b.listed("/lbaas/listeners?loadbalancer_id="+id(lb)+"&sort=name:desc", "name"); got != "web none dns" {
		t.Errorf("listeners %s", got)
	}
	if got := b.listed("/lbaas/pools?sort=name:asc", "name"); got != "shared spare webs" {
		t.Errorf("pools %s", got)
	}
	if got := b.listed("/lbaas/pools?name=webs&fields=name&fields=id", "name"); got != "webs" {
		t.Errorf("pools by name %s", got)
	}
	tree := b.get("/lbaas/loadbalancers/"+id(lb)+"/status", "statuses")["loadbalancer"].(object)
	web := tree["listeners"].([]any)[0].(object)
	b.is(web, "name", "web", "provisioning_status", "ACTIVE", "operating_status", "ONLINE")
	if pools := web["pools"].([]any); len(pools) != 1 || len(pools[0].(object)["members"].([]any)) != 2 || len(tree["pools"].([]any)) != 3 {
		t.Errorf("statuses %v", tree)
	}
	b.gone("/lbaas/loadbalancers/" + id(lb) + "?cascade=True")
	for _, path := range []string{"/lbaas/loadbalancers", "/lbaas/listeners", "/lbaas/pools", "/lbaas/healthmonitors"} {
		if got := b.listed(path, "id"); got != "" {
			t.Errorf("%s: %s", path, got)
		}
	}
}

// What cannot be is refused as Octavia does, naming what was wrong, and changes nothing.
func TestBalancerRefusals(t *testing.T) {
	t.Parallel()
	b := serveBalancing(t)
	lb := b.balancer(nil)
	listener := b.make("/lbaas/listeners", "listener", object{"loadbalancer_id": id(lb), "protocol": "TCP", "protocol_port": 80})
	pool := b.make("/lbaas/pools", "pool", object{"listener_id": id(listener), "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"})
	members := "/lbaas/pools/" + id(pool) + "/members"
	b.make(members, "member", object{"address": "10.0.0.5", "protocol_port": 80})
	revision := b.get("/lbaas/loadbalancers/"+id(lb), "loadbalancer")["kuryr:revision_number"]
	const lbs, listeners, pools, monitors = "/lbaas/loadbalancers", "/lbaas/listeners", "/lbaas/pools", "/lbaas/healthmonitors"
	one, web, webs := lbs+"/"+id(lb), listeners+"/"+id(listener), pools+"/"+id(pool)
	for _, tc := range []struct {
		status             int
		words, method, url string
		item               string
		body               object
	}{
		{400, "VIP must contain one of", "POST", lbs, "loadbalancer", object{"name": "x"}},
		{400, "Unrecognized attribute(s) 'colour'", "POST", lbs, "loadbalancer", object{"vip_subnet_id": b.subnet, "colour": "red"}},
		{404, "Subnet none not found", "POST", lbs, "loadbalancer", object{"vip_subnet_id": "none"}},
		{409, "already allocated", "POST", lbs, "loadbalancer", object{"vip_subnet_id": b.subnet, "vip_address": lb["vip_address"]}},
		{400, "Invalid input for field/attribute vip_address. Reason: 10.9.0.1 is not inside", "POST", lbs, "loadbalancer", object{"vip_subnet_id": b.subnet, "vip_address": "10.9.0.1"}},
		{501, "vip_port_id", "POST", lbs, "loadbalancer", object{"vip_subnet_id": b.subnet, "vip_port_id": lb["vip_port_id"]}},
		{501, "provider", "POST", lbs, "loadbalancer", object{"vip_subnet_id": b.subnet, "provider": "amphora"}},
		{501, "admin_state_up", "POST", lbs, "loadbalancer", object{"vip_subnet_id": b.subnet, "admin_state_up": false}},
		{501, "availability_zone", "POST", lbs, "loadbalancer", object{"vip_subnet_id": b.subnet, "availability_zone": "z"}},
		{400, "vip_address", "PUT", one, "loadbalancer", object{"vip_address": "10.0.0.9"}},
		{409, "already using protocol TCP and protocol_port 80", "POST", listeners, "listener", object{"loadbalancer_id": id(lb), "protocol": "TCP", "protocol_port": 80}},
		{400, "loadbalancer_id", "POST", listeners, "listener", object{"protocol": "TCP", "protocol_port": 80}},
		{404, "Load Balancer none not found", "POST", listeners, "listener", object{"loadbalancer_id": "none", "protocol": "TCP", "protocol_port": 80}},
		{501, "'HTTP' is not balanced here", "POST", listeners, "listener", object{"loadbalancer_id": id(lb), "protocol": "HTTP", "protocol_port": 81}},
		{400, "Invalid input for field/attribute protocol_port. Reason: '0'", "POST", listeners, "listener", object{"loadbalancer_id": id(lb), "protocol": "TCP", "protocol_port": 0}},
		{501, "connection_limit", "POST", listeners, "listener", object{"loadbalancer_id": id(lb), "protocol": "TCP", "protocol_port": 81, "connection_limit": 5}},
		{501, "timeout_client_data", "PUT", web, "listener", object{"timeout_client_data": 5}},
		{501, "insert_headers", "PUT", web, "listener", object{"insert_headers": object{"X-Forwarded-For": "true"}}},
		{400, "protocol_port", "PUT", web, "listener", object{"protocol_port": 90}},
		{404, "Pool none not found", "PUT", web, "listener", object{"default_pool_id": "none"}},
		{409, "already has a default pool", "POST", pools, "pool", object{"listener_id": id(listener), "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}},
		{400, "listener protocol is 'TCP'", "POST", listeners, "listener", object{"loadbalancer_id": id(lb), "protocol": "TCP", "protocol_port": 82, "default_pool": object{"protocol": "UDP", "lb_algorithm": "ROUND_ROBIN"}}},
		{400, "Mandatory field missing", "POST", pools, "pool", object{"protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}},
		{501, "lb_algorithm", "PUT", webs, "pool", object{"lb_algorithm": "LEAST_CONNECTIONS"}},
		{400, "lb_algorithm", "PUT", webs, "pool", object{"lb_algorithm": "BEST"}},
		{501, "session_persistence", "PUT", webs, "pool", object{"session_persistence": object{"type": "HTTP_COOKIE"}}},
		{501, "tls_enabled", "PUT", webs, "pool", object{"tls_enabled": true}},
		{409, "already using ip 10.0.0.5 on protocol_port 80", "POST", members, "member", object{"address": "10.0.0.5", "protocol_port": 80}},
		{400, "address", "POST", members, "member", object{"address": "house", "protocol_port": 80}},
		{400, "address", "POST", members, "member", object{"protocol_port": 80}},
		{400, "weight", "POST", members, "member", object{"address": "10.0.0.7", "protocol_port": 80, "weight": 257}},
		{501, "backup", "POST", members, "member", object{"address": "10.0.0.7", "protocol_port": 80, "backup": true}},
		{404, "Subnet none not found", "POST", members, "member", object{"address": "10.0.0.7", "protocol_port": 80, "subnet_id": "none"}},
		{501, "healthmonitor", "POST", monitors, "healthmonitor", object{"pool_id": id(pool), "type": "TCP", "delay": 5, "timeout": 5, "max_retries": 2}},
		{400, "delay", "POST", monitors, "healthmonitor", object{"pool_id": id(pool), "type": "TCP", "timeout": 5, "max_retries": 2}},
		{501, "there are none of them here", "POST", "/lbaas/l7policies", "l7policy", object{}},
		{501, "not counted", "GET", one + "/stats", "", nil},
		{501, "", "PUT", one + "/failover", "", nil},
		{404, "", "GET", "/lbaas/colours", "", nil},
		{404, "Flavor f not found", "GET", "/lbaas/flavors/f", "", nil},
		{405, "PATCH", "PATCH", lbs, "", nil},
		{400, "invalid attribute for filtering", "GET", lbs + "?colour=red", "", nil},
	} {
		var body any
		if tc.item != "" {
			body = object{tc.item: tc.body}
		}
		b.refused(tc.status, tc.words, tc.method, tc.url, body)
	}
	b.refused(409, "already using ip", "PUT", members, object{"members": []object{{"address": "10.0.0.7", "protocol_port": 80}, {"address": "10.0.0.7", "protocol_port": 80}}})
	if now := b.get(one, "loadbalancer"); now["kuryr:revision_number"] != revision {
		t.Errorf("a refusal changed something: %v", now)
	}
}

// Projects see and change nothing of one another's, and readers change nothing.
func TestBalancerOfProjects(t *testing.T) {
	t.Parallel()
	b := serveBalancing(t)
	lb := b.balancer(object{"listeners": []object{{"protocol": "TCP", "protocol_port": 80, "default_pool": object{"protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "members": []object{{"address": "10.0.0.5", "protocol_port": 80}}}}}})
	listener, pool := b.listed("/lbaas/listeners", "id"), b.listed("/lbaas/pools", "id")
	members := "/lbaas/pools/" + pool + "/members"
	other := &balancing{api: b.of("theirs/member")}
	for _, path := range []string{"/lbaas/loadbalancers/" + id(lb), "/lbaas/listeners/" + listener, "/lbaas/pools/" + pool, members + "/" + b.listed(members, "id")} {
		other.refused(404, "not found", "GET", path, nil)
		other.refused(404, "not found", "DELETE", path, nil)
	}
	other.refused(404, "not found", "POST", "/lbaas/listeners", object{"listener": object{"loadbalancer_id": id(lb), "protocol": "TCP", "protocol_port": 81}})
	other.refused(404, "not found", "POST", "/lbaas/pools", object{"pool": object{"listener_id": listener, "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}})
	other.refused(404, "not found", "PUT", members, object{"members": []object{}})
	other.refused(404, "not found", "POST", "/lbaas/loadbalancers", object{"loadbalancer": object{"vip_subnet_id": b.subnet}})
	for _, path := range []string{"/lbaas/loadbalancers", "/lbaas/listeners", "/lbaas/pools?id=" + pool, "/lbaas/listeners?project_id=ours"} {
		if got := other.listed(path, "id"); got != "" {
			t.Errorf("another project sees %s", got)
		}
	}
	reader := &balancing{api: b.of("ours/reader")}
	reader.get("/lbaas/loadbalancers/"+id(lb), "loadbalancer")
	reader.refused(403, "policy", "DELETE", "/lbaas/loadbalancers/"+id(lb), nil)
	nobody := &balancing{api: b.of("")}
	nobody.refused(401, "", "GET", "/lbaas/loadbalancers", nil)
	if status, answer := nobody.ask("GET", "/../load-balancer/", nil); status != http.StatusOK {
		t.Errorf("the versions are told to everybody: %d %v", status, answer)
	}
}

// Quotas are counted in Octavia's words, whose older ones count too, and an administrator's to set.
func TestBalancerQuotas(t *testing.T) {
	t.Parallel()
	b := serveBalancing(t)
	admin := &balancing{api: b.of("ours/admin")}
	b.is(b.get("/lbaas/quotas/ours", "quota"), "load_balancer", 100, "loadbalancer", 100, "listener", 500,
		"member", 5000, "pool", 500, "health_monitor", -1)
	b.refused(403, "", "PUT", "/lbaas/quotas/ours", object{"quota": object{"load_balancer": 1}})
	b.refused(403, "", "GET", "/lbaas/quotas/theirs", nil)
	if status, answer := admin.ask("PUT", "/lbaas/quotas/ours", object{"quota": object{"load_balancer": 1, "listener": 1, "health_monitor": -1}}); status != http.StatusAccepted {
		t.Fatalf("quota set: %d %v", status, answer)
	}
	b.is(b.get("/lbaas/quotas/ours", "quota"), "load_balancer", 1, "loadbalancer", 1, "listener", 1, "pool", 500)
	b.is(b.get("/lbaas/quotas/defaults", "quota"), "load_balancer", 100)
	absent := object{"healthmonitor": 5, "l7policy": 6, "l7rule": 7}
	if status, answer := admin.ask("PUT", "/lbaas/quotas/ours", object{"quota": absent}); status != http.StatusAccepted {
		t.Errorf("quotas of what there is none of: %d %v", status, answer)
	}
	b.is(b.get("/lbaas/quotas/ours", "quota"), "health_monitor", 5, "l7policy", 6, "l7rule", 7, "load_balancer", 1)
	lb := b.balancer(nil)
	b.refused(403, "Quota has been met", "POST", "/lbaas/loadbalancers", object{"loadbalancer": object{"vip_subnet_id": b.subnet}})
	b.make("/lbaas/listeners", "listener", object{"loadbalancer_id": id(lb), "protocol": "TCP", "protocol_port": 80})
	b.refused(403, "Quota has been met", "POST", "/lbaas/listeners", object{"listener": object{"loadbalancer_id": id(lb), "protocol": "TCP", "protocol_port": 81}})
	if status, answer := admin.ask("DELETE", "/lbaas/quotas/ours", nil); status != http.StatusNoContent {
		t.Errorf("quota reset: %d %v", status, answer)
	}
	b.is(b.get("/lbaas/quotas/ours", "quota"), "load_balancer", 100)

	root := &balancing{api: b.of("/admin")}
	if status, answer := root.ask("PUT", "/lbaas/quotas/tenant", object{"quota": object{"load_balancer": 0}}); status != http.StatusAccepted {
		t.Fatalf("quota of what belongs to no project: %d %v", status, answer)
	}
	root.is(root.get("/lbaas/quotas/tenant", "quota"), "load_balancer", 0, "project_id", "")
	root.refused(403, "Quota has been met", "POST", "/lbaas/loadbalancers", object{"loadbalancer": object{"vip_subnet_id": b.subnet}})
	b.is(b.get("/lbaas/quotas/tenant", "quota"), "load_balancer", 100, "project_id", "ours")
	b.refused(403, "", "PUT", "/lbaas/quotas/tenant", object{"quota": object{"load_balancer": 5}})
}

// Many who add members to one pool at once lose none.
func TestManyAddMembers(t *testing.T) {
	t.Parallel()
	b := serveBalancing(t)
	lb := b.balancer(object{"listeners": []object{{"protocol": "TCP", "protocol_port": 80, "default_pool": object{"protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}}}})
	pool := lb["pools"].([]any)[0].(object)
	done := make(chan int)
	for i := range 16 {
		go func() {
			status, _ := b.ask("POST", "/lbaas/pools/"+id(pool)+"/members", object{"member": object{"address": fmt.Sprintf("10.0.0.%d", 100+i), "protocol_port": 80}})
			done <- status
		}()
	}
	for range 16 {
		if status := <-done; status != http.StatusCreated {
			t.Errorf("a member: %d", status)
		}
	}
	if got := len(strings.Fields(b.listed("/lbaas/pools/"+id(pool)+"/members", "id"))); got != 16 {
		t.Errorf("%d members", got)
	}
}

// The API is the same at each of its addresses, and each page of a list leads to the next at that address.
func TestBalancerAddresses(t *testing.T) {
	t.Parallel()
	b := serveBalancing(t)
	for i := range 5 {
		b.balancer(object{"name": fmt.Sprint("lb", i)})
	}
	root := strings.TrimSuffix(b.url, "/v2.0")
	for _, base := range []string{"/v2.0", "/v2", "/load-balancer/v2.0", "/load-balancer/v2"} {
		at := &balancing{api: &api{t: t, url: root + base, as: b.as}}
		seen, path := map[string]bool{}, "/lbaas/loadbalancers?limit=2"
		for path != "" {
			status, answer := at.ask("GET", path, nil)
			all, _ := answer["loadbalancers"].([]any)
			if path = ""; status != http.StatusOK {
				t.Fatalf("%s: %d %v", base, status, answer)
			}
			for _, o := range all {
				seen[id(o.(object))] = true
			}
			links, _ := answer["loadbalancers_links"].([]any)
			for _, l := range links {
				if link := l.(object); link["rel"] == "next" && len(all) > 0 {
					rest, ok := strings.CutPrefix(link["href"].(string), root+base)
					if path = rest; !ok {
						t.Errorf("%s leads to %v", base, link["href"])
					}
				}
			}
		}
		if len(seen) != 5 {
			t.Errorf("%s: %d load balancers", base, len(seen))
		}
	}
	if status, answer := (&api{t: t, url: root + "/load-balancer/v2.0", as: "ours/admin"}).ask("GET", "/quotas/ours", nil); status != http.StatusOK || answer["quota"].(object)["load_balancer"] == nil {
		t.Errorf("quotas at the catalogue's address: %d %v", status, answer)
	}
	status, answer := (&api{t: t, url: root, as: b.as}).ask("GET", "/load-balancer", nil)
	if versions, _ := answer["versions"].([]any); status != http.StatusOK || len(versions) == 0 || versions[len(versions)-1].(object)["status"] != "CURRENT" {
		t.Errorf("versions: %d %v", status, answer)
	}
}

// All parts of a load balancer have tags, in a tree and by calls of their own, as the advertised
// version of Octavia's API has it.
func TestBalancerPartTags(t *testing.T) {
	t.Parallel()
	b := serveBalancing(t)
	tags := func(tags ...string) object { return object{"tags": tags} }
	lb := b.balancer(object{"listeners": []object{{
		"protocol": "TCP", "protocol_port": 80, "tags": []string{"l"},
		"default_pool": object{
			"protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "tags": []string{"p"},
			"members": []object{{"address": "10.0.0.5", "protocol_port": 80, "tags": []string{"m", "a"}}},
		},
	}}})
	one := func(list, item string) (string, object) {
		t.Helper()
		path := list + "/" + b.listed(list, "id")
		return path, b.get(path, item)
	}
	listener, o := one("/lbaas/listeners", "listener")
	b.is(o, "tags", []string{"l"})
	pool, o := one("/lbaas/pools", "pool")
	b.is(o, "tags", []string{"p"})
	member, o := one(pool+"/members", "member")
	b.is(o, "tags", []string{"a", "m"})

	b.is(b.put(listener, "listener", tags("x", "l")), "tags", []string{"l", "x"})
	b.is(b.put(pool, "pool", tags()), "tags", []string{})
	b.is(b.put(member, "member", tags("n")), "tags", []string{"n"})
	b.is(b.put(listener, "listener", object{"name": "web"}), "tags", []string{"l", "x"})
	udp := b.make("/lbaas/listeners", "listener", object{
		"loadbalancer_id": id(lb), "protocol": "UDP", "protocol_port": 80, "tags": []string{"x"},
	})
	b.is(udp, "tags", []string{"x"})
	for query, want := range map[string]string{
		"tags=l,x": "TCP", "tags-any=l,y": "TCP", "not-tags=l": "UDP", "not-tags-any=x": "", "tags=y": "",
	} {
		if got := b.listed("/lbaas/listeners?"+query, "protocol"); got != want {
			t.Errorf("listeners with %s are %q, want %q", query, got, want)
		}
	}
	if got := b.listed(pool+"/members?tags=n", "address"); got != "10.0.0.5" {
		t.Errorf("members with the tag are %q", got)
	}
	b.refused(400, "tag", "PUT", listener, object{"listener": tags("")})
}
