//go:build linux

package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// IsAbsent reports whether an error is about a table, set, chain or element that is absent.
func IsAbsent(err error) bool { return errors.Is(err, unix.ENOENT) }

// Exists reports whether the kernel has the table.
func (t Table) Exists(c *Conn) (bool, error) {
	tables, err := c.ListTablesOfFamily(t.Family)
	if err != nil {
		return false, fmt.Errorf("list tables: %w", err)
	}
	named := func(have *nftables.Table) bool { return have.Name == t.Name }
	return slices.ContainsFunc(tables, named), nil
}

// Sets reads the table's sets by name. Anonymous ones come and go with their rules and are left
// out.
func (t Table) Sets(c *Conn) (map[string]*nftables.Set, error) {
	list, err := c.GetSets(t.Ref())
	if err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	have := map[string]*nftables.Set{}
	for _, s := range list {
		if !s.Anonymous {
			have[s.Name] = s
		}
	}
	return have, nil
}

// Chains reads the table's chains by name.
func (t Table) Chains(c *Conn) (map[string]*nftables.Chain, error) {
	list, err := c.ListChainsOfTableFamily(t.Family)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	have := map[string]*nftables.Chain{}
	for _, ch := range list {
		if ch.Table.Name == t.Name {
			have[ch.Name] = ch
		}
	}
	return have, nil
}

// Rules reads a chain's rules.
func (t Table) Rules(c *Conn, chain string) ([]*nftables.Rule, error) {
	rules, err := c.GetRules(t.Ref(), t.chain(chain))
	if err != nil {
		return nil, fmt.Errorf("list rules of %s: %w", chain, err)
	}
	return rules, nil
}

// HasRules reports whether a chain of the kernel has the rules that are wanted, in their order.
func (t Table) HasRules(c *Conn, want Chain) (bool, error) {
	have, err := t.Rules(c, want.Name)
	if err != nil || len(have) != len(want.Rules) {
		return false, err
	}
	for i, r := range have {
		stamp, err := t.Stamp(want.Rules[i])
		if err != nil || CommentOf(r) != stamp {
			return false, err
		}
	}
	return true, nil
}

// Elements reads a set. Of a map of verdicts it reads the chains.
func (t Table) Elements(c *Conn, set string, verdicts bool) ([]Element, error) {
	list, err := c.GetSetElements(&nftables.Set{Table: t.Ref(), Name: set})
	if err != nil {
		return nil, fmt.Errorf("read set %s: %w", set, err)
	}
	elements := make([]Element, len(list))
	for i, e := range list {
		elements[i] = Element{Set: set, Key: string(e.Key), End: string(e.KeyEnd)}
		if verdicts {
			elements[i].GoTo = verdictChain(e.Val)
		} else {
			elements[i].Value = string(e.Val)
		}
	}
	return elements, nil
}

// longestPause ends the attempts to read a set that the kernel moves. A move takes milliseconds,
// but may wait about a second for other work of the kernel.
const longestPause = time.Second

// StableElements reads a set whose elements have no verdicts. While the kernel spreads a hash table over
// more buckets, a listing of several parts misses elements and has as many others twice. No event
// reports the end of that, so such a set is read again, with growing pauses.
func (t Table) StableElements(ctx context.Context, c *Conn, set string) ([]Element, error) {
	for pause := time.Millisecond; ; pause *= 2 {
		list, err := t.Elements(c, set, false)
		if err != nil {
			return nil, err
		}
		seen := make(map[string]bool, len(list))
		for _, e := range list {
			seen[e.Key+e.End] = true
		}
		if len(seen) == len(list) {
			return list, nil
		}
		if pause > longestPause {
			return nil, fmt.Errorf("read set %s: it changes during each listing", set)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// verdictChain is the chain that a verdict leads to. The library returns the bare attributes.
func verdictChain(attributes []byte) string {
	ad, err := netlink.NewAttributeDecoder(attributes)
	if err != nil {
		return ""
	}
	for ad.Next() {
		if ad.Type() == unix.NFTA_VERDICT_CHAIN {
			return ad.String()
		}
	}
	return ""
}

// SameSet reports whether a set of the kernel has the type that is wanted. The kernel cannot
// change it.
func SameSet(have *nftables.Set, want nftables.Set) bool {
	if have.IsMap != want.IsMap || have.Interval != want.Interval {
		return false
	}
	return have.KeyType.Bytes == want.KeyType.Bytes &&
		have.KeyType.GetNFTMagic() == want.KeyType.GetNFTMagic() &&
		(!want.IsMap || have.DataType.GetNFTMagic() == want.DataType.GetNFTMagic())
}

// SameChain reports whether a chain of the kernel has the hook that is wanted. The kernel cannot
// change it.
func SameChain(have *nftables.Chain, want Chain) bool {
	if want.Hook == nil || have.Hooknum == nil {
		return want.Hook == nil && have.Hooknum == nil
	}
	return have.Type == want.Type && *have.Hooknum == *want.Hook && have.Priority != nil &&
		*have.Priority == want.Priority
}
