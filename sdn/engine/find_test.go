package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// Whatever is looked for, the objects come in the order of their ids, from the one asked for on,
// and page by page they are all of them.
func TestSearchesAreOrdered(t *testing.T) {
	t.Parallel()
	p := open(t, Options{PortsPerNetwork: -1})
	var networks, subnets []sdn.ID
	for i := range 2 {
		n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: prefix(fmt.Sprintf("10.%d.0.0/16", i))}}})
		ok(t, err)
		networks, subnets = append(networks, n.ID), append(subnets, n.Subnets...)
	}
	g, err := p.ApplySecurityGroup(t.Context(), sdn.SecurityGroupSpec{})
	ok(t, err)
	var specs []sdn.PortSpec
	for i := range 600 {
		specs = append(specs, sdn.PortSpec{
			Base:    sdn.Base{Project: fmt.Sprint("p", i%3), Key: sdn.Key{Owner: p.Installation(), Kind: "k", Name: fmt.Sprint(i)}},
			Network: networks[i%2], Groups: []sdn.ID{g.ID}, DeviceID: fmt.Sprint("d", i%5), Host: []string{"", testHost}[i/2%2],
		})
	}
	_, err = p.EnsurePorts(t.Context(), specs)
	ok(t, err)
	for what, q := range map[string]sdn.PortQuery{
		"all":            {},
		"a network":      {Networks: networks[:1]},
		"networks":       {Networks: networks},
		"a project":      {Match: sdn.Match{Projects: []string{"p1"}}},
		"projects":       {Match: sdn.Match{Projects: []string{"p1", "p2", ""}}},
		"a kind":         {Match: sdn.Match{Owner: p.Installation(), Kind: "k"}},
		"a group":        {Groups: []sdn.ID{g.ID}},
		"a group twice":  {Groups: []sdn.ID{g.ID, g.ID}},
		"devices":        {Devices: []string{"d1", "d4"}},
		"a subnet":       {Subnets: subnets[:1]},
		"hosts":          {Hosts: []string{testHost}},
		"two conditions": {Networks: networks[:1], Groups: []sdn.ID{g.ID}, Match: sdn.Match{Projects: []string{"p1"}}},
	} {
		whole, err := sdn.All(p.FindPorts(t.Context(), q))
		ok(t, err)
		if len(whole) < 60 || !slices.IsSortedFunc(whole, func(a, b sdn.Port) int { return compareIDs(a.ID, b.ID) }) {
			t.Errorf("%s: %d ports, or not in order", what, len(whole))
		}
		var paged []sdn.ID
		for after := sdn.ID(""); ; {
			q.After = after
			var page []sdn.ID
			for port, err := range p.FindPorts(t.Context(), q) {
				ok(t, err)
				if page = append(page, port.ID); len(page) == 37 {
					break
				}
			}
			if len(page) == 0 {
				break
			}
			paged = append(paged, page...)
			after = page[len(page)-1]
		}
		if len(paged) != len(whole) || !slices.EqualFunc(paged, whole, func(id sdn.ID, port sdn.Port) bool { return id == port.ID }) {
			t.Errorf("%s: by pages %d ports, at once %d", what, len(paged), len(whole))
		}
		// Behind an id that is no more, and behind the last.
		q.After = whole[10].ID + "x"
		if port, _, err := sdn.First(p.FindPorts(t.Context(), q)); err != nil || port.ID != whole[11].ID {
			t.Errorf("%s: behind what is not there comes %s, %v", what, port.ID, err)
		}
	}
}

func compareIDs(a, b sdn.ID) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// damagePorts makes ports unreadable: who reads them fails.
func damagePorts(t *testing.T, e *Engine, which func(sdn.ID) bool) {
	t.Helper()
	w := begin(t, e.store)
	damaged := map[string][]byte{}
	for k, v := range w.Seek(string(Ports.Noun), nil) {
		if which(sdn.ID(k)) {
			damaged[string(k)] = append([]byte("damaged"), v...)
		}
	}
	for k, v := range damaged {
		ok(t, w.Put(string(Ports.Noun), []byte(k), v))
	}
	ok(t, w.Commit())
}

// A page costs a page: what is before it and what is far behind it is not read, which here would be an error.
func TestPageCostsAPage(t *testing.T) {
	t.Parallel()
	p := open(t, Options{PortsPerNetwork: -1})
	n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{Subnets: []sdn.SubnetSpec{{CIDR: netip.MustParsePrefix("10.0.0.0/16")}}})
	ok(t, err)
	specs := make([]sdn.PortSpec, 4000)
	for i := range specs {
		specs[i] = sdn.PortSpec{Base: sdn.Base{Project: "p"}, Network: n.ID}
	}
	_, err = p.EnsurePorts(t.Context(), specs)
	ok(t, err)
	all, err := sdn.All(p.FindPorts(t.Context(), sdn.PortQuery{}))
	ok(t, err)
	const from, length = 2000, 50
	after := sdn.Match{After: all[from-1].ID}
	damagePorts(t, p, func(id sdn.ID) bool { return id <= after.After || id > all[from+pageSize-1].ID })
	ofProject := after
	ofProject.Projects = []string{"p"}
	g := all[0].Groups
	for what, q := range map[string]sdn.PortQuery{
		"of all": {Match: after}, "of a network": {Match: after, Networks: []sdn.ID{n.ID}}, "of a project": {Match: ofProject}, "of a group": {Match: after, Groups: g},
	} {
		read := 0
		for port, err := range p.FindPorts(t.Context(), q) {
			ok(t, err)
			if port.ID != all[from+read].ID {
				t.Fatalf("%s: %s comes at %d", what, port.ID, read)
			}
			if read++; read == length {
				break
			}
		}
		if read != length {
			t.Errorf("%s: %d ports", what, read)
		}
	}
}
