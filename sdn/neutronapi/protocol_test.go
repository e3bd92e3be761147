package neutronapi_test

import (
	"fmt"
	"testing"
)

// A protocol is shown as it was said, by name or number, is found by either, and is one protocol all the same.
func TestProtocolAsSaid(t *testing.T) {
	t.Parallel()
	a := serveStore(t)
	group := id(a.make("/security-groups", "security_group", object{"name": "g"}))
	rule := func(protocol any, ethertype string) object {
		return object{"security_group_id": group, "direction": "ingress", "protocol": protocol, "ethertype": ethertype}
	}
	for _, c := range []struct {
		said             any
		ethertype, shown string
		like             any // the same rule in other words
	}{
		{"tcp", "IPv4", "tcp", "6"}, {"17", "IPv4", "17", "UDP"}, {132, "IPv4", "132", "sctp"}, {"VRRP", "IPv4", "vrrp", 112}, {"200", "IPv4", "200", 200},
		{"icmp", "IPv6", "ipv6-icmp", "58"}, {"51", "IPv6", "51", "ah"},
	} {
		made := a.make("/security-group-rules", "security_group_rule", rule(c.said, c.ethertype))
		if made["protocol"] != c.shown {
			t.Errorf("%v is shown as %v, want %q", c.said, made["protocol"], c.shown)
		}
		if status, answer := a.ask("POST", "/security-group-rules", object{"security_group_rule": rule(c.like, c.ethertype)}); status != 409 {
			t.Errorf("%v after %v: %d %v", c.like, c.said, status, answer)
		}
		for _, word := range []any{c.shown, c.like} {
			_, answer := a.ask("GET", fmt.Sprintf("/security-group-rules?protocol=%v&ethertype=%s", word, c.ethertype), nil)
			if found := answer["security_group_rules"].([]any); len(found) != 1 || id(found[0].(object)) != id(made) {
				t.Errorf("by %v are found %v", word, found)
			}
		}
	}
}
