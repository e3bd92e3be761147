package restapi_test

import (
	"encoding/json"
	"strings"
	"testing"
)

// sequence are the requests that a tool sends for one of its resources, as a member of a project, in order: "METHOD path body", and "name=place" behind a "→" for what
// later ones need of the answer.
type sequence struct {
	tool     string
	requests []string
}

// sequences are what Terraform's provider (by gophercloud) and Ansible's collection openstack.cloud (by openstacksdk) send to make, read, change, look up and delete each
// of their resources that the embedded SDN has.
var sequences = []sequence{
	{"terraform openstack_networking_network_v2", []string{
		`POST /networks {"network":{"admin_state_up":true,"name":"tn","description":"d","port_security_enabled":true,"mtu":1400}} → n=network.id`,
		`GET /networks/${n}`, `PUT /networks/${n}/tags {"tags":["a","b"]}`, `PUT /networks/${n} {"network":{"name":"tn2","mtu":1300}}`,
		`GET /networks?name=tn2&tags=a&status=ACTIVE&router:external=false`, `GET /networks?id=${n}&description=d`,
	}},
	{"terraform openstack_networking_subnet_v2", []string{
		`POST /subnets {"subnet":{"network_id":"${n}","cidr":"10.0.0.0/24","ip_version":4,"name":"ts","enable_dhcp":true,"allocation_pools":[{"start":"10.0.0.2","end":"10.0.0.99"}],"dns_nameservers":["9.9.9.9"],"gateway_ip":"10.0.0.1"}} → s=subnet.id`,
		`GET /subnets/${s}`, `PUT /subnets/${s}/tags {"tags":["a"]}`, `PUT /subnets/${s} {"subnet":{"dns_nameservers":["8.8.8.8"],"host_routes":[{"destination":"192.0.2.0/24","nexthop":"10.0.0.9"}]}}`,
		`GET /subnets?cidr=10.0.0.0/24&network_id=${n}&ip_version=4&enable_dhcp=true&gateway_ip=10.0.0.1&name=ts&tags=a`,
	}},
	{"terraform openstack_networking_subnetpool_v2", []string{
		`POST /subnetpools {"subnetpool":{"name":"tp","prefixes":["10.9.0.0/16"],"min_prefixlen":20,"default_prefixlen":24,"max_prefixlen":28,"is_default":false,"shared":false}} → p=subnetpool.id`,
		`GET /subnetpools/${p}`, `PUT /subnetpools/${p} {"subnetpool":{"name":"tp2"}}`, `GET /subnetpools?name=tp2&is_default=false&shared=false`,
		`POST /subnets {"subnet":{"network_id":"${n}","subnetpool_id":"${p}","prefixlen":26,"ip_version":4}} → ps=subnet.id`, `DELETE /subnets/${ps}`, `DELETE /subnetpools/${p}`,
	}},
	{"terraform openstack_networking_secgroup_v2 and _rule_v2", []string{
		`POST /security-groups {"security_group":{"name":"tg","description":"d"}} → g=security_group.id`, `GET /security-groups/${g}`, `PUT /security-groups/${g}/tags {"tags":["a"]}`,
		`POST /security-group-rules {"security_group_rule":{"direction":"ingress","ethertype":"IPv4","protocol":"tcp","port_range_min":22,"port_range_max":22,"remote_ip_prefix":"0.0.0.0/0","security_group_id":"${g}"}} → r=security_group_rule.id`,
		`GET /security-group-rules/${r}`, `PUT /security-groups/${g} {"security_group":{"name":"tg2","description":"e"}}`, `GET /security-groups?name=tg2`, `DELETE /security-group-rules/${r}`,
	}},
	{"terraform openstack_networking_address_group_v2", []string{
		`POST /address-groups {"address_group":{"name":"ta","addresses":["192.0.2.0/24"]}} → a=address_group.id`, `GET /address-groups/${a}`,
		`PUT /address-groups/${a}/add_addresses {"addresses":["198.51.100.0/24"]}`, `PUT /address-groups/${a}/remove_addresses {"addresses":["198.51.100.0/24"]}`, `PUT /address-groups/${a} {"address_group":{"name":"ta2"}}`, `DELETE /address-groups/${a}`,
	}},
	{"terraform openstack_networking_port_v2", []string{
		`POST /ports {"port":{"network_id":"${n}","name":"tport","admin_state_up":true,"fixed_ips":[{"subnet_id":"${s}","ip_address":"10.0.0.50"}],"security_groups":["${g}"],"allowed_address_pairs":[{"ip_address":"10.0.0.200"}]}} → port=port.id`,
		`GET /ports/${port}`, `PUT /ports/${port}/tags {"tags":["a"]}`, `PUT /ports/${port} {"port":{"name":"tport2","security_groups":["${g}"],"allowed_address_pairs":[]}}`,
		`GET /ports?name=tport2&network_id=${n}&device_owner=&admin_state_up=true&tags=a`, `GET /ports?fixed_ips=ip_address%3D10.0.0.50`,
	}},
	{"terraform openstack_networking_router_v2, _interface_v2 and _route_v2", []string{
		`GET /networks?name=outside&router:external=true`,
		`POST /routers {"router":{"name":"tr","admin_state_up":true,"external_gateway_info":{"network_id":"${outside}"}}} → router=router.id`, `GET /routers/${router}`, `PUT /routers/${router}/tags {"tags":["a"]}`,
		`PUT /routers/${router}/add_router_interface {"subnet_id":"${s}"} → leg=port_id`, `GET /ports/${leg}`,
		`PUT /routers/${router}/add_extraroutes {"router":{"routes":[{"destination":"203.0.113.0/24","nexthop":"10.0.0.9"}]}}`, `PUT /routers/${router}/remove_extraroutes {"router":{"routes":[{"destination":"203.0.113.0/24","nexthop":"10.0.0.9"}]}}`,
		`PUT /routers/${router} {"router":{"name":"tr2","routes":[]}}`, `GET /routers?name=tr2&admin_state_up=true&tags=a`,
	}},
	{"terraform openstack_networking_floatingip_v2, _associate_v2 and openstack_networking_portforwarding_v2", []string{
		`POST /floatingips {"floatingip":{"floating_network_id":"${outside}","description":"d"}} → f=floatingip.id`, `GET /floatingips/${f}`, `PUT /floatingips/${f}/tags {"tags":["a"]}`,
		`PUT /floatingips/${f} {"floatingip":{"port_id":"${port}"}}`, `GET /floatingips?port_id=${port}&floating_network_id=${outside}`, `PUT /floatingips/${f} {"floatingip":{"port_id":null}}`,
		`POST /floatingips/${f}/port_forwardings {"port_forwarding":{"protocol":"tcp","external_port":2222,"internal_port":22,"internal_port_id":"${port}","internal_ip_address":"10.0.0.50"}} → pf=port_forwarding.id`,
		`GET /floatingips/${f}/port_forwardings/${pf}`, `PUT /floatingips/${f}/port_forwardings/${pf} {"port_forwarding":{"external_port":2223}}`, `DELETE /floatingips/${f}/port_forwardings/${pf}`,
	}},
	{"ansible openstack.cloud.network, subnet, router, port, security_group, floating_ip and their _info", []string{
		`GET /extensions`, `GET /networks?name=tn2`, `GET /networks/${n}`, `GET /networks`, `GET /subnets?name=ts`, `GET /subnets?network_id=${n}`, `GET /subnetpools`, `GET /routers?name=tr2`,
		`GET /ports?device_id=${router}&device_owner=network%3Arouter_interface`, `GET /ports?device_id=${router}`, `GET /ports?network_id=${n}&name=tport2`, `GET /security-groups?name=tg2&project_id=ours`,
		`GET /security-group-rules?security_group_id=${g}`, `GET /floatingips?floating_network_id=${outside}`, `GET /floatingips?floating_ip_address=198.51.100.77`, `GET /quotas/ours`, `GET /quotas/ours/details`, `GET /quotas/ours/default`, `GET /address-groups`,
		`PUT /routers/${router} {"router":{"external_gateway_info":{"network_id":"${outside}"}}}`, `GET /qos/policies`, `GET /qos/rule-types`,
	}},
	{"all of them, at the end", []string{
		`DELETE /floatingips/${f}`, `PUT /routers/${router}/remove_router_interface {"subnet_id":"${s}"}`, `DELETE /routers/${router}`, `DELETE /ports/${port}`, `DELETE /subnets/${s}`, `DELETE /networks/${n}`, `DELETE /security-groups/${g}`,
	}},
}

// Terraform's and Ansible's resources find every request there that they send.
func TestToolsFindTheirRequests(t *testing.T) {
	t.Parallel()
	root := serveStore(t)
	outside := id(root.make("/networks", "network", object{"name": "outside", "router:external": true}))
	root.make("/subnets", "subnet", object{"network_id": outside, "ip_version": 4, "cidr": "198.51.100.0/24", "enable_dhcp": false})
	a := root.of("ours/member")
	saved := map[string]string{"outside": outside}
	for _, s := range sequences {
		for _, request := range s.requests {
			request, save, _ := strings.Cut(request, " → ")
			for name, value := range saved {
				request = strings.ReplaceAll(request, "${"+name+"}", value)
			}
			parts := strings.SplitN(request, " ", 3)
			var body any
			if len(parts) == 3 {
				if err := json.Unmarshal([]byte(parts[2]), &body); err != nil {
					t.Fatalf("%s: %v", request, err)
				}
			}
			status, answer := a.ask(parts[0], parts[1], body)
			if status < 200 || status > 299 {
				t.Errorf("%s: %s: %d %v", s.tool, request, status, answer)
			}
			if name, place, ok := strings.Cut(save, "="); ok {
				var at any = answer
				for part := range strings.SplitSeq(place, ".") {
					inside, _ := at.(object)
					at = inside[part]
				}
				saved[name], _ = at.(string)
			}
		}
	}
}
