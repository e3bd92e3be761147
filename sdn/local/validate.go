package local

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kuryr/kuryr/sdn"
)

// maxText is the longest name, description, tag, project or device in bytes, as in Neutron.
const maxText = 255

func contains[T comparable](list []T, v T) bool { return slices.Contains(list, v) }

func checkText(noun, field, s string) error {
	switch {
	case len(s) > maxText:
		return sdn.Invalid(noun, field, "is %d bytes long; at most %d fit", len(s), maxText)
	case !utf8.ValidString(s):
		return sdn.Invalid(noun, field, "must be UTF-8")
	case strings.ContainsRune(s, 0):
		return sdn.Invalid(noun, field, "must not hold a zero byte")
	}
	return nil
}

func checkBase(noun string, b sdn.Base) error {
	if err := b.Key.Validate(); err != nil {
		return err
	}
	if !b.Key.IsZero() && b.Description != "" {
		return sdn.Invalid(noun, "description", "must be empty for an object with a key")
	}
	for _, f := range []struct{ field, value string }{{"name", b.Name}, {"description", b.Description}, {"project", b.Project}} {
		if err := checkText(noun, f.field, f.value); err != nil {
			return err
		}
	}
	return checkTags(noun, b.Tags)
}

func checkTags(noun string, tags []string) error {
	for _, tag := range tags {
		if tag == "" {
			return sdn.Invalid(noun, "tags", "must not be empty")
		}
		if strings.Contains(tag, ",") {
			return sdn.Invalid(noun, "tags", "%q has a comma, which separates tags", tag)
		}
		if err := checkText(noun, "tags", tag); err != nil {
			return err
		}
	}
	return nil
}

// tagSet is tags without repetitions, in order.
func tagSet(tags []string) []string {
	set := slices.Clone(tags)
	slices.Sort(set)
	return slices.Compact(set)
}

func checkPatch(noun string, p sdn.Patch) error {
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
		if err := checkText(noun, f.field, *f.value); err != nil {
			return err
		}
	}
	if p.Tags != nil {
		return checkTags(noun, *p.Tags)
	}
	return nil
}

// lacking refuses a field that asks for what the embedded SDN has not.
func lacking(noun, field string, asked bool, what string) error {
	if !asked {
		return nil
	}
	return &sdn.Error{Kind: sdn.KindUnsupported, Noun: noun, Field: field, Detail: "this SDN " + what}
}

// checkDisabled refuses to switch something off.
func checkDisabled(noun string, disabled *bool) error {
	return lacking(noun, "disabled", disabled != nil && *disabled, "cannot switch things off")
}

// newMeta begins an object.
func newMeta(b sdn.Base) sdn.Meta {
	b.Tags = tagSet(b.Tags)
	return sdn.Meta{ID: newID(), Base: b}
}

// adopt compares what a spec says of an existing object with what is there, and tells whether anything mutable was changed.
func adopt(noun string, m *sdn.Meta, b sdn.Base) (changed bool, err error) {
	if b.Project != "" && b.Project != m.Project {
		return false, immutable(noun, m.ID, "project", m.Project, b.Project)
	}
	changed = set(&m.Name, b.Name)
	if tags := tagSet(b.Tags); b.Tags != nil && !slices.Equal(tags, m.Tags) {
		m.Tags, changed = tags, true
	}
	return changed, nil
}

// patch applies what every object's patch has.
func (t table[T, R]) patch(tx *tx, m *sdn.Meta, p sdn.Patch) error {
	if p.IfRevision != 0 && p.IfRevision != m.Revision {
		return stale(t.title, m)
	}
	if p.Name != nil {
		m.Name = *p.Name
	}
	if p.Description != nil {
		m.Description = *p.Description
	}
	if p.Key != nil && *p.Key != m.Key {
		if !m.Key.IsZero() {
			return immutable(t.title, m.ID, "key", m.Key, *p.Key)
		}
		if t.id(tx.Tx, "key", p.Key.String()) != "" {
			return sdn.Conflict(sdn.Exists, t.title, "key", "%v is another's", *p.Key)
		}
		m.Key = *p.Key
	}
	if !m.Key.IsZero() && m.Description != "" {
		return sdn.Invalid(t.title, "description", "must be empty for an object with a key")
	}
	if p.Tags != nil {
		m.Tags = tagSet(*p.Tags)
	}
	return nil
}

func stale(noun string, m *sdn.Meta) error {
	return &sdn.Error{Kind: sdn.KindConflict, Reason: sdn.Stale, Noun: noun, ID: string(m.ID), Detail: fmt.Sprintf("it is at revision %d", m.Revision)}
}

func immutable(noun string, id sdn.ID, field string, have, want any) error {
	return &sdn.Error{Kind: sdn.KindConflict, Reason: sdn.Immutable, Noun: noun, ID: string(id), Field: field, Detail: fmt.Sprintf("is %v and cannot become %v", have, want)}
}

// set gives a field the value that a spec asks for; the zero value asks for nothing.
func set[T comparable](field *T, want T) bool {
	var zero T
	if want == zero || *field == want {
		return false
	}
	*field = want
	return true
}

// setList is set for lists, of which nil asks for nothing.
func setList[T comparable](field *[]T, want []T) bool {
	if want == nil || slices.Equal(*field, want) {
		return false
	}
	*field = want
	return true
}

// inUse makes the conflict that something else depends on an object.
func inUse(noun string, id sdn.ID, detail string, args ...any) error {
	return &sdn.Error{Kind: sdn.KindConflict, Reason: sdn.InUse, Noun: noun, ID: string(id), Detail: fmt.Sprintf(detail, args...)}
}

// builtIn makes the refusal to change what the SDN made for itself.
func builtIn(noun string, id sdn.ID) error {
	return &sdn.Error{Kind: sdn.KindDenied, Noun: noun, ID: string(id), Detail: "is built in and cannot be changed or deleted"}
}

func family(a netip.Addr) int { return a.BitLen() }

// checkAddr refuses what is no plain unicast address.
func checkAddr(noun, field string, a netip.Addr) error {
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

func checkPrefix(noun, field string, p netip.Prefix) error {
	if !p.IsValid() {
		return sdn.Invalid(noun, field, "is no prefix")
	}
	if err := checkAddr(noun, field, p.Addr()); err != nil {
		return err
	}
	if p != p.Masked() {
		return sdn.Invalid(noun, field, "%v has bits beyond its length; did you mean %v?", p, p.Masked())
	}
	return nil
}

func checkMAC(noun string, mac net.HardwareAddr) error {
	if mac == nil {
		return nil
	}
	if len(mac) != 6 || mac[0]&1 != 0 || slices.Equal(mac, make(net.HardwareAddr, 6)) {
		return sdn.Invalid(noun, "mac", "%v is no unicast address of 6 bytes", mac)
	}
	return nil
}

func checkRoutes(noun, field string, routes []sdn.HostRoute) error {
	for i, r := range routes {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := checkPrefix(noun, at+".destination", r.Destination); err != nil {
			return err
		}
		if err := checkAddr(noun, at+".next_hop", r.NextHop); err != nil {
			return err
		}
		if family(r.NextHop) != family(r.Destination.Addr()) {
			return sdn.Invalid(noun, at+".next_hop", "%v is not of the family of %v", r.NextHop, r.Destination)
		}
	}
	return nil
}

// checkRanges wants ranges inside cidr that are in order and do not overlap one another.
func checkRanges(cidr netip.Prefix, ranges []sdn.AddressRange) error {
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
