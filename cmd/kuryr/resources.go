//go:build linux

package main

import (
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/topology"
	"github.com/kuryr/kuryr/sdn/neutronapi"
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

var networkResource = &resource[neutronapi.Network]{
	names: neutronapi.Networks, title: "network", common: func(n neutronapi.Network) neutronapi.Common { return n.Common },
	called: userNames.network,
	named: func(_ userNames, n neutronapi.Network, word string) bool {
		return n.Key().Kind == "docker-network" && isDockerID(n.Key().Name, word)
	},
	more:    func(o topology.Objects, _ userNames) []table.Column[neutronapi.Network] { return warnings(o) },
	filters: []string{"router:external"},
	list: []table.Column[neutronapi.Network]{
		{Name: "subnets", Value: func(n neutronapi.Network) string { return lines(n.Subnets) }},
		{Name: "mtu", Value: func(n neutronapi.Network) string { return strconv.Itoa(n.MTU) }},
		{Name: "external", Value: func(n neutronapi.Network) string { return yes(n.External) }},
	},
	show: []table.Column[neutronapi.Network]{
		{Name: "shared", Value: func(n neutronapi.Network) string { return yes(n.Shared) }},
		{Name: "port security", Value: func(n neutronapi.Network) string { return yes(n.PortSecurity) }},
	},
}

var subnetResource = &resource[neutronapi.Subnet]{
	names: neutronapi.Subnets, title: "subnet", common: func(s neutronapi.Subnet) neutronapi.Common { return s.Common },
	called:  userNames.subnet,
	filters: []string{"network_id", "subnetpool_id", "cidr"},
	list: []table.Column[neutronapi.Subnet]{
		{Name: "network", Value: func(s neutronapi.Subnet) string { return s.NetworkID }},
		{Name: "cidr", Value: func(s neutronapi.Subnet) string { return s.CIDR }},
		{Name: "gateway", Value: func(s neutronapi.Subnet) string { return neutronapi.Value(s.GatewayIP) }},
	},
	show: []table.Column[neutronapi.Subnet]{
		{Name: "allocation pools", Value: func(s neutronapi.Subnet) string {
			return linesOf(s.AllocationPools, func(p neutronapi.AllocationPool) string { return p.Start + " - " + p.End })
		}},
		{Name: "reserved", Value: func(s neutronapi.Subnet) string { return lines(s.Reserved) }},
		{Name: "subnet pool", Value: func(s neutronapi.Subnet) string { return neutronapi.Value(s.SubnetPoolID) }},
		{Name: "nameservers", Value: func(s neutronapi.Subnet) string { return lines(s.Nameservers) }},
		{Name: "host routes", Value: func(s neutronapi.Subnet) string { return linesOf(s.HostRoutes, route) }},
	},
}

var subnetPoolResource = &resource[neutronapi.SubnetPool]{
	names: neutronapi.SubnetPools, title: "subnet pool",
	common: func(p neutronapi.SubnetPool) neutronapi.Common { return p.Common },
	list: []table.Column[neutronapi.SubnetPool]{
		{Name: "prefixes", Value: func(p neutronapi.SubnetPool) string { return lines(p.Prefixes) }},
		{Name: "default length", Value: func(p neutronapi.SubnetPool) string { return strconv.Itoa(p.DefaultPrefixLen) }},
	},
	show: []table.Column[neutronapi.SubnetPool]{
		{Name: "least length", Value: func(p neutronapi.SubnetPool) string { return strconv.Itoa(p.MinPrefixLen) }},
		{Name: "most length", Value: func(p neutronapi.SubnetPool) string { return strconv.Itoa(p.MaxPrefixLen) }},
		{Name: "shared", Value: func(p neutronapi.SubnetPool) string { return yes(p.Shared) }},
	},
}

var portResource = &resource[neutronapi.Port]{
	names: neutronapi.Ports, title: "port", common: func(p neutronapi.Port) neutronapi.Common { return p.Common },
	called:  userNames.port,
	named:   userNames.ofContainer,
	filters: []string{"network_id", "device_id", "device_owner", "mac_address", "fixed_ips", "binding:host_id"},
	list: []table.Column[neutronapi.Port]{
		{Name: "mac", Value: func(p neutronapi.Port) string { return p.MACAddress }},
		{Name: "addresses", Value: func(p neutronapi.Port) string { return linesOf(p.FixedIPs, address) }},
		{Name: "device owner", Value: func(p neutronapi.Port) string { return p.DeviceOwner }},
		{Name: "status", Value: func(p neutronapi.Port) string { return p.Status }},
	},
	show: []table.Column[neutronapi.Port]{
		{Name: "network", Value: func(p neutronapi.Port) string { return p.NetworkID }},
		{Name: "device", Value: func(p neutronapi.Port) string { return p.DeviceID }},
		{Name: "host", Value: func(p neutronapi.Port) string { return p.HostID }},
		{Name: "vif type", Value: func(p neutronapi.Port) string { return p.VIFType }},
		{Name: "vif details", Value: func(p neutronapi.Port) string { return pairs(p.VIFDetails) }},
		{Name: "port security", Value: func(p neutronapi.Port) string { return yes(p.PortSecurity) }},
		{Name: "allowed addresses", Value: func(p neutronapi.Port) string {
			return linesOf(p.AllowedPairs, func(a neutronapi.AddressPair) string { return a.IPAddress + " " + a.MACAddress })
		}},
		{Name: "security groups", Value: func(p neutronapi.Port) string { return lines(p.SecurityGroups) }},
		{Name: "qos policy", Value: func(p neutronapi.Port) string { return neutronapi.Value(p.QoSPolicyID) }},
	},
}

var routerResource = &resource[neutronapi.Router]{
	names: neutronapi.Routers, title: "router", common: func(r neutronapi.Router) neutronapi.Common { return r.Common },
	called: userNames.router,
	list: []table.Column[neutronapi.Router]{
		{Name: "gateway", Value: func(r neutronapi.Router) string {
			if r.Gateway == nil {
				return ""
			}
			return linesOf(r.Gateway.FixedIPs, address)
		}},
		{Name: "nat", Value: func(r neutronapi.Router) string { return yes(r.Gateway != nil && r.Gateway.EnableSNAT) }},
		{Name: "legs", Value: func(r neutronapi.Router) string {
			return linesOf(r.Interfaces, func(i neutronapi.Interface) string { return i.IPAddress })
		}},
	},
	show: []table.Column[neutronapi.Router]{
		{Name: "subnets", Value: func(r neutronapi.Router) string {
			return linesOf(r.Interfaces, func(i neutronapi.Interface) string { return i.SubnetID })
		}},
		{Name: "routes", Value: func(r neutronapi.Router) string { return linesOf(r.Routes, route) }},
		{Name: "unreached", Value: func(r neutronapi.Router) string {
			return linesOf(r.Unreached, func(u neutronapi.Unreached) string { return u.Prefix + ": " + u.Reason })
		}},
	},
}

var floatingIPResource = &resource[neutronapi.FloatingIP]{
	names: neutronapi.FloatingIPs, title: "floating IP",
	common:  func(f neutronapi.FloatingIP) neutronapi.Common { return f.Common },
	filters: []string{"floating_ip_address", "port_id", "router_id"},
	more:    published,
	show: []table.Column[neutronapi.FloatingIP]{
		{Name: "port", Value: func(f neutronapi.FloatingIP) string { return neutronapi.Value(f.PortID) }},
		{Name: "fixed address", Value: func(f neutronapi.FloatingIP) string { return neutronapi.Value(f.FixedIPAddress) }},
		{Name: "router", Value: func(f neutronapi.FloatingIP) string { return neutronapi.Value(f.RouterID) }},
		{Name: "network", Value: func(f neutronapi.FloatingIP) string { return f.FloatingNetworkID }},
	},
}

var securityGroupResource = &resource[neutronapi.SecurityGroup]{
	names: neutronapi.SecurityGroups, title: "security group",
	common: func(g neutronapi.SecurityGroup) neutronapi.Common { return g.Common },
	list: []table.Column[neutronapi.SecurityGroup]{
		{Name: "rules", Value: func(g neutronapi.SecurityGroup) string { return linesOf(g.Rules, rule) }},
	},
}

// rule is a security group's rule in words, such as "in IPv4 tcp 80-90 from 10.0.0.0/8".
func rule(r neutronapi.SecurityGroupRule) string {
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

func address(a neutronapi.FixedIP) string { return a.IPAddress }

func route(r neutronapi.Route) string { return r.Destination + " via " + r.NextHop }

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
