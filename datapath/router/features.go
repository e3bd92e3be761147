//go:build linux

package router

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
	kuryrns "github.com/kuryr/kuryr/internal/netns"
)

// explain says what of a table the kernel cannot do, if that is why it refused the table.
// The kernel's own answer is one number for a whole transaction, mostly "no such file or
// directory" for a module that it has not: so each part is asked for alone, in a network
// namespace that is thrown away, where half a table is in nobody's way and nothing is
// left by a kill.
func (t table) explain(refused error) error {
	if refused == nil ||
		!slices.ContainsFunc([]unix.Errno{
			unix.ENOENT, unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.EPROTONOSUPPORT, unix.EINVAL,
		}, func(e unix.Errno) bool {
			return errors.Is(refused, e)
		}) {
		return refused
	}
	return kuryrns.OnOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return refused
		}
		ns, err := netns.GetFromPath("/proc/thread-self/ns/net")
		if err != nil {
			return refused
		}
		defer ns.Close()
		c, err := nft.Dial(int(ns))
		if err != nil {
			return refused
		}
		defer func() { _ = c.Close() }()
		return t.explainIn(c, refused)
	})
}

func (t table) explainIn(c *nft.Conn, refused error) error {
	probe := t.ref()
	c.AddTable(probe)
	if err := c.Flush(); err != nil {
		return fmt.Errorf(
			"the kernel has no nftables for the family %s (CONFIG_NF_TABLES_%s): %w", familyName(t.family),
			strings.ToUpper(familyName(t.family)), refused,
		)
	}
	if err := t.missing(c, probe); err != nil {
		return fmt.Errorf("%w: %w", err, refused)
	}
	return refused
}

// missing tries each chain and then each rule by itself.
func (t table) missing(c *nft.Conn, probe *nftables.Table) error {
	for _, s := range t.sets {
		x := nft.Begin(c)
		x.AddSet(t.in(), s)
		if err := x.Commit(); err != nil {
			return fmt.Errorf("the kernel refuses the set %s", s.Name)
		}
	}
	for _, ch := range t.chains {
		x := nft.Begin(c)
		x.AddChain(t.in(), ch)
		if err := x.Commit(); err != nil {
			return fmt.Errorf(
				"the kernel has no chains of type %s for the family %s (%s)", ch.Type, familyName(t.family),
				chainOption(ch.Type, t.family),
			)
		}
	}
	for _, ch := range t.chains {
		for _, rl := range ch.Rules {
			c.AddRule(&nftables.Rule{Table: probe, Chain: &nftables.Chain{Name: ch.Name, Table: probe}, Exprs: rl.Exprs})
			if err := c.Flush(); err != nil {
				return fmt.Errorf(
					"the kernel cannot do the rule %q, which needs %s", rl.Comment,
					strings.Join(options(rl.Exprs), ", "),
				)
			}
		}
	}
	return nil
}

func chainOption(kind nftables.ChainType, family nftables.TableFamily) string {
	if kind == nftables.ChainTypeNAT {
		return "CONFIG_NFT_NAT"
	}
	return "CONFIG_NF_TABLES_" + strings.ToUpper(familyName(family))
}

// options are the kernel's options that a rule's expressions stand for; those that every
// nftables has are left out.
func options(exprs []expr.Any) []string {
	names := map[string]bool{}
	for _, e := range exprs {
		switch e.(type) {
		case *expr.NAT:
			names["CONFIG_NFT_NAT"] = true
		case *expr.Masq:
			names["CONFIG_NFT_MASQ"] = true
		case *expr.Fib:
			names["CONFIG_NFT_FIB_INET"] = true
		case *expr.Ct:
			names["CONFIG_NFT_CT"] = true
		}
	}
	if len(names) == 0 {
		return []string{"CONFIG_NF_TABLES"}
	}
	return slices.Sorted(maps.Keys(names))
}
