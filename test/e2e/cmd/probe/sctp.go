//go:build linux

package main

import (
	"encoding/binary"
	"hash/crc32"
	"net"
	"net/netip"
)

// initiate sends what an association begins with, from port 5000, by a raw socket: few kernels have sockets of SCTP.
func initiate(to string) error {
	peer, err := netip.ParseAddrPort(to)
	if err != nil {
		return err
	}
	network := "ip4:132"
	if peer.Addr().Is6() {
		network = "ip6:132"
	}
	c, err := net.Dial(network, peer.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	// RFC 9260, sections 3.1 and 3.3.2: common header with verification tag 0, INIT chunk.
	packet := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, 5000), peer.Port())
	packet = append(packet, 0, 0, 0, 0, 0, 0, 0, 0)
	packet = append(packet, 1, 0, 0, 20, 1, 2, 3, 4, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 7)
	binary.LittleEndian.PutUint32(packet[8:], crc32.Checksum(packet, crc32.MakeTable(crc32.Castagnoli)))
	_, err = c.Write(packet)
	return err
}
