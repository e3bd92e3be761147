package neutronapi

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
)

// unordered is a provider that promises no order.
type unordered struct{ sdn.Provider }

func (u unordered) Capabilities() sdn.Capabilities {
	c := u.Provider.Capabilities()
	c.Ordered = false
	return c
}

// listed gives what a list answers for an attribute.
func (w *world) listed(t *testing.T, caller Caller, query, attribute string) []string {
	t.Helper()
	status, out := w.ask(t, caller, "GET", "/v2.0/"+query, "")
	if status != http.StatusOK {
		t.Fatalf("%s: %d %v", query, status, out)
	}
	collection, _, _ := strings.Cut(query, "?")
	n, err := strconv.Atoi(at(out, collection+".#"))
	must(t, err)
	all := []string{}
	for i := range n {
		all = append(all, at(out, fmt.Sprintf("%s.%d.%s", collection, i, attribute)))
	}
	return all
}

// Every way of reading page by page, forwards and backwards, gives every object once and in order.
func TestPages(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ordered", "unordered"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if name == "unordered" {
				w.handler = NewHandler(unordered{w.sdn}, Options{})
			}
			for i := range 7 {
				w.made(t, root, "POST", "/v2.0/networks", fmt.Sprintf(`{"network":{"name":"p%d","mtu":%d,"project_id":"p"}}`, i/2, 1500-i), "network.id")
			}
			for _, sort := range []string{"", "&sort_key=name&sort_dir=asc", "&sort_key=name&sort_dir=desc&sort_key=mtu&sort_dir=asc", "&sort_key=mtu&sort_dir=asc", "&sort_key=id&sort_dir=desc", "&sort_key=id&sort_dir=asc"} {
				all := w.listed(t, root, "networks?project_id=p"+sort, "id")
				if len(all) != 7 {
					t.Fatalf("%s: %d objects", sort, len(all))
				}
				for limit := 1; limit <= 8; limit++ {
					for _, back := range []bool{false, true} {
						if got := w.walk(t, "networks?project_id=p&limit="+strconv.Itoa(limit)+sort, back); !slices.Equal(got, all) {
							t.Errorf("%s limit %d back %v: %v, want %v", sort, limit, back, got, all)
						}
					}
				}
			}
		})
	}
}

// walk reads page by page by the links, from either end.
func (w *world) walk(t *testing.T, query string, back bool) (all []string) {
	t.Helper()
	rel := "next"
	if back {
		rel, query = "previous", query+"&page_reverse=True"
	}
	for range 20 {
		_, out := w.ask(t, root, "GET", "/v2.0/"+query, "")
		var page []string
		for i := 0; at(out, fmt.Sprintf("networks.%d", i)) != "absent"; i++ {
			page = append(page, at(out, fmt.Sprintf("networks.%d.id", i)))
		}
		if back {
			all = append(page, all...)
		} else {
			all = append(all, page...)
		}
		next := ""
		for i := range 2 {
			if at(out, fmt.Sprintf("networks_links.%d.rel", i)) == rel {
				href, err := url.Parse(at(out, fmt.Sprintf("networks_links.%d.href", i)))
				must(t, err)
				next = strings.TrimPrefix(href.Path, "/v2.0/") + "?" + href.RawQuery
			}
		}
		if query = next; query == "" {
			return all
		}
	}
	t.Fatal("the pages do not end")
	return nil
}

// counting counts what a Find was asked for one by one.
type counting struct {
	sdn.Provider
	given *int
}

func (c counting) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return func(yield func(sdn.Port, error) bool) {
		for p, err := range c.Provider.FindPorts(ctx, q) {
			*c.given++
			if !yield(p, err) {
				return
			}
		}
	}
}

// A page costs a page, wherever it is; a list is never longer than the server's largest page, and the client reads on.
func TestPageCost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	given := 0
	w.handler = NewHandler(counting{w.sdn, &given}, Options{MaxPage: 20})
	specs := make([]sdn.PortSpec, 100)
	for i := range specs {
		specs[i].Network = w.network.ID
	}
	_, err := w.sdn.EnsurePorts(t.Context(), specs)
	must(t, err)
	all := w.listed(t, root, "ports?limit=1000", "id")
	if len(all) != 20 || given != 20 {
		t.Errorf("a page has %d of at most 20, for %d that were read", len(all), given)
	}
	given = 0
	if next := w.listed(t, root, "ports?limit=10&marker="+all[19], "id"); len(next) != 10 || given != 10 || next[0] <= all[19] {
		t.Errorf("%d of 10 behind the marker, for %d that were read", len(next), given)
	}
}

func TestListAttributes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, n := range []string{`"name":"a","mtu":1400,"description":"x"`, `"name":"b","mtu":1500`, `"name":"","mtu":1600`} {
		w.made(t, root, "POST", "/v2.0/networks", `{"network":{"project_id":"p",`+n+`}}`, "network.id")
	}
	b := w.listed(t, root, "networks?name=b", "id")[0]
	w.made(t, root, "PUT", "/v2.0/networks/"+b+"/tags", `{"tags":["red","blue"]}`, "tags")
	w.made(t, root, "PUT", "/v2.0/networks/"+w.listed(t, root, "networks?name=a", "id")[0]+"/tags/red", "", "")
	for query, want := range map[string]string{
		"mtu=1400": "a", "mtu=1400&mtu=1500": "a b", "name=": "", "description=x": "a", "description=x&description=kuryr/a/b/c": "a", "description=": "b ", "admin_state_up=True&mtu=1500": "b",
		"shared=0&name=a": "a", "shared=true": "none", "router:external=false&router:external=true&mtu=1500": "b", "tags=red": "a b", "tags=red,blue": "b", "tags-any=blue,green": "b",
		"not-tags=red,blue": "a ", "not-tags-any=blue,green": "a ", "not-tags-any=red": "", "status=ACTIVE&name=b": "b", "status=DOWN": "none", "revision_number=1": "",
		"tenant_id=p&name=b": "b", "tenant_id=q": "none", "subnets=none": "none", "availability_zones=nova": "none",
	} {
		found := w.listed(t, root, "networks?project_id=p&sort_key=mtu&sort_dir=asc&"+query, "name")
		if got := strings.Join(found, " "); want == "none" && len(found) > 0 || want != "none" && (got != want || len(found) == 0) {
			t.Errorf("%s: %q, want %q", query, found, want)
		}
	}
	_, out := w.ask(t, root, "GET", "/v2.0/networks?name=a&fields=name&fields=mtu&fields=colour", "")
	if at(out, "networks.0") != `{"mtu":1400,"name":"a"}` {
		t.Errorf("fields: %v", out)
	}
	_, out = w.ask(t, root, "GET", "/v2.0/networks/"+b+"?fields=id", "")
	if at(out, "network") != `{"id":"`+b+`"}` {
		t.Errorf("fields of one: %v", out)
	}
	addr := w.port.Addresses[0].Addr.String()
	for query, want := range map[string]int{
		"fixed_ips=ip_address_substr%3D" + addr[:6]: 2, "fixed_ips=ip_address_substr%3D99.99": 0, "fixed_ips=ip_address_substr%3D99.99&fixed_ips=ip_address_substr%3D" + addr: 1,
		"fixed_ips=subnet_id%3D" + string(w.subnet.ID) + "&fixed_ips=ip_address%3D" + addr: 1, "binding:vif_type=bridge": 1, "device_owner=" + sdn.OwnerRouterInterface: 1,
	} {
		if got := w.listed(t, root, "ports?"+query, "id"); len(got) != want {
			t.Errorf("ports?%s: %d, want %d", query, len(got), want)
		}
	}
	w.steps(t, root, []step{
		{"GET", "/v2.0/networks?colour=red&smell=1", "", 400, "HTTPBadRequest: ['colour', 'smell'] is invalid attribute for filtering"},
		{"GET", "/v2.0/networks?limit=-1", "", 400, "BadRequest: Bad limit request: Limit must be an integer 0 or greater and not '-1'"},
		{"GET", "/v2.0/networks?limit=x", "", 400, "BadRequest: and not 'x'"},
		{"GET", "/v2.0/networks?sort_key=name", "", 400, "HTTPBadRequest: The number of sort_keys and sort_dirs must be same"},
		{"GET", "/v2.0/networks?sort_key=colour&sort_dir=asc", "", 400, "HTTPBadRequest: ['colour'] is invalid attribute for sort_keys"},
		{"GET", "/v2.0/networks?sort_key=subnets&sort_dir=asc", "", 400, "HTTPBadRequest: ['subnets'] is invalid attribute for sort_keys"},
		{"GET", "/v2.0/networks?sort_key=name&sort_dir=up", "", 400, "HTTPBadRequest: ['up'] is invalid value for sort_dirs"},
		{"GET", "/v2.0/networks?sort_key=name&sort_dir=asc&marker=none", "", 404, "NetworkNotFound: none"},
		{"GET", "/v2.0/networks?admin_state_up=perhaps", "", 400, "InvalidInput: 'perhaps' cannot be converted to boolean"},
		{"GET", "/v2.0/networks.json?name=a", "", 200, "networks.0.name=a"},
	})
}

// valuesAsShown compares what filters and orders see of an object with what is shown of it.
func valuesAsShown(t *testing.T, r *resource, object any) {
	t.Helper()
	shown := objectOf(json.RawMessage(appendObject(nil, r.prepare().all, object, view{admin: true})))
	for name, want := range shown {
		if got := r.value(object, name); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %s is %v in filters and %v shown", r.title, name, got, want)
		}
	}
	if len(shown) < 10 || len(shown) != len(r.known) {
		t.Errorf("%s: %d attributes are shown and %d are known", r.title, len(shown), len(r.known))
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := &server{p: w.sdn}
	valuesAsShown(t, s.networks().resource(), &w.network)
	valuesAsShown(t, s.subnets().resource(), &w.subnet)
	valuesAsShown(t, s.subnetPools().resource(), &w.pool)
	valuesAsShown(t, s.ports().resource(), &w.port)
	valuesAsShown(t, s.routers().resource(), &w.router)
	valuesAsShown(t, s.floatingIPs().resource(), &w.fip)
}

// A member learns nothing of attributes that it is not shown: a list that it filters or sorts by
// one is refused, whether the value is right or wrong.
func TestHiddenAttributesSelectNothing(t *testing.T) {
	w := newWorld(t)
	member, admin := Caller{Project: "a", Role: Member}, Caller{Project: "a", Role: Admin}
	net := w.made(t, member, "POST", "/v2.0/networks", `{"network":{}}`, "network.id")
	w.made(t, member, "POST", "/v2.0/subnets",
		`{"subnet":{"network_id":"`+net+`","ip_version":4,"cidr":"10.7.0.0/24"}}`, "subnet.id")
	w.made(t, admin, "POST", "/v2.0/ports", `{"port":{"network_id":"`+net+`","binding:host_id":"h"}}`, "port.id")
	s := &server{p: w.sdn}
	hidden := 0
	for _, r := range []*resource{s.networks().resource(), s.ports().resource(), s.routers().resource()} {
		path := "/v2.0/" + r.prepare().collection + "?"
		for _, a := range r.all {
			if a.access&adminShow == 0 || !scalar(r.known[a.name]) {
				continue
			}
			hidden++
			for _, value := range []string{text(r.known[a.name]), "h", "true", ""} {
				w.steps(t, member, []step{{"GET", path + a.name + "=" + value, "", 400,
					"HTTPBadRequest: ['" + a.name + "'] is invalid attribute for filtering"}})
			}
			sort := "sort_dir=asc&sort_key=" + a.name
			w.steps(t, member, []step{{"GET", path + sort, "", 400,
				"HTTPBadRequest: ['" + a.name + "'] is invalid attribute for sort_keys"}})
			w.steps(t, admin, []step{{"GET", path + sort, "", 200, ""}})
		}
	}
	if hidden < 7 {
		t.Errorf("%d attributes are hidden", hidden)
	}
	w.steps(t, member, []step{
		{"GET", "/v2.0/ports?trusted=true&colour=red&name=x", "", 400,
			"HTTPBadRequest: ['colour', 'trusted'] is invalid attribute for filtering"},
		{"GET", "/v2.0/ports?fields=binding:host_id&network_id=" + net, "", 200, "ports.0={}"},
	})
	if got := w.listed(t, admin, "ports?binding:host_id=h&network_id="+net, "id"); len(got) != 1 {
		t.Errorf("an administrator finds %d ports by their host", len(got))
	}
}

// Addresses are shown in the order of their text, as Neutron shows them.
func TestAddressesInOrder(t *testing.T) {
	w := newWorld(t)
	asked := `{"ip_address":"10.1.0.20"},{"ip_address":"10.1.0.3"},{"ip_address":"10.1.0.100"}`
	port := w.made(t, root, "POST", "/v2.0/ports",
		`{"port":{"network_id":"`+string(w.network.ID)+`","fixed_ips":[`+asked+`]}}`, "port.id")
	w.steps(t, root, []step{
		{"GET", "/v2.0/ports/" + port, "", 200,
			"port.fixed_ips.0.ip_address=10.1.0.100 port.fixed_ips.1.ip_address=10.1.0.20 port.fixed_ips.2.ip_address=10.1.0.3"},
	})
}
