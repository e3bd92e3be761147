//go:build linux

package lb

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kuryr/kuryr/datapath/nft"
)

// early is before others' translations of the same hook (Docker's, package router's,
// package hostport's), so that none depends on who started first.
const early = -7

// The marks that a connection's first packet has from its translation on until it leaves.
// No route is chosen by them: no other program uses such numbers.
const (
	markHide = 0x6b757268 // its source will be masqueraded
	markKeep = 0x6b75726b // its source will be kept between bridges, whatever others' rules say
)

// lastReg is the last register that a key can fill.
const lastReg = 15

// clientsAtMost is how many clients are remembered; who comes then is led all the same,
// and not remembered. Memory is used as they come.
const clientsAtMost = 1 << 18

// kind is what differs between the maps of a family's frontends, between those with an
// address and those of the namespace's own addresses, whose keys have none, and between
// those for all clients and those for clients inside.
type kind struct {
	nft.Version
	node, inside bool
}

var kinds = []kind{
	{nft.V4, false, false}, {nft.V6, false, false}, {nft.V4, true, false}, {nft.V6, true, false},
	{nft.V4, false, true}, {nft.V6, false, true}, {nft.V4, true, true}, {nft.V6, true, true},
}

func (k kind) String() string {
	var b strings.Builder
	if k.node {
		b.WriteString("_node")
	}
	if k.inside {
		b.WriteString("_inside")
	}
	return b.String() + k.Version.String()
}

// toInside is the kind for clients inside, toAll that for all clients.
func (k kind) toInside() kind { k.inside = true; return k }
func (k kind) toAll() kind    { k.inside = false; return k }

// keyWords is how many registers a key fills.
func (k kind) keyWords() int {
	if k.node {
		return 2
	}
	return k.Words() + 2
}

func (k kind) keyType() []nftables.SetDatatype {
	service := []nftables.SetDatatype{nftables.TypeInetProto, nftables.TypeInetService}
	if k.node {
		return service
	}
	return append([]nftables.SetDatatype{k.AddrType()}, service...)
}

// The names of the maps and sets of a kind. A key is [address .] protocol . port. The set of
// removed frontends that may have stale flows is for no rule.
func (k kind) services() string  { return "service" + k.String() }        // key -> profile
func (k kind) endpoints() string { return "endpoint" + k.String() }       // key . slot or id -> address . port
func (k kind) picks() string     { return "pick" + k.String() }           // key . slot -> id, of those with affinity
func (k kind) clients() string   { return "client" + k.String() }         // key . client -> id, as connections come
func (k kind) sources() string   { return "source" + k.toAll().String() } // key . range of clients
func (k kind) profiles() string  { return "profile" + k.String() }        // profile -> chain
func (k kind) owed() string      { return "owed" + k.String() }           // key of a removed frontend
func self(v nft.Version) string  { return "self" + v.String() }           // endpoint . itself

// The names of chains.
func (k kind) lead(p profile) string      { return "lead" + k.String() + "_" + p.String() }
func (k kind) translate(p profile) string { return "translate" + k.String() + suffix(p) }
func (k kind) keep(p profile) string {
	return fmt.Sprintf("keep%s_%d%s", k, p.timeout()/time.Second, suffix(p))
}

func suffix(p profile) string {
	if p.masquerades() {
		return "_masq"
	}
	return ""
}

func (k kind) sets() []nftables.Set {
	key, mark := k.keyType(), nftables.TypeMark
	with := func(more ...nftables.SetDatatype) nftables.SetDatatype {
		return nft.Concat(append(k.keyType(), more...)...)
	}
	to := nft.Concat(k.AddrType(), nftables.TypeInetService)
	list := []nftables.Set{
		{Name: k.services(), IsMap: true, Concatenation: true, KeyType: nft.Concat(key...), DataType: mark},
		{Name: k.endpoints(), IsMap: true, Concatenation: true, KeyType: with(mark), DataType: to},
		{Name: k.picks(), IsMap: true, Concatenation: true, KeyType: with(mark), DataType: mark},
		{Name: k.clients(), IsMap: true, Concatenation: true, KeyType: with(k.AddrType()),
			DataType: mark, Dynamic: true, HasTimeout: true, Size: clientsAtMost},
		{Name: k.profiles(), IsMap: true, KeyType: mark, DataType: nftables.TypeVerdict},
	}
	if k.inside { // a frontend's other sets are of both
		return list
	}
	return append(list,
		nftables.Set{Name: k.sources(), Concatenation: true, Interval: true, KeyType: with(k.AddrType())},
		nftables.Set{Name: k.owed(), Concatenation: true, KeyType: nft.Concat(key...)})
}

// key loads the key from the first register on.
func (k kind) key() nft.Exprs {
	n := 0
	e := k.Match()
	if !k.node {
		e = append(e, k.LoadDestination(nft.First))
		n = k.Words()
	}
	return append(e, nft.LoadService(n)...)
}

func (k kind) keyAndMark() nft.Exprs {
	return append(k.key(), nft.LoadMeta(expr.MetaKeyMARK, nft.Reg(k.keyWords())))
}
func (k kind) keyAndClient() nft.Exprs { return append(k.key(), k.LoadSource(nft.Reg(k.keyWords()))) }

// client does something with the element of the packet's client, which stands for the mark.
func (k kind) client(operation uint32, timeout time.Duration) nft.Exprs {
	data := k.keyWords() + k.Words()
	return nft.Join(k.keyAndClient(), nft.Exprs{nft.LoadMeta(expr.MetaKeyMARK, nft.Reg(data))},
		nft.ChangeMap(operation, k.clients(), nft.Reg(data), timeout))
}

// dispatch takes packets to a frontend, of clients that match, to the chain of its profile.
func (k kind) dispatch(of nft.Exprs) nft.Rule {
	comment := "to a frontend"
	if k.inside {
		comment += ", from inside"
	}
	return nft.NewRule(comment, of, k.key(), nft.Map(k.services(), nft.First, nft.First),
		nft.MarkFrom(nft.First), nft.ByMark(k.profiles()))
}

// lead is the chain of a profile.
func (k kind) leadChain(p profile) nft.Chain {
	c := nft.Chain{Name: k.lead(p)}
	if p.restricted() {
		c.Add("who may not", k.keyAndClient(), nft.NotInSet(k.sources(), nft.First), nft.Drop)
	}
	if p.count() == 0 {
		if !p.drops() {
			c.Add("no endpoint", nft.Protocol(unix.IPPROTO_TCP), nft.Reset)
			c.Add("no endpoint", nft.Unreachable)
		}
		c.Add("no endpoint", nft.Drop)
		return c
	}
	if p.timeout() == 0 {
		c.Add("any endpoint", nft.Random(p.count()), nft.MarkFrom(nft.First), nft.GoTo(k.translate(p)))
		return c
	}
	c.Add("the same as before", k.keyAndClient(), nft.Map(k.clients(), nft.First, nft.First),
		nft.MarkFrom(nft.First), nft.Jump(k.keep(p)))
	c.Add("any endpoint", nft.Random(p.count()), nft.MarkFrom(nft.First))
	c.Add("by its id", k.keyAndMark(), nft.Map(k.picks(), nft.First, nft.First),
		nft.MarkFrom(nft.First))
	// Updating an element does not change what it stands for.
	c.Add("the one before is gone", k.client(nft.SetDelete, 0))
	c.Add("remember", nft.Jump(k.keep(p)))
	c.Add("cannot be remembered", nft.GoTo(k.translate(p)))
	return c
}

// keepChain remembers the endpoint whose id the mark is, and leads to it; it comes back
// if there is no such endpoint, or no room.
func (k kind) keepChain(b base, p profile) nft.Chain {
	c := nft.Chain{Name: k.keep(p)}
	// Address and port are in the last registers: an IPv6 client's key and mark fill all before.
	data := lastReg - k.Words()
	c.Add("remember and lead", k.keyAndMark(), nft.Map(k.endpoints(), nft.First, nft.Reg(data)),
		k.client(nft.SetUpdate, p.timeout()), nft.SetMark(b.markFor(p), nft.First), k.nat(data))
	return c
}

func (k kind) nat(at int) nft.Exprs {
	return nft.NAT(expr.NATTypeDestNAT, k.Version, nft.Reg(at), nft.Reg(at+k.Words()))
}

// translateChain leads to the endpoint whose slot or id the mark is. While frontends
// change a packet may have chosen by the old number of endpoints and look for it among
// the new ones: then it gets the first, which is there as long as any is.
func (k kind) translateChain(b base, p profile) nft.Chain {
	c := nft.Chain{Name: k.translate(p)}
	to := nft.Join(k.keyAndMark(), nft.Map(k.endpoints(), nft.First, nft.First),
		nft.SetMark(b.markFor(p), nft.Reg(lastReg)), k.nat(0))
	c.Add("chosen", to)
	c.Add("the first", nft.SetMark(0, nft.Reg(lastReg)))
	c.Add("the first", to)
	c.Add("the first by its id", k.keyAndMark(), nft.Map(k.picks(), nft.First, nft.First),
		nft.MarkFrom(nft.First))
	c.Add("the first by its id", to)
	c.Add("none, after all", nft.Drop)
	return c
}

// base is the tables' fixed part.
type base struct{ Config }

func (b base) markFor(p profile) uint32 {
	switch {
	case p.masquerades():
		return markHide
	case b.Bridges != "":
		return markKeep
	}
	return 0
}

// kinds are those of the frontends there may be.
func (b base) kinds() []kind {
	return slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return k.inside && len(b.Inside) == 0 })
}

// byLink matches packets of clients inside that come by a link, one match for each name
// that they may have.
func (b base) byLink() (list []nft.Exprs) {
	for _, prefix := range b.Inside {
		list = append(list, nft.In(prefix+"*"))
	}
	return list
}

func (b base) sets() []nftables.Set {
	var list []nftables.Set
	for _, k := range b.kinds() {
		list = append(list, k.sets()...)
	}
	for _, v := range nft.Versions {
		list = append(list, nftables.Set{Name: self(v), Concatenation: true,
			KeyType: nft.Concat(v.AddrType(), v.AddrType())})
	}
	return list
}

func (b base) chains() []nft.Chain {
	hook := func(name string, h *nftables.ChainHook, p *nftables.ChainPriority) nft.Chain {
		return nft.Chain{Name: name, Type: nftables.ChainTypeNAT, Hook: h, Priority: *p + early}
	}
	pre := hook("prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	out := hook("output", nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	post := hook("postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	post.Add("client is hidden", nft.Mark(markHide), nft.SetMark(0, nft.Reg(lastReg)), nft.Masquerade)
	var list []nft.Chain
	for _, v := range nft.Versions {
		at, node := kind{Version: v}, kind{Version: v, node: true}
		local, own := nft.Chain{Name: "local" + v.String()}, nft.Chain{Name: "node" + v.String()}
		for _, link := range b.byLink() {
			pre.Rules = append(pre.Rules, at.toInside().dispatch(link))
			own.Rules = append(own.Rules, node.toInside().dispatch(link))
		}
		if len(b.Inside) > 0 {
			out.Rules = append(out.Rules, at.toInside().dispatch(nil))
			own.Rules = append(own.Rules, node.toInside().dispatch(nft.Meta(expr.MetaKeyIIF, nft.Word(0)...)))
		}
		for _, c := range []*nft.Chain{&pre, &out} {
			c.Rules = append(c.Rules, at.dispatch(nil))
			c.Add("to the namespace itself", v.Match(), nft.ToLocal(), nft.GoTo(local.Name))
		}
		local.Add("not on the loopback", nft.To(v.Loopback()), nft.Accept)
		for _, p := range b.NodeAddrs {
			if nft.VersionOf(p.Addr()) == v {
				local.Add("a node's address", nft.To(p), nft.GoTo(own.Name))
			}
		}
		if len(b.NodeAddrs) == 0 {
			local.Add("any address", nft.GoTo(own.Name))
		}
		own.Rules = append(own.Rules, node.dispatch(nil))
		post.Add("an endpoint reaches itself", v.Match(),
			nft.Exprs{v.LoadSource(nft.First), v.LoadDestination(nft.Reg(v.Words()))},
			nft.InSet(self(v), nft.First), nft.Translated(), nft.Masquerade)
		if b.Bridges != "" {
			post.Add("client is kept", nft.Mark(markKeep), nft.In(b.Bridges+"*"), nft.Out(b.Bridges+"*"), v.Match(),
				nft.Exprs{v.LoadSource(nft.First)}, nft.NAT(expr.NATTypeSourceNAT, v, nft.First, 0))
		}
		list = append(list, own, local)
	}
	for _, k := range b.kinds() {
		list = append(list, k.translateChain(b, 1), k.translateChain(b, 1|hidden))
	}
	return append(list, pre, out, post)
}
