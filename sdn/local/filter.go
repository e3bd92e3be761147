package local

import (
	"bytes"

	"github.com/kuryr/kuryr/datapath/router"
	"github.com/kuryr/kuryr/datapath/securitygroup"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/engine"
)

// What filters and limits ports is told to the domains that have such ports. A domain is found by the networks of the plugged ports in an
// index, of which it takes one entry each: so a change costs by the domains it reaches, however many ports there are.

// definitions are security groups and address groups as the kernel is told them and as the store has them, so that a port brings its groups
// along without their being read anew. They are of who has the turn to write.
type definitions struct {
	groups map[sdn.ID]securitygroup.Group
	sets   map[sdn.ID]securitygroup.Set
}

func newDefinitions() definitions {
	return definitions{groups: map[sdn.ID]securitygroup.Group{}, sets: map[sdn.ID]securitygroup.Set{}}
}

// rewrite forgets a definition that the transaction changes or deletes.
func (t *tx) rewrite(id sdn.ID) {
	t.rewritten[id] = true
	delete(t.p.definitions.groups, id)
	delete(t.p.definitions.sets, id)
}

// group is a security group's definition.
func (t *tx) group(id sdn.ID) (securitygroup.Group, error) {
	if g, known := t.p.definitions.groups[id]; known {
		return g, nil
	}
	r, err := securityGroups.need(t.Tx, id)
	if err != nil {
		return securitygroup.Group{}, err
	}
	g := projectGroup(r)
	if !t.rewritten[id] {
		t.p.definitions.groups[id] = g
	}
	return g, nil
}

// set is an address group's definition.
func (t *tx) set(id sdn.ID) (securitygroup.Set, error) {
	if s, known := t.p.definitions.sets[id]; known {
		return s, nil
	}
	r, err := addressGroups.need(t.Tx, id)
	if err != nil {
		return securitygroup.Set{}, err
	}
	s := projectSet(r)
	if !t.rewritten[id] {
		t.p.definitions.sets[id] = s
	}
	return s, nil
}

// tellGroup has a domain know a security group, with the address groups that its rules name.
func (t *tx) tellGroup(domain, id sdn.ID) error {
	c := t.change(domain)
	if _, told := c.groups[string(id)]; told && !t.rewritten[id] {
		return nil
	}
	g, err := t.group(id)
	if err != nil {
		return err
	}
	c.group(g)
	for _, r := range g.Rules {
		if r.RemoteSet != "" {
			if err := t.tellSet(domain, sdn.ID(r.RemoteSet)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *tx) tellSet(domain, id sdn.ID) error {
	s, err := t.set(id)
	if err == nil {
		t.change(domain).set(s)
	}
	return err
}

// tellPort has a domain replace a port by another, whose groups it is told too.
func (t *tx) tellPort(domain sdn.ID, old, new *router.Port) error {
	t.change(domain).port(old, new)
	if new == nil {
		return nil
	}
	for _, g := range new.Groups {
		if err := t.tellGroup(domain, sdn.ID(g)); err != nil {
			return err
		}
	}
	return nil
}

// domainsWith are the domains of the plugged ports that an index has for id.
func domainsWith(b engine.Tx, index string, id sdn.ID) ([]sdn.ID, error) {
	var domains []sdn.ID
	seen := map[sdn.ID]bool{"": true}
	prefix := []byte(key(string(id), pluggedPlace, ""))
	for from := prefix; ; {
		network, found := pluggedNetwork(b, ports.indexTable(index), prefix, from)
		if !found {
			return domains, nil
		}
		domain, err := domainOf(b, sdn.ID(network))
		if err != nil {
			return nil, err
		}
		if !seen[domain] {
			seen[domain] = true
			domains = append(domains, domain)
		}
		from = append(append(bytes.Clone(prefix), network...), 1) // behind the network's ports
	}
}

// pluggedNetwork returns the network of the first key that is not below from and starts with prefix.
func pluggedNetwork(b engine.Tx, table string, prefix, from []byte) (network []byte, found bool) {
	for k := range b.Seek(table, from) {
		if !bytes.HasPrefix(k, prefix) {
			break
		}
		network, _, _ = bytes.Cut(k[len(prefix):], []byte{0})
		return network, true
	}
	return nil, false
}

// noteGroup notes what a security group's new rules mean to the kernel.
func (t *tx) noteGroup(id sdn.ID) error {
	t.rewrite(id)
	domains, err := domainsWith(t.Tx, "group", id)
	if err != nil {
		return err
	}
	for _, domain := range domains {
		if err := t.tellGroup(domain, id); err != nil {
			return err
		}
	}
	return nil
}

// touchGroup has the transaction wait for the domains that have a security group.
func (t *tx) touchGroup(id sdn.ID) error {
	domains, err := domainsWith(t.Tx, "group", id)
	for _, domain := range domains {
		t.touch(domain)
	}
	return err
}

// noteSet notes what an address group's new prefixes mean to the kernel.
func (t *tx) noteSet(id sdn.ID) error {
	t.rewrite(id)
	return t.eachWithSet(id, func(domain sdn.ID) error { return t.tellSet(domain, id) })
}

// touchSet has the transaction wait for the domains whose security groups name an address group.
func (t *tx) touchSet(id sdn.ID) error {
	return t.eachWithSet(id, func(domain sdn.ID) error { t.touch(domain); return nil })
}

func (t *tx) eachWithSet(id sdn.ID, f func(domain sdn.ID) error) error {
	for _, group := range securityGroups.ids(t.Tx, "set", string(id)) {
		domains, err := domainsWith(t.Tx, "group", group)
		if err != nil {
			return err
		}
		for _, domain := range domains {
			if err := f(domain); err != nil {
				return err
			}
		}
	}
	return nil
}

// noteLimits notes what a QoS policy's limits, which were others before, mean to each plugged port that names it.
func (t *tx) noteLimits(r *qosPolicyRow, before sdn.Limits) error {
	domains := map[sdn.ID]sdn.ID{} // of networks
	plugged, err := ports.all(t.Tx, "qos", key(string(r.ID), pluggedPlace))
	if err != nil {
		return err
	}
	for _, row := range plugged {
		domain, known := domains[row.Network]
		if !known {
			if domain, err = domainOf(t.Tx, row.Network); err != nil {
				return err
			}
			domains[row.Network] = domain
		}
		if domain == "" {
			continue
		}
		if before == r.Limits {
			t.touch(domain)
			continue
		}
		is, err := projectPort(t.Tx, row)
		if err != nil {
			return err
		}
		was := *is
		was.Limits = securitygroup.Limits(before)
		if err := t.tellPort(domain, &was, is); err != nil {
			return err
		}
	}
	return nil
}

// noteMoved tells two domains of the ports of a network that goes from one to the other with all its links. Of the filtered and limited ones the domain that it
// leaves knows more than what comes along by itself, and must forget it, lest their addresses count there as their groups'. And of a port that has no link yet
// nothing comes along.
func (t *tx) noteMoved(from, to sdn.ID, network string) error {
	rows, err := ports.all(t.Tx, "network", network)
	if err != nil {
		return err
	}
	for _, r := range rows {
		is, err := projectPort(t.Tx, r)
		if err != nil {
			return err
		}
		if is == nil {
			continue
		}
		t.change(from).left = append(t.change(from).left, *is)
		if err := t.tellPort(to, nil, is); err != nil {
			return err
		}
	}
	return nil
}

func projectGroup(r *securityGroupRow) securitygroup.Group {
	g := securitygroup.Group{ID: string(r.ID), Revision: r.Defined}
	for _, rule := range r.Rules {
		g.Rules = append(g.Rules, securitygroup.Rule{
			ID: string(rule.ID), Direction: securitygroup.Direction(rule.Direction == sdn.Egress), IPv6: rule.IPv6,
			Protocol: uint8(rule.Protocol), First: rule.Ports.First, Last: rule.Ports.Last,
			ICMPType: rule.ICMPType, ICMPCode: rule.ICMPCode,
			Remote: rule.RemotePrefix.Masked(), RemoteGroup: string(rule.RemoteGroup), RemoteSet: string(rule.RemoteSet),
		})
	}
	return g
}

func projectSet(r *addressGroupRow) securitygroup.Set {
	return securitygroup.Set{ID: string(r.ID), Revision: r.Defined, Prefixes: r.Prefixes}
}

// projectLimits gives the limits of a QoS policy; none for "".
func projectLimits(b engine.Tx, id sdn.ID) (securitygroup.Limits, error) {
	if id == "" {
		return securitygroup.Limits{}, nil
	}
	r, err := qosPolicies.need(b, id)
	if err != nil {
		return securitygroup.Limits{}, err
	}
	return securitygroup.Limits(r.Limits), nil
}

// projectFilters gives the definitions of all groups that plugged ports have, and of the address groups these name.
func projectFilters(b engine.Tx, s *router.State) error {
	named := map[sdn.ID]bool{}
	err := securityGroups.each(b, func(r *securityGroupRow) error {
		if !ports.any(b, "group", key(string(r.ID), pluggedPlace)) {
			return nil
		}
		s.Groups = append(s.Groups, projectGroup(r))
		for _, rule := range r.Rules {
			named[rule.RemoteSet] = true
		}
		return nil
	})
	if err != nil {
		return err
	}
	return addressGroups.each(b, func(r *addressGroupRow) error {
		if named[r.ID] {
			s.Sets = append(s.Sets, projectSet(r))
		}
		return nil
	})
}
