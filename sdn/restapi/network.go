package restapi

import "github.com/kuryr/kuryr/sdn"

// Network is a network in Neutron's JSON.
type Network struct {
	Common
	MTU          int      `json:"mtu"`
	External     bool     `json:"router:external"`
	Shared       bool     `json:"shared"`
	PortSecurity bool     `json:"port_security_enabled"`
	Subnets      []string `json:"subnets"`
	Status       string   `json:"status"`
	AdminStateUp bool     `json:"admin_state_up"`
}

// EncodeNetwork translates a network.
func EncodeNetwork(n sdn.Network) Network {
	return Network{
		Common: encodeMeta(n.Meta), MTU: n.MTU, External: n.External, Shared: n.Shared, PortSecurity: !n.NoPortSecurity,
		Subnets: ids(n.Subnets), Status: active, AdminStateUp: !n.Disabled,
	}
}

func networkQuery(f *filter) sdn.NetworkQuery {
	return sdn.NetworkQuery{Match: f.match(), External: f.boolean("router:external")}
}
