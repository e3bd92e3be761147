package docker

import (
	"context"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// noteUse notes, once, that an endpoint is made on a network that no engine was seen to have: whoever has it uses it, so it is never
// taken for one whose creation nobody heard of.
func (d *Driver) noteUse(ctx context.Context, n sdn.Network) error {
	if n.Foreign || engineOf(n.Tags) != "" || slices.Contains(n.Tags, identity.TagUsed) || ofSwarm(n) {
		return nil
	}
	deleted := false
	err := d.changeNetwork(ctx, n, func(tags []string) []string {
		if deleted = slices.Contains(tags, identity.TagDeleted); deleted {
			return tags
		}
		tags, _ = identity.With(tags, identity.TagUsed)
		return tags
	})
	if deleted {
		return refuse("network %s is being deleted", n.Key.Name)
	}
	if err == nil {
		failpoint.Here("docker.createendpoint.noted")
	}
	return err
}

// ofSwarm tells whether a network is a swarm's: its manager or other nodes may have it.
func ofSwarm(n sdn.Network) bool {
	return slices.ContainsFunc(n.Tags, func(t string) bool {
		return t == identity.TagSwarm || t == identity.TagAllocated || strings.HasPrefix(t, identity.TagAllocating) || strings.HasPrefix(t, identity.TagNode) || strings.HasPrefix(t, identity.TagLeaving)
	})
}

// untouched tells that a network is as CreateNetwork made it for this host's engine, or began to. What is on an existing one does not tell: others use it too.
func (c *comparer) untouched(n sdn.Network) bool {
	if !localID.MatchString(n.Key.Name) || ofSwarm(n) || slices.Contains(n.Tags, identity.TagUsed) {
		return false
	}
	if c.untold(identity.KindNetwork, n.Key.Name) {
		return n.Foreign || !c.ported[n.ID]
	}
	return !n.Foreign && !c.ported[n.ID] && len(n.Subnets) > 0 && c.ranges[n.ID] == len(n.Subnets)
}

// untold tells that it is written down that no engine may have been told of something.
func (c *comparer) untold(kind, name string) bool {
	_, untold := c.left[recordOf(kind, name)]
	return untold
}

// beginnings finds out what has become of what is written down.
func (c *comparer) beginnings(context.Context) error {
	for _, b := range c.left {
		there, told := c.become(b)
		switch {
		case told:
			c.out.told = append(c.out.told, b)
		case !there:
			c.out.absent = append(c.out.absent, b)
		}
	}
	return nil
}

// become tells whether the SDN has something, and whether the engine has.
func (c *comparer) become(b beginning) (there, told bool) {
	if b.Kind == identity.KindNetwork {
		_, told = c.has[b.Name]
		return c.known[b.Name], told
	}
	at := slices.IndexFunc(c.all, func(p enginePool) bool { return p.Key.Name == b.Name })
	if at < 0 {
		return false, false
	}
	return true, len(c.users(c.all[at].CIDR)) > 0 || c.ofNetwork(c.all[at].ID)
}

// ofNetwork tells whether a pool is of a network that the engine has.
func (c *comparer) ofNetwork(pool sdn.ID) bool {
	for _, l := range c.links {
		if _, has := c.has[l.id]; has && slices.Contains(l.pools, pool) {
			return true
		}
	}
	_, has := c.has[c.nets[c.cut[pool].Network].Key.Name]
	return has
}

// soleEngine tells whether the engine that answers is known to use this plugin, and nothing speaks of another that does.
func (c *comparer) soleEngine() bool {
	uses := false
	for _, n := range c.nets {
		if c.elsewhere[n.ID] {
			continue
		}
		_, has := c.has[n.Key.Name]
		switch engine := engineOf(n.Tags); {
		case has || engine == c.view.Engine:
			uses = true
		case engine != "" || ofSwarm(n) || !c.untouched(n):
			return false
		}
	}
	for _, p := range c.all {
		if p.Host != c.d.names.Host {
			continue
		}
		switch engineOf(p.Tags) {
		case c.view.Engine:
			uses = true
		case "":
		default:
			return false
		}
	}
	return uses
}

// markUntouched marks a network that no engine was seen to have for going, if nothing was done to it since it was found: CreateEndpoint
// and a look at an engine that has it would have changed it.
func (d *Driver) markUntouched(ctx context.Context, f Forgotten, network sdn.Network) error {
	if network.Revision != f.revision {
		return stayed{"something was done to it"}
	}
	tags, _ := identity.With(network.Tags, identity.TagDeleted)
	_, err := d.sdn.UpdateNetwork(ctx, f.ID, sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: f.revision, Tags: &tags}})
	if sdn.ReasonOf(err) == sdn.Stale {
		return stayed{"something was done to it"}
	}
	return ignoreAbsent(err)
}
