package api

import (
	"net/netip"

	"github.com/kuryr/kuryr/sdn"
)

// The values of OptPublish: how ports are published by an SDN that cannot publish them at the
// addresses of the host.
const (
	PublishFloatingIP = "floatingip" // by a floating IP that forwards them
	PublishProxy      = "proxy"      // by a proxy on the host
)

func (d *decoder) publish(field, text string) string {
	d.check(text == PublishFloatingIP || text == PublishProxy, field,
		"must be %s or %s, not %q", PublishFloatingIP, PublishProxy, Clip(text, 40))
	return text
}

// PortMapping is a published port (moby: types.PortBinding).
type PortMapping struct {
	Proto sdn.Protocol // the number of the protocol
	Port  uint16       // of the container, not 0
	// HostIP is the address of the host; an unspecified one is all addresses of its family. Invalid:
	// all addresses, or the HostBinding of the network.
	HostIP    netip.Addr
	HostPorts sdn.PortRange // HostPort to HostPortEnd, of which one is used; zero: any
}

// ExposedPort is a port that a container exposes (moby: types.TransportPort).
type ExposedPort struct {
	Proto sdn.Protocol // the number of the protocol
	Port  uint16
}

func (d *decoder) portMap(o options) []PortMapping {
	var list []struct {
		Proto                 sdn.Protocol
		IP                    string // of the container; ignored
		Port                  uint16
		HostIP                string
		HostPort, HostPortEnd uint16 // HostPortEnd 0: HostPort alone
	}
	d.option(o, OptPortMap, &list)
	const field = "Options." + OptPortMap
	mappings := make([]PortMapping, len(list))
	for i, w := range list {
		host := d.addr(field+".HostIP", w.HostIP)
		mappings[i] = PortMapping{Proto: w.Proto, Port: w.Port, HostIP: host}
		d.check(w.Port != 0, field+".Port", "must be from 1 to 65535, not 0")
		d.check(w.HostPortEnd == 0 || w.HostPortEnd >= w.HostPort, field+".HostPortEnd",
			"must be at least %d, not %d", w.HostPort, w.HostPortEnd)
		if w.HostPort != 0 {
			last := max(w.HostPort, w.HostPortEnd)
			mappings[i].HostPorts = sdn.PortRange{First: w.HostPort, Last: last}
		}
	}
	return mappings
}
