package neutronapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestAddressGroups(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	made := w.do(t, alice, "POST", "address-groups", `{"address_group": {"name": "s", "addresses": ["192.0.2.7/24", "192.0.2.0/24", "2001:db8::1"]}}`, 201, "", "address_group")
	shows(t, made, `{"name": "s", "project_id": "alice", "shared": false, "addresses": ["192.0.2.0/24", "2001:db8::1/128"]}`)
	path := "address-groups/" + made["id"].(string)
	addresses := func(body map[string]any) []string {
		var out []string
		for _, a := range body["addresses"].([]any) {
			out = append(out, a.(string))
		}
		slices.Sort(out)
		return out
	}
	got := w.do(t, alice, "PUT", path+"/add_addresses", `{"addresses": ["10.0.0.1", "10.0.0.1/32"]}`, 200, "", "address_group")
	if !slices.Equal(addresses(got), []string{"10.0.0.1/32", "192.0.2.0/24", "2001:db8::1/128"}) {
		t.Errorf("with another: %v", got)
	}
	refused{
		{"one there", alice, "PUT", path + "/add_addresses", `{"addresses": ["10.0.0.2", "10.0.0.1"]}`, 400, "AddressesAlreadyExist"},
		{"one not there", alice, "PUT", path + "/remove_addresses", `{"addresses": ["10.0.0.1", "10.0.0.2"]}`, 404, "AddressesNotFound"},
		{"no range", alice, "PUT", path + "/add_addresses", `{"addresses": ["x"]}`, 400, "HTTPBadRequest"},
		{"no list", alice, "PUT", path + "/add_addresses", `{"addresses": "10.0.0.2"}`, 400, "HTTPBadRequest"},
		{"something else", alice, "PUT", path + "/add_addresses", `{"address": ["10.0.0.2"]}`, 400, "HTTPBadRequest"},
		{"another's", bob, "PUT", path + "/add_addresses", `{"addresses": ["10.0.0.2"]}`, 404, "AddressGroupNotFound"},
		{"a reader's", guest, "PUT", path + "/add_addresses", `{"addresses": ["10.0.0.2"]}`, 403, "PolicyNotAuthorized"},
		{"by a change", alice, "PUT", path, `{"address_group": {"addresses": []}}`, 400, "HTTPBadRequest"},
		{"a name of yours", alice, "POST", "address-groups", `{"address_group": {"name": 1}}`, 400, "HTTPBadRequest"},
	}.run(t, w)
	got = w.do(t, alice, "PUT", path+"/remove_addresses", `{"addresses": ["192.0.2.0/24", "10.0.0.1"]}`, 200, "", "address_group")
	if !slices.Equal(addresses(got), []string{"2001:db8::1/128"}) {
		t.Errorf("with fewer: %v", got)
	}
	shows(t, w.do(t, alice, "PUT", path, `{"address_group": {"name": "z", "description": "d"}}`, 200, "", "address_group"), `{"name": "z", "description": "d", "addresses": ["2001:db8::1/128"]}`)
	if all := w.found(t, alice, "address-groups?name=z", "address_groups"); len(all) != 1 {
		t.Errorf("listed: %v", all)
	}
	if all := w.found(t, bob, "address-groups", "address_groups"); len(all) != 0 {
		t.Errorf("another project lists %v", all)
	}
	said := w.do(t, alice, "PUT", path+"/add_addresses", `{"addresses": ["2001:db8::1"]}`, 400, "AddressesAlreadyExist", "")["NeutronError"].(map[string]any)["message"].(string)
	if !strings.Contains(said, "2001:db8::1/128") {
		t.Errorf("%q does not tell which", said)
	}
	const key = `{"address_group": {"description": "kuryr/abc/test/one", "addresses": ["192.0.2.1"]}}`
	admin := Caller{Project: alice.Project, Role: Admin}
	w.do(t, alice, "POST", "address-groups", key, 403, "PolicyNotAuthorized", "")
	first := w.do(t, admin, "POST", "address-groups", key, 201, "", "address_group")
	shows(t, w.do(t, admin, "POST", "address-groups", strings.Replace(key, "192.0.2.1", "192.0.2.2", 1), 201, "", "address_group"),
		`{"id": "`+first["id"].(string)+`", "addresses": ["192.0.2.1/32"]}`)
	var prefixes []string
	for i := range maxItems {
		prefixes = append(prefixes, fmt.Sprintf("\"10.%d.%d.0/24\"", i/256, i%256))
	}
	full := w.do(t, alice, "POST", "address-groups",
		`{"address_group": {"name": "full", "addresses": [`+strings.Join(prefixes, ",")+`]}}`, 201, "", "address_group")
	w.do(t, alice, "PUT", "address-groups/"+full["id"].(string)+"/add_addresses",
		`{"addresses": ["192.0.2.1"]}`, 400, "HTTPBadRequest", "")
	w.do(t, alice, "DELETE", path, "", 204, "", "")
	w.do(t, alice, "GET", path, "", 404, "AddressGroupNotFound", "")
}
