package neutron

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

const (
	portAge  = 30 * time.Second // after which what Neutron last said of a port is not trusted
	maxPorts = 4096             // that are remembered
)

// A portCache remembers what Neutron last said of ports that this process made, changed or read, for at most portAge. It
// answers the searches of a container's start and stop, and tells whether a revision is still good.
//
// # When a search is answered from it
//
// Only a search that names what it wants, and only where every name has its port here: ids, Keys, device ids, or addresses with
// the subnets they are in. A name that has none is asked of Neutron, so the cache never says that something is not there. And
// only from ports that are this host's: with a Key of this installation, and either bound to this host or parked, that is
// unbound and without an owner that says another part of Neutron has it. Of those,
//
//   - an id is one port's, and so is an address of a subnet or of several subnets of one network, by Neutron's own rule;
//   - a Key is one port's by the contract;
//   - a device id of a bound port is what this host's own engine or kubelet chose, at random: no other host gives it to a port.
//     One that is named by several ports here is answered with all of them; a port that somebody else gave the same device
//     id in the last portAge is missed.
//
// Where hosts change one another's ports (Config.Uncached), as a swarm's manager does with those of its nodes' tasks, a parked port is no host's: it is asked for.
//
// What it says may be as old as portAge, where another changed or deleted the port meanwhile. So whoever changes a port because
// of what a search said gives the revision: the change is then refused as Stale, or the port IsNotFound, and both drop
// the port from the cache, so that the repeated search asks Neutron. Reads of one port by its id (Port) always ask Neutron.
//
// # How it is kept
//
// The answer to a change replaces what was known, unless two changes of one port overlapped: then it is forgotten, for nobody can tell
// which was last. What was read is kept only if nothing was changed or forgotten while it was read. A change that failed, in
// whatever way, forgets the port.
type portCache struct {
	installation, host string
	uncached           bool // Config.Uncached
	now                func() time.Time

	mu      sync.Mutex
	ports   map[sdn.ID]rememberedPort
	byKey   map[sdn.Key]sdn.ID
	changes map[sdn.ID]*portChange // under way
	epoch   uint64                 // counts the ends of changes
}

type rememberedPort struct {
	sdn.Port
	at time.Time
}

// portChange is one or more changes of one port that overlap.
type portChange struct {
	running int
	mixed   bool // there was more than one
}

func newPortCache(c Config, now func() time.Time) *portCache {
	return &portCache{
		installation: c.Installation, host: c.Host, uncached: c.Uncached, now: now,
		ports: map[sdn.ID]rememberedPort{}, byKey: map[sdn.Key]sdn.ID{}, changes: map[sdn.ID]*portChange{},
	}
}

// begin announces a change of a port.
func (c *portCache) begin(id sdn.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change := c.changes[id]
	if change == nil {
		change = &portChange{}
		c.changes[id] = change
	}
	change.running++
	change.mixed = change.mixed || change.running > 1
}

// end ends a change that begin announced, with the port as it then is; nil is a port that is gone, or of which nobody knows what it is.
func (c *portCache) end(id sdn.ID, p *sdn.Port) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	change := c.changes[id]
	if p != nil && !change.mixed {
		c.store(*p)
	} else {
		c.drop(id)
	}
	if change.running--; change.running == 0 {
		delete(c.changes, id)
	}
}

// made remembers a port that this process just made.
func (c *portCache) made(p sdn.Port) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changes[p.ID] == nil {
		c.store(p)
	}
}

// reading begins a read: what it gives goes to read with the ports.
func (c *portCache) reading() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.epoch
}

// read remembers a port that was read since reading gave the epoch.
func (c *portCache) read(epoch uint64, p sdn.Port) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.epoch == epoch && len(c.changes) == 0 && c.own(p) {
		c.store(p)
	}
}

// gone forgets a port that Neutron says is not there.
func (c *portCache) gone(id sdn.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	c.drop(id)
}

func (c *portCache) store(p sdn.Port) {
	c.drop(p.ID)
	if len(c.ports) >= maxPorts {
		c.tidy()
	}
	c.ports[p.ID] = rememberedPort{Port: clonePort(p), at: c.now()}
	if !p.Key.IsZero() {
		c.byKey[p.Key] = p.ID
	}
}

func (c *portCache) drop(id sdn.ID) {
	if old, ok := c.ports[id]; ok {
		delete(c.ports, id)
		if c.byKey[old.Key] == id {
			delete(c.byKey, old.Key)
		}
	}
}

// tidy makes room: what is too old goes, and if that is nothing, all.
func (c *portCache) tidy() {
	for id, p := range c.ports {
		if !c.fresh(p) {
			c.drop(id)
		}
	}
	if len(c.ports) >= maxPorts {
		clear(c.ports)
		clear(c.byKey)
	}
}

func (c *portCache) fresh(p rememberedPort) bool { return c.now().Sub(p.at) < portAge }

// own tells whether a port is this host's, as the cache's description says.
func (c *portCache) own(p sdn.Port) bool {
	if p.Key.Owner != c.installation {
		return false
	}
	if p.Host != "" {
		return p.Host == c.host
	}
	return !c.uncached && (p.DeviceOwner == "" || p.DeviceOwner == sdn.OwnerContainer)
}

// port gives what is known of a port, of whatever host it is.
func (c *portCache) port(id sdn.ID) (sdn.Port, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.ports[id]
	if !ok || !c.fresh(p) {
		return sdn.Port{}, false
	}
	return clonePort(p.Port), true
}

// find answers a search, or tells that Neutron must be asked. Whoever names several subnets sees to it that they are of one network, where no two
// have the same address.
func (c *portCache) find(q sdn.PortQuery) ([]sdn.Port, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var named []sdn.ID
	switch {
	case len(q.IDs) > 0:
		named = q.IDs
	case len(q.Keys) > 0:
		for _, key := range q.Keys {
			named = append(named, c.byKey[key])
		}
	case len(q.Devices) > 0:
		for _, device := range q.Devices {
			named = append(named, c.where(func(p sdn.Port) bool { return device != "" && p.DeviceID == device && p.Host == c.host })...)
		}
	case len(q.Addresses) > 0 && len(q.Subnets) > 0:
		for _, addr := range q.Addresses {
			has := func(a sdn.Address) bool { return a.Addr == addr && slices.Contains(q.Subnets, a.Subnet) }
			named = append(named, c.where(func(p sdn.Port) bool { return slices.ContainsFunc(p.Addresses, has) })...)
		}
	default:
		return nil, false
	}
	var found []sdn.Port
	for i, id := range named {
		p, ok := c.ports[id]
		if !ok || !c.fresh(p) || !c.own(p.Port) {
			return nil, false
		}
		if q.Matches(p.Port) && !slices.Contains(named[:i], id) {
			found = append(found, clonePort(p.Port))
		}
	}
	return found, true
}

// where gives the ids of the ports of which is says so, or one that no port has where there are none.
func (c *portCache) where(is func(sdn.Port) bool) []sdn.ID {
	var ids []sdn.ID
	for id, p := range c.ports {
		if c.own(p.Port) && c.fresh(p) && is(p.Port) {
			ids = append(ids, id)
		}
	}
	if ids == nil {
		return []sdn.ID{""}
	}
	return ids
}

// clonePort is a copy that shares nothing which a caller may write to.
func clonePort(p sdn.Port) sdn.Port {
	p.Tags, p.MAC, p.Addresses, p.Groups = slices.Clone(p.Tags), slices.Clone(p.MAC), slices.Clone(p.Addresses), slices.Clone(p.Groups)
	p.Profile, p.AllowedPairs, p.VIF.Details = maps.Clone(p.Profile), slices.Clone(p.AllowedPairs), maps.Clone(p.VIF.Details)
	return p
}

// samePort tells whether two readings of a port differ in nothing but what Neutron changes by itself: the revision,
// the times, and what it knows of the data path.
func samePort(a, b sdn.Port) bool {
	return a.ID == b.ID && a.Key == b.Key && a.Name == b.Name && a.Description == b.Description && sameSet(a.Tags, b.Tags) &&
		slices.Equal(a.MAC, b.MAC) && slices.Equal(a.Addresses, b.Addresses) && a.DeviceID == b.DeviceID && a.DeviceOwner == b.DeviceOwner &&
		a.Host == b.Host && maps.Equal(a.Profile, b.Profile) && sameSet(a.Groups, b.Groups) && a.NoPortSecurity == b.NoPortSecurity &&
		samePairs(a.AllowedPairs, b.AllowedPairs) && a.QoSPolicy == b.QoSPolicy && a.Disabled == b.Disabled
}

// sameSet tells whether a and b have the same elements, in whatever order.
func sameSet[T cmp.Ordered](a, b []T) bool {
	return slices.Equal(asSet(a), asSet(b))
}

// asSet gives what is in a list once, in order.
func asSet[T cmp.Ordered](list []T) []T { return slices.Compact(slices.Sorted(slices.Values(list))) }
