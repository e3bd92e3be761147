package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

const testHost = "box"

// fakeBinder remembers what is plugged.
type fakeBinder struct {
	mu      sync.Mutex
	plugged map[sdn.ID]bind.Interface
	fail    error // of every Plug
}

func (b *fakeBinder) Plug(_ context.Context, i bind.Interface) (bind.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail != nil {
		return bind.Result{}, b.fail
	}
	if i.Port.Host == "" {
		return bind.Result{}, fmt.Errorf("port %s has no host", i.Port.ID)
	}
	b.plugged[i.Port.ID] = i
	return bind.Result{HostName: "tap" + i.Port.ID.Short(), Name: bind.ContainerName(i.Port.ID)}, nil
}

func (b *fakeBinder) Unplug(_ context.Context, p sdn.Port) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.plugged, p.ID)
	return nil
}

// Connected takes every interface that is plugged for a container's.
func (b *fakeBinder) Connected(_ context.Context, p sdn.Port) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, plugged := b.plugged[p.ID]
	return plugged, nil
}

// unplugAll ends all interfaces, as those of containers that have ended.
func (b *fakeBinder) unplugAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.plugged)
}

// remove ends the interface of a port.
func (b *fakeBinder) remove(port sdn.ID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.plugged, port)
}

// put plugs a port.
func (b *fakeBinder) put(port sdn.ID, i bind.Interface) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.plugged[port] = i
}

func (b *fakeBinder) interfaceOf(port sdn.ID) bind.Interface {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.plugged[port]
}

func (b *fakeBinder) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.plugged)
}

// box is a host: a store, a binder, a driver, and an engine that calls it.
type box struct {
	t        testing.TB
	provider sdn.Provider
	binder   *fakeBinder
	driver   *Driver
	config   Config
	empty    string                               // the store as it was before anything was asked of it
	took     func(method string, d time.Duration) // if not nil, told of every call
}

func newBox(t testing.TB, change ...func(*Config)) *box {
	t.Helper()
	return boxOn(t, openStore(t, filepath.Join(t.TempDir(), "store"), true), change...)
}

func openStore(t testing.TB, path string, noSync bool) *local.Provider {
	t.Helper()
	p, err := local.Open(t.Context(), local.Options{Path: path, Host: testHost, NoSync: noSync})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// boxOn is newBox on a provider.
func boxOn(t testing.TB, p sdn.Provider, change ...func(*Config)) *box {
	t.Helper()
	b := &box{t: t, provider: p, binder: &fakeBinder{plugged: map[sdn.ID]bind.Interface{}}}
	b.config = Config{
		Provider: p, Binder: b.binder, Host: testHost, Routed: true, StateDir: t.TempDir(),
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), unsynced: true,
	}
	for _, c := range change {
		c(&b.config)
	}
	b.restart()
	b.empty = b.dump()
	return b
}

// every is the step of a loop over all moments of a fault: 1, or n with -short. "make race" runs
// the tests without -short.
func every(n int) int {
	if testing.Short() {
		return n
	}
	return 1
}

// restart kills the plugin and starts it again. The killed one keeps its database, of which the
// new one has a copy: what was not synced is lost.
func (b *box) restart() {
	b.t.Helper()
	if b.driver != nil {
		b.copyDatabase()
	}
	d, err := New(b.config)
	b.must(err)
	b.driver = d
	b.t.Cleanup(d.closeDatabase)
}

// copyDatabase replaces the file of the database by a copy, which no process has open.
func (b *box) copyDatabase() {
	b.t.Helper()
	path := DatabasePath(b.config.StateDir)
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return // the next one has another folder
	}
	b.must(err)
	b.must(os.WriteFile(path+".copy", text, 0o600))
	b.must(os.Rename(path+".copy", path))
}

// idle runs the database's pending work until there is none.
func (b *box) idle() {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	b.driver.database.Retry()
	running.Go(func() { b.driver.database.Run(ctx) })
	for pending := b.pendingRows(); len(pending) > 0; pending = b.pendingRows() {
		select {
		case <-ctx.Done():
			b.t.Fatalf("rows are still pending: %v", pending)
		case <-time.After(time.Millisecond):
		}
	}
}

// reconcile is what Run does at a start, and the pending work after it.
func (b *box) reconcile() {
	b.t.Helper()
	_, err := b.driver.resume(b.t.Context(), nil)
	b.must(err)
	b.idle()
}

// pendingRows returns the rows of which something has to be deleted or ensured again, but for those
// that wait for a row that they own.
func (b *box) pendingRows() (pending []string) {
	b.t.Helper()
	type row struct {
		Phase  reconcile.Phase
		Redo   bool
		Looked time.Duration // for an object that may yet be created
		Owners []string
	}
	rows, waits := map[string]row{}, map[string]bool{}
	for name, text := range b.driver.Intents() {
		var r row
		b.must(json.Unmarshal(text, &r))
		rows[name] = r
		for _, owner := range r.Owners {
			waits[owner] = waits[owner] || r.Phase == reconcile.Wanted
		}
	}
	for name, r := range rows {
		if r.Redo || r.Phase == reconcile.Deleting && !waits[name] && r.Looked == 0 {
			pending = append(pending, fmt.Sprintf("%s: %+v", name, r))
		}
	}
	return pending
}

// post sends one call as an engine does and gives the status and the body.
func (b *box) post(method, body string) (int, map[string]any) {
	b.t.Helper()
	r := httptest.NewRequestWithContext(b.t.Context(), http.MethodPost, "/"+method, strings.NewReader(body))
	r.Host = ""
	w := httptest.NewRecorder()
	start := time.Now()
	b.driver.Handler().ServeHTTP(w, r)
	if b.took != nil {
		b.took(method, time.Since(start))
	}
	if got := w.Header().Get("Content-Type"); got != contentType {
		b.t.Errorf("%s: content type %q", method, got)
	}
	d := json.NewDecoder(bytes.NewReader(w.Body.Bytes()))
	answer := map[string]any{}
	if err := d.Decode(&answer); err != nil {
		b.t.Fatalf("%s: the answer %q is not an object: %v", method, w.Body, err)
	}
	if data, ok := answer["Data"]; ok && data == nil {
		b.t.Errorf("%s: Data is null", method)
	}
	return w.Code, answer
}

// The names and values of options, as Docker and its users write them.
const (
	optGeneric      = "com.docker.network.generic"
	optInternal     = "com.docker.network.internal"
	optMTU          = "com.docker.network.driver.mtu"
	optBinding      = "com.docker.network.bridge.host_binding_ipv4"
	optPortMap      = "com.docker.network.portmap"
	optExposed      = "com.docker.network.endpoint.exposedports"
	optMAC          = "com.docker.network.endpoint.macaddress"
	optIfname       = "com.docker.network.endpoint.ifname"
	optSerial       = "com.docker.network.ipam.serial"
	optAddressType  = "RequestAddressType"
	addressGateway  = "com.docker.network.gateway"
	optRouter       = "kuryr.router"
	optExternal     = "kuryr.external_network"
	optGateway      = "kuryr.gateway"
	optRoutes       = "kuryr.routes"
	optGroups       = "kuryr.security_groups"
	optPort         = "kuryr.port"
	optPortSecurity = "kuryr.port_security"
	optAllowed      = "kuryr.allowed_addresses"
	optQoSPolicy    = "kuryr.qos_policy"
	optFloatingIP   = "kuryr.floating_ip"
	optPublish      = "kuryr.publish"
	optNetUUID      = "neutron.net.uuid"
	optNetName      = "neutron.net.name"
	optNetShared    = "neutron.net.shared"
	optNeutronPort  = "neutron.port.uuid"

	localSpace, globalSpace       = "local_scope", "global_scope"
	publishFloating, publishProxy = "floatingip", "proxy"
	floatingAuto                  = "auto"
	contentType                   = "application/vnd.docker.plugins.v1.2+json"

	optSubnet, optSubnet6 = "neutron.subnet", "neutron.subnet.v6" // .uuid or .name follows
	optPool, optPool6     = "neutron.pool", "neutron.pool.v6"
)

type m = map[string]any

func encode(v any) string {
	if v == nil {
		return ""
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// ok sends a call that must succeed.
func (b *box) ok(method string, body any) map[string]any {
	b.t.Helper()
	status, answer := b.post(method, encode(body))
	if status != http.StatusOK || answer["Err"] != nil || answer["Error"] != nil {
		b.t.Fatalf("%s %s: %d %v", method, encode(body), status, answer)
	}
	return answer
}

// fails sends a call that must be answered 200 with an error, and gives its text.
func (b *box) fails(method string, body any) string {
	b.t.Helper()
	status, answer := b.post(method, encode(body))
	text, _ := answer["Err"].(string)
	if status != http.StatusOK || text == "" || answer["Error"] != text {
		b.t.Fatalf("%s %s: want 200 with Err and Error, got %d %v", method, encode(body), status, answer)
	}
	return text
}

// refused sends a call that must be answered 4xx with an error, and gives its text.
func (b *box) refused(method, body string) string {
	b.t.Helper()
	status, answer := b.post(method, body)
	text, _ := answer["Err"].(string)
	if status < 400 || status > 499 || text == "" || answer["Error"] != text {
		b.t.Fatalf("%s %.200s: want 4xx with Err and Error, got %d %v", method, body, status, answer)
	}
	return text
}

// contains checks an error's text.
func (b *box) contains(text string, parts ...string) {
	b.t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			b.t.Errorf("error %q does not say %q", text, p)
		}
	}
}

// dump is all that the store has.
func (b *box) dump() string {
	b.t.Helper()
	ctx := b.t.Context()
	var s strings.Builder
	networks, err := sdn.All(b.provider.FindNetworks(ctx, sdn.NetworkQuery{}))
	b.must(err)
	for _, n := range networks {
		fmt.Fprintln(&s, "network", n.ID, n.Key, n.Tags)
	}
	subnets, err := sdn.All(b.provider.FindSubnets(ctx, sdn.SubnetQuery{}))
	b.must(err)
	for _, n := range subnets {
		fmt.Fprintln(&s, "subnet", n.ID, n.Key, n.CIDR, n.Tags)
	}
	pools, err := sdn.All(b.provider.FindSubnetPools(ctx, sdn.SubnetPoolQuery{}))
	b.must(err)
	for _, n := range pools {
		fmt.Fprintln(&s, "pool", n.ID, n.Key, n.Tags)
	}
	ports, err := sdn.All(b.provider.FindPorts(ctx, sdn.PortQuery{}))
	b.must(err)
	for _, n := range ports {
		fmt.Fprintln(&s, "port", n.ID, n.Key, n.MAC, n.Addresses, n.DeviceID, n.Tags)
	}
	routers, err := sdn.All(b.provider.FindRouters(ctx, sdn.RouterQuery{}))
	b.must(err)
	for _, n := range routers {
		fmt.Fprintln(&s, "router", n.ID, n.Key, n.Interfaces)
	}
	floating, err := sdn.All(b.provider.FindFloatingIPs(ctx, sdn.FloatingIPQuery{}))
	b.must(err)
	for _, n := range floating {
		fmt.Fprintln(&s, "floating", n.ID, n.Key, n.Address)
	}
	if b.provider.Capabilities().SecurityGroups {
		groups, err := sdn.All(b.provider.FindSecurityGroups(ctx, sdn.SecurityGroupQuery{}))
		b.must(err)
		for _, n := range groups {
			fmt.Fprintln(&s, "group", n.ID, n.Key, n.Name)
		}
	}
	return s.String()
}

// unchanged checks that the SDN has what an earlier dump lists.
func (b *box) unchanged(before string, when ...any) {
	b.t.Helper()
	if now := b.dump(); now != before {
		b.t.Errorf("%sbefore\n%s\nafter\n%s", fmt.Sprintln(when...), before, now)
	}
}

func (b *box) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// clean checks that nothing is left.
func (b *box) clean() {
	b.t.Helper()
	b.idle()
	if now := b.dump(); now != b.empty {
		b.t.Errorf("left in the store:\n%s\nat first:\n%s", now, b.empty)
	}
	if n := b.binder.count(); n != 0 {
		b.t.Errorf("%d ports are still plugged", n)
	}
}

// pool is a range as the engine holds it.
type pool struct {
	id, cidr, gateway string
	sub               string
	aux               map[string]string
	space             string
	options           m // --ipam-opt
}

// network is a network as the engine holds it.
type network struct {
	id       string
	v4, v6   []*pool
	options  m
	internal bool
	skipGw   bool // the engine asked GwAllocCheck
}

func v4Network(cidr string) *network { return &network{v4: []*pool{{cidr: cidr}}} }

func dualNetwork() *network {
	return &network{v4: []*pool{{cidr: "10.50.0.0/24"}}, v6: []*pool{{cidr: "fd50::/64"}}}
}

var serial = struct {
	sync.Mutex
	n int
}{}

// newID is an id as an engine makes it.
func newID() string {
	serial.Lock()
	defer serial.Unlock()
	serial.n++
	return fmt.Sprintf("%064x", serial.n)
}

func (b *box) requestPool(p *pool, v6 bool) {
	b.t.Helper()
	if p.space == "" {
		p.space = localSpace
	}
	options := p.options
	if options == nil {
		options = m{}
	}
	a := b.ok("IpamDriver.RequestPool", m{
		"AddressSpace": p.space, "Pool": p.cidr, "SubPool": p.sub, "Options": options, "V6": v6,
	})
	p.id, p.cidr = a["PoolID"].(string), a["Pool"].(string)
	if _, ok := a["Data"].(map[string]any); !ok {
		b.t.Errorf("RequestPool: Data is no object: %v", a)
	}
}

func (b *box) requestGateway(p *pool) {
	b.t.Helper()
	a := b.ok("IpamDriver.RequestAddress", m{
		"PoolID": p.id, "Address": p.gateway, "Options": m{optAddressType: addressGateway},
	})
	p.gateway = bareAddress(b, a["Address"])
}

// bareAddress checks that an answer is an address with its length and gives the address.
func bareAddress(b *box, v any) string {
	b.t.Helper()
	p, err := netip.ParsePrefix(fmt.Sprint(v))
	if err != nil {
		b.t.Fatalf("%v is not an address with a length", v)
	}
	return p.Addr().String()
}

func (p *pool) data() m {
	_, length, _ := strings.Cut(p.cidr, "/")
	d := m{"AddressSpace": p.space, "Pool": p.cidr}
	if p.gateway != "" {
		d["Gateway"] = p.gateway + "/" + length
	}
	aux := m{}
	for name, a := range p.aux {
		aux[name] = a + "/" + length
	}
	if len(aux) > 0 {
		d["AuxAddresses"] = aux
	}
	return d
}

// request does all of docker network create up to CreateNetwork, whose body it gives.
func (b *box) request(n *network) m {
	b.t.Helper()
	if n.id == "" {
		n.id = newID()
	}
	data := [2][]m{{}, {}}
	for family, pools := range [][]*pool{n.v4, n.v6} {
		for _, p := range pools {
			b.requestPool(p, family == 1)
			if !n.skipGw {
				b.requestGateway(p)
			}
			for _, aux := range p.aux {
				a := b.ok("IpamDriver.RequestAddress", m{"PoolID": p.id, "Address": aux, "Options": nil})
				if bareAddress(b, a["Address"]) != aux {
					b.t.Errorf("aux %s was answered %v", aux, a)
				}
			}
			data[family] = append(data[family], p.data())
		}
	}
	options := m{"com.docker.network.enable_ipv6": len(n.v6) > 0, optGeneric: m{}}
	if n.options != nil {
		options[optGeneric] = n.options
	}
	if n.internal {
		options[optInternal] = true
	}
	return m{"NetworkID": n.id, "Options": options, "IPv4Data": data[0], "IPv6Data": data[1]}
}

// create is docker network create.
func (b *box) create(n *network) *network {
	b.t.Helper()
	body := b.request(n)
	b.ok("NetworkDriver.CreateNetwork", body)
	return n
}

// otherIPAM creates a network whose addresses another IPAM driver chooses.
func (b *box) otherIPAM(cidr string) *network {
	b.t.Helper()
	n := v4Network(cidr)
	n.id = newID()
	p := netip.MustParsePrefix(cidr)
	gateway := netip.PrefixFrom(p.Addr().Next(), p.Bits())
	b.ok("NetworkDriver.CreateNetwork", m{
		"NetworkID": n.id,
		"IPv4Data":  []m{{"AddressSpace": "LocalDefault", "Gateway": gateway, "Pool": cidr}},
	})
	return n
}

// release does all of docker network rm up to DeleteNetwork.
func (b *box) release(n *network) {
	b.t.Helper()
	for _, p := range append(append([]*pool{}, n.v4...), n.v6...) {
		if p.gateway != "" {
			b.ok("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": p.gateway})
		}
		for _, aux := range p.aux {
			b.ok("IpamDriver.ReleaseAddress", m{"PoolID": p.id, "Address": aux})
		}
		b.ok("IpamDriver.ReleasePool", m{"PoolID": p.id})
	}
}

// remove is docker network rm.
func (b *box) remove(n *network) {
	b.t.Helper()
	b.release(n)
	b.ok("NetworkDriver.DeleteNetwork", m{"NetworkID": n.id})
}

// endpoint is an endpoint as the engine holds it.
type endpoint struct {
	net       *network
	id, mac   string
	ip4, ip6  string // asked for, then given
	published []m
	exposed   []m // told by Join alone
	driver    m   // driver options
	joined    map[string]any
}

func (e *endpoint) body() m { return m{"NetworkID": e.net.id, "EndpointID": e.id} }

func (e *endpoint) options() m {
	published := e.published
	if published == nil {
		published = []m{}
	}
	options := m{optExposed: []m{}, optPortMap: published}
	maps.Copy(options, e.driver)
	return options
}

// take requests the endpoint's addresses.
func (b *box) take(e *endpoint) {
	b.t.Helper()
	if e.id == "" {
		e.id = newID()
	}
	if e.mac == "" {
		e.mac = "02:42:" + e.id[56:58] + ":" + e.id[58:60] + ":" + e.id[60:62] + ":" + e.id[62:64]
	}
	for family, address := range []*string{&e.ip4, &e.ip6} {
		pools := [][]*pool{e.net.v4, e.net.v6}[family]
		if len(pools) == 0 {
			continue
		}
		a := b.ok("IpamDriver.RequestAddress", m{"PoolID": pools[0].id, "Address": *address, "Options": m{optMAC: e.mac}})
		got := bareAddress(b, a["Address"])
		if *address != "" && got != *address {
			b.t.Errorf("asked for %s, got %s", *address, got)
		}
		*address = got
	}
}

// createBody is CreateEndpoint's body.
func (e *endpoint) createBody() m {
	i := m{"Address": "", "AddressIPv6": "", "MacAddress": e.mac}
	for family, key := range []string{"Address", "AddressIPv6"} {
		address := []string{e.ip4, e.ip6}[family]
		pools := [][]*pool{e.net.v4, e.net.v6}[family]
		if address != "" && len(pools) > 0 {
			_, length, _ := strings.Cut(pools[0].cidr, "/")
			i[key] = address + "/" + length
		}
	}
	body := e.body()
	body["Interface"], body["Options"] = i, e.options()
	return body
}

func (e *endpoint) joinBody() m {
	body := e.body()
	options := e.options()
	if e.exposed != nil {
		options[optExposed] = e.exposed
	}
	body["SandboxKey"], body["Options"] = "/run/docker/netns/0123456789ab", options
	return body
}

// join is docker run without what the endpoint publishes.
func (b *box) join(e *endpoint) *endpoint {
	b.t.Helper()
	b.take(e)
	a := b.ok("NetworkDriver.CreateEndpoint", e.createBody())
	if i, _ := a["Interface"].(map[string]any); i["Address"] != nil || i["AddressIPv6"] != nil || i["MacAddress"] != nil {
		b.t.Errorf("what was given came back: %v", a)
	}
	e.joined = b.ok("NetworkDriver.Join", e.joinBody())
	return e
}

// run is docker run.
func (b *box) run(e *endpoint) *endpoint {
	b.t.Helper()
	b.join(e)
	b.publish(e)
	b.ok("NetworkDriver.EndpointOperInfo", e.body())
	return e
}

// programBody is ProgramExternalConnectivity's body for all that the endpoint publishes.
func (e *endpoint) programBody() m {
	body := e.body()
	body["Options"] = e.joinBody()["Options"]
	return body
}

// program is programBody for other ports.
func (e *endpoint) program(published ...m) m {
	body := e.body()
	body["Options"] = m{optPortMap: published}
	return body
}

// publish publishes the endpoint's ports.
func (b *box) publish(e *endpoint) {
	b.t.Helper()
	b.ok("NetworkDriver.ProgramExternalConnectivity", e.programBody())
}

// publishFails is a publish that must fail, and gives the text of the error.
func (b *box) publishFails(e *endpoint) string {
	b.t.Helper()
	return b.fails("NetworkDriver.ProgramExternalConnectivity", e.programBody())
}

// giveBack releases the endpoint's addresses.
func (b *box) giveBack(e *endpoint) {
	b.t.Helper()
	if e.ip4 != "" {
		b.ok("IpamDriver.ReleaseAddress", m{"PoolID": e.net.v4[0].id, "Address": e.ip4})
	}
	if e.ip6 != "" {
		b.ok("IpamDriver.ReleaseAddress", m{"PoolID": e.net.v6[0].id, "Address": e.ip6})
	}
}

// stop is docker stop.
func (b *box) stop(e *endpoint) {
	b.t.Helper()
	b.ok("NetworkDriver.RevokeExternalConnectivity", e.body())
	b.ok("NetworkDriver.Leave", e.body())
	b.ok("NetworkDriver.DeleteEndpoint", e.body())
	b.giveBack(e)
}
