package neutronapi_test

import (
	"net/http"
	"testing"
)

// A load balancer is applied whole by its Key: made, left alone, changed, with ids that
// stay, and only by administrators, each in a project.
func TestBalancerIsAppliedWhole(t *testing.T) {
	t.Parallel()
	b := serveBalancing(t)
	b.api = b.of("ours/admin")
	const at = "/lbaas/loadbalancers/kuryr:apply"
	member := func(address string) object { return object{"address": address, "protocol_port": 8080, "weight": 1} }
	tree := func(members ...object) object {
		return object{"name": "web", "description": "kuryr/theirs/service/web", "vip_subnet_id": b.subnet, "listeners": []object{{"protocol": "TCP", "protocol_port": 80, "name": "http",
			"default_pool": object{"protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "members": members}}}}
	}
	made := b.put(at, "loadbalancer", tree(member("10.0.0.5"), member("10.0.0.6")))
	b.is(made, "name", "web", "provisioning_status", "ACTIVE", "kuryr:revision_number", 1)
	pool := made["kuryr:pools"].([]any)[0].(object)
	b.is(made["kuryr:listeners"].([]any)[0].(object), "name", "http", "protocol_port", 80, "default_pool_id", id(pool))
	first := pool["kuryr:members"].([]any)[0].(object)
	b.is(first, "address", "10.0.0.5", "weight", 1)

	b.is(b.put(at, "loadbalancer", tree(member("10.0.0.6"), member("10.0.0.5"))), "id", id(made), "kuryr:revision_number", 1, "vip_address", made["vip_address"])
	changed := b.put(at, "loadbalancer", tree(member("10.0.0.5")))
	b.is(changed, "id", id(made), "kuryr:revision_number", 2)
	left := changed["kuryr:pools"].([]any)[0].(object)["kuryr:members"].([]any)
	if len(left) != 1 {
		t.Fatalf("members %v", left)
	}
	b.is(left[0].(object), "id", id(first))

	for words, body := range map[string]object{"must be the Key": {"vip_subnet_id": b.subnet}, "additional_vips": {"description": "kuryr/theirs/service/web", "vip_subnet_id": b.subnet, "additional_vips": []object{{"subnet_id": b.subnet}}}} {
		if status, answer := b.ask("PUT", at, object{"loadbalancer": body}); status < 400 || status >= 500 {
			t.Errorf("%s: %d %v", words, status, answer)
		} else {
			b.refused(status, words, "PUT", at, object{"loadbalancer": body})
		}
	}
	for _, who := range []string{"ours/member", "others/member"} {
		if status, answer := b.of(who).ask("PUT", at, object{"loadbalancer": tree()}); status != http.StatusForbidden {
			t.Errorf("%s changes it: %d %v", who, status, answer)
		}
	}
	other := &balancing{b.of("others/admin"), b.subnet, b.network}
	if same := other.put(at, "loadbalancer", tree()); id(same) == id(made) || same["project_id"] != "others" {
		t.Errorf("another project's administrator gets %v", same)
	}
	if status, _ := b.ask("GET", at, nil); status != http.StatusMethodNotAllowed {
		t.Errorf("it is read: %d", status)
	}
	b.is(b.get("/lbaas/loadbalancers/"+id(made), "loadbalancer"), "kuryr:revision_number", 2)
}
