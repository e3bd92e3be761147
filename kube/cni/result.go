package cni

import (
	"encoding/json"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/kuryr/kuryr/sdn"
)

// Plugged is an interface that has been plugged into a container, with all that a result tells of it.
type Plugged struct {
	Port      sdn.Port
	MTU       int
	Subnets   []sdn.Subnet
	Host      string // name of the host end; "" where there is none in the host's namespace
	Name      string // of the container end
	Namespace string // its path
}

// Result is what is told of the interface, in the newest version.
func (p Plugged) Result() *types100.Result {
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	if p.Host != "" {
		r.Interfaces = append(r.Interfaces, &types100.Interface{Name: p.Host})
	}
	at := len(r.Interfaces)
	r.Interfaces = append(r.Interfaces, &types100.Interface{Name: p.Name, Mac: p.Port.MAC.String(), Mtu: p.MTU, Sandbox: p.Namespace})
	routed := map[bool]bool{} // by whether IPv6
	told := map[sdn.ID]bool{}
	for _, a := range p.Port.Addresses {
		s := p.subnet(a.Subnet)
		if !s.CIDR.IsValid() {
			continue
		}
		ip := &types100.IPConfig{Interface: types100.Int(at), Address: ipNet(netip.PrefixFrom(a.Addr, s.CIDR.Bits()))}
		if s.Gateway.IsValid() {
			ip.Gateway = s.Gateway.AsSlice()
		}
		r.IPs = append(r.IPs, ip)
		if told[s.ID] {
			continue
		}
		told[s.ID] = true
		if s.Gateway.IsValid() && s.Gateway != a.Addr && !routed[a.Addr.Is6()] {
			routed[a.Addr.Is6()] = true
			every := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			if a.Addr.Is6() {
				every = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			}
			r.Routes = append(r.Routes, &types.Route{Dst: ipNet(every), GW: s.Gateway.AsSlice()})
		}
		for _, h := range s.HostRoutes {
			route := &types.Route{Dst: ipNet(h.Destination)}
			if !h.Connected() {
				route.GW = h.NextHop.AsSlice()
			}
			r.Routes = append(r.Routes, route)
		}
		for _, n := range s.Nameservers {
			r.DNS.Nameservers = append(r.DNS.Nameservers, n.String())
		}
	}
	return r
}

func (p Plugged) subnet(id sdn.ID) sdn.Subnet {
	for _, s := range p.Subnets {
		if s.ID == id {
			return s
		}
	}
	return sdn.Subnet{}
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Encode is the result as a version of the specification has it. Those before 0.3.0 tell one address of each family and need at least one.
func Encode(r *types100.Result, version string) ([]byte, error) {
	as, err := r.GetAsVersion(version)
	if err != nil {
		return nil, IncompatibleVersion.Errorf("cniVersion: %v", err)
	}
	data, err := json.MarshalIndent(as, "", "    ")
	if err != nil {
		return nil, Internal.Errorf("result: %v", err)
	}
	return append(data, '\n'), nil
}

// EncodeError is an error as CNI wants it on standard output.
func EncodeError(e *types.Error, version string) []byte {
	data, _ := json.MarshalIndent(struct {
		CNIVersion string `json:"cniVersion"`
		types.Error
	}{version, *e}, "", "    ") // cannot fail: texts and a number
	return append(data, '\n')
}

// Previous reads the configuration's prevResult; nil where there is none.
func (c Config) Previous() (*types100.Result, error) {
	if len(c.PrevResult) == 0 || string(c.PrevResult) == "null" {
		return nil, nil
	}
	// Before 1.0.0 a result need not say its version, which is then the configuration's.
	previous, err := version.NewResult(c.CNIVersion, withVersion(c.PrevResult, c.CNIVersion))
	if err != nil {
		return nil, Undecodable.Errorf("prevResult: %v", err)
	}
	r, err := types100.NewResultFromResult(previous)
	if err != nil {
		return nil, Undecodable.Errorf("prevResult: %v", err)
	}
	return r, nil
}

func withVersion(raw json.RawMessage, version string) []byte {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil || fields == nil {
		return raw // refused by who reads it
	}
	fields["cniVersion"], _ = json.Marshal(version)
	data, _ := json.Marshal(fields)
	return data
}

// EncodeVersions is the answer to VERSION: the versions there are, in the words of one of them.
func EncodeVersions(asked string) []byte {
	data, _ := json.Marshal(struct {
		CNIVersion string   `json:"cniVersion"`
		Supported  []string `json:"supportedVersions"`
	}{asked, Versions}) // cannot fail: texts
	return append(data, '\n')
}
