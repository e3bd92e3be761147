package vif

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
)

// namePodState is the peer's object around the interfaces of one pod.
const namePodState = "PodState"

// podState are the objects of a PodState by interface.
func podState(o object) (map[string]json.RawMessage, error) {
	var state struct {
		Default    json.RawMessage            `json:"default_vif"`
		Additional map[string]json.RawMessage `json:"additional_vifs"`
	}
	if err := o.read(&state); err != nil {
		return nil, err
	}
	all := map[string]json.RawMessage{}
	for name, raw := range state.Additional {
		all[name] = raw
	}
	if len(state.Default) > 0 && string(state.Default) != "null" {
		if all[defaultInterface] != nil {
			return nil, fmt.Errorf("%s: interface %s is there twice", namePodState, defaultInterface)
		}
		all[defaultInterface] = state.Default
	}
	return all, nil
}

// osVIF is what is read of any class of os_vif's and of the peer's own; what a class has not stays empty.
type osVIF struct {
	ID        string  `json:"id"`
	Address   string  `json:"address"`
	Active    bool    `json:"active"`
	Plugin    string  `json:"plugin"`
	Name      string  `json:"vif_name"`
	Bridge    string  `json:"bridge_name"`
	VLANID    int     `json:"vlan_id"`     // VIFVlanNested
	VLAN      int     `json:"vlan"`        // VIFDirect, VIFHostDevice
	Device    string  `json:"dev_address"` // VIFHostDevice
	PCISlot   string  `json:"pci_address"` // VIFDPDKNested
	DevDriver string  `json:"dev_driver"`
	Path      string  `json:"path"` // VIFVHostUser
	Network   *object `json:"network"`
}

// Classes of os_vif by the SDN's types. Of those that Kuryr knows no binding for the type is Neutron's.
var classes = map[string]string{
	"VIFBridge":        sdn.VIFBridge,
	"VIFOpenVSwitch":   sdn.VIFOVS,
	"VIFVlanNested":    sdn.VIFVLAN,
	"VIFMacvlanNested": sdn.VIFMacvlan,
	"VIFGeneric":       sdn.VIFTap,
	"VIFHostDevice":    "hostdev",
	"VIFDirect":        "hw_veb",
	"VIFSriov":         "hw_veb",
	"VIFVHostUser":     "vhostuser",
	"VIFDPDKNested":    "dpdk",
}

// peer is the port that an object of os_vif tells of.
func peer(o object) (*v1.KuryrPortSpec, error) {
	kind, known := classes[o.Name]
	if !known {
		return nil, fmt.Errorf("%s: %.40q is not known", keyName, o.Name)
	}
	var vif osVIF
	if err := o.read(&vif); err != nil {
		return nil, err
	}
	if err := validPort(vif.ID); err != nil {
		return nil, fmt.Errorf("id: %w", err)
	}
	spec := &v1.KuryrPortSpec{ID: vif.ID, Active: vif.Active, VIF: v1.PortVIF{Type: kind, Details: map[string]string{}}}
	if vif.Address != "" {
		mac, err := net.ParseMAC(vif.Address)
		if err != nil || len(mac) != 6 {
			return nil, fmt.Errorf("address %.40q: want a MAC such as fa:16:3e:bf:84:ff", vif.Address)
		}
		spec.Address = mac.String()
	}
	var network osNetwork
	if vif.Network != nil {
		var err error
		if network, err = readNetwork(*vif.Network, &spec.Network); err != nil {
			return nil, fmt.Errorf("network: %w", err)
		}
	}
	return spec, details(&spec.VIF, vif, network)
}

// details says how the port was plugged.
func details(v *v1.PortVIF, vif osVIF, network osNetwork) error {
	set := func(key, value string) {
		if value != "" {
			v.Details[key] = value
		}
	}
	vlan := vif.VLAN
	switch v.Type {
	case sdn.VIFBridge:
		set(sdn.DetailBridge, vif.Bridge)
		if vif.Plugin == "ovs" { // a Linux bridge of the port's own before the switch's
			v.Type, v.Details[sdn.DetailBridge], v.Details[sdn.DetailHybrid] = sdn.VIFOVS, network.Bridge, "true"
		}
	case sdn.VIFOVS:
		set(sdn.DetailBridge, network.Bridge)
		set(sdn.DetailBridge, vif.Bridge)
	case sdn.VIFVLAN:
		vlan = vif.VLANID
		if vlan == 0 {
			return errors.New("vlan_id: missing")
		}
	}
	if vlan < 0 || vlan > 4094 {
		return fmt.Errorf("VLAN %d: want 1 to 4094", vlan)
	}
	if vlan != 0 {
		set(sdn.DetailVLAN, strconv.Itoa(vlan))
	}
	set("vif_name", vif.Name)
	set("dev_address", vif.Device)
	set("pci_address", vif.PCISlot)
	set("dev_driver", vif.DevDriver)
	set("path", vif.Path)
	return nil
}

type osNetwork struct {
	ID      string  `json:"id"`
	Label   string  `json:"label"`
	Bridge  string  `json:"bridge"`
	MTU     int     `json:"mtu"`
	Subnets *object `json:"subnets"`
}

// osList is a list of objects, which is an object itself.
type osList struct {
	Objects []object `json:"objects"`
}

type osSubnet struct {
	CIDR    string   `json:"cidr"`
	Gateway string   `json:"gateway"`
	DNS     []string `json:"dns"`
	IPs     *object  `json:"ips"`
	Routes  *object  `json:"routes"`
}

// readNetwork reads a Network with its subnets.
func readNetwork(o object, into *v1.PortNetwork) (osNetwork, error) {
	var n osNetwork
	if err := o.read(&n); err != nil {
		return n, err
	}
	if n.MTU < 0 || n.MTU > 65535 {
		return n, fmt.Errorf("mtu %d: want 0 to 65535", n.MTU)
	}
	into.ID, into.Name, into.MTU = n.ID, n.Label, n.MTU
	return n, each(n.Subnets, "subnets", func(o object) error {
		subnet, err := readSubnet(o)
		into.Subnets = append(into.Subnets, subnet)
		return err
	})
}

func readSubnet(o object) (v1.PortSubnet, error) {
	var s osSubnet
	if err := o.read(&s); err != nil {
		return v1.PortSubnet{}, err
	}
	cidr, err := netip.ParsePrefix(s.CIDR)
	if err != nil {
		return v1.PortSubnet{}, fmt.Errorf("cidr: %w", err)
	}
	out := v1.PortSubnet{CIDR: cidr.Masked().String()}
	if s.Gateway != "" {
		if out.Gateway, err = address("gateway", s.Gateway); err != nil {
			return out, err
		}
	}
	for _, server := range s.DNS {
		server, err := address("dns", server)
		if err != nil {
			return out, err
		}
		out.DNS = append(out.DNS, server)
	}
	err = each(s.IPs, "ips", func(o object) error {
		var ip struct {
			Address string `json:"address"`
		}
		if err := o.read(&ip); err != nil {
			return err
		}
		a, err := address("address", ip.Address)
		out.IPs = append(out.IPs, a)
		return err
	})
	if err != nil {
		return out, err
	}
	return out, each(s.Routes, "routes", func(o object) error {
		var route struct{ CIDR, Gateway string }
		if err := o.read(&route); err != nil {
			return err
		}
		to, err := netip.ParsePrefix(route.CIDR)
		if err != nil {
			return fmt.Errorf("cidr: %w", err)
		}
		via := netip.IPv4Unspecified()
		if to.Addr().Is6() {
			via = netip.IPv6Unspecified()
		}
		if route.Gateway != "" {
			if via, err = netip.ParseAddr(route.Gateway); err != nil {
				return fmt.Errorf("gateway: %w", err)
			}
		}
		out.Routes = append(out.Routes, v1.PortRoute{Destination: to.Masked().String(), NextHop: via.String()})
		return nil
	})
}

// each calls read for the objects of a list; none is none.
func each(list *object, what string, read func(object) error) error {
	if list == nil {
		return nil
	}
	var l osList
	if err := list.read(&l); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for i, o := range l.Objects {
		if err := read(o); err != nil {
			return fmt.Errorf("%s[%d]: %w", what, i, err)
		}
	}
	return nil
}

// address is an IP address in its usual writing.
func address(field, text string) (string, error) {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", field, err)
	}
	return a.String(), nil
}
