// Package topology draws what an SDN holds: routers, their networks, the ports on these
// and the containers behind them, as a tree for the terminal, as an SVG picture, for
// Graphviz, and as values for programs.
//
// It is given the objects as the API shows them and asks no server. The same objects give
// the same drawing to the byte.
package topology

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/cmd/kuryr/internal/api"
	"github.com/kuryr/kuryr/cmd/kuryr/internal/table"
	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// Objects are what is drawn.
type Objects struct {
	Host        string // where the SDN is
	Networks    []api.Network
	Subnets     []api.Subnet
	Ports       []api.Port
	Routers     []api.Router
	FloatingIPs []api.FloatingIP
	Forwards    map[string][]api.PortForwarding // by floating IP
	Names       Names
	Pods        map[string]string // namespace/name by port
}

// Names are what the Docker engine calls things.
type Names struct {
	Endpoints map[string]string // containers' names by endpoint id
	Networks  map[string]string // names by network id
}

// Graph is what a drawing shows, in its order.
type Graph struct {
	Host     string    `json:"host"`
	Routers  []Router  `json:"routers"`
	Networks []Network `json:"networks"` // those on no router
}

// Router is a router with its networks.
type Router struct {
	Name     string    `json:"name"`
	Uplink   []string  `json:"uplink"` // addresses outside; none: no way out
	SNAT     bool      `json:"snat"`
	Notes    []string  `json:"notes"` // what does not work, and why
	Networks []Network `json:"networks"`
}

// Network is a network with its ports.
type Network struct {
	ID     string  `json:"id"`
	Name   string  `json:"name"`
	MTU    int     `json:"mtu"`
	Ranges []Range `json:"ranges"`
	Ports  []Port  `json:"ports"`
}

// Range is a subnet.
type Range struct {
	CIDR    string `json:"cidr"`
	Gateway string `json:"gateway,omitempty"` // "": none
}

// Port is a port.
type Port struct {
	ID        string   `json:"id"`
	Name      string   `json:"name"` // of the container, or other known text
	Plugged   bool     `json:"plugged"`
	MAC       string   `json:"mac"`
	Addresses []string `json:"addresses"`
	Published []string `json:"published"` // "8080→80/tcp", "203.0.113.5"
}

// Build puts the objects in their places. Ports of the SDN's own (routers' interfaces, floating
// IPs) are not shown, external networks only as uplinks.
func Build(o Objects) Graph {
	b := builder{
		o: o, subnets: map[string]api.Subnet{}, networks: map[string]*Network{},
		published: map[string][]string{},
	}
	for _, s := range o.Subnets {
		b.subnets[s.ID] = s
	}
	b.publish()
	b.addNetworks()
	g := Graph{Host: o.Host, Routers: []Router{}, Networks: []Network{}}
	routed := map[string]bool{}
	routers := sortslice.Sorted(o.Routers, func(x, y api.Router) int {
		nx, ny := cmp.Or(b.routerName(x), x.Name), cmp.Or(b.routerName(y), y.Name)
		return cmp.Or(table.CompareNatural(nx, ny), strings.Compare(x.ID, y.ID))
	})
	for _, r := range routers {
		router := Router{
			Name:   cmp.Or(b.routerName(r), r.Name, short(r.ID)),
			Uplink: []string{}, Notes: []string{}, Networks: []Network{},
		}
		if r.Gateway != nil {
			router.SNAT = r.Gateway.EnableSNAT
			for _, a := range r.Gateway.FixedIPs {
				router.Uplink = append(router.Uplink, a.IPAddress)
			}
			if len(router.Uplink) == 0 {
				router.Uplink = []string{"outside"}
			}
		}
		for _, u := range r.Unreached {
			note := u.Prefix + " is not reached from the host: " + u.Reason
			if others := b.overlapping(r, u.Prefix); len(others) > 0 {
				note += " (of " + strings.Join(others, ", ") + ")"
			}
			router.Notes = append(router.Notes, note)
		}
		for _, leg := range r.Interfaces {
			id := b.subnets[leg.SubnetID].NetworkID
			if n := b.networks[id]; n != nil && !routed[id] {
				routed[id] = true
				router.Networks = append(router.Networks, *n)
			}
		}
		sortNetworks(router.Networks)
		g.Routers = append(g.Routers, router)
	}
	for id, n := range b.networks {
		if !routed[id] {
			g.Networks = append(g.Networks, *n)
		}
	}
	sortNetworks(g.Networks)
	return g
}

type builder struct {
	o         Objects
	subnets   map[string]api.Subnet
	networks  map[string]*Network // by id, but external ones
	published map[string][]string // by port
}

func (b *builder) addNetworks() {
	for _, n := range b.o.Networks {
		if n.External {
			continue
		}
		network := &Network{
			ID: n.ID, Name: cmp.Or(b.dockerName(n), n.Name, short(n.ID)), MTU: n.MTU,
			Ranges: []Range{}, Ports: []Port{},
		}
		for _, id := range n.Subnets {
			if s, ok := b.subnets[id]; ok {
				network.Ranges = append(network.Ranges, Range{CIDR: s.CIDR, Gateway: api.Value(s.GatewayIP)})
			}
		}
		sortslice.Func(network.Ranges, func(x, y Range) int { return compareAddresses(x.CIDR, y.CIDR) })
		b.networks[n.ID] = network
	}
	for _, p := range sorted(b.o.Ports, func(p api.Port) string { return p.ID }) {
		n := b.networks[p.NetworkID]
		if n == nil || strings.HasPrefix(p.DeviceOwner, "network:") {
			continue
		}
		port := Port{
			ID: p.ID, Name: b.portName(p), Plugged: p.DeviceID != "", MAC: p.MACAddress,
			Addresses: []string{}, Published: b.published[p.ID],
		}
		if port.Published == nil {
			port.Published = []string{}
		}
		for _, a := range p.FixedIPs {
			port.Addresses = append(port.Addresses, a.IPAddress)
		}
		slices.SortFunc(port.Addresses, compareAddresses)
		n.Ports = append(n.Ports, port)
	}
	for _, n := range b.networks {
		sortslice.Stable(n.Ports, func(x, y Port) int { return compareAddresses(first(x.Addresses), first(y.Addresses)) })
	}
}

// Places returns what users call routers, and networks on no router, by id.
func Places(o Objects) map[string]string {
	b := builder{o: o}
	out := map[string]string{}
	for _, n := range o.Networks {
		out[n.ID] = "network " + cmp.Or(b.dockerName(n), n.Name, short(n.ID))
	}
	for _, r := range o.Routers {
		out[r.ID] = "router " + cmp.Or(b.routerName(r), r.Name, short(r.ID))
	}
	return out
}

// Unreached returns, by network, the ranges that the host does not reach, and why.
func Unreached(o Objects) map[string][]string {
	b := builder{o: o, subnets: map[string]api.Subnet{}}
	for _, s := range o.Subnets {
		b.subnets[s.ID] = s
	}
	out := map[string][]string{}
	for _, r := range o.Routers {
		for _, u := range r.Unreached {
			if u.Reason == sdn.UnreachedProject { // on purpose
				continue
			}
			reason := u.Reason
			if others := b.overlapping(r, u.Prefix); len(others) > 0 {
				reason = "overlaps network " + strings.Join(others, ", ")
			}
			for _, leg := range r.Interfaces {
				if s := b.subnets[leg.SubnetID]; s.CIDR == u.Prefix {
					out[s.NetworkID] = append(out[s.NetworkID], u.Prefix+" not reached by the host: "+reason)
				}
			}
		}
	}
	return out
}

// overlapping returns the names of networks, on other routers than r, with a range that
// overlaps prefix.
func (b *builder) overlapping(r api.Router, prefix string) (names []string) {
	this, err := netip.ParsePrefix(prefix)
	if err != nil {
		return nil
	}
	own := map[string]bool{}
	for _, leg := range r.Interfaces {
		own[b.subnets[leg.SubnetID].NetworkID] = true
	}
	for _, n := range b.o.Networks {
		for _, id := range n.Subnets {
			other, err := netip.ParsePrefix(b.subnets[id].CIDR)
			if err == nil && !own[n.ID] && other.Overlaps(this) {
				names = append(names, cmp.Or(b.dockerName(n), n.Name, short(n.ID)))
			}
		}
	}
	slices.SortFunc(names, table.CompareNatural)
	return slices.Compact(names)
}

// dockerName is what Docker calls the network, "" if that is not known.
func (b *builder) dockerName(n api.Network) string {
	if key := n.Key(); key.Kind == "docker-network" {
		return b.o.Names.Networks[key.Name]
	}
	return ""
}

// routerName is what users know a router by: the name they gave a shared one, or the
// network that has one of its own.
func (b *builder) routerName(r api.Router) string {
	switch key := r.Key(); key.Kind {
	case "docker-router":
		if name := b.o.Names.Networks[key.Name]; name != "" {
			return "of " + name
		}
	case "docker-shared-router":
		return key.Name
	}
	return ""
}

func (b *builder) portName(p api.Port) string {
	if name := cmp.Or(b.o.Names.Endpoints[p.DeviceID], b.o.Pods[p.ID]); name != "" {
		return name
	}
	if p.DeviceID != "" {
		return "endpoint " + short(p.DeviceID)
	}
	return "free port " + short(p.ID)
}

// publish collects what leads to each port from outside.
func (b *builder) publish() {
	for _, f := range sorted(
		b.o.FloatingIPs, func(f api.FloatingIP) string { return f.FloatingIPAddress + "\x00" + f.ID },
	) {
		at := f.FloatingIPAddress
		if f.PortID != nil {
			b.published[*f.PortID] = append(b.published[*f.PortID], at)
		}
		prefix := ""
		if addr, err := netip.ParseAddr(at); err == nil && !addr.IsUnspecified() {
			prefix = netip.AddrPortFrom(addr, 0).String()
			prefix = strings.TrimSuffix(prefix, "0")
		}
		for _, pf := range sorted(b.o.Forwards[f.ID], portOrder) {
			text := prefix + Forward(pf)
			if !slices.Contains(b.published[pf.InternalPortID], text) { // one for each family
				b.published[pf.InternalPortID] = append(b.published[pf.InternalPortID], text)
			}
		}
	}
}

// Forward is a port forwarding in short, such as "8080→80/tcp".
func Forward(f api.PortForwarding) string {
	return ports(f.ExternalPort, f.ExternalPortRange) + "→" + ports(f.InternalPort, f.InternalPortRange) + "/" + f.Protocol
}

// portOrder sorts by protocol and number: no port has more than five digits.
func portOrder(f api.PortForwarding) string {
	from, _, _ := strings.Cut(ports(f.ExternalPort, f.ExternalPortRange), "-")
	return fmt.Sprintf("%s %5s", f.Protocol, from)
}

func ports(one *uint16, several string) string {
	if one != nil {
		return strconv.Itoa(int(*one))
	}
	return strings.ReplaceAll(several, ":", "-")
}

func sortNetworks(all []Network) {
	sortslice.Func(all, func(x, y Network) int {
		return cmp.Or(table.CompareNatural(x.Name, y.Name), strings.Compare(x.ID, y.ID))
	})
}

func sorted[T any](all []T, by func(T) string) []T {
	return sortslice.Sorted(all, func(x, y T) int { return strings.Compare(by(x), by(y)) })
}

// compareAddresses orders addresses, or ranges, by number, IPv4 first.
func compareAddresses(x, y string) int {
	ax, ex := netip.ParseAddr(strings.SplitN(x, "/", 2)[0])
	ay, ey := netip.ParseAddr(strings.SplitN(y, "/", 2)[0])
	if ex != nil || ey != nil {
		return strings.Compare(x, y)
	}
	return cmp.Or(ax.Compare(ay), strings.Compare(x, y))
}

func first(s []string) string {
	if len(s) == 0 {
		return ""
	}
	return s[0]
}

func short(id string) string { return id[:min(len(id), 12)] }
