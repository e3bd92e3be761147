//go:build linux

package router

import (
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

// parents are the ports that the table knows.
var parents = marked{shieldTable(), setParents, func(p Port) bool { return p.Parent }}
