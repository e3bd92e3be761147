package neutronapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

// world is a provider without a kernel, with one of each noun, served.
type world struct {
	sdn     sdn.Provider
	handler http.Handler
	server  *httptest.Server

	network sdn.Network
	subnet  sdn.Subnet
	pool    sdn.SubnetPool
	port    sdn.Port
	router  sdn.Router
	fip     sdn.FloatingIP
}

func newWorld(t testing.TB) *world {
	t.Helper()
	ctx := context.Background()
	p, err := local.Open(ctx, local.Options{Path: filepath.Join(t.TempDir(), "k.db"), Host: "h"})
	must(t, err)
	t.Cleanup(func() { _ = p.Close() })
	w := &world{sdn: p}
	w.network, err = p.EnsureNetwork(ctx, sdn.NetworkSpec{Base: sdn.Base{Key: sdn.Key{Owner: p.Installation(), Kind: "docker-network", Name: "n1"}, Name: "blue", Tags: []string{"a", "b"}}})
	must(t, err)
	w.pool, err = p.EnsureSubnetPool(ctx, sdn.SubnetPoolSpec{Base: sdn.Base{Name: "pool"}, Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, DefaultLen: 24})
	must(t, err)
	w.subnet, err = p.EnsureSubnet(ctx, sdn.SubnetSpec{
		Base: sdn.Base{Name: "blue-4"}, Network: w.network.ID, CIDR: netip.MustParsePrefix("10.1.0.0/24"),
		Reserved: []netip.Addr{netip.MustParseAddr("10.1.0.9")},
	})
	must(t, err)
	w.router, err = p.EnsureRouter(ctx, sdn.RouterSpec{Base: sdn.Base{Name: "r"}, Gateway: &sdn.ExternalGateway{Network: p.Capabilities().ExternalNetwork, SNAT: true}})
	must(t, err)
	must(t, p.AttachSubnet(ctx, w.router.ID, w.subnet.ID, netip.Addr{}))
	w.router, err = p.Router(ctx, w.router.ID)
	must(t, err)
	ports, err := p.EnsurePorts(ctx, []sdn.PortSpec{{Base: sdn.Base{Name: "c1"}, Network: w.network.ID, DeviceID: "endpoint-1", DeviceOwner: sdn.OwnerContainer, Host: "h"}})
	must(t, err)
	w.port = ports[0]
	w.fip, err = p.EnsureFloatingIP(ctx, sdn.FloatingIPSpec{Base: sdn.Base{Name: "f"}, Network: p.Capabilities().ExternalNetwork, Address: netip.MustParseAddr("0.0.0.0")})
	must(t, err)
	_, err = p.EnsureForwards(ctx, w.fip.ID, []sdn.Forward{
		{Protocol: sdn.TCP, External: sdn.PortRange{First: 8080}, Internal: sdn.PortRange{First: 80}, Target: sdn.Target{Port: w.port.ID}},
		{Protocol: sdn.UDP, External: sdn.PortRange{First: 5000, Last: 5001}, Internal: sdn.PortRange{First: 6000, Last: 6001}, Target: sdn.Target{Port: w.port.ID}},
	})
	must(t, err)
	w.fip, err = p.FloatingIP(ctx, w.fip.ID)
	must(t, err)
	w.handler = NewHandler(p, Options{})
	w.server = httptest.NewServer(As(Caller{Role: Admin}, w.handler))
	t.Cleanup(w.server.Close)
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The names are Neutron's (https://docs.openstack.org/api-ref/network/v2/), which its clients look for.
func TestNeutronsNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	common := []string{"id", "name", "description", "project_id", "tenant_id", "tags", "revision_number", "created_at", "updated_at"}
	for path, names := range map[string][]string{
		"networks/" + string(w.network.ID): {"mtu", "router:external", "shared", "port_security_enabled", "subnets", "status", "admin_state_up"},
		"subnets/" + string(w.subnet.ID):   {"network_id", "cidr", "ip_version", "gateway_ip", "allocation_pools", "subnetpool_id", "enable_dhcp", "dns_nameservers", "host_routes"},
		"subnetpools/" + string(w.pool.ID): {"prefixes", "ip_version", "default_prefixlen", "min_prefixlen", "max_prefixlen", "shared", "is_default", "address_scope_id"},
		"ports/" + string(w.port.ID):       {"network_id", "mac_address", "fixed_ips", "device_id", "device_owner", "binding:host_id", "binding:vif_type", "binding:vif_details", "security_groups", "allowed_address_pairs", "status"},
		"routers/" + string(w.router.ID):   {"external_gateway_info", "routes", "status", "admin_state_up", "ha", "distributed"},
		"floatingips/" + string(w.fip.ID):  {"floating_network_id", "floating_ip_address", "port_id", "fixed_ip_address", "router_id", "status"},
	} {
		response, err := http.Get(w.server.URL + "/v2.0/" + path)
		must(t, err)
		var body map[string]map[string]any
		must(t, json.NewDecoder(response.Body).Decode(&body))
		_ = response.Body.Close()
		for _, object := range body {
			for _, name := range append(names, common...) {
				if _, ok := object[name]; !ok {
					t.Errorf("%s has no %s", path, name)
				}
			}
		}
	}
}

func TestFilters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	address := w.port.Addresses[0].Addr.String()
	for query, want := range map[string]int{
		"networks?name=blue": 1, "networks?name=red": 0, "networks?tags=a,b": 1, "networks?tags=a,c": 0, "networks?router:external=true": 1,
		"networks?name=blue&name=red": 1, "networks?description=" + url.QueryEscape(w.network.Key.String()): 1,
		"subnets?cidr=10.1.0.0/24": 1, "subnets?network_id=" + string(w.network.ID): 1, "subnets?network_id=nobody": 0,
		"ports?device_id=endpoint-1": 1, "ports?device_id=endpoint-2": 0, "ports?fixed_ips=ip_address%3D" + address: 1, "ports?fixed_ips=ip_address%3D10.9.9.9": 0,
		"ports?mac_address=" + w.port.MAC.String(): 1, "ports?binding:host_id=h&device_owner=" + sdn.OwnerContainer: 1,
		"ports?fixed_ips=subnet_id%3D" + string(w.subnet.ID) + "&device_id=endpoint-1": 1,
		"routers?name=r": 1, "routers?project_id=other": 0, "floatingips?floating_ip_address=0.0.0.0": 1, "subnetpools?name=pool": 1,
	} {
		response, err := http.Get(w.server.URL + "/v2.0/" + query)
		must(t, err)
		var body map[string][]json.RawMessage
		err = json.NewDecoder(response.Body).Decode(&body)
		_ = response.Body.Close()
		collection, _, _ := strings.Cut(query, "?")
		if err != nil || response.StatusCode != http.StatusOK || len(body[collection]) != want || body[collection] == nil {
			t.Errorf("%s: %d, %d objects, %v; want %d", query, response.StatusCode, len(body[collection]), err, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, tc := range []struct {
		method, path string
		status       int
		kind, says   string
	}{
		{"GET", "/v2.0/ports/none", 404, "PortNotFound", "none"},
		{"GET", "/v2.0/networks/none", 404, "NetworkNotFound", "none"},
		{"GET", "/v2.0/subnets/none", 404, "SubnetNotFound", "none"},
		{"GET", "/v2.0/subnetpools/none", 404, "SubnetPoolNotFound", "none"},
		{"GET", "/v2.0/routers/none", 404, "RouterNotFound", "none"},
		{"GET", "/v2.0/floatingips/none", 404, "FloatingIPNotFound", "none"},
		{"GET", "/v2.0/floatingips/none/port_forwardings", 404, "FloatingIPNotFound", "none"},
		{"GET", "/v2.0/ports?colour=red", 400, "HTTPBadRequest", "['colour'] is invalid attribute for filtering"},
		{"GET", "/v2.0/ports?fixed_ips=ip_address%3Dx", 400, "HTTPBadRequest", "fixed_ips"},
		{"GET", "/v2.0/ports?fixed_ips=colour%3Dx", 400, "HTTPBadRequest", "fixed_ips"},
		{"GET", "/v2.0/ports?mac_address=x", 400, "HTTPBadRequest", "mac_address"},
		{"GET", "/v2.0/networks?router:external=maybe", 400, "InvalidInput", "router:external"},
		{"PATCH", "/v2.0/networks", 405, "HTTPMethodNotAllowed", "PATCH"},
		{"POST", "/v2.0/ports/" + string(w.port.ID), 405, "HTTPMethodNotAllowed", "POST"},
		{"GET", "/v2.0/colours", 404, "HTTPNotFound", ""},
	} {
		request, err := http.NewRequest(tc.method, w.server.URL+tc.path, nil)
		must(t, err)
		response, err := http.DefaultClient.Do(request)
		must(t, err)
		var body errorBody
		err = json.NewDecoder(response.Body).Decode(&body)
		_ = response.Body.Close()
		if err != nil || body.NeutronError == nil {
			t.Errorf("%s %s: no NeutronError (%v)", tc.method, tc.path, err)
			continue
		}
		if response.StatusCode != tc.status || body.NeutronError.Type != tc.kind || !strings.Contains(body.NeutronError.Message, tc.says) {
			t.Errorf("%s %s: %d %+v; want %d %s with %q", tc.method, tc.path, response.StatusCode, body.NeutronError, tc.status, tc.kind, tc.says)
		}
		if tc.status == 405 && response.Header.Get("Allow") == "" {
			t.Errorf("%s %s: no Allow", tc.method, tc.path)
		}
	}
}

func TestPortForwardings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var got []string
	for _, f := range w.found(t, root, "floatingips/"+string(w.fip.ID)+"/port_forwardings", "port_forwardings") {
		single := f["external_port"] != nil && f["internal_port"] != nil
		got = append(got, fmt.Sprint(f["protocol"], " ", f["external_port_range"], " ", f["internal_port_range"], " ", f["internal_port_id"]))
		if single != (f["protocol"] == "tcp") {
			t.Errorf("%+v: a single port has external_port, a range has not", f)
		}
	}
	slices.Sort(got)
	want := []string{"tcp 8080:8080 80:80 " + string(w.port.ID), "udp 5000:5001 6000:6001 " + string(w.port.ID)}
	if !slices.Equal(got, want) {
		t.Errorf("port forwardings %q, want %q", got, want)
	}
}

// broken fails in the middle of a list, with a text that is none of the caller's business.
type broken struct{ sdn.Provider }

func (broken) Capabilities() sdn.Capabilities { return sdn.Capabilities{} }

func (broken) FindPorts(ctx context.Context, _ sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return func(yield func(sdn.Port, error) bool) {
		if ctx.Err() != nil {
			yield(sdn.Port{}, ctx.Err())
			return
		}
		_ = yield(sdn.Port{}, nil) && yield(sdn.Port{}, errors.New("password is 1234"))
	}
}

func (broken) FindNetworks(context.Context, sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	return func(yield func(sdn.Network, error) bool) {
		yield(sdn.Network{}, sdn.Unavailable(errors.New("no space left on 10.0.0.9"), "network", "asleep"))
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	h := As(Caller{Role: Admin}, NewHandler(broken{}, Options{}))
	for path, want := range map[string]int{"/v2.0/ports": 500, "/v2.0/networks": 503} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		body, _ := io.ReadAll(w.Body)
		if w.Code != want || strings.Contains(string(body), "1234") {
			t.Errorf("%s: %d %s; want %d without secrets", path, w.Code, body, want)
		}
	}
	world := &world{handler: NewHandler(broken{}, Options{})}
	for role, cause := range map[Role]bool{Admin: true, Member: false} {
		_, out := world.ask(t, Caller{Project: "a", Role: role}, "GET", "/v2.0/networks", "")
		if said := at(out, "NeutronError.message"); !strings.Contains(said, "asleep") || strings.Contains(said, "no space left") != cause {
			t.Errorf("to the role %s: %s", role, said)
		}
	}
}

// The log has what the answer does not explain, and not what clients bring about.
func TestWhatIsLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	h := As(Caller{Role: Admin}, NewHandler(broken{}, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	gone, leave := context.WithCancel(t.Context())
	leave()
	for _, tc := range []struct {
		ctx          context.Context
		method, path string
		want         string
	}{
		{t.Context(), "GET", "/v2.0/ports", "password is 1234"}, {t.Context(), "GET", "/v2.0/networks", "no space left"}, {gone, "GET", "/v2.0/ports", ""}, {t.Context(), "DELETE", "/v2.0/quotas/a", ""},
	} {
		log.Reset()
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(tc.ctx, tc.method, tc.path, nil))
		if got := log.String(); !strings.Contains(got, tc.want) || tc.want == "" && got != "" {
			t.Errorf("%s %s: the log says %q", tc.method, tc.path, got)
		}
	}
}

func TestEncodeError(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		err    error
		status int
	}{
		{sdn.Conflict(sdn.InUse, "network", "", "in use"), 409}, {sdn.Exhausted(sdn.NoAddresses, "subnet", "full"), 409},
		{&sdn.Error{Kind: sdn.KindDenied}, 403}, {&sdn.Error{Kind: sdn.KindPending}, 409}, {sdn.Unsupported("trunk", "none"), 501}, {sdn.Invalid("trunk", "subports[1].mtu", "too large"), 409},
		{sdn.NotFound("trunk", "t"), 404},
	} {
		if got := EncodeError(tc.err); got.Status != tc.status || got.Type == "" || got.Message != tc.err.Error() {
			t.Errorf("EncodeError(%v) = %d %+v, want %d", tc.err, got.Status, got, tc.status)
		}
	}
}

func FuzzFilters(f *testing.F) {
	f.Add("fixed_ips=ip_address%3D10.0.0.1&mac_address=02:00:00:00:00:01&id=a&tags=a,b")
	f.Add("cidr=10.0.0.0/8&router:external=1&description=kuryr/a/b/c")
	f.Fuzz(func(t *testing.T, raw string) {
		values, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		for _, read := range []func(*filter){
			func(f *filter) { networkQuery(f) }, func(f *filter) { subnetQuery(f) }, func(f *filter) { portQuery(f) }, func(f *filter) { floatingIPQuery(f) },
		} {
			filter := newFilter(values)
			read(filter)
			if err := filter.rest(object{}); err != nil && EncodeError(err).Status != http.StatusBadRequest {
				t.Errorf("%q: error %v is no refusal of what was asked", raw, err)
			}
		}
	})
}
