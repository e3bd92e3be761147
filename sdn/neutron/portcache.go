package neutron

import (
	"maps"
	"slices"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

// newPortCache returns the cache of ports, which answers the searches of a container's start and stop
// and tells which revision was the last.
//
// It answers only a search that names what it wants: ids, Keys, device ids, or addresses with the
// subnets that they are in. Each name must have its port here, so the cache never says that a port is
// absent. Only ports of this host are given. They have a Key of this installation. They are bound to
// this host, or parked: unbound and without an owner that is another part of Neutron. Of those,
//
//   - an id is one port's, and so is an address of a subnet or of several subnets of one network, by
//     Neutron's own rule;
//   - a Key is one port's by the contract;
//   - a device id of a bound port was chosen at random by this host's engine or kubelet, and no other
//     host gives it to a port. Several ports here with one device id are all found. The cache misses a
//     port that another program gave the same device id in the last portAge.
//
// Where hosts change each other's ports (Config.Uncached), as a swarm's manager does with those of its
// nodes' tasks, a parked port is not of this host.
//
// Reads of one port by its id (Port) always ask Neutron.
func newPortCache(c Config, now func() time.Time) *cache[sdn.Port] {
	ports := newCache(now, portAge, maxPorts, func(p sdn.Port) about {
		return about{id: p.ID, key: p.Key.String(), revision: p.Revision}
	})
	ports.clone = clonePort
	ports.mayGive = func(p sdn.Port) bool {
		switch {
		case p.Key.Owner != c.Installation:
			return false
		case p.Host != "":
			return p.Host == c.Host
		}
		return !c.Uncached && (p.DeviceOwner == "" || p.DeviceOwner == sdn.OwnerContainer)
	}
	return ports
}

// knownPorts answers a search from the cache, or reports that Neutron must be asked. Several subnets
// in the query must be of one network, where no two have the same address.
func knownPorts(c *cache[sdn.Port], host string, q sdn.PortQuery) (found []sdn.Port, ok bool) {
	var named []sdn.ID
	switch {
	case len(q.IDs) > 0:
		named = q.IDs
	case len(q.Keys) > 0:
		named = c.keys(q.Keys)
	case len(q.Devices) > 0:
		for _, device := range q.Devices {
			named = append(named, c.where(func(p sdn.Port) bool {
				return device != "" && p.DeviceID == device && p.Host == host
			})...)
		}
	case len(q.Addresses) > 0 && len(q.Subnets) > 0:
		for _, addr := range q.Addresses {
			has := func(a sdn.Address) bool {
				return a.Addr == addr && slices.Contains(q.Subnets, a.Subnet)
			}
			named = append(named, c.where(func(p sdn.Port) bool {
				return slices.ContainsFunc(p.Addresses, has)
			})...)
		}
	}
	all, ok := c.named(named)
	return slices.DeleteFunc(all, func(p sdn.Port) bool { return !q.Matches(p) }), ok
}

// clonePort returns a copy that shares nothing with p.
func clonePort(p sdn.Port) sdn.Port {
	p.Tags, p.MAC, p.Addresses, p.Groups = slices.Clone(p.Tags), slices.Clone(p.MAC), slices.Clone(p.Addresses), slices.Clone(p.Groups)
	p.Profile, p.AllowedPairs, p.VIF.Details = maps.Clone(p.Profile), slices.Clone(p.AllowedPairs), maps.Clone(p.VIF.Details)
	return p
}

// samePort reports whether two readings of a port differ only in what Neutron changes
// itself: the revision, the times, and the state of the data path.
func samePort(a, b sdn.Port) bool {
	return a.ID == b.ID && a.Key == b.Key && a.Name == b.Name && a.Description == b.Description && sameSet(a.Tags, b.Tags) &&
		slices.Equal(a.MAC, b.MAC) && slices.Equal(a.Addresses, b.Addresses) && a.DeviceID == b.DeviceID && a.DeviceOwner == b.DeviceOwner &&
		a.Host == b.Host && sdn.SameProfile(a.Profile, b.Profile) && sameSet(a.Groups, b.Groups) && a.NoPortSecurity == b.NoPortSecurity &&
		samePairs(a.AllowedPairs, b.AllowedPairs) && a.QoSPolicy == b.QoSPolicy && a.Disabled == b.Disabled
}
