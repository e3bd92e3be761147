//go:build linux

package lb

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// UpMAC is where frames go that a bridge is to hand to its namespace; see LeadUp.
var UpMAC = net.HardwareAddr{0x0e, 0x6b, 0x75, 0x72, 0x79, 0x72}

// LeadUp has a bridge hand frames for UpMAC to its namespace, which Config.Bridges needs of every bridge with clients and endpoints on it. Idempotent. It
// is for who makes the bridge: it is the bridge's, and goes with it.
func LeadUp(h *netlink.Handle, bridge netlink.Link) error {
	err := h.NeighSet(&netlink.Neigh{LinkIndex: bridge.Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT, HardwareAddr: UpMAC})
	if err != nil {
		return fmt.Errorf("bridge %s: hand up %s: %w", bridge.Attrs().Name, UpMAC, err)
	}
	return nil
}

// afterPolicy is after the guard of package fabric and the filter of package policy, which are to see a frame as its port sent it.
const afterPolicy = -200

func (v version) answers() string { return "answer" + v.String() } // endpoint's address . protocol . port
func (v version) hosts() string   { return "host" + v.String() }   // endpoint's address

func (v version) ethernet() []byte {
	if v == v4 {
		return binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP)
	}
	return binary.BigEndian.AppendUint16(nil, unix.ETH_P_IPV6)
}

func bridgeSets() []nftables.Set {
	var list []nftables.Set
	for _, v := range versions {
		list = append(list,
			nftables.Set{Name: v.answers(), Concatenation: true, KeyType: nftables.MustConcatSetType(v.addrType(), nftables.TypeInetProto, nftables.TypeInetService)},
			nftables.Set{Name: v.hosts(), KeyType: v.addrType()})
	}
	return list
}

// bridgeChains lead what endpoints on a bridge send from a balanced port up to the namespace, whose connection tracking takes the translation back. Fragments
// have no ports but in the first of them, so that all of an endpoint's are led up together, for they must meet to be put together; and so are the errors it reports, which are about translated packets.
func bridgeChains() []chain {
	pre := chain{name: "prerouting", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, priority: afterPolicy}
	pre.add("for all, or for the bridge itself", meta(expr.MetaKeyPKTTYPE, expr.CmpOpNeq, unix.PACKET_OTHERHOST), accept)
	up := chain{name: "up"}
	up.add("to the namespace", exprs{
		&expr.Immediate{Register: reg(0), Data: UpMAC},
		&expr.Payload{OperationType: expr.PayloadWrite, SourceRegister: reg(0), Base: mac, Offset: 0, Len: uint32(len(UpMAC))},
		&expr.Immediate{Register: reg(0), Data: []byte{unix.PACKET_HOST}},
		&expr.Meta{Key: expr.MetaKeyPKTTYPE, Register: reg(0), SourceRegister: true},
	}, accept)
	var list []chain
	for _, v := range versions {
		ether := func() exprs { return meta(expr.MetaKeyPROTOCOL, expr.CmpOpEq, v.ethernet()...) }
		host := chain{name: "endpoint" + v.String()}
		pre.add("from an endpoint", ether(), exprs{v.loadSource(0)}, inSet(v.hosts()), goTo(host.name))
		host.add("fragment", ether(), v.fragment(), goTo(up.name))
		n := v.words()
		host.add("answer", ether(), exprs{v.loadSource(0), loadMeta(expr.MetaKeyL4PROTO, n), load(ports, 0, 2, n+1)}, inSet(v.answers()), goTo(up.name))
		number, kinds := v.errors()
		for _, kind := range kinds {
			host.add(fmt.Sprintf("error of type %d", kind), ether(), proto(number), field(ports, 0, kind), goTo(up.name))
		}
		list = append(list, host)
	}
	return append([]chain{up}, append(list, pre)...)
}

func (v version) fragment() exprs {
	if v == v4 {
		return bits(load(network, 6, 2, 0), 0x3f, 0xff) // more fragments, or not the first
	}
	return exprs{&expr.Exthdr{DestRegister: reg(0), Type: unix.IPPROTO_FRAGMENT, Len: 1, Flags: unix.NFT_EXTHDR_F_PRESENT}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg(0), Data: []byte{1}}}
}

// errors are the ICMP types that tell of a packet that could not be delivered (RFC 792, RFC 4443).
func (v version) errors() (number byte, kinds []byte) {
	if v == v4 {
		return unix.IPPROTO_ICMP, []byte{3, 11, 12}
	}
	return unix.IPPROTO_ICMPV6, []byte{1, 2, 3, 4}
}
