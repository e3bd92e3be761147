//go:build linux

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// parseTarget reads TO[:PORT[/tcp|udp]]: an address (with a port, IPv6 in brackets), "host", or a container.
func parseTarget(text string) (target, error) {
	t := target{text: text, protocol: unix.IPPROTO_ICMP}
	name, service := text, ""
	if addr, err := netip.ParseAddr(text); err == nil {
		t.addr = addr
	} else if i := strings.LastIndex(text, ":"); i >= 0 && !strings.HasSuffix(text, "]") {
		name, service = text[:i], text[i+1:]
		if service == "" {
			return t, fmt.Errorf("%q: a port must follow the colon, such as :80/tcp", text)
		}
	}
	if err := t.setService(service); err != nil {
		return t, fmt.Errorf("%q: %w", text, err)
	}
	bare, bracketed := strings.CutPrefix(name, "[")
	if bracketed {
		var closed bool
		if bare, closed = strings.CutSuffix(bare, "]"); !closed {
			return t, fmt.Errorf("%q: the bracket is not closed", text)
		}
	}
	addr, err := netip.ParseAddr(bare)
	switch {
	case err == nil:
		t.addr = addr.Unmap()
		if addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() {
			return t, fmt.Errorf("%q: want the address of one machine, without a zone", text)
		}
	case bracketed || name == "" || strings.Contains(name, ":"):
		return t, fmt.Errorf("%q: want an address, a container or host, with :PORT/tcp or :PORT/udp if not ICMP", text)
	case name == "host":
		t.host = true
	default:
		t.name = name
	}
	return t, nil
}

func (t *target) setService(text string) error {
	if text == "" {
		return nil
	}
	number, protocol, named := strings.Cut(text, "/")
	switch protocol {
	case "tcp":
		t.protocol = unix.IPPROTO_TCP
	case "udp":
		t.protocol = unix.IPPROTO_UDP
	default:
		if named {
			return fmt.Errorf("protocol %q: want tcp or udp", protocol)
		}
		t.protocol = unix.IPPROTO_TCP
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil || port == 0 {
		return errors.New("port " + strconv.Quote(number) + ": want a number from 1 to 65535")
	}
	t.port = uint16(port)
	return nil
}
