//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/internal/table"
	"github.com/kuryr/kuryr/internal/topology"
	"github.com/kuryr/kuryr/sdn/restapi"
	"github.com/spf13/cobra"
)

// noun is what the commands list and show of a noun need to know.
type noun[E any] struct {
	resource restapi.Resource[E]
	title    string // "subnet pool"
	common   func(E) restapi.Common
	filters  []string          // by which a list can be cut, besides id, name and tags
	list     []table.Column[E] // of a list, after id and name
	show     []table.Column[E] // more, of a single one
	// fill, if set, asks for what a single one does not tell by itself.
	fill func(context.Context, *restapi.Client, *E) error
	// called is the users' name of an object; "" if they have no name of their own for it.
	called func(userNames, E) string
	// named reports whether a word that is none of these names stands for the object.
	named func(names userNames, e E, word string) bool
	// more gives columns of a list that other objects tell.
	more func(topology.Objects, userNames) []table.Column[E]
}

func (a *app) nounCommands() []*cobra.Command {
	networks := nounCommand(a, networkNoun)
	networks.Short = "List, show, create and delete networks"
	networks.AddCommand(a.createNetworkCommand(), a.deleteNetworkCommand())
	return []*cobra.Command{
		networks,
		nounCommand(a, subnetNoun),
		nounCommand(a, subnetPoolNoun),
		nounCommand(a, portNoun),
		nounCommand(a, routerNoun),
		nounCommand(a, floatingIPNoun),
		nounCommand(a, securityGroupNoun),
		nounCommand(a, loadBalancerNoun),
	}
}

var networkNoun = &noun[restapi.Network]{
	resource: restapi.Networks, title: "network", common: func(n restapi.Network) restapi.Common { return n.Common },
	called: userNames.network,
	named: func(_ userNames, n restapi.Network, word string) bool {
		return n.Key().Kind == "docker-network" && isDockerID(n.Key().Name, word)
	},
	more:    func(o topology.Objects, _ userNames) []table.Column[restapi.Network] { return warnings(o) },
	filters: []string{"router:external"},
	list: []table.Column[restapi.Network]{
		{Name: "subnets", Value: func(n restapi.Network) string { return lines(n.Subnets) }},
		{Name: "mtu", Value: func(n restapi.Network) string { return strconv.Itoa(n.MTU) }},
		{Name: "external", Value: func(n restapi.Network) string { return yes(n.External) }},
	},
	show: []table.Column[restapi.Network]{
		{Name: "shared", Value: func(n restapi.Network) string { return yes(n.Shared) }},
		{Name: "port security", Value: func(n restapi.Network) string { return yes(n.PortSecurity) }},
	},
}

var subnetNoun = &noun[restapi.Subnet]{
	resource: restapi.Subnets, title: "subnet", common: func(s restapi.Subnet) restapi.Common { return s.Common },
	called:  userNames.subnet,
	filters: []string{"network_id", "subnetpool_id", "cidr"},
	list: []table.Column[restapi.Subnet]{
		{Name: "network", Value: func(s restapi.Subnet) string { return s.NetworkID }},
		{Name: "cidr", Value: func(s restapi.Subnet) string { return s.CIDR }},
		{Name: "gateway", Value: func(s restapi.Subnet) string { return restapi.Value(s.GatewayIP) }},
	},
	show: []table.Column[restapi.Subnet]{
		{Name: "allocation pools", Value: func(s restapi.Subnet) string {
			return linesOf(s.AllocationPools, func(p restapi.AllocationPool) string { return p.Start + " - " + p.End })
		}},
		{Name: "reserved", Value: func(s restapi.Subnet) string { return lines(s.Reserved) }},
		{Name: "subnet pool", Value: func(s restapi.Subnet) string { return restapi.Value(s.SubnetPoolID) }},
		{Name: "nameservers", Value: func(s restapi.Subnet) string { return lines(s.Nameservers) }},
		{Name: "host routes", Value: func(s restapi.Subnet) string { return linesOf(s.HostRoutes, route) }},
	},
}

var subnetPoolNoun = &noun[restapi.SubnetPool]{
	resource: restapi.SubnetPools, title: "subnet pool", common: func(p restapi.SubnetPool) restapi.Common { return p.Common },
	list: []table.Column[restapi.SubnetPool]{
		{Name: "prefixes", Value: func(p restapi.SubnetPool) string { return lines(p.Prefixes) }},
		{Name: "default length", Value: func(p restapi.SubnetPool) string { return strconv.Itoa(p.DefaultPrefixLen) }},
	},
	show: []table.Column[restapi.SubnetPool]{
		{Name: "least length", Value: func(p restapi.SubnetPool) string { return strconv.Itoa(p.MinPrefixLen) }},
		{Name: "most length", Value: func(p restapi.SubnetPool) string { return strconv.Itoa(p.MaxPrefixLen) }},
		{Name: "shared", Value: func(p restapi.SubnetPool) string { return yes(p.Shared) }},
	},
}

var portNoun = &noun[restapi.Port]{
	resource: restapi.Ports, title: "port", common: func(p restapi.Port) restapi.Common { return p.Common },
	called:  userNames.port,
	named:   userNames.ofContainer,
	filters: []string{"network_id", "device_id", "device_owner", "mac_address", "fixed_ips", "binding:host_id"},
	list: []table.Column[restapi.Port]{
		{Name: "mac", Value: func(p restapi.Port) string { return p.MACAddress }},
		{Name: "addresses", Value: func(p restapi.Port) string { return linesOf(p.FixedIPs, address) }},
		{Name: "device owner", Value: func(p restapi.Port) string { return p.DeviceOwner }},
		{Name: "status", Value: func(p restapi.Port) string { return p.Status }},
	},
	show: []table.Column[restapi.Port]{
		{Name: "network", Value: func(p restapi.Port) string { return p.NetworkID }},
		{Name: "device", Value: func(p restapi.Port) string { return p.DeviceID }},
		{Name: "host", Value: func(p restapi.Port) string { return p.HostID }},
		{Name: "vif type", Value: func(p restapi.Port) string { return p.VIFType }},
		{Name: "vif details", Value: func(p restapi.Port) string { return pairs(p.VIFDetails) }},
		{Name: "port security", Value: func(p restapi.Port) string { return yes(p.PortSecurity) }},
		{Name: "allowed addresses", Value: func(p restapi.Port) string {
			return linesOf(p.AllowedPairs, func(a restapi.AddressPair) string { return a.IPAddress + " " + a.MACAddress })
		}},
		{Name: "security groups", Value: func(p restapi.Port) string { return lines(p.SecurityGroups) }},
		{Name: "qos policy", Value: func(p restapi.Port) string { return restapi.Value(p.QoSPolicyID) }},
	},
}

var routerNoun = &noun[restapi.Router]{
	resource: restapi.Routers, title: "router", common: func(r restapi.Router) restapi.Common { return r.Common },
	called: userNames.router,
	list: []table.Column[restapi.Router]{
		{Name: "gateway", Value: func(r restapi.Router) string {
			if r.Gateway == nil {
				return ""
			}
			return linesOf(r.Gateway.FixedIPs, address)
		}},
		{Name: "nat", Value: func(r restapi.Router) string { return yes(r.Gateway != nil && r.Gateway.EnableSNAT) }},
		{Name: "legs", Value: func(r restapi.Router) string {
			return linesOf(r.Interfaces, func(i restapi.Interface) string { return i.IPAddress })
		}},
	},
	show: []table.Column[restapi.Router]{
		{Name: "subnets", Value: func(r restapi.Router) string {
			return linesOf(r.Interfaces, func(i restapi.Interface) string { return i.SubnetID })
		}},
		{Name: "routes", Value: func(r restapi.Router) string { return linesOf(r.Routes, route) }},
		{Name: "unreached", Value: func(r restapi.Router) string {
			return linesOf(r.Unreached, func(u restapi.Unreached) string { return u.Prefix + ": " + u.Reason })
		}},
	},
}

var floatingIPNoun = &noun[restapi.FloatingIP]{
	resource: restapi.FloatingIPs, title: "floating IP", common: func(f restapi.FloatingIP) restapi.Common { return f.Common },
	filters: []string{"floating_ip_address", "port_id", "router_id"},
	more:    published,
	show: []table.Column[restapi.FloatingIP]{
		{Name: "port", Value: func(f restapi.FloatingIP) string { return restapi.Value(f.PortID) }},
		{Name: "fixed address", Value: func(f restapi.FloatingIP) string { return restapi.Value(f.FixedIPAddress) }},
		{Name: "router", Value: func(f restapi.FloatingIP) string { return restapi.Value(f.RouterID) }},
		{Name: "network", Value: func(f restapi.FloatingIP) string { return f.FloatingNetworkID }},
	},
}

var securityGroupNoun = &noun[restapi.SecurityGroup]{
	resource: restapi.SecurityGroups, title: "security group", common: func(g restapi.SecurityGroup) restapi.Common { return g.Common },
	list: []table.Column[restapi.SecurityGroup]{
		{Name: "rules", Value: func(g restapi.SecurityGroup) string { return linesOf(g.Rules, rule) }},
	},
}

// rule is a security group's rule in words, such as "in IPv4 tcp 80-90 from 10.0.0.0/8".
func rule(r restapi.SecurityGroupRule) string {
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

func nounCommand[E any](a *app, n *noun[E]) *cobra.Command {
	word := strings.ReplaceAll(n.resource.Member, "_", "")
	parent := group(&cobra.Command{
		Use: word, Short: "List and show " + n.title + "s",
		Example: fmt.Sprintf("  kuryr %[1]s list\n  kuryr %[1]s list -o json\n  kuryr %[1]s show NAME", word),
	})
	var filters, tags []string
	var output string
	list := &cobra.Command{
		Use: "list", Short: "List " + n.title + "s", Args: noArgs,
		Long: "List " + n.title + "s, sorted by name. --filter NAME=VALUE keeps those whose attribute has the value: " +
			strings.Join(append([]string{"id", "name"}, n.filters...), ", ") + ". JSON and YAML have all attributes, by their names in the Neutron API.",
		Example: fmt.Sprintf("  kuryr %[1]s list --filter id=0f3c0bd7-…\n  kuryr %[1]s list -o yaml", word),
		RunE: func(c *cobra.Command, _ []string) error {
			format, err := table.ParseFormat(output)
			if err != nil {
				return usageError{err}
			}
			for _, f := range filters {
				if !strings.Contains(f, "=") {
					return usageError{fmt.Errorf("--filter %q: want NAME=VALUE", f)}
				}
			}
			client, err := a.client(c)
			if err != nil {
				return err
			}
			// JSON has the SDN's names, for which Docker need not answer.
			var names userNames
			if format == table.Table || len(filters) > 0 {
				names = a.userNames(c, client.SDN())
			}
			query := url.Values{"tags": tags}
			if len(tags) == 0 {
				delete(query, "tags")
			}
			var named []string // by the users' name or the SDN's, of which it knows only its own
			for _, f := range filters {
				name, value, _ := strings.Cut(f, "=")
				if name == "name" {
					named = append(named, value)
					continue
				}
				if value, err = idOf(c.Context(), client.SDN(), names, name, value); err != nil {
					return err
				}
				query.Add(name, value)
			}
			all, err := restapi.List(c.Context(), client.SDN(), n.resource, query)
			if err != nil {
				return err
			}
			if len(named) > 0 {
				all = slices.DeleteFunc(all, func(e E) bool {
					return !slices.Contains(named, n.name(names, e)) && !slices.Contains(named, n.common(e).Name)
				})
			}
			sortslice.Func(all, func(x, y E) int {
				cx, cy := n.common(x), n.common(y)
				by := table.CompareNatural(n.name(names, x), n.name(names, y))
				return cmp.Or(by, strings.Compare(cx.ID, cy.ID))
			})
			columns := slices.Concat(n.identity(names), n.list)
			if format == table.Table && n.more != nil {
				objects, err := known(c.Context(), client, names)
				if err != nil {
					return err
				}
				columns = append(columns, n.more(objects, names)...)
			}
			return table.List(a.out, format, all, columns)
		},
	}
	list.Flags().StringArrayVar(&filters, "filter", nil, "`NAME=VALUE`; may be repeated")
	list.Flags().StringArrayVar(&tags, "tag", nil, "only those that have this `tag`; may be repeated")
	show := &cobra.Command{
		Use: "show NAME|ID", Short: "Show one " + n.title, Args: exactly(1, "the name or the id of one "+n.title),
		Example: fmt.Sprintf("  kuryr %[1]s show 0f3c0bd7-… -o json", word),
		RunE: func(c *cobra.Command, args []string) error {
			format, err := table.ParseFormat(output)
			if err != nil {
				return usageError{err}
			}
			client, err := a.client(c)
			if err != nil {
				return err
			}
			names := a.userNames(c, client.SDN())
			one, err := find(c.Context(), client.SDN(), n, names, args[0])
			if err != nil {
				return err
			}
			if n.fill != nil {
				if err := n.fill(c.Context(), client.SDN(), &one); err != nil {
					return err
				}
			}
			columns := slices.Concat(n.identity(names), n.list, n.show, n.meta())
			if format == table.Table && n.more != nil {
				objects, err := known(c.Context(), client, names)
				if err != nil {
					return err
				}
				columns = append(columns, n.more(objects, names)...)
			}
			return table.Show(a.out, format, one, columns)
		},
		ValidArgsFunction: completeOne(a, n),
	}
	for _, c := range []*cobra.Command{list, show} {
		addOutput(c, &output)
	}
	parent.AddCommand(list, show)
	return parent
}

// completeTimeout is how long a shell waits for what could follow.
const completeTimeout = 2 * time.Second

// completeOne completes the only argument of a command.
func completeOne[E any](a *app, n *noun[E]) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completions(a, c, n), cobra.ShellCompDirectiveNoFileComp
	}
}

// completions are the names and the ids of all objects, and nothing where kuryr does not answer.
func completions[E any](a *app, c *cobra.Command, n *noun[E]) []string {
	client, err := a.client(c)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.Context(), completeTimeout)
	defer cancel()
	c.SetContext(ctx)
	all, err := restapi.List(ctx, client.SDN(), n.resource, nil)
	if err != nil {
		return nil
	}
	names := a.userNames(c, client.SDN())
	var out []string
	for _, e := range all {
		id, name := n.common(e).ID, table.Printable(n.name(names, e))
		if name != "" {
			out = append(out, cobra.CompletionWithDesc(name, id))
		}
		out = append(out, cobra.CompletionWithDesc(id, name))
	}
	return out
}

func addOutput(c *cobra.Command, into *string) {
	c.Flags().StringVarP(into, "output", "o", string(table.Table), "`form` of the output: table, json or yaml")
	complete(c, "output", "table", "json", "yaml")
}

// find returns the object of this id, otherwise the one of this name: the SDN's, or its
// users'.
func find[E any](ctx context.Context, client *restapi.Client, n *noun[E], names userNames, id string) (E, error) {
	one, err := restapi.Get(ctx, client, n.resource, id)
	var refused *restapi.Error
	if !errors.As(err, &refused) || refused.Status != http.StatusNotFound {
		return one, err
	}
	named, err := restapi.List(ctx, client, n.resource, url.Values{"name": {id}})
	if err == nil && len(named) == 0 && n.called != nil {
		var all []E
		all, err = restapi.List(ctx, client, n.resource, nil)
		for _, e := range all {
			if n.called(names, e) == id || n.named != nil && n.named(names, e, id) {
				named = append(named, e)
			}
		}
	}
	switch {
	case err != nil:
		return one, err
	case len(named) == 0:
		return one, fmt.Errorf("there is no %s with the name or id %q", n.title, id)
	case len(named) > 1:
		var ids []string
		for _, e := range named {
			ids = append(ids, n.common(e).ID)
		}
		return one, fmt.Errorf("%d %ss have the name %q, with the ids %s", len(named), n.title, id, strings.Join(ids, ", "))
	}
	return named[0], nil
}

// idOf is the id that a filter by id stands for, where a name is given.
func idOf(ctx context.Context, client *restapi.Client, names userNames, filter, value string) (string, error) {
	if uuid.Validate(value) == nil {
		return value, nil
	}
	switch filter {
	case "network_id":
		e, err := find(ctx, client, networkNoun, names, value)
		return e.ID, err
	case "port_id":
		e, err := find(ctx, client, portNoun, names, value)
		return e.ID, err
	case "router_id":
		e, err := find(ctx, client, routerNoun, names, value)
		return e.ID, err
	}
	return value, nil
}

// name is the users' name of an object, otherwise the SDN's.
func (n *noun[E]) name(names userNames, e E) string {
	if n.called != nil {
		if name := n.called(names, e); name != "" {
			return name
		}
	}
	return n.common(e).Name
}

func (n *noun[E]) identity(names userNames) []table.Column[E] {
	return []table.Column[E]{
		{Name: "id", Value: func(e E) string { return n.common(e).ID }},
		{Name: "name", Value: func(e E) string { return n.name(names, e) }},
	}
}

func (n *noun[E]) meta() []table.Column[E] {
	return []table.Column[E]{
		{Name: "name in the SDN", Value: func(e E) string { return n.common(e).Name }},
		{Name: "tags", Value: func(e E) string { return lines(n.common(e).Tags) }},
		{Name: "description", Value: func(e E) string { return n.common(e).Description }},
		{Name: "project", Value: func(e E) string { return n.common(e).ProjectID }},
		{Name: "revision", Value: func(e E) string { return strconv.FormatInt(n.common(e).Revision, 10) }},
		{Name: "created", Value: func(e E) string { return n.common(e).CreatedAt }},
		{Name: "updated", Value: func(e E) string { return n.common(e).UpdatedAt }},
	}
}

func lines(all []string) string { return strings.Join(all, "\n") }

func linesOf[T any](all []T, show func(T) string) string {
	out := make([]string, len(all))
	for i, v := range all {
		out[i] = show(v)
	}
	return lines(out)
}

func address(a restapi.FixedIP) string { return a.IPAddress }

func route(r restapi.Route) string { return r.Destination + " via " + r.NextHop }

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
