package neutronlab

import "context"

// ExternalNetwork makes the provider network on which the central host is the gateway and the outside, once; it has
// floating IPs and routers' gateways from 203.0.113.100 on.
func (l *Lab) ExternalNetwork(ctx context.Context) (Object, error) {
	api := l.API()
	const name = "external"
	found, err := api.List(ctx, "networks", "router:external=true&name="+name)
	if err != nil || len(found) > 0 {
		return append(found, nil)[0], err
	}
	network, err := api.Create(ctx, "networks", Object{"name": name, "router:external": true, "project_id": "operator",
		"provider:network_type": "flat", "provider:physical_network": PhysicalNetwork})
	if err != nil {
		return nil, err
	}
	_, err = api.Create(ctx, "subnets", Object{
		"network_id": network.ID(), "ip_version": 4, "cidr": External.Masked().String(),
		"enable_dhcp": false,
		"gateway_ip":  External.Addr().String(), "project_id": "operator",
		"allocation_pools": []Object{{"start": "203.0.113.100", "end": "203.0.113.200"}}})
	return network, err
}
