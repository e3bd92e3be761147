package docker

import (
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/sdn"
)

// A network that existed before the engine's cannot carry our Key: it is somebody else's, and may be many engines' networks at once. So
// an object of our own says which network an engine's is: a link, a subnet pool that nothing is ever cut from, since a subnet pool is
// what an SDN lets anybody have without side effects. All it says is in its Key and its name, which are there as soon as it is; its tags
// are what other networks of the engine have on themselves. Each host has its own, so none depends on another's.

// link is a link taken apart.
type link struct {
	sdn.SubnetPool
	id      string   // the engine's network
	network sdn.ID   // the SDN's
	pools   []sdn.ID // that the engine has for it
}

// maxLinkPools is how many pools a link's name has room for.
const maxLinkPools = 5

// unusedRange is the prefix of links without a range: a subnet pool must have one (RFC 5737).
var unusedRange = netip.MustParsePrefix("192.0.2.0/24")

func (d *Driver) linkKey(id string) sdn.Key {
	return d.names.GlobalKey(identity.KindLink, d.names.Host+"/"+id)
}

// link reads a link; false for one that is another host's, or none.
func (d *Driver) link(p sdn.SubnetPool) (link, bool) {
	id, here := strings.CutPrefix(p.Key.Name, d.names.Host+"/")
	parts := strings.Split(p.Name, ",")
	if !d.names.Ours(p.Meta, identity.KindLink) || !here || parts[0] == "" {
		return link{}, false
	}
	l := link{SubnetPool: p, id: id, network: sdn.ID(parts[0])}
	for _, pool := range parts[1:] {
		l.pools = append(l.pools, sdn.ID(pool))
	}
	return l, true
}

// ensureLink makes the link of an engine's network to one of the SDN's, or finds it.
func (d *Driver) ensureLink(ctx context.Context, id string, network sdn.ID, pools []sdn.ID, cidr netip.Prefix, tags []string, isNew bool) (link, error) {
	if !cidr.IsValid() {
		cidr = unusedRange
	}
	if len(pools) > maxLinkPools {
		return link{}, refuse("an existing network can be given %d ranges at most", maxLinkPools)
	}
	name := []string{string(network)}
	for _, p := range pools {
		name = append(name, string(p))
	}
	made, err := d.sdn.EnsureSubnetPool(ctx, sdn.SubnetPoolSpec{
		Base:       sdn.Base{Key: d.linkKey(id), Name: strings.Join(name, ","), Tags: tags},
		Prefixes:   []netip.Prefix{cidr},
		DefaultLen: cidr.Bits(),
		MinLen:     cidr.Bits(),
		New:        isNew,
	})
	if err != nil {
		return link{}, err
	}
	l, ok := d.link(made)
	if !ok || l.network != network {
		return link{}, refuse("network %s is another network of the SDN already", api.Clip(id, 12))
	}
	return l, nil
}

// findLink is the link of an engine's network on this host, and whether there is one.
func (d *Driver) findLink(ctx context.Context, id string) (link, bool, error) {
	if d.scope != Local || !d.sdn.Capabilities().SubnetPools {
		return link{}, false, nil
	}
	found, ok, err := sdn.First(d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: sdn.Match{Keys: []sdn.Key{d.linkKey(id)}}}))
	if err != nil || !ok {
		return link{}, false, err
	}
	l, ok := d.link(found)
	return l, ok, nil
}

// allLinks are this host's.
func (d *Driver) allLinks(ctx context.Context) ([]link, error) {
	if d.scope != Local || !d.sdn.Capabilities().SubnetPools {
		return nil, nil
	}
	var links []link
	for p, err := range d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: sdn.Match{Owner: d.sdn.Installation(), Kind: identity.KindLink}}) {
		if err != nil {
			return nil, err
		}
		if l, ok := d.link(p); ok {
			links = append(links, l)
		}
	}
	return links, nil
}

// linked is the network that a link leads to, as an engine's: with the identity of that, the tags of the link, and Foreign, so that nobody
// takes it for ours. One that its owner has deleted has no subnets.
func (d *Driver) linked(ctx context.Context, l link) (sdn.Network, error) {
	n, err := d.sdn.Network(ctx, l.network)
	if err != nil && !sdn.IsNotFound(err) {
		return sdn.Network{}, err
	}
	n.Meta = l.asNetwork(d).Meta
	return n, nil
}

// asNetwork is linked as far as the link itself tells.
func (l link) asNetwork(d *Driver) sdn.Network {
	return sdn.Network{Meta: sdn.Meta{ID: l.network, Base: sdn.Base{Key: d.names.GlobalKey(identity.KindNetwork, l.id), Tags: l.Tags},
		Foreign: true, Revision: l.Revision, Created: l.Created, Updated: l.Updated}}
}

// changeLink changes what is written on the link of an engine's network, whatever else happens to it meanwhile.
func (d *Driver) changeLink(ctx context.Context, id string, change func([]string) []string) error {
	l, found, err := d.findLink(ctx, id)
	if err != nil || !found {
		return err
	}
	return d.changePool(ctx, enginePool{SubnetPool: l.SubnetPool}, func(tags []string) ([]string, bool) {
		changed := change(tags)
		return changed, !slices.Equal(changed, tags)
	})
}

// finishLinks takes down what is left of networks whose ranges were all released: engines release them right before they delete the
// network, so that call never came, or did not come to its end.
func (d *Driver) finishLinks(ctx context.Context) error {
	links, err := d.allLinks(ctx)
	if err != nil {
		return err
	}
	for _, l := range links {
		gone := slices.Contains(l.Tags, identity.TagDeleted)
		if !gone && len(l.pools) > 0 {
			if gone, err = d.allGone(ctx, l.pools); err != nil {
				return err
			}
		}
		if gone {
			if err := d.removeLocked(ctx, l.id); err != nil {
				return err
			}
		}
	}
	return nil
}

// allGone tells whether the engine has released all of the pools.
func (d *Driver) allGone(ctx context.Context, pools []sdn.ID) (bool, error) {
	for p, err := range d.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{Match: sdn.Match{IDs: pools}}) {
		if err != nil {
			return false, err
		}
		if !slices.Contains(p.Tags, identity.TagReleased) {
			return false, nil
		}
	}
	return true, nil
}

// removeLocked is removeNetwork with the network's lock.
func (d *Driver) removeLocked(ctx context.Context, id string) error {
	unlock, err := d.locks.lock(ctx, "network/"+id)
	if err != nil {
		return err
	}
	defer unlock()
	return d.removeNetwork(ctx, id)
}
