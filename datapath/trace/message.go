//go:build linux

package trace

import (
	"encoding/binary"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// step is one of nftables' trace messages: what a rule, or a chain's end, did with a packet.
type step struct {
	site          int
	id            uint32 // of the packet in this namespace
	family        uint8  // of the table: NFPROTO
	table, chain  string
	handle        uint64 // of the rule; 0: it is of the chain
	policy        bool   // the chain's end decided
	verdict       int32
	target        string // of a jump or goto
	iif, oif      uint32
	link, network []byte // headers; only the first message of a base chain has them
	transport     []byte
}

// Attributes of a trace message (linux/netfilter/nf_tables.h: enum nft_trace_attributes).
const (
	attrTable           = 1
	attrChain           = 2
	attrRuleHandle      = 3
	attrType            = 4
	attrVerdict         = 5
	attrID              = 6
	attrLinkHeader      = 7
	attrNetworkHeader   = 8
	attrTransportHeader = 9
	attrIIF             = 10
	attrOIF             = 12
	attrPolicy          = 16
	attrVerdictCode     = 1
	attrVerdictChain    = 2
	typePolicy          = 1
)

// Verdicts (linux/netfilter.h, linux/netfilter/nf_tables.h).
const (
	verdictDrop   = 0
	verdictAccept = 1
	verdictStolen = 2
	verdictQueue  = 3
	verdictReturn = -5
)

const messageTrace = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_TRACE

// parseStep reads a message of the group NFNLGRP_NFTRACE; false for one of another type.
func parseStep(m netlink.Message) (step, bool, error) {
	if m.Header.Type != messageTrace {
		return step{}, false, nil
	}
	if len(m.Data) < 4 {
		return step{}, false, fmt.Errorf("trace message of %d bytes", len(m.Data))
	}
	s := step{family: m.Data[0]}
	d, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return s, false, fmt.Errorf("trace message: %w", err)
	}
	d.ByteOrder = binary.BigEndian
	for d.Next() {
		switch d.Type() {
		case attrTable:
			s.table = d.String()
		case attrChain:
			s.chain = d.String()
		case attrRuleHandle:
			s.handle = d.Uint64()
		case attrType:
			s.policy = d.Uint32() == typePolicy
		case attrVerdict:
			d.Nested(func(n *netlink.AttributeDecoder) error {
				for n.Next() {
					switch n.Type() {
					case attrVerdictCode:
						s.verdict = n.Int32()
					case attrVerdictChain:
						s.target = n.String()
					}
				}
				return nil
			})
		case attrPolicy:
			s.verdict = d.Int32()
		case attrID:
			s.id = d.Uint32()
		case attrIIF:
			s.iif = d.Uint32()
		case attrOIF:
			s.oif = d.Uint32()
		case attrLinkHeader:
			s.link = d.Bytes()
		case attrNetworkHeader:
			s.network = d.Bytes()
		case attrTransportHeader:
			s.transport = d.Bytes()
		}
	}
	if err := d.Err(); err != nil {
		return s, false, fmt.Errorf("trace message: %w", err)
	}
	return s, true, nil
}

// packet puts the headers together again; false where the message has none, or they are not IP's.
func (s step) packet() (packet, bool) {
	if len(s.network) == 0 {
		return packet{}, false
	}
	b := s.network
	if b[0]>>4 == 4 {
		b = b[:min(len(b), max(int(b[0]&0xf)*4, 20))]
	}
	p, ok := parsePacket(b)
	p.transport = s.transport
	return p, ok
}

// resolves reports whether the packet is one by which a neighbour is looked for: ARP, or
// IPv6's solicitations and advertisements.
func (s step) resolves() (string, bool) {
	if len(s.link) >= 14 && binary.BigEndian.Uint16(s.link[12:]) == unix.ETH_P_ARP {
		return "ARP", true
	}
	if p, ok := s.packet(); ok && p.protocol == unix.IPPROTO_ICMPV6 && len(p.transport) > 0 &&
		(p.transport[0] == 135 || p.transport[0] == 136) {
		return "neighbour discovery", true
	}
	return "", false
}
