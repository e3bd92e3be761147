package vif

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/sdn"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

const portID = "18f968a5-c420-4318-92d7-941eb5f9e60e"

// The value of the document's example, with the backslashes that its first two quotes lack.
const spec = `{\"eth0\": {\"versioned_object.data\": {\"selfLink\": \"/apis/openstack.org/v1/kuryrports/18f968a5-c420-4318-92d7-941eb5f9e60e\"}},
           \"versioned_object.name\": \"KuryrPortCRD\", \"versioned_object.version\": \"1.0\"}`

func specValue(t *testing.T) string {
	t.Helper()
	// The document breaks the line after a comma, where the JSON of the peer has one space.
	lines := strings.Split(spec, "\n")
	var value string
	if err := json.Unmarshal([]byte(`"`+lines[0]+" "+strings.TrimLeft(lines[1], " ")+`"`), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

func TestEncodeIsTheSpecs(t *testing.T) {
	t.Parallel()
	got, err := Encode(map[string]string{"eth0": portID})
	if want := specValue(t); err != nil || got != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

func TestEncodeSeveralInterfaces(t *testing.T) {
	t.Parallel()
	got, err := Encode(map[string]string{"net1": "b", "eth0": "a", `a"<&`: "c"})
	const want = `{"a\"<&": {"versioned_object.data": {"selfLink": "/apis/openstack.org/v1/kuryrports/c"}}, ` +
		`"eth0": {"versioned_object.data": {"selfLink": "/apis/openstack.org/v1/kuryrports/a"}}, ` +
		`"net1": {"versioned_object.data": {"selfLink": "/apis/openstack.org/v1/kuryrports/b"}}, ` +
		`"versioned_object.name": "KuryrPortCRD", "versioned_object.version": "1.0"}`
	if err != nil || got != want {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

func TestEncodeRefuses(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for _, a := range "abcdefgh" {
		for _, b := range "abcdefghi" {
			many["e"+string(a)+string(b)] = portID
		}
	}
	for says, ports := range map[string]map[string]string{
		"without interfaces":           nil,
		`interface ""`:                 {"": portID},
		`interface "sixteen-letters-"`: {"sixteen-letters-": portID},
		`interface "eth 0"`:            {"eth 0": portID},
		`interface "eth0:1"`:           {"eth0:1": portID},
		`port ""`:                      {"eth0": ""},
		`port "../pods"`:               {"eth0": "../pods"},
		"72 interfaces":                many,
	} {
		if got, err := Encode(ports); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q, %v; want an error with %q", got, err, says)
		}
	}
}

func TestDecodeOurs(t *testing.T) {
	t.Parallel()
	one := []VIF{{Interface: "eth0", Port: portID}}
	for name, value := range map[string]string{
		"as the spec shows it":         specValue(t),
		"without spaces":               `{"eth0":{"versioned_object.data":{"selfLink":"/apis/openstack.org/v1/kuryrports/` + portID + `"}},"versioned_object.name":"KuryrPortCRD"}`,
		"with the name within":         `{"eth0": {"versioned_object.data": {"selfLink": "/apis/openstack.org/v1/kuryrports/` + portID + `"}, "versioned_object.name": "KuryrPortCRD", "versioned_object.version": "1.0"}}`,
		"with a namespace of versions": `{"eth0": {"versioned_object.data": {"selfLink": "/apis/openstack.org/v1/kuryrports/` + portID + `"}}, "versioned_object.name": "KuryrPortCRD", "versioned_object.namespace": "kuryr_kubernetes"}`,
	} {
		if got, err := Decode(value); err != nil || !reflect.DeepEqual(got, one) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.StringMatching(`[!-.0-9;-~]{1,15}`).Filter(func(s string) bool { return s != "." && s != ".." })
		ports := rapid.MapOfN(names, rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?`), 1, MaxInterfaces).Draw(t, "ports")
		value, err := Encode(ports)
		if err != nil {
			t.Fatal(err)
		}
		vifs, err := Decode(value)
		if err != nil {
			t.Fatalf("%s: %v", value, err)
		}
		got := map[string]string{}
		for _, v := range vifs {
			got[v.Interface] = v.Port
		}
		if !reflect.DeepEqual(got, ports) {
			t.Errorf("%v became %v", ports, got)
		}
	})
}

func TestDecodePeers(t *testing.T) {
	t.Parallel()
	subnet := v1.PortSubnet{CIDR: "10.11.9.0/24", Gateway: "10.11.9.1", IPs: []string{"10.11.9.5"}}
	network := v1.PortNetwork{ID: "144164d9-8c21-4274-acec-43245de0aed0", Name: "ns/luis-net", MTU: 1350, Subnets: []v1.PortSubnet{subnet}}
	port := func(kind string, details ...string) *v1.KuryrPortSpec {
		s := &v1.KuryrPortSpec{
			ID: portID, Active: true, Address: "fa:16:3e:bf:84:ff", Network: *network.DeepCopy(),
			VIF: v1.PortVIF{Type: kind, Details: map[string]string{"vif_name": "tap18f968a5-c4"}},
		}
		for i := 0; i < len(details); i += 2 {
			s.VIF.Details[details[i]] = details[i+1]
		}
		return s
	}
	routed := port(sdn.VIFOVS, sdn.DetailBridge, "br-int")
	routed.Network.Subnets[0].DNS = []string{"10.11.9.2"}
	routed.Network.Subnets[0].Routes = []v1.PortRoute{{Destination: "192.0.2.0/24", NextHop: "10.11.9.254"}}
	bare := port(sdn.VIFMacvlan)
	bare.ID, bare.Active, bare.Address, bare.Network = "28f968a5-c420-4318-92d7-941eb5f9e60e", false, "", v1.PortNetwork{}
	for file, want := range map[string][]VIF{
		"vlan":      {{Interface: "eth0", Peer: port(sdn.VIFVLAN, sdn.DetailVLAN, "1346")}},
		"ovs-alone": {{Interface: "eth0", Peer: routed}},
		"bridge":    {{Interface: "eth0", Peer: port(sdn.VIFBridge, sdn.DetailBridge, "brq144164d9-8c")}},
		"podstate":  {{Interface: "eth0", Peer: port(sdn.VIFOVS, sdn.DetailBridge, "br-int", sdn.DetailHybrid, "true")}, {Interface: "eth1", Peer: bare}},
		"dpdk": {
			{Interface: "eth0", Peer: port("dpdk", "pci_address", "0000:00:05.0", "dev_driver", "igb_uio")},
			{Interface: "eth1", Peer: port("vhostuser", "path", "/var/run/openvswitch/vhu18f968a5-c4")},
		},
		"sriov": {{Interface: "eth0", Peer: port("hw_veb", sdn.DetailVLAN, "7")}},
	} {
		got, err := Decode(read(t, file))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v\n%s\nwant\n%s", file, err, pretty(got), pretty(want))
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	link := `{"eth0": {"versioned_object.data": {"selfLink": "%"}}, "versioned_object.name": "KuryrPortCRD", "versioned_object.version": "1.0"}`
	vlan := read(t, "vlan")
	for _, c := range []struct{ value, says string }{
		{"", "unexpected end"},
		{"null", "no interface"},
		{"[]", "cannot unmarshal array"},
		{"{}", "no interface"},
		{`{"eth0": {}}`, `interface "eth0": no versioned_object.name`},
		{`{"eth0": 1}`, `interface "eth0"`},
		{`{"versioned_object.name": 1}`, "versioned_object.name"},
		{`{"eth0": {}, "versioned_object.name": "KuryrPortCRD"}`, "no versioned_object.data"},
		{`{"eth0": {}, "versioned_object.name": "Pod"}`, `"Pod" is not known`},
		{`{"eth0": {}, "versioned_object.name": "KuryrPortCRD", "versioned_object.version": "2.0"}`, `"2.0" is not known`},
		{strings.Replace(link, "%", "", 1), "selfLink"},
		{strings.Replace(link, "%", "/api/v1/namespaces/kube-system/secrets/a", 1), "want /apis/openstack.org/v1/kuryrports/"},
		{strings.Replace(link, "%", "/apis/openstack.org/v1/kuryrports/../a", 1), "selfLink: port"},
		{strings.Replace(link, "%", "/apis/openstack.org/v1/kuryrports/", 1), "selfLink: port"},
		{strings.Replace(link, "eth0", "a/b", 1), `interface "a/b"`},
		{strings.Replace(link, "eth0", strings.Repeat("e", 16), 1), "want 1 to 15 letters"},
		{strings.Replace(vlan, "VIFVlanNested", "VIFUnheardOf", 1), `"VIFUnheardOf" is not known`},
		{strings.Replace(vlan, "1346", "0", 1), "vlan_id: missing"},
		{strings.Replace(vlan, "1346", "4095", 1), "VLAN 4095"},
		{strings.Replace(vlan, "fa:16:3e:bf:84:ff", "here", 1), `address "here"`},
		{strings.Replace(vlan, "10.11.9.5", "10.11.9", 1), "network: subnets[0]: ips[0]: address"},
		{strings.Replace(vlan, "10.11.9.0/24", "10.11.9.0", 1), "network: subnets[0]: cidr"},
		{strings.Replace(vlan, "1350", "-1", 1), "mtu -1"},
		{strings.ReplaceAll(vlan, `"1.0"`, `"2.0"`), `version "2.0" is not known`},
		{strings.Replace(vlan, portID, "/", 1), "id: port"},
		{strings.Repeat(" ", MaxSize+1), "65537 bytes"},
	} {
		got, err := Decode(c.value)
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.HasPrefix(err.Error(), "annotation "+Annotation) {
			t.Errorf("%.200s: %s, %v; want an error with %q", c.value, pretty(got), err, c.says)
		}
	}
	var many strings.Builder
	for n := range MaxInterfaces + 1 {
		fmt.Fprintf(&many, `"e%d": {"versioned_object.data": {"selfLink": "/apis/openstack.org/v1/kuryrports/p"}}, `, n)
	}
	if _, err := Decode(`{` + many.String() + `"versioned_object.name": "KuryrPortCRD"}`); err == nil || !strings.Contains(err.Error(), "more than 64") {
		t.Errorf("too many interfaces: %v", err)
	}
}

// What a pod's owner writes into the annotation does not make another's port his.
func TestOf(t *testing.T) {
	t.Parallel()
	port := &v1.KuryrPort{ObjectMeta: metav1.ObjectMeta{Name: portID}, Status: v1.KuryrPortStatus{Pod: &v1.PortPod{UID: "u", Interface: "eth0"}}}
	free := &v1.KuryrPort{ObjectMeta: metav1.ObjectMeta{Name: portID}}
	named := VIF{Interface: "eth0", Port: portID}
	if !named.Of(port, "u") {
		t.Error("the pod's own port is not its")
	}
	for what, of := range map[string]bool{
		"of another pod":          named.Of(port, "v"),
		"of a pod without a UID":  named.Of(port, ""),
		"of nobody":               named.Of(free, "u"),
		"another interface":       VIF{Interface: "eth1", Port: portID}.Of(port, "u"),
		"another port":            VIF{Interface: "eth0", Port: "p"}.Of(port, "u"),
		"told of in peer's form":  VIF{Interface: "eth0", Peer: &v1.KuryrPortSpec{ID: portID}}.Of(port, "u"),
		"without a pod and a UID": named.Of(free, ""),
	} {
		if of {
			t.Errorf("a port %s is taken for the pod's", what)
		}
	}
}

// Nothing that somebody writes makes the decoder panic, and what it takes can be written again.
func FuzzDecode(f *testing.F) {
	f.Add(`{"eth0": {"versioned_object.data": {"selfLink": "/apis/openstack.org/v1/kuryrports/a"}}, "versioned_object.name": "KuryrPortCRD", "versioned_object.version": "1.0"}`)
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Fuzz(func(t *testing.T, value string) {
		vifs, err := Decode(value)
		if err != nil {
			return
		}
		if len(vifs) == 0 || len(vifs) > MaxInterfaces {
			t.Fatalf("%d interfaces", len(vifs))
		}
		ports := map[string]string{}
		for _, v := range vifs {
			if (v.Port == "") == (v.Peer == nil) {
				t.Fatalf("%+v is of neither form, or of both", v)
			}
			ports[v.Interface] = v.Port
			if v.Peer != nil {
				ports[v.Interface] = v.Peer.ID
			}
		}
		again, err := Encode(ports)
		if err != nil {
			t.Fatalf("%q was read and cannot be written: %v", value, err)
		}
		if _, err := Decode(again); err != nil {
			t.Fatalf("%q cannot be read: %v", again, err)
		}
	})
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func pretty(v any) string {
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err.Error()
	}
	return string(data)
}
