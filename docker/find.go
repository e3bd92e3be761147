package docker

import (
	"context"
	"slices"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// subnetOf is the subnet of a pool, and whether there is one: the one that was cut from it, or that stands for it.
func (d *Driver) subnetOf(ctx context.Context, pool sdn.ID) (sdn.Subnet, bool, error) {
	if known := d.whereabouts.subnet(pool); known != "" {
		s, err := d.sdn.Subnet(ctx, known)
		if !sdn.IsNotFound(err) {
			return s, err == nil, err
		}
		d.whereabouts.noteSubnet(pool, "")
	}
	if d.bareHere(pool) {
		return sdn.Subnet{}, false, nil
	}
	cut, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Pools: []sdn.ID{pool}}))
	if err != nil {
		return sdn.Subnet{}, false, err
	}
	var s sdn.Subnet
	switch len(cut) {
	case 0:
		var found bool
		if s, found, err = d.mapped(ctx, pool); err != nil || !found {
			return sdn.Subnet{}, false, err
		}
	default:
		// kuryr-libnetwork gave an operator's pool, which may have many, to the engine; the engine's subnet has a tag.
		s = cut[0]
		if i := slices.IndexFunc(cut, func(s sdn.Subnet) bool { return slices.Contains(s.Tags, string(pool)) }); i >= 0 {
			s = cut[i]
		}
	}
	d.whereabouts.noteSubnet(pool, s.ID)
	return s, true, nil
}

// findNetwork is the SDN's network of an engine's, and whether there is one. One that existed before the engine's has the identity of
// that nevertheless, and the tags of the link that leads to it, and is Foreign.
func (d *Driver) findNetwork(ctx context.Context, id string) (sdn.Network, bool, error) {
	if n, found, err := d.whereItWas(ctx, id); found || err != nil {
		return n, found, err
	}
	keys := []sdn.Key{d.names.GlobalKey(identity.KindNetwork, id)}
	n, found, err := sdn.First(d.sdn.FindNetworks(ctx, sdn.NetworkQuery{Match: sdn.Match{Keys: keys}}))
	if err != nil {
		return n, false, err
	}
	if found {
		d.noteNetwork(id, n.ID, "")
		return n, true, nil
	}
	l, found, err := d.findLink(ctx, id)
	if err != nil {
		return n, false, err
	}
	if found {
		d.noteNetwork(id, "", l.ID)
		n, err = d.linked(ctx, l)
		return n, err == nil, err
	}
	return d.peersNetwork(ctx, id)
}

// noteNetwork remembers where a network is that no other host changes.
func (d *Driver) noteNetwork(id string, network, link sdn.ID) {
	if d.scope == Local {
		d.whereabouts.noteNetwork(id, network, link)
	}
}

// whereItWas is findNetwork where this process has found it before. What other hosts do to a network of a swarm must be seen at once: for
// those it is no use.
func (d *Driver) whereItWas(ctx context.Context, id string) (n sdn.Network, found bool, err error) {
	network, via := d.whereabouts.network(id)
	if d.scope != Local || network == "" && via == "" {
		return n, false, nil
	}
	if via != "" {
		var p sdn.SubnetPool
		if p, err = d.sdn.SubnetPool(ctx, via); err == nil {
			if l, ok := d.link(p); ok && l.id == id {
				n, err = d.linked(ctx, l)
				return n, err == nil, err
			}
		}
	} else if n, err = d.sdn.Network(ctx, network); err == nil && n.Key == d.names.GlobalKey(identity.KindNetwork, id) {
		return n, true, nil
	}
	if err != nil && !sdn.IsNotFound(err) {
		return n, false, err
	}
	d.whereabouts.noteNetwork(id, "", "")
	return sdn.Network{}, false, nil
}

// changeNetwork changes what is written on an engine's network, whatever other hosts do to it meanwhile.
func (d *Driver) changeNetwork(ctx context.Context, n sdn.Network, change func([]string) []string) error {
	if n.Foreign {
		return d.changeLink(ctx, n.Key.Name, change)
	}
	return d.tagNetwork(ctx, n, change)
}
