package network_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/ipam"
	"github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/local"
)

// env is a host with an SDN, pools that Docker requested, and a process that can be killed.
type env struct {
	t      *testing.T
	sdn    *local.Provider
	faults *faults // of the process
	config network.Config
	path   string // of the store
	store  *reconcile.Store
	namer  identity.Namer
	ipam   *ipam.Service
	svc    *network.Service
	own    bool // Keys are not those of the previous version
	stop   func()
	ids    map[string][]sdn.ID // of the pools of a network
	empty  string
	hook   func(dockertest.Call) error // before each call of the SDN; nil: none
}

// newEnv returns an env. If the first change is nil, Keys are not those of the previous version.
func newEnv(t *testing.T, change ...func(*network.Config)) *env {
	t.Helper()
	p, err := local.Open(t.Context(), local.Options{
		Path: filepath.Join(t.TempDir(), "sdn"), Host: "box", NoSync: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	e := &env{t: t, sdn: p, path: filepath.Join(t.TempDir(), "docker.db")}
	none := func(string) bool { return false }
	e.config = network.Config{HasEndpoints: none, InUse: none}
	e.config.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	if e.own = len(change) > 0 && change[0] == nil; e.own {
		change = change[1:]
	}
	for _, c := range change {
		c(&e.config)
	}
	e.ids = map[string][]sdn.ID{}
	e.start()
	t.Cleanup(func() { e.stop() })
	e.empty = e.dump()
	return e
}

// start begins a process on the store's file.
func (e *env) start() {
	e.t.Helper()
	store, err := reconcile.Open(reconcile.Config{
		Path: e.path, Volatile: true, OrphanTTL: time.Millisecond, MinBackoff: time.Millisecond,
		MaxBackoff: 20 * time.Millisecond, GracePeriod: time.Millisecond, Logger: e.config.Log,
	})
	e.must(err)
	e.store = store
	e.faults = &faults{}
	e.namer = identity.NewNamer(e.sdn.Installation(), "box", store.ID(), !e.own)
	c := e.config
	c.SDN = &dockertest.Provider{Provider: e.sdn, Before: e.before, After: e.faults.answer}
	c.Store, c.Names, c.Host, c.Timeout = store, e.namer, "box", time.Minute
	e.ipam = ipam.New(ipam.Config{
		Daemon: c.Daemon, HostRoutes: func(context.Context) ([]netip.Prefix, error) { return nil, nil },
	})
	c.Pools = e.ipam
	e.svc = network.New(c)
	e.ipam.Attach(e.svc, noEndpoints{})
	e.must(store.Start(e.t.Context()))
	e.svc.Start(e.t.Context())
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { store.Run(ctx) })
	e.stop = func() {
		cancel()
		running.Wait()
		_ = store.Close()
	}
}

// noEndpoints is a host without endpoints.
type noEndpoints struct{}

func (noEndpoints) Of(string) (string, bool) { return "", false }

func (noEndpoints) DropUnused(context.Context, string) (bool, error) { return false, nil }

func (e *env) before(c dockertest.Call) error {
	if e.hook != nil {
		if err := e.hook(c); err != nil {
			return err
		}
	}
	return e.faults.before(c)
}

// kill ends the process and begins another one with what was on the disk.
func (e *env) kill() {
	e.t.Helper()
	e.faults.die()
	path := dockertest.CopyDatabase(e.t, e.path)
	e.stop()
	e.path = path
	e.start()
}

// lose is kill with a lost database.
func (e *env) lose() {
	e.t.Helper()
	e.faults.die()
	e.stop()
	e.path = filepath.Join(e.t.TempDir(), "docker.db")
	e.start()
}

func (e *env) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

// idle waits until the store has nothing to do, or the process is killed.
func (e *env) idle() {
	e.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for ; time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		busy := false
		for _, text := range e.store.Rows() {
			var r struct {
				Phase reconcile.Phase `json:"phase"`
				Redo  bool            `json:"redo"`
			}
			e.must(json.Unmarshal(text, &r))
			busy = busy || r.Phase == reconcile.Deleting || r.Redo
		}
		if !busy || e.faults.isDead() {
			return
		}
	}
	e.t.Fatalf("the store is still busy: %s", e.store.Rows())
}

// dump lists what the SDN has.
func (e *env) dump() string {
	e.t.Helper()
	ctx, b := e.t.Context(), &strings.Builder{}
	networks, err := sdn.All(e.sdn.FindNetworks(ctx, sdn.NetworkQuery{}))
	e.must(err)
	for _, n := range networks {
		slices.Sort(n.Tags)
		fmt.Fprintln(b, "network", n.Key, n.Name, n.Tags)
	}
	subnets, err := sdn.All(e.sdn.FindSubnets(ctx, sdn.SubnetQuery{}))
	e.must(err)
	slices.SortFunc(subnets, func(a, b sdn.Subnet) int {
		return strings.Compare(a.Key.String()+a.Name, b.Key.String()+b.Name)
	})
	for _, s := range subnets {
		slices.Sort(s.Tags)
		fmt.Fprintln(b, "subnet", s.Key, s.Name, s.CIDR, s.Gateway, s.Reserved, s.Ranges, s.HostRoutes, s.Tags)
	}
	found, err := sdn.All(e.sdn.FindSubnetPools(ctx, sdn.SubnetPoolQuery{}))
	e.must(err)
	for _, p := range found {
		fmt.Fprintln(b, "pool", p.Key, p.Name)
	}
	routers, err := sdn.All(e.sdn.FindRouters(ctx, sdn.RouterQuery{}))
	e.must(err)
	for _, r := range routers {
		var on []string
		for _, i := range r.Interfaces {
			s, err := e.sdn.Subnet(ctx, i.Subnet)
			e.must(err)
			on = append(on, s.CIDR.String())
		}
		slices.Sort(on)
		fmt.Fprintln(b, "router", r.Key, r.Name, on, r.Gateway != nil)
	}
	ports, err := sdn.All(e.sdn.FindPorts(ctx, sdn.PortQuery{}))
	e.must(err)
	for _, p := range ports {
		fmt.Fprintln(b, "port", p.Key, p.Name)
	}
	return b.String()
}

func (e *env) same(before string) {
	e.t.Helper()
	if now := e.dump(); now != before {
		e.t.Fatalf("the SDN had\n%s\nit has\n%s", before, now)
	}
}

// id is a network's. Its beginning differs from that of others.
func id(n int) string { return strings.Repeat(fmt.Sprintf("%04x", n), 16) }

// call returns a CreateNetwork of ranges that were requested.
func (e *env) call(n int, options api.NetworkOptions, ranges ...string) *api.CreateNetworkRequest {
	e.t.Helper()
	r := &api.CreateNetworkRequest{NetworkID: id(n), Options: options}
	place := map[bool]int{}
	for _, text := range ranges {
		cidr := netip.MustParsePrefix(text)
		e.request(r.NetworkID, cidr)
		data := &api.IPAMData{
			AddressSpace: api.LocalSpace, Pool: cidr, Place: place[cidr.Addr().Is6()],
			Gateway: identity.FirstHost(cidr),
		}
		place[cidr.Addr().Is6()]++
		r.Ranges = append(r.Ranges, data)
	}
	return r
}

func (e *env) create(n int, options api.NetworkOptions, ranges ...string) *api.CreateNetworkRequest {
	e.t.Helper()
	r := e.call(n, options, ranges...)
	e.must(e.svc.Create(e.t.Context(), r))
	return r
}

// request is RequestPool of a range, and RequestAddress of its gateway.
func (e *env) request(network string, cidr netip.Prefix) {
	e.t.Helper()
	pool, err := e.ipam.RequestPool(e.t.Context(), &api.RequestPoolRequest{
		AddressSpace: api.LocalSpace, Pool: cidr, V6: cidr.Addr().Is6(),
	})
	e.must(err)
	id := sdn.ID(pool.PoolID)
	e.ids[network] = append(e.ids[network], id)
	_, err = e.ipam.RequestAddress(e.t.Context(), &api.RequestAddressRequest{PoolID: api.PoolID{Pool: id}, Gateway: true})
	e.must(err)
}

// release is ReleasePool of the pools of a network.
func (e *env) release(r *api.CreateNetworkRequest) {
	e.t.Helper()
	for _, id := range e.ids[r.NetworkID] {
		_, err := e.ipam.ReleasePool(e.t.Context(), &api.ReleasePoolRequest{PoolID: api.PoolID{Pool: id}})
		e.must(err)
	}
}

// remove is what Docker calls to delete a network.
func (e *env) remove(r *api.CreateNetworkRequest) {
	e.t.Helper()
	e.release(r)
	e.must(e.svc.Delete(e.t.Context(), r.NetworkID))
}

// pool returns the key of the row of a range's pool.
func (e *env) pool(cidr string) string {
	e.t.Helper()
	for name, text := range e.store.Rows() {
		var r struct {
			Key  string
			Spec struct{ CIDR string }
		}
		if strings.HasPrefix(name, "pool/") {
			e.must(json.Unmarshal(text, &r))
		}
		if r.Spec.CIDR == cidr {
			return r.Key
		}
	}
	e.t.Fatalf("no pool of %s", cidr)
	return ""
}

// subnets returns those of a network that have the range.
func (e *env) subnets(id, cidr string) (list []sdn.Subnet) {
	e.t.Helper()
	view, err := e.svc.Find(e.t.Context(), id)
	e.must(err)
	for _, s := range view.Subnets {
		if s.CIDR.String() == cidr {
			list = append(list, s)
		}
	}
	return list
}

// theirs makes a network of an operator's, with subnets of the ranges.
func (e *env) theirs(name string, ranges ...string) sdn.Network {
	e.t.Helper()
	n, err := e.sdn.EnsureNetwork(e.t.Context(), sdn.NetworkSpec{Base: sdn.Base{Name: name, Description: "of " + name}})
	e.must(err)
	for _, text := range ranges {
		_, err := e.sdn.EnsureSubnet(e.t.Context(), sdn.SubnetSpec{
			Base: sdn.Base{Name: name + " " + text}, Network: n.ID, CIDR: netip.MustParsePrefix(text),
		})
		e.must(err)
	}
	return n
}

var errDied = errors.New("the process was killed")

// faults are those of the SDN that a process calls.
type faults struct {
	mu    sync.Mutex
	calls int // that change something
	dead  bool
	down  bool
	// killAt is the call, from 1, at which the process dies: before it or after it.
	killAt int
	after  bool
}

func (f *faults) before(c dockertest.Call) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Changes() && !f.dead {
		f.calls++
		f.dead = f.calls == f.killAt && !f.after
	}
	return f.failing(nil)
}

func (f *faults) answer(c dockertest.Call, err error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = f.dead || c.Changes() && f.killAt > 0 && f.calls >= f.killAt
	return f.failing(err)
}

func (f *faults) failing(err error) error {
	switch {
	case f.dead:
		return sdn.Unavailable(errDied, "sdn", "no answer")
	case f.down:
		return sdn.Unavailable(sdn.ErrNotSent, "sdn", "no answer")
	}
	return err
}

func (f *faults) die() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = true
}

func (f *faults) isDead() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead
}

// dieAt kills the process at a call from now on: 1 is the next one.
func (f *faults) dieAt(call int, after bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.killAt, f.after = f.calls+call, after
}

func (f *faults) setDown(down bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.down = down
}

func (e *env) eventually(met func() bool) {
	e.t.Helper()
	for deadline := time.Now().Add(time.Minute); !met(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			e.t.Fatal("it did not come")
		}
	}
}
