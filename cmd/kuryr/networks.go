//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/topology"
	"github.com/kuryr/kuryr/sdn"
	"github.com/spf13/cobra"
)

// newNetwork is what kuryr network create is asked for.
type newNetwork struct {
	name     string
	subnets  []string
	gateways []string
	internal bool
}

func (a *app) createNetworkCommand() *cobra.Command {
	var n newNetwork
	var output string
	c := &cobra.Command{
		Use: "create NAME", Short: "Create a network that Docker, podman and other CNI runtimes can share",
		Args: exactly(1, "the name of the network"),
		Long: `Create a network with its subnets. It gets a router of its own with a way out, where the
SDN has an external network. A repeat completes a network whose creation was interrupted.`,
		Example: `  kuryr network create blue --subnet 10.10.0.0/24
  docker network create -d kuryr --ipam-driver kuryr --subnet 10.10.0.0/24 -o neutron.net.name=blue blue`,
		RunE: func(c *cobra.Command, args []string) error {
			format, err := table.ParseFormat(output)
			if err != nil {
				return usageError{err}
			}
			n.name = args[0]
			if err := n.check(); err != nil {
				return usageError{err}
			}
			client, err := a.client(c)
			if err != nil {
				return err
			}
			made, err := n.create(c.Context(), client.SDN())
			if err != nil {
				return err
			}
			objects, err := known(c.Context(), client, a.userNames(c, client.SDN()))
			if err != nil {
				return err
			}
			for _, line := range topology.Unreached(objects)[made.ID] {
				a.warn(fmt.Sprintf("network %q: %s", n.name, line))
			}
			r := networkResource.untyped()
			columns := append(r.identity(userNames{}), r.listColumns()...)
			return table.Show[any](a.out, format, made, columns)
		},
	}
	c.Flags().StringArrayVar(&n.subnets, "subnet", nil, "`range` of the network; may be repeated")
	c.Flags().StringArrayVar(&n.gateways, "gateway", nil,
		"`address` of the router in a range (default its first); may be repeated")
	c.Flags().BoolVar(&n.internal, "internal", false, "no router, no gateway and no way out")
	addOutput(c, &output)
	return c
}

func (n newNetwork) check() error {
	if len(n.subnets) == 0 {
		return errors.New("--subnet: missing")
	}
	if n.name == "" {
		return errors.New("NAME: empty")
	}
	if err := n.key().Validate(); err != nil {
		return fmt.Errorf("NAME %q: %w", n.name, err)
	}
	var ranges []netip.Prefix
	for _, text := range n.subnets {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return fmt.Errorf("--subnet %q: not a range such as 10.10.0.0/24", text)
		}
		ranges = append(ranges, p)
	}
	for _, text := range n.gateways {
		addr, err := netip.ParseAddr(text)
		if err != nil || !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return fmt.Errorf("--gateway %q: not an address of a --subnet", text)
		}
		if n.internal {
			return errors.New("--gateway: an internal network has none")
		}
	}
	return nil
}

// gateway is the one of a range that was asked for, "" for any.
func (n newNetwork) gateway(of netip.Prefix) string {
	for _, text := range n.gateways {
		if addr, err := netip.ParseAddr(text); err == nil && of.Contains(addr) {
			return text
		}
	}
	return ""
}

// commandOwner is the owner in the Keys of what kuryr network create makes. Only
// administrators write Keys, so other projects cannot pretend that theirs are such.
const commandOwner = "cli"

func (n newNetwork) key() sdn.Key {
	return sdn.Key{Owner: commandOwner, Kind: "network", Name: url.PathEscape(n.name)}
}

func subnetKey(network api.Network, p netip.Prefix) sdn.Key {
	return sdn.Key{Owner: commandOwner, Kind: "subnet", Name: network.ID + "/" + p.String()}
}

// routerKey finds the router that a network was created with.
func routerKey(network api.Network) sdn.Key {
	return sdn.Key{Owner: commandOwner, Kind: "router", Name: network.ID}
}

func withKey(k sdn.Key) url.Values { return url.Values{"description": {k.String()}} }

// create makes the network, or completes it where an earlier create was killed. A new
// network is deleted again if a step fails.
func (n newNetwork) create(ctx context.Context, c *api.Client) (api.Network, error) {
	there, err := api.List(ctx, c, api.Networks, withKey(n.key()))
	if err != nil {
		return api.Network{}, err
	}
	if len(there) > 0 {
		err := n.matches(ctx, c, there[0])
		if err == nil {
			err = n.fill(ctx, c, there[0])
		}
		if err != nil {
			return there[0], err
		}
		return api.Get(ctx, c, api.Networks, there[0].ID)
	}
	named, err := api.List(ctx, c, api.Networks, url.Values{"name": {n.name}})
	if err != nil {
		return api.Network{}, err
	}
	isOwn := func(other api.Network) bool { return other.ProjectID == rootCaller.Project }
	if slices.ContainsFunc(named, isOwn) {
		return api.Network{}, fmt.Errorf("network %q: exists", n.name)
	}
	network, err := api.Create(ctx, c, api.Networks,
		map[string]any{"name": n.name, "description": n.key().String()})
	if err != nil {
		return network, err
	}
	err = n.fill(ctx, c, network)
	if err != nil {
		return network, errors.Join(err, deleteNetwork(context.WithoutCancel(ctx), c, network))
	}
	return api.Get(ctx, c, api.Networks, network.ID)
}

// matches returns an error if an earlier create of the network was asked for something else.
func (n newNetwork) matches(ctx context.Context, c *api.Client, network api.Network) error {
	if network.Name != n.name {
		return fmt.Errorf("network %q: exists, renamed to %q", n.name, network.Name)
	}
	subnets, err := api.List(ctx, c, api.Subnets, url.Values{"network_id": {network.ID}})
	if err != nil {
		return err
	}
	asked := map[string]netip.Prefix{}
	for _, text := range n.subnets {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		asked[p.String()] = p
	}
	for _, s := range subnets {
		if s.Key().Owner != commandOwner { // Docker adds subnets to it
			continue
		}
		p, ok := asked[s.CIDR]
		gateway := api.Value(s.GatewayIP)
		if !ok {
			return fmt.Errorf("network %q: exists, with subnet %s", n.name, s.CIDR)
		}
		if want := n.gateway(p); want != "" && !isSameAddress(want, gateway) || n.internal != (gateway == "") {
			return fmt.Errorf("network %q: exists, with gateway %q of subnet %s", n.name, gateway, s.CIDR)
		}
	}
	return nil
}

func isSameAddress(x, y string) bool {
	ax, errX := netip.ParseAddr(x)
	ay, errY := netip.ParseAddr(y)
	return errX == nil && errY == nil && ax == ay
}

// fill makes the subnets and the router. Their Keys make a repeat find those that are there.
func (n newNetwork) fill(ctx context.Context, c *api.Client, network api.Network) error {
	var subnets []string
	for _, text := range n.subnets {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return err
		}
		body := map[string]any{
			"network_id": network.ID, "cidr": text, "ip_version": 4, "description": subnetKey(network, p).String(),
		}
		if p.Addr().Is6() {
			body["ip_version"] = 6
		}
		if gateway := n.gateway(p); gateway != "" {
			body["gateway_ip"] = gateway
		} else if n.internal {
			body["gateway_ip"] = nil
		}
		s, err := api.Create(ctx, c, api.Subnets, body)
		if err != nil {
			return err
		}
		subnets = append(subnets, s.ID)
	}
	external, err := api.List(ctx, c, api.Networks, url.Values{"router:external": {"true"}})
	if err != nil || n.internal || len(external) == 0 {
		return err
	}
	router, err := api.Create(ctx, c, api.Routers, map[string]any{
		"name": n.name, "description": routerKey(network).String(),
		"external_gateway_info": map[string]string{"network_id": external[0].ID},
	})
	if err != nil {
		return err
	}
	for _, s := range subnets {
		if slices.ContainsFunc(router.Interfaces, func(i api.Interface) bool { return i.SubnetID == s }) {
			continue
		}
		if err := c.RouterInterface(ctx, router.ID, s, true); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) deleteNetworkCommand() *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME|ID", Short: "Delete a network that kuryr network create made",
		Args: exactly(1, "the name or the id of one network"),
		Long: `Delete a network, its subnets, and the router that it was created with. Networks that
kuryr network create did not make are refused, and those with ports of containers.`,
		Example:           "  kuryr network delete blue",
		ValidArgsFunction: completeOne(a, networkResource.untyped()),
		RunE: func(c *cobra.Command, args []string) error {
			client, err := a.client(c)
			if err != nil {
				return err
			}
			names := a.userNames(c, client.SDN())
			network, err := networkResource.find(c.Context(), client.SDN(), names, args[0])
			if err != nil {
				return err
			}
			if err := refuseOthers(names, network, args[0]); err != nil {
				return err
			}
			ports, err := api.List(c.Context(), client.SDN(), api.Ports, url.Values{"network_id": {network.ID}})
			if err != nil {
				return err
			}
			for _, p := range ports {
				if p.DeviceOwner != "network:router_interface" {
					return fmt.Errorf("network %q: port %s uses it", args[0], p.ID)
				}
			}
			return deleteNetwork(c.Context(), client.SDN(), network)
		},
	}
}

// refuseOthers returns an error for a network that kuryr network create did not make.
func refuseOthers(names userNames, network api.Network, word string) error {
	switch key := network.Key(); {
	case key.Owner == commandOwner && key.Kind == "network":
		return nil
	case key.Kind == "docker-network":
		return fmt.Errorf("network %q: is a network of Docker\nDelete it with docker network rm %s",
			word, cmp.Or(names.network(network), key.Name))
	case !key.IsZero():
		return fmt.Errorf("network %q: %s owns it", word, key)
	}
	return fmt.Errorf("network %q: not made by kuryr network create", word)
}

// deleteNetwork deletes the router that the network was created with, and the network.
func deleteNetwork(ctx context.Context, c *api.Client, network api.Network) error {
	routers, err := api.List(ctx, c, api.Routers, withKey(routerKey(network)))
	if err != nil {
		return err
	}
	for _, r := range routers {
		for _, i := range r.Interfaces {
			if err := c.RouterInterface(ctx, r.ID, i.SubnetID, false); err != nil {
				return err
			}
		}
		if err := api.Delete(ctx, c, api.Routers, r.ID); err != nil {
			return err
		}
	}
	return api.Delete(ctx, c, api.Networks, network.ID)
}
