//go:build linux

package hostport

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/kuryr/kuryr/datapath/nft"
)

const (
	tableName = "kuryr_hostport"
	setEvery  = "every" // protocol and port -> address and port
	setOne    = "one"   // address of the host, protocol and port -> address and port
	// early is before Docker's translations and after the router's, so that none depends
	// on who started first.
	early = -4
)

var table = nft.Table{Name: tableName, Family: nftables.TableFamilyINet}

// sets are the maps of a version of IP.
func sets(v nft.Version) []nftables.Set {
	to := nft.Concat(v.AddrType(), nftables.TypeInetService)
	return []nftables.Set{
		{Name: setEvery + v.String(), IsMap: true, Concatenation: true, DataType: to,
			KeyType: nft.Concat(nftables.TypeInetProto, nftables.TypeInetService)},
		{Name: setOne + v.String(), IsMap: true, Concatenation: true, DataType: to,
			KeyType: nft.Concat(v.AddrType(), nftables.TypeInetProto, nftables.TypeInetService)},
	}
}

// chains translate what comes in, what the host itself sends, and the source of the latter.
func chains() []nft.Chain {
	nat := func(name string, h *nftables.ChainHook, p *nftables.ChainPriority) nft.Chain {
		return nft.Chain{Name: name, Type: nftables.ChainTypeNAT, Hook: h, Priority: *p + early}
	}
	in := nat("prerouting", nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest)
	own := nat("output", nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	out := nat("postrouting", nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	for _, v := range nft.Versions {
		for _, from := range []*nft.Chain{&in, &own} {
			from.Add("", translate(v, setOne))
			from.Add("", translate(v, setEvery))
		}
		out.Add("", fromLoopback(v))
	}
	return []nft.Chain{in, own, out}
}

// replace recreates the table with these mappings, or deletes it without any, in one transaction.
func replace(all []Mapping) error {
	c, err := nft.Dial(0)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	x := nft.Begin(c)
	x.AddTable(table) // so that there is one to delete
	x.DeleteTable(table)
	if len(all) > 0 {
		x.AddTable(table)
		for _, v := range nft.Versions {
			for _, s := range sets(v) {
				x.AddSet(table, s)
			}
		}
		x.AddChains(table, chains())
		x.AddElements(table, elements(all))
	}
	return x.Commit()
}

// change removes mappings and adds others in one transaction. It fails, and changes
// nothing, where the table is not as it was left.
func change(remove, add []Mapping) error {
	c, err := nft.Dial(0)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	x := nft.Begin(c)
	x.DeleteElements(table, elements(remove))
	x.AddElements(table, elements(add))
	return x.Commit()
}

func elements(list []Mapping) []nft.Element {
	var elements []nft.Element
	for _, m := range list {
		elements = append(elements, m.element())
	}
	return elements
}

// element is what the table has of a mapping.
func (m Mapping) element() nft.Element {
	set, key := setEvery, nft.Service(uint8(m.Protocol), m.Port)
	if face := m.face(); !face.IsUnspecified() {
		set, key = setOne, nft.Addr(face)+key
	}
	return nft.Element{Set: set + nft.VersionOf(m.To.Addr()).String(), Key: key,
		Value: nft.Endpoint(m.To)}
}

// translate sends what is for the host itself to where a set says.
func translate(v nft.Version, set string) nft.Exprs {
	local := nft.Join(v.Match(), nft.ToLocal())
	at := 0
	if set == setOne {
		local = append(local, v.LoadDestination(nft.Reg(0)))
		at = v.Words()
	}
	return nft.Join(local, nft.LoadService(at), nft.Map(set+v.String(), nft.First, nft.First),
		nft.NAT(expr.NATTypeDestNAT, v, nft.First, nft.Reg(v.Words())))
}

// fromLoopback gives what the host's loopback sends to a port of its own an address that can be
// answered.
func fromLoopback(v nft.Version) nft.Exprs {
	source := nft.Within(v.LoadSource(nft.First), v.Loopback())
	return nft.Join(v.Match(), nft.NotOut("lo"), source, nft.Translated(), nft.Masquerade)
}
