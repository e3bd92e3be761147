package restapi

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// Who is not known, or could be taken for another, is not served; what versions there are everybody is told.
func TestNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, caller := range []Caller{{}, {Role: Member}, {Role: Reader}, {Project: "a"}, {Project: "a", Role: "boss"}} {
		for _, path := range []string{"/v2.0/networks", "/v2.0/extensions", "/v2.0/", "/v2.0/colours"} {
			w.steps(t, caller, []step{{"GET", path, "", 401, "HTTPUnauthorized: requires authentication"}})
		}
		w.steps(t, caller, []step{{"GET", "/", "", 200, "versions.0.id=v2.0 versions.0.links.0.href=http://example.com/v2.0/"}})
	}
	recorder := httptest.NewRecorder()
	w.handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v2.0/networks", nil))
	if recorder.Code != http.StatusUnauthorized {
		t.Errorf("a request without a caller: %d", recorder.Code)
	}
}

// Projects do not see, change or use what is another's, but for what is shared.
func TestProjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, reader := Caller{Project: "a", Role: Member}, Caller{Project: "b", Role: Member}, Caller{Project: "a", Role: Reader}
	make := func(c Caller, collection, body string) string {
		member := strings.TrimSuffix(collection, "s")
		return w.made(t, c, "POST", "/v2.0/"+collection, `{"`+member+`":`+body+`}`, member+".id")
	}
	own := make(a, "networks", `{"name":"own","description":"kuryr/a/b/own"}`)
	ownSubnet := make(a, "subnets", `{"network_id":"`+own+`","ip_version":4,"cidr":"10.1.0.0/24"}`)
	ownPort := make(a, "ports", `{"network_id":"`+own+`"}`)
	shared := make(root, "networks", `{"name":"shared","shared":true,"project_id":"c"}`)
	sharedSubnet := make(root, "subnets", `{"network_id":"`+shared+`","ip_version":4,"cidr":"10.1.0.0/24","project_id":"c"}`)
	hidden := make(root, "subnetpools", `{"name":"hidden","prefixes":["10.0.0.0/8"],"project_id":"c"}`)
	open := make(root, "subnetpools", `{"name":"open","prefixes":["10.0.0.0/8"],"default_prefixlen":24,"shared":true,"project_id":"c"}`)
	external := string(w.sdn.Capabilities().ExternalNetwork)

	for _, tc := range []struct {
		caller Caller
		query  string
		want   []string
	}{
		{a, "networks", []string{own, shared, external}}, {b, "networks", []string{shared, external}}, {reader, "networks", []string{own, shared, external}},
		{a, "subnets?cidr=10.1.0.0/24", []string{ownSubnet, sharedSubnet}}, {b, "subnets?cidr=10.1.0.0/24", []string{sharedSubnet}}, {a, "ports", []string{ownPort}}, {b, "ports", nil},
		{a, "subnetpools", []string{open}}, {b, "networks?description=kuryr/a/b/own", nil}, {b, "networks?id=" + own, nil}, {b, "networks?project_id=a", nil},
	} {
		got := w.listed(t, tc.caller, tc.query, "id")
		slices.Sort(got)
		slices.Sort(tc.want)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s lists %s: %v, want %v", tc.caller.Project, tc.query, got, tc.want)
		}
	}
	w.steps(t, b, []step{
		{"GET", "/v2.0/networks/" + own, "", 404, "NetworkNotFound: "},
		{"PUT", "/v2.0/networks/" + own, `{"network":{"name":"x"}}`, 404, "NetworkNotFound: "},
		{"DELETE", "/v2.0/networks/" + own, "", 404, "NetworkNotFound: "},
		{"PUT", "/v2.0/networks/" + own + "/tags/x", "", 404, "TagResourceNotFound: "},
		{"GET", "/v2.0/networks/" + own + "/tags", "", 404, "TagResourceNotFound: "},
		{"PUT", "/v2.0/networks/" + shared, `{"network":{"name":"x"}}`, 403, "PolicyNotAuthorized: another project's"},
		{"DELETE", "/v2.0/networks/" + external, "", 403, "PolicyNotAuthorized: another project's"},
		{"DELETE", "/v2.0/subnets/" + sharedSubnet, "", 403, "PolicyNotAuthorized: another project's"},
		{"PUT", "/v2.0/subnetpools/" + open + "/tags", `{"tags":[]}`, 403, "PolicyNotAuthorized: another project's"},
		{"GET", "/v2.0/subnetpools/" + hidden, "", 404, "SubnetPoolNotFound: "},
		{"POST", "/v2.0/networks", `{"network":{"project_id":"a"}}`, 400, "HTTPBadRequest: other than the authenticated project"},
		{"POST", "/v2.0/networks", `{"network":{"tenant_id":"a"}}`, 400, "HTTPBadRequest: other than the authenticated project"},
		{"POST", "/v2.0/networks", `{"network":{"shared":true}}`, 403, "PolicyNotAuthorized: rule:create_network:shared is disallowed by policy"},
		{"POST", "/v2.0/networks", `{"network":{"router:external":true}}`, 403, "PolicyNotAuthorized: rule:create_network:router:external"},
		{"POST", "/v2.0/networks", `{"network":{"provider:network_type":"vlan"}}`, 403, "PolicyNotAuthorized: rule:create_network:provider:network_type"},
		{"POST", "/v2.0/networks", `{"network":{"description":"kuryr/a/b/own"}}`, 409, "Conflict: is the Key of another object"},
		{"POST", "/v2.0/subnets", `{"subnet":{"network_id":"` + own + `","ip_version":4,"cidr":"10.9.0.0/24"}}`, 404, "NetworkNotFound: "},
		{"POST", "/v2.0/subnets", `{"subnet":{"network_id":"` + shared + `","ip_version":4,"cidr":"10.9.0.0/24"}}`, 403, "PolicyNotAuthorized: another project's"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + own + `"}}`, 404, "NetworkNotFound: "},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `","fixed_ips":[{"ip_address":"10.1.0.9"}]}}`, 403, "PolicyNotAuthorized: rule:create_port:fixed_ips"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `","mac_address":"02:00:00:00:00:01"}}`, 403, "PolicyNotAuthorized: rule:create_port:mac_address"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `","port_security_enabled":false}}`, 403, "PolicyNotAuthorized: rule:create_port:port_security_enabled"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `","allowed_address_pairs":[]}}`, 403, "PolicyNotAuthorized: rule:create_port:allowed_address_pairs"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `","device_owner":"network:dhcp"}}`, 403, "PolicyNotAuthorized: rule:create_port:device_owner"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `","binding:host_id":"h"}}`, 403, "PolicyNotAuthorized: rule:create_port:binding:host_id"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + shared + `","fixed_ips":[{"subnet_id":"` + sharedSubnet + `"}]}}`, 201, "port.project_id=b port.fixed_ips.#=1 port.binding:host_id=absent port.binding:vif_details=absent port.binding:vnic_type=normal"},
		{"GET", "/v2.0/networks/" + shared, "", 200, "network.provider:network_type=absent network.name=shared"},
		{"GET", "/v2.0/quotas/a", "", 403, "AdminRequired: "},
		{"PUT", "/v2.0/quotas/b", `{"quota":{"port":5}}`, 403, "AdminRequired: "},
		{"GET", "/v2.0/quotas", "", 403, "AdminRequired: "},
		{"DELETE", "/v2.0/quotas/b", "", 403, "AdminRequired: "},
		{"GET", "/v2.0/quotas/b/details", "", 200, "quota.port.used=1"},
		{"GET", "/v2.0/quotas/tenant", "", 200, "tenant.tenant_id=b"},
	})
	w.steps(t, a, []step{
		{"POST", "/v2.0/networks", `{"network":{"name":"mine","description":"kuryr/a/b/own"}}`, 201, "network.id=" + own + " network.name=mine"},
		{"POST", "/v2.0/subnets", `{"subnet":{"network_id":"` + own + `","ip_version":4,"subnetpool_id":"` + hidden + `"}}`, 404, "SubnetPoolNotFound: "},
		{"POST", "/v2.0/subnets", `{"subnet":{"network_id":"` + own + `","ip_version":4,"subnetpool_id":"` + open + `"}}`, 201, "subnet.cidr=10.0.0.0/24 subnet.tenant_id=a"},
		{"POST", "/v2.0/ports", `{"port":{"network_id":"` + own + `","fixed_ips":[{"ip_address":"10.1.0.9"}],"mac_address":"02:00:00:00:00:01","port_security_enabled":false}}`, 201, "port.project_id=a"},
		{"PUT", "/v2.0/ports/" + ownPort, `{"port":{"mac_address":"02:00:00:00:00:02"}}`, 403, "PolicyNotAuthorized: rule:update_port:mac_address"},
		{"DELETE", "/v2.0/ports/" + ownPort, "", 204, ""},
	})
	w.steps(t, reader, []step{
		{"GET", "/v2.0/networks/" + own, "", 200, "network.id=" + own},
		{"PUT", "/v2.0/networks/" + own, `{"network":{"name":"x"}}`, 403, "PolicyNotAuthorized: the caller's role is reader"},
		{"DELETE", "/v2.0/networks/" + own, "", 403, "PolicyNotAuthorized: the caller's role is reader"},
		{"POST", "/v2.0/networks", `{"network":{}}`, 403, "PolicyNotAuthorized: the caller's role is reader"},
		{"PUT", "/v2.0/networks/" + own + "/tags", `{"tags":[]}`, 403, "PolicyNotAuthorized: the caller's role is reader"},
	})
}

// The Keys by which the installation's own front ends find what is theirs are administrators' to give: a member could else put an object of its own in the way.
func TestKeysOfTheInstallation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, admin := Caller{Project: "a", Role: Member}, Caller{Project: "a", Role: Admin}
	key := func(name string) string { return "kuryr/" + w.sdn.Installation() + "/docker-shared-router/" + name }
	n := w.made(t, a, "POST", "/v2.0/networks", `{"network":{"description":"kuryr/another/thing/n"}}`, "network.id")
	r := w.made(t, a, "POST", "/v2.0/routers", `{"router":{}}`, "router.id")
	w.steps(t, a, []step{
		{"POST", "/v2.0/routers", `{"router":{"description":"` + key("corp") + `"}}`, 403, "PolicyNotAuthorized: a Key of the installation"},
		{"POST", "/v2.0/networks", `{"networks":[{},{"description":"` + key("corp") + `"}]}`, 403, "PolicyNotAuthorized: a Key of the installation"},
		{"POST", "/v2.0/security-groups", `{"security_group":{"name":"g","description":"` + key("corp") + `"}}`, 403, "PolicyNotAuthorized: a Key of the installation"},
		{"PUT", "/v2.0/routers/" + r, `{"router":{"description":"` + key("corp") + `"}}`, 403, "PolicyNotAuthorized: a Key of the installation"},
		{"PUT", "/v2.0/networks/" + n, `{"network":{"description":"kuryr/another/thing/n"}}`, 200, "network.description=kuryr/another/thing/n"},
	})
	given := w.made(t, admin, "POST", "/v2.0/routers", `{"router":{"description":"`+key("corp")+`"}}`, "router.id")
	w.steps(t, a, []step{{"PUT", "/v2.0/routers/" + given, `{"router":{"name":"x","description":"` + key("corp") + `"}}`, 200, "router.name=x"}}) // as it is
}

// A network that can be on one router only is put there by its owner, also where another project has a port on it.
func TestLegOnAnothersNetwork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := Caller{Project: "a", Role: Member}
	shared := w.made(t, root, "POST", "/v2.0/networks", `{"network":{"shared":true,"project_id":"c"}}`, "network.id")
	w.made(t, root, "POST", "/v2.0/subnets", `{"subnet":{"network_id":"`+shared+`","ip_version":4,"cidr":"10.7.0.0/24","project_id":"c"}}`, "subnet.id")
	leg := func(c Caller) (router, body string) {
		port := w.made(t, c, "POST", "/v2.0/ports", `{"port":{"network_id":"`+shared+`"}}`, "port.id")
		return w.made(t, c, "POST", "/v2.0/routers", `{"router":{}}`, "router.id"), `{"port_id":"` + port + `"}`
	}
	router, body := leg(a)
	w.steps(t, a, []step{{"PUT", "/v2.0/routers/" + router + "/add_router_interface", body, 400, "BadRequest: network " + shared + " is not owned"}})
	router, body = leg(Caller{Project: "c", Role: Member})
	w.steps(t, Caller{Project: "c", Role: Member}, []step{{"PUT", "/v2.0/routers/" + router + "/add_router_interface", body, 200, "id=" + router}})
}

// A network's owner sees what others have on it, and may take their ports away.
func TestNetworkOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.made(t, root, "POST", "/v2.0/networks", `{"network":{"project_id":"a"}}`, "network.id")
	s := w.made(t, root, "POST", "/v2.0/subnets", `{"subnet":{"network_id":"`+n+`","ip_version":4,"cidr":"10.1.0.0/24","project_id":"c"}}`, "subnet.id")
	p := w.made(t, root, "POST", "/v2.0/ports", `{"port":{"network_id":"`+n+`","project_id":"c"}}`, "port.id")
	w.steps(t, Caller{Project: "a", Role: Member}, []step{
		{"GET", "/v2.0/subnets/" + s, "", 200, "subnet.id=" + s}, {"GET", "/v2.0/ports/" + p, "", 200, "port.id=" + p},
		{"PUT", "/v2.0/ports/" + p, `{"port":{"name":"x"}}`, 403, "PolicyNotAuthorized: "}, {"DELETE", "/v2.0/subnets/" + s, "", 403, "PolicyNotAuthorized: "},
	})
	w.steps(t, Caller{Project: "b", Role: Member}, []step{
		{"GET", "/v2.0/subnets/" + s, "", 404, "SubnetNotFound: "}, {"GET", "/v2.0/ports/" + p, "", 404, "PortNotFound: "}, {"DELETE", "/v2.0/ports/" + p, "", 404, "PortNotFound: "},
	})
	w.steps(t, Caller{Project: "a", Role: Reader}, []step{{"DELETE", "/v2.0/ports/" + p, "", 403, "PolicyNotAuthorized: "}})
	w.steps(t, Caller{Project: "a", Role: Member}, []step{{"DELETE", "/v2.0/ports/" + p, "", 204, ""}}) // so that it can delete the network
}

func TestAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var seen []Change
	w.handler = NewHandler(w.sdn, Options{Audit: func(ctx context.Context, c Change) {
		if _, ok := CallerOf(ctx); !ok {
			t.Error("the context has no caller")
		}
		seen = append(seen, c)
	}})
	a := Caller{Project: "a", Role: Member, Name: "anna"}
	w.ask(t, a, "GET", "/v2.0/networks", "")
	id := w.made(t, a, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
	w.ask(t, a, "DELETE", "/v2.0/networks/none?x=secret", "")
	w.ask(t, a, "DELETE", "/v2.0/networks/"+id, "")
	if len(seen) != 3 {
		t.Fatalf("%d changes: %+v", len(seen), seen)
	}
	if c := seen[0]; c.Caller != a || c.Method != "POST" || c.Path != "/v2.0/networks" || !slices.Equal(c.IDs, []string{id}) || c.Status != 201 || c.Error != "" {
		t.Errorf("of a creation: %+v", c)
	}
	if c := seen[1]; c.Path != "/v2.0/networks/none" || c.Status != 404 || c.Error != "NetworkNotFound" {
		t.Errorf("of a refusal: %+v", c)
	}
	if c := seen[2]; c.Status != 204 {
		t.Errorf("of a deletion: %+v", c)
	}
}

// breaking panics once a network is made, changed or deleted.
type breaking struct{ sdn.Provider }

func (b breaking) EnsureNetwork(ctx context.Context, s sdn.NetworkSpec) (sdn.Network, error) {
	_, _ = b.Provider.EnsureNetwork(ctx, s)
	panic("made")
}

func (b breaking) UpdateNetwork(ctx context.Context, id sdn.ID, p sdn.NetworkPatch) (sdn.Network, error) {
	_, _ = b.Provider.UpdateNetwork(ctx, id, p)
	panic("changed")
}

func (b breaking) DeleteNetwork(ctx context.Context, id sdn.ID) error {
	_ = b.Provider.DeleteNetwork(ctx, id)
	panic("deleted")
}

// A change that was made is told of even where what comes after it breaks.
func TestAuditOfPanic(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := Caller{Project: "a", Role: Member}
	id := w.made(t, a, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
	var seen []Change
	w.handler = NewHandler(breaking{w.sdn}, Options{Audit: func(_ context.Context, c Change) { seen = append(seen, c) }})
	for _, q := range [][3]string{{"POST", "/v2.0/networks", `{"network":{}}`}, {"PUT", "/v2.0/networks/" + id, `{"network":{"name":"x"}}`}, {"DELETE", "/v2.0/networks/" + id, ""}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the panic is held back", q[0])
				}
			}()
			w.ask(t, a, q[0], q[1], q[2])
		}()
		if len(seen) != 1 || seen[0].Caller != a || seen[0].Method != q[0] || seen[0].Path != q[1] || seen[0].Status != 500 || seen[0].Error != "HTTPInternalServerError" {
			t.Errorf("of a %s that panics: %+v", q[0], seen)
		}
		seen = nil
	}
}

// What comes with a deletion is refused, whether or not its length is told; what is sent in chunks and has none is nothing.
func TestDeleteWithBody(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, q := range []struct {
		body   string
		length int64
		want   int
	}{{"{}", 2, 400}, {"{}", -1, 400}, {"", -1, 204}, {"", 0, 204}} {
		id := w.made(t, Caller{Role: Admin}, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
		r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, w.server.URL+"/v2.0/networks/"+id, io.MultiReader(strings.NewReader(q.body)))
		must(t, err)
		if r.ContentLength = q.length; q.length == 0 {
			r.Body = nil
		}
		response, err := w.server.Client().Do(r)
		must(t, err)
		_ = response.Body.Close()
		if response.StatusCode != q.want {
			t.Errorf("%q of length %d: %d, want %d", q.body, q.length, response.StatusCode, q.want)
		}
	}
}
