package neutronapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

// FuzzWrite: whatever body comes with whatever request, the answer is a success that can be read, or a refusal of what was said that has a type and a text.
func FuzzWrite(f *testing.F) {
	const network = "one"
	handler := NewHandler(canned{}, Options{})
	for _, seed := range [][2]string{
		{"networks", `{"network":{"name":"n","mtu":1400,"shared":"true","description":"kuryr/a/b/c","port_security_enabled":0,"availability_zone_hints":[]}}`},
		{"networks/NET", `{"network":{"name":"n","mtu":"1400","tags":null}}`},
		{"networks/NET/tags", `{"tags":["a","b/c"]}`},
		{"subnets", `{"subnet":{"network_id":"NET","ip_version":4,"cidr":"10.0.0.0/24","gateway_ip":null,"allocation_pools":[{"start":"10.0.0.2","end":"10.0.0.9"}],"host_routes":[{"destination":"0.0.0.0/0","nexthop":"10.0.0.3"}]}}`},
		{"subnets", `{"subnet":{"network_id":"NET","ip_version":6,"cidr":"fd00::/64","ipv6_ra_mode":"slaac","subnetpool_id":"x","prefixlen":200}}`},
		{"subnetpools", `{"subnetpool":{"name":"p","prefixes":["0.0.0.0/0","128.0.0.0/1","10.0.0.1"],"min_prefixlen":8,"default_quota":null}}`},
		{"ports", `{"port":{"network_id":"NET","fixed_ips":[{"ip_address":"::ffff:10.0.0.1"}],"mac_address":"02:00:00:00:00:01","allowed_address_pairs":[{"ip_address":"::/0"}],"binding:profile":{"a":[1]}}}`},
		{"ports", `{"ports":[{"port":{"network_id":"NET"}},{"network_id":"NET","tags":["x"]}]}`},
		{"routers", `{"router":{"name":"r","external_gateway_info":{"network_id":"NET","enable_snat":true,"external_fixed_ips":[{"ip_address":"10.0.0.1"}]}}}`},
		{"floatingips", `{"floatingip":{"floating_network_id":"NET","floating_ip_address":"10.0.0.1","port_id":null}}`},
		{"security-groups", `{"security_group":{"name":"g","stateful":true}}`},
		{"security-group-rules", `{"security_group_rule":{"security_group_id":"x","direction":"ingress","protocol":"icmp","port_range_min":8,"port_range_max":null,"remote_ip_prefix":"10.0.0.0/8"}}`},
		{"address-groups", `{"address_group":{"name":"a","addresses":["10.0.0.0/8","::1"]}}`},
		{"qos/policies", `{"policy":{"name":"q","shared":false}}`},
		{"trunks", `{"trunk":{"port_id":"x","sub_ports":[{"port_id":"y","segmentation_type":"vlan","segmentation_id":5}]}}`},
		{"quotas/p", `{"quota":{"port":5}}`},
	} {
		f.Add(strings.ReplaceAll(seed[0], "NET", network), strings.ReplaceAll(seed[1], "NET", network), false)
		f.Add(strings.ReplaceAll(seed[0], "NET", network), strings.ReplaceAll(seed[1], "NET", network), true)
	}
	f.Fuzz(func(t *testing.T, path, body string, member bool) {
		method := http.MethodPost
		if strings.Contains(path, "/") && path != "qos/policies" {
			method = http.MethodPut
		}
		r, err := http.NewRequestWithContext(t.Context(), method, "http://x/v2.0/"+path, strings.NewReader(body))
		if err != nil {
			return
		}
		caller := Caller{Role: Admin}
		if member {
			caller = Caller{Role: Member, Project: "p"}
		}
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, r.WithContext(WithCaller(r.Context(), caller)))
		if answer.Code == http.StatusNoContent || answer.Code/100 == 3 || answer.Body.Len() == 0 && answer.Code == http.StatusCreated {
			return // a path that is not clean is sent elsewhere
		}
		var refused errorBody
		switch err := json.Unmarshal(answer.Body.Bytes(), &refused); {
		case err != nil:
			t.Errorf("%s %s %q: the answer %d %q cannot be read", method, path, body, answer.Code, answer.Body)
		case answer.Code < 300:
		case refused.NeutronError == nil || refused.NeutronError.Type == "" || refused.NeutronError.Message == "":
			t.Errorf("%s %s %q: %d without a reason: %s", method, path, body, answer.Code, answer.Body)
		case answer.Code >= 500 && !slices.Contains([]int{http.StatusNotImplemented}, answer.Code) && refused.NeutronError.Type != "SubnetAllocationError":
			t.Errorf("%s %s %q: what was said is answered %d %s", method, path, body, answer.Code, answer.Body)
		}
	})
}
