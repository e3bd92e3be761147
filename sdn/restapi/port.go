package restapi

import "github.com/kuryr/kuryr/sdn"

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
	SecurityGroups []string          `json:"security_groups"`
	PortSecurity   bool              `json:"port_security_enabled"`
	AllowedPairs   []AddressPair     `json:"allowed_address_pairs"`
	QoSPolicyID    *string           `json:"qos_policy_id"`
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
		VIFDetails: map[string]string{}, SecurityGroups: ids(p.Groups), PortSecurity: !p.NoPortSecurity, AllowedPairs: []AddressPair{},
		QoSPolicyID: optional(string(p.QoSPolicy)),
		Status:      string(p.Status), AdminStateUp: !p.Disabled,
	}
	if p.VNICType == sdn.VNICNormal {
		out.VNICType = "normal"
	}
	for k, v := range p.VIF.Details {
		out.VIFDetails[k] = v
	}
	for _, pair := range p.AllowedPairs {
		mac := pair.MAC
		if mac == nil {
			mac = p.MAC
		}
		out.AllowedPairs = append(out.AllowedPairs, AddressPair{IPAddress: pair.Prefix.String(), MACAddress: mac.String()})
	}
	return out
}

func portQuery(f *filter) sdn.PortQuery {
	subnets, addresses := f.fixedIPs()
	return sdn.PortQuery{
		Match: f.match(), Networks: f.ids("network_id"), Devices: f.texts("device_id"), DeviceOwners: f.texts("device_owner"),
		Groups: f.ids("security_groups"), Hosts: f.texts("binding:host_id"), MACs: f.macs("mac_address"), Subnets: subnets, Addresses: addresses,
	}
}
