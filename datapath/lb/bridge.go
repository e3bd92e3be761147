//go:build linux

package lb

import (
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/sdn"

	"github.com/kuryr/kuryr/datapath/nft"
)

// UpMAC is where frames go that a bridge is to hand to its namespace; see LeadUp.
var UpMAC = net.HardwareAddr{0x0e, 0x6b, 0x75, 0x72, 0x79, 0x72}

// LeadUp has a bridge hand frames for UpMAC to its namespace, which Config.Bridges needs
// of every bridge with clients and endpoints on it. Idempotent. It is for who makes the
// bridge: it is the bridge's, and goes with it.
func LeadUp(h *netlink.Handle, bridge netlink.Link) error {
	err := h.NeighSet(&netlink.Neigh{LinkIndex: bridge.Attrs().Index, Family: unix.AF_BRIDGE,
		Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT, HardwareAddr: UpMAC})
	if err != nil {
		return fmt.Errorf("bridge %s: hand up %s: %w", bridge.Attrs().Name, UpMAC, err)
	}
	return nil
}

// leftFor is for how long an endpoint that went and is silent may answer again: longer
// than a connection's ends are silent that ask now and then if the other is there
// (tcp_keepalive_time, two hours).
const leftFor = 3 * time.Hour

// afterPolicy is after the guard of package router and the filter of package securitygroup,
// which are to see a frame as its port sent it.
const afterPolicy = -200

// answers is a set of endpoint's address . protocol . port. left is the same of endpoints that
// went, as long as their connections last. hosts has the endpoints' addresses.
func answers(v nft.Version) string { return "answer" + v.String() }
func left(v nft.Version) string    { return "left" + v.String() }
func hosts(v nft.Version) string   { return "host" + v.String() }

func bridgeSets() []nftables.Set {
	var list []nftables.Set
	for _, v := range nft.Versions {
		key := nft.Concat(v.AddrType(), nftables.TypeInetProto, nftables.TypeInetService)
		list = append(list,
			nftables.Set{Name: answers(v), Concatenation: true, KeyType: key},
			nftables.Set{Name: left(v), Concatenation: true, KeyType: key, Dynamic: true,
				HasTimeout: true, Timeout: leftFor, Size: clientsAtMost},
			nftables.Set{Name: hosts(v), KeyType: v.AddrType()})
	}
	return list
}

// bridgeChains lead what endpoints on a bridge send from a balanced port up to the
// namespace, whose connection tracking takes the translation back. Fragments have no
// ports but in the first of them, so that all of an endpoint's are led up together, for
// they must meet to be put together; and so are the errors it reports, which are about
// translated packets.
func bridgeChains() []nft.Chain {
	pre := nft.Chain{Name: "prerouting", Type: nftables.ChainTypeFilter,
		Hook: nftables.ChainHookPrerouting, Priority: afterPolicy}
	pre.Add("for all, or for the bridge itself",
		nft.MetaNot(expr.MetaKeyPKTTYPE, unix.PACKET_OTHERHOST), nft.Accept)
	up := nft.Chain{Name: "up"}
	up.Add("to the namespace", nft.Store(nft.LinkHeader, 0, UpMAC), nft.Exprs{
		&expr.Immediate{Register: nft.First, Data: []byte{unix.PACKET_HOST}},
		&expr.Meta{Key: expr.MetaKeyPKTTYPE, Register: nft.First, SourceRegister: true},
	}, nft.Accept)
	var list []nft.Chain
	for _, v := range nft.Versions {
		ether := func() nft.Exprs { return v.MatchFrame() }
		endpoint := nft.Chain{Name: "endpoint" + v.String()}
		n := v.Words()
		from := nft.Join(ether(), nft.Exprs{v.LoadSource(nft.First),
			nft.LoadMeta(expr.MetaKeyL4PROTO, nft.Reg(n)),
			nft.Load(nft.TransportHeader, 0, 2, nft.Reg(n+1))})
		gone := nft.Join(from, nft.InSet(left(v), nft.First),
			nft.ChangeSet(nft.SetUpdate, left(v), leftFor), nft.GoTo(up.Name))
		pre.Add("from an endpoint", ether(), nft.Exprs{v.LoadSource(nft.First)},
			nft.InSet(hosts(v), nft.First), nft.GoTo(endpoint.Name))
		pre.Add("from one that went", gone)
		endpoint.Add("fragment", ether(), fragment(v), nft.GoTo(up.Name))
		endpoint.Add("answer", from, nft.InSet(answers(v), nft.First), nft.GoTo(up.Name))
		endpoint.Add("answer of one that went", gone)
		number, types := errorTypes(v)
		for _, one := range types {
			endpoint.Add(fmt.Sprintf("error of type %d", one), ether(), nft.Protocol(number),
				nft.Field(nft.TransportHeader, 0, one), nft.GoTo(up.Name))
		}
		list = append(list, endpoint)
	}
	return append([]nft.Chain{up}, append(list, pre)...)
}

func fragment(v nft.Version) nft.Exprs {
	if v == nft.V4 {
		// More fragments, or not the first.
		return nft.AnyBit(nft.Load(nft.NetworkHeader, 6, 2, nft.First), 0x3f, 0xff)
	}
	present := &expr.Exthdr{DestRegister: nft.First, Type: unix.IPPROTO_FRAGMENT, Len: 1,
		Flags: unix.NFT_EXTHDR_F_PRESENT}
	return nft.Exprs{present, nft.Compare(expr.CmpOpEq, 1)}
}

// errorTypes are the ICMP types that tell of a packet that could not be delivered (RFC
// 792, RFC 4443).
func errorTypes(v nft.Version) (number byte, types []byte) {
	if v == nft.V4 {
		return unix.IPPROTO_ICMP, []byte{3, 11, 12}
	}
	return unix.IPPROTO_ICMPV6, []byte{1, 2, 3, 4}
}

// leaving is what an element of an answering endpoint becomes when the endpoint goes:
// connections to it go on. Flows of UDP end, as connection tracking forgets them.
func leaving(e nft.Element) (nft.Element, bool) {
	version, is := strings.CutPrefix(e.Set, "answer")
	if !is {
		return nft.Element{}, false
	}
	switch sdn.Protocol(e.Key[len(e.Key)-8]) { // the last two fields, of 4 bytes, are protocol . port
	case sdn.TCP, sdn.SCTP:
		return nft.Element{Set: "left" + version, Key: e.Key}, true
	}
	return nft.Element{}, false
}
