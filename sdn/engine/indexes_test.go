package engine

import (
	"maps"
	"testing"
)

// CheckIndexes compares indexes and counters with the rows.
func CheckIndexes(t *testing.T, b Tx) {
	t.Helper()
	for _, table := range []interface {
		checkIndexes(t *testing.T, b Tx)
	}{
		Networks, Subnets, subnetPools, Ports, Trunks, Routers, FloatingIPs, Forwards, SecurityGroups,
		AddressGroups, QoSPolicies, LoadBalancers, accesses, addressScopes,
	} {
		table.checkIndexes(t, b)
	}
}

func (table table[T, R]) checkIndexes(t *testing.T, b Tx) {
	t.Helper()
	want := map[string]map[string]string{}
	for _, ix := range table.indexes {
		want[ix.name] = map[string]string{}
	}
	counted, all := map[string]int64{}, int64(0)
	ok(t, table.Each(b, func(r R) error {
		for _, ix := range table.indexes {
			for _, k := range ix.keys(r) {
				if ix.unique {
					want[ix.name][k] = string(r.meta().ID)
				} else {
					want[ix.name][key(k, string(r.meta().ID))] = ""
				}
			}
		}
		all++
		if r.counted() {
			counted[r.meta().Project]++
		}
		return nil
	}))
	for _, ix := range table.indexes {
		got := map[string]string{}
		for k, v := range b.Seek(table.indexTable(ix.name), nil) {
			got[string(k)] = string(v)
		}
		if !maps.Equal(got, want[ix.name]) {
			t.Errorf("index %s of %s is\n%q\nwant\n%q", ix.name, table.Noun, got, want[ix.name])
		}
	}
	if have := counter(b, tallyKey(table.Noun)); have != all {
		t.Errorf("%d rows of %s are counted, want %d", have, table.Noun, all)
	}
	for project, n := range counted {
		if have := counter(b, countKey(project, table.counts())); have != n {
			t.Errorf("%d of %s are counted in project %q, want %d", have, table.Noun, project, n)
		}
	}
}
