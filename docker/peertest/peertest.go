// Package peertest makes in any SDN what the Python kuryr-libnetwork makes there, for
// tests of taking that over: networks, subnets, subnet pools and ports with its names and
// tags and without a Key. It is written from what that program does, not from what Kuryr
// does, so it shares no names with package docker, and must not be used but by tests.
package peertest

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// Network is a network of an engine's as kuryr-libnetwork left it.
type Network struct {
	ID      string // the engine's
	Network sdn.Network
	Ranges  []Range
}

// Range is one of its ranges. The pool's id is the PoolID that the engine has.
type Range struct {
	Subnet sdn.Subnet
	Pool   sdn.SubnetPool
}

func idTags(id string) []string {
	if len(id) <= 32 {
		return []string{"kuryr.net.uuid.lh:" + id}
	}
	return []string{"kuryr.net.uuid.lh:" + id[:32], "kuryr.net.uuid.uh:" + id[32:]}
}

// Make makes what docker network create with a range of each family at most made: a pool
// of the range, the network with two tags, and a subnet that is cut from the pool and
// tagged with its id.
func Make(ctx context.Context, p sdn.Provider, id string, ranges ...netip.Prefix) (n Network, err error) {
	n.ID = id
	n.Network, err = p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: sdn.Base{Name: "kuryr-net-" + id[:8], Tags: idTags(id)}})
	if err != nil {
		return n, err
	}
	for _, r := range ranges {
		pool, err := p.EnsureSubnetPool(ctx, poolSpec(r))
		if err != nil {
			return n, err
		}
		subnet, err := p.EnsureSubnet(ctx, sdn.SubnetSpec{
			Base:    sdn.Base{Name: "kuryr-subnet-" + r.String(), Tags: []string{string(pool.ID)}},
			Network: n.Network.ID, CIDR: r, Pool: pool.ID,
		})
		if err != nil {
			return n, err
		}
		n.Ranges = append(n.Ranges, Range{subnet, pool})
	}
	n.Network, err = p.Network(ctx, n.Network.ID)
	return n, err
}

func poolSpec(r netip.Prefix) sdn.SubnetPoolSpec {
	return sdn.SubnetPoolSpec{
		Base: sdn.Base{Name: "kuryrPool-" + r.String()}, Prefixes: []netip.Prefix{r},
		DefaultLen: r.Bits(),
	}
}

// Use makes what docker network create with -o neutron.net.uuid and neutron.subnet.uuid
// made, once on each host: three tags on the network, a pool of the range tagged with the
// subnet, which all hosts share, and the pool's id as a tag on the subnet.
func Use(ctx context.Context, p sdn.Provider, id string, network sdn.ID, subnets ...sdn.ID) (n Network, err error) {
	n.ID = id
	if n.Network, err = p.Network(ctx, network); err != nil {
		return n, err
	}
	tags := slices.Concat(n.Network.Tags, idTags(id), []string{"kuryr.net.existing:" + id[:12]})
	if n.Network, err = p.UpdateNetwork(ctx, network, sdn.NetworkPatch{Patch: sdn.Patch{Tags: &tags}}); err != nil {
		return n, err
	}
	for _, of := range subnets {
		subnet, err := p.Subnet(ctx, of)
		if err != nil {
			return n, err
		}
		spec := poolSpec(subnet.CIDR)
		spec.Tags = []string{string(of)}
		match := sdn.Match{Names: []string{spec.Name}, Tags: spec.Tags}
		pool, found, err := sdn.First(p.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: match}))
		if err == nil && !found {
			pool, err = p.EnsureSubnetPool(ctx, spec)
		}
		if err != nil {
			return n, err
		}
		if !slices.Contains(subnet.Tags, string(pool.ID)) {
			tags := append(slices.Clone(subnet.Tags), string(pool.ID))
			if subnet, err = p.UpdateSubnet(ctx, of, sdn.SubnetPatch{Patch: sdn.Patch{Tags: &tags}}); err != nil {
				return n, err
			}
		}
		n.Ranges = append(n.Ranges, Range{subnet, pool})
	}
	return n, nil
}

// Endpoint makes the port of a container that runs on a host: made by RequestAddress and completed by CreateEndpoint.
func (n Network) Endpoint(ctx context.Context, p sdn.Provider, id, host string) (sdn.Port, error) {
	spec := sdn.PortSpec{
		Base:    sdn.Base{Name: "kuryr-unbound-port", Tags: append(idTags(id), "compute:kuryr")},
		Network: n.Network.ID, DeviceID: id, DeviceOwner: "compute:kuryr", Host: host,
	}
	for _, r := range n.Ranges {
		spec.Addresses = append(spec.Addresses, sdn.Address{Subnet: r.Subnet.ID})
	}
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{spec})
	if err != nil {
		return sdn.Port{}, err
	}
	return ports[0], nil
}

// Reuse marks a port that was there before as kuryr-libnetwork did when a container ran with its address.
func Reuse(ctx context.Context, p sdn.Provider, port sdn.Port, endpoint, host string) (sdn.Port, error) {
	if port.Host != "" && port.Host != host {
		return port, fmt.Errorf("port %s is bound to host %s", port.ID, port.Host)
	}
	tags := slices.Concat(port.Tags, idTags(endpoint), []string{"kuryr.port.existing"})
	owner, device := "compute:kuryr", port.DeviceID
	if device == "" {
		device = endpoint
	}
	return p.UpdatePort(ctx, port.ID, sdn.PortPatch{
		Patch: sdn.Patch{Tags: &tags}, DeviceOwner: &owner, DeviceID: &device, Host: &host,
	})
}
