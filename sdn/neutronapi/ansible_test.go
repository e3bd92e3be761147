package neutronapi_test

// ansible is what the modules of Ansible's collection openstack.cloud (2.5, by openstacksdk 4.0) send, as seen on the wire. A thing that is named is asked for as if its name were
// its id first, and then by name. What is of load balancers is as in their sources.
var ansible = []sequence{
	{"network and networks_info", false, []string{
		`404 GET /networks/an`, `GET /networks?name=an`, `POST /networks {"network":{"port_security_enabled":true,"mtu":1400,"name":"an"}} → n=network.id`,
		`PUT /networks/${n} {"network":{"mtu":1300}}`, `GET /networks?name=an&status=ACTIVE → n=networks.id`, `GET /networks`,
	}},
	{"subnet_pool", false, []string{
		`404 GET /subnetpools/apool`, `GET /subnetpools?name=apool`,
		`POST /subnetpools {"subnetpool":{"min_prefixlen":20,"max_prefixlen":28,"name":"apool","default_prefixlen":24,"description":"d","prefixes":["10.20.0.0/16"]}} → p=subnetpool.id`,
		`PUT /subnetpools/${p} {"subnetpool":{"default_prefixlen":25,"description":"e","prefixes":["10.20.0.0/16","10.30.0.0/16"]}}`,
	}},
	{"subnet and subnets_info", false, []string{
		`404 GET /subnets/as?network_id=${n}`, `GET /subnets?name=as&network_id=${n}`,
		`POST /subnets {"subnet":{"network_id":"${n}","ip_version":4,"cidr":"10.0.0.0/24","allocation_pools":[{"start":"10.0.0.2","end":"10.0.0.99"}],"gateway_ip":"10.0.0.1","dns_nameservers":["9.9.9.9"],"enable_dhcp":true,"name":"as","host_routes":[{"destination":"192.0.2.0/24","nexthop":"10.0.0.9"}]}} → s=subnet.id`,
		`PUT /subnets/${s} {"subnet":{"dns_nameservers":["8.8.8.8"],"host_routes":[]}}`,
		`POST /subnets {"subnet":{"ip_version":4,"gateway_ip":null,"network_id":"${n}","name":"asn","cidr":"10.0.1.0/24","enable_dhcp":false}} → sn=subnet.id`,
		`404 GET /subnets/asp?network_id=${n}&subnet_pool_id=${p}`, `GET /subnets?name=asp&network_id=${n}&subnetpool_id=${p}`,
		`POST /subnets {"subnet":{"enable_dhcp":true,"network_id":"${n}","ip_version":4,"subnetpool_id":"${p}","name":"asp","prefixlen":"26"}} → sp=subnet.id`,
		`POST /subnets {"subnet":{"ip_version":4,"name":"as2","network_id":"${n}","enable_dhcp":true,"cidr":"10.0.2.0/24"}} → s2=subnet.id`, `GET /subnets?ip_version=4&name=as → s=subnets.id`,
	}},
	{"security_group and security_group_info", false, []string{
		`404 GET /security-groups/ag`, `GET /security-groups?name=ag`, `POST /security-groups {"security_group":{"name":"ag","description":"d"}} → g=security_group.id`,
		`PUT /security-groups/${g} {"security_group":{"description":"e"}}`,
		`POST /security-group-rules {"security_group_rules":[{"ethertype":"IPv4","port_range_max":81,"direction":"ingress","remote_ip_prefix":"10.0.0.0/8","project_id":"ours","port_range_min":80,"protocol":"tcp","security_group_id":"${g}"},{"ethertype":"IPv4","port_range_max":5,"direction":"ingress","project_id":"ours","port_range_min":5,"protocol":"17","security_group_id":"${g}"}]} → r=security_group_rules.id`,
		`GET /security-groups/${g}`, `DELETE /security-group-rules/${r}`, `POST /security-groups {"security_group":{"name":"astate","stateful":true}} → g2=security_group.id`, `GET /security-groups`,
		`GET /security-groups?tags-any=x`,
	}},
	{"security_group_rule and security_group_rule_info", false, []string{
		`POST /security-group-rules {"security_group_rule":{"direction":"ingress","port_range_min":22,"remote_ip_prefix":"0.0.0.0/0","security_group_id":"${g}","ethertype":"IPv4","port_range_max":22,"protocol":"tcp"}} → r=security_group_rule.id`,
		`GET /security-group-rules/${r}`, `POST /security-group-rules {"security_group_rule":{"ethertype":"IPv4","security_group_id":"${g}","remote_group_id":"${g}","description":"p","protocol":"icmp","direction":"ingress"}}`,
		`POST /security-group-rules {"security_group_rule":{"ethertype":"IPv6","direction":"ingress","protocol":"112","security_group_id":"${g}"}}`,
		`GET /security-group-rules?protocol=tcp&security_group_id=${g} → r=security_group_rules.id`, `DELETE /security-group-rules/${r}`,
	}},
	{"port and port_info", false, []string{
		`404 GET /ports/ap?network_id=${n}`, `GET /ports?name=ap&network_id=${n}`,
		`POST /ports {"port":{"network_id":"${n}","security_groups":["${g}"],"fixed_ips":[{"ip_address":"10.0.0.50"}],"name":"ap","description":"d","allowed_address_pairs":[{"ip_address":"10.0.0.200"}]}} → port=port.id`,
		`PUT /ports/${port} {"port":{"allowed_address_pairs":[],"fixed_ips":[{"ip_address":"10.0.0.51"}]}}`,
		`POST /ports {"port":{"network_id":"${n}","security_groups":[],"name":"apn","port_security_enabled":false}} → apn=port.id`, `GET /ports`, `GET /ports?device_owner=x`,
		`GET /ports?name=ap → port=ports.id`,
	}},
	{"router, also by a port with the gateway's address, and routers_info", false, []string{
		`404 GET /routers/ar`, `GET /routers?name=ar`, `404 GET /networks/outside`, `GET /networks?name=outside → outside=networks.id`, `404 GET /subnets/as`, `GET /subnets?name=as → s=subnets.id`,
		`POST /routers {"router":{"admin_state_up":true,"external_gateway_info":{"network_id":"${outside}"},"name":"ar"}} → router=router.id`,
		`PUT /routers/${router}/add_router_interface {"subnet_id":"${s}"}`, `GET /ports?device_id=${router}`, `GET /ports?network_id=${n}`,
		`POST /ports {"port":{"fixed_ips":[{"ip_address":"10.0.2.1","subnet_id":"${s2}"}],"network_id":"${n}"}} → leg=port.id`, `PUT /routers/${router}/add_router_interface {"port_id":"${leg}"}`,
		`GET /routers?name=ar → router=routers.id`,
	}},
	{"resource and floating_ip_info", false, []string{
		`404 GET /ports/generic`, `GET /ports?name=generic`, `POST /ports {"port":{"name":"generic","network_id":"${n}"}} → generic=port.id`, `DELETE /ports/${generic}`,
		`POST /floatingips {"floatingip":{"floating_network_id":"${outside}","description":"mine"}} → f=floatingip.id`, `GET /floatingips`, `GET /floatingips?floating_network_id=${outside} → f=floatingips.id`,
	}},
	{"port_forwarding and port_forwarding_info", false, []string{
		`404 GET /floatingips/198.51.100.77`, `GET /floatingips`, `404 GET /ports/ap`, `GET /floatingips/${f}/port_forwardings?internal_port_id=${port}&external_port=2222&protocol=tcp`,
		`POST /floatingips/${f}/port_forwardings {"port_forwarding":{"internal_port":22,"internal_port_id":"${port}","external_port":2222,"internal_ip_address":"10.0.0.51","protocol":"tcp"}}`,
		`GET /floatingips/${f}/port_forwardings?internal_port_id=${port}&external_port=2222&protocol=tcp → pf=port_forwardings.id`,
		`PUT /floatingips/${f}/port_forwardings/${pf} {"port_forwarding":{"internal_port":23}}`, `GET /floatingips/${f}/port_forwardings → pf=port_forwardings.id`,
		`DELETE /floatingips/${f}/port_forwardings/${pf}`, `GET /floatingips?description=mine&floating_network_id=${outside} → f=floatingips.id`,
	}},
	{"trunk", false, []string{
		`POST /ports {"port":{"network_id":"${n}","name":"tp"}} → tp=port.id`, `POST /ports {"port":{"network_id":"${n}","name":"tc"}} → tc=port.id`, `404 GET /trunks/at`, `GET /trunks?name=at`,
		`POST /trunks {"trunk":{"name":"at","port_id":"${tp}"}} → t=trunk.id`, `PUT /trunks/${t}/add_subports {"sub_ports":[{"port_id":"${tc}","segmentation_type":"vlan","segmentation_id":101}]}`, `GET /trunks/${t}`,
		`PUT /trunks/${t}/remove_subports {"sub_ports":[{"port_id":"${tc}"}]}`, `PUT /trunks/${t}/remove_subports {"sub_ports":[]}`, `DELETE /trunks/${t}`, `DELETE /ports/${tp}`, `DELETE /ports/${tc}`,
	}},
	{"quota", true, []string{
		`GET /quotas/ours`, `PUT /quotas/ours {"quota":{"network":50,"port":200,"router":20,"subnet":50,"security_group":20,"security_group_rule":200,"floatingip":20,"rbac_policy":10,"subnetpool":5}}`, `DELETE /quotas/ours`,
	}},
	{"loadbalancer, lb_listener, lb_pool and lb_member", false, []string{
		`404 GET /lbaas/loadbalancers/alb`, `GET /lbaas/loadbalancers?name=alb`, `GET /../load-balancer/`, `404 GET /subnets/as`, `GET /subnets?name=as → s=subnets.id`,
		`POST /lbaas/loadbalancers {"loadbalancer":{"name":"alb","vip_address":null,"vip_network_id":null,"vip_port_id":null,"vip_subnet_id":"${s}"}} → lb=loadbalancer.id`, `GET /lbaas/loadbalancers/${lb} → vip=loadbalancer.vip_port_id`,
		`404 GET /lbaas/listeners/al`, `GET /lbaas/listeners?name=al`,
		`POST /lbaas/listeners {"listener":{"allowed_cidrs":["192.0.2.0/24"],"loadbalancer_id":"${lb}","name":"al","protocol":"TCP","protocol_port":80}} → li=listener.id`, `PUT /lbaas/listeners/${li} {"listener":{"description":"d"}}`,
		`404 GET /lbaas/pools/apool`, `GET /lbaas/pools?name=apool`, `POST /lbaas/pools {"pool":{"lb_algorithm":"ROUND_ROBIN","listener_id":"${li}","name":"apool","protocol":"TCP"}} → po=pool.id`, `GET /lbaas/pools/${po}`,
		`404 GET /lbaas/pools/${po}/members/am`, `GET /lbaas/pools/${po}/members?name=am`,
		`POST /lbaas/pools/${po}/members {"member":{"address":"10.0.0.52","name":"am","protocol_port":80,"subnet_id":"${s}"}} → me=member.id`, `PUT /lbaas/pools/${po}/members/${me} {"member":{"weight":3}}`,
		`POST /floatingips {"floatingip":{"floating_network_id":"${outside}","port_id":"${vip}"}} → lf=floatingip.id`, `GET /floatingips?port_id=${vip} → lf=floatingips.id`,
		`DELETE /floatingips/${lf}`, `DELETE /lbaas/pools/${po}/members/${me}`, `DELETE /lbaas/loadbalancers/${lb}?cascade=True`, `404 GET /lbaas/loadbalancers/${lb}`,
	}},
	{"all of them, at the end", false, []string{
		`DELETE /floatingips/${f}`, `DELETE /ports/${port}`, `DELETE /ports/${apn}`, `GET /ports?device_id=${router}`, `PUT /routers/${router}/remove_router_interface {"port_id":"${leg}"}`,
		`PUT /routers/${router}/remove_router_interface {"subnet_id":"${s}"}`, `DELETE /routers/${router}`, `DELETE /subnets/${s}`, `DELETE /subnets/${sn}`, `DELETE /subnets/${sp}`, `DELETE /subnets/${s2}`,
		`DELETE /subnetpools/${p}`, `DELETE /security-groups/${g}`, `DELETE /security-groups/${g2}`, `DELETE /networks/${n}`,
	}},
}
