//go:build linux

package hostports

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/sdn"
)

// bind gives a socket that has the port, or one less than 0 where the kernel has none of
// that kind. anyAddress: also of an address that the host does not have.
func bind(p Port, anyAddress bool) (fd int, err error) {
	family, kind, protocol := unix.AF_INET6, unix.SOCK_STREAM, 0
	var address unix.Sockaddr = &unix.SockaddrInet6{Port: int(p.Address.Port()), Addr: p.Address.Addr().As16()}
	if p.Address.Addr().Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Port: int(p.Address.Port()), Addr: p.Address.Addr().As4()}
	}
	switch p.Protocol {
	case sdn.TCP:
	case sdn.UDP:
		kind = unix.SOCK_DGRAM
	case sdn.SCTP:
		// Asking for a socket would load the protocol into the kernel. Where it is not, no
		// program can listen.
		if _, err := os.Stat("/proc/thread-self/net/sctp"); err != nil {
			return -1, nil
		}
		protocol = unix.IPPROTO_SCTP
	default:
		return -1, nil
	}
	fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ESOCKTNOSUPPORT) {
		return -1, nil
	}
	if err != nil {
		return -1, explain(p, err)
	}
	if err := take(fd, p, family, address, anyAddress); err != nil {
		_ = unix.Close(fd)
		if errors.Is(err, unix.EADDRNOTAVAIL) && p.Address.Addr().IsUnspecified() {
			return -1, nil // the family is switched off
		}
		return -1, explain(p, fmt.Errorf("keep port %s: %w", p.Address, err))
	}
	return fd, nil
}

func take(fd int, p Port, family int, address unix.Sockaddr, anyAddress bool) error {
	type option struct{ level, name, value int }
	var before []option
	if family == unix.AF_INET6 {
		before = append(before, option{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1})
	}
	if anyAddress {
		before = append(before, option{unix.IPPROTO_IP, unix.IP_FREEBIND, 1})
		if family == unix.AF_INET6 {
			before = append(before, option{unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1})
		}
	}
	switch p.Protocol {
	case sdn.UDP:
		// no program gets what escapes translation; the kernel makes it its least
		before = append(before, option{unix.SOL_SOCKET, unix.SO_RCVBUF, 0})
	default:
		// Ended connections of a program that listened here must not keep the port from us.
		before = append(before, option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1})
	}
	for _, o := range before {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	if err := unix.Bind(fd, address); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if p.Protocol == sdn.UDP {
		return nil
	}
	// From here on no other program can listen: the kernel lets two sockets share a port only
	// while both allow it and neither listens.
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0))
}
