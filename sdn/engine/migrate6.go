package engine

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/kuryr/kuryr/sdn"
)

// The migration to schema 6. Before it a Key was of one object in all projects, port
// forwardings, address groups and QoS policies counted against no quota, and a project
// had no limits unless they were set.

// rebuildKeys makes the indexes by Key again, with the project in each entry.
func rebuildKeys(b Tx) error {
	for _, t := range []interface {
		rebuild(b Tx, index string) error
	}{
		Networks, Subnets, subnetPools, Ports, Trunks, Routers, FloatingIPs, SecurityGroups, AddressGroups, QoSPolicies,
		LoadBalancers,
	} {
		if err := t.rebuild(b, "key"); err != nil {
			return err
		}
	}
	return nil
}

// rebuild makes an index again.
func (t table[T, R]) rebuild(b Tx, name string) error {
	if err := b.Clear(t.indexTable(name)); err != nil {
		return err
	}
	return t.index(b, name)
}

// ownForwards gives port forwardings the project of their floating IPs.
func ownForwards(b Tx) error {
	var rows []*ForwardRow
	if err := Forwards.Each(b, func(r *ForwardRow) error { rows = append(rows, r); return nil }); err != nil {
		return err
	}
	for _, r := range rows {
		fip, err := FloatingIPs.Get(b, r.FloatingIP)
		if err != nil {
			return err
		}
		if fip == nil || fip.Project == "" {
			continue
		}
		old := *r
		r.Meta.Project = fip.Project
		if err := Forwards.replace(b, &old, r); err != nil {
			return err
		}
	}
	return nil
}

// countAll makes the counters of what did not count before.
func countAll(b Tx) error {
	return errors.Join(Forwards.recount(b), AddressGroups.recount(b), QoSPolicies.recount(b))
}

// recount sets each project's counter of a table's rows.
func (t table[T, R]) recount(b Tx) error {
	counts := map[string]uint64{}
	if err := t.Each(b, func(r R) error { counts[r.meta().Project]++; return nil }); err != nil {
		return err
	}
	for project, n := range counts {
		value := binary.BigEndian.AppendUint64(nil, n)
		if err := b.Put(usageTable, countKey(project, t.counts()), value); err != nil {
			return err
		}
	}
	return nil
}

// keptQuota is how many times what a project has it may have after the migration, where
// that is more than the default.
const keptQuota = 2

// keepQuotas sets limits of their own for projects that have more than half of what the
// default ones let them have, so that they can go on growing: they had no limit
// before.
func keepQuotas(b Tx) error {
	kept := map[string]map[sdn.Noun]int64{}
	defaults := DefaultQuotas()
	for k, v := range b.Seek(usageTable, nil) {
		project, noun, _ := bytes.Cut(k, []byte{0})
		limit, limited := defaults[sdn.Noun(noun)]
		if len(project) == 0 || !limited || len(v) != 8 {
			continue
		}
		if n := keptQuota * int64(binary.BigEndian.Uint64(v)); n > limit {
			if kept[string(project)] == nil {
				kept[string(project)] = map[sdn.Noun]int64{}
			}
			kept[string(project)][sdn.Noun(noun)] = n
		}
	}
	for project, limits := range kept {
		own, err := ownLimits(b, project)
		if err != nil {
			return err
		}
		for noun, n := range limits {
			if _, set := own[noun]; !set {
				own[noun] = n
			}
		}
		if err := putLimits(b, project, own); err != nil {
			return err
		}
	}
	return nil
}
