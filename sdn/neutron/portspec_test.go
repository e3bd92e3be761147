package neutron

import (
	"encoding/json"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

func address(subnet sdn.ID, addr string) sdn.Address {
	a := sdn.Address{Subnet: subnet}
	if addr != "" {
		a.Addr = netip.MustParseAddr(addr)
	}
	return a
}

func TestKeepAddresses(t *testing.T) {
	mac := net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}
	auto := address("slaac", "fd00::ff:fe00:1")
	have := []sdn.Address{address("v4", "10.0.0.5"), address("v4", "10.0.0.6"), auto}
	for _, c := range []struct {
		name        string
		asked, want []sdn.Address
		same        bool
	}{
		{"all of it", []sdn.Address{address("v4", ""), address("v4", "")}, have[:2], true},
		{"by address", []sdn.Address{address("", "10.0.0.6"), address("v4", "")}, []sdn.Address{have[1], have[0]}, true},
		{"the named one is not taken by another", []sdn.Address{address("v4", ""), address("v4", "10.0.0.5")}, []sdn.Address{have[1], have[0]}, true},
		{"one less", []sdn.Address{address("v4", "10.0.0.6")}, []sdn.Address{have[1]}, false},
		{"one more", []sdn.Address{address("v4", ""), address("v4", ""), address("v6", "")}, []sdn.Address{have[0], have[1], address("v6", "")}, false},
		{"another", []sdn.Address{address("", "10.0.0.9")}, []sdn.Address{address("", "10.0.0.9")}, false},
		{"of another subnet", []sdn.Address{address("other", "10.0.0.5")}, []sdn.Address{address("other", "10.0.0.5")}, false},
		{"none", []sdn.Address{}, []sdn.Address{}, false},
	} {
		got, same := keep(sdn.Port{MAC: mac, Addresses: have}, c.asked)
		if !slices.Equal(got, c.want) || same != c.same {
			t.Errorf("%s: %v, %v, want %v, %v", c.name, got, same, c.want, c.same)
		}
	}
	if _, same := keep(sdn.Port{MAC: mac, Addresses: []sdn.Address{auto}}, nil); !same {
		t.Error("the address that Neutron made of the MAC counts")
	}
}

func TestDifference(t *testing.T) {
	off := true
	spec := sdn.PortSpec{
		Base: sdn.Base{Name: "n", Tags: []string{"b", "a"}}, Network: "net", DeviceID: "d", DeviceOwner: "o", Host: "h", Groups: []sdn.ID{"g2", "g1"},
		Profile: map[string]json.RawMessage{"k": sdn.ProfileString("v")}, NoPortSecurity: &off, AllowedPairs: []sdn.AllowedPair{{Prefix: netip.MustParsePrefix("10.0.0.0/24")}}, QoSPolicy: "q",
	}
	is := sdn.Port{
		Meta: sdn.Meta{ID: "p", Base: sdn.Base{Name: "n", Tags: []string{"a", "b"}}}, Network: "net", DeviceID: "d", DeviceOwner: "o", Host: "h", Groups: []sdn.ID{"g1", "g2"},
		Profile: map[string]json.RawMessage{"k": sdn.ProfileString("v")}, NoPortSecurity: true, AllowedPairs: spec.AllowedPairs, QoSPolicy: "q",
	}
	if c, differs, err := difference(is, spec); differs || err != nil {
		t.Errorf("of the same: %+v, %v", c, err)
	}
	if c, differs, err := difference(is, sdn.PortSpec{Network: "net"}); differs || err != nil {
		t.Errorf("a spec that says nothing changes %+v, %v", c, err)
	}
	other := is
	other.Name, other.Host, other.Groups, other.Disabled = "m", "", nil, false
	spec.Disabled = true
	c, differs, err := difference(other, spec)
	if err != nil || !differs || *c.Name != "n" || *c.Host != "h" || !sameSet(*c.Groups, spec.Groups) || !*c.Disabled || c.DeviceID != nil || c.Tags != nil || c.NoPortSecurity != nil {
		t.Errorf("the change is %+v, %v", c, err)
	}
	for field, moved := range map[string]sdn.PortSpec{
		"network": {Network: "other"}, "vnic_type": {Network: "net", VNICType: sdn.VNICDirect}, "project": {Network: "net", Base: sdn.Base{Project: "other"}},
	} {
		if _, _, err := difference(is, moved); sdn.ReasonOf(err) != sdn.Immutable || sdn.FieldOf(err) != field {
			t.Errorf("another %s: %v", field, err)
		}
	}
}

// Neutron refuses a list that has a group twice.
func TestGroupsAreASet(t *testing.T) {
	body := portBody(sdn.PortPatch{Groups: &[]sdn.ID{"b", "a", "b"}})
	if groups, _ := body["security_groups"].([]sdn.ID); !slices.Equal(groups, []sdn.ID{"a", "b"}) {
		t.Errorf("the groups are %v", body["security_groups"])
	}
	if groups, ok := portBody(sdn.PortPatch{Groups: &[]sdn.ID{}})["security_groups"].([]sdn.ID); !ok || groups == nil || len(groups) > 0 {
		t.Error("no groups at all are not said")
	}
}

// Neutron refuses to switch port security off while there is something to enforce.
func TestWithoutPortSecurityThereAreNoGroups(t *testing.T) {
	off, on := true, false
	body := portBody(sdn.PortPatch{NoPortSecurity: &off})
	if groups, ok := body["security_groups"].([]sdn.ID); !ok || len(groups) != 0 || body["port_security_enabled"] != false {
		t.Errorf("the body is %v", body)
	}
	if body := portBody(sdn.PortPatch{NoPortSecurity: &on}); len(body) != 1 {
		t.Errorf("the body to switch it on is %v", body)
	}
}

func TestDecodePort(t *testing.T) {
	w := &portWire{
		meta: meta{ID: "p", Description: testKey("k").String(), Revision: 3}, MAC: "fa:16:3e:00:00:01", VNICType: "normal",
		FixedIPs:   []fixedIP{{"v6", "fd00::5"}, {"v4", "10.0.0.20"}, {"v4", "10.0.0.3"}},
		Pairs:      []pairWire{{"10.0.0.9", "fa:16:3e:00:00:01"}, {"10.1.0.0/24", "fa:16:3e:00:00:02"}},
		VIFDetails: map[string]any{"port_filter": true, "bridge_name": "br-int", "bound_drivers": map[string]any{"0": "ovn"}},
	}
	p, err := w.decode(ownerOf("test"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []sdn.Address{address("v4", "10.0.0.3"), address("v4", "10.0.0.20"), address("v6", "fd00::5")}; !slices.Equal(p.Addresses, want) {
		t.Errorf("the addresses are %v, want %v", p.Addresses, want)
	}
	if p.Foreign || p.Key != testKey("k") || p.VNICType != sdn.VNICNormal || p.NoPortSecurity || p.Disabled {
		t.Errorf("the port is %+v", p)
	}
	if p.AllowedPairs[0].MAC != nil || p.AllowedPairs[0].Prefix != netip.MustParsePrefix("10.0.0.9/32") || p.AllowedPairs[1].MAC == nil {
		t.Errorf("the allowed pairs are %v", p.AllowedPairs)
	}
	if d := p.VIF.Details; d["port_filter"] != "true" || d[sdn.DetailBridge] != "br-int" || d["bound_drivers"] != `{"0":"ovn"}` {
		t.Errorf("the details are %v", d)
	}
	w.MAC = "nonsense"
	if _, err := w.decode(ownerOf("test")); !sdn.IsUnavailable(err) {
		t.Errorf("of a MAC that is none: %v", err)
	}
}

// What policy leaves out of an answer is not mistaken for what is empty.
func TestHiddenBinding(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		want   []string
	}{
		"unbound":    {`"binding:host_id": "", "binding:vif_type": "unbound", "binding:vif_details": {}`, nil},
		"bound":      {`"binding:host_id": "h", "binding:vif_type": "ovs", "binding:vif_details": {}`, nil},
		"failed":     {`"binding:host_id": "h", "binding:vif_type": "binding_failed", "binding:vif_details": {}`, nil},
		"no host":    {`"binding:vif_type": "ovs", "binding:vif_details": {"port_filter": true}`, []string{"binding:host_id"}},
		"no type":    {`"binding:host_id": "h", "binding:vif_details": {}`, []string{"binding:vif_type"}},
		"no details": {`"binding:host_id": "h", "binding:vif_type": "ovs"`, []string{"binding:vif_details"}},
		"nothing":    {`"binding:vnic_type": "normal"`, []string{"binding:host_id", "binding:vif_type", "binding:vif_details"}},
	} {
		var w portWire
		if err := json.Unmarshal([]byte(`{"id": "p", "mac_address": "fa:16:3e:00:00:01", `+c.answer+`}`), &w); err != nil {
			t.Fatal(err)
		}
		if p, err := w.decode(ownerOf("test")); err != nil || !slices.Equal(p.VIF.Hidden, c.want) {
			t.Errorf("%s: hidden is %v, want %v (%v)", name, p.VIF.Hidden, c.want, err)
		}
	}
}

func TestAddressesAsAsked(t *testing.T) {
	p := sdn.Port{Addresses: []sdn.Address{address("v4", "10.0.0.3"), address("v6", "fd00::5"), address("v6", "fd00::6")}}
	got := asAsked(p, []sdn.Address{address("v6", ""), address("", "10.0.0.3")})
	if want := []sdn.Address{address("v6", "fd00::5"), address("v6", "fd00::6"), address("v4", "10.0.0.3")}; !slices.Equal(got.Addresses, want) {
		t.Errorf("the addresses are %v, want %v", got.Addresses, want)
	}
}

func TestRefusedPorts(t *testing.T) {
	for field, spec := range map[string]sdn.PortSpec{
		"addresses":        {WithoutAddresses: true, Addresses: []sdn.Address{}},
		"groups":           {WithoutGroups: true, Groups: []sdn.ID{}},
		"mac":              {MAC: net.HardwareAddr{3, 0, 0, 0, 0, 1}},
		"allowed_pairs[1]": {AllowedPairs: []sdn.AllowedPair{{Prefix: netip.MustParsePrefix("10.0.0.0/24")}, {}}},
		"addresses[0]":     {Addresses: []sdn.Address{{}}},
		"addresses[1]":     {Addresses: []sdn.Address{address("", "10.0.0.1"), address("v4", "10.0.0.1")}},
		"device_id":        {DeviceID: string(make([]byte, 300))},
	} {
		if err := checkSpec(spec); !sdn.IsInvalid(err) || sdn.FieldOf(err) != field {
			t.Errorf("got %v, want one that names %s", err, field)
		}
	}
}

// TestPairs: a single address is written without its length, by which OVN's driver knows it for another port's.
func TestPairs(t *testing.T) {
	var allowed []sdn.AllowedPair
	for _, p := range []string{"10.0.0.9/32", "10.0.1.0/24", "fd00::9/128", "fd00::/64"} {
		allowed = append(allowed, sdn.AllowedPair{Prefix: netip.MustParsePrefix(p)})
	}
	want := []pairWire{{Prefix: "10.0.0.9"}, {Prefix: "10.0.1.0/24"}, {Prefix: "fd00::9"}, {Prefix: "fd00::/64"}}
	if got := pairs(allowed); !slices.Equal(got, want) {
		t.Errorf("the pairs are %v, want %v", got, want)
	}
}

// What others have written of single addresses is written back as it was: OVN's driver reads it.
func TestPairsKeepTheirForm(t *testing.T) {
	t.Parallel()
	written := []pairWire{{Prefix: "10.0.0.9"}, {Prefix: "10.0.0.9/32"}, {Prefix: "fd00::9"}, {Prefix: "fd00::9/128"}, {Prefix: "10.0.0.0/24"}}
	w := portWire{MAC: "fa:16:3e:00:00:01", Pairs: written}
	p, err := w.decode(ownerOf("test"))
	if err != nil {
		t.Fatal(err)
	}
	if got := pairs(p.AllowedPairs); !slices.Equal(got, written) {
		t.Errorf("%v came back as %v", written, got)
	}
}

// The values of a profile keep their types. Their JSON is in its shortest form, so that it can be compared.
func TestProfileValues(t *testing.T) {
	got := profile(map[string]json.RawMessage{"n": []byte("12345678901234567890"), "o": []byte(`{ "b": [ null, 1.50 ] }`), "t": []byte(`"\u0061"`)})
	want := map[string]json.RawMessage{"n": []byte("12345678901234567890"), "o": []byte(`{"b":[null,1.50]}`), "t": []byte(`"a"`)}
	if !sdn.SameProfile(got, want) {
		t.Errorf("profile is %s, want %s", got, want)
	}
}
