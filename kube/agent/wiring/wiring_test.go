package wiring

import (
	"encoding/json"
	"reflect"
	"testing"

	v1 "github.com/kuryr/kuryr/kube/api/v1"
	"github.com/kuryr/kuryr/kube/portspec"
)

// TestOneReading: who reads the API's JSON, as kuryr-cni-api does, has the same of a KuryrPort as who has it by package v1's types, the daemon. Each field that is read is set, so that
// none is forgotten on either way.
func TestOneReading(t *testing.T) {
	t.Parallel()
	spec := v1.KuryrPortSpec{
		ID: "p", Active: true, Address: "fa:16:3e:bf:84:ff", Node: "n1", Pool: "pool", ProjectID: "project", SecurityGroups: []string{"g1", "g2"},
		Network: v1.PortNetwork{ID: "net", Name: "blue", MTU: 1350, Subnets: []v1.PortSubnet{{
			ID: "s", CIDR: "10.11.9.0/24", Gateway: "10.11.9.1", IPs: []string{"10.11.9.5"}, DNS: []string{"10.11.9.2"},
			Routes: []v1.PortRoute{{Destination: "192.0.2.0/24", NextHop: "10.11.9.9"}},
		}}},
		VIF: v1.PortVIF{Type: "ovs", Details: map[string]string{"bridge_name": "br-int"}, VNICType: "normal"},
	}
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	var read portspec.Spec
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	if typed := specOf(&spec); !reflect.DeepEqual(&read, typed) {
		t.Errorf("by JSON %+v\nby types %+v", read, *typed)
	}
	whole(t, "Spec", reflect.ValueOf(read))
	w, err := Of(&spec)
	if err != nil || w.MTU != 1350 || w.Port.Host != "n1" || w.Port.Project != "project" || len(w.Port.Groups) != 2 || len(w.Subnets) != 1 || w.Subnets[0].Network != "net" {
		t.Errorf("%+v, %v", w, err)
	}
}

// whole tells which fields are not set.
func whole(t *testing.T, name string, v reflect.Value) {
	t.Helper()
	switch {
	case v.IsZero():
		t.Errorf("%s is not set", name)
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			whole(t, name+"."+v.Type().Field(i).Name, v.Field(i))
		}
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			whole(t, name, v.Index(i))
		}
	}
}
