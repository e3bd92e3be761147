//go:build linux

package lb

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/sdn"
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

// leftFor is for how long an endpoint that went and is silent may answer again: longer than a connection's ends are silent that ask now and then if the other is there
// (tcp_keepalive_time, two hours).
const leftFor = 3 * time.Hour

// afterPolicy is after the guard of package fabric and the filter of package policy, which are to see a frame as its port sent it.
const afterPolicy = -200

func (v version) answers() string { return "answer" + v.String() } // endpoint's address . protocol . port
func (v version) left() string    { return "left" + v.String() }   // the same of endpoints that went, as long as their connections last
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
			nftables.Set{Name: v.left(), Concatenation: true, KeyType: nftables.MustConcatSetType(v.addrType(), nftables.TypeInetProto, nftables.TypeInetService), Dynamic: true, HasTimeout: true, Timeout: leftFor, Size: clientsAtMost},
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
		n := v.words()
		from := join(ether(), exprs{v.loadSource(0), loadMeta(expr.MetaKeyL4PROTO, n), load(ports, 0, 2, n+1)})
		left := join(from, inSet(v.left()), exprs{&expr.Dynset{SrcRegKey: reg(0), SetName: v.left(), Operation: dynsetUpdate, Timeout: leftFor}}, goTo(up.name))
		pre.add("from an endpoint", ether(), exprs{v.loadSource(0)}, inSet(v.hosts()), goTo(host.name))
		pre.add("from one that went", left)
		host.add("fragment", ether(), v.fragment(), goTo(up.name))
		host.add("answer", from, inSet(v.answers()), goTo(up.name))
		host.add("answer of one that went", left)
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

// leaving is what an element of an answering endpoint becomes when the endpoint goes: connections to it go on. Flows of UDP end, as connection tracking forgets them.
func (e element) leaving() (element, bool) {
	v := e.set[len(e.set)-1:]
	for _, p := range []sdn.Protocol{sdn.TCP, sdn.SCTP} {
		if after := len(e.key) - 8; strings.HasPrefix(e.set, "answer") && e.key[after:after+4] == protocolBytes(p) {
			return element{set: "left" + v, key: e.key}, true
		}
	}
	return element{}, false
}
