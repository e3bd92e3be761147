//go:build linux

package trace

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Flow is what the probe shall be: an ICMP echo, a TCP SYN or a UDP datagram.
type Flow struct {
	Protocol uint8 // unix.IPPROTO_ICMP (echo, of either family), IPPROTO_TCP or IPPROTO_UDP
	Src, Dst netip.Addr
	Port     uint16 // that is called; 0 for ICMP
	Device   string // to send by, whatever the routes prefer; "": as they say
}

func (f Flow) four() bool { return f.Dst.Is4() }

// wire is the protocol's number in the packet.
func (f Flow) wire() uint8 {
	if f.Protocol == unix.IPPROTO_ICMP && !f.four() {
		return unix.IPPROTO_ICMPV6
	}
	return f.Protocol
}

func (f Flow) String() string {
	switch f.Protocol {
	case unix.IPPROTO_TCP:
		return fmt.Sprintf("TCP SYN %s → %s", f.Src, netip.AddrPortFrom(f.Dst, f.Port))
	case unix.IPPROTO_UDP:
		return fmt.Sprintf("UDP %s → %s", f.Src, netip.AddrPortFrom(f.Dst, f.Port))
	}
	return fmt.Sprintf("ICMP echo %s → %s", f.Src, f.Dst)
}

// tokenLen is the length of what marks the probe in its payload. A TCP SYN has its
// sequence number for that, which no NAT changes.
const tokenLen = 16

// probe is a flow with what it is known by, whatever addresses and ports a NAT gives it on its way.
type probe struct {
	Flow
	token  [tokenLen]byte
	source uint16 // port, or the echo's identifier
}

func (p probe) sequence() uint32 { return binary.BigEndian.Uint32(p.token[:]) }

// mark is where in the transport header the probe's token is, and what is there.
func (p probe) mark() (offset int, want []byte) {
	if p.Protocol == unix.IPPROTO_TCP {
		return 4, p.token[:4]
	}
	return 8, p.token[:]
}

// answerMark is the same for what answers; nil where it is not known, as for UDP.
func (p probe) answerMark() (offset int, want []byte) {
	switch p.Protocol {
	case unix.IPPROTO_TCP:
		return 8, binary.BigEndian.AppendUint32(nil, p.sequence()+1)
	case unix.IPPROTO_UDP:
		return 0, nil
	}
	return p.mark()
}
