package main

import (
	"net"
	"syscall"

	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

// wantDestination has the kernel tell with each datagram which address it was for. See
// IP_PKTINFO in ip(7), IPV6_RECVPKTINFO in ipv6(7).
func wantDestination(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var four, six error
	err = raw.Control(func(fd uintptr) {
		four = unix.SetsockoptInt(int(fd), syscall.IPPROTO_IP, unix.IP_PKTINFO, 1)
		six = unix.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
	})
	if err == nil && four != nil && six != nil {
		err = four
	}
	return err
}

// answerFrom is the control message that sends from the address that one received tells.
func answerFrom(control []byte) []byte {
	var six ipv6.ControlMessage
	if six.Parse(control) == nil && six.Dst != nil && six.Dst.To4() == nil {
		return (&ipv6.ControlMessage{Src: six.Dst}).Marshal()
	}
	var four ipv4.ControlMessage
	if four.Parse(control) == nil && four.Dst != nil {
		return (&ipv4.ControlMessage{Src: four.Dst}).Marshal()
	}
	return nil
}
