package sdn

import (
	"context"
	"errors"
	"iter"
	"net"
	"net/netip"
	"testing"
)

func TestMatch(t *testing.T) {
	t.Parallel()
	m := Meta{ID: "id", Base: Base{Key: Key{"o", "k", "n"}, Name: "name", Project: "p", Tags: []string{"a", "b"}}}
	for _, c := range []struct {
		q    Match
		want bool
	}{
		{Match{}, true},
		{Match{IDs: []ID{"x", "id"}}, true},
		{Match{IDs: []ID{"x"}}, false},
		{Match{Keys: []Key{{"o", "k", "n"}}}, true},
		{Match{Keys: []Key{{"o", "k", "m"}}}, false},
		{Match{Owner: "o", Kind: "k"}, true},
		{Match{Owner: "o", Kind: "j"}, false},
		{Match{Owner: "q"}, false},
		{Match{Names: []string{"name"}, Projects: []string{"p", "q"}}, true},
		{Match{Names: []string{"name"}, Projects: []string{"q"}}, false},
		{Match{Tags: []string{"b"}}, true},
		{Match{Tags: []string{"b", "c"}}, false},
	} {
		if got := c.q.Matches(m); got != c.want {
			t.Errorf("%+v matches: %v, want %v", c.q, got, c.want)
		}
	}
}

func TestPortQuery(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5")
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	p := Port{Network: "n", MAC: mac, Addresses: []Address{{"s4", v4}, {"s6", v6}}, DeviceID: "d", DeviceOwner: "o", Host: "h", Groups: []ID{"g1", "g2"}}
	for _, c := range []struct {
		q    PortQuery
		want bool
	}{
		{PortQuery{}, true},
		{PortQuery{Networks: []ID{"n"}, Devices: []string{"d"}, DeviceOwners: []string{"o"}, Hosts: []string{"h"}, MACs: []net.HardwareAddr{mac}}, true},
		{PortQuery{MACs: []net.HardwareAddr{{2, 0, 0, 0, 0, 2}}}, false},
		{PortQuery{Hosts: []string{""}}, false},
		{PortQuery{Groups: []ID{"g0", "g2"}}, true},
		{PortQuery{Groups: []ID{"g0"}}, false},
		{PortQuery{Subnets: []ID{"s4"}}, true},
		{PortQuery{Addresses: []netip.Addr{v6}}, true},
		{PortQuery{Subnets: []ID{"s4"}, Addresses: []netip.Addr{v4}}, true},
		{PortQuery{Subnets: []ID{"s4"}, Addresses: []netip.Addr{v6}}, false}, // not one and the same address
		{PortQuery{Subnets: []ID{"s4", "s6"}, Addresses: []netip.Addr{v6}}, true},
	} {
		if got := c.q.Matches(p); got != c.want {
			t.Errorf("%+v matches: %v, want %v", c.q, got, c.want)
		}
	}
}

func TestOtherQueries(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	cidr := netip.MustParsePrefix("10.0.0.0/24")
	addr := netip.MustParseAddr("192.0.2.1")
	for name, c := range map[string]struct{ got, want bool }{
		"external":        {NetworkQuery{External: &yes}.Matches(Network{External: true}), true},
		"not external":    {NetworkQuery{External: &no}.Matches(Network{External: true}), false},
		"subnet":          {SubnetQuery{Networks: []ID{"n"}, Pools: []ID{"p"}, CIDRs: []netip.Prefix{cidr}}.Matches(Subnet{Network: "n", Pool: "p", CIDR: cidr}), true},
		"subnet of other": {SubnetQuery{Networks: []ID{"n"}}.Matches(Subnet{Network: "m"}), false},
		"floating":        {FloatingIPQuery{Addresses: []netip.Addr{addr}, Ports: []ID{"p"}}.Matches(FloatingIP{Address: addr, Target: Target{Port: "p"}}), true},
		"floating other":  {FloatingIPQuery{Routers: []ID{"r"}}.Matches(FloatingIP{Router: "s"}), false},
		"router":          {RouterQuery{Subnets: []ID{"s"}}.Matches(Router{Interfaces: []RouterInterface{{Subnet: "t"}, {Subnet: "s"}}}), true},
		"router other":    {RouterQuery{Subnets: []ID{"s"}}.Matches(Router{}), false},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", name, c.got, c.want)
		}
	}
}

func TestAllAndFirst(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	stream := func(values []int, err error) iter.Seq2[int, error] {
		return func(yield func(int, error) bool) {
			for _, v := range values {
				if !yield(v, nil) {
					return
				}
			}
			if err != nil {
				yield(0, err)
			}
		}
	}
	if all, err := All(stream([]int{1, 2}, nil)); err != nil || len(all) != 2 {
		t.Errorf("All gave %v, %v", all, err)
	}
	if all, err := All(stream([]int{1}, broken)); !errors.Is(err, broken) || len(all) != 1 {
		t.Errorf("All of a broken stream gave %v, %v", all, err)
	}
	if v, found, err := First(stream([]int{7, 8}, broken)); v != 7 || !found || err != nil {
		t.Errorf("First gave %v, %v, %v", v, found, err)
	}
	if _, found, err := First(stream(nil, nil)); found || err != nil {
		t.Errorf("First of nothing gave %v, %v", found, err)
	}
	if _, found, err := First(stream(nil, broken)); found || !errors.Is(err, broken) {
		t.Errorf("First of a broken stream gave %v, %v", found, err)
	}
}

// namedNetworks has networks, and counts how often it is asked for one by its ID.
type namedNetworks struct {
	Networks
	all  []Network
	byID int
}

func (n *namedNetworks) Network(_ context.Context, id ID) (Network, error) {
	n.byID++
	for _, network := range n.all {
		if network.ID == id {
			return network, nil
		}
	}
	return Network{}, NotFound("network", id)
}

func (n *namedNetworks) FindNetworks(_ context.Context, q NetworkQuery) iter.Seq2[Network, error] {
	return func(yield func(Network, error) bool) {
		for _, network := range n.all {
			if q.Matches(network) && !yield(network, nil) {
				return
			}
		}
	}
}

func TestNetworkByName(t *testing.T) {
	t.Parallel()
	const id, asName = "1a2b3c4d-1111-4222-8333-444455556666", "1a2b3c4d-1111-4222-8333-000000000000"
	n := &namedNetworks{all: []Network{
		{Meta: Meta{ID: id, Base: Base{Name: "blue"}}}, {Meta: Meta{ID: "x", Base: Base{Name: "red"}}},
		{Meta: Meta{ID: "y", Base: Base{Name: "red"}}}, {Meta: Meta{ID: "z", Base: Base{Name: asName}}},
	}}
	for text, want := range map[string]ID{id: id, "blue": id, asName: "z"} {
		if got, err := NetworkByName(t.Context(), n, "network", text); err != nil || got.ID != want {
			t.Errorf("%s: %s, %v; want %s", text, got.ID, err, want)
		}
	}
	if n.byID != 2 {
		t.Errorf("asked by ID %d times, want 2", n.byID)
	}
	if _, err := NetworkByName(t.Context(), n, "f", "green"); !IsNotFound(err) || FieldOf(err) != "f" {
		t.Errorf("no network: %v", err)
	}
	if _, err := NetworkByName(t.Context(), n, "f", "red"); ReasonOf(err) != Exists || FieldOf(err) != "f" {
		t.Errorf("two networks: %v", err)
	}
}
