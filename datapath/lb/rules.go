//go:build linux

package lb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// early is before others' translations of the same hook (Docker's, package fabric's, package hostport's), so that none depends on who started first.
const early = -7

// The marks that a connection's first packet has from its translation on until it leaves. No route is chosen by them: nobody else uses such numbers.
const (
	markHide = 0x6b757268 // its source is to be masqueraded
	markKeep = 0x6b75726b // its source is to be kept between bridges, whatever others' rules say
)

// clientsAtMost is how many clients are remembered; who comes then is led all the same, and not remembered. Memory is used as they come.
const clientsAtMost = 1 << 18

// kind is what differs between the maps of a family's frontends, between those with an address and those of the namespace's own addresses, whose keys have none, and between those
// for everybody and those for clients inside.
type kind struct {
	version
	node, inside bool
}

var kinds = []kind{{v4, false, false}, {v6, false, false}, {v4, true, false}, {v6, true, false}, {v4, false, true}, {v6, false, true}, {v4, true, true}, {v6, true, true}}

func (k kind) String() string {
	var b strings.Builder
	if k.node {
		b.WriteString("_node")
	}
	if k.inside {
		b.WriteString("_inside")
	}
	return b.String() + k.version.String()
}

// toInside is the kind for clients inside, toAll that for everybody.
func (k kind) toInside() kind { k.inside = true; return k }
func (k kind) toAll() kind    { k.inside = false; return k }

// keyWords is how many registers a key fills.
func (k kind) keyWords() int {
	if k.node {
		return 2
	}
	return k.words() + 2
}

func (k kind) keyType() []nftables.SetDatatype {
	service := []nftables.SetDatatype{nftables.TypeInetProto, nftables.TypeInetService}
	if k.node {
		return service
	}
	return append([]nftables.SetDatatype{k.addrType()}, service...)
}

// The names of the maps and sets of a kind. A key is [address .] protocol . port.
func (k kind) services() string  { return "service" + k.String() }        // key -> profile
func (k kind) endpoints() string { return "endpoint" + k.String() }       // key . slot or id -> address . port
func (k kind) picks() string     { return "pick" + k.String() }           // key . slot -> id, of those with affinity
func (k kind) clients() string   { return "client" + k.String() }         // key . client -> id, as connections come
func (k kind) sources() string   { return "source" + k.toAll().String() } // key . range of clients
func (k kind) profiles() string  { return "profile" + k.String() }        // profile -> chain
func (k kind) owed() string      { return "owed" + k.String() }           // key of a frontend that went, of which flows may be left. No rule reads it
func (v version) self() string   { return "self" + v.String() }           // endpoint . itself

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
	concat := nftables.MustConcatSetType
	key, mark := k.keyType(), nftables.TypeMark
	with := func(more ...nftables.SetDatatype) nftables.SetDatatype {
		return concat(append(k.keyType(), more...)...)
	}
	to := concat(k.addrType(), nftables.TypeInetService)
	list := []nftables.Set{
		{Name: k.services(), IsMap: true, Concatenation: true, KeyType: concat(key...), DataType: mark},
		{Name: k.endpoints(), IsMap: true, Concatenation: true, KeyType: with(mark), DataType: to},
		{Name: k.picks(), IsMap: true, Concatenation: true, KeyType: with(mark), DataType: mark},
		{Name: k.clients(), IsMap: true, Concatenation: true, KeyType: with(k.addrType()), DataType: mark, Dynamic: true, HasTimeout: true, Size: clientsAtMost},
		{Name: k.profiles(), IsMap: true, KeyType: mark, DataType: nftables.TypeVerdict},
	}
	if k.inside { // a frontend's other sets are of both
		return list
	}
	return append(list,
		nftables.Set{Name: k.sources(), Concatenation: true, Interval: true, KeyType: with(k.addrType())},
		nftables.Set{Name: k.owed(), Concatenation: true, KeyType: concat(key...)})
}

// key loads the key from the first register on.
func (k kind) key() exprs {
	n := 0
	e := k.matches()
	if !k.node {
		e = append(e, k.loadDestination(0))
		n = k.words()
	}
	return append(e, loadMeta(expr.MetaKeyL4PROTO, n), load(ports, 2, 2, n+1))
}

func (k kind) keyAndMark() exprs   { return append(k.key(), loadMeta(expr.MetaKeyMARK, k.keyWords())) }
func (k kind) keyAndClient() exprs { return append(k.key(), k.loadSource(k.keyWords())) }

// client does something with the element of the packet's client, which stands for the mark.
func (k kind) client(operation uint32, timeout time.Duration) exprs {
	data := k.keyWords() + k.words()
	return append(k.keyAndClient(), loadMeta(expr.MetaKeyMARK, data),
		&expr.Dynset{SrcRegKey: reg(0), SrcRegData: reg(data), SetName: k.clients(), Operation: operation, Timeout: timeout})
}

// dispatch takes packets to a frontend, of clients that match, to the chain of its profile.
func (k kind) dispatch(of exprs) rule {
	comment := "to a frontend"
	if k.inside {
		comment += ", from inside"
	}
	return rule{comment, join(of, k.key(), exprs{find(k.services(), 0), markFrom(0)}, byMark(k.profiles()))}
}

// lead is the chain of a profile.
func (k kind) leadChain(p profile) chain {
	c := chain{name: k.lead(p)}
	if p.restricted() {
		c.add("who may not", k.keyAndClient(), notInSet(k.sources()), drop)
	}
	if p.count() == 0 {
		if !p.drops() {
			c.add("no endpoint", proto(unix.IPPROTO_TCP), reset)
			c.add("no endpoint", refuse)
		}
		c.add("no endpoint", drop)
		return c
	}
	if p.timeout() == 0 {
		c.add("any endpoint", random(p.count()), goTo(k.translate(p)))
		return c
	}
	c.add("the same as before", k.keyAndClient(), exprs{find(k.clients(), 0), markFrom(0)}, jump(k.keep(p)))
	c.add("any endpoint", random(p.count()))
	c.add("by its id", k.keyAndMark(), exprs{find(k.picks(), 0), markFrom(0)})
	// Updating an element does not change what it stands for.
	c.add("the one before is gone", k.client(dynsetDelete, 0))
	c.add("remember", jump(k.keep(p)))
	c.add("cannot be remembered", goTo(k.translate(p)))
	return c
}

// keepChain remembers the endpoint whose id the mark is, and leads to it; it comes back if there is no such endpoint, or no room.
func (k kind) keepChain(b base, p profile) chain {
	c := chain{name: k.keep(p)}
	data := lastReg - k.words() // address and port in the last registers: an IPv6 client's key and mark fill all before them
	c.add("remember and lead", k.keyAndMark(), exprs{find(k.endpoints(), data)},
		k.client(dynsetUpdate, p.timeout()), exprs{&expr.Immediate{Register: reg(0), Data: word(b.markFor(p))}, markFrom(0)}, k.nat(data))
	return c
}

func (k kind) nat(at int) exprs {
	return exprs{&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(k.number()), RegAddrMin: reg(at), RegProtoMin: reg(at + k.words()), Specified: true}}
}

// translateChain leads to the endpoint whose slot or id the mark is. While frontends change a packet may have chosen by the old number of endpoints and look for it among the new
// ones: then it gets the first, which is there as long as any is.
func (k kind) translateChain(b base, p profile) chain {
	c := chain{name: k.translate(p)}
	to := join(k.keyAndMark(), exprs{find(k.endpoints(), 0)}, setMark(b.markFor(p)), k.nat(0))
	c.add("chosen", to)
	c.add("the first", setMark(0))
	c.add("the first", to)
	c.add("the first by its id", k.keyAndMark(), exprs{find(k.picks(), 0), markFrom(0)})
	c.add("the first by its id", to)
	c.add("none, after all", drop)
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

// byLink matches packets of clients inside that come by a link, one match for each name that they may have.
func (b base) byLink() (list []exprs) {
	for _, prefix := range b.Inside {
		list = append(list, pattern(expr.MetaKeyIIFNAME, prefix))
	}
	return list
}

func (b base) sets() []nftables.Set {
	var list []nftables.Set
	for _, k := range b.kinds() {
		list = append(list, k.sets()...)
	}
	for _, v := range versions {
		list = append(list, nftables.Set{Name: v.self(), Concatenation: true, KeyType: nftables.MustConcatSetType(v.addrType(), v.addrType())})
	}
	return list
}

var loopbacks = map[version]netip.Prefix{v4: netip.MustParsePrefix("127.0.0.0/8"), v6: netip.MustParsePrefix("::1/128")}

func (b base) chains() []chain {
	hook := func(name string, h *nftables.ChainHook, p *nftables.ChainPriority) chain {
		return chain{name: name, kind: nftables.ChainTypeNAT, hook: h, priority: *p + early}
	}
	pre := hook("prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	out := hook("output", nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	post := hook("postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	post.add("client is hidden", hasMark(markHide), setMark(0), masquerade)
	var list []chain
	for _, v := range versions {
		at, node := kind{version: v}, kind{version: v, node: true}
		local, own := chain{name: "local" + v.String()}, chain{name: "node" + v.String()}
		for _, link := range b.byLink() {
			pre.rules = append(pre.rules, at.toInside().dispatch(link))
			own.rules = append(own.rules, node.toInside().dispatch(link))
		}
		if len(b.Inside) > 0 {
			out.rules = append(out.rules, at.toInside().dispatch(nil))
			own.rules = append(own.rules, node.toInside().dispatch(byNoLink()))
		}
		for _, c := range []*chain{&pre, &out} {
			c.rules = append(c.rules, at.dispatch(nil))
			c.add("to the namespace itself", v.matches(), toLocal(), goTo(local.name))
		}
		local.add("not on the loopback", v.toPrefix(loopbacks[v]), accept)
		for _, p := range b.NodeAddrs {
			if versionOf(p.Addr()) == v {
				local.add("a node's address", v.toPrefix(p), goTo(own.name))
			}
		}
		if len(b.NodeAddrs) == 0 {
			local.add("any address", goTo(own.name))
		}
		own.rules = append(own.rules, node.dispatch(nil))
		post.add("an endpoint reaches itself", v.matches(), exprs{v.loadSource(0), v.loadDestination(v.words())}, inSet(v.self()), wasTranslated(), masquerade)
		if b.Bridges != "" {
			post.add("client is kept", hasMark(markKeep), pattern(expr.MetaKeyIIFNAME, b.Bridges), pattern(expr.MetaKeyOIFNAME, b.Bridges), v.matches(),
				exprs{v.loadSource(0), &expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(v.number()), RegAddrMin: reg(0)}})
		}
		list = append(list, own, local)
	}
	for _, k := range b.kinds() {
		list = append(list, k.translateChain(b, 1), k.translateChain(b, 1|hidden))
	}
	return append(list, pre, out, post)
}
