//go:build linux

// Package guard keeps a link of the machine from being a way through it.
//
// It owns the table kuryr_guard of the inet family in the network namespace that its
// caller is in. What comes in by the link and would be passed on is refused, unless it
// was translated on the way (package lb, package hostport), or is of a connection that is
// there. So a machine that passes on what it balances does not become a router between
// the networks behind its links, and what is for an address without an owner does not go
// round between it and a router until its life is over.
//
// It must not judge what is for the machine itself, nor what it sends.
package guard

import (
	"fmt"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// Table is the name of the table.
const Table = "kuryr_guard"

var table = nft.Table{Name: Table, Family: nftables.TableFamilyINet}

// Set guards a link of this name, which need not be there. It is there when Set returns,
// and guards no other. Idempotent.
func Set(link string) error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	forward := nft.Chain{Name: "forward", Type: nftables.ChainTypeFilter,
		Hook: nftables.ChainHookForward, Priority: *nftables.ChainPriorityFilter}
	forward.Add("", through(link), nft.Protocol(unix.IPPROTO_TCP), nft.Reset)
	forward.Add("", through(link), nft.Unreachable)
	x := nft.Begin(c)
	x.AddTable(table) // so that there is one to delete
	x.DeleteTable(table)
	x.AddTable(table)
	x.AddChains(table, []nft.Chain{forward})
	return x.Commit()
}

// Remove deletes the table; absent is fine.
func Remove() error {
	c, err := nftables.New()
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	x := nft.Begin(c)
	x.DeleteTable(table)
	if err := x.Commit(); err != nil && !nft.IsAbsent(err) {
		return err
	}
	return nil
}

// through matches what comes in by a link, begins a connection, and is not translated.
func through(link string) nft.Exprs {
	return nft.Join(nft.In(link), nft.State(nft.StateNew), nft.NotTranslated())
}
