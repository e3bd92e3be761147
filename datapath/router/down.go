//go:build linux

package router

import (
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kuryr/kuryr/datapath/nft"
)

const setDown = "down" // ports that are switched off

// downTable drops what a port that is down sends and what would go to it, before any
// other table of the bridge looks at it. Only namespaces that have, or had, such ports have
// the table, so that others pay nothing for it.
func downTable() table {
	drop := func(name string, hook *nftables.ChainHook, port expr.MetaKey) nft.Chain {
		return nft.Chain{Name: name, Type: nftables.ChainTypeFilter, Hook: hook, Priority: -400, Rules: []nft.Rule{
			nft.NewRule("of a port that is down",
				nft.Exprs{nft.LoadMeta(port, nft.First)}, nft.InSet(setDown, nft.First), nft.Drop),
		}}
	}
	return table{family: nftables.TableFamilyBridge, own: "kuryr_down",
		sets: []nftables.Set{{Name: setDown, KeyType: nftables.TypeIFName}},
		chains: []nft.Chain{
			drop("from", nftables.ChainHookPrerouting, expr.MetaKeyIIFNAME),
			drop("to", nftables.ChainHookPostrouting, expr.MetaKeyOIFNAME),
		}}
}

// downPorts are the ports that the table knows.
var downPorts = marked{downTable(), setDown, func(p Port) bool { return p.Down }}

// marked is a table with one set, of the ports that something is true of.
type marked struct {
	table table
	set   string
	is    func(Port) bool
}

func (m marked) elements(ports []Port) []nft.Element {
	var list []nft.Element
	for _, p := range ports {
		if m.is(p) {
			list = append(list, nft.Element{Set: m.set, Key: nft.Link(TapName(p.ID))})
		}
	}
	return list
}

// change is what the set gets and loses with a change of ports.
func (m marked) change(ports Parts[Port]) elementChange {
	return elementChange{table: m.table, needed: true, remove: m.elements(ports.Remove), add: m.elements(ports.Add)}
}

// compare is the table's part of a comparison of everything.
func (m marked) compare(r *run, s *space, ports []Port) error {
	want := m.elements(ports)
	if len(want) == 0 && !r.dry {
		return m.table.remove(r, s)
	}
	if len(want) == 0 { // an empty table is no difference
		return m.table.sync(r, s, nil)
	}
	if err := m.table.converge(r, s); err != nil {
		return err
	}
	return m.table.sync(r, s, want)
}

// move adds those of the ports that move to another namespace to its set before they come.
// names are the taps' as sets have them. The function that it returns takes them out of the
// set that they leave.
func (m marked) move(r *run, from, to *space, names map[string]bool) (leave func() error, err error) {
	known, err := m.table.elements(from)
	if err != nil {
		return nil, err
	}
	known = slices.DeleteFunc(known, func(e nft.Element) bool { return !names[e.Key] })
	if len(known) == 0 {
		return func() error { return nil }, nil
	}
	leave = func() error { return m.table.update(from, known, nil) }
	return leave, m.table.updateOrMend(r, to, nil, known)
}
