package hostport

import (
	"net/netip"

	"github.com/kuryr/kuryr/internal/ipproto"
	"github.com/kuryr/kuryr/sdn"
)

// Mapping leads a port of the host to one behind it.
type Mapping struct {
	Host     netip.Addr // an address of the host's; the zero Addr is every one of To's family
	Protocol sdn.Protocol
	Port     uint16
	To       netip.AddrPort
}

// face is the address that the mapping is at: 0.0.0.0 or :: for every one.
func (m Mapping) face() netip.Addr {
	switch {
	case m.Host.IsValid() && !m.Host.IsUnspecified():
		return m.Host
	case m.To.Addr().Is4():
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func (m Mapping) check() error {
	switch at := netip.AddrPortFrom(m.face(), m.Port); {
	case m.Port == 0 || m.To.Port() == 0:
		return sdn.Invalid("host port", "port", "%s to %s: 0 is no port", at, m.To)
	case m.Host.IsValid() && m.Host.Is4() != m.To.Addr().Is4():
		return sdn.Invalid("host port", "hostIP", "%s and %s are not of one family", m.Host, m.To.Addr())
	case !ipproto.HasPorts(m.Protocol):
		return sdn.Invalid("host port", "protocol", "%s has no ports", ipproto.Name(m.Protocol))
	}
	return nil
}
