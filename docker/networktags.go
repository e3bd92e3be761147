package docker

import (
	"context"
	"slices"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// An existing network that an engine's network is linked to, and the subnets that are used, carry
// kuryr-libnetwork's tags: for people, and for that program if it gets the deployment back. Kuryr
// itself goes by its links. Each tag is a call of the SDN, so the engine does not wait for them:
// a row says that the tags are wanted, or that they must go, and Run calls the SDN.

// kindNetworkTags is the kind of rows whose key is the engine's id of a network that is linked to
// an existing one.
const kindNetworkTags = "network-tags"

// maxTaggedNetworks is how many such rows there may be. The engine waits for the tags of others.
const maxTaggedNetworks = 20000

// tagSpec is what carries the tags.
type tagSpec struct {
	Network sdn.ID   `json:"network"`         // the SDN's
	Pools   []sdn.ID `json:"pools,omitempty"` // that the engine has, or had, for it
}

// tagTarget is the target of these rows.
type tagTarget struct{ d *Driver }

// Ensure implements reconcile.Target. A link that was deleted without a Remove, by hand or by an
// earlier version, becomes a deletion of the tags.
func (t tagTarget) Ensure(ctx context.Context, o reconcile.Object, _ tagSpec, _ struct{}) (none struct{}, err error) {
	l, linked, err := t.d.findLink(ctx, o.Key)
	switch {
	case err != nil:
		return none, err
	case !linked:
		return none, reconcile.ErrUnwanted
	}
	return none, t.d.unlessRefused(ctx, l, t.d.writeTags(ctx, l))
}

// Delete implements reconcile.Target.
func (t tagTarget) Delete(ctx context.Context, o reconcile.Object, spec tagSpec, _ struct{}) error {
	l := link{id: o.Key, network: spec.Network, pools: spec.Pools}
	subnets, err := sdn.All(t.d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{l.network}}))
	if err != nil {
		return err
	}
	return t.d.unlessRefused(ctx, l, t.d.deleteTags(ctx, l, subnets))
}

// unlessRefused returns an error after which tags are tried again. An owner may not allow others
// to tag his network, and nothing depends on the tags.
func (d *Driver) unlessRefused(ctx context.Context, l link, err error) error {
	if err == nil || away(err) || sdn.ReasonOf(err) == sdn.Stale || ctx.Err() != nil {
		return err
	}
	d.log.WarnContext(ctx, "tags of existing network refused", "network", l.network, "err", err)
	return nil
}

// setTags stores that the tags of a linked network are wanted.
func (d *Driver) setTags(ctx context.Context, l link) error {
	spec := tagSpec{Network: l.network, Pools: slices.Clone(l.pools)}
	if r, ok := d.tags.Get(l.id); ok && r.Spec.Network == l.network {
		for _, pool := range r.Spec.Pools {
			if !slices.Contains(spec.Pools, pool) {
				spec.Pools = append(spec.Pools, pool) // its tag may still be there
			}
		}
	}
	return d.tags.SetLater(ctx, reconcile.Request[tagSpec]{Key: l.id, Spec: spec})
}

// addTags has the tags of a linked network written. Without a row for it the engine waits.
func (d *Driver) addTags(ctx context.Context, l link) {
	err := d.setTags(ctx, l)
	if err == nil {
		return
	}
	d.log.DebugContext(ctx, "network tags not queued", "network", l.network, "err", err)
	if err := d.writeTags(ctx, l); err != nil {
		d.log.WarnContext(ctx, "existing network not tagged", "network", l.network, "err", err)
	}
}

// removeTags has the tags of a network deleted that will not be linked any longer.
func (d *Driver) removeTags(ctx context.Context, l link) error {
	r, ok := d.tags.Get(l.id)
	// The link may be of an earlier version, or there was no room when it or a pool was added.
	if !ok || slices.ContainsFunc(l.pools, func(p sdn.ID) bool { return !slices.Contains(r.Spec.Pools, p) }) {
		if err := d.setTags(ctx, l); err != nil {
			return err
		}
	}
	return d.tags.RemoveLater(ctx, l.id)
}

// removingTags reports whether tags of a network that the engine has deleted may still be there.
func (d *Driver) removingTags(id string) bool {
	r, ok := d.tags.Get(id)
	return ok && r.Phase == reconcile.Deleting
}

// unlink deletes a link. Run deletes the tags, unless kuryr-libnetwork's objects depend on them:
// then the engine waits, as it does if no row can be stored.
func (d *Driver) unlink(ctx context.Context, l link, subnets []sdn.Subnet) error {
	network, err := d.sdn.Network(ctx, l.network)
	if ignoreAbsent(err) != nil {
		return err
	}
	if err := d.removeTags(ctx, l); err != nil || identity.PeersWork(network, subnets) {
		if err := d.deleteTags(ctx, l, subnets); err != nil {
			return err
		}
	}
	return d.sdn.DeleteSubnetPool(ctx, l.ID)
}

// tagFirst writes the tag by which kuryr-libnetwork knows that a network is in use, for which the
// engine waits.
func (d *Driver) tagFirst(ctx context.Context, id string, network sdn.Network) {
	err := d.tagNetwork(ctx, network, func(tags []string) []string {
		tags, _ = identity.With(tags, identity.ExistingTag(id))
		return tags
	})
	if err != nil {
		d.log.WarnContext(ctx, "existing network not tagged", "network", network.ID, "err", err)
	}
}

// writeTags writes the tags on an existing network and on its subnets that are used.
func (d *Driver) writeTags(ctx context.Context, l link) error {
	network, err := d.sdn.Network(ctx, l.network)
	if err != nil {
		return ignoreAbsent(err)
	}
	err = d.tagNetwork(ctx, network, func(tags []string) []string {
		for _, t := range useTags(l.id) {
			tags, _ = identity.With(tags, t)
		}
		return tags
	})
	for _, pool := range l.pools {
		if err != nil {
			return err
		}
		s, found, failed := d.subnetOf(ctx, pool)
		if failed != nil || !found || s.Network != l.network || d.cutFor(s, l.id) {
			err = failed
			continue
		}
		err = d.tagSubnet(ctx, s, func(tags []string) []string {
			tags, _ = identity.With(tags, string(pool))
			return tags
		})
	}
	return err
}

// useTags are kuryr-libnetwork's on an existing network.
func useTags(id string) []string { return append(identity.IDTags(id), identity.ExistingTag(id)) }

// tagNetwork changes the tags of a network, which may be unmanaged.
func (d *Driver) tagNetwork(ctx context.Context, n sdn.Network, change func([]string) []string) error {
	return retryStale(func(again bool) (err error) {
		if again {
			if n, err = d.sdn.Network(ctx, n.ID); err != nil {
				return err
			}
		}
		tags := change(n.Tags)
		if slices.Equal(tags, n.Tags) {
			return nil
		}
		_, err = d.sdn.UpdateNetwork(ctx, n.ID, sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: n.Revision, Tags: &tags}})
		return err
	})
}

func (d *Driver) tagSubnet(ctx context.Context, s sdn.Subnet, change func([]string) []string) error {
	return retryStale(func(again bool) (err error) {
		if again {
			if s, err = d.sdn.Subnet(ctx, s.ID); err != nil {
				return err
			}
		}
		tags := change(s.Tags)
		if slices.Equal(tags, s.Tags) {
			return nil
		}
		_, err = d.sdn.UpdateSubnet(ctx, s.ID, sdn.SubnetPatch{Patch: sdn.Patch{IfRevision: s.Revision, Tags: &tags}})
		return err
	})
}

// deleteTags deletes the tags that writeTags or kuryr-libnetwork wrote. It also deletes what that
// program made for the use of the network, unless others use it.
func (d *Driver) deleteTags(ctx context.Context, l link, subnets []sdn.Subnet) error {
	network, err := d.sdn.Network(ctx, l.network)
	if sdn.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	// What is read may be old, but it has what was written here.
	err = d.tagNetwork(ctx, network, without(useTags(l.id)...))
	var own []string
	for _, p := range l.pools {
		own = append(own, string(p))
	}
	var peers []sdn.Subnet
	for _, s := range subnets {
		if err != nil || d.cutFor(s, l.id) {
			continue
		}
		if err = d.tagSubnet(ctx, s, without(own...)); err == nil && slices.ContainsFunc(subnetPools(s), func(id sdn.ID) bool { return !slices.Contains(l.pools, id) }) {
			peers = append(peers, s)
		}
	}
	if err == nil && len(peers) > 0 {
		err = d.dropPeersPools(ctx, l.network, peers)
	}
	if sdn.IsDenied(err) || sdn.IsUnsupported(err) || sdn.IsNotFound(err) {
		d.log.WarnContext(ctx, "existing network keeps its tags", "network", network.ID, "err", err)
		return nil
	}
	return err
}
