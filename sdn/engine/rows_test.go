package engine

import (
	"bytes"
	"encoding/json"
	"flag"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
)

var update = flag.Bool("update", false, "write testdata anew")

// samples has one row of each noun with every field set.
func samples() map[string]any {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	meta := sdn.Meta{ID: "id", Base: sdn.Base{Key: sdn.Key{Owner: "o", Kind: "k", Name: "n"}, Name: "name", Description: "d", Project: "p", Tags: []string{"t"}}, Revision: 7, Created: at, Updated: at}
	v4, v6 := netip.MustParseAddr("10.0.0.5"), netip.MustParseAddr("fd00::5")
	routes := []sdn.HostRoute{{Destination: prefix("10.9.0.0/16"), NextHop: v4}}
	address := []sdn.Address{{Subnet: "s", Addr: v4}, {Subnet: "t", Addr: v6}}
	target := sdn.Target{Port: "port", Addr: v4}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	return map[string]any{
		"network": &NetworkRow{Network: sdn.Network{Meta: meta, MTU: 1500, External: true, Shared: true, NoPortSecurity: true, Disabled: true, Subnets: []sdn.ID{"s"}}, Ports: 3, Bound: 2, Own: true},
		"subnet": &subnetRow{sdn.Subnet{
			Meta: meta, Network: "n", CIDR: prefix("10.0.0.0/24"), Pool: "p", Gateway: v4, Ranges: []sdn.AddressRange{{First: v4, Last: v4}}, Reserved: []netip.Addr{v4},
			Mode: sdn.Static, NoDHCP: true, Nameservers: []netip.Addr{v6}, HostRoutes: routes,
			ServiceTypes: []string{"compute:x"},
		}},
		"subnetpool": &subnetPoolRow{sdn.SubnetPool{Meta: meta, Prefixes: []netip.Prefix{prefix("10.0.0.0/8")}, DefaultLen: 24, MinLen: 8, MaxLen: 32, Shared: true, Default: true, DefaultQuota: 5}},
		"port": &PortRow{Own: true, Trunk: "t", VLAN: 9, Port: sdn.Port{
			Meta: meta, Network: "n", MAC: mac, Addresses: address, DeviceID: "d", DeviceOwner: "o", Host: "h", NoPortSecurity: true,
			AllowedPairs: []sdn.AllowedPair{{Prefix: prefix("10.0.0.0/28"), MAC: mac}}, QoSPolicy: "q", Disabled: true, Groups: []sdn.ID{"g"},
		}},
		"trunk": &TrunkRow{sdn.Trunk{Meta: meta, Parent: "p"}},
		"router": &RouterRow{Networks: []sdn.ID{"n"}, Uplink: "u", Router: sdn.Router{
			Meta: meta, Gateway: &sdn.ExternalGateway{Network: "x", SNAT: true, Addresses: address}, Interfaces: []sdn.RouterInterface{{Subnet: "s", Addr: v4, Port: "p"}}, Routes: routes, Disabled: true,
		}},
		"floatingip": &FloatingIPRow{FloatingIP: sdn.FloatingIP{Meta: meta, Network: "x", Address: v4, Target: target, Router: "r"}, Holder: "h", Subnet: "s", Forwards: 2},
		"forward": &ForwardRow{
			Forward: sdn.Forward{ID: "id", Protocol: sdn.TCP, External: sdn.PortRange{First: 1, Last: 2}, Target: target, Internal: sdn.PortRange{First: 3, Last: 4}},
			Meta:    meta, FloatingIP: "f", Address: v4, Subnet: "s", Router: "r", Via: 5,
		},
		"security_group": &SecurityGroupRow{Default: true, Defined: 6, SecurityGroup: sdn.SecurityGroup{Meta: meta, Stateless: true, Rules: []sdn.Rule{{
			ID: "rule", Description: "d", Direction: sdn.Ingress, IPv6: true, Protocol: sdn.TCP, Ports: sdn.PortRange{First: 1, Last: 2}, ICMPType: new(uint8(3)), ICMPCode: new(uint8(4)),
			RemotePrefix: prefix("fd00::/8"), RemoteGroup: "g", RemoteSet: "s",
		}}}},
		"address_group": &AddressGroupRow{Defined: 6, AddressGroup: sdn.AddressGroup{Meta: meta, Prefixes: []netip.Prefix{prefix("10.0.0.0/8")}}},
		"loadbalancer": &LoadBalancerRow{sdn.LoadBalancer{
			Meta: meta, VIPs: []sdn.VIP{{Subnet: "s", Addr: v4, Port: "port"}},
			Listeners: []sdn.Listener{{ID: "l", Name: "name", Description: "d", Protocol: sdn.TCP, Port: 80, Sources: []netip.Prefix{prefix("10.0.0.0/8")}, Pool: sdn.Pool{
				ID: "pool", Name: "name", Description: "d", Algorithm: sdn.RoundRobin, Affinity: sdn.Affinity{ClientIP: true, Timeout: time.Hour},
				Members: []sdn.Member{{ID: "m", Name: "name", Addr: netip.AddrPortFrom(v4, 8080), Subnet: "s", Weight: 2, Drain: true}},
			}}, {ID: "l2", Protocol: sdn.UDP, Port: 80, WithoutPool: true}},
			Pools: []sdn.Pool{{ID: "free", Protocol: sdn.UDP}},
		}},
		"qos_policy": &QoSPolicyRow{sdn.QoSPolicy{Meta: meta, Shared: true, Swapped: true, Limits: sdn.Limits{IngressKbps: 1, EgressKbps: 2, IngressBurst: 3, EgressBurst: 4, DSCP: 5}}},
	}
}

// TestStoredForm fails when what is written to the store changes. A change that is meant needs a
// new schema version with a migration (schema.go), and then this test's -update.
func TestStoredForm(t *testing.T) {
	t.Parallel()
	for name, row := range samples() {
		got, err := json.MarshalIndent(row, "", "  ")
		ok(t, err)
		path := filepath.Join("testdata", "stored", name+".json")
		if *update {
			ok(t, os.MkdirAll(filepath.Dir(path), 0o755))
			ok(t, os.WriteFile(path, got, 0o644))
		}
		want, err := os.ReadFile(path)
		ok(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("%s is stored as\n%s\nno longer as\n%s", name, got, want)
		}
	}
}

// FuzzDecode: whatever is in a record, decoding gives an error or a row whose id is the record's.
func FuzzDecode(f *testing.F) {
	for _, row := range samples() {
		data, err := json.Marshal(row)
		ok(f, err)
		f.Add(data)
	}
	f.Add([]byte(`{"ID":"other"}`))
	f.Add([]byte(`{"ID":"id","MAC":5}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		id := []byte("id")
		check := func(m *sdn.Meta, err error) {
			if err == nil && m.ID != "id" {
				t.Errorf("decoded %q as the record of id", m.ID)
			}
			if err != nil && !sdn.IsUnavailable(err) {
				t.Errorf("the error %v is not typed", err)
			}
		}
		try(check, Networks, id, data)
		try(check, Subnets, id, data)
		try(check, subnetPools, id, data)
		try(check, Ports, id, data)
		try(check, Trunks, id, data)
		try(check, Routers, id, data)
		try(check, FloatingIPs, id, data)
		try(check, Forwards, id, data)
		try(check, SecurityGroups, id, data)
		try(check, AddressGroups, id, data)
		try(check, QoSPolicies, id, data)
		try(check, LoadBalancers, id, data)
		try(check, accesses, id, data)
		try(check, addressScopes, id, data)
		_, _ = decodeInterval(data[:len(data)/2], data[len(data)/2:])
	})
}

func try[T any, R row[T]](check func(*sdn.Meta, error), t table[T, R], id, data []byte) {
	r, err := t.decode(id, data)
	var m *sdn.Meta
	if err == nil {
		m = r.meta()
		for _, ix := range t.indexes {
			ix.keys(r)
		}
	}
	check(m, err)
}

// A pool of several prefixes is found once, also by a range that all of them are in.
func TestOverlapsFindsEachOnce(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	_, err := p.EnsureSubnetPool(t.Context(), sdn.SubnetPoolSpec{Prefixes: []netip.Prefix{prefix("10.1.0.0/24"), prefix("10.3.0.0/24")}})
	ok(t, err)
	for _, r := range []string{"0.0.0.0/0", "10.0.0.0/8"} {
		found, err := sdn.All(p.FindSubnetPools(t.Context(), sdn.SubnetPoolQuery{Overlaps: []netip.Prefix{prefix(r)}}))
		if err != nil || len(found) != 1 {
			t.Errorf("%s: %d pools, %v; want one", r, len(found), err)
		}
	}
}

// TestFirstPartsOfKey checks that an index lists rows by the first parts of its keys.
func TestFirstPartsOfKey(t *testing.T) {
	t.Parallel()
	p := open(t, Options{})
	n, err := p.EnsureNetwork(t.Context(), sdn.NetworkSpec{})
	ok(t, err)
	q, err := p.ApplyQoSPolicy(t.Context(), sdn.QoSPolicySpec{})
	ok(t, err)
	made, err := p.EnsurePorts(t.Context(), []sdn.PortSpec{
		{Network: n.ID, Host: testHost, QoSPolicy: q.ID}, {Network: n.ID, QoSPolicy: q.ID}, {Network: n.ID},
	})
	ok(t, err)
	plugged, unplugged := made[0].ID, made[1].ID
	for k, want := range map[string][]sdn.ID{
		string(q.ID):                         {plugged, unplugged},
		key(string(q.ID), pluggedPlace):      {plugged},
		key(string(q.ID), "0", string(n.ID)): {unplugged},
	} {
		var got []sdn.ID
		ok(t, p.view(func(b Tx) error {
			rows, err := Ports.All(b, "qos", k)
			for _, r := range rows {
				got = append(got, r.ID)
			}
			return err
		}))
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%q lists %v, want %v", k, got, want)
		}
	}
}
