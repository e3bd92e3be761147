//go:build linux

package fabric

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

const (
	setPublished   = "published"    // host: protocol and port -> uplink address and port; router: protocol and port of the uplink address -> container
	setPublishedAt = "published_at" // host: address, protocol and port -> uplink address and port
	setOrigin      = "origin"       // router: address, protocol and port of the host, port of the uplink. No rule reads it: it is how the host's elements of a router are found
	setForward     = "forwarded"    // router: floating address, protocol and port -> container
	setFloating    = "floating"     // host: addresses that lead to some router
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
	post.rules = append(post.rules, rule{"hairpin to a floating address", join(iif(bridgePrefix+"*"), oif(bridgePrefix+"*"), conntrack(expr.CtKeySTATUS, statusDNAT), masquerade())},
		rule{"balanced to the outside", join(iif(uplinkName), oif(uplinkName), conntrack(expr.CtKeySTATUS, statusDNAT), masquerade())})
	for _, four := range both {
		addr, v, words := addrType(four), suffix(four), addrWords(four)
		t.sets = append(t.sets,
			nftables.Set{Name: setPublished + v, IsMap: true, Concatenation: true, KeyType: concat(service...), DataType: concat(addr, nftables.TypeInetService)},
			nftables.Set{Name: setOrigin + v, Concatenation: true, KeyType: concat(addr, service[0], service[1], service[1])},
			nftables.Set{Name: setForward + v, IsMap: true, Concatenation: true, KeyType: concat(addr, service[0], service[1]), DataType: concat(addr, nftables.TypeInetService)},
			nftables.Set{Name: setFloatingIn + v, IsMap: true, KeyType: addr, DataType: addr},
			nftables.Set{Name: setFloatingOut + v, IsMap: true, KeyType: addr, DataType: addr},
		)
		pre.rules = append(pre.rules,
			rule{"published by the host", join(iif(uplinkName), version(four), toLocalHere(), loadService(0), mapped(setPublished+v), nat(expr.NATTypeDestNAT, four, true))},
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
		rules: []rule{
			// Connection tracking leaves neighbour discovery and multicast listeners
			// alone. No router forwards those (RFC 4861).
			{"between networks, or from outside",
				join(oifNot(uplinkName), conntrackLacks(expr.CtKeySTATE, stateUntracked), accept)},
			// The translation does not see what connection tracking does not know: it
			// would leave with a private source.
			{"unknown to connection tracking",
				join(conntrack(expr.CtKeySTATE, stateInvalid|stateUntracked), drop)},
			{"to the outside", join(iifNot(uplinkName), accept)},
			// The host's connections to a VIP whose member is outside, be it the host itself: their answers come back this way.
			{"balanced to the outside", join(conntrack(expr.CtKeySTATUS, statusDNAT), accept)},
			// A floating address without a container behind this port would go round
			// between host and router until its TTL ends.
			{"back where it came from", drop},
		},
	}}
	return t
}

// hostTable translates and filters in the host's namespace. It knows no container's address, only routers' uplink addresses.
func hostTable(uplink4, uplink6 netip.Prefix) table {
	t := table{family: nftables.TableFamilyINet}
	kr := uplinkPrefix + "*"
	loopback, loopback6 := netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")
	// Five before Docker's, so that neither depends on who started first.
	early := func(p *nftables.ChainPriority) nftables.ChainPriority { return *p - 5 }
	raw := chain{name: "raw", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, priority: *nftables.ChainPriorityRaw, rules: []rule{
		{"not from a router", join(iifNot(kr), accept)},
		// route_localnet is on for uplinks, so that the host's loopback may call in; nothing may come back that way by itself.
		{"loopback address from a router", join(daddrIn(loopback), drop)},
		{"loopback source from a router", join(saddrIn(loopback), drop)},
	}}
	pre := chain{name: "prerouting", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookPrerouting, priority: early(nftables.ChainPriorityNATDest)}
	out := chain{name: "output", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookOutput, priority: early(nftables.ChainPriorityNATDest)}
	// Translation comes before the kernel's look for loopback addresses that come from without: what is none of ours to translate it drops. IPv6
	// drops them before anything.
	pre.rules = append(pre.rules,
		rule{"loopback address from without", join(iifNot("lo"), daddrIn(loopback), accept)},
		rule{"loopback source from without", join(iifNot("lo"), saddrIn(loopback), accept)})
	post := chain{name: "postrouting", kind: nftables.ChainTypeNAT, hook: nftables.ChainHookPostrouting, priority: early(nftables.ChainPriorityNATSource), rules: []rule{
		{"loopback to published", join(oif(kr), saddrIn(loopback), masquerade())},
		{"IPv6 loopback to published", join(oif(kr), saddrIn(loopback6), masquerade())},
		{"router to published", join(iif(kr), oif(kr), conntrack(expr.CtKeySTATUS, statusDNAT), masquerade())},
	}}
	forward := chain{name: "forward", kind: nftables.ChainTypeFilter, hook: nftables.ChainHookForward, priority: *nftables.ChainPriorityFilter, rules: []rule{
		{"unknown to connection tracking, from a router",
			join(iif(kr), conntrack(expr.CtKeySTATE, stateInvalid), drop)},
		{"not to a router", join(oifNot(kr), accept)},
		{"answers", join(conntrack(expr.CtKeySTATE, stateEstablished|stateRelated), accept)},
		{"published", join(conntrack(expr.CtKeySTATUS, statusDNAT), accept)},
	}}
	service := []nftables.SetDatatype{nftables.TypeInetProto, nftables.TypeInetService}
	for _, four := range both {
		addr, v, words := addrType(four), suffix(four), addrWords(four)
		t.sets = append(t.sets,
			nftables.Set{Name: setPublished + v, IsMap: true, Concatenation: true, KeyType: concat(service...), DataType: concat(addr, nftables.TypeInetService)},
			nftables.Set{Name: setPublishedAt + v, IsMap: true, Concatenation: true, KeyType: concat(addr, service[0], service[1]), DataType: concat(addr, nftables.TypeInetService)},
			nftables.Set{Name: setFloating + v, KeyType: addrType(four)},
		)
		published := []rule{
			{"published on one address", join(version(four), toLocal(), loadDaddr(four, 0), loadService(words), mapped(setPublishedAt+v), nat(expr.NATTypeDestNAT, four, true))},
			{"published", join(version(four), toLocal(), loadService(0), mapped(setPublished+v), nat(expr.NATTypeDestNAT, four, true))},
		}
		pre.rules = append(pre.rules, published...)
		out.rules = append(out.rules, published...)
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

// inRouter is what a router knows of a forwarding.
func (w Forward) inRouter() []element {
	v := suffix(w.Address.Is4())
	value := addrBytes(w.To.Addr()) + portBytes(w.To.Port())
	if w.ofHost() {
		return []element{{set: setPublished + v, key: serviceKey(w.Protocol, w.via()), value: value}, w.origin()}
	}
	return []element{{set: setForward + v, key: addrBytes(w.Address) + serviceKey(w.Protocol, w.Port), value: value}}
}

func (w Forward) origin() element {
	return element{set: setOrigin + suffix(w.Address.Is4()), key: addrBytes(w.Address) + serviceKey(w.Protocol, w.Port) + portBytes(w.via())}
}

// inHost is what the host knows of a forwarding of an address of its own.
func (w Forward) inHost(uplink netip.Addr) element {
	v, key, value := suffix(w.Address.Is4()), serviceKey(w.Protocol, w.Port), addrBytes(uplink)+portBytes(w.via())
	if w.Address.IsUnspecified() {
		return element{set: setPublished + v, key: key, value: value}
	}
	return element{set: setPublishedAt + v, key: addrBytes(w.Address) + key, value: value}
}

// forwardFrom is what an origin says of a forwarding of the host: all but whereto. It reports false for anything else.
func forwardFrom(e element) (w Forward, ok bool) {
	const service = 12 // protocol, port, port, each in a register
	if !strings.HasPrefix(e.set, setOrigin) || len(e.key) <= service {
		return w, false
	}
	b := []byte(e.key)
	addr, rest := b[:len(b)-service], b[len(b)-service:]
	w.Address, ok = netip.AddrFromSlice(addr)
	w.Protocol, w.Port, w.Via = rest[0], binary.BigEndian.Uint16(rest[4:]), binary.BigEndian.Uint16(rest[8:])
	return w, ok
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
