package local

import (
	"bytes"
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
func (s *syncer) keysOf(b engine.Tx, changes map[rowID]*rowChange) (keySet, error) {
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
func (d *deriver) row(id rowID, c *rowChange) error {
	switch id.noun {
	case ports.noun:
		return d.port(rows[*portRow](c))
	case networks.noun:
		return d.network(c)
	case routers.noun:
		return d.router(c)
	case floatingIPs.noun:
		d.floatingIP(rows[*floatingIPRow](c))
	case forwards.noun:
		d.forward(rows[*forwardRow](c))
	case securityGroups.noun:
		before, after := rows[*securityGroupRow](c)
		if after != nil && (c.touched || before == nil || before.Defined != after.Defined) {
			return d.group(id.id, groupKey(id.id), before == nil || before.Defined != after.Defined)
		}
	case addressGroups.noun:
		before, after := rows[*addressGroupRow](c)
		if after != nil && (c.touched || before == nil || before.Defined != after.Defined) {
			return d.set(id.id, before == nil || before.Defined != after.Defined)
		}
	case qosPolicies.noun:
		before, after := rows[*qosPolicyRow](c)
		if before != nil && after != nil && (c.touched || before.Limits != after.Limits) {
			return d.policy(id.id, before.Limits != after.Limits)
		}
	case trunks.noun:
		return d.trunk(rows[*trunkRow](c))
	case loadBalancers.noun:
		return d.balancer(rows[*loadBalancerRow](c))
	}
	return nil
}

func (d *deriver) port(before, after *portRow) error {
	is := func(r *portRow) bool { return r != nil && r.plugged() }
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
	domain, err := domainOf(d.Tx, network)
	d.add(domain, k, changed)
	if changed {
		for _, holder := range d.sync.holding(network) {
			d.add(holder, k, true)
		}
	}
	return err
}

// samePort reports whether two plugged rows are one port to the data path.
func samePort(a, b *portRow) bool {
	return slices.Equal(a.MAC, b.MAC) && slices.Equal(a.Addresses, b.Addresses) &&
		slices.EqualFunc(a.AllowedPairs, b.AllowedPairs, samePair) && a.NoPortSecurity == b.NoPortSecurity &&
		slices.Equal(a.Groups, b.Groups) && a.QoSPolicy == b.QoSPolicy && a.Trunk == b.Trunk && a.VLAN == b.VLAN &&
		a.Disabled == b.Disabled
}

func (d *deriver) network(c *rowChange) error {
	before, after := rows[*networkRow](c)
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
	if before.QoSPolicy != after.QoSPolicy || c.touched && after.QoSPolicy != "" {
		if err := d.portsOn(after.ID, func(r *portRow) bool { return r.QoSPolicy == "" },
			before.QoSPolicy != after.QoSPolicy); err != nil {
			return err
		}
	}
	if before.MTU == after.MTU && !turned && !c.touched {
		return nil
	}
	domain, err := domainOf(d.Tx, after.ID)
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
func (d *deriver) turned(n *networkRow, domain sdn.ID, changed bool) error {
	if err := d.portsOn(n.ID, (*portRow).plugged, changed); err != nil {
		return err
	}
	for _, s := range n.Subnets {
		if err := d.balancersOf(domain, s, changed); err != nil {
			return err
		}
	}
	for _, r := range routers.ids(d.Tx, "gateway", string(n.ID)) {
		if err := d.uplink(r, changed); err != nil {
			return err
		}
	}
	return nil
}

// portsOn adds the plugged ports of a network that are selected.
func (d *deriver) portsOn(network sdn.ID, selects func(*portRow) bool, changed bool) error {
	rows, err := ports.all(d.Tx, "network", string(network))
	if err != nil {
		return err
	}
	for _, r := range rows {
		if !r.plugged() || !selects(r) {
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
	r, err := routers.need(d.Tx, router)
	if err != nil || len(r.Interfaces) == 0 {
		return err
	}
	d.add(router, shapeKey, changed)
	rows, err := forwards.all(d.Tx, "router", string(router))
	if err != nil {
		return err
	}
	for _, r := range rows {
		for _, f := range projectForward(r) {
			d.add(router, forwardKey(f), changed)
		}
	}
	fips, err := floatingIPs.all(d.Tx, "router", string(router))
	for _, f := range fips {
		if f.Balancer != "" {
			d.add(router, balanceKey(f.Balancer, f.Address), changed)
		}
	}
	return err
}

func (d *deriver) router(c *rowChange) error {
	before, after := rows[*routerRow](c)
	none := &routerRow{}
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
	if !same || c.touched {
		d.add(id, shapeKey, !same)
	}
	for _, n := range was.Networks {
		if !slices.Contains(is.Networks, n) {
			d.left[n] = id
		}
	}
	for _, pair := range [][2]*routerRow{{was, is}, {is, was}} {
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

func gatewayNetwork(r *routerRow) sdn.ID {
	if r.Gateway == nil {
		return ""
	}
	return r.Gateway.Network
}

// balancersOf adds the addresses that load balancers have on a subnet of a router.
func (d *deriver) balancersOf(router, subnet sdn.ID, changed bool) error {
	rows, err := loadBalancers.all(d.Tx, "subnet", string(subnet))
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
	fips, err := floatingIPs.all(d.Tx, "port", string(v.Port))
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
	to, err := domainOf(d.Tx, network)
	if err != nil || to == from {
		return err
	}
	rows, err := ports.all(d.Tx, "network", string(network))
	if err != nil {
		return err
	}
	for _, r := range rows {
		if r.plugged() {
			d.add(from, portKey(r.ID), true)
			d.add(to, portKey(r.ID), true)
		}
	}
	return nil
}

func (d *deriver) floatingIP(before, after *floatingIPRow) {
	same := before != nil && after != nil && before.Address == after.Address && before.Target == after.Target &&
		before.Router == after.Router && before.Balancer == after.Balancer
	for _, r := range []*floatingIPRow{before, after} {
		if r == nil || r.ofHost() {
			continue
		}
		d.add(r.Router, shapeKey, !same)
		if r.Balancer != "" {
			d.add(r.Router, balanceKey(r.Balancer, r.Address), !same)
		}
	}
}

func (d *deriver) forward(before, after *forwardRow) {
	same := before != nil && after != nil && before.Router == after.Router &&
		slices.Equal(projectForward(before), projectForward(after))
	for _, r := range []*forwardRow{before, after} {
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
	for _, network := range networksWith(d.Tx, "group", id) {
		if err := d.on(network, k, changed); err != nil {
			return err
		}
	}
	return nil
}

func (d *deriver) set(id sdn.ID, changed bool) error {
	for _, group := range securityGroups.ids(d.Tx, "set", string(id)) {
		if err := d.group(group, setKey(id), changed); err != nil {
			return err
		}
	}
	return nil
}

// policy adds the plugged ports that name a QoS policy, whose rows are not read, and those of networks that name it.
func (d *deriver) policy(id sdn.ID, changed bool) error {
	prefix := key(string(id), pluggedPlace, "")
	for _, network := range networks.ids(d.Tx, "qos", string(id)) {
		if err := d.portsOn(network, func(r *portRow) bool { return r.QoSPolicy == "" }, changed); err != nil {
			return err
		}
	}
	for k := range with(d.Tx, ports.indexTable("qos"), prefix) {
		network, port, _ := bytes.Cut(k[len(prefix):], []byte{0})
		if err := d.on(sdn.ID(network), portKey(sdn.ID(port)), changed); err != nil {
			return err
		}
	}
	return nil
}

// trunk adds the port that has become the parent of a trunk, or is no longer one.
func (d *deriver) trunk(before, after *trunkRow) error {
	row := after
	if row == nil {
		row = before
	}
	if row == nil {
		return nil
	}
	parent, err := ports.get(d.Tx, row.Parent)
	if err != nil || parent == nil || !parent.plugged() {
		return err
	}
	domain, err := domainOf(d.Tx, parent.Network)
	d.add(domain, portKey(parent.ID), before == nil || after == nil)
	return err
}

func (d *deriver) balancer(before, after *loadBalancerRow) error {
	same := before != nil && after != nil && slices.Equal(before.VIPs, after.VIPs) &&
		reflect.DeepEqual(before.Listeners, after.Listeners)
	for _, r := range []*loadBalancerRow{before, after} {
		if r == nil {
			continue
		}
		for _, v := range r.VIPs {
			if err := d.vip(routers.id(d.Tx, "subnet", string(v.Subnet)), r.ID, v, !same); err != nil {
				return err
			}
		}
	}
	return nil
}
