//go:build linux

package lb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/sdn"

	"github.com/kuryr/kuryr/datapath/nft"
)

// conntrack is a socket to the kernel's connection tracking
// (linux/netfilter/nfnetlink_conntrack.h). The library that others use for it can only
// bring all entries here; with a filter (Linux 5.8; an older one brings all) the kernel
// brings those that are asked for.
type conntrack struct{ *netlink.Conn }

const (
	conntrackGet    = netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | 1) // IPCTNL_MSG_CT_GET
	conntrackDelete = netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | 2) // IPCTNL_MSG_CT_DELETE

	attrOriginal, attrReply, attrStatus, attrID = 1, 2, 3, 12 // CTA_TUPLE_ORIG, CTA_TUPLE_REPLY, CTA_STATUS, CTA_ID
	attrZone, attrFilter, attrStatusMask        = 18, 25, 26  // CTA_ZONE, CTA_FILTER, CTA_STATUS_MASK
	attrIP, attrProtocol                        = 1, 2        // CTA_TUPLE_IP, CTA_TUPLE_PROTO
	attrSource4, attrTo4, attrSource6, attrTo6  = 1, 2, 3, 4  // CTA_IP_V4_SRC, …
	attrNumber, attrSourcePort, attrToPort      = 1, 2, 3     // CTA_PROTO_NUM, …
	attrOriginalFlags, attrReplyFlags           = 1, 2        // CTA_FILTER_ORIG_FLAGS, CTA_FILTER_REPLY_FLAGS
	byTo, byNumber, byToPort                    = 1 << 1, 1 << 3, 1 << 5
)

// Bits of an entry's status (linux/netfilter/nf_conntrack_common.h).
const (
	isAnswered = 1 << 1 // IPS_SEEN_REPLY
	isAssured  = 1 << 2 // IPS_ASSURED: both ends have agreed
)

// flow is an entry of connection tracking.
type flow struct {
	// the sender of the first packet and whereto; the sender of answers and whereto
	client, to, answerer, answered netip.AddrPort
	protocol                       sdn.Protocol
	status                         uint32
	id                             []byte // by which it is deleted, and not another that has come in its place
}

// ask is which flows are wanted: all of a protocol and a family, or those to an address,
// if it is not unspecified, and a port.
type ask struct {
	nft.Version
	protocol sdn.Protocol
	to       netip.AddrPort
}

func af(v nft.Version) byte {
	if v == nft.V4 {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// head is struct nfgenmsg.
func head(v nft.Version) []byte { return []byte{af(v), unix.NFNETLINK_V0, 0, 0} }

// establishes are the bits of status of which one is enough for a flow of the protocol to go
// on unchanged, whatever frontends come.
func establishes(p sdn.Protocol) uint32 {
	switch p {
	case sdn.TCP:
		return nft.StatusDNAT | isAnswered // an entry of which the only answer is a reset the kernel deletes itself
	case sdn.SCTP:
		return nft.StatusDNAT | isAssured // one that was aborted it keeps for ten seconds
	}
	return 0
}

// each calls f with the flows that are wanted, of TCP and SCTP with those that nothing
// establishes, and perhaps with others.
func (c conntrack) each(a ask, f func(flow)) error {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	flags := uint32(byNumber)
	e.Nested(attrOriginal, func(e *netlink.AttributeEncoder) error {
		// Of IPv6 the kernel would bring those to any other address (its comparison is the
		// wrong way round, as of Linux 6.18).
		if to := a.to.Addr(); to.Is4() && !to.IsUnspecified() {
			flags |= byTo
			e.Nested(attrIP, func(e *netlink.AttributeEncoder) error {
				e.Bytes(attrTo4, to.AsSlice())
				return nil
			})
		}
		e.Nested(attrProtocol, func(e *netlink.AttributeEncoder) error {
			e.Uint8(attrNumber, uint8(a.protocol))
			if port := a.to.Port(); port != 0 {
				flags |= byToPort
				e.Uint16(attrToPort, port)
			}
			return nil
		})
		return nil
	})
	e.Nested(attrFilter, func(e *netlink.AttributeEncoder) error {
		e.ByteOrder = binary.NativeEndian
		e.Uint32(attrOriginalFlags, flags)
		e.Uint32(attrReplyFlags, 0)
		return nil
	})
	if bits := establishes(a.protocol); bits != 0 { // Linux 5.15; an older one brings the others too
		e.Uint32(attrStatus, 0)
		e.Uint32(attrStatusMask, bits)
	}
	body, err := e.Encode()
	if err != nil {
		return err
	}
	list, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: conntrackGet, Flags: netlink.Request | netlink.Dump},
		Data:   append(head(a.Version), body...),
	})
	if err != nil {
		return fmt.Errorf("read connection tracking: %w", err)
	}
	for _, m := range list {
		if w, ok := parseFlow(m.Data); ok {
			f(w)
		}
	}
	return nil
}

// forgetThose deletes those of the flows asked for that stale tells.
func (c conntrack) forgetThose(a ask, stale func(flow) bool) error {
	var found []flow
	err := c.each(a, func(f flow) {
		if stale(f) {
			found = append(found, f)
		}
	})
	if err != nil {
		return err
	}
	return c.forget(a.Version, found)
}

// forget deletes flows. One that has ended by then is fine.
func (c conntrack) forget(v nft.Version, list []flow) error {
	for _, w := range list {
		_, err := c.Execute(netlink.Message{
			Header: netlink.Header{Type: conntrackDelete, Flags: netlink.Request | netlink.Acknowledge},
			Data:   append(head(v), w.id...),
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("delete from connection tracking: %w", err)
		}
	}
	return nil
}

// parseFlow reads a message of connection tracking. Flows in zones, such as Open
// vSwitch's for its ports, are not ours to forget.
func parseFlow(b []byte) (w flow, ok bool) {
	if len(b) < 4 {
		return w, false
	}
	d, err := netlink.NewAttributeDecoder(b[4:])
	if err != nil {
		return w, false
	}
	d.ByteOrder = binary.BigEndian
	id := netlink.NewAttributeEncoder()
	for d.Next() {
		switch d.Type() {
		case attrOriginal:
			w.client, w.to, w.protocol = parseTuple(d.Bytes())
			id.Bytes(attrOriginal|unix.NLA_F_NESTED, d.Bytes())
		case attrReply:
			w.answerer, w.answered, _ = parseTuple(d.Bytes())
		case attrStatus:
			w.status = d.Uint32()
		case attrID:
			id.Bytes(attrID, d.Bytes())
		case attrZone:
			return w, false // told of all zones but the first, which is where nftables translates
		}
	}
	w.id, err = id.Encode()
	return w, err == nil && d.Err() == nil && w.to.IsValid() && w.answerer.IsValid()
}

func parseTuple(b []byte) (from, to netip.AddrPort, protocol sdn.Protocol) {
	var source, destination netip.Addr
	var sourcePort, port uint16
	d, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return from, to, 0
	}
	d.ByteOrder = binary.BigEndian
	for d.Next() {
		switch d.Type() {
		case attrIP:
			d.Nested(func(d *netlink.AttributeDecoder) error {
				for d.Next() {
					switch a, _ := netip.AddrFromSlice(d.Bytes()); d.Type() {
					case attrSource4, attrSource6:
						source = a
					case attrTo4, attrTo6:
						destination = a
					}
				}
				return nil
			})
		case attrProtocol:
			d.Nested(func(d *netlink.AttributeDecoder) error {
				for d.Next() {
					switch d.Type() {
					case attrNumber:
						protocol = sdn.Protocol(d.Uint8())
					case attrSourcePort:
						sourcePort = d.Uint16()
					case attrToPort:
						port = d.Uint16()
					}
				}
				return nil
			})
		}
	}
	return netip.AddrPortFrom(source, sourcePort), netip.AddrPortFrom(destination, port), protocol
}
