//go:build linux

package router

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kuryr/kuryr/datapath/nft"
)

const (
	// host: protocol and port -> uplink address and port; router: protocol and port of the
	// uplink address -> container
	setPublished   = "published"
	setPublishedAt = "published_at" // host: address, protocol and port -> uplink address and port
	// router: address, protocol and port of the host, port of the uplink. No rule reads it:
	// it is how the host's elements of a router are found
	setOrigin      = "origin"
	setForward     = "forwarded" // router: floating address, protocol and port -> container
	setFloating    = "floating"  // host: addresses that lead to some router
	setFloatingIn  = "floating_in"
	setFloatingOut = "floating_out"
)

// routerTable translates in a router: ports of its uplink address, floating addresses,
// and what leaves.
func routerTable(snat bool) table {
	t := table{family: nftables.TableFamilyINet}
	pre := nft.Chain{
		Name: "prerouting", Type: nftables.ChainTypeNAT, Hook: nftables.ChainHookPrerouting,
		Priority: *nftables.ChainPriorityNATDest,
	}
	post := nft.Chain{
		Name: "postrouting", Type: nftables.ChainTypeNAT, Hook: nftables.ChainHookPostrouting,
		Priority: *nftables.ChainPriorityNATSource,
	}
	service := []nftables.SetDatatype{nftables.TypeInetProto, nftables.TypeInetService}
	post.Rules = append(post.Rules, nft.NewRule("hairpin to a floating address",
		nft.In(bridgePrefix+"*"), nft.Out(bridgePrefix+"*"), nft.Translated(), nft.Masquerade),
		nft.NewRule("balanced to the outside",
			nft.In(uplinkName), nft.Out(uplinkName), nft.Translated(), nft.Masquerade))
	for _, v := range nft.Versions {
		addr, destination := v.AddrType(), nft.Exprs{v.LoadDestination(nft.Reg(0))}
		translate := nft.NAT(expr.NATTypeDestNAT, v, nft.First, nft.Reg(v.Words()))
		t.sets = append(t.sets,
			nftables.Set{
				Name: setPublished + v.String(), IsMap: true, Concatenation: true,
				KeyType: nft.Concat(service...), DataType: nft.Concat(addr, nftables.TypeInetService),
			},
			nftables.Set{
				Name: setOrigin + v.String(), Concatenation: true,
				KeyType: nft.Concat(addr, service[0], service[1], service[1]),
			},
			nftables.Set{
				Name: setForward + v.String(), IsMap: true, Concatenation: true,
				KeyType:  nft.Concat(addr, service[0], service[1]),
				DataType: nft.Concat(addr, nftables.TypeInetService),
			},
			nftables.Set{Name: setFloatingIn + v.String(), IsMap: true, KeyType: addr, DataType: addr},
			nftables.Set{Name: setFloatingOut + v.String(), IsMap: true, KeyType: addr, DataType: addr},
		)
		pre.Rules = append(pre.Rules,
			nft.NewRule("published by the host",
				nft.In(uplinkName), v.Match(), nft.ToLocalLink(), nft.LoadService(0),
				nft.Map(setPublished+v.String(), nft.First, nft.First), translate),
			nft.NewRule("port of a floating address",
				v.Match(), destination, nft.LoadService(v.Words()), nft.Map(setForward+v.String(),
					nft.First, nft.First), translate),
			nft.NewRule("floating address",
				v.Match(), destination, nft.Map(setFloatingIn+v.String(), nft.First, nft.First),
				nft.NAT(expr.NATTypeDestNAT, v, nft.First, 0)),
		)
		post.Rules = append(post.Rules, nft.NewRule("leaves by its floating address",
			nft.Out(uplinkName), v.Match(), nft.Exprs{v.LoadSource(nft.Reg(0))},
			nft.Map(setFloatingOut+v.String(), nft.First, nft.First), nft.NAT(expr.NATTypeSourceNAT, v, nft.First, 0)))
	}
	if snat {
		post.Rules = append(post.Rules, nft.NewRule("leaves by the uplink address",
			nft.Out(uplinkName), nft.Masquerade))
	}
	t.chains = []nft.Chain{pre, post, {
		Name: "forward", Type: nftables.ChainTypeFilter, Hook: nftables.ChainHookForward,
		Priority: *nftables.ChainPriorityFilter,
		Rules: []nft.Rule{
			// Connection tracking leaves neighbour discovery and multicast listeners
			// alone. No router forwards those (RFC 4861).
			nft.NewRule("between networks, or from outside",
				nft.NotOut(uplinkName), nft.StateNot(nft.StateUntracked), nft.Accept),
			// The translation does not see what connection tracking does not know: it
			// would leave with a private source.
			nft.NewRule("unknown to connection tracking",
				nft.State(nft.StateInvalid|nft.StateUntracked), nft.Drop),
			nft.NewRule("to the outside", nft.NotIn(uplinkName), nft.Accept),
			// The host's connections to a VIP whose member is outside, be it the host itself:
			// their answers come back this way.
			nft.NewRule("balanced to the outside", nft.Translated(), nft.Accept),
			// A floating address without a container behind this port would go round
			// between host and router until its TTL ends.
			nft.NewRule("back where it came from", nft.Drop),
		},
	}}
	return t
}

// hostTable translates and filters in the host's namespace. It knows no container's
// address, only routers' uplink addresses.
func hostTable(uplink4, uplink6 netip.Prefix) table {
	t := table{family: nftables.TableFamilyINet}
	kr := uplinkPrefix + "*"
	loopback := nft.V4.Loopback()
	// Five before Docker's, so that neither depends on who started first.
	early := func(p *nftables.ChainPriority) nftables.ChainPriority { return *p - 5 }
	raw := nft.Chain{Name: "raw", Type: nftables.ChainTypeFilter, Hook: nftables.ChainHookPrerouting,
		Priority: *nftables.ChainPriorityRaw, Rules: []nft.Rule{
			nft.NewRule("not from a router", nft.NotIn(kr), nft.Accept),
			// route_localnet is on for uplinks, so that the host's loopback may call in; nothing
			// may come back that way by itself.
			nft.NewRule("loopback address from a router", nft.To(loopback), nft.Drop),
			nft.NewRule("loopback source from a router", nft.From(loopback), nft.Drop),
		}}
	pre := nft.Chain{
		Name: "prerouting", Type: nftables.ChainTypeNAT, Hook: nftables.ChainHookPrerouting,
		Priority: early(nftables.ChainPriorityNATDest),
	}
	out := nft.Chain{
		Name: "output", Type: nftables.ChainTypeNAT, Hook: nftables.ChainHookOutput,
		Priority: early(nftables.ChainPriorityNATDest),
	}
	// Translation comes before the kernel's look for loopback addresses that come from
	// without: what is none of ours to translate it drops. IPv6 drops them before anything.
	pre.Rules = append(pre.Rules,
		nft.NewRule("loopback address from without", nft.NotIn("lo"), nft.To(loopback), nft.Accept),
		nft.NewRule("loopback source from without", nft.NotIn("lo"), nft.From(loopback), nft.Accept))
	post := nft.Chain{Name: "postrouting", Type: nftables.ChainTypeNAT,
		Hook:     nftables.ChainHookPostrouting,
		Priority: early(nftables.ChainPriorityNATSource), Rules: []nft.Rule{
			nft.NewRule("loopback to published", nft.Out(kr), nft.From(loopback), nft.Masquerade),
			nft.NewRule("IPv6 loopback to published", nft.Out(kr), nft.From(nft.V6.Loopback()), nft.Masquerade),
			nft.NewRule("router to published", nft.In(kr), nft.Out(kr), nft.Translated(), nft.Masquerade),
		}}
	forward := nft.Chain{Name: "forward", Type: nftables.ChainTypeFilter,
		Hook: nftables.ChainHookForward, Priority: *nftables.ChainPriorityFilter, Rules: []nft.Rule{
			nft.NewRule("unknown to connection tracking, from a router",
				nft.In(kr), nft.State(nft.StateInvalid), nft.Drop),
			nft.NewRule("not to a router", nft.NotOut(kr), nft.Accept),
			nft.NewRule("answers", nft.State(nft.StateEstablished|nft.StateRelated), nft.Accept),
			nft.NewRule("published", nft.Translated(), nft.Accept),
		}}
	service := []nftables.SetDatatype{nftables.TypeInetProto, nftables.TypeInetService}
	for _, v := range nft.Versions {
		addr, destination := v.AddrType(), nft.Exprs{v.LoadDestination(nft.Reg(0))}
		translate := nft.NAT(expr.NATTypeDestNAT, v, nft.First, nft.Reg(v.Words()))
		t.sets = append(t.sets,
			nftables.Set{
				Name: setPublished + v.String(), IsMap: true, Concatenation: true,
				KeyType: nft.Concat(service...), DataType: nft.Concat(addr, nftables.TypeInetService),
			},
			nftables.Set{
				Name: setPublishedAt + v.String(), IsMap: true, Concatenation: true,
				KeyType:  nft.Concat(addr, service[0], service[1]),
				DataType: nft.Concat(addr, nftables.TypeInetService),
			},
			nftables.Set{Name: setFloating + v.String(), KeyType: addr},
		)
		published := []nft.Rule{
			nft.NewRule("published on one address",
				v.Match(), nft.ToLocal(), destination, nft.LoadService(v.Words()),
				nft.Map(setPublishedAt+v.String(), nft.First, nft.First), translate),
			nft.NewRule("published",
				v.Match(), nft.ToLocal(), nft.LoadService(0), nft.Map(setPublished+v.String(),
					nft.First, nft.First), translate),
		}
		pre.Rules = append(pre.Rules, published...)
		out.Rules = append(out.Rules, published...)
		forward.Rules = append(forward.Rules, nft.NewRule("floating address",
			v.Match(), destination, nft.InSet(setFloating+v.String(), nft.First), nft.Accept))
		pool := uplink6
		if v == nft.V4 {
			pool = uplink4
		}
		if pool.IsValid() {
			post.Rules = append(post.Rules, nft.NewRule("router to the outside",
				nft.NotOut(kr), nft.From(pool), nft.Masquerade))
		}
	}
	forward.Rules = append(forward.Rules, nft.NewRule("nothing else into a router", nft.Drop))
	t.chains = []nft.Chain{raw, pre, out, post, forward}
	return t
}

// inRouter is what a router knows of a forwarding.
func (w Forward) inRouter() []nft.Element {
	v := nft.VersionOf(w.Address).String()
	value := nft.Endpoint(w.To)
	if w.ofHost() {
		return []nft.Element{{Set: setPublished + v, Key: nft.Service(w.Protocol, w.via()), Value: value}, w.origin()}
	}
	return []nft.Element{{Set: setForward + v, Key: nft.Addr(w.Address) + nft.Service(w.Protocol, w.Port), Value: value}}
}

func (w Forward) origin() nft.Element {
	return nft.Element{
		Set: setOrigin + nft.VersionOf(w.Address).String(),
		Key: nft.Addr(w.Address) + nft.Service(w.Protocol, w.Port) + nft.Uint16(w.via()),
	}
}

// inHost is what the host knows of a forwarding of an address of its own.
func (w Forward) inHost(uplink netip.Addr) nft.Element {
	v, key, value := nft.VersionOf(w.Address).String(), nft.Service(w.Protocol, w.Port),
		nft.Addr(uplink)+nft.Uint16(w.via())
	if w.Address.IsUnspecified() {
		return nft.Element{Set: setPublished + v, Key: key, Value: value}
	}
	return nft.Element{Set: setPublishedAt + v, Key: nft.Addr(w.Address) + key, Value: value}
}

// forwardFrom is what an origin says of a forwarding of the host: all but whereto. It
// reports false for anything else.
func forwardFrom(e nft.Element) (w Forward, ok bool) {
	const service = 12 // protocol, port, port, each in a register
	if !strings.HasPrefix(e.Set, setOrigin) || len(e.Key) <= service {
		return w, false
	}
	b := []byte(e.Key)
	addr, rest := b[:len(b)-service], b[len(b)-service:]
	w.Address, ok = netip.AddrFromSlice(addr)
	w.Protocol, w.Port, w.Via = rest[0], binary.BigEndian.Uint16(rest[4:]), binary.BigEndian.Uint16(rest[8:])
	return w, ok
}

func floatingElement(a netip.Addr) nft.Element {
	return nft.Element{Set: setFloating + nft.VersionOf(a).String(), Key: nft.Addr(a)}
}

// routerElements are a router's floating addresses that are translated one to one.
func (u *Uplink) routerElements() []nft.Element {
	var list []nft.Element
	for _, f := range u.Floating {
		if f.Internal.IsValid() {
			v := nft.VersionOf(f.External).String()
			list = append(list,
				nft.Element{Set: setFloatingIn + v, Key: nft.Addr(f.External), Value: nft.Addr(f.Internal)},
				nft.Element{Set: setFloatingOut + v, Key: nft.Addr(f.Internal), Value: nft.Addr(f.External)})
		}
	}
	return list
}
