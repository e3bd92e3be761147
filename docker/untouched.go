package docker

import (
	"context"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/internal/failpoint"
	"github.com/kuryr/kuryr/sdn"
)

// noteUse notes, once, that an endpoint is made on a network that no engine was seen to have: whoever has it uses it, so it is never
// taken for one whose creation nobody heard of.
func (d *Driver) noteUse(ctx context.Context, n sdn.Network) error {
	if n.Foreign || engineOf(n.Tags) != "" || slices.Contains(n.Tags, tagUsed) || ofSwarm(n) {
		return nil
	}
	deleted := false
	err := d.changeNetwork(ctx, n, func(tags []string) []string {
		if deleted = slices.Contains(tags, tagDeleted); deleted {
			return tags
		}
		tags, _ = withTag(tags, tagUsed)
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
		return t == tagSwarm || t == tagAllocated || strings.HasPrefix(t, tagAllocating) || strings.HasPrefix(t, tagNode) || strings.HasPrefix(t, tagLeaving)
	})
}

// untouched tells that a network is as CreateNetwork made it for this host's engine.
func (c *comparer) untouched(n sdn.Network) bool {
	return localID.MatchString(n.Key.Name) && !n.Foreign && !ofSwarm(n) && !slices.Contains(n.Tags, tagUsed) && !c.ported[n.ID] &&
		len(n.Subnets) > 0 && c.ranges[n.ID] == len(n.Subnets)
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
		case has || engine == c.view.ID:
			uses = true
		case engine != "" || ofSwarm(n) || !c.untouched(n):
			return false
		}
	}
	for _, p := range c.all {
		if p.host != c.d.hostKey {
			continue
		}
		switch engineOf(p.Tags) {
		case c.view.ID:
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
	tags, _ := withTag(network.Tags, tagDeleted)
	_, err := d.sdn.UpdateNetwork(ctx, f.ID, sdn.NetworkPatch{Patch: sdn.Patch{IfRevision: f.revision, Tags: &tags}})
	if sdn.ReasonOf(err) == sdn.Stale {
		return stayed{"something was done to it"}
	}
	return ignoreAbsent(err)
}
