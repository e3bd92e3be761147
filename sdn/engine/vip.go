package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/sdn"
)

// A VIP is a port of the SDN's own that is never plugged: so no other port gets its address, its
// network cannot be deleted, and floating IPs lead to it. Unlike others of the SDN's own it counts
// against its project's quota of ports, as with Octavia.

// vipDevice is the device id of a load balancer's VIPs, as Octavia writes it.
func vipDevice(id sdn.ID) string { return vipDevicePrefix + string(id) }

const vipDevicePrefix = "lb-"

// Balancer is the load balancer that a port holds a VIP of; "" where it does not.
func (r *PortRow) Balancer() sdn.ID {
	if !r.Own || r.DeviceOwner != sdn.OwnerLoadBalancer {
		return ""
	}
	return sdn.ID(strings.TrimPrefix(r.DeviceID, vipDevicePrefix))
}

// setVIPs makes r's VIPs be those asked for, and tells whether they are others. nil is those that it has.
func (t *tx) setVIPs(r *LoadBalancerRow, asked []sdn.VIP) (changed bool, err error) {
	if asked == nil {
		return false, nil
	}
	var vips []sdn.VIP
	for i, want := range asked {
		field := fmt.Sprintf("vips[%d]", i)
		v, err := t.vipFor(r, want, field)
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(vips, func(o sdn.VIP) bool { return family(o.Addr) == family(v.Addr) }) {
			return false, sdn.Invalid(loadBalancer, field, "is of the family of another VIP")
		}
		changed = changed || !slices.Contains(r.VIPs, v)
		vips = append(vips, v)
	}
	for _, v := range r.VIPs {
		if !slices.Contains(vips, v) {
			changed = true
			if err := t.dropVIP(v); err != nil {
				return false, err
			}
		}
	}
	sortslice.Func(vips, func(a, b sdn.VIP) int { return family(a.Addr) - family(b.Addr) })
	r.VIPs = vips
	return changed, nil
}

// vipFor is the VIP that is there of the family asked for, or a new one.
func (t *tx) vipFor(r *LoadBalancerRow, want sdn.VIP, field string) (sdn.VIP, error) {
	for _, v := range r.VIPs {
		if v.Subnet == want.Subnet || v.Addr == want.Addr {
			switch {
			case want.Subnet != "" && v.Subnet != want.Subnet:
				return v, immutable(loadBalancer, r.ID, field+".subnet", v.Subnet, want.Subnet)
			case want.Addr.IsValid() && v.Addr != want.Addr:
				return v, immutable(loadBalancer, r.ID, field+".addr", v.Addr, want.Addr)
			}
			return v, nil
		}
	}
	if want.Subnet == "" {
		return want, sdn.Invalid(loadBalancer, field+".subnet", "is missing")
	}
	s, err := Subnets.Need(t.Tx, want.Subnet)
	if err != nil {
		return want, err
	}
	for _, v := range r.VIPs {
		if family(v.Addr) == family(s.CIDR.Addr()) {
			return v, immutable(loadBalancer, r.ID, field+".subnet", v.Subnet, want.Subnet)
		}
	}
	return t.makeVIP(r, s, want, field)
}

func (t *tx) makeVIP(r *LoadBalancerRow, s *subnetRow, want sdn.VIP, field string) (sdn.VIP, error) {
	if want.Addr.IsValid() && !s.CIDR.Contains(want.Addr) {
		return want, sdn.Invalid(loadBalancer, field+".addr", "%v is not inside %v", want.Addr, s.CIDR)
	}
	n, err := Networks.Need(t.Tx, s.Network)
	if err != nil {
		return want, err
	}
	if err := lacking(loadBalancer, field+".subnet", n.External, "has VIPs on networks of its own only; a floating IP leads to one from the outside"); err != nil {
		return want, err
	}
	if want.Addr == s.Gateway && want.Addr.IsValid() {
		return want, sdn.Conflict(sdn.AddressInUse, loadBalancer, field+".addr", "%v is the gateway of its subnet", want.Addr)
	}
	port, err := t.ownPort(n, sdn.OwnerLoadBalancer, sdn.ID(vipDevice(r.ID)), []sdn.Address{{Subnet: s.ID, Addr: want.Addr}}, r.Project)
	if err != nil {
		return want, ofVIP(err, field)
	}
	return sdn.VIP{Subnet: s.ID, Addr: port.Addresses[0].Addr, Port: port.ID}, nil
}

// ofVIP has an error about the address of the port be one about the VIP's.
func ofVIP(err error, field string) error {
	var e *sdn.Error
	if !errors.As(err, &e) || e.Field == "" {
		return err
	}
	of := *e
	of.Noun, of.Field = loadBalancer, field+".addr"
	return &of
}

// checkNoVIP refuses to forward to a VIP: a packet is translated once. A floating IP that is the
// VIP's own leads to its listeners.
func (t *tx) checkNoVIP(port sdn.ID, field string) error {
	r, err := Ports.Need(t.Tx, port)
	if err == nil && r.Balancer() != "" {
		err = &sdn.Error{Kind: sdn.KindUnsupported, Noun: "port forwarding", Field: field + ".target", Detail: "the port is a load balancer's VIP, to which a whole floating IP can lead"}
	}
	return err
}

// dropVIP gives the address of a VIP back; its floating IPs lead nowhere from then on.
func (t *tx) dropVIP(v sdn.VIP) error {
	fips, err := FloatingIPs.All(t.Tx, "port", string(v.Port))
	if err != nil {
		return err
	}
	for _, f := range fips {
		dissociate(f)
		if err := FloatingIPs.put(t, f); err != nil {
			return err
		}
	}
	return t.dropOwnPort(v.Port)
}
