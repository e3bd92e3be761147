package identity

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/sdn"
)

// engineID is the form of an engine's endpoint ids.
var engineID = regexp.MustCompile(`^[0-9a-f]{64}$`)

// EndpointOf returns the endpoint that has a port, "" if none has it.
func EndpointOf(p sdn.Port) string {
	if !p.Key.IsZero() || !slices.Contains(p.Tags, TagExistingPort) {
		return p.DeviceID
	}
	return TaggedID(p.Tags)
}

// IsExistingOf reports whether a port is an existing one that the endpoint has.
func IsExistingOf(p sdn.Port, endpoint string) bool {
	return p.Key.IsZero() && slices.Contains(p.Tags, TagExistingPort) && HasAll(p.Tags, IDTags(endpoint))
}

// Elsewhere reports whether a port is bound to another host than the named one.
func Elsewhere(p sdn.Port, host string) bool { return p.Host != "" && p.Host != host }

// Attached reports whether a port is an existing one that an endpoint of this installation on the
// named host has. kuryr-libnetwork does not write the installation.
func (n Namer) Attached(p sdn.Port, host string) bool {
	if !p.Key.IsZero() || !slices.Contains(p.Tags, TagExistingPort) || Elsewhere(p, host) {
		return false
	}
	by := Values(p.Tags, TagBorrower)
	return len(by) == 0 || slices.Contains(by, n.Owner)
}

// Usable returns why an endpoint of the named host cannot have a port that is not ours. The
// endpoint is "" while it is unknown.
func Usable(p sdn.Port, host, endpoint string) error {
	addresses := Addresses(p)
	switch has := EndpointOf(p); {
	case !p.Key.IsZero():
		return api.Refuse("address %s is in use: its port %s is not Docker's of this Kuryr", addresses, p.ID)
	case p.DeviceOwner != "" && p.DeviceOwner != sdn.OwnerContainer:
		return api.Refuse("address %s is in use: its port %s is of %s",
			addresses, p.ID, api.Clip(p.DeviceOwner, 60))
	case len(p.VIF.Hidden) > 0:
		return api.Refuse("port %s, which has address %s, cannot be used: the SDN does not tell Kuryr "+
			"where and how it is bound: its credentials need the right to read %s",
			p.ID, addresses, strings.Join(p.VIF.Hidden, ", "))
	case Elsewhere(p, host):
		return api.Refuse("address %s is in use: its port %s is bound to host %s",
			addresses, p.ID, api.Clip(p.Host, 100))
	case has == endpoint && has != "":
		return nil
	case slices.Contains(p.Tags, TagExistingPort) && has != "",
		p.DeviceOwner == sdn.OwnerContainer && engineID.MatchString(p.DeviceID):
		return InUse(p)
	}
	return nil
}

// InUse returns the refusal of a port that another endpoint has.
func InUse(p sdn.Port) error {
	return api.Refuse("address %s is in use by another endpoint", Addresses(p))
}

// Addresses returns the addresses of a port for a user.
func Addresses(p sdn.Port) string {
	if len(p.Addresses) == 0 {
		return "(none)"
	}
	var list []string
	for _, a := range p.Addresses {
		list = append(list, a.Addr.String())
	}
	return strings.Join(list, " ")
}

// HasAddress reports whether a port has an address.
func HasAddress(p sdn.Port, a netip.Addr) bool {
	return slices.ContainsFunc(p.Addresses, func(has sdn.Address) bool { return has.Addr == a })
}

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
