package neutronapi

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/kuryr/kuryr/sdn"
)

// mostAddresses is how many addresses a port may have on a network of another project, as
// with older releases of Neutron: no quota counts addresses.
const mostAddresses = 5

// mostPairs is how many allowed address pairs a port may have.
const mostPairs = 10

// beforePort finds the network, on which depends what the caller may say.
func (s *server) beforePort(_ *call, b *body, spec *sdn.PortSpec) {
	spec.Network = or(b.namedID("network_id"))
	if b.err != nil {
		return
	}
	if n, ok := refer(b, spec.Network, s.networks().need); ok {
		b.onNetwork(n.ID)
		b.portPrivileges(n)
	}
}

// checkPort checks what a new port says together.
func checkPort(c *call, b *body, spec *sdn.PortSpec) {
	spec.Profile = or(b.profile(nil))
	if b.err != nil {
		return
	}
	n, err := c.network(spec.Network)
	if err != nil {
		b.fail(err)
		return
	}
	if off := spec.NoPortSecurity; off != nil && *off || off == nil && n.NoPortSecurity {
		b.unguarded(spec.Groups, spec.AllowedPairs)
		spec.WithoutGroups = true
	}
	b.ownGroups(spec.Groups)
	if spec.WithoutGroups {
		spec.Groups = nil
	}
}

func beforePortChange(c *call, b *body, port *sdn.Port, _ *sdn.PortPatch) {
	n, err := c.network(port.Network)
	if err != nil {
		b.fail(err)
		return
	}
	b.portPrivileges(n)
}

// checkPortChange checks what a change of a port says together.
func checkPortChange(_ *call, b *body, port *sdn.Port, p *sdn.PortPatch) {
	off, groups, pairs := port.NoPortSecurity, port.Groups, port.AllowedPairs
	if p.NoPortSecurity != nil {
		off = *p.NoPortSecurity
	}
	if p.Groups != nil {
		groups = *p.Groups
	}
	if p.AllowedPairs != nil {
		pairs = *p.AllowedPairs
	}
	if off && p.NoPortSecurity != nil && p.Groups == nil && len(groups) > 0 {
		b.fail(refuse(http.StatusConflict, "PortSecurityPortHasSecurityGroup", "Port has security group associated. Cannot disable port security or IP address until security group is removed."))
	}
	if off && (p.NoPortSecurity != nil || p.Groups != nil || p.AllowedPairs != nil) {
		b.unguarded(groups, pairs)
	}
	b.ownGroups(or(p.Groups))
	p.Profile = b.profile(port.Profile)
	if vnic := b.vnic("binding:vnic_type"); vnic != nil && *vnic != port.VNICType {
		b.unsupported("binding:vnic_type", whyVNIC)
	}
}

// portPrivileges refuses what of a port only administrators may say, and what only those may whose the network is.
func (b *body) portPrivileges(n sdn.Network) {
	b.foreign(n, "mac_address", "port_security_enabled", "allowed_address_pairs")
	if !b.post {
		b.privileged("mac_address")
	}
	if owner, _ := b.values["device_owner"].(string); strings.HasPrefix(owner, "network:") {
		b.foreign(n, "device_owner")
	}
	if ips, _ := b.values["fixed_ips"].([]any); len(ips) > 0 {
		for _, one := range ips {
			if ip, _ := one.(map[string]any); ip["ip_address"] != nil || !n.Shared || n.External {
				b.foreign(n, "fixed_ips")
			}
		}
		if len(ips) > mostAddresses && !b.owns(n.Meta) {
			b.fail(invalidInput("Exceeded maximum amount of fixed ips per port"))
		}
	}
}

// unguarded refuses what cannot be enforced on a port without port security.
func (b *body) unguarded(groups []sdn.ID, pairs []sdn.AllowedPair) {
	switch {
	case len(groups) > 0:
		b.fail(refuse(http.StatusBadRequest, "PortSecurityAndIPRequiredForSecurityGroups",
			"Port security must be enabled and port must have an IP address in order to use security groups."))
	case len(pairs) > 0:
		b.fail(refuse(http.StatusConflict, "AddressPairAndPortSecurityRequired", "Port Security must be enabled in order to have allowed address pairs on a port."))
	}
}

// tags takes the tags of a new object, which may have them from the beginning. Neutron takes those of ports alone so.
func (b *body) tags() []string {
	tags := b.texts("tags")
	if tags == nil || !b.post {
		return nil
	}
	if most := mostTags(b.server.p.Capabilities()); len(*tags) > most {
		b.fail(errManyTags(most))
	}
	for _, tag := range *tags {
		if err := checkTag(tag); err != nil {
			b.fail(err)
		}
	}
	return *tags
}

// addresses reads fixed_ips. An element may say a subnet, an address, or both.
func (b *body) addresses(name string) *[]sdn.Address {
	return objects(b, name, func(b *body) sdn.Address {
		a := sdn.Address{Subnet: or(b.id("subnet_id"))}
		if !b.null("ip_address") {
			a.Addr = or(b.addr("ip_address"))
		}
		if a.Subnet == "" && !a.Addr.IsValid() && b.err == nil && len(b.values) == 0 {
			b.fail(invalidInput("IP allocation requires subnet_id or ip_address"))
		}
		return a
	})
}

// ownGroups refuses security groups that are not the caller's.
func (b *body) ownGroups(groups []sdn.ID) {
	if b.err != nil {
		return
	}
	need := b.server.securityGroups().need
	for _, id := range groups {
		refer(b, id, need)
	}
}

// policy reads qos_policy_id; null is none.
func (b *body) policy(name string) *sdn.ID {
	id := b.id(name)
	if id != nil && *id != "" {
		refer(b, *id, b.server.qosPolicies().need)
	}
	return id
}

// pairs reads allowed_address_pairs.
func (b *body) pairs(name string) *[]sdn.AllowedPair {
	pairs := objects(b, name, func(b *body) sdn.AllowedPair {
		b.needs("ip_address")
		written, _ := b.values["ip_address"].(string)
		pair := sdn.AllowedPair{Prefix: or(b.asSent("ip_address")), MAC: or(b.mac("mac_address"))}
		pair.Length = pair.Prefix.IsValid() && pair.Prefix.IsSingleIP() && strings.Contains(written, "/")
		return pair
	})
	if pairs == nil {
		return nil
	}
	if len(*pairs) > mostPairs {
		b.fail(refuse(http.StatusBadRequest, "AllowedAddressPairExhausted", "The number of allowed address pair exceeds the maximum %d.", mostPairs))
	}
	seen := map[netip.Prefix]string{}
	for _, pair := range *pairs {
		if mac, twice := seen[pair.Prefix]; twice && mac == pair.MAC.String() {
			b.fail(refuse(http.StatusBadRequest, "DuplicateAddressPairInRequest", "Request contains duplicate address pair: mac_address %s ip_address %v.", mac, pair.Prefix))
		}
		seen[pair.Prefix] = pair.MAC.String()
	}
	return pairs
}

const whyVNIC = "it cannot be changed"

// vnic reads binding:vnic_type.
func (b *body) vnic(name string) *sdn.VNICType {
	s := b.text(name)
	if s == nil {
		return nil
	}
	t := sdn.VNICType(*s)
	if *s == normal {
		t = sdn.VNICNormal
	}
	return &t
}

// profile reads binding:profile, and trusted, which is a part of it. The port has the profile now.
func (b *body) profile(now map[string]json.RawMessage) *map[string]json.RawMessage {
	out := b.givenProfile()
	if b.null("trusted") {
		return out
	}
	trusted := b.boolean("trusted")
	if trusted == nil {
		return out
	}
	if out == nil {
		out = &map[string]json.RawMessage{}
		maps.Copy(*out, now)
	}
	// A text: processes and stores of version 0.1.0 have texts only.
	(*out)[sdn.ProfileTrusted] = sdn.ProfileString(strconv.FormatBool(*trusted))
	return out
}

// givenProfile reads binding:profile, whose values may be of any type.
func (b *body) givenProfile() *map[string]json.RawMessage {
	value, given := b.take("binding:profile")
	if !given {
		return nil
	}
	values, ok := value.(map[string]any)
	if !ok && value != nil {
		b.invalid("binding:profile", "'%s' is not a dictionary", show(value))
		return nil
	}
	out := map[string]json.RawMessage{}
	for name, v := range values {
		out[name], _ = json.Marshal(v) // it was decoded from JSON
	}
	return &out
}
