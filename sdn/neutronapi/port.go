package neutronapi

import (
	"context"
	"errors"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// Ports are served below /v2.0/ports.
var Ports = Resource[Port]{"port", "ports"}

// Port is a port in Neutron's JSON.
type Port struct {
	Common
	NetworkID      string            `json:"network_id"`
	MACAddress     string            `json:"mac_address"`
	FixedIPs       []FixedIP         `json:"fixed_ips"`
	DeviceID       string            `json:"device_id"`
	DeviceOwner    string            `json:"device_owner"`
	HostID         string            `json:"binding:host_id"`
	VNICType       string            `json:"binding:vnic_type"`
	VIFType        string            `json:"binding:vif_type"`
	VIFDetails     map[string]string `json:"binding:vif_details"`
	Profile        map[string]string `json:"binding:profile"`
	SecurityGroups []string          `json:"security_groups"`
	PortSecurity   bool              `json:"port_security_enabled"`
	AllowedPairs   []AddressPair     `json:"allowed_address_pairs"`
	Trusted        *bool             `json:"trusted"` // of the profile; null where it says nothing
	QoSPolicyID    *string           `json:"qos_policy_id"`
	DHCPOptions    []struct{}        `json:"extra_dhcp_opts"` // the SDN has none
	Status         string            `json:"status"`
	AdminStateUp   bool              `json:"admin_state_up"`
}

// AddressPair is a further source that a port may send as.
type AddressPair struct {
	IPAddress  string `json:"ip_address"`
	MACAddress string `json:"mac_address"`
}

// EncodePort translates a port.
func EncodePort(p sdn.Port) Port {
	out := Port{
		Common: encodeMeta(p.Meta), NetworkID: string(p.Network), MACAddress: p.MAC.String(), FixedIPs: encodeAddresses(p.Addresses),
		DeviceID: p.DeviceID, DeviceOwner: p.DeviceOwner, HostID: p.Host, VNICType: string(p.VNICType), VIFType: p.VIF.Type,
		VIFDetails: map[string]string{}, Profile: map[string]string{}, SecurityGroups: ids(p.Groups), PortSecurity: !p.NoPortSecurity, AllowedPairs: []AddressPair{},
		QoSPolicyID: optional(string(p.QoSPolicy)), DHCPOptions: []struct{}{},
		Status: string(p.Status), AdminStateUp: !p.Disabled,
	}
	if p.VNICType == sdn.VNICNormal {
		out.VNICType = normal
	}
	if said, ok := p.Profile[sdn.ProfileTrusted]; ok {
		trusted := said == "true"
		out.Trusted = &trusted
	}
	maps.Copy(out.VIFDetails, p.VIF.Details)
	maps.Copy(out.Profile, p.Profile)
	for _, pair := range p.AllowedPairs {
		mac := pair.MAC
		if mac == nil {
			mac = p.MAC
		}
		address := pair.Prefix.String()
		if pair.Prefix.IsSingleIP() && !pair.Length {
			address = pair.Prefix.Addr().String()
		}
		out.AllowedPairs = append(out.AllowedPairs, AddressPair{IPAddress: address, MACAddress: mac.String()})
	}
	return out
}

// normal is the VNIC type of a virtual interface.
const normal = "normal"

func (s *server) ports() *definition[sdn.Port, Port, sdn.PortSpec, sdn.PortPatch] {
	p := s.p
	n := &definition[sdn.Port, Port, sdn.PortSpec, sdn.PortPatch]{
		Resource: Ports, title: "port", kind: sdn.NounPort,
		hidden: []string{"binding:host_id", "binding:vif_type", "binding:vif_details", "binding:profile", "trusted"},
		meta:   func(p sdn.Port) sdn.Meta { return p.Meta },
		get:    p.Port,
		find:   func(ctx context.Context, f *filter) iter.Seq2[sdn.Port, error] { return s.findPorts(ctx, portQuery(f)) },
		encode: EncodePort, quick: quickPort,
		shared:    func(c *call, p sdn.Port) (bool, error) { return c.ofNetwork(p.Network, false) },
		canDelete: func(c *call, p sdn.Port) (bool, error) { return c.ofNetwork(p.Network, false) },
		spec:      portSpec, patch: portPatch,
		create: s.createPort, update: p.UpdatePort,
		remove:   func(ctx context.Context, id sdn.ID) error { return s.removePort(ctx, id, 0) },
		removeIf: s.removePort,
		setTags: func(ctx context.Context, id sdn.ID, change sdn.Patch) error {
			_, err := p.UpdatePort(ctx, id, sdn.PortPatch{Patch: change})
			return err
		},
	}
	if atomic, ok := p.(sdn.AtomicPorts); ok {
		n.createAll = bulkOf(atomic.EnsureAllPorts)
	}
	return n
}

// quickPort gives what long lists of ports are sorted and filtered by.
func quickPort(p sdn.Port, name string) (any, bool) {
	switch name {
	case "status":
		return string(p.Status), true
	case "network_id":
		return string(p.Network), true
	case "device_id":
		return p.DeviceID, true
	case "device_owner":
		return p.DeviceOwner, true
	case "mac_address":
		return p.MAC.String(), true
	case "admin_state_up":
		return !p.Disabled, true
	case "binding:host_id":
		return p.Host, true
	}
	return nil, false
}

// createPort makes one port.
func (s *server) createPort(ctx context.Context, spec sdn.PortSpec) (sdn.Port, error) {
	made, err := s.p.EnsurePorts(ctx, []sdn.PortSpec{spec})
	var bulk *sdn.BulkError
	if errors.As(err, &bulk) {
		err = errors.Join(bulk.Errs...)
	}
	if err != nil {
		return sdn.Port{}, err
	}
	return made[0], nil
}

func portQuery(f *filter) sdn.PortQuery {
	subnets, addresses := f.fixedIPs()
	return sdn.PortQuery{
		Match: f.match(), Networks: f.ids("network_id"), Devices: f.texts("device_id"), DeviceOwners: f.texts("device_owner"),
		Groups: f.ids("security_groups"), Hosts: f.texts("binding:host_id"), MACs: f.macs("mac_address"), Subnets: subnets, Addresses: addresses,
	}
}

// fixedIPs takes fixed_ips=ip_address=A, fixed_ips=ip_address_substr=T and fixed_ips=subnet_id=S.
func (f *filter) fixedIPs() (subnets []sdn.ID, addresses []netip.Addr) {
	var parts []string
	for _, v := range f.texts("fixed_ips") {
		kind, value, _ := strings.Cut(v, "=")
		switch kind {
		case "subnet_id":
			subnets = append(subnets, sdn.ID(value))
		case "ip_address":
			addr, err := netip.ParseAddr(value)
			if err != nil {
				f.fail("fixed_ips", value, "IP address")
			}
			addresses = append(addresses, addr)
		case "ip_address_substr":
			parts = append(parts, value)
		default:
			f.fail("fixed_ips", v, "filter: want ip_address=…, ip_address_substr=… or subnet_id=…")
		}
	}
	if len(parts) > 0 {
		f.wants = append(f.wants, want{"fixed_ips", func(value any) bool {
			all, _ := value.([]any)
			return slices.ContainsFunc(all, func(one any) bool {
				ip, _ := one.(map[string]any)
				return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text(ip["ip_address"]), part) })
			})
		}})
	}
	return subnets, addresses
}
