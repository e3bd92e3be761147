package docker

import (
	"context"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// nodeTag marks a network of global scope that this host's engine has.
func (d *Driver) nodeTag() string { return identity.TagNode + d.names.Host }

// leavingTag marks one whose part on this host is being taken away.
func (d *Driver) leavingTag() string { return identity.TagLeaving + d.names.Host }

// allocatingTag marks one that the manager on this host is not yet told of.
func (d *Driver) allocatingTag() string { return identity.TagAllocating + d.names.Host }

// nodes are the hosts whose engines have the network, or are about to have it no more.
func nodes(n sdn.Network) []string { return nodesOf(n.Tags) }

func nodesOf(tags []string) []string {
	return slices.Concat(identity.Values(tags, identity.TagNode), identity.Values(tags, identity.TagLeaving))
}

// without is a change of tags that takes some away.
func without(gone ...string) func([]string) []string {
	return func(tags []string) []string {
		return slices.DeleteFunc(slices.Clone(tags), func(t string) bool { return slices.Contains(gone, t) })
	}
}

// goneIfLast marks a network as deleted if neither a manager nor a node has it.
func goneIfLast(tags []string) []string {
	if len(nodesOf(tags)) > 0 || slices.Contains(tags, identity.TagAllocated) ||
		slices.Contains(tags, identity.TagDeleted) {
		return tags
	}
	return append(slices.Clone(tags), identity.TagDeleted)
}

// dropIfDeleted drops a network if it is marked by now.
func (d *Driver) dropIfDeleted(ctx context.Context, network sdn.Network) error {
	now, err := d.sdn.Network(ctx, network.ID)
	if sdn.IsNotFound(err) || err == nil && !slices.Contains(now.Tags, identity.TagDeleted) {
		return nil
	}
	if err != nil {
		return err
	}
	return d.dropFound(ctx, now.Key.Name, now)
}

// keepNodes adds to the tags of a network that is made anew or finished what tells which nodes have it, this one among them.
func (d *Driver) keepNodes(tags []string, before sdn.Network) []string {
	if d.scope != Global {
		return tags
	}
	for _, t := range append(slices.Clone(before.Tags), d.nodeTag()) {
		if strings.HasPrefix(t, identity.TagNode) || strings.HasPrefix(t, identity.TagLeaving) && t != d.leavingTag() {
			tags, _ = identity.With(tags, t)
		}
	}
	return tags
}

// joinNetwork is CreateNetwork on a node of a swarm: the network is there, the node is noted, and the way out made.
func (d *Driver) joinNetwork(ctx context.Context, r *api.CreateNetworkRequest, network sdn.Network) (err error) {
	if slices.Contains(network.Tags, d.leavingTag()) {
		if err := d.leaveNetwork(ctx, network); err != nil {
			return err
		}
		if network, err = d.network(ctx, r.NetworkID); err != nil {
			return err
		}
	}
	subnets, err := sdn.All(d.sdn.FindSubnets(ctx, sdn.SubnetQuery{Networks: []sdn.ID{network.ID}}))
	if err != nil {
		return err
	}
	for _, data := range r.Ranges {
		if !slices.ContainsFunc(subnets, func(s sdn.Subnet) bool { return s.CIDR == data.Pool }) {
			return refuse("network %s has no range %s", r.NetworkID, data.Pool)
		}
	}
	had := slices.Contains(network.Tags, d.nodeTag())
	if had {
		if err := d.dropStale(ctx, network); err != nil {
			return err
		}
	}
	err = d.changeNetwork(ctx, network, func(tags []string) []string {
		if slices.Contains(tags, identity.TagDeleted) {
			return tags
		}
		tags, _ = identity.With(tags, d.nodeTag())
		if r.Options.Internal {
			tags, _ = identity.With(tags, identity.TagInternal)
		}
		return tags
	})
	if err == nil {
		network, err = d.sdn.Network(ctx, network.ID)
	}
	if err != nil {
		return err
	}
	if slices.Contains(network.Tags, identity.TagDeleted) {
		return refuse("network %s is being deleted", r.NetworkID)
	}
	failpoint.Here("docker.swarm.joined")
	if !d.wantsRouter(r.Options) {
		return nil
	}
	if err := d.route(ctx, r.NetworkID, r.Options, network); err != nil {
		if !had {
			d.undoJoin(ctx, network)
		}
		return err
	}
	return nil
}

// dropStale takes away the endpoints of a network that an engine makes once more: it was killed, and of a swarm's network it
// remembers nothing. One that a container has stays.
func (d *Driver) dropStale(ctx context.Context, network sdn.Network) error {
	ports, err := sdn.All(d.sdn.FindPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{network.ID}, Hosts: []string{d.host}}))
	if err != nil {
		return err
	}
	for _, p := range ports {
		if !d.names.Ours(p.Meta, identity.KindPort, identity.KindEndpoint) || p.DeviceID == "" {
			continue
		}
		if _, err := d.dropUnused(ctx, p, "its network was created again"); err != nil {
			return err
		}
	}
	return nil
}

// undoJoin forgets a node whose CreateNetwork failed, since its engine will not delete the network.
func (d *Driver) undoJoin(ctx context.Context, network sdn.Network) {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollback)
	defer cancel()
	if err := d.leaveNetwork(undo, network); err != nil {
		d.log.ErrorContext(ctx, "a network that could not be made was left behind", "network", network.Key.Name, "err", err)
	}
}

// removeNetwork is DeleteNetwork: the network goes, or this node's part of it where others have it too.
func (d *Driver) removeNetwork(ctx context.Context, id string) error {
	network, found, err := d.findNetwork(ctx, id)
	if err != nil || !found {
		return err
	}
	if !d.shared(network) {
		return d.dropFound(ctx, id, network)
	}
	return d.leaveNetwork(ctx, network)
}

// shared tells whether a swarm's manager has a network, or another node.
func (d *Driver) shared(n sdn.Network) bool {
	others := slices.ContainsFunc(nodes(n), func(host string) bool { return host != d.names.Host })
	return slices.Contains(n.Tags, identity.TagAllocated) || others
}

// leaveNetwork takes away what this node has of a network, and the network itself if it was the last to have it. The engine
// has forgotten it, so the network is marked first.
func (d *Driver) leaveNetwork(ctx context.Context, network sdn.Network) error {
	marks := []string{d.nodeTag(), d.leavingTag()}
	if !slices.ContainsFunc(network.Tags, func(t string) bool { return slices.Contains(marks, t) }) {
		return nil
	}
	err := d.changeNetwork(ctx, network, func(tags []string) []string {
		tags, _ = identity.With(without(d.nodeTag())(tags), d.leavingTag())
		return tags
	})
	if err != nil {
		return err
	}
	failpoint.Here("docker.swarm.leaving")
	ports, err := sdn.All(d.sdn.FindPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{network.ID}, Hosts: []string{d.host}}))
	if err != nil {
		return err
	}
	for _, p := range ports {
		if d.names.Ours(p.Meta, identity.KindPort, identity.KindEndpoint) && p.DeviceID != "" {
			if err := d.dropEndpoint(ctx, p); err != nil {
				return err
			}
		}
	}
	failpoint.Here("docker.swarm.left")
	now, err := d.sdn.Network(ctx, network.ID)
	if err != nil {
		return err
	}
	err = d.changeNetwork(ctx, now, func(tags []string) []string { return goneIfLast(without(marks...)(tags)) })
	if err != nil {
		return err
	}
	failpoint.Here("docker.swarm.forgotten")
	return d.dropIfDeleted(ctx, network)
}

// releaseNodePool is a node's ReleasePool. The pool is the manager's and stays; but the network goes from the node now, if it
// has no endpoints there: the call comes right before DeleteNetwork, or in its place when CreateNetwork was not answered.
func (d *Driver) releaseNodePool(ctx context.Context, id sdn.ID) error {
	subnet, found, err := d.subnetOf(ctx, id)
	if err != nil || !found {
		return err
	}
	network, err := d.sdn.Network(ctx, subnet.Network)
	if sdn.IsNotFound(err) || err == nil && !d.names.Ours(network.Meta, identity.KindNetwork) {
		return nil
	}
	if err != nil {
		return err
	}
	unlock, err := d.locks.lock(ctx, "network/"+network.Key.Name)
	if err != nil {
		return err
	}
	defer unlock()
	for p, err := range d.sdn.FindPorts(ctx, sdn.PortQuery{Networks: []sdn.ID{network.ID}, Hosts: []string{d.host}}) {
		if err != nil {
			return err
		}
		if d.names.Ours(p.Meta, identity.KindPort, identity.KindEndpoint) && p.DeviceID != "" {
			return nil
		}
	}
	return d.removeNetwork(ctx, network.Key.Name)
}
