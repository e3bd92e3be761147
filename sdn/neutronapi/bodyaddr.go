package neutronapi

import (
	"net"
	"net/netip"
)

// addr takes an address.
func (b *body) addr(name string) *netip.Addr {
	s := b.text(name)
	if s == nil {
		return nil
	}
	addr, err := netip.ParseAddr(*s)
	if err != nil || addr.Zone() != "" {
		b.invalid(name, "'%s' is not a valid IP address", *s)
		return nil
	}
	addr = addr.Unmap()
	return &addr
}

// prefix takes a range. Bits beyond its length are cut, as Neutron does, and an address is the range of itself.
func (b *body) prefix(name string) *netip.Prefix {
	p := b.asSent(name)
	if p != nil {
		*p = p.Masked()
	}
	return p
}

// asSent takes a range as it is written, with the bits beyond its length.
func (b *body) asSent(name string) *netip.Prefix {
	s := b.text(name)
	if s == nil {
		return nil
	}
	p, ok := parseAsSent(*s)
	if !ok {
		b.invalid(name, "'%s' is not a valid IP subnet", *s)
		return nil
	}
	return &p
}

func parsePrefix(s string) (netip.Prefix, bool) {
	p, ok := parseAsSent(s)
	return p.Masked(), ok
}

// parseAsSent reads a range, and an address as the range of itself.
func parseAsSent(s string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(s); err == nil && !p.Addr().Is4In6() {
		return p, true
	}
	addr, err := netip.ParseAddr(s)
	if err != nil || addr.Zone() != "" {
		return netip.Prefix{}, false
	}
	addr = addr.Unmap()
	return netip.PrefixFrom(addr, addr.BitLen()), true
}

// cidr takes the range of a subnet. Bits beyond its length are cut.
func (b *body) cidr(name string) *netip.Prefix {
	s := b.text(name)
	if s == nil {
		return nil
	}
	p, ok := parsePrefix(*s)
	if !ok {
		b.mistyped(name, "'%s' is not a valid IP subnet", *s)
	}
	return &p
}

// mac takes a MAC address.
func (b *body) mac(name string) *net.HardwareAddr {
	s := b.text(name)
	if s == nil {
		return nil
	}
	mac, err := net.ParseMAC(*s)
	if err != nil || len(mac) != 6 {
		b.invalid(name, "'%s' is not a valid MAC address", *s)
		return nil
	}
	return &mac
}
