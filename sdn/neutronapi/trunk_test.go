package neutronapi

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// switched is a provider whose trunks can be disabled too, as the contract says.
type switched struct {
	sdn.Provider
	mu  sync.Mutex
	off map[sdn.ID]bool
}

func (p *switched) show(t sdn.Trunk, err error) (sdn.Trunk, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.Disabled = p.off[t.ID]
	return t, err
}

func (p *switched) Trunk(ctx context.Context, id sdn.ID) (sdn.Trunk, error) {
	return p.show(p.Provider.Trunk(ctx, id))
}

func (p *switched) UpdateTrunk(ctx context.Context, id sdn.ID, change sdn.TrunkPatch) (sdn.Trunk, error) {
	off := change.Disabled
	change.Disabled = nil
	t, err := p.Provider.UpdateTrunk(ctx, id, change)
	if err == nil && off != nil {
		p.mu.Lock()
		p.off[id] = *off
		p.mu.Unlock()
	}
	return p.show(t, err)
}

func TestTrunks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handler = NewHandler(&switched{Provider: w.sdn, off: map[sdn.ID]bool{}}, Options{})
	network, _ := w.wired(t, alice, "10.9.0.0/24")
	parent, one, two := w.madePort(t, alice, network, ""), w.madePort(t, alice, network, ""), w.madePort(t, alice, network, "")
	busy := w.madePort(t, alice, network, `, "device_id": "vm"`)
	sub := func(port, vlan string) string {
		return `{"port_id": "` + port + `", "segmentation_type": "vlan", "segmentation_id": ` + vlan + `}`
	}
	made := w.do(t, alice, "POST", "trunks", `{"trunk": {"name": "t", "port_id": "`+parent+`", "sub_ports": [`+sub(one, "100")+`]}}`, 201, "", "trunk")
	shows(t, made, `{"name": "t", "port_id": "`+parent+`", "admin_state_up": true, "status": "ACTIVE", "project_id": "alice", "tags": [], "sub_ports": [`+sub(one, "100")+`]}`)
	path := "trunks/" + made["id"].(string)
	subs := func(list string) string { return `{"sub_ports": [` + list + `]}` }
	refused{
		{"a parent with a trunk", alice, "POST", "trunks", `{"trunk": {"port_id": "` + parent + `"}}`, 409, "ParentPortInUse"},
		{"a parent that is its own subport", alice, "POST", "trunks", `{"trunk": {"port_id": "` + two + `", "sub_ports": [` + sub(two, "1") + `]}}`, 409, "ParentPortInUse"},
		{"a first subport that is a parent", alice, "POST", "trunks", `{"trunk": {"port_id": "` + two + `", "sub_ports": [` + sub(parent, "1") + `]}}`, 409, "ParentPortInUse"},
		{"first subports of one VLAN", alice, "POST", "trunks", `{"trunk": {"port_id": "` + parent + `", "sub_ports": [` + sub(two, "5") + "," + sub(busy, "5") + `]}}`, 400, "HTTPBadRequest"},
		{"a first subport without a VLAN", alice, "POST", "trunks", `{"trunk": {"port_id": "` + two + `", "sub_ports": [{"port_id": "` + one + `"}]}}`, 400, "HTTPBadRequest"},
		{"no parent", alice, "POST", "trunks", `{"trunk": {}}`, 400, "HTTPBadRequest"},
		{"a parent that is not there", alice, "POST", "trunks", `{"trunk": {"port_id": "none"}}`, 404, "PortNotFound"},
		{"another's parent", bob, "POST", "trunks", `{"trunk": {"port_id": "` + parent + `"}}`, 404, "PortNotFound"},
		{"another parent", alice, "PUT", path, `{"trunk": {"port_id": "x"}}`, 400, "HTTPBadRequest"},
		{"a VLAN that is taken", alice, "PUT", path + "/add_subports", subs(sub(two, "100")), 409, "DuplicateSubPort"},
		{"a port that is there", alice, "PUT", path + "/add_subports", subs(sub(one, "101")), 409, "TrunkPortInUse"},
		{"the parent", alice, "PUT", path + "/add_subports", subs(sub(parent, "101")), 409, "ParentPortInUse"},
		{"a machine's port", alice, "PUT", path + "/add_subports", subs(sub(busy, "101")), 409, "PortInUse"},
		{"a port that is not there", alice, "PUT", path + "/add_subports", subs(sub("none", "101")), 404, "PortNotFound"},
		{"VLAN 0", alice, "PUT", path + "/add_subports", subs(sub(two, "0")), 400, "InvalidInput"},
		{"VLAN 4095", alice, "PUT", path + "/add_subports", subs(sub(two, "4095")), 400, "InvalidInput"},
		{"one VLAN twice", alice, "PUT", path + "/add_subports", subs(sub(two, "5") + "," + sub(parent, "5")), 400, "InvalidInput"},
		{"one port twice", alice, "PUT", path + "/add_subports", subs(sub(two, "5") + "," + sub(two, "6")), 400, "InvalidInput"},
		{"no VLAN", alice, "PUT", path + "/add_subports", subs(`{"port_id": "` + two + `"}`), 400, "InvalidInput"},
		{"the network's VLAN", alice, "PUT", path + "/add_subports", subs(`{"port_id": "` + two + `", "segmentation_type": "inherit", "segmentation_id": 5}`), 400, "InvalidInput"},
		{"one of two that is not there", alice, "PUT", path + "/remove_subports", subs(`{"port_id": "` + one + `"}, {"port_id": "` + two + `"}`), 404, "SubPortNotFound"},
		{"another's", bob, "GET", path + "/get_subports", "", 404, "TrunkNotFound"},
	}.run(t, w)
	shows(t, w.do(t, alice, "PUT", path+"/add_subports", subs(sub(two, "200")), 200, "", ""), `{"id": "`+made["id"].(string)+`", "sub_ports": [`+sub(one, "100")+","+sub(two, "200")+`]}`)
	shows(t, w.do(t, alice, "PUT", path+"/remove_subports", subs(`{"port_id": "`+one+`"}`), 200, "", ""), `{"sub_ports": [`+sub(two, "200")+`]}`)
	shows(t, w.do(t, guest, "GET", path+"/get_subports", "", 200, "", ""), `{"sub_ports": [`+sub(two, "200")+`]}`)
	shows(t, w.do(t, alice, "PUT", path, `{"trunk": {"admin_state_up": false, "name": "u"}}`, 200, "", "trunk"), `{"admin_state_up": false, "name": "u"}`)
	refused{
		{"added to a disabled one", alice, "PUT", path + "/add_subports", subs(sub(one, "100")), 409, "TrunkDisabled"},
		{"removed from a disabled one", alice, "PUT", path + "/remove_subports", subs(`{"port_id": "` + two + `"}`), 409, "TrunkDisabled"},
		{"a disabled one", alice, "DELETE", path, "", 409, "TrunkDisabled"},
	}.run(t, w)
	w.do(t, alice, "PUT", path, `{"trunk": {"admin_state_up": true}}`, 200, "", "trunk")
	other := w.madePort(t, alice, network, "")
	w.do(t, alice, "POST", "trunks", `{"trunk": {"port_id": "`+two+`"}}`, 409, "TrunkPortInUse", "")
	second := "trunks/" + w.do(t, alice, "POST", "trunks", `{"trunk": {"port_id": "`+other+`"}}`, 201, "", "trunk")["id"].(string)
	refused{
		{"another trunk's subport", alice, "PUT", second + "/add_subports", subs(sub(two, "7")), 409, "TrunkPortInUse"},
		{"another trunk's parent", alice, "PUT", second + "/add_subports", subs(sub(parent, "7")), 409, "ParentPortInUse"},
		{"a subport", alice, "DELETE", "ports/" + two, "", 409, "PortInUseAsSubPort"},
		{"a parent", alice, "DELETE", "ports/" + parent, "", 409, "PortInUseAsTrunkParent"},
	}.run(t, w)
	shows(t, w.do(t, alice, "GET", "ports/"+two, "", 200, "", "port"), `{"device_owner": "trunk:subport"}`)
	w.do(t, alice, "DELETE", second, "", 204, "", "")
	w.do(t, alice, "DELETE", path, "", 204, "", "")
	w.do(t, alice, "DELETE", path, "", 404, "TrunkNotFound", "")
	w.do(t, alice, "POST", "trunks", `{"trunk": {"port_id": "`+parent+`", "sub_ports": [`+sub(one, "1")+","+sub("none", "2")+`]}}`, 404, "PortNotFound", "")
	if all := w.found(t, alice, "trunks?port_id="+parent, "trunks"); len(all) != 0 {
		t.Errorf("a trunk whose subports are refused is there: %v", all)
	}
}

// What the provider has not there is no path for, and no extension tells of it.
func TestNoSuchNoun(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.handler = NewHandler(poor{w.sdn}, Options{})
	for _, path := range []string{"trunks", "trunks/x", "trunks/x/get_subports", "qos/policies", "qos/rule-types", "security-groups", "security-group-rules/x", "address-groups",
		"floatingips/" + string(w.fip.ID) + "/port_forwardings"} {
		w.do(t, root, "GET", path, "", 404, "HTTPNotFound", "")
	}
	aliases := names(w.found(t, root, "extensions", "extensions"), "alias")
	for _, alias := range []string{"trunk", "qos", "security-group", "address-group", "floating-ip-port-forwarding"} {
		if slices.Contains(aliases, alias) {
			t.Errorf("the extension %s is listed", alias)
		}
	}
	if !slices.Contains(aliases, "router") {
		t.Errorf("extensions %v", aliases)
	}
}

// poor is a provider without what can be left out.
type poor struct{ sdn.Provider }

func (poor) Capabilities() sdn.Capabilities { return sdn.Capabilities{Routers: true} }
