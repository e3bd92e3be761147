package neutronapi

import "github.com/kuryr/kuryr/sdn"

// network gives a network whosesoever it is, and remembers it for the rest of the call.
func (c *call) network(id sdn.ID) (sdn.Network, error) {
	if n, ok := c.seen[id]; ok {
		return n, nil
	}
	n, err := c.server.p.Network(c.ctx(), id)
	if err != nil {
		return n, err
	}
	if _, err := c.seesNetwork(&n); err != nil {
		return n, err
	}
	if c.seen == nil {
		c.seen = map[sdn.ID]sdn.Network{}
	}
	c.seen[id] = n
	return n, nil
}

// ofNetwork tells whether what belongs to a network is seen for the network's sake: by its owner, and where all is true by everybody it is shared with.
func (c *call) ofNetwork(id sdn.ID, all bool) (bool, error) {
	n, err := c.network(id)
	if sdn.IsNotFound(err) {
		return false, nil
	}
	return err == nil && (c.owns(n.Meta) || all && n.Shared), err
}

// refer checks that what a body refers to is there for the caller; get asks for it. An error is remembered.
func refer[T any](b *body, id sdn.ID, get func(*call, sdn.ID) (T, error)) (t T, ok bool) {
	t, err := get(b.call, id)
	if err != nil {
		b.fail(err)
	}
	return t, err == nil
}

// foreign refuses an attribute to whom a network does not belong.
func (b *body) foreign(n sdn.Network, names ...string) {
	if b.owns(n.Meta) {
		return
	}
	for _, name := range names {
		b.privileged(name)
	}
}

// onNetwork refuses to put something on a network that is neither the caller's nor shared
// with it. An external network's addresses are for routers and floating IPs, also where
// it is shared.
func (b *body) onNetwork(id sdn.ID) {
	switch n, err := b.network(id); {
	case err != nil:
		b.fail(err)
	case b.owns(n.Meta):
	case n.External:
		b.fail(b.denied("network " + string(id) + " is external and another project's"))
	case !n.Shared:
		b.fail(b.denied("network " + string(id) + " is another project's"))
	}
}

// knows tells whether the caller was seen to see a subnet: of a thousand members most name the same.
func (b *body) knows(subnet sdn.ID) bool {
	if b.found[subnet] {
		return true
	}
	if b.found == nil {
		b.found = map[sdn.ID]bool{}
	}
	b.found[subnet] = true // what is not there is refused at once
	return false
}
