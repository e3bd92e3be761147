//go:build linux

package doctor

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
	kuryrns "github.com/kuryr/kuryr/internal/netns"
)

// ProbeKernel tries what the data path needs in a temporary network namespace:
// nothing else tells as surely what a kernel can do, and modules that are missing are
// loaded on the way, as they would be.
func ProbeKernel() KernelFacts {
	facts := KernelFacts{IPv6: exists("/proc/thread-self/net/if_inet6")}
	_ = kuryrns.OnOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			facts.Untried = fmt.Errorf("new network namespace: %w", err)
			return nil
		}
		facts.Features = tryAll()
		facts.VLAN = tryVLAN() == nil
		facts.SCTP = exists("/proc/thread-self/net/nf_conntrack") &&
			exists("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_established")
		return nil
	})
	return facts
}

func tryAll() []Feature {
	const nothing = ""
	inet, bridge := nftables.TableFamilyINet, nftables.TableFamilyBridge
	return []Feature{
		{
			"veth pairs", tryLink(&netlink.Veth{LinkAttrs: named("kd-veth"), PeerName: "kd-peer"}),
			"CONFIG_VETH", "veth", nothing,
		},
		{"bridges", tryLink(&netlink.Bridge{LinkAttrs: named("kd-bridge")}), "CONFIG_BRIDGE", "bridge", nothing},
		{"nf_tables", tryRule(inet, nil), "CONFIG_NF_TABLES_INET", "nf_tables", nothing},
		{"nf_tables maps", tryMap(), "CONFIG_NF_TABLES", "nf_tables", nothing},
		{"NAT in nf_tables", tryNAT(), "CONFIG_NFT_MASQ", "nft_masq", nothing},
		{
			"routing lookups in nf_tables",
			tryRule(inet, []expr.Any{&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true}}),
			"CONFIG_NFT_FIB_INET", "nft_fib_inet", nothing,
		},
		{
			"connection tracking in nf_tables",
			tryRule(inet, []expr.Any{&expr.Ct{Register: 1, Key: expr.CtKeySTATE}}), "CONFIG_NFT_CT",
			"nft_ct", nothing,
		},
		{"nf_tables for bridges", tryRule(bridge, nil), "CONFIG_NF_TABLES_BRIDGE", "nf_tables_bridge", nothing},
	}
}

func named(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

func tryLink(l netlink.Link) error { return plain(netlink.LinkAdd(l)) }

// tryVLAN makes a VLAN link of the veth that was made.
func tryVLAN() error {
	veth, err := netlink.LinkByName("kd-veth")
	if err != nil {
		return err
	}
	attrs := named("kd-vlan")
	attrs.ParentIndex = veth.Attrs().Index
	return tryLink(&netlink.Vlan{LinkAttrs: attrs, VlanId: 1, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q})
}

// try does something in a table of its own.
func try(family nftables.TableFamily, do func(*nft.Conn, *nftables.Table) error) error {
	c, err := nft.Dial(0)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	table := c.AddTable(&nftables.Table{Family: family, Name: "kuryr-doctor"})
	if err := do(c, table); err != nil {
		return err
	}
	if err := plain(c.Flush()); err != nil {
		return err
	}
	c.DelTable(table)
	return plain(c.Flush())
}

func tryRule(family nftables.TableFamily, exprs []expr.Any) error {
	return try(family, func(c *nft.Conn, table *nftables.Table) error {
		chain := c.AddChain(&nftables.Chain{
			Name: "c", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput,
			Priority: nftables.ChainPriorityFilter,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(exprs, &expr.Counter{})})
		return nil
	})
}

func tryNAT() error {
	return try(nftables.TableFamilyINet, func(c *nft.Conn, table *nftables.Table) error {
		chain := c.AddChain(&nftables.Chain{
			Name: "c", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting,
			Priority: nftables.ChainPriorityNATSource,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Masq{}}})
		return nil
	})
}

func tryMap() error {
	return try(nftables.TableFamilyINet, func(c *nft.Conn, table *nftables.Table) error {
		return c.AddSet(
			&nftables.Set{
				Table: table, Name: "m", IsMap: true, KeyType: nftables.TypeIPAddr,
				DataType: nftables.TypeIPAddr,
			},
			nil,
		)
	})
}

// plain takes the library's words from the kernel's.
func plain(err error) error {
	var number unix.Errno
	if errors.As(err, &number) {
		return number
	}
	return err
}
