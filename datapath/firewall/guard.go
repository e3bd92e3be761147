//go:build linux

package firewall

import (
	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// GuardTable is the name of the table by which a link of the machine is kept from being a
// way through it, of the inet family in the network namespace that its caller is in.
const GuardTable = "kuryr_guard"

var guardTable = nft.Table{Name: GuardTable, Family: nftables.TableFamilyINet}

// GuardLink refuses what comes in by a link of this name, which need not be there, and
// would be passed on, unless it was translated on the way (package lb, package hostport)
// or is of a connection that is there. So a machine that passes on what it balances does
// not become a router between the networks behind its links, and what is for an address
// without an owner does not go round between it and a router until its life is over. The
// machine's own traffic is not judged. When GuardLink returns, no other link is guarded.
// It is idempotent.
func GuardLink(link string) error {
	c, err := nft.Dial(0)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	forward := nft.Chain{Name: "forward", Type: nftables.ChainTypeFilter,
		Hook: nftables.ChainHookForward, Priority: *nftables.ChainPriorityFilter}
	forward.Add("", through(link), nft.Protocol(unix.IPPROTO_TCP), nft.Reset)
	forward.Add("", through(link), nft.Unreachable)
	x := nft.Begin(c)
	x.AddTable(guardTable) // so that there is one to delete
	x.DeleteTable(guardTable)
	x.AddTable(guardTable)
	x.AddChains(guardTable, []nft.Chain{forward})
	return x.Commit()
}

// UnguardLink deletes the table; absent is fine.
func UnguardLink() error {
	c, err := nft.Dial(0)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	x := nft.Begin(c)
	x.DeleteTable(guardTable)
	if err := x.Commit(); err != nil && !nft.IsAbsent(err) {
		return err
	}
	return nil
}

// through matches what comes in by a link, begins a connection, and is not translated.
func through(link string) nft.Exprs {
	return nft.Join(nft.In(link), nft.State(nft.StateNew), nft.NotTranslated())
}
