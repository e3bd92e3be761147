package ipam

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

const testHost = "box"

// faultyProvider is an SDN that can be unavailable, and during whose changes the process can be
// killed: before and after each.
type faultyProvider struct {
	sdn.Provider
	down      bool
	tagsLater bool // tags are calls of their own
	loses     bool // ports are made when the SDN has said that it failed
	lost      []sdn.PortSpec

	mu          sync.Mutex // of the counters, which the store's workers use concurrently
	steps, last int        // the step at which the process is killed; 0: none
	changes     int
	poolLists   int
}

var errDown = sdn.Unavailable(errors.New("connection refused"), "SDN", "it is down")

func (p *faultyProvider) step() {
	if n := p.count(&p.steps); n == p.last {
		runtime.Goexit()
	}
}

func (p *faultyProvider) count(n *int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	*n++
	return *n
}

func change[T any](p *faultyProvider, do func() (T, error)) (v T, err error) {
	if p.down {
		return v, errDown
	}
	p.count(&p.changes)
	p.step()
	v, err = do()
	p.step()
	return v, err
}

func (p *faultyProvider) changeOnly(do func() error) error {
	_, err := change(p, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

func find[T any](p *faultyProvider, found iter.Seq2[T, error]) iter.Seq2[T, error] {
	if !p.down {
		return found
	}
	return func(yield func(T, error) bool) {
		var zero T
		yield(zero, errDown)
	}
}

func (p *faultyProvider) Capabilities() sdn.Capabilities {
	c := p.Provider.Capabilities()
	c.TagsAtCreate = c.TagsAtCreate && !p.tagsLater
	return c
}

func (p *faultyProvider) EnsureSubnetPool(ctx context.Context, s sdn.SubnetPoolSpec) (sdn.SubnetPool, error) {
	return change(p, func() (sdn.SubnetPool, error) { return p.Provider.EnsureSubnetPool(ctx, s) })
}

func (p *faultyProvider) UpdateSubnetPool(
	ctx context.Context, id sdn.ID, patch sdn.SubnetPoolPatch,
) (sdn.SubnetPool, error) {
	return change(p, func() (sdn.SubnetPool, error) { return p.Provider.UpdateSubnetPool(ctx, id, patch) })
}

func (p *faultyProvider) DeleteSubnetPool(ctx context.Context, id sdn.ID) error {
	return p.changeOnly(func() error { return p.Provider.DeleteSubnetPool(ctx, id) })
}

func (p *faultyProvider) EnsureNetwork(ctx context.Context, s sdn.NetworkSpec) (sdn.Network, error) {
	return change(p, func() (sdn.Network, error) { return p.Provider.EnsureNetwork(ctx, s) })
}

func (p *faultyProvider) DeleteNetwork(ctx context.Context, id sdn.ID) error {
	return p.changeOnly(func() error { return p.Provider.DeleteNetwork(ctx, id) })
}

func (p *faultyProvider) EnsurePorts(ctx context.Context, s []sdn.PortSpec) ([]sdn.Port, error) {
	if p.loses {
		p.lost = s
		return nil, errDown
	}
	return change(p, func() ([]sdn.Port, error) { return p.Provider.EnsurePorts(ctx, s) })
}

func (p *faultyProvider) UpdatePort(ctx context.Context, id sdn.ID, patch sdn.PortPatch) (sdn.Port, error) {
	return change(p, func() (sdn.Port, error) { return p.Provider.UpdatePort(ctx, id, patch) })
}

func (p *faultyProvider) DeletePort(ctx context.Context, id sdn.ID, revision int64) error {
	return p.changeOnly(func() error { return p.Provider.DeletePort(ctx, id, revision) })
}

func (p *faultyProvider) DeletePorts(ctx context.Context, ids []sdn.ID) error {
	return p.changeOnly(func() error { return p.Provider.DeletePorts(ctx, ids) })
}

func (p *faultyProvider) SubnetPool(ctx context.Context, id sdn.ID) (sdn.SubnetPool, error) {
	if p.down {
		return sdn.SubnetPool{}, errDown
	}
	return p.Provider.SubnetPool(ctx, id)
}

func (p *faultyProvider) FindSubnetPools(
	ctx context.Context, q sdn.SubnetPoolQuery,
) iter.Seq2[sdn.SubnetPool, error] {
	p.count(&p.poolLists)
	return find(p, p.Provider.FindSubnetPools(ctx, q))
}

func (p *faultyProvider) FindPorts(ctx context.Context, q sdn.PortQuery) iter.Seq2[sdn.Port, error] {
	return find(p, p.Provider.FindPorts(ctx, q))
}

func (p *faultyProvider) FindNetworks(ctx context.Context, q sdn.NetworkQuery) iter.Seq2[sdn.Network, error] {
	return find(p, p.Provider.FindNetworks(ctx, q))
}

// env is a host, an SDN without a kernel, and an engine that calls the service.
type env struct {
	t     testing.TB
	sdn   *faultyProvider
	path  string
	store *reconcile.Store
	s     *Service
	empty string
	// emptied is called when the last address of a row is released; nil: nothing is done then.
	emptied func()

	// What the services of networks and endpoints would say.
	networks  map[string]string // the engine's networks by pool
	subnets   map[string][]sdn.Subnet
	endpoints map[string]bool // by address row: whether it is in use
	routes    []netip.Prefix
	pools4    []AutoPool
	ttl       time.Duration // of unconfirmed objects
}

func (e *env) Hold(context.Context, string) (func(), error) { return func() {}, nil }
func (e *env) Emptied(context.Context, string) {
	if e.emptied != nil {
		e.emptied()
	}
}

func (e *env) Of(pool string) (id, ref string) { return e.networks[pool], "" }

func (e *env) Subnets(pool string) []sdn.Subnet { return e.subnets[pool] }

func (e *env) PoolAt(subnet sdn.ID) string {
	for pool, subnets := range e.subnets {
		if slices.ContainsFunc(subnets, func(s sdn.Subnet) bool { return s.ID == subnet }) {
			return pool
		}
	}
	return ""
}

// bind says which subnets a pool has by the row of its network.
func (e *env) bind(pool string, subnets []sdn.Subnet) { e.subnets[pool] = subnets }

type endpointsOf struct{ e *env }

func (o endpointsOf) Of(address string) (id string, inUse bool) {
	inUse, ok := o.e.endpoints[address]
	if ok {
		id = "endpoint"
	}
	return id, inUse
}

func (o endpointsOf) DropUnused(context.Context, string) (bool, error) {
	for address, inUse := range o.e.endpoints {
		if inUse {
			return true, nil
		}
		delete(o.e.endpoints, address)
	}
	return false, nil
}

func newEnv(t testing.TB) *env {
	t.Helper()
	o := local.Options{Path: filepath.Join(t.TempDir(), "store"), Host: testHost, NoSync: true}
	p, err := local.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	e := &env{
		t: t, sdn: &faultyProvider{Provider: p}, path: filepath.Join(t.TempDir(), "docker.db"),
		networks: map[string]string{}, subnets: map[string][]sdn.Subnet{}, endpoints: map[string]bool{},
		pools4: []AutoPool{{netip.MustParsePrefix("10.0.0.0/22"), 24}}, ttl: 10 * time.Millisecond,
	}
	e.open()
	e.empty = e.dump()
	return e
}

func (e *env) open() {
	e.t.Helper()
	store, err := reconcile.Open(reconcile.Config{
		Path: e.path, Volatile: true, Room: func() error { return nil },
		Logger:     slog.New(slog.NewTextHandler(io.Discard, nil)),
		MinBackoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond, OrphanTTL: e.ttl,
	})
	e.must(err)
	e.t.Cleanup(func() { _ = store.Close() })
	e.store = store
	e.s = New(Config{
		Daemon: identity.Daemon{
			SDN: e.sdn, Names: identity.NewNamer(e.sdn.Installation(), testHost, store.ID(), true), Host: testHost,
			Store: store, Timeout: time.Minute, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		},
		Pools4: e.pools4, Pools6: []AutoPool{{netip.MustParsePrefix("fd00::/48"), 64}},
		HostRoutes: func(context.Context) ([]netip.Prefix, error) { return e.routes, nil },
	})
	e.s.Attach(e, endpointsOf{e})
	e.must(store.Start(e.t.Context()))
}

// restart kills the process: what is not committed is lost.
func (e *env) restart() {
	e.t.Helper()
	e.path = dockertest.CopyDatabase(e.t, e.path)
	e.open()
}

// lose is restart without the database.
func (e *env) lose() {
	e.t.Helper()
	e.path = filepath.Join(e.t.TempDir(), "docker.db")
	e.networks, e.subnets = map[string]string{}, map[string][]sdn.Subnet{}
	e.open()
}

// idle waits until the queue has done what it can, and objects without a row have one.
func (e *env) idle() {
	e.t.Helper()
	ctx, cancel := context.WithCancel(sdn.Unawaited(e.t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.store.Run(ctx)
	}()
	for deadline := time.Now().Add(time.Minute); !e.isIdle(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Errorf("not idle: the rows are %s, the SDN has\n%s", e.store.Rows(), e.dump())
			break
		}
	}
	cancel()
	<-ended
}

// isIdle reports whether no row has something left to do, and each object of this host has a row,
// which it cannot get while the SDN is unavailable.
func (e *env) isIdle() bool {
	e.t.Helper()
	var rows strings.Builder
	for _, text := range e.store.Rows() {
		rows.Write(text)
	}
	done := !strings.Contains(rows.String(), `"phase":2`) && !strings.Contains(rows.String(), `"redo":true`)
	if !done || e.sdn.down {
		return done
	}
	hasRow := func(id sdn.ID) bool { return strings.Contains(rows.String(), string(id)) }
	for _, p := range e.ports() {
		if e.s.Names.OfThisHost(p.Meta, identity.KindPort) && !e.s.isManagers(p) && !hasRow(p.ID) {
			return false
		}
	}
	for p, err := range e.sdn.Provider.FindSubnetPools(e.t.Context(), sdn.SubnetPoolQuery{}) {
		e.must(err)
		handedOver := !slices.Contains(p.Tags, e.s.Names.HostTag())
		if e.s.Names.OfThisHost(p.Meta, identity.KindPool) && !handedOver && !hasRow(p.ID) {
			return false
		}
	}
	return true
}

// crashAt does something that can be killed at a step, and reports whether it was.
func (e *env) crashAt(last int, do func()) (died bool) {
	e.t.Helper()
	e.sdn.steps, e.sdn.last, died = 0, last, true
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
		died = false
	}()
	<-done
	if e.sdn.last = 0; died {
		e.restart()
	}
	return died
}

func (e *env) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// refuses checks the text of an error for users.
func (e *env) refuses(err error, parts ...string) {
	e.t.Helper()
	if err == nil {
		e.t.Errorf("no error, want %q", parts)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			e.t.Errorf("error %q does not say %q", err, p)
		}
	}
}

// dump is what the SDN has.
func (e *env) dump() string {
	e.t.Helper()
	ctx := e.t.Context()
	var lines []string
	pools, err := sdn.All(e.sdn.Provider.FindSubnetPools(ctx, sdn.SubnetPoolQuery{}))
	e.must(err)
	for _, p := range pools {
		lines = append(lines, fmt.Sprintln("pool", p.ID, p.Key, p.Tags))
	}
	networks, err := sdn.All(e.sdn.Provider.FindNetworks(ctx, sdn.NetworkQuery{}))
	e.must(err)
	for _, n := range networks {
		lines = append(lines, fmt.Sprintln("network", n.ID, n.Key, n.Subnets))
	}
	for _, p := range e.ports() {
		lines = append(lines, fmt.Sprintln("port", p.ID, p.Key, p.MAC, p.Addresses))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

func (e *env) ports() []sdn.Port {
	e.t.Helper()
	ports, err := sdn.All(e.sdn.Provider.FindPorts(e.t.Context(), sdn.PortQuery{}))
	e.must(err)
	return ports
}

// clean checks that neither objects nor rows are left.
func (e *env) clean() {
	e.t.Helper()
	e.idle()
	if now := e.dump(); now != e.empty {
		e.t.Errorf("left in the SDN:\n%sat first:\n%s", now, e.empty)
	}
	if rows := e.store.Rows(); len(rows) != 0 {
		e.t.Errorf("rows are left: %s", rows)
	}
}

func prefix(text string) netip.Prefix {
	if text == "" {
		return netip.Prefix{}
	}
	return netip.MustParsePrefix(text)
}

func addr(text string) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	return netip.MustParseAddr(text)
}

func poolRequest(cidr string) *api.RequestPoolRequest {
	p := prefix(cidr)
	return &api.RequestPoolRequest{AddressSpace: api.LocalSpace, Pool: p, V6: p.IsValid() && p.Addr().Is6()}
}

// pool requests a range.
func (e *env) pool(cidr string) sdn.ID {
	e.t.Helper()
	a, err := e.s.RequestPool(e.t.Context(), poolRequest(cidr))
	e.must(err)
	return sdn.ID(a.PoolID)
}

func (e *env) row(id sdn.ID) poolRow {
	e.t.Helper()
	p, err := e.s.findPool(e.t.Context(), id)
	e.must(err)
	return p
}

func (e *env) request(id sdn.ID, address, mac string, gateway bool) (string, error) {
	r := &api.RequestAddressRequest{PoolID: api.PoolID{Pool: id}, Address: addr(address), Gateway: gateway}
	if mac != "" {
		r.MAC, _ = net.ParseMAC(mac)
	}
	a, err := e.s.RequestAddress(e.t.Context(), r)
	return a.Address, err
}

func (e *env) gateway(id sdn.ID) string {
	e.t.Helper()
	a, err := e.request(id, "", "", true)
	e.must(err)
	return a
}

func (e *env) take(id sdn.ID, address, mac string) string {
	e.t.Helper()
	a, err := e.request(id, address, mac, false)
	e.must(err)
	return a
}

func (e *env) release(id sdn.ID, address string) {
	e.t.Helper()
	address, _, _ = strings.Cut(address, "/")
	r := &api.ReleaseAddressRequest{PoolID: api.PoolID{Pool: id}, Address: addr(address)}
	_, err := e.s.ReleaseAddress(e.t.Context(), r)
	e.must(err)
}

func (e *env) releasePool(id sdn.ID) {
	e.t.Helper()
	_, err := e.s.ReleasePool(e.t.Context(), &api.ReleasePoolRequest{PoolID: api.PoolID{Pool: id}})
	e.must(err)
}

// network makes a network of pools, as its service does.
func (e *env) network(ids ...sdn.ID) sdn.Network {
	e.t.Helper()
	ctx, name := e.t.Context(), fmt.Sprint("n", ids[0])
	spec := sdn.NetworkSpec{Base: sdn.Base{Key: e.s.Names.Key(identity.KindNetwork, name, reconcile.Object{})}}
	var rows []poolRow
	for i, id := range ids {
		p := e.row(id)
		rows = append(rows, p)
		data := &api.IPAMData{Pool: p.Spec.CIDR, Gateway: p.Spec.gateway(), AuxAddresses: p.Spec.Aux}
		key := e.s.Names.Key(identity.KindSubnet, fmt.Sprint(name, "/", i), reconcile.Object{})
		spec.Subnets = append(spec.Subnets, SubnetSpec(key, data, e.s.poolOf(p), false))
	}
	n, err := e.sdn.Provider.EnsureNetwork(ctx, spec)
	e.must(err)
	for i, p := range rows {
		sub, err := e.sdn.Provider.Subnet(ctx, n.Subnets[i])
		e.must(err)
		e.networks[p.Key] = name
		e.bind(p.Key, []sdn.Subnet{sub})
	}
	return n
}

// removeNetwork deletes a network and what is left on its pools.
func (e *env) removeNetwork(n sdn.Network, ids ...sdn.ID) {
	e.t.Helper()
	var nonces []string
	for _, id := range ids {
		if p, err := e.s.findPool(e.t.Context(), id); err == nil {
			nonces = append(nonces, p.Key)
		}
	}
	ports, err := sdn.All(e.sdn.Provider.FindPorts(e.t.Context(), sdn.PortQuery{Networks: []sdn.ID{n.ID}}))
	e.must(err)
	for _, p := range ports {
		e.must(e.sdn.Provider.DeletePorts(e.t.Context(), []sdn.ID{p.ID}))
	}
	e.must(e.sdn.Provider.DeleteNetwork(e.t.Context(), n.ID))
	for _, nonce := range nonces {
		delete(e.networks, nonce)
		delete(e.subnets, nonce)
	}
	e.must(e.s.NetworkGone(e.t.Context(), nonces))
}

// theirs makes an existing network with a subnet.
func (e *env) theirs(cidr string) (sdn.Network, sdn.Subnet) {
	e.t.Helper()
	n, err := e.sdn.Provider.EnsureNetwork(e.t.Context(), sdn.NetworkSpec{Base: sdn.Base{Name: "theirs"}})
	e.must(err)
	spec := sdn.SubnetSpec{Base: sdn.Base{Name: "theirs"}, Network: n.ID, CIDR: prefix(cidr)}
	sub, err := e.sdn.Provider.EnsureSubnet(e.t.Context(), spec)
	e.must(err)
	return n, sub
}
