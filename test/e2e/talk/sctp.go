package main

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"time"
)

// SCTP goes by raw packets, as most kernels have no sockets of it. Who asks begins an
// association, and who is asked has his answer in the cookie of the second packet, after
// which nobody goes on.

// Chunks and parameters of RFC 9260, sections 3.3.2 and 3.3.3.
const (
	sctpInit    = 1
	sctpInitAck = 2
	sctpCookie  = 7
)

const sctpNetwork = ":132"

// sctpPacket is the common header with a chunk INIT or INIT ACK, which are alike but for their type and the cookie.
type sctpPacket struct {
	from, to uint16
	tag      uint32 // the other end's
	chunk    byte
	own      uint32 // the tag that this end wants
	cookie   string
}

func (p sctpPacket) bytes() []byte {
	b := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, p.from), p.to)
	b = append(binary.BigEndian.AppendUint32(b, p.tag), 0, 0, 0, 0)
	length := 20
	if p.cookie != "" {
		length += 4 + len(p.cookie)
	}
	b = append(b, p.chunk, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(length))
	b = binary.BigEndian.AppendUint32(b, p.own)
	b = append(b, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 7) // the window, a stream each way, the first number
	if p.cookie != "" {
		b = binary.BigEndian.AppendUint16(b, sctpCookie)
		b = append(binary.BigEndian.AppendUint16(b, uint16(4+len(p.cookie))), p.cookie...)
		b = append(b, make([]byte, -len(b)&3)...)
	}
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

func parseSCTP(b []byte) (p sctpPacket, ok bool) {
	const fixed = 32
	if len(b) < fixed {
		return p, false
	}
	p = sctpPacket{
		from: binary.BigEndian.Uint16(b), to: binary.BigEndian.Uint16(b[2:]),
		tag: binary.BigEndian.Uint32(b[4:]), chunk: b[12], own: binary.BigEndian.Uint32(b[16:]),
	}
	if rest := b[fixed:]; len(rest) >= 4 && binary.BigEndian.Uint16(rest) == sctpCookie {
		if n := int(binary.BigEndian.Uint16(rest[2:])); n >= 4 && n <= len(rest) {
			p.cookie = string(rest[4:n])
		}
	}
	return p, true
}

// serveSCTP answers who begins an association with a port.
func serveSCTP(c *net.IPConn, port uint16, name string) error {
	packet := make([]byte, 2048)
	for {
		n, from, err := c.ReadFromIP(packet)
		if err != nil {
			return err
		}
		asked, ok := parseSCTP(packet[:n])
		if !ok || asked.chunk != sctpInit || asked.to != port {
			continue
		}
		said := name + " " + net.JoinHostPort(from.IP.String(), strconv.Itoa(int(asked.from)))
		answer := sctpPacket{from: port, to: asked.from, tag: asked.own, chunk: sctpInitAck, own: asked.own, cookie: said}
		if _, err := c.WriteToIP(answer.bytes(), from); err != nil {
			fmt.Fprintln(os.Stderr, "talk:", err)
		}
	}
}

// associate begins an association, and returns what the answer says.
func (a *asker) associate() (string, error) {
	host, text, err := net.SplitHostPort(a.address)
	if err != nil {
		return "", err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", err
	}
	to, err := net.ResolveIPAddr("ip", host)
	if err != nil {
		return "", err
	}
	c, err := net.DialIP("ip"+sctpNetwork, nil, to) // the kernel tells one that has a peer what of ICMP comes back
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(a.timeout)); err != nil {
		return "", err
	}
	question := sctpPacket{
		from: cmp.Or(uint16(a.from), uint16(1024+rand.IntN(60000))), to: uint16(port),
		chunk: sctpInit, own: rand.Uint32() | 1,
	}
	if _, err := c.Write(question.bytes()); err != nil {
		return "", err
	}
	packet := make([]byte, 2048)
	for {
		n, _, err := c.ReadFromIP(packet)
		if err != nil {
			return "", err
		}
		got, ok := parseSCTP(packet[:n])
		if ok && got.chunk == sctpInitAck && got.from == question.to && got.to == question.from && got.tag == question.own {
			return got.cookie, nil
		}
	}
}
