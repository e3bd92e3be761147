// Package valid refuses what the contract of package sdn refuses whatever the SDN: names,
// tags, addresses, routes and ranges that make no sense.
//
// It owns those checks, so that every provider names the same field in the same words. It
// must not ask an SDN, nor know any: what one of them alone cannot carry is that
// provider's to refuse.
package valid

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kuryr/kuryr/sdn"
)

// MaxText is the longest name, description, tag, project or device in bytes, as in Neutron.
const MaxText = 255

// Text refuses what no SDN carries as a name, a description, a project or a device.
func Text(noun, field, s string) error {
	switch {
	case len(s) > MaxText:
		return sdn.Invalid(noun, field, "is %d bytes long; at most %d fit", len(s), MaxText)
	case !utf8.ValidString(s):
		return sdn.Invalid(noun, field, "must be UTF-8")
	case strings.ContainsRune(s, 0):
		return sdn.Invalid(noun, field, "must not hold a zero byte")
	}
	return nil
}

// Patch refuses what of a Patch cannot be carried.
func Patch(noun string, p sdn.Patch) error {
	if p.Key != nil {
		if err := p.Key.Validate(); err != nil {
			return err
		}
	}
	for _, f := range []struct {
		field string
		value *string
	}{{"name", p.Name}, {"description", p.Description}} {
		if f.value == nil {
			continue
		}
		if err := Text(noun, f.field, *f.value); err != nil {
			return err
		}
	}
	if p.Tags != nil {
		return Tags(noun, *p.Tags)
	}
	return nil
}

// Base refuses what of a spec's Base cannot be carried.
func Base(noun string, b sdn.Base) error {
	if err := b.Key.Validate(); err != nil {
		return err
	}
	if !b.Key.IsZero() && b.Description != "" {
		return sdn.Invalid(noun, "description", "must be empty for an object with a key")
	}
	for _, f := range []struct{ field, value string }{
		{"name", b.Name}, {"description", b.Description}, {"project", b.Project},
	} {
		if err := Text(noun, f.field, f.value); err != nil {
			return err
		}
	}
	return Tags(noun, b.Tags)
}

// Tags refuses what cannot be a tag.
func Tags(noun string, tags []string) error {
	for _, tag := range tags {
		if tag == "" {
			return sdn.Invalid(noun, "tags", "must not be empty")
		}
		if strings.Contains(tag, ",") {
			return sdn.Invalid(noun, "tags", "%q has a comma, which separates tags", tag)
		}
		if err := Text(noun, "tags", tag); err != nil {
			return err
		}
	}
	return nil
}

// TagSet is tags without repetitions, in order.
func TagSet(tags []string) []string {
	set := slices.Clone(tags)
	slices.Sort(set)
	return slices.Compact(set)
}

// Addr refuses what is no plain address.
func Addr(noun, field string, a netip.Addr) error {
	switch {
	case !a.IsValid():
		return sdn.Invalid(noun, field, "is no address")
	case a.Is4In6():
		return sdn.Invalid(noun, field, "%v is an IPv4 address in IPv6 form; write it as IPv4", a)
	case a.Zone() != "":
		return sdn.Invalid(noun, field, "%v must not have a zone", a)
	}
	return nil
}

// Prefix refuses what is no plain prefix, or has bits beyond its length.
func Prefix(noun, field string, p netip.Prefix) error {
	if !p.IsValid() {
		return sdn.Invalid(noun, field, "is no prefix")
	}
	if err := Addr(noun, field, p.Addr()); err != nil {
		return err
	}
	if p != p.Masked() {
		return sdn.Invalid(noun, field, "%v has bits beyond its length; did you mean %v?", p, p.Masked())
	}
	return nil
}

// Routes wants routes whose next hop is of the family of their destination; an
// unspecified next hop is on the link.
func Routes(noun, field string, routes []sdn.HostRoute) error {
	for i, r := range routes {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := Prefix(noun, at+".destination", r.Destination); err != nil {
			return err
		}
		if err := Addr(noun, at+".next_hop", r.NextHop); err != nil {
			return err
		}
		if r.NextHop.BitLen() != r.Destination.Addr().BitLen() {
			return sdn.Invalid(noun, at+".next_hop", "%v is not of the family of %v", r.NextHop, r.Destination)
		}
		if r.NextHop.IsMulticast() || r.NextHop.IsLoopback() {
			return sdn.Invalid(noun, at+".next_hop", "%v is no host on a link", r.NextHop)
		}
	}
	return nil
}

// RouteFamily wants the routes of a subnet to be of its family: no port that is on it
// alone could use others.
func RouteFamily(cidr netip.Prefix, routes []sdn.HostRoute) error {
	for i, r := range routes {
		if r.Destination.Addr().BitLen() != cidr.Addr().BitLen() {
			return sdn.Invalid(
				"subnet", fmt.Sprintf("host_routes[%d].destination", i), "%v is not of the family of %v",
				r.Destination, cidr,
			)
		}
	}
	return nil
}

// Ranges wants ranges inside cidr that do not overlap one another.
func Ranges(cidr netip.Prefix, ranges []sdn.AddressRange) error {
	for i, r := range ranges {
		field := fmt.Sprintf("ranges[%d]", i)
		if !cidr.Contains(r.First) || !cidr.Contains(r.Last) {
			return sdn.Invalid("subnet", field, "%v-%v is not inside %v", r.First, r.Last, cidr)
		}
		if r.Last.Less(r.First) {
			return sdn.Invalid("subnet", field, "%v-%v ends before it begins", r.First, r.Last)
		}
		for _, other := range ranges[:i] {
			if !other.Last.Less(r.First) && !r.Last.Less(other.First) {
				return sdn.Invalid("subnet", field, "%v-%v overlaps %v-%v", r.First, r.Last, other.First, other.Last)
			}
		}
	}
	return nil
}

// MaxVLAN is the last VLAN there is (IEEE 802.1Q); the first is 1.
const MaxVLAN = 4094

// Subports wants VLANs that exist, 0 for one that the SDN chooses, and each port and
// each VLAN once.
func Subports(subports []sdn.Subport) error {
	ports, vlans := map[sdn.ID]bool{}, map[int]bool{}
	for i, s := range subports {
		switch field := fmt.Sprintf("subports[%d]", i); {
		case s.VLAN < 0 || s.VLAN > MaxVLAN:
			return sdn.Invalid("trunk", field+".vlan", "must be from 1 to %d, not %d", MaxVLAN, s.VLAN)
		case ports[s.Port]:
			return sdn.Invalid("trunk", field+".port", "%s is there twice", s.Port)
		case s.VLAN != 0 && vlans[s.VLAN]:
			return sdn.Invalid("trunk", field+".vlan", "%d is there twice", s.VLAN)
		}
		ports[s.Port], vlans[s.VLAN] = true, true
	}
	return nil
}
