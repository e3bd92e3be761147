package cni

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/bind/vifexec"
	"github.com/kuryr/kuryr/sdn"
)

func example() Plugged {
	return Plugged{
		Port: sdn.Port{MAC: net.HardwareAddr{0xfa, 0x16, 0x3e, 0, 0, 1}, Addresses: []sdn.Address{
			{Subnet: "4", Addr: netip.MustParseAddr("10.1.0.5")}, {Subnet: "6", Addr: netip.MustParseAddr("fd00:1::5")},
		}},
		MTU: 1400, Name: "eth0", Namespace: "/run/netns/a", Host: "tap1",
		Subnets: []sdn.Subnet{
			{
				Meta: sdn.Meta{ID: "4"}, CIDR: netip.MustParsePrefix("10.1.0.0/16"), Gateway: netip.MustParseAddr("10.1.0.1"),
				HostRoutes:  []sdn.HostRoute{{Destination: netip.MustParsePrefix("192.0.2.0/24"), NextHop: netip.MustParseAddr("10.1.0.9")}},
				Nameservers: []netip.Addr{netip.MustParseAddr("10.1.0.2")},
			},
			{Meta: sdn.Meta{ID: "6"}, CIDR: netip.MustParsePrefix("fd00:1::/64")},
			{Meta: sdn.Meta{ID: "other"}, CIDR: netip.MustParsePrefix("10.9.0.0/16"), Gateway: netip.MustParseAddr("10.9.0.1")},
		},
	}
}

// The JSON of each version of the specification; that of 0.1.0 and 0.2.0 is the flat-mode design's.
func TestResultOfEachVersion(t *testing.T) {
	const dns = `"dns": {"nameservers": ["10.1.0.2"]}`
	old := `{"cniVersion": %q, "ip4": {"ip": "10.1.0.5/16", "gateway": "10.1.0.1", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "192.0.2.0/24", "gw": "10.1.0.9"}]},
		"ip6": {"ip": "fd00:1::5/64"}, ` + dns + `}`
	routes := `"routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "192.0.2.0/24", "gw": "10.1.0.9"}], ` + dns + `}`
	middle := `{"cniVersion": %q, "interfaces": [{"name": "tap1"}, {"name": "eth0", "mac": "fa:16:3e:00:00:01", "sandbox": "/run/netns/a"}],
		"ips": [{"version": "4", "interface": 1, "address": "10.1.0.5/16", "gateway": "10.1.0.1"}, {"version": "6", "interface": 1, "address": "fd00:1::5/64"}], ` + routes
	newest := `{"cniVersion": %q, "interfaces": [{"name": "tap1"}, {"name": "eth0", "mac": "fa:16:3e:00:00:01", "mtu": 1400, "sandbox": "/run/netns/a"}],
		"ips": [{"interface": 1, "address": "10.1.0.5/16", "gateway": "10.1.0.1"}, {"interface": 1, "address": "fd00:1::5/64"}], ` + routes
	of := map[string]string{"0.1.0": old, "0.2.0": old, "0.3.0": middle, "0.3.1": middle, "0.4.0": middle, "1.0.0": newest, "1.1.0": newest}
	for _, version := range Versions {
		data, err := Encode(example().Result(), version)
		if err != nil {
			t.Fatal(err)
		}
		var got, want any
		if err := errors.Join(json.Unmarshal(data, &got), json.Unmarshal(fmt.Appendf(nil, of[version], version), &want)); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n%s", version, data)
		}
	}
	none := example()
	none.Port.Addresses = nil
	if _, err := Encode(none.Result(), "0.2.0"); AsError(err) == nil {
		t.Error("0.2.0 has no result without an address")
	}
}

// Each kind of the contract's errors is one row of the table.
func TestErrorsOfTheSDN(t *testing.T) {
	for _, row := range []struct {
		err  error
		want Kind
	}{
		{sdn.NotFound("port", "a"), NotFound},
		{fmt.Errorf("plug: %w", sdn.NotFound("network namespace", "/run/netns/a")), UnknownContainer},
		{sdn.Exhausted(sdn.NoAddresses, "subnet", "full"), Exhausted},
		{sdn.Conflict(sdn.AddressInUse, "port", "ips", "taken"), Conflict},
		{sdn.Invalid("port", "ips", "wrong"), BadConfig},
		{&sdn.Error{Kind: sdn.KindDenied}, Denied},
		{sdn.Unsupported("port", "no"), UnsupportedField},
		{sdn.Unavailable(nil, "SDN", "away"), Unavailable},
		{&sdn.Error{Kind: sdn.KindPending}, TryAgain},
		{TimedOut.Errorf("late"), TimedOut},
		{fmt.Errorf("unplug: %w", &vifexec.Error{Program: "/vendor", Err: errors.New("exit status 1")}), ExecutableFailed},
		{errors.New("two\nlines"), Internal},
	} {
		e := AsError(row.err)
		if e.Code != row.want.Code || KindOf(e.Code) != row.want || strings.Contains(e.Details, "\n") {
			t.Errorf("%v is %+v", row.err, e)
		}
		var shown map[string]any
		if err := json.Unmarshal(EncodeError(e, "0.4.0"), &shown); err != nil || shown["cniVersion"] != "0.4.0" || shown["code"] != float64(row.want.Code) || shown["msg"] != row.want.Name {
			t.Errorf("%v: %v", shown, err)
		}
	}
	if AsError(nil) != nil {
		t.Error("no error is one")
	}
}
