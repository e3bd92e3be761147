//go:build linux

package router

import (
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

const setParents = "parents" // of subports: interfaces

// shieldTable keeps frames with VLAN tags in a network from the parents of subports: one
// that a port without guard sends, or forwards, would come to them as from a subport's
// network. What is of a subport's network leaves by its leg, past this. Only namespaces
// that have, or had, such parents have the table.
func shieldTable() table {
	return table{family: nftables.TableFamilyBridge, own: "kuryr_trunk",
		sets: []nftables.Set{{Name: setParents, KeyType: nftables.TypeIFName}},
		chains: []nft.Chain{{Name: "forward", Type: nftables.ChainTypeFilter,
			Hook: nftables.ChainHookForward, Priority: -300, Rules: []nft.Rule{
				nft.NewRule("what would be a subport's",
					nft.Exprs{nft.LoadMeta(expr.MetaKeyOIFNAME, nft.First)}, nft.InSet(setParents, nft.First),
					nft.Field(nft.LinkHeader, 12, unix.ETH_P_8021Q>>8, unix.ETH_P_8021Q&0xff), nft.Drop),
			}}}}
}

func shields(ports []Port) []nft.Element {
	var list []nft.Element
	for _, p := range ports {
		if p.Parent {
			list = append(list, nft.Element{Set: setParents, Key: nft.Link(TapName(p.ID))})
		}
	}
	return list
}

// compareShields is the table's part of a comparison of everything.
func compareShields(r *run, s *space, ports []Port) error {
	want := shields(ports)
	if len(want) == 0 && !r.dry {
		return shieldTable().remove(r, s)
	}
	if len(want) == 0 { // an empty table is no difference
		return shieldTable().sync(r, s, nil)
	}
	if err := shieldTable().converge(r, s); err != nil {
		return err
	}
	return shieldTable().sync(r, s, want)
}

// moveShields has the parents among taps that move to another namespace be known there
// before they come. names are the taps' as sets have them.
func moveShields(r *run, from, to *space, names map[string]bool) error {
	known, err := shieldTable().elements(from)
	if err != nil {
		return err
	}
	known = slices.DeleteFunc(known, func(e nft.Element) bool { return !names[e.Key] })
	if len(known) == 0 {
		return nil
	}
	if err := shieldTable().updateOrMend(r, to, nil, known); err != nil {
		return err
	}
	return shieldTable().update(from, known, nil)
}
