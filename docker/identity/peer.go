package identity

import (
	"slices"

	"github.com/kuryr/kuryr/sdn"
)

// Objects that kuryr-libnetwork made carry no Key: their names and tags identify them.

// PeersPool reports whether kuryr-libnetwork made a pool, and not an operator.
func PeersPool(p sdn.SubnetPool) bool {
	return p.Foreign && p.Key.IsZero() && p.Description == "" && len(p.Prefixes) == 1 &&
		p.Name == PoolTitle(p.Prefixes[0]) && !slices.Contains(p.Tags, TagExistingPool)
}

// PeersSubnet reports whether kuryr-libnetwork seems to have made a subnet, from a pool.
func PeersSubnet(s sdn.Subnet) bool {
	return s.Foreign && s.Key.IsZero() && s.Name == SubnetTitle(s.CIDR) && s.Pool != ""
}

// PeersNetwork reports whether kuryr-libnetwork made the network for an engine's, of this id.
func PeersNetwork(n sdn.Network, id string) bool {
	return n.Foreign && n.Key.IsZero() && n.Description == "" && n.Name == NetworkTitle(id) &&
		!slices.Contains(n.Tags, ExistingTag(id))
}

// PeersWork reports whether kuryr-libnetwork seems to have made an existing network or one of its
// subnets. These are deleted after their last use, which the tags tell.
func PeersWork(n sdn.Network, subnets []sdn.Subnet) bool {
	return n.Foreign && n.Key.IsZero() && IsNetworkTitle(n.Name) || slices.ContainsFunc(subnets, PeersSubnet)
}

// PeersPort reports whether kuryr-libnetwork made a port.
func PeersPort(p sdn.Port) bool {
	if !p.Key.IsZero() || p.Description != "" || slices.Contains(p.Tags, TagExistingPort) {
		return false
	}
	return slices.Contains(p.Tags, TagPort) || p.Name == UnboundPort && p.DeviceID == "" ||
		p.DeviceOwner == sdn.OwnerContainer && p.DeviceID != "" && p.Name == PortTitle(p.DeviceID)
}
