package engine

import (
	"crypto/rand"
	"net/netip"

	"github.com/kuryr/kuryr/internal/ipprefix"
	"github.com/kuryr/kuryr/internal/valid"
	"github.com/kuryr/kuryr/sdn"
)

// externalName is the name of the built-in external network: the host, and what lies behind it.
const externalName = "host"

// defaultUplinkRanges are shared address space (RFC 6598), which private networks rarely use.
var defaultUplinkRanges = []netip.Prefix{
	netip.MustParsePrefix("100.64.0.0/16"), netip.MustParsePrefix("100.96.0.0/16"), netip.MustParsePrefix("100.127.0.0/16"),
	netip.MustParsePrefix("198.18.0.0/16"),
}

// makeExternal makes the built-in external network. Its gateways, the first addresses, are the host's.
func (t *tx) makeExternal(candidates, routed []netip.Prefix) (sdn.ID, error) {
	v4, err := freeRange(candidates, routed)
	if err != nil {
		return "", err
	}
	v6, err := uniqueLocal()
	if err != nil {
		return "", err
	}
	owner := string(t.Get(MetaTable, installationKey))
	named := func(kind, name string) sdn.Base {
		return sdn.Base{Key: sdn.Key{Owner: owner, Kind: kind, Name: name}, Name: name}
	}
	n := &NetworkRow{Network: sdn.Network{Meta: newMeta(named("external", externalName)), MTU: t.e.realm.ExternalMTU(), External: true, Shared: true}}
	if err := Networks.put(t, n); err != nil {
		return "", err
	}
	for name, cidr := range map[string]netip.Prefix{externalName + "-v4": v4, externalName + "-v6": v6} {
		if _, err := t.makeSubnet(n, sdn.SubnetSpec{Base: named("external-subnet", name), Network: n.ID, CIDR: cidr}); err != nil {
			return "", err
		}
	}
	return n.ID, nil
}

// freeRange is the first candidate that overlaps nothing the host routes; a default route overlaps nothing.
func freeRange(candidates, routed []netip.Prefix) (netip.Prefix, error) {
	if candidates == nil {
		candidates = defaultUplinkRanges
	}
next:
	for _, c := range candidates {
		if err := valid.Prefix("external network", "uplink_ranges", c); err != nil {
			return c, err
		}
		if !c.Addr().Is4() || c.Bits() > 29 {
			return c, sdn.Invalid("external network", "uplink_ranges", "%v is no IPv4 range of at least 8 addresses", c)
		}
		for _, r := range routed {
			if r.Bits() > 0 && r.Overlaps(c) {
				continue next
			}
		}
		return c, nil
	}
	return netip.Prefix{}, sdn.Conflict(sdn.Exists, "external network", "uplink_ranges", "the host routes all of %v already: configure a range that is free", candidates)
}

// hostLinks is the part of a range between the host and its routers that is kept for
// routers of no project; rest is what others get. However many addresses projects take
// for their routers, floating IPs and ports, Docker's networks keep a way out. An address
// from before this rule stays.
func hostLinks(p netip.Prefix) (links, rest interval) {
	whole := automatic(p)
	middle := ipprefix.Last(netip.PrefixFrom(p.Masked().Addr(), p.Bits()+1)) // the last address of the lower half
	return interval{middle.Next(), whole.last}, interval{whole.first, middle}
}

// takeExternal gives out an address of a subnet of the built-in external network.
func (t *tx) takeExternal(ad addressing) (netip.Addr, bool, error) {
	links, rest := hostLinks(ad.subnet.CIDR)
	if t.hostLink {
		if a, ok, err := ad.takeWithin(links, linkKey); ok || err != nil {
			return a, ok, err
		}
	}
	return ad.takeWithin(rest, cursorKey)
}

// uniqueLocal makes up a unique local prefix (RFC 4193, section 3.2, with a random global id).
func uniqueLocal() (netip.Prefix, error) {
	b := [16]byte{0: 0xfd}
	if _, err := rand.Read(b[1:6]); err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(netip.AddrFrom16(b), 64), nil
}
