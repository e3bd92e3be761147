package swarm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/bind"
	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/docker/endpoint"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/ipam"
	"github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/docker/publish/portproxy"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

const firstHost = "one"

func newHosts(t testing.TB) *dockertest.Hosts {
	t.Helper()
	p, err := local.Open(t.Context(), local.Options{
		Path: filepath.Join(t.TempDir(), "store"), Host: firstHost, NoSync: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return dockertest.NewHosts(p, firstHost)
}

var errAway = sdn.Unavailable(errors.New("test"), "SDN", "does not answer")

// reach returns the SDN as one host reaches it.
func (e *env) reach() *dockertest.Provider {
	return &dockertest.Provider{
		Provider: e.shared,
		Before: func(c dockertest.Call) error {
			if e.away.Load() {
				return errAway
			}
			if c.Changes() && e.fault != nil {
				return e.fault(c.Method, false)
			}
			return nil
		},
		After: func(c dockertest.Call, err error) error {
			if c.Changes() && e.fault != nil {
				if fault := e.fault(c.Method, true); fault != nil {
					return fault
				}
			}
			return err
		},
	}
}

// fakeBinder remembers what is plugged. A plugged interface is a container's.
type fakeBinder struct {
	mu      sync.Mutex
	plugged map[sdn.ID]bind.Interface
}

func (b *fakeBinder) Plug(_ context.Context, i bind.Interface) (bind.Result, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.plugged[i.Port.ID] = i
	return bind.Result{HostName: "tap" + i.Port.ID.Short(), Name: bind.ContainerName(i.Port.ID)}, nil
}

func (b *fakeBinder) Unplug(_ context.Context, p sdn.Port) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.plugged, p.ID)
	return nil
}

func (b *fakeBinder) Connected(_ context.Context, p sdn.Port) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, plugged := b.plugged[p.ID]
	return plugged, nil
}

func (b *fakeBinder) count() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.plugged)
}

// env is a host: a database, a binder, the services, and an engine that calls them.
type env struct {
	testing.TB
	host   string
	shared *dockertest.Hosts
	sdn    sdn.Provider // as the host reaches it
	binder *fakeBinder
	path   string // of the database
	empty  string // the SDN before the first call
	away   atomic.Bool
	// fault is asked before and after each call that changes the SDN. Its error is the answer.
	fault func(method string, after bool) error

	*Service
	endpoints *endpoint.Service
	store     *reconcile.Store
	stop      func()
	room      func() error // fails if there is none for new rows; nil: there is
	reborn    func()       // what comes before the next process of a host that died
}

// newSwarm returns hosts on one SDN.
func newSwarm(t testing.TB, hosts ...string) []*env {
	t.Helper()
	return swarmOn(t, newHosts(t), hosts...)
}

func swarmOn(t testing.TB, p *dockertest.Hosts, hosts ...string) []*env {
	t.Helper()
	var envs []*env
	for _, host := range append([]string{firstHost}, hosts...) {
		e := &env{
			TB: t, host: host, shared: p, binder: &fakeBinder{plugged: map[sdn.ID]bind.Interface{}},
			path: filepath.Join(t.TempDir(), "docker.db"),
		}
		e.sdn = e.reach()
		e.start()
		t.Cleanup(func() { e.stop() })
		e.empty = e.dump()
		envs = append(envs, e)
	}
	return envs
}

func (e *env) start() {
	e.Helper()
	store, err := reconcile.Open(reconcile.Config{
		Path: e.path, Volatile: true, Logger: quiet, MinBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond,
		OrphanTTL: 20 * time.Millisecond, GracePeriod: 100 * time.Millisecond, Room: e.room,
	})
	e.must(err)
	e.store = store
	names := identity.NewNamer(e.sdn.Installation(), e.host, store.ID(), true)
	proxy := portproxy.New(portproxy.Config{Logger: quiet})
	daemon := identity.Daemon{
		SDN: e.sdn, Names: names, Host: e.host, Store: store, Timeout: time.Minute, Log: quiet,
	}
	pools := ipam.New(ipam.Config{Daemon: daemon, Global: true})
	networks := network.New(network.Config{
		Daemon: daemon, Pools: pools, Routed: true,
		HasEndpoints: func(id string) bool { return e.endpoints.Has(id) },
		InUse:        func(id string) bool { return e.endpoints.InUse(id) },
	})
	e.Service = New(Config{
		Daemon: daemon, Binder: e.binder, Networks: networks, IPAM: pools,
		DeleteEndpoint: func(ctx context.Context, id string) error { return e.endpoints.Delete(ctx, id) },
	})
	e.endpoints = endpoint.New(endpoint.Config{
		Daemon: daemon, Binder: e.binder, Networks: e.Service, Addresses: e.Service,
		Proxy: proxy, YieldMAC: e.YieldMAC,
	})
	pools.Attach(networks, e.endpoints)
	e.must(store.Start(context.Background()))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { store.Run(sdn.Unawaited(ctx)) })
	e.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		_ = store.Close()
		proxy.Close()
	})
}

// image copies the database as a kill leaves it.
func (e *env) image() {
	e.Helper()
	e.path = dockertest.CopyDatabase(e, e.path)
}

// restart is a kill of the process, and its start.
func (e *env) restart() {
	e.Helper()
	e.image()
	e.stop()
	e.start()
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// refused checks that an error is a refusal with the text.
func (e *env) refused(err error, text string) {
	e.Helper()
	if _, ok := errors.AsType[*api.Refusal](err); !ok || !strings.Contains(err.Error(), text) {
		e.Errorf("error %v, want a refusal with %q", err, text)
	}
}

// pool is a range as the engine has it.
type pool struct {
	id      api.PoolID
	cidr    netip.Prefix
	gateway netip.Addr
}

// docknet is a network as the engine has it.
type docknet struct {
	id       string
	pools    []*pool
	options  api.NetworkOptions
	internal bool
}

func ranges(cidrs ...string) []*pool {
	var list []*pool
	for _, c := range cidrs {
		list = append(list, &pool{cidr: netip.MustParsePrefix(c)})
	}
	return list
}

// task is an endpoint as the engine has it.
type task struct {
	id     string
	net    *docknet
	pool   *pool
	addr   netip.Addr
	mac    net.HardwareAddr
	joined api.JoinResponse
}

var serial atomic.Int64

func swarmID() string    { return fmt.Sprintf("p579wyat0ycxjdmds%08x", serial.Add(1)) }
func endpointID() string { return fmt.Sprintf("%064x", serial.Add(1)) }

func parsePoolID(text string) api.PoolID {
	id, isNode := strings.CutSuffix(text, "/node")
	id, life, _ := strings.Cut(id, "/manager-")
	return api.PoolID{Pool: sdn.ID(id), Node: isNode, Life: life}
}

func (e *env) requestPool(p *pool, space string) error {
	ctx := e.Context()
	r := &api.RequestPoolRequest{AddressSpace: space, Pool: p.cidr, V6: p.cidr.Addr().Is6()}
	a, err := e.RequestPool(ctx, r)
	if err == nil {
		p.id = parsePoolID(a.PoolID)
	}
	return err
}

func (e *env) requestAddress(r *api.RequestAddressRequest) (netip.Addr, error) {
	a, err := e.RequestAddress(e.Context(), r)
	if err != nil {
		return netip.Addr{}, err
	}
	return netip.MustParsePrefix(a.Address).Addr(), nil
}

func (e *env) releaseAddress(id api.PoolID, a netip.Addr) error {
	r := &api.ReleaseAddressRequest{PoolID: id, Address: a}
	_, err := e.ReleaseAddress(e.Context(), r)
	return err
}

func (e *env) releasePool(id api.PoolID) error {
	r := &api.ReleasePoolRequest{PoolID: id}
	_, err := e.ReleasePool(e.Context(), r)
	return err
}

func (n *docknet) request(space string) api.CreateNetworkRequest {
	r := api.CreateNetworkRequest{NetworkID: n.id, Options: n.options}
	for i, p := range n.pools {
		r.Ranges = append(r.Ranges, &api.IPAMData{AddressSpace: space, Pool: p.cidr, Place: i, Gateway: p.gateway})
	}
	return r
}

func (e *env) requestRanges(n *docknet, space string) error {
	for _, p := range n.pools {
		if err := e.requestPool(p, space); err != nil {
			return err
		}
		a, err := e.requestAddress(&api.RequestAddressRequest{PoolID: p.id, Address: p.gateway, Gateway: true})
		if err != nil {
			return err
		}
		p.gateway = a
	}
	return nil
}

// tryAllocate is docker network create on a manager.
func (e *env) tryAllocate(n *docknet) error {
	if n.id == "" {
		n.id = swarmID()
	}
	if err := e.requestRanges(n, api.GlobalSpace); err != nil {
		return err
	}
	_, err := e.AllocateNetwork(e.Context(), &api.AllocateNetworkRequest{CreateNetworkRequest: n.request("")})
	return err
}

func (e *env) allocate(n *docknet) *docknet {
	e.Helper()
	e.must(e.tryAllocate(n))
	return n
}

// take takes an address as a manager does; an invalid one is any.
func (e *env) take(n *docknet, a netip.Addr) (netip.Addr, error) {
	return e.takeOf(n.pools[0], a)
}

func (e *env) takeOf(p *pool, a netip.Addr) (netip.Addr, error) {
	return e.requestAddress(&api.RequestAddressRequest{PoolID: p.id, Address: a, Serial: true})
}

func (e *env) any(n *docknet) netip.Addr {
	e.Helper()
	a, err := e.take(n, netip.Addr{})
	e.must(err)
	return a
}

// tryOnNode creates a manager's network on a node.
func (e *env) tryOnNode(n *docknet) (*docknet, error) {
	node := &docknet{id: n.id, options: n.options}
	node.options.Internal = n.internal
	for _, p := range n.pools {
		node.pools = append(node.pools, &pool{cidr: p.cidr, gateway: p.gateway})
	}
	if err := e.requestRanges(node, api.LocalSpace); err != nil {
		return node, err
	}
	r := node.request(api.LocalSpace)
	return node, e.CreateNetwork(e.Context(), &r)
}

func (e *env) onNode(n *docknet) *docknet {
	e.Helper()
	node, err := e.tryOnNode(n)
	e.must(err)
	for i, p := range node.pools {
		if !p.id.Node || p.id.Pool != n.pools[i].id.Pool {
			e.Errorf("the node's pool is %q, the manager's %q", p.id, n.pools[i].id)
		}
	}
	return node
}

// tryRun starts a task on a node.
func (e *env) tryRun(r *task) error {
	if r.id == "" {
		r.id = endpointID()
	}
	if r.pool == nil {
		r.pool = r.net.pools[0]
	}
	if r.mac == nil {
		r.mac = net.HardwareAddr{2, 0x42, 0, 0, byte(serial.Add(1) >> 8), byte(serial.Load())}
	}
	a, err := e.requestAddress(&api.RequestAddressRequest{PoolID: r.pool.id, Address: r.addr, MAC: r.mac})
	if err != nil {
		return err
	}
	r.addr = a
	_, err = e.endpoints.Create(e.Context(), &api.CreateEndpointRequest{
		EndpointRequest: r.request(), MAC: r.mac, MACGiven: true,
		Addresses: []netip.Prefix{netip.PrefixFrom(a, r.pool.cidr.Bits())},
	})
	if err != nil {
		return err
	}
	return e.join(r, "/var/run/docker/netns/"+r.id[52:])
}

func (e *env) join(r *task, sandbox string) (err error) {
	r.joined, err = e.endpoints.Join(e.Context(), &api.JoinRequest{EndpointRequest: r.request(), SandboxKey: sandbox})
	return err
}

func (r *task) request() api.EndpointRequest {
	return api.EndpointRequest{NetworkID: r.net.id, EndpointID: r.id}
}

func (e *env) run(node *docknet, a netip.Addr) *task {
	e.Helper()
	r := &task{net: node, addr: a}
	e.must(e.tryRun(r))
	return r
}

func (e *env) tryStop(r *task) error {
	return errors.Join(e.endpoints.Leave(e.Context(), r.id), e.endpoints.Delete(e.Context(), r.id),
		e.releaseAddress(r.pool.id, r.addr))
}

func (e *env) halt(r *task) {
	e.Helper()
	e.must(e.tryStop(r))
}

func (e *env) tryReleaseRanges(n *docknet) error {
	var errs []error
	for _, p := range n.pools {
		errs = append(errs, e.releaseAddress(p.id, p.gateway), e.releasePool(p.id))
	}
	return errors.Join(errs...)
}

// tryRemove is the end of a network on a node.
func (e *env) tryRemove(n *docknet) error {
	return errors.Join(e.tryReleaseRanges(n), e.DeleteNetwork(e.Context(), n.id))
}

func (e *env) remove(n *docknet) {
	e.Helper()
	e.must(e.tryRemove(n))
}

func (e *env) tryFree(n *docknet) error {
	return e.FreeNetwork(e.Context(), &api.NetworkRequest{NetworkID: n.id})
}

// tryUnallocate is docker network rm on a manager.
func (e *env) tryUnallocate(n *docknet) error {
	return errors.Join(e.tryFree(n), e.tryReleaseRanges(n))
}

func (e *env) unallocate(n *docknet) {
	e.Helper()
	e.must(e.tryUnallocate(n))
}

// dump is all that the SDN has.
func (e *env) dump() string {
	e.Helper()
	ctx := e.Context()
	var s bytes.Buffer
	networks, err := sdn.All(e.shared.FindNetworks(ctx, sdn.NetworkQuery{}))
	e.must(err)
	for _, n := range networks {
		fmt.Fprintln(&s, "network", n.ID, n.Key, n.Tags)
	}
	subnets, err := sdn.All(e.shared.FindSubnets(ctx, sdn.SubnetQuery{}))
	e.must(err)
	for _, n := range subnets {
		fmt.Fprintln(&s, "subnet", n.ID, n.Key, n.CIDR, n.Tags)
	}
	pools, err := sdn.All(e.shared.FindSubnetPools(ctx, sdn.SubnetPoolQuery{}))
	e.must(err)
	for _, n := range pools {
		fmt.Fprintln(&s, "pool", n.ID, n.Key, n.Tags)
	}
	ports, err := sdn.All(e.shared.FindPorts(ctx, sdn.PortQuery{}))
	e.must(err)
	for _, n := range ports {
		fmt.Fprintln(&s, "port", n.ID, n.Key, n.MAC, n.Addresses, n.Host, n.DeviceID, n.Tags)
	}
	routers, err := sdn.All(e.shared.FindRouters(ctx, sdn.RouterQuery{}))
	e.must(err)
	for _, n := range routers {
		fmt.Fprintln(&s, "router", n.ID, n.Key, n.Interfaces)
	}
	return s.String()
}

// counts are the numbers of networks, routers and containers' ports.
func (e *env) counts() [3]int {
	dump := e.dump()
	lines := func(text, prefix string) int { return strings.Count("\n"+text, "\n"+prefix) }
	return [3]int{
		lines(dump, "network ") - lines(e.empty, "network "), lines(dump, "router "),
		strings.Count(dump, identity.KindPort) + strings.Count(dump, identity.KindEndpoint),
	}
}

// eventually waits until what a host does in the background makes the condition true.
func eventually(condition func() bool) bool {
	for end := time.Now().Add(time.Minute); !condition(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

func (e *env) expect(networks, routers, ports int) {
	e.Helper()
	if got, want := e.counts(), [3]int{networks, routers, ports}; got != want {
		e.Errorf("%v networks, routers and ports, want %v\n%s", got, want, e.dump())
	}
}

// clean checks that nothing is left, in the SDN and in the database.
func (e *env) clean() {
	e.Helper()
	if !eventually(func() bool { return e.dump() == e.empty && e.binder.count() == 0 && len(e.store.Rows()) == 0 }) {
		var rows []string
		for name, text := range e.store.Rows() {
			rows = append(rows, name+" "+string(text))
		}
		e.Errorf("%d plugged on %s, left in the SDN:\n%s\nat first:\n%s\nrows:\n%s",
			e.binder.count(), e.host, e.dump(), e.empty, strings.Join(rows, "\n"))
	}
}

func cleanAll(envs []*env) {
	for _, e := range envs {
		e.Helper()
		e.clean()
	}
}

// port returns the port that has an address.
func (e *env) port(n *docknet, a netip.Addr) (sdn.Port, bool) {
	e.Helper()
	p, found, err := e.heldAt(e.Context(), n.pools[0].id.Pool, a)
	e.must(err)
	return p, found
}
