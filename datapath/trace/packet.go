//go:build linux

package trace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// packet is what is looked at of an IP packet.
type packet struct {
	src, dst  netip.Addr
	protocol  uint8
	transport []byte
}

// parsePacket reads an IP packet that begins with its header; false for what it is not,
// or for a later fragment.
func parsePacket(b []byte) (packet, bool) {
	switch {
	case len(b) >= 20 && b[0]>>4 == 4:
		head := int(b[0]&0xf) * 4
		if head < 20 || len(b) < head || binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
			return packet{}, false
		}
		end := min(max(int(binary.BigEndian.Uint16(b[2:])), head), len(b)) // behind it may be Ethernet's padding
		return packet{netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b[9], b[head:end]}, true
	case len(b) >= 40 && b[0]>>4 == 6:
		return packet{netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b[6], b[40:]}, true
	}
	return packet{}, false
}

// ports are those of TCP and UDP; false for other protocols.
func (p packet) ports() (src, dst uint16, ok bool) {
	if p.protocol != unix.IPPROTO_TCP && p.protocol != unix.IPPROTO_UDP || len(p.transport) < 4 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint16(p.transport), binary.BigEndian.Uint16(p.transport[2:]), true
}

// ends are source and destination, with ports where there are.
func (p packet) ends() ends {
	src, dst, _ := p.ports()
	return ends{netip.AddrPortFrom(p.src, src), netip.AddrPortFrom(p.dst, dst)}
}

// ends are where a packet comes from and goes to; a port of 0 is none.
type ends struct{ src, dst netip.AddrPort }

func (e ends) reversed() ends { return ends{e.dst, e.src} }

func (e ends) String() string { return show(e.src) + " → " + show(e.dst) }

func show(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

// kind is what a packet is to the probe.
type kind int

const (
	nothing kind = iota
	request
	answer
	refusal // an ICMP error about it
)

// classify tells what a packet is; called are the ends with which the probe was seen in
// this namespace before.
func (p probe) classify(pkt packet, called map[ends]bool) (kind, string) {
	if pkt.protocol == p.wire() {
		if k, text := p.direct(pkt, called); k != nothing {
			return k, text
		}
	}
	if text, inner, ok := icmpError(pkt); ok && inner.protocol == p.wire() {
		at, want := p.mark()
		if holds(inner.transport, at, want) {
			return refusal, text
		}
	}
	return nothing, ""
}

// reset is what a kernel answers where nothing listens; a firewall may too.
const reset = "RST"

const tcpSYN, tcpRST, tcpACK = 0x02, 0x04, 0x10

func (p probe) direct(pkt packet, called map[ends]bool) (kind, string) {
	t := pkt.transport
	at, want := p.mark()
	switch p.Protocol {
	case unix.IPPROTO_TCP:
		if len(t) < 20 {
			return nothing, ""
		}
		back, acknowledged := p.answerMark()
		switch flags := t[13]; {
		case flags&(tcpSYN|tcpACK|tcpRST) == tcpSYN && holds(t, at, want):
			return request, ""
		case flags&tcpACK != 0 && flags&tcpSYN != 0 && holds(t, back, acknowledged):
			return answer, "SYN-ACK"
		case flags&tcpACK != 0 && flags&tcpRST != 0 && holds(t, back, acknowledged):
			return answer, reset
		}
	case unix.IPPROTO_UDP:
		if called[pkt.ends().reversed()] { // first, since some send back what they get
			return answer, "datagram"
		}
		if holds(t, at, want) {
			return request, ""
		}
	default:
		if len(t) < 8 || !holds(t, at, want) {
			return nothing, ""
		}
		switch t[0] {
		case 8, 128:
			return request, ""
		case 0, 129:
			return answer, "echo reply"
		}
	}
	return nothing, ""
}

func holds(b []byte, at int, want []byte) bool {
	return len(want) > 0 && len(b) >= at+len(want) && bytes.Equal(b[at:at+len(want)], want)
}

// Texts of the ICMP errors that are met, by type and code; an asterisk is any other code.
var icmpTexts = map[string]string{
	"4/3/0": "network unreachable", "4/3/1": "host unreachable", "4/3/2": "protocol unreachable",
	"4/3/3": portUnreachable, "4/3/4": "too big for the next link",
	"4/3/9": "forbidden by an administrator", "4/3/10": "forbidden by an administrator",
	"4/3/13": "forbidden by an administrator", "4/11/0": "too many hops",
	"6/1/0": "no route", "6/1/1": "forbidden by an administrator", "6/1/3": "host unreachable",
	"6/1/4": portUnreachable, "6/1/6": "route rejects it",
	"6/2/0": "too big for the next link", "6/3/0": "too many hops",
}

const portUnreachable = "port unreachable"

// icmpError reads an ICMP error and the packet it quotes.
func icmpError(pkt packet) (text string, inner packet, ok bool) {
	t := pkt.transport
	v := 0
	switch {
	case len(t) < 8:
	case pkt.protocol == unix.IPPROTO_ICMP && (t[0] == 3 || t[0] == 11 || t[0] == 12):
		v = 4
	case pkt.protocol == unix.IPPROTO_ICMPV6 && t[0] >= 1 && t[0] <= 4:
		v = 6
	}
	if v == 0 {
		return "", packet{}, false
	}
	inner, ok = parsePacket(t[8:])
	text = icmpTexts[fmt.Sprintf("%d/%d/%d", v, t[0], t[1])]
	if text == "" {
		text = fmt.Sprintf("ICMP error, type %d, code %d", t[0], t[1])
	}
	return text, inner, ok
}
