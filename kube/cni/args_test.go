package cni

import (
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// The flat-mode design shows arguments of both separators in one variable.
const ofDesign = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=nginx-app-722l8;K8S_POD_INFRA_CONTAINER_ID=8ceb00926acf251b34d70065a6158370953ab909b0745f5f4647ee6b9ec5c250;" +
	"PORT_UUID=a28c7404-7495-4557-b7fc-3e293508dbc6,IPV4=10.0.0.15/16,GW=10.0.0.1,PORT_TYPE=midonet"

func TestParseArgs(t *testing.T) {
	design := Args{
		PodNamespace: "default", PodName: "nginx-app-722l8", InfraContainer: "8ceb00926acf251b34d70065a6158370953ab909b0745f5f4647ee6b9ec5c250",
		Port: "a28c7404-7495-4557-b7fc-3e293508dbc6", PortType: "midonet",
		IPv4: netip.MustParsePrefix("10.0.0.15/16"), GW: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
	}
	all := design
	all.IPv6 = netip.MustParsePrefix("fd00::15/64")
	all.GW = append(all.GW, netip.MustParseAddr("fd00::1"))
	all.MAC, all.MTU = net.HardwareAddr{0xfa, 0x16, 0x3e, 0, 0, 1}, 1400
	for _, row := range []struct {
		text string
		want Args
	}{
		{"", Args{}},
		{";;,", Args{}},
		{"K8S_POD_NAMESPACE=;K8S_POD_NAME=a", Args{PodName: "a"}},
		{"IgnoreUnknown=1;COLOUR=red", Args{IgnoreUnknown: true}},
		{"IgnoreUnknown=1;LABELS=a,b", Args{IgnoreUnknown: true}},
		{"IgnoreUnknown=1;LABELS=x,MAC=fa:16:3e:00:00:01", Args{IgnoreUnknown: true}},
		{"IgnoreUnknown=1;NOTE=PORT_UUID=a,b;MTU=,", Args{IgnoreUnknown: true}},
		{"IP=10.0.0.5;IP=fd00::5/64", Args{IP: []string{"10.0.0.5", "fd00::5/64"}}},
		{ofDesign, design},
		{strings.ReplaceAll(ofDesign, ",", ";"), design},
		{ofDesign + ",IPV6=fd00::15/64;GW=fd00::1, MAC=fa:16:3e:00:00:01,MTU=1400", all},
	} {
		got, err := ParseArgs(row.text)
		if err != nil || !reflect.DeepEqual(got, row.want) {
			t.Errorf("%q: %v\n%+v\n%+v", row.text, err, got, row.want)
		}
	}
	if !design.Given() || (Args{Port: "a", PortType: "ovs"}).Given() {
		t.Error("the minimum of what can be bound is a port, its type and an address")
	}
}

func TestWrongArgs(t *testing.T) {
	port := "PORT_UUID=a;"
	for text, names := range map[string]string{
		"PORT_UUID":                                     `"PORT_UUID"`,
		"=a":                                            `"=a"`,
		"COLOUR=red":                                    "COLOUR",
		"IgnoreUnknown=maybe":                           "IgnoreUnknown",
		port + "PORT_UUID=b":                            "PORT_UUID: is given twice",
		port + "IPV4=10.0.0.15":                         "IPV4",
		port + "IPV4=fd00::1/64":                        "IPV4",
		port + "IPV6=10.0.0.15/24":                      "IPV6",
		port + "IPV6=::ffff:10.0.0.1/112":               "IPV6",
		port + "IPV4=10.0.0.15/24;GW=fd00::1":           "GW",
		port + "IPV4=10.0.0.15/24;GW=0.0.0.0":           "GW",
		port + "IPV4=10.0.0.5/8,GW=10.0.0.1,GW=1.2.3.4": "GW",
		"GW=10.0.0.1":                                   "GW",
		"IP=10.0.0.5,IP=fd00::5/64":                     "IP",
		"LABELS=x,MAC=fa:16:3e:00:00:01":                "LABELS",
		"IP=10.0.0.300":                                 "IP",
		"IP=10.0.0.3/99":                                "IP",
		port + "MAC=01:00:5e:00:00:01":                  "MAC",
		port + "MAC=00:00:00:00:00:00":                  "MAC",
		port + "MTU=67":                                 "MTU",
		port + "MTU=lots":                               "MTU",
		"IPV4=10.0.0.15/24":                             "PORT_UUID: is missing, and IPV4",
		"K8S_POD_NAME=a/b":                              "K8S_POD_NAME",
	} {
		_, err := ParseArgs(text)
		if e := AsError(err); e == nil || e.Code != BadEnvironment.Code || !strings.Contains(e.Details, names) {
			t.Errorf("%q: %v, want one that names %s", text, err, names)
		}
	}
}

func FuzzArgs(f *testing.F) {
	f.Add(ofDesign)
	f.Add("IgnoreUnknown=1;IPV6=fd00::15/64,MAC=fa:16:3e:00:00:01;MTU=1400")
	f.Fuzz(func(t *testing.T, text string) {
		a, err := ParseArgs(text)
		if err != nil {
			if AsError(err).Code != BadEnvironment.Code {
				t.Errorf("%v", err)
			}
			return
		}
		for _, p := range a.Addresses() {
			if gw := a.Gateway(p.Addr()); gw.IsValid() && gw.Is4() != p.Addr().Is4() {
				t.Errorf("%s is the gateway of %s", gw, p)
			}
		}
	})
}
