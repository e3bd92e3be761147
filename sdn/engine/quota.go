package engine

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/kuryr/kuryr/sdn"
)

// DefaultQuotas limit a named project that has no limits of its own. They keep one
// project from filling what all share: the addresses between routers and the host, the
// kernel's memory, the store.
func DefaultQuotas() map[sdn.Noun]int64 {
	return map[sdn.Noun]int64{
		sdn.NounNetwork: 100, sdn.NounSubnet: 200, sdn.NounSubnetPool: 50, sdn.NounPort: 500, sdn.NounTrunk: 100,
		sdn.NounRouter: 20, sdn.NounFloatingIP: 50, sdn.NounForward: 500,
		sdn.NounSecurityGroup: 100, sdn.NounRule: 2000, sdn.NounAddressGroup: 100, sdn.NounQoSPolicy: 50,
		sdn.NounRBACPolicy:   100,
		sdn.NounAddressScope: 50,
		sdn.NounLoadBalancer: 100, sdn.NounListener: 500, sdn.NounPool: 500, sdn.NounMember: 5000,
	}
}

// countKey is the key of a project's counter of a noun.
func countKey(project string, noun sdn.Noun) []byte { return []byte(key(project, string(noun))) }

// count moves the project's counter of a noun, and refuses to move it beyond the quota.
func (t *tx) count(noun sdn.Noun, project string, by int64) error {
	k := countKey(project, noun)
	n := counter(t.Tx, k) + by
	if by > 0 {
		if err := t.checkQuota(noun, project, n); err != nil {
			return err
		}
	}
	return t.Put(usageTable, k, binary.BigEndian.AppendUint64(nil, uint64(n)))
}

// checkQuota refuses to let the project have n of a noun.
func (t *tx) checkQuota(noun sdn.Noun, project string, n int64) error {
	if t.beyond {
		return nil
	}
	limits, err := ownLimits(t.Tx, project)
	if err != nil {
		return err
	}
	limit, set := limits[noun]
	if client, served := sdn.ClientOf(t.ctx); !set && served && !client.Admin && project != "" {
		limit, set = t.e.quotas[noun]
	}
	if set && limit >= 0 && n > limit {
		return sdn.Exhausted(sdn.NoQuota, string(noun), "the project's quota of %d is used up", limit)
	}
	return nil
}

// ownLimits are those that were set for a project.
func ownLimits(b Tx, project string) (map[sdn.Noun]int64, error) {
	limits := map[sdn.Noun]int64{}
	if v := b.Get(quotaTable, quotaKey(project)); v != nil {
		if err := json.Unmarshal(v, &limits); err != nil {
			return nil, damaged("quota", project, err)
		}
	}
	return limits, nil
}

// quotaKey is not empty for the project without a name either, as keys must not be.
func quotaKey(project string) []byte { return []byte("project:" + project) }

var countedNouns = []sdn.Noun{
	sdn.NounNetwork, sdn.NounSubnet, sdn.NounSubnetPool, sdn.NounPort, sdn.NounTrunk,
	sdn.NounRouter, sdn.NounFloatingIP, sdn.NounForward,
	sdn.NounSecurityGroup, sdn.NounRule, sdn.NounAddressGroup, sdn.NounQoSPolicy, sdn.NounRBACPolicy, sdn.NounAddressScope,
	sdn.NounLoadBalancer, sdn.NounListener, sdn.NounPool, sdn.NounMember,
}

// absentNouns are those that there is never one of, with limits that clients set all the same.
var absentNouns = []sdn.Noun{sdn.NounHealthMonitor, sdn.NounL7Policy, sdn.NounL7Rule}

// Usage tells a project's quotas and what it has.
func (e *Engine) Usage(ctx context.Context, project string) (map[sdn.Noun]sdn.Usage, error) {
	usage := map[sdn.Noun]sdn.Usage{}
	return usage, e.view(func(b Tx) error {
		own, err := ownLimits(b, project)
		for _, noun := range countedNouns {
			is := sdn.Usage{Used: counter(b, countKey(project, noun)), Limit: -1}
			if limit, set := own[noun]; set {
				is.Limit = limit
			} else if limit, set = e.quotas[noun]; set && project != "" {
				is.Limit, is.Default = limit, true
			}
			usage[noun] = is
		}
		for _, noun := range absentNouns {
			is := sdn.Usage{Limit: -1}
			if limit, set := own[noun]; set {
				is.Limit = limit
			}
			usage[noun] = is
		}
		return errors.Join(err, ctx.Err())
	})
}

// SetQuota sets a project's limits. What the project has beyond them stays.
func (e *Engine) SetQuota(ctx context.Context, project string, limits map[sdn.Noun]int64) error {
	for noun, n := range limits {
		if n < -1 {
			return sdn.Invalid("quota", string(noun), "must be -1 or more, not %d", n)
		}
		if !contains(countedNouns, noun) && !contains(absentNouns, noun) {
			return sdn.Invalid("quota", string(noun), "is not counted")
		}
	}
	return e.update(ctx, func(t *tx) error {
		all, err := ownLimits(t.Tx, project)
		if err != nil {
			return err
		}
		maps.Copy(all, limits)
		t.wrote = true
		return putLimits(t.Tx, project, all)
	})
}

func putLimits(b Tx, project string, limits map[sdn.Noun]int64) error {
	v, err := json.Marshal(limits)
	if err != nil {
		return fmt.Errorf("encode quota: %w", err)
	}
	return b.Put(quotaTable, quotaKey(project), v)
}
