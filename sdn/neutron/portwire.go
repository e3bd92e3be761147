package neutron

import (
	"bytes"
	"encoding/json"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// vifBindingFailed is the VIF type of a port whose host no driver of Neutron can bind to: it is in a 201, not in an error.
const vifBindingFailed = "binding_failed"

// portWire is a port as Neutron says it. What extensions or the policy leave out stays zero.
// gophercloud's Port and its extensions cannot tell a binding that the policy hides from an empty one,
// and its calls create one port per request.
type portWire struct {
	meta
	Network      sdn.ID                     `json:"network_id"`
	MAC          string                     `json:"mac_address"`
	FixedIPs     []fixedIP                  `json:"fixed_ips"`
	DeviceID     string                     `json:"device_id"`
	DeviceOwner  string                     `json:"device_owner"`
	Host         string                     `json:"binding:host_id"`
	VNICType     sdn.VNICType               `json:"binding:vnic_type"`
	Profile      map[string]json.RawMessage `json:"binding:profile"`
	VIFType      string                     `json:"binding:vif_type"`
	VIFDetails   map[string]any             `json:"binding:vif_details"`
	Groups       []sdn.ID                   `json:"security_groups"`
	PortSecurity *bool                      `json:"port_security_enabled"`
	Pairs        []pairWire                 `json:"allowed_address_pairs"`
	QoSPolicy    sdn.ID                     `json:"qos_policy_id"`
	AdminStateUp *bool                      `json:"admin_state_up"`
	Status       sdn.PortStatus             `json:"status"`
}

// fixedIP is one address of a port. In a request either may be left out.
type fixedIP struct {
	Subnet sdn.ID `json:"subnet_id,omitempty"`
	Addr   string `json:"ip_address,omitempty"`
}

// decodeAddresses returns addresses in order, IPv4 first: Neutron keeps none.
func decodeAddresses(list []fixedIP) []sdn.Address {
	var out []sdn.Address
	for _, f := range list {
		addr, err := netip.ParseAddr(f.Addr)
		if err != nil {
			continue // a router's gateway on a subnet that has not given it an address
		}
		out = append(out, sdn.Address{Subnet: f.Subnet, Addr: addr})
	}
	sortslice.Func(out, func(a, b sdn.Address) int { return a.Addr.Compare(b.Addr) })
	return out
}

// portPart is what other nouns need of a port. gophercloud's Port is the whole: of thousands of ports
// this decodes four attributes.
type portPart struct {
	meta
	Device    string    `json:"device_id"`
	Owner     string    `json:"device_owner"`
	Addresses []fixedIP `json:"fixed_ips"`
}

var portParts = collection[*portPart]{title: "port", item: "port", items: "ports", path: "/ports"}

type pairWire struct {
	Prefix string `json:"ip_address"`
	MAC    string `json:"mac_address,omitempty"`
}

// decode gives the sdn form. The addresses are in order, IPv4 first: Neutron keeps none.
func (w *portWire) decode(o *owner) (sdn.Port, error) {
	port := sdn.Port{
		Meta: w.meta.decode(o), Network: w.Network, DeviceID: w.DeviceID, DeviceOwner: w.DeviceOwner, Host: w.Host, VNICType: w.VNICType,
		Profile: profile(w.Profile), Groups: w.Groups, NoPortSecurity: w.PortSecurity != nil && !*w.PortSecurity, QoSPolicy: w.QoSPolicy,
		Disabled: w.AdminStateUp != nil && !*w.AdminStateUp, Status: w.Status, VIF: sdn.VIF{Type: w.VIFType, Details: plain(w.VIFDetails), Hidden: w.hidden()},
	}
	if port.VNICType == "normal" {
		port.VNICType = sdn.VNICNormal
	}
	var err error
	if port.MAC, err = net.ParseMAC(w.MAC); err != nil {
		return port, strange(w, err)
	}
	for _, ip := range w.FixedIPs {
		addr, err := netip.ParseAddr(ip.Addr)
		if err != nil {
			return port, strange(w, err)
		}
		port.Addresses = append(port.Addresses, sdn.Address{Subnet: ip.Subnet, Addr: addr})
	}
	sortslice.Func(port.Addresses, func(a, b sdn.Address) int { return a.Addr.Compare(b.Addr) })
	for _, pair := range w.Pairs {
		prefix, err := parseAsSent(pair.Prefix)
		if err != nil {
			return port, strange(w, err)
		}
		mac, _ := net.ParseMAC(pair.MAC)
		if slices.Equal(mac, port.MAC) {
			mac = nil // the port's own, which Neutron fills in
		}
		port.AllowedPairs = append(port.AllowedPairs, sdn.AllowedPair{Prefix: prefix, MAC: mac,
			Length: prefix.IsSingleIP() && strings.Contains(pair.Prefix, "/")}) // others' pairs are written back as they were
	}
	return port, nil
}

// hidden are the attributes of the binding that Neutron's policy leaves out of what it says. Of a port that is not bound only the VIF type tells.
func (w *portWire) hidden() (names []string) {
	if w.VIFType == sdn.VIFUnbound {
		return nil
	}
	if w.Host == "" {
		names = append(names, "binding:host_id")
	}
	if w.VIFType == "" {
		names = append(names, "binding:vif_type")
	}
	if w.VIFDetails == nil {
		names = append(names, "binding:vif_details")
	}
	return names
}

// strange is the error of a port that says what cannot be.
func strange(w *portWire, err error) error {
	return sdn.Unavailable(err, "Neutron", "what it says of port %s cannot be understood", w.ID)
}

// parsePrefix reads a prefix, or an address as the prefix that holds it alone.
func parsePrefix(s string) (netip.Prefix, error) {
	p, err := parseAsSent(s)
	return p.Masked(), err
}

// parseAsSent reads a prefix with the bits beyond its length, and an address as the prefix of itself.
func parseAsSent(s string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(s); err == nil {
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	return netip.ParsePrefix(s)
}

// plain are the values of a JSON object: strings as they are, all else as JSON.
func plain(object map[string]any) map[string]string {
	if len(object) == 0 {
		return nil
	}
	out := make(map[string]string, len(object))
	for name, value := range object {
		if text, ok := value.(string); ok {
			out[name] = text
		} else if data, err := json.Marshal(value); err == nil {
			out[name] = string(data)
		}
	}
	return out
}

// profile returns the values of a profile in the shortest form of their JSON.
func profile(values map[string]json.RawMessage) map[string]json.RawMessage {
	if len(values) == 0 {
		return nil
	}
	out := make(map[string]json.RawMessage, len(values))
	for name, value := range values {
		decoder := json.NewDecoder(bytes.NewReader(value))
		decoder.UseNumber()
		var decoded any
		if decoder.Decode(&decoded) == nil {
			out[name], _ = json.Marshal(decoded) // what was decoded can be encoded
		}
	}
	return out
}

// portBody is what of a request's body says the same as c, but for what all patches have.
func portBody(c sdn.PortPatch) map[string]any {
	body := map[string]any{}
	set(body, "device_id", c.DeviceID)
	set(body, "device_owner", c.DeviceOwner)
	set(body, "binding:host_id", c.Host)
	setNot(body, "port_security_enabled", c.NoPortSecurity)
	setNot(body, "admin_state_up", c.Disabled)
	if c.MAC != nil {
		body["mac_address"] = c.MAC.String()
	}
	if c.Addresses != nil {
		body["fixed_ips"] = fixedIPs(*c.Addresses)
	}
	if c.Profile != nil {
		profile := map[string]json.RawMessage{}
		maps.Copy(profile, *c.Profile)
		body["binding:profile"] = profile
	}
	if c.Groups != nil {
		// Neutron refuses a group that is there twice, and takes null for nothing said.
		body["security_groups"] = append([]sdn.ID{}, asSet(*c.Groups)...)
	}
	if c.AllowedPairs != nil {
		body["allowed_address_pairs"] = pairs(*c.AllowedPairs)
	}
	if c.NoPortSecurity != nil && *c.NoPortSecurity {
		// Neutron refuses it while there is something to enforce.
		setDefault(body, "security_groups", []sdn.ID{})
		setDefault(body, "allowed_address_pairs", []pairWire{})
	}
	if c.QoSPolicy != nil {
		body["qos_policy_id"] = nonZero(*c.QoSPolicy) // null is none
	}
	return body
}

func setDefault(body map[string]any, name string, value any) {
	if _, there := body[name]; !there {
		body[name] = value
	}
}

func fixedIPs(addresses []sdn.Address) []fixedIP {
	out := []fixedIP{}
	for _, a := range addresses {
		ip := fixedIP{Subnet: a.Subnet}
		if a.Addr.IsValid() {
			ip.Addr = a.Addr.String()
		}
		out = append(out, ip)
	}
	return out
}

// pairs are as Neutron writes them. A single address has no length unless that is asked for: with one, OVN's driver does not see that another port has
// the address and must give way.
func pairs(allowed []sdn.AllowedPair) []pairWire {
	out := []pairWire{}
	for _, pair := range allowed {
		w := pairWire{Prefix: pair.Prefix.String()}
		if pair.Prefix.IsSingleIP() && !pair.Length {
			w.Prefix = pair.Prefix.Addr().String()
		}
		if pair.MAC != nil {
			w.MAC = pair.MAC.String()
		}
		out = append(out, w)
	}
	return out
}
