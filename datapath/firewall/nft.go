//go:build linux

package firewall

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kuryr/kuryr/datapath/nft"
)

// shutChain is a forward chain written with nft by someone we do not know, which drops by default.
type shutChain struct {
	family string // as nft spells it
	table  string
	chain  string
}

// shutChains returns the chains of nftables' forward hook, among those that want tells,
// that drop what meets no rule and have no rules that accept our links' packets. A table
// has no door for others here, so we only tell the operator.
func (h *Host) shutChains(want func(*nftables.Chain) bool) ([]shutChain, error) {
	conn, err := nft.Dial(0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("nftables: list the chains: %w", err)
	}
	var shut []shutChain
	for _, c := range chains {
		family := nftFamily(c.Table.Family)
		if family == "" || c.Type != nftables.ChainTypeFilter || c.Hooknum == nil ||
			*c.Hooknum != *nftables.ChainHookForward || !want(c) {
			continue
		}
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			return nil, fmt.Errorf("nftables: rules of %s %s %s: %w", family, c.Table.Name, c.Name, err)
		}
		drops := c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
		if n := len(rules); n > 0 && !drops {
			drops = refusesAll(rules[n-1])
		}
		if drops && !admits(rules, h.link) {
			shut = append(shut, shutChain{family: family, table: c.Table.Name, chain: c.Name})
		}
	}
	return shut, nil
}

// nftFamily names the families whose forward hook sees routed packets.
func nftFamily(f nftables.TableFamily) string {
	switch f {
	case nftables.TableFamilyIPv4:
		return "ip"
	case nftables.TableFamilyIPv6:
		return "ip6"
	case nftables.TableFamilyINet:
		return "inet"
	}
	return ""
}

// refusesAll reports whether a rule drops or rejects without a condition.
func refusesAll(r *nftables.Rule) bool {
	refuses := false
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Reject:
			refuses = true
		case *expr.Verdict:
			refuses = e.Kind == expr.VerdictDrop
		default:
			return false
		}
	}
	return refuses
}

// admits reports whether rules accept what comes from, and what goes to, our links by their names.
func admits(rules []*nftables.Rule, link string) bool {
	name := []byte(strings.TrimSuffix(link, "+"))
	from, to := false, false
	for _, r := range rules {
		var key expr.MetaKey
		named, accepts := false, false
		for _, e := range r.Exprs {
			switch e := e.(type) {
			case *expr.Meta:
				key = e.Key
			case *expr.Cmp:
				named = e.Op == expr.CmpOpEq && bytes.Equal(bytes.TrimRight(e.Data, "\x00"), name)
			case *expr.Verdict:
				accepts = e.Kind == expr.VerdictAccept
			}
		}
		if named && accepts {
			from = from || key == expr.MetaKeyIIFNAME
			to = to || key == expr.MetaKeyOIFNAME
		}
	}
	return from && to
}
