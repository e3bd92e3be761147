//go:build linux

package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/topology"
	"github.com/spf13/cobra"
)

func (a *app) resourceCommands() []*cobra.Command {
	networks := a.resourceCommand(networkResource.untyped())
	networks.Short = "List, show, create and delete networks"
	networks.AddCommand(a.createNetworkCommand(), a.deleteNetworkCommand())
	return []*cobra.Command{
		networks,
		a.resourceCommand(subnetResource.untyped()),
		a.resourceCommand(subnetPoolResource.untyped()),
		a.resourceCommand(portResource.untyped()),
		a.resourceCommand(routerResource.untyped()),
		a.resourceCommand(floatingIPResource.untyped()),
		a.resourceCommand(securityGroupResource.untyped()),
		a.resourceCommand(loadBalancerResource.untyped()),
	}
}

var networkResource = &resource[api.Network]{
	names: api.Networks, title: "network", common: func(n api.Network) api.Common { return n.Common },
	called: userNames.network,
	named: func(_ userNames, n api.Network, word string) bool {
		return n.Key().Kind == "docker-network" && isDockerID(n.Key().Name, word)
	},
	more:    func(o topology.Objects, _ userNames) []table.Column[api.Network] { return warnings(o) },
	filters: []string{"router:external"},
	list: []table.Column[api.Network]{
		{Name: "subnets", Value: func(n api.Network) string { return lines(n.Subnets) }},
		{Name: "mtu", Value: func(n api.Network) string { return strconv.Itoa(n.MTU) }},
		{Name: "external", Value: func(n api.Network) string { return yes(n.External) }},
	},
	show: []table.Column[api.Network]{
		{Name: "shared", Value: func(n api.Network) string { return yes(n.Shared) }},
		{Name: "port security", Value: func(n api.Network) string { return yes(n.PortSecurity) }},
	},
}

var subnetResource = &resource[api.Subnet]{
	names: api.Subnets, title: "subnet", common: func(s api.Subnet) api.Common { return s.Common },
	called:  userNames.subnet,
	filters: []string{"network_id", "subnetpool_id", "cidr"},
	list: []table.Column[api.Subnet]{
		{Name: "network", Value: func(s api.Subnet) string { return s.NetworkID }},
		{Name: "cidr", Value: func(s api.Subnet) string { return s.CIDR }},
		{Name: "gateway", Value: func(s api.Subnet) string { return api.Value(s.GatewayIP) }},
	},
	show: []table.Column[api.Subnet]{
		{Name: "allocation pools", Value: func(s api.Subnet) string {
			return linesOf(s.AllocationPools, func(p api.AllocationPool) string { return p.Start + " - " + p.End })
		}},
		{Name: "reserved", Value: func(s api.Subnet) string { return lines(s.Reserved) }},
		{Name: "subnet pool", Value: func(s api.Subnet) string { return api.Value(s.SubnetPoolID) }},
		{Name: "nameservers", Value: func(s api.Subnet) string { return lines(s.Nameservers) }},
		{Name: "host routes", Value: func(s api.Subnet) string { return linesOf(s.HostRoutes, route) }},
	},
}

var subnetPoolResource = &resource[api.SubnetPool]{
	names: api.SubnetPools, title: "subnet pool",
	common: func(p api.SubnetPool) api.Common { return p.Common },
	list: []table.Column[api.SubnetPool]{
		{Name: "prefixes", Value: func(p api.SubnetPool) string { return lines(p.Prefixes) }},
		{Name: "default length", Value: func(p api.SubnetPool) string { return strconv.Itoa(p.DefaultPrefixLen) }},
	},
	show: []table.Column[api.SubnetPool]{
		{Name: "least length", Value: func(p api.SubnetPool) string { return strconv.Itoa(p.MinPrefixLen) }},
		{Name: "most length", Value: func(p api.SubnetPool) string { return strconv.Itoa(p.MaxPrefixLen) }},
		{Name: "shared", Value: func(p api.SubnetPool) string { return yes(p.Shared) }},
	},
}

var portResource = &resource[api.Port]{
	names: api.Ports, title: "port", common: func(p api.Port) api.Common { return p.Common },
	called:  userNames.port,
	named:   userNames.ofContainer,
	filters: []string{"network_id", "device_id", "device_owner", "mac_address", "fixed_ips", "binding:host_id"},
	list: []table.Column[api.Port]{
		{Name: "mac", Value: func(p api.Port) string { return p.MACAddress }},
		{Name: "addresses", Value: func(p api.Port) string { return linesOf(p.FixedIPs, address) }},
		{Name: "device owner", Value: func(p api.Port) string { return p.DeviceOwner }},
		{Name: "status", Value: func(p api.Port) string { return p.Status }},
	},
	show: []table.Column[api.Port]{
		{Name: "network", Value: func(p api.Port) string { return p.NetworkID }},
		{Name: "device", Value: func(p api.Port) string { return p.DeviceID }},
		{Name: "host", Value: func(p api.Port) string { return p.HostID }},
		{Name: "vif type", Value: func(p api.Port) string { return p.VIFType }},
		{Name: "vif details", Value: func(p api.Port) string { return pairs(p.VIFDetails) }},
		{Name: "port security", Value: func(p api.Port) string { return yes(p.PortSecurity) }},
		{Name: "allowed addresses", Value: func(p api.Port) string {
			return linesOf(p.AllowedPairs, func(a api.AddressPair) string { return a.IPAddress + " " + a.MACAddress })
		}},
		{Name: "security groups", Value: func(p api.Port) string { return lines(p.SecurityGroups) }},
		{Name: "qos policy", Value: func(p api.Port) string { return api.Value(p.QoSPolicyID) }},
	},
}

var routerResource = &resource[api.Router]{
	names: api.Routers, title: "router", common: func(r api.Router) api.Common { return r.Common },
	called: userNames.router,
	list: []table.Column[api.Router]{
		{Name: "gateway", Value: func(r api.Router) string {
			if r.Gateway == nil {
				return ""
			}
			return linesOf(r.Gateway.FixedIPs, address)
		}},
		{Name: "nat", Value: func(r api.Router) string { return yes(r.Gateway != nil && r.Gateway.EnableSNAT) }},
		{Name: "legs", Value: func(r api.Router) string {
			return linesOf(r.Interfaces, func(i api.Interface) string { return i.IPAddress })
		}},
	},
	show: []table.Column[api.Router]{
		{Name: "subnets", Value: func(r api.Router) string {
			return linesOf(r.Interfaces, func(i api.Interface) string { return i.SubnetID })
		}},
		{Name: "routes", Value: func(r api.Router) string { return linesOf(r.Routes, route) }},
		{Name: "unreached", Value: func(r api.Router) string {
			return linesOf(r.Unreached, func(u api.Unreached) string { return u.Prefix + ": " + u.Reason })
		}},
	},
}

var floatingIPResource = &resource[api.FloatingIP]{
	names: api.FloatingIPs, title: "floating IP",
	common:  func(f api.FloatingIP) api.Common { return f.Common },
	filters: []string{"floating_ip_address", "port_id", "router_id"},
	more:    published,
	show: []table.Column[api.FloatingIP]{
		{Name: "port", Value: func(f api.FloatingIP) string { return api.Value(f.PortID) }},
		{Name: "fixed address", Value: func(f api.FloatingIP) string { return api.Value(f.FixedIPAddress) }},
		{Name: "router", Value: func(f api.FloatingIP) string { return api.Value(f.RouterID) }},
		{Name: "network", Value: func(f api.FloatingIP) string { return f.FloatingNetworkID }},
	},
}

var securityGroupResource = &resource[api.SecurityGroup]{
	names: api.SecurityGroups, title: "security group",
	common: func(g api.SecurityGroup) api.Common { return g.Common },
	list: []table.Column[api.SecurityGroup]{
		{Name: "rules", Value: func(g api.SecurityGroup) string { return linesOf(g.Rules, rule) }},
	},
}

// rule is a security group's rule in words, such as "in IPv4 tcp 80-90 from 10.0.0.0/8".
func rule(r api.SecurityGroupRule) string {
	words, side := []string{"in", r.EtherType}, "from"
	if r.Direction == "egress" {
		words[0], side = "out", "to"
	}
	if r.Protocol != nil {
		words = append(words, *r.Protocol)
	}
	if r.PortRangeMin != nil {
		ports := strconv.Itoa(*r.PortRangeMin)
		if r.PortRangeMax != nil && *r.PortRangeMax != *r.PortRangeMin {
			ports += "-" + strconv.Itoa(*r.PortRangeMax)
		}
		words = append(words, ports)
	}
	switch {
	case r.RemoteIPPrefix != nil:
		words = append(words, side, *r.RemoteIPPrefix)
	case r.RemoteGroupID != nil:
		words = append(words, side, "group", *r.RemoteGroupID)
	case r.RemoteAddressGroupID != nil:
		words = append(words, side, "address group", *r.RemoteAddressGroupID)
	}
	return strings.Join(words, " ")
}

func lines(all []string) string { return strings.Join(all, "\n") }

func linesOf[T any](all []T, show func(T) string) string {
	out := make([]string, len(all))
	for i, v := range all {
		out[i] = show(v)
	}
	return lines(out)
}

func address(a api.FixedIP) string { return a.IPAddress }

func route(r api.Route) string { return r.Destination + " via " + r.NextHop }

func pairs(m map[string]string) string {
	var out []string
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return lines(out)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
