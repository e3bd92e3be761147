package neutronapi

import (
	"context"
	"errors"
	"iter"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// addressPair is a further source that a port may send as.
type addressPair struct {
	IPAddress  string `json:"ip_address"`
	MACAddress string `json:"mac_address"`
}

// normal is the VNIC type of a virtual interface.
const normal = "normal"

func (s *server) ports() tableOf[sdn.Port] {
	type N = sdn.Port
	type S = sdn.PortSpec
	type P = sdn.PortPatch
	t := &table{
		member: "port", collection: "ports", title: "port", noun: sdn.NounPort,
		meta: via(func(n *N) sdn.Meta { return n.Meta }), shows: neutronMeta, tags: true,
		base: via(func(x *S) *sdn.Base { return &x.Base }), patch: via(func(p *P) *sdn.Patch { return &p.Patch }),
		fields: []field{
			{name: "network_id", access: required | hookPost, show: via(func(n *N) any { return string(n.Network) })},
			{name: "mac_address", is: nullInPost(isMAC), show: via(func(n *N) any { return n.MAC.String() }),
				post: set(func(x *S) *net.HardwareAddr { return &x.MAC }),
				put:  set(func(p *P) *net.HardwareAddr { return &p.MAC })},
			{name: "fixed_ips", is: kindOf((*body).addresses), show: via(func(n *N) any { return encodeAddresses(n.Addresses) }),
				post: store(func(x *S, v any) {
					if x.Addresses = v.([]sdn.Address); len(x.Addresses) == 0 {
						x.Addresses, x.WithoutAddresses = nil, true
					}
				}),
				put: change(func(p *P) **[]sdn.Address { return &p.Addresses })},
			{name: "device_id", is: nullInPut(isText), show: via(func(n *N) any { return n.DeviceID }),
				post: set(func(x *S) *string { return &x.DeviceID }),
				put:  change(func(p *P) **string { return &p.DeviceID })},
			{name: "device_owner", is: nullInPut(isText), show: via(func(n *N) any { return n.DeviceOwner }),
				post: set(func(x *S) *string { return &x.DeviceOwner }),
				put:  change(func(p *P) **string { return &p.DeviceOwner })},
			{name: "binding:host_id", is: isOptional, access: adminSet | adminShow, show: via(func(n *N) any { return n.Host }),
				post: set(func(x *S) *string { return &x.Host }),
				put:  change(func(p *P) **string { return &p.Host })},
			{name: "binding:vnic_type", is: kindOf((*body).vnic), access: hookPut, show: via(showVNIC),
				taken: "any in POST, the present one in PUT", why: whyVNIC,
				post: set(func(x *S) *sdn.VNICType { return &x.VNICType })},
			{name: "binding:vif_type", access: adminShow, show: via(func(n *N) any { return n.VIF.Type })},
			{name: "binding:vif_details", access: adminShow, show: via(func(n *N) any { return n.VIF.Details })},
			{name: "binding:profile", access: adminSet | adminShow | hooked, show: via(func(n *N) any { return n.Profile })},
			{name: "security_groups", is: nullInPost(isIDs), show: via(func(n *N) any { return n.Groups }),
				post: store(func(x *S, v any) {
					x.Groups = v.([]sdn.ID)
					x.WithoutGroups = len(x.Groups) == 0
				}),
				put: change(func(p *P) **[]sdn.ID { return &p.Groups })},
			{name: "port_security_enabled", is: isBool, show: via(func(n *N) any { return !n.NoPortSecurity }),
				post: changeNot(func(x *S) **bool { return &x.NoPortSecurity }),
				put:  changeNot(func(p *P) **bool { return &p.NoPortSecurity })},
			{name: "allowed_address_pairs", is: kindOf((*body).pairs), show: via(showPairs),
				post: set(func(x *S) *[]sdn.AllowedPair { return &x.AllowedPairs }),
				put:  change(func(p *P) **[]sdn.AllowedPair { return &p.AllowedPairs })},
			{name: "trusted", access: adminSet | adminShow | hooked, show: via(showTrusted)},
			{name: "qos_policy_id", is: kindOf((*body).policy), show: via(func(n *N) any { return some(string(n.QoSPolicy)) }),
				post: set(func(x *S) *sdn.ID { return &x.QoSPolicy }),
				put:  change(func(p *P) **sdn.ID { return &p.QoSPolicy })},
			{name: "extra_dhcp_opts", is: isList, show: empty, why: "this SDN gives no DHCP options"},
			{name: "status", show: via(func(n *N) any { return string(n.Status) })},
			{name: "admin_state_up", is: isBool, show: via(func(n *N) any { return !n.Disabled }),
				post: setNot(func(x *S) *bool { return &x.Disabled }),
				put:  changeNot(func(p *P) **bool { return &p.Disabled })},
		},
		get: getCall{made[N], func(ctx context.Context, id sdn.ID) (any, error) { return pointer(s.p.Port(ctx, id)) }},
		find: func(ctx context.Context, f *filter) iter.Seq2[any, error] {
			return pointers(s.findPorts(ctx, portQuery(f)))
		},
		shared:     judged(func(c *call, n *N) (bool, error) { return c.ofNetwork(n.Network, false) }),
		canDelete:  judged(func(c *call, n *N) (bool, error) { return c.ofNetwork(n.Network, false) }),
		beforePost: hook(s.beforePort),
		checkPost:  hook(checkPort),
		beforePut:  hookOn(beforePortChange),
		checkPut:   hookOn(checkPortChange),
		create:     createCall{made[S], func(ctx context.Context, x any) (any, error) { return pointer(s.createPort(ctx, *x.(*S))) }},
		update: updateCall{made[P], func(ctx context.Context, id sdn.ID, p any) (any, error) {
			return pointer(s.p.UpdatePort(ctx, id, *p.(*P)))
		}},
		remove:   func(ctx context.Context, id sdn.ID) error { return s.removePort(ctx, id, 0) },
		removeIf: s.removePort,
	}
	if atomic, ok := s.p.(sdn.AtomicPorts); ok {
		t.createAll = bulk(atomic.EnsureAllPorts)
	}
	return tableOf[N]{t}
}

func showVNIC(p *sdn.Port) any {
	if p.VNICType == sdn.VNICNormal {
		return normal
	}
	return string(p.VNICType)
}

// showTrusted shows what the profile says; null if it says nothing.
func showTrusted(p *sdn.Port) any {
	if said, ok := p.Profile[sdn.ProfileTrusted]; ok {
		return sdn.ProfileText(said) == "true"
	}
	return nil
}

func showPairs(p *sdn.Port) any {
	if len(p.AllowedPairs) == 0 {
		return []string{}
	}
	pairs := make([]addressPair, len(p.AllowedPairs))
	for i, pair := range p.AllowedPairs {
		mac := pair.MAC
		if mac == nil {
			mac = p.MAC
		}
		address := pair.Prefix.String()
		if pair.Prefix.IsSingleIP() && !pair.Length {
			address = pair.Prefix.Addr().String()
		}
		pairs[i] = addressPair{IPAddress: address, MACAddress: mac.String()}
	}
	return pairs
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
