//go:build linux

package fabric

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

const (
	setPublished   = "published" // host: protocol and port -> uplink address; router: protocol and port -> container
	setForward     = "forwarded" // router: floating address, protocol and port -> container
	setFloating    = "floating"  // host: addresses that lead to some router
	setFloatingIn  = "floating_in"
	setFloatingOut = "floating_out"
)

var both = []bool{true, false}

// routerTable translates in a router: ports of its uplink address, floating addresses, and what leaves.
func routerTable(snat bool) table {
	t := table{family: nftables.TableFamilyINet}
	pre := chain{name: "prerouting", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookPrerouting, priority: *nftables.ChainPriorityNATDest}
	post := chain{name: "postrouting", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookPostrouting, priority: *nftables.ChainPriorityNATSource}
	service := []nftables.SetDatatype{nftables.TypeInetProto, nftables.TypeInetService}
	post.rules = append(post.rules, rule{"hairpin to a floating address", join(iif(bridgePrefix+"*"), oif(bridgePrefix+"*"), conntrack(expr.CtKeySTATUS, statusDNAT), masquerade())})
	for _, four := range both {
		addr, v := addrType(four), suffix(four)
		words := 4
		if four {
			words = 1
		}
		t.sets = append(t.sets,
			nftables.Set{Name: setPublished + v, IsMap: true, Concatenation: true, KeyType: concat(service...), DataType: concat(addr, nftables.TypeInetService)},
			nftables.Set{Name: setForward + v, IsMap: true, Concatenation: true, KeyType: concat(addr, service[0], service[1]), DataType: concat(addr, nftables.TypeInetService)},
			nftables.Set{Name: setFloatingIn + v, IsMap: true, KeyType: addr, DataType: addr},
			nftables.Set{Name: setFloatingOut + v, IsMap: true, KeyType: addr, DataType: addr},
		)
		pre.rules = append(pre.rules,
			rule{"published by the host", join(iif(uplinkName), version(four), toLocal(), loadService(0), mapped(setPublished+v), nat(expr.NATTypeDestNAT, four, true))},
			rule{"port of a floating address", join(version(four), loadDaddr(four, 0), loadService(words), mapped(setForward+v), nat(expr.NATTypeDestNAT, four, true))},
			rule{"floating address", join(version(four), loadDaddr(four, 0), mapped(setFloatingIn+v), nat(expr.NATTypeDestNAT, four, false))},
		)
		post.rules = append(post.rules, rule{"leaves by its floating address", join(oif(uplinkName), version(four), loadSaddr(four, 0), mapped(setFloatingOut+v), nat(expr.NATTypeSourceNAT, four, false))})
	}
	if snat {
		post.rules = append(post.rules, rule{"leaves by the uplink address", join(oif(uplinkName), masquerade())})
	}
	t.chains = []chain{pre, post, {
		name: "forward", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, priority: *nftables.ChainPriorityFilter,
		// A floating address without a container behind this port would go round between host and router until its TTL ends.
		rules: []rule{{"back where it came from", join(iif(uplinkName), oif(uplinkName), drop)}},
	}}
	return t
}

// hostTable translates and filters in the host's namespace. It knows no container's address, only routers' uplink addresses.
func hostTable(uplink4, uplink6 netip.Prefix) table {
	t := table{family: nftables.TableFamilyINet}
	kr := uplinkPrefix + "*"
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	// Five before Docker's, so that neither depends on who started first.
	early := func(p *nftables.ChainPriority) nftables.ChainPriority { return *p - 5 }
	raw := chain{name: "raw", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, priority: *nftables.ChainPriorityRaw, rules: []rule{
		// route_localnet is on for uplinks, so that the host's loopback may call in; nothing may come back that way by itself.
		{"loopback address from a router", join(iif(kr), daddrIn(loopback), drop)},
		{"loopback source from a router", join(iif(kr), saddrIn(loopback), drop)},
	}}
	pre := chain{name: "prerouting", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookPrerouting, priority: early(nftables.ChainPriorityNATDest)}
	out := chain{name: "output", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookOutput, priority: early(nftables.ChainPriorityNATDest)}
	out.rules = append(out.rules, rule{"IPv6 loopback has no way to a router", join(daddrIn(netip.MustParsePrefix("::1/128")), accept)})
	post := chain{name: "postrouting", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookPostrouting, priority: early(nftables.ChainPriorityNATSource), rules: []rule{
		{"loopback to published", join(oif(kr), saddrIn(loopback), masquerade())},
		{"router to published", join(iif(kr), oif(kr), conntrack(expr.CtKeySTATUS, statusDNAT), masquerade())},
	}}
	forward := chain{name: "forward", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, priority: *nftables.ChainPriorityFilter, rules: []rule{
		{"not to a router", join(oifNot(kr), accept)},
		{"answers", join(conntrack(expr.CtKeySTATE, stateEstablished|stateRelated), accept)},
		{"published", join(conntrack(expr.CtKeySTATUS, statusDNAT), accept)},
	}}
	for _, four := range both {
		v := suffix(four)
		t.sets = append(t.sets,
			nftables.Set{Name: setPublished + v, IsMap: true, Concatenation: true, KeyType: concat(nftables.TypeInetProto, nftables.TypeInetService), DataType: addrType(four)},
			nftables.Set{Name: setFloating + v, KeyType: addrType(four)},
		)
		published := rule{"published", join(version(four), toLocal(), loadService(0), mapped(setPublished+v), nat(expr.NATTypeDestNAT, four, false))}
		pre.rules = append(pre.rules, published)
		out.rules = append(out.rules, published)
		forward.rules = append(forward.rules, rule{"floating address", join(version(four), loadDaddr(four, 0), inSet(setFloating+v), accept)})
		pool := uplink6
		if four {
			pool = uplink4
		}
		if pool.IsValid() {
			post.rules = append(post.rules, rule{"router to the outside", join(oifNot(kr), saddrIn(pool), masquerade())})
		}
	}
	forward.rules = append(forward.rules, rule{"nothing else into a router", drop})
	t.chains = []chain{raw, pre, out, post, forward}
	return t
}

func portBytes(port uint16) string {
	return string(binary.BigEndian.AppendUint16(nil, port)) + "\x00\x00"
}

func serviceKey(protocol uint8, port uint16) string {
	return string([]byte{protocol, 0, 0, 0}) + portBytes(port)
}

func addrBytes(a netip.Addr) string { return string(a.AsSlice()) }

// routerElement and hostElement say where a forwarding lives. Only those of every address of the host have a second half there.
func (f Forward) routerElement() element {
	four := f.Address.Is4()
	value := addrBytes(f.To.Addr()) + portBytes(f.To.Port())
	if f.Address.IsUnspecified() {
		return element{set: setPublished + suffix(four), key: serviceKey(f.Protocol, f.Port), value: value}
	}
	return element{set: setForward + suffix(four), key: addrBytes(f.Address) + serviceKey(f.Protocol, f.Port), value: value}
}

func hostElement(four bool, service string, uplink netip.Addr) element {
	return element{set: setPublished + suffix(four), key: service, value: addrBytes(uplink)}
}

func floatingElement(a netip.Addr) element {
	return element{set: setFloating + suffix(a.Is4()), key: addrBytes(a)}
}

// routerElements are a router's floating addresses that are translated one to one.
func (u *Uplink) routerElements() []element {
	var list []element
	for _, f := range u.Floating {
		if f.Internal.IsValid() {
			v := suffix(f.External.Is4())
			list = append(list,
				element{set: setFloatingIn + v, key: addrBytes(f.External), value: addrBytes(f.Internal)},
				element{set: setFloatingOut + v, key: addrBytes(f.Internal), value: addrBytes(f.External)})
		}
	}
	return list
}
