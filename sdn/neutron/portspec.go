package neutron

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/kuryr/kuryr/internal/sortslice"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// checkSpec refuses what Neutron would accept without a meaning, and what it would refuse
// without a field.
func checkSpec(spec sdn.PortSpec) error {
	if err := valid.Base("port", spec.Base); err != nil {
		return err
	}
	switch {
	case spec.WithoutAddresses && spec.Addresses != nil:
		return sdn.Invalid("port", "addresses", "must be nil for a port without addresses")
	case spec.WithoutGroups && spec.Groups != nil:
		return sdn.Invalid("port", "groups", "must be nil for a port without groups")
	}
	return checkPortPatch(specPatch(spec))
}

// checkPortPatch is checkSpec for a change.
func checkPortPatch(c sdn.PortPatch) error {
	for _, f := range []struct {
		field string
		value *string
	}{{"device_id", c.DeviceID}, {"device_owner", c.DeviceOwner}, {"host", c.Host}} {
		if f.value != nil {
			if err := valid.Text("port", f.field, *f.value); err != nil {
				return err
			}
		}
	}
	if err := checkMAC("mac", c.MAC); err != nil {
		return err
	}
	if c.AllowedPairs != nil {
		for i, pair := range *c.AllowedPairs {
			field := fmt.Sprintf("allowed_pairs[%d]", i)
			if !pair.Prefix.IsValid() {
				return sdn.Invalid("port", field, "%v is not a prefix", pair.Prefix)
			}
			if err := checkMAC(field, pair.MAC); err != nil {
				return err
			}
		}
	}
	if c.Addresses == nil {
		return nil
	}
	for i, a := range *c.Addresses {
		switch {
		case !a.Addr.IsValid() && a.Subnet == "":
			return sdn.Invalid("port", fmt.Sprintf("addresses[%d]", i), "names neither an address nor a subnet")
		case a.Addr.IsValid() && slices.ContainsFunc((*c.Addresses)[:i], func(b sdn.Address) bool { return a.Addr == b.Addr }):
			return sdn.Invalid("port", fmt.Sprintf("addresses[%d]", i), "%v is there twice", a.Addr)
		}
	}
	return nil
}

func checkMAC(field string, mac net.HardwareAddr) error {
	if mac != nil && (len(mac) != 6 || mac[0]&1 != 0 || slices.Equal(mac, make(net.HardwareAddr, 6))) {
		return sdn.Invalid("port", field, "%v is no unicast address of 6 bytes", mac)
	}
	return nil
}

// checkAddresses refuses an address outside of its subnet, which is mostly in the cache.
// Neutron checks the rest.
func (p *Provider) checkAddresses(ctx context.Context, asked []sdn.Address) error {
	for i, a := range asked {
		if a.Subnet == "" || !a.Addr.IsValid() {
			continue
		}
		s, err := p.Subnet(ctx, a.Subnet)
		if err != nil {
			return err
		}
		if !s.CIDR.Contains(a.Addr) {
			return sdn.Invalid("port", fmt.Sprintf("addresses[%d]", i), "%v is not in %v", a.Addr, s.CIDR)
		}
	}
	return nil
}

// subnetsOf returns the subnets of a network, from the cache if all are there.
func (p *Provider) subnetsOf(ctx context.Context, network sdn.ID) ([]sdn.Subnet, error) {
	q := sdn.SubnetQuery{Networks: []sdn.ID{network}}
	if w, ok := p.cache.networks.get(network); ok {
		if len(w.Subnets) == 0 {
			return nil, nil
		}
		for _, id := range w.Subnets {
			q.IDs = append(q.IDs, sdn.ID(id))
		}
	}
	return sdn.All(p.FindSubnets(ctx, q))
}

// chooses reports whether the caller chooses addresses, not only their subnets.
func chooses(asked []sdn.Address) bool {
	return slices.ContainsFunc(asked, func(a sdn.Address) bool { return a.Addr.IsValid() })
}

// specPatch returns what a spec says of a port, as a patch.
func specPatch(spec sdn.PortSpec) sdn.PortPatch {
	c := sdn.PortPatch{MAC: spec.MAC, NoPortSecurity: spec.NoPortSecurity}
	if spec.WithoutAddresses {
		c.Addresses = &[]sdn.Address{}
	} else if spec.Addresses != nil {
		c.Addresses = &spec.Addresses
	}
	if spec.WithoutGroups {
		c.Groups = &[]sdn.ID{}
	} else if spec.Groups != nil {
		c.Groups = &spec.Groups
	}
	c.DeviceID, c.DeviceOwner, c.Host = nonZero(spec.DeviceID), nonZero(spec.DeviceOwner), nonZero(spec.Host)
	c.QoSPolicy, c.Disabled = nonZero(spec.QoSPolicy), nonZero(spec.Disabled)
	if spec.Profile != nil {
		c.Profile = &spec.Profile
	}
	if spec.AllowedPairs != nil {
		c.AllowedPairs = &spec.AllowedPairs
	}
	return c
}

// difference returns the patch that makes a port what a spec says, and whether it changes
// anything.
func difference(port sdn.Port, spec sdn.PortSpec) (c sdn.PortPatch, differs bool, err error) {
	id := string(port.ID)
	switch {
	case spec.Network != port.Network:
		return c, false, immutable("port", id, "network", port.Network, spec.Network)
	case spec.Project != "" && spec.Project != port.Project:
		return c, false, immutable("port", id, "project", port.Project, spec.Project)
	case spec.VNICType != sdn.VNICNormal && spec.VNICType != port.VNICType:
		return c, false, immutable("port", id, "vnic_type", port.VNICType, spec.VNICType)
	}
	c = specPatch(spec)
	if slices.Equal(c.MAC, port.MAC) {
		c.MAC = nil
	}
	if c.Addresses != nil {
		whole, same := keep(port, *c.Addresses)
		if c.Addresses = &whole; same {
			c.Addresses = nil
		}
	}
	c.DeviceID = unless(c.DeviceID, port.DeviceID, is)
	c.DeviceOwner = unless(c.DeviceOwner, port.DeviceOwner, is)
	c.Host = unless(c.Host, port.Host, is)
	c.Profile = unless(c.Profile, port.Profile, sdn.SameProfile)
	c.Groups = unless(c.Groups, port.Groups, sameSet)
	c.NoPortSecurity = unless(c.NoPortSecurity, port.NoPortSecurity, is)
	c.AllowedPairs = unless(c.AllowedPairs, port.AllowedPairs, samePairs)
	c.QoSPolicy = unless(c.QoSPolicy, port.QoSPolicy, is)
	c.Disabled = unless(c.Disabled, port.Disabled, is)
	c.Name = unless(nonZero(spec.Name), port.Name, is)
	if spec.Tags != nil {
		c.Tags = unless(&spec.Tags, port.Tags, sameSet)
	}
	return c, c.Name != nil || c.Tags != nil || len(portBody(c)) > 0, nil
}

func samePairs(a, b []sdn.AllowedPair) bool {
	return slices.EqualFunc(a, b, func(x, y sdn.AllowedPair) bool { return x.Prefix == y.Prefix && slices.Equal(x.MAC, y.MAC) })
}

// keep returns the addresses that a port must have so that it has those asked for and
// keeps of them what it has. same is true if nothing differs. Addresses that Neutron
// makes of the MAC do not count.
func keep(port sdn.Port, asked []sdn.Address) (whole []sdn.Address, same bool) {
	left := slices.Clone(port.Addresses)
	take := func(fits func(sdn.Address) bool) (a sdn.Address, ok bool) {
		i := slices.IndexFunc(left, fits)
		if i < 0 {
			return a, false
		}
		a = left[i]
		left = slices.Delete(left, i, i+1)
		return a, true
	}
	same = true
	whole = make([]sdn.Address, len(asked))
	for i, want := range asked { // first those that are named, so that one without an address does not take theirs
		if !want.Addr.IsValid() {
			continue
		}
		has, ok := take(func(a sdn.Address) bool { return a.Addr == want.Addr && (want.Subnet == "" || want.Subnet == a.Subnet) })
		if whole[i] = has; !ok {
			whole[i], same = want, false
		}
	}
	for i, want := range asked {
		if want.Addr.IsValid() {
			continue
		}
		has, ok := take(func(a sdn.Address) bool { return a.Subnet == want.Subnet })
		if whole[i] = has; !ok {
			whole[i], same = want, false
		}
	}
	left = slices.DeleteFunc(left, func(a sdn.Address) bool { return ofMAC(a.Addr, port.MAC) })
	return whole, same && len(left) == 0
}

// ofMAC reports whether SLAAC makes an address of a MAC (RFC 4291, modified EUI-64).
func ofMAC(addr netip.Addr, mac net.HardwareAddr) bool {
	if !addr.Is6() || len(mac) != 6 {
		return false
	}
	b := addr.As16()
	return binary.BigEndian.Uint64(b[8:]) == binary.BigEndian.Uint64([]byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
}

// asAsked puts the addresses that were asked for first, in that order.
func asAsked(port sdn.Port, asked []sdn.Address) sdn.Port {
	if len(asked) < 2 {
		return port
	}
	rank := func(a sdn.Address) int {
		i := slices.IndexFunc(asked, func(want sdn.Address) bool {
			return want.Addr == a.Addr || !want.Addr.IsValid() && want.Subnet == a.Subnet
		})
		if i < 0 {
			return len(asked)
		}
		return i
	}
	port.Addresses = slices.Clone(port.Addresses)
	sortslice.Stable(port.Addresses, func(a, b sdn.Address) int { return rank(a) - rank(b) })
	return port
}

// portError names the contract's field in an error of a port's request.
func portError(err error, c sdn.PortPatch) error {
	var e *sdn.Error
	if !errors.As(err, &e) {
		return err
	}
	if e.Field == "addresses" && c.Addresses != nil {
		for i, a := range *c.Addresses {
			if len(*c.Addresses) == 1 || a.Addr.IsValid() && slices.Contains(strings.Fields(e.Detail), a.Addr.String()) {
				e.Field = fmt.Sprintf("addresses[%d]", i)
				break
			}
		}
	}
	if e.Kind == sdn.KindDenied && e.Field == "" {
		e.Field = forbidden(e.Detail, c)
	}
	return err
}

// restricted are the attributes of a port that Neutron's policy forbids a plain member,
// most of them only on networks of another project. The most restricted are first.
var restricted = []struct{ attribute, field string }{
	{"binding:host_id", "host"},
	{"binding:profile", "profile"},
	{"mac_address", "mac"},
	{"fixed_ips:ip_address", "addresses"},
	{"allowed_address_pairs", "allowed_pairs"},
	{"port_security_enabled", "no_port_security"},
	{"device_owner", "device_owner"},
	{"fixed_ips", "addresses"},
}

// forbidden returns the field that a refusal by policy is most probably about. Neutron
// names all the rules that the request had to meet ("(rule:create_port and
// rule:create_port:mac_address) is disallowed by policy"), not the one it failed.
func forbidden(detail string, c sdn.PortPatch) string {
	for _, r := range restricted {
		if !strings.Contains(detail, "_port:"+r.attribute) {
			continue
		}
		if r.field == "addresses" && c.Addresses != nil && len(*c.Addresses) == 1 {
			return "addresses[0]"
		}
		return r.field
	}
	return ""
}
