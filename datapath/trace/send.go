//go:build linux

package trace

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/kuryr/kuryr/internal/netns"
	vns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// sender has the sockets of a probe. They stay open while answers may come: the port is
// no other socket's so long.
type sender struct {
	probe
	ns  vns.NsHandle
	fds []int
}

// newSender opens the sockets and sends nothing.
func newSender(ns vns.NsHandle, f Flow) (*sender, error) {
	s := &sender{probe: probe{Flow: f}, ns: ns}
	if _, err := rand.Read(s.token[:]); err != nil {
		return nil, err
	}
	err := netns.Do(ns, s.open)
	if err != nil {
		s.close()
		return nil, fmt.Errorf("probe from %s: %w", f.Src, err)
	}
	return s, nil
}

func (s *sender) open() error {
	switch s.Protocol {
	case unix.IPPROTO_UDP:
		return s.bindPort(unix.SOCK_DGRAM)
	case unix.IPPROTO_TCP:
		// The bound socket keeps the port; that nothing listens there makes the kernel close
		// what the answer would open.
		if err := s.bindPort(unix.SOCK_STREAM); err != nil {
			return err
		}
	default:
		s.source = binary.BigEndian.Uint16(s.token[4:])
	}
	fd, err := s.socket(unix.SOCK_RAW, int(s.wire()))
	if err != nil {
		return err
	}
	if !s.four() && s.Protocol == unix.IPPROTO_TCP {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_CHECKSUM, 16)
	}
	return nil
}

func (s *sender) socket(kind, protocol int) (int, error) {
	family := unix.AF_INET6
	if s.four() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return -1, err
	}
	s.fds = append(s.fds, fd)
	if s.Device != "" {
		if err := unix.BindToDevice(fd, s.Device); err != nil {
			return fd, err
		}
	}
	return fd, unix.Bind(fd, sockaddr(s.Src, 0))
}

func (s *sender) bindPort(kind int) error {
	fd, err := s.socket(kind, 0)
	if err != nil {
		return err
	}
	bound, err := unix.Getsockname(fd)
	switch a := bound.(type) {
	case *unix.SockaddrInet4:
		s.source = uint16(a.Port)
	case *unix.SockaddrInet6:
		s.source = uint16(a.Port)
	}
	return err
}

// send sends the probe.
func (s *sender) send() error {
	port := 0
	if s.Protocol == unix.IPPROTO_UDP {
		port = int(s.Port)
	}
	return netns.Do(s.ns, func() error {
		return unix.Sendto(s.fds[len(s.fds)-1], s.bytes(), 0, sockaddr(s.Dst, port))
	})
}

func (s *sender) close() {
	for _, fd := range s.fds {
		_ = unix.Close(fd)
	}
	s.fds = nil
}

// bytes are what follows the IP header, or for UDP its payload.
func (s *sender) bytes() []byte {
	switch s.Protocol {
	case unix.IPPROTO_UDP:
		return s.token[:]
	case unix.IPPROTO_TCP:
		return s.syn()
	}
	b := []byte{8, 0, 0, 0}
	if !s.four() {
		b[0] = 128
	}
	b = binary.BigEndian.AppendUint16(b, s.source)
	b = append(binary.BigEndian.AppendUint16(b, 1), s.token[:]...)
	if s.four() {
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	return b
}

func (s *sender) syn() []byte {
	b := binary.BigEndian.AppendUint16(nil, s.source)
	b = binary.BigEndian.AppendUint16(b, s.Port)
	// MSS 1220
	b = append(
		binary.BigEndian.AppendUint32(b, s.sequence()), 0, 0, 0, 0, 6<<4, tcpSYN, 0xfa, 0xf0, 0, 0, 0, 0,
		2, 4, 0x04, 0xc4,
	)
	if s.four() {
		pseudo := append(s.Src.AsSlice(), s.Dst.AsSlice()...)
		pseudo = append(pseudo, 0, unix.IPPROTO_TCP, 0, byte(len(b)))
		binary.BigEndian.PutUint16(b[16:], checksum(append(pseudo, b...)))
	}
	return b
}

// checksum is the Internet's (RFC 1071).
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

func sockaddr(a netip.Addr, port int) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Port: port, Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Port: port, Addr: a.As16()}
}
