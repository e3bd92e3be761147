package local

import (
	"reflect"
	"slices"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// keySet names parts by domain: true for a part that may be another now, false for one that the caller
// waits for only while it is not in the data path.
type keySet map[sdn.ID]map[partKey]bool

// deriver finds the parts that a transaction may have changed.
type deriver struct {
	engine.Tx
	sync *syncer
	keys keySet
	left map[sdn.ID]sdn.ID // the domains that networks have left
}

// keysOf returns the parts that the changes of a transaction are about. It reads the rows as the
// transaction leaves them.
func (s *syncer) keysOf(b engine.Tx, changes map[engine.RowID]*engine.RowChange) (keySet, error) {
	d := &deriver{Tx: b, sync: s, keys: keySet{}, left: map[sdn.ID]sdn.ID{}}
	for id, c := range changes {
		if err := d.row(id, c); err != nil {
			return nil, err
		}
	}
	for network, from := range d.left {
		if err := d.moved(network, from); err != nil {
			return nil, err
		}
	}
	return d.keys, nil
}

func (s keySet) add(domain sdn.ID, key partKey, changed bool) {
	if domain == "" {
		return
	}
	if s[domain] == nil {
		s[domain] = map[partKey]bool{}
	}
	s[domain][key] = s[domain][key] || changed
}

func (d *deriver) add(domain sdn.ID, key partKey, changed bool) { d.keys.add(domain, key, changed) }

// row adds the parts of one row.
func (d *deriver) row(id engine.RowID, c *engine.RowChange) error {
	switch id.Noun {
	case engine.Ports.Noun:
		return d.port(engine.Rows[*engine.PortRow](c))
	case engine.Networks.Noun:
		return d.network(c)
	case engine.Routers.Noun:
		return d.router(c)
	case engine.FloatingIPs.Noun:
		d.floatingIP(engine.Rows[*engine.FloatingIPRow](c))
	case engine.Forwards.Noun:
		d.forward(engine.Rows[*engine.ForwardRow](c))
	case engine.SecurityGroups.Noun:
		before, after := engine.Rows[*engine.SecurityGroupRow](c)
		if after != nil && (c.Touched || before == nil || before.Defined != after.Defined) {
			return d.group(id.ID, groupKey(id.ID), before == nil || before.Defined != after.Defined)
		}
	case engine.AddressGroups.Noun:
		before, after := engine.Rows[*engine.AddressGroupRow](c)
		if after != nil && (c.Touched || before == nil || before.Defined != after.Defined) {
			return d.set(id.ID, before == nil || before.Defined != after.Defined)
		}
	case engine.QoSPolicies.Noun:
		before, after := engine.Rows[*engine.QoSPolicyRow](c)
		if before != nil && after != nil && (c.Touched || before.Limits != after.Limits) {
			return d.policy(id.ID, before.Limits != after.Limits)
		}
	case engine.Trunks.Noun:
		return d.trunk(engine.Rows[*engine.TrunkRow](c))
	case engine.LoadBalancers.Noun:
		return d.balancer(engine.Rows[*engine.LoadBalancerRow](c))
	}
	return nil
}

func (d *deriver) port(before, after *engine.PortRow) error {
	is := func(r *engine.PortRow) bool { return r != nil && r.Plugged() }
	if !is(before) && !is(after) {
		return nil
	}
	row := after
	if row == nil {
		row = before
	}
	return d.on(row.Network, portKey(row.ID), !is(before) || !is(after) || !samePort(before, after))
}

// on adds a part of a network's domain. One that is changed is also a part of other domains that have the
// network in the data path: it has moved, and they may keep it until its domain has it.
func (d *deriver) on(network sdn.ID, k partKey, changed bool) error {
	domain, err := engine.DomainOf(d.Tx, network)
	d.add(domain, k, changed)
	if changed {
		for _, holder := range d.sync.holding(network) {
			d.add(holder, k, true)
		}
	}
	return err
}

// samePort reports whether two plugged rows are one port to the data path.
func samePort(a, b *engine.PortRow) bool {
	return slices.Equal(a.MAC, b.MAC) && slices.Equal(a.Addresses, b.Addresses) &&
		slices.EqualFunc(a.AllowedPairs, b.AllowedPairs, sameAllowed) && a.NoPortSecurity == b.NoPortSecurity &&
		slices.Equal(a.Groups, b.Groups) && a.QoSPolicy == b.QoSPolicy && a.Trunk == b.Trunk && a.VLAN == b.VLAN &&
		a.Disabled == b.Disabled
}

func sameAllowed(a, b sdn.AllowedPair) bool {
	return a.Prefix == b.Prefix && slices.Equal(a.MAC, b.MAC)
}

func (d *deriver) network(c *engine.RowChange) error {
	before, after := engine.Rows[*engine.NetworkRow](c)
	was, is := before != nil && before.Own, after != nil && after.Own
	switch {
	case was && !is:
		d.left[before.ID] = before.ID
		d.add(before.ID, shapeKey, true)
	case is && !was:
		d.add(after.ID, shapeKey, true)
	}
	if before == nil || after == nil {
		return nil
	}
	turned := before.Disabled != after.Disabled
	if before.QoSPolicy != after.QoSPolicy || c.Touched && after.QoSPolicy != "" {
		if err := d.portsOn(after.ID, func(r *engine.PortRow) bool { return r.QoSPolicy == "" },
			before.QoSPolicy != after.QoSPolicy); err != nil {
			return err
		}
	}
	if before.MTU == after.MTU && !turned && !c.Touched {
		return nil
	}
	domain, err := engine.DomainOf(d.Tx, after.ID)
	if err != nil {
		return err
	}
	d.add(domain, shapeKey, before.MTU != after.MTU || turned)
	if !turned && !after.Disabled {
		return nil
	}
	return d.turned(after, domain, turned)
}

// turned adds what a network has that is switched on or off with it.
func (d *deriver) turned(n *engine.NetworkRow, domain sdn.ID, changed bool) error {
	if err := d.portsOn(n.ID, (*engine.PortRow).Plugged, changed); err != nil {
		return err
	}
	for _, s := range n.Subnets {
		if err := d.balancersOf(domain, s, changed); err != nil {
			return err
		}
	}
	for _, r := range engine.Routers.IDs(d.Tx, "gateway", string(n.ID)) {
		if err := d.uplink(r, changed); err != nil {
			return err
		}
	}
	return nil
}

// portsOn adds the plugged ports of a network that are selected.
func (d *deriver) portsOn(network sdn.ID, selects func(*engine.PortRow) bool, changed bool) error {
	rows, err := engine.Ports.All(d.Tx, "network", string(network))
	if err != nil {
		return err
	}
	for _, r := range rows {
		if !r.Plugged() || !selects(r) {
			continue
		}
		if err := d.on(network, portKey(r.ID), changed); err != nil {
			return err
		}
	}
	return nil
}

// uplink adds a router's way out and everything that depends on it.
func (d *deriver) uplink(router sdn.ID, changed bool) error {
	r, err := engine.Routers.Need(d.Tx, router)
	if err != nil || len(r.Interfaces) == 0 {
		return err
	}
	d.add(router, shapeKey, changed)
	rows, err := engine.Forwards.All(d.Tx, "router", string(router))
	if err != nil {
		return err
	}
	for _, r := range rows {
		for _, f := range projectForward(r) {
			d.add(router, forwardKey(f), changed)
		}
	}
	fips, err := engine.FloatingIPs.All(d.Tx, "router", string(router))
	for _, f := range fips {
		if f.Balancer != "" {
			d.add(router, balanceKey(f.Balancer, f.Address), changed)
		}
	}
	return err
}

func (d *deriver) router(c *engine.RowChange) error {
	before, after := engine.Rows[*engine.RouterRow](c)
	none := &engine.RouterRow{}
	was, is := before, after
	if was == nil {
		was = none
	}
	if is == nil {
		is = none
	}
	if len(was.Interfaces)+len(is.Interfaces) == 0 {
		return nil
	}
	id := was.ID
	if id == "" {
		id = is.ID
	}
	same := slices.Equal(was.Interfaces, is.Interfaces) && slices.Equal(was.Routes, is.Routes) &&
		reflect.DeepEqual(was.Gateway, is.Gateway) && was.Disabled == is.Disabled
	if !same || c.Touched {
		d.add(id, shapeKey, !same)
	}
	for _, n := range was.Networks {
		if !slices.Contains(is.Networks, n) {
			d.left[n] = id
		}
	}
	for _, pair := range [][2]*engine.RouterRow{{was, is}, {is, was}} {
		for _, leg := range pair[0].Interfaces {
			same := func(other sdn.RouterInterface) bool { return other.Subnet == leg.Subnet }
			if slices.ContainsFunc(pair[1].Interfaces, same) {
				continue
			}
			if err := d.balancersOf(id, leg.Subnet, true); err != nil {
				return err
			}
		}
	}
	if before == nil || after == nil {
		return nil
	}
	if was.Disabled != is.Disabled {
		for _, on := range is.Interfaces {
			if err := d.balancersOf(id, on.Subnet, true); err != nil {
				return err
			}
		}
	}
	// Published ports and floating IPs need an uplink; a router or an external network that is down has none.
	if was.Disabled != is.Disabled || gatewayNetwork(was) != gatewayNetwork(is) {
		return d.uplink(id, true)
	}
	return nil
}

func gatewayNetwork(r *engine.RouterRow) sdn.ID {
	if r.Gateway == nil {
		return ""
	}
	return r.Gateway.Network
}

// balancersOf adds the addresses that load balancers have on a subnet of a router.
func (d *deriver) balancersOf(router, subnet sdn.ID, changed bool) error {
	rows, err := engine.LoadBalancers.All(d.Tx, "subnet", string(subnet))
	if err != nil {
		return err
	}
	for _, r := range rows {
		for _, v := range r.VIPs {
			if v.Subnet != subnet {
				continue
			}
			if err := d.vip(router, r.ID, v, changed); err != nil {
				return err
			}
		}
	}
	return nil
}

// vip adds a VIP and the floating IPs that lead to it.
func (d *deriver) vip(router, balancer sdn.ID, v sdn.VIP, changed bool) error {
	fips, err := engine.FloatingIPs.All(d.Tx, "port", string(v.Port))
	if err != nil {
		return err
	}
	d.add(router, balanceKey(balancer, v.Addr), changed)
	for _, f := range fips {
		d.add(router, balanceKey(balancer, f.Address), changed)
	}
	return nil
}

// moved adds the plugged ports of a network that has left a domain. The domain that it is in now gets
// their links with the network, but not what filters and limits them.
func (d *deriver) moved(network, from sdn.ID) error {
	to, err := engine.DomainOf(d.Tx, network)
	if err != nil || to == from {
		return err
	}
	rows, err := engine.Ports.All(d.Tx, "network", string(network))
	if err != nil {
		return err
	}
	for _, r := range rows {
		if r.Plugged() {
			d.add(from, portKey(r.ID), true)
			d.add(to, portKey(r.ID), true)
		}
	}
	return nil
}

func (d *deriver) floatingIP(before, after *engine.FloatingIPRow) {
	same := before != nil && after != nil && before.Address == after.Address && before.Target == after.Target &&
		before.Router == after.Router && before.Balancer == after.Balancer
	for _, r := range []*engine.FloatingIPRow{before, after} {
		if r == nil || r.OfHost() {
			continue
		}
		d.add(r.Router, shapeKey, !same)
		if r.Balancer != "" {
			d.add(r.Router, balanceKey(r.Balancer, r.Address), !same)
		}
	}
}

func (d *deriver) forward(before, after *engine.ForwardRow) {
	same := before != nil && after != nil && before.Router == after.Router &&
		slices.Equal(projectForward(before), projectForward(after))
	for _, r := range []*engine.ForwardRow{before, after} {
		if r == nil {
			continue
		}
		for _, f := range projectForward(r) {
			d.add(r.Router, forwardKey(f), !same)
		}
	}
}

// group adds a part of all domains that have ports with a security group.
func (d *deriver) group(id sdn.ID, k partKey, changed bool) error {
	for _, network := range engine.NetworksWith(d.Tx, "group", id) {
		if err := d.on(network, k, changed); err != nil {
			return err
		}
	}
	return nil
}

func (d *deriver) set(id sdn.ID, changed bool) error {
	for _, group := range engine.SecurityGroups.IDs(d.Tx, "set", string(id)) {
		if err := d.group(group, setKey(id), changed); err != nil {
			return err
		}
	}
	return nil
}

// policy adds the plugged ports that name a QoS policy, whose rows are not read, and those of networks that name it.
func (d *deriver) policy(id sdn.ID, changed bool) error {
	for _, network := range engine.Networks.IDs(d.Tx, "qos", string(id)) {
		if err := d.portsOn(network, func(r *engine.PortRow) bool { return r.QoSPolicy == "" }, changed); err != nil {
			return err
		}
	}
	for network, port := range engine.PluggedWith(d.Tx, "qos", id) {
		if err := d.on(network, portKey(port), changed); err != nil {
			return err
		}
	}
	return nil
}

// trunk adds the port that has become the parent of a trunk, or is no longer one.
func (d *deriver) trunk(before, after *engine.TrunkRow) error {
	row := after
	if row == nil {
		row = before
	}
	if row == nil {
		return nil
	}
	parent, err := engine.Ports.Get(d.Tx, row.Parent)
	if err != nil || parent == nil || !parent.Plugged() {
		return err
	}
	domain, err := engine.DomainOf(d.Tx, parent.Network)
	d.add(domain, portKey(parent.ID), before == nil || after == nil)
	return err
}

func (d *deriver) balancer(before, after *engine.LoadBalancerRow) error {
	same := before != nil && after != nil && slices.Equal(before.VIPs, after.VIPs) &&
		reflect.DeepEqual(before.Listeners, after.Listeners)
	for _, r := range []*engine.LoadBalancerRow{before, after} {
		if r == nil {
			continue
		}
		for _, v := range r.VIPs {
			if err := d.vip(engine.Routers.ID(d.Tx, "subnet", string(v.Subnet)), r.ID, v, !same); err != nil {
				return err
			}
		}
	}
	return nil
}
