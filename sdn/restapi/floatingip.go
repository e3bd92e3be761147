package restapi

import (
	"context"
	"iter"
	"net/http"
	"strconv"

	"github.com/kuryr/kuryr/sdn"
)

// FloatingIPs are served below /v2.0/floatingips.
var FloatingIPs = Resource[FloatingIP]{"floatingip", "floatingips"}

// FloatingIP is a floating IP in Neutron's JSON.
type FloatingIP struct {
	Common
	FloatingNetworkID string  `json:"floating_network_id"`
	FloatingIPAddress string  `json:"floating_ip_address"`
	PortID            *string `json:"port_id"`
	FixedIPAddress    *string `json:"fixed_ip_address"`
	RouterID          *string `json:"router_id"`
	Status            string  `json:"status"`
}

// EncodeFloatingIP translates a floating IP.
func EncodeFloatingIP(f sdn.FloatingIP) FloatingIP {
	status := active
	if f.Target.Port == "" {
		status = string(sdn.PortDown)
	}
	return FloatingIP{
		Common: encodeMeta(f.Meta), FloatingNetworkID: string(f.Network), FloatingIPAddress: f.Address.String(),
		PortID: optional(string(f.Target.Port)), FixedIPAddress: optionalAddr(f.Target.Addr), RouterID: optional(string(f.Router)), Status: status,
	}
}

func floatingIPQuery(f *filter) sdn.FloatingIPQuery {
	return sdn.FloatingIPQuery{
		Match: f.match(), Networks: f.ids("floating_network_id"), Addresses: f.addrs("floating_ip_address"), Ports: f.ids("port_id"), Routers: f.ids("router_id"),
	}
}

// PortForwarding is a port forwarding of a floating IP in Neutron's JSON.
type PortForwarding struct {
	ID                string  `json:"id"`
	Protocol          string  `json:"protocol"`
	ExternalPort      *uint16 `json:"external_port"` // null where it is a range
	ExternalPortRange string  `json:"external_port_range"`
	InternalPort      *uint16 `json:"internal_port"` // null where it is a range
	InternalPortRange string  `json:"internal_port_range"`
	InternalPortID    string  `json:"internal_port_id"`
	InternalIPAddress *string `json:"internal_ip_address"`
}

// EncodePortForwarding translates a port forwarding.
func EncodePortForwarding(f sdn.Forward) PortForwarding {
	out := PortForwarding{
		ID: string(f.ID), Protocol: protocolName(f.Protocol), InternalPortID: string(f.Target.Port), InternalIPAddress: optionalAddr(f.Target.Addr),
	}
	out.ExternalPort, out.ExternalPortRange = encodeRange(f.External)
	out.InternalPort, out.InternalPortRange = encodeRange(f.Internal)
	return out
}

func encodeRange(r sdn.PortRange) (*uint16, string) {
	first, last := r.First, r.Last
	if last == 0 {
		last = first
	}
	text := strconv.Itoa(int(first)) + ":" + strconv.Itoa(int(last))
	if first == last {
		return &first, text
	}
	return nil, text
}

func protocolName(p sdn.Protocol) string {
	switch p {
	case sdn.TCP:
		return "tcp"
	case sdn.UDP:
		return "udp"
	case sdn.SCTP:
		return "sctp"
	}
	return strconv.Itoa(int(p))
}

func (s *server) floatingIPs() noun[sdn.FloatingIP, FloatingIP, struct{}, struct{}] {
	p := s.p
	return noun[sdn.FloatingIP, FloatingIP, struct{}, struct{}]{
		Resource: FloatingIPs, title: "floating IP", kind: sdn.NounFloatingIP,
		meta: func(o sdn.FloatingIP) sdn.Meta { return o.Meta },
		get:  p.FloatingIP,
		find: func(ctx context.Context, f *filter) iter.Seq2[sdn.FloatingIP, error] {
			return p.FindFloatingIPs(ctx, floatingIPQuery(f))
		},
		encode: EncodeFloatingIP,
	}
}

// listForwards answers with the port forwardings of a floating IP.
func (s *server) listForwards(w http.ResponseWriter, c *call) error {
	f, err := s.floatingIPs().need(c, c.target())
	if err != nil {
		return err
	}
	all := []PortForwarding{}
	for forward, err := range s.p.FindForwards(c.ctx(), sdn.ForwardQuery{FloatingIPs: []sdn.ID{f.ID}}) {
		if err != nil {
			return err
		}
		all = append(all, EncodePortForwarding(forward))
	}
	writeJSON(w, http.StatusOK, map[string][]PortForwarding{"port_forwardings": all})
	return nil
}
