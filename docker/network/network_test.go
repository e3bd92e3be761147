package network_test

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/dockertest"
	"github.com/kuryr/kuryr/docker/engine"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/docker/network"
	"github.com/kuryr/kuryr/docker/peertest"
	"github.com/kuryr/kuryr/sdn"
)

func routed(c *network.Config) { c.Routed = true }

func deletesEmpty(c *network.Config) { c.Routed, c.DeleteEmpty = true, true }

// story is what Docker asks for a network. It begins with what an operator has.
type story struct {
	change  []func(*network.Config)
	prepare func(e *env) api.NetworkOptions
	ranges  []string
	creates []string // kinds of what is made, as dump lists them
}

func stories() map[string]story {
	plain := func(*env) api.NetworkOptions { return api.NetworkOptions{} }
	dual := []string{"10.50.0.0/24", "fd50::/64"}
	return map[string]story{
		"own": {prepare: plain, ranges: dual, creates: []string{"network", "subnet"}},
		"router": {
			change: []func(*network.Config){routed}, prepare: plain, ranges: dual,
			creates: []string{"network", "subnet", "router"},
		},
		"shared router": {
			prepare: func(*env) api.NetworkOptions { return api.NetworkOptions{Router: "edge"} },
			ranges:  dual, creates: []string{"network", "subnet", "router"},
		},
		"existing router": {
			prepare: func(e *env) api.NetworkOptions {
				_, err := e.sdn.EnsureRouter(e.t.Context(), sdn.RouterSpec{Base: sdn.Base{Name: "edge"}})
				e.must(err)
				return api.NetworkOptions{Router: "edge"}
			},
			ranges: dual, creates: []string{"network", "subnet"},
		},
		"existing": {
			prepare: func(e *env) api.NetworkOptions { return existing(e.theirs("net", dual...)) },
			ranges:  dual,
		},
		"added to existing": {
			prepare: func(e *env) api.NetworkOptions { return existing(e.theirs("net", "10.50.0.0/24")) },
			ranges:  dual, creates: []string{"subnet"},
		},
		"no ranges": {prepare: plain, creates: []string{"network"}},
	}
}

// allStories are the stories with the Keys of the previous version, and without.
func allStories() map[string]story {
	all := stories()
	for name, s := range stories() {
		s.change = append([]func(*network.Config){nil}, s.change...)
		all[name+", own Keys"] = s
	}
	return all
}

func existing(n sdn.Network) api.NetworkOptions {
	return api.NetworkOptions{Existing: api.Existing{Network: api.Reference{Option: api.OptNetUUID, ID: n.ID}}}
}

// A network is created, found, created again, and deleted, in one process and in several.
func TestLife(t *testing.T) {
	t.Parallel()
	for name, s := range allStories() {
		for _, restarts := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, s.change...)
				again := func() {
					if restarts {
						e.kill()
					}
				}
				o := s.prepare(e)
				before := e.dump()
				r := e.create(1, o, s.ranges...)
				e.idle()
				made := e.dump()
				for _, kind := range s.creates {
					if strings.Count(made, kind+" ") <= strings.Count(before, kind+" ") {
						t.Errorf("no %s was made: %s", kind, made)
					}
				}
				again()
				view, err := e.svc.Find(t.Context(), r.NetworkID)
				e.must(err)
				if len(view.Subnets) < len(s.ranges) || view.ID == "" || view.Options.Router != o.Router {
					t.Errorf("view %+v", view)
				}
				for _, cidr := range s.ranges {
					if b := e.subnets(r.NetworkID, cidr); len(b) != 1 {
						t.Errorf("the range %s has %+v", cidr, b)
					}
				}
				e.must(e.svc.Create(t.Context(), r))
				again()
				e.idle()
				e.same(made)
				e.remove(r)
				e.idle()
				e.same(before)
				e.must(e.svc.Delete(t.Context(), r.NetworkID))
				if _, err := e.svc.Find(t.Context(), r.NetworkID); err == nil {
					t.Error("a deleted network is found")
				}
			})
		}
	}
}

// The process is killed before and after every call of the SDN that changes something. Docker
// repeats the call, or forgets the network and releases its pools.
func TestKilled(t *testing.T) {
	t.Parallel()
	for name, s := range stories() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, forgets := range []bool{false, true} {
				for _, deleting := range []bool{false, true} {
					for at := 1; killedAt(t, s, at, forgets, deleting); at++ {
					}
				}
			}
		})
	}
}

// killedAt reports whether the process made as many calls before its end.
func killedAt(t *testing.T, s story, at int, forgets, deleting bool) bool {
	killed := false
	for _, after := range []bool{false, true} {
		e := newEnv(t, s.change...)
		o := s.prepare(e)
		before := e.dump()
		r := e.call(1, o, s.ranges...)
		if deleting {
			e.must(e.svc.Create(t.Context(), r))
			e.idle()
			e.release(r)
		}
		e.faults.dieAt(at, after)
		var err error
		if deleting {
			err = e.svc.Delete(t.Context(), r.NetworkID)
		} else {
			err = e.svc.Create(t.Context(), r)
			if err == nil {
				e.idle()
			}
		}
		killed = e.faults.isDead()
		e.kill()
		switch {
		case !killed:
		case deleting && !forgets:
			e.must(e.svc.Delete(t.Context(), r.NetworkID))
		case !deleting && !forgets:
			e.must(e.svc.Create(t.Context(), r))
		case deleting && err != nil:
			t.Fatalf("the deletion failed: %v", err)
		}
		e.release(r)
		if !forgets || len(s.ranges) == 0 {
			e.must(e.svc.Delete(t.Context(), r.NetworkID))
		}
		e.must(e.svc.Finish(t.Context()))
		e.idle()
		if now := e.dump(); now != before {
			t.Fatalf("call %d, after %t, deleting %t, forgets %t: the SDN had\n%s\nit has\n%s",
				at, after, deleting, forgets, before, now)
		}
		e.stop()
	}
	return killed
}

// While the SDN is unavailable a deletion succeeds, and is completed when it answers.
func TestDeletedWhileUnavailable(t *testing.T) {
	t.Parallel()
	for name, s := range stories() {
		for _, restarts := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, s.change...)
				o := s.prepare(e)
				before := e.dump()
				r := e.create(1, o, s.ranges...)
				e.idle()
				e.faults.setDown(true)
				e.release(r)
				e.must(e.svc.Delete(t.Context(), r.NetworkID))
				if _, err := e.svc.Find(t.Context(), r.NetworkID); err == nil {
					t.Error("a network that is being deleted is found")
				}
				if restarts {
					e.kill()
				}
				e.faults.setDown(false)
				e.idle()
				e.same(before)
			})
		}
	}
}

// A network whose row is lost is found in the SDN by a call that names it, and by the list.
func TestDatabaseLost(t *testing.T) {
	t.Parallel()
	for name, s := range allStories() {
		for _, named := range []bool{false, true} {
			if strings.HasSuffix(name, "existing, own Keys") && !named {
				continue // only its tags tell of it
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				e := newEnv(t, s.change...)
				o := s.prepare(e)
				before := e.dump()
				r := e.create(1, o, s.ranges...)
				e.idle()
				made := e.dump()
				e.lose()
				e.must(e.svc.Finish(t.Context())) // whether Docker has released the pools is unknown
				e.same(made)
				if named {
					view, err := e.svc.Find(t.Context(), r.NetworkID)
					e.must(err)
					if view.ID == "" || view.Options.Router != o.Router && !e.own {
						t.Errorf("view %+v", view)
					}
				} else {
					e.listed(r.NetworkID)
				}
				e.must(e.svc.Create(t.Context(), r))
				e.idle()
				e.same(made)
				e.remove(r)
				e.idle()
				e.same(before)
			})
		}
	}
}

// listed waits until the store has a row of the network.
func (e *env) listed(id string) {
	e.t.Helper()
	e.eventually(func() bool { _, ok := e.store.Rows()["network/"+id]; return ok })
}

// Two networks are on one router, which is deleted with the last of them.
func TestSharedRouter(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	one := e.create(1, api.NetworkOptions{Router: "edge"}, "10.50.0.0/24")
	two := e.create(2, api.NetworkOptions{Router: "edge"}, "10.51.0.0/24")
	if routers, err := sdn.All(e.sdn.FindRouters(t.Context(), sdn.RouterQuery{})); err != nil || len(routers) != 1 ||
		len(routers[0].Interfaces) != 2 {
		t.Errorf("routers %+v, %v", routers, err)
	}
	e.remove(one)
	if routers, err := sdn.All(e.sdn.FindRouters(t.Context(), sdn.RouterQuery{})); err != nil || len(routers) != 1 ||
		len(routers[0].Interfaces) != 1 {
		t.Errorf("routers %+v, %v", routers, err)
	}
	e.remove(two)
	e.same(e.empty)
}

// Ranges that overlap on one router are a conflict, of which nothing stays. A network whose
// DeleteNetwork was lost is deleted for the new one.
func TestConflict(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	old := e.create(1, api.NetworkOptions{Router: "edge"}, "10.50.0.0/24")
	made := e.dump()
	r := e.call(2, api.NetworkOptions{Router: "edge"}, "10.50.0.0/25")
	if err := e.svc.Create(t.Context(), r); !sdn.IsConflict(err) {
		t.Errorf("an overlapping network: %v", err)
	}
	same := e.call(3, api.NetworkOptions{Router: "edge"}, "10.50.0.0/24")
	const text = "option " + api.OptRouter + ": another network has the range 10.50.0.0/24 on router edge"
	if err := e.svc.Create(t.Context(), same); err == nil || !strings.HasPrefix(err.Error(), text) {
		t.Errorf("a network with the same range: %v", err)
	}
	e.release(same)
	e.release(r)
	e.idle()
	e.same(made)
	e.release(old)
	r = e.create(2, api.NetworkOptions{Router: "edge"}, "10.50.0.0/25")
	e.idle()
	if _, err := e.svc.Find(t.Context(), old.NetworkID); err == nil {
		t.Error("the released network is there")
	}
	e.remove(r)
	e.same(e.empty)
}

// A network that Docker released and never deleted is deleted at the next start, unless it has
// endpoints.
func TestReleased(t *testing.T) {
	t.Parallel()
	used := true
	e := newEnv(t, func(c *network.Config) { c.HasEndpoints = func(string) bool { return used } })
	r := e.create(1, api.NetworkOptions{}, "10.50.0.0/24")
	made := e.dump()
	e.release(r)
	e.kill()
	e.must(e.svc.Finish(t.Context()))
	e.same(made)
	used = false
	e.must(e.svc.Finish(t.Context()))
	e.idle()
	e.same(e.empty)
}

// A port of others keeps a network. It is deleted when the port is.
func TestForeignPort(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	r := e.create(1, api.NetworkOptions{}, "10.50.0.0/24")
	view, err := e.svc.Find(t.Context(), r.NetworkID)
	e.must(err)
	ports, err := e.sdn.EnsurePorts(t.Context(), []sdn.PortSpec{
		{Network: view.ID},
		{Network: view.ID, Base: sdn.Base{Key: e.namer.PortKey(view.ID, nil, "1")}},
	})
	e.must(err)
	e.release(r)
	err = e.svc.Delete(t.Context(), r.NetworkID)
	if err == nil || !strings.Contains(err.Error(), string(ports[0].ID)) {
		t.Errorf("the deletion: %v", err)
	}
	if _, err := e.sdn.Port(t.Context(), ports[1].ID); !sdn.IsNotFound(err) {
		t.Errorf("a port of Kuryr's: %v", err)
	}
	e.must(e.sdn.DeletePorts(t.Context(), []sdn.ID{ports[0].ID}))
	e.idle()
	e.same(e.empty)
}

// An empty subnet is deleted and made again alike, also in other processes, and where a kill left
// it in between.
func TestEmpty(t *testing.T) {
	t.Parallel()
	for at := 0; ; at++ {
		e := newEnv(t, deletesEmpty)
		o := api.NetworkOptions{Routes: nil}
		r := e.create(1, o, "10.50.0.0/24", "fd50::/64")
		made := e.dump()
		pool := e.pool("10.50.0.0/24")
		if at > 0 {
			e.faults.dieAt(at, at%2 == 0)
		}
		e.svc.Emptied(t.Context(), pool)
		killed := e.faults.isDead()
		if at == 0 || !killed {
			if strings.Contains(e.dump(), "subnet-10.50.0.0/24") || !strings.Contains(e.dump(), "subnet-fd50::/64") {
				t.Errorf("the SDN has\n%s", e.dump())
			}
		}
		e.kill()
		if at > 0 {
			e.faults.dieAt(at, at%2 == 0)
		}
		release, err := e.svc.Hold(t.Context(), pool)
		if err == nil {
			release()
		} else if !e.faults.isDead() {
			t.Fatal(err)
		}
		killed = killed || e.faults.isDead()
		e.kill()
		e.idle()
		release, err = e.svc.Hold(t.Context(), pool)
		e.must(err)
		e.same(made)
		if b := e.subnets(r.NetworkID, "10.50.0.0/24"); len(b) != 1 {
			t.Errorf("the range has %+v", b)
		}
		release()
		e.svc.Emptied(t.Context(), pool)
		e.remove(r)
		e.same(e.empty)
		e.stop()
		if at > 0 && !killed {
			return
		}
	}
}

// The subnet of a range that was deleted while it was empty is made again alike after the store was
// lost, and the tags that say how are deleted.
func TestEmptyLost(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]func(*network.Config){"compat": deletesEmpty, "own": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			changes := []func(*network.Config){own, deletesEmpty}
			e := newEnv(t, changes...)
			cidr := netip.MustParsePrefix("10.50.0.0/24")
			r := e.call(1, api.NetworkOptions{}, cidr.String())
			r.Ranges[0].AuxAddresses = []netip.Addr{netip.MustParseAddr("10.50.0.9")}
			r.Ranges[0].Routes = []sdn.HostRoute{{
				Destination: netip.MustParsePrefix("192.0.2.0/24"), NextHop: netip.MustParseAddr("10.50.0.7"),
			}}
			e.must(e.svc.Create(t.Context(), r))
			made, key := e.dump(), e.pool(cidr.String())
			for range 2 {
				e.svc.Emptied(t.Context(), key)
				if strings.Contains(e.dump(), "kuryr-subnet") {
					t.Fatalf("the SDN has\n%s", e.dump())
				}
				e.lose()
				e.must(e.svc.Import(t.Context(), r.NetworkID))
				release, err := e.svc.Hold(t.Context(), key)
				e.must(err)
				e.same(made)
				release()
			}
			pool, err := e.sdn.SubnetPool(t.Context(), e.ids[r.NetworkID][0])
			e.must(err)
			if text := strings.Join(pool.Tags, " "); strings.Contains(text, "emptied") || strings.Contains(text, "route") {
				t.Errorf("the pool has the tags %s", text)
			}
		})
	}
}

// Many networks are imported by few calls, and one that cannot be described does not keep the others
// from it.
func TestImportMany(t *testing.T) {
	t.Parallel()
	e := newEnv(t, routed)
	const count = 30
	for n := range count {
		e.create(n+1, api.NetworkOptions{}, fmt.Sprintf("10.1.%d.0/24", n))
	}
	n := e.theirs("prod", "10.9.0.0/24")
	r := e.create(count+1, existing(n), "10.9.0.0/24")
	e.idle()
	e.faults.die()
	e.stop()
	query := sdn.NetworkQuery{Match: sdn.Match{Tags: identity.IDTags(id(1))}}
	bad, _, err := sdn.First(e.sdn.FindNetworks(t.Context(), query))
	e.must(err)
	tags := append(bad.Tags, "kuryr.docker.emptied=secret")
	_, err = e.sdn.UpdateNetwork(t.Context(), bad.ID, sdn.NetworkPatch{Patch: sdn.Patch{Tags: &tags}})
	e.must(err)
	var calls, denied atomic.Int64
	e.hook = func(c dockertest.Call) error {
		if denied.Load() < 2 { // after that the import is repeated
			calls.Add(1)
		}
		if of, ok := dockertest.Arg[sdn.ID](c); ok && c.Method == "SubnetPool" && *of == "secret" {
			denied.Add(1)
			return &sdn.Error{Kind: sdn.KindDenied, Noun: "subnet pool"}
		}
		return nil
	}
	e.path = filepath.Join(t.TempDir(), "docker.db")
	e.start()
	for n := range count - 1 {
		e.listed(id(n + 2))
	}
	e.listed(r.NetworkID)
	if _, ok := e.store.Rows()["network/"+id(1)]; ok {
		t.Error("the test does not fail a network")
	}
	if n := calls.Load(); n > 2*count {
		t.Errorf("%d calls", n)
	}
}

// Several callers need a subnet concurrently. It stays while one of them does, and an Emptied of that
// time is repeated.
func TestHolds(t *testing.T) {
	t.Parallel()
	e := newEnv(t, deletesEmpty)
	e.create(1, api.NetworkOptions{}, "10.50.0.0/24")
	made, pool := e.dump(), e.pool("10.50.0.0/24")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	one, err := e.svc.Hold(ctx, pool)
	e.must(err)
	two, err := e.svc.Hold(ctx, pool)
	e.must(err)
	e.svc.Emptied(ctx, pool)
	one()
	e.same(made)
	two()
	if strings.Contains(e.dump(), "kuryr-subnet") {
		t.Errorf("the SDN has\n%s", e.dump())
	}
}

// A subnet with a port stays. Without the setting all subnets are made again.
func TestEmptyStays(t *testing.T) {
	t.Parallel()
	e := newEnv(t, deletesEmpty)
	r := e.create(1, api.NetworkOptions{}, "10.50.0.0/24")
	made := e.dump()
	pool, b := e.pool("10.50.0.0/24"), e.subnets(r.NetworkID, "10.50.0.0/24")
	ports, err := e.sdn.EnsurePorts(t.Context(), []sdn.PortSpec{{
		Network: b[0].Network, Addresses: []sdn.Address{{Subnet: b[0].ID}},
	}})
	e.must(err)
	e.svc.Emptied(t.Context(), pool)
	e.must(e.sdn.DeletePorts(t.Context(), []sdn.ID{ports[0].ID}))
	e.same(made)
	e.kill()
	e.must(e.svc.Finish(t.Context()))
	if strings.Contains(e.dump(), "kuryr-subnet") {
		t.Errorf("the SDN has\n%s", e.dump())
	}
	e.config.DeleteEmpty = false
	e.kill()
	e.must(e.svc.Finish(t.Context()))
	e.idle()
	e.same(made)
	e.remove(r)
	e.same(e.empty)
}

// A refused call changes nothing.
func TestRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	n := e.theirs("net", "10.50.0.0/24")
	e.theirs("inside")
	r := e.call(1, api.NetworkOptions{}, "10.50.0.0/25")
	other := e.call(2, api.NetworkOptions{}, "10.52.0.0/24")
	before := e.dump()
	for text, o := range map[string]api.NetworkOptions{
		api.OptExternal: {External: "inside"},
		api.OptRouter:   {Router: "00000000-0000-4000-8000-000000000000"},
		api.OptGroups:   {Groups: []string{"none"}},
		"overlaps":      existing(n),
	} {
		r.Options = o
		err := e.svc.Create(t.Context(), r)
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
		e.same(before)
	}
	other.Ranges[0].Pool = netip.MustParsePrefix("10.53.0.0/24")
	if err := e.svc.Create(t.Context(), other); err == nil || !strings.Contains(err.Error(), "not requested") {
		t.Errorf("an unknown range: %v", err)
	}
	if _, err := e.svc.Find(t.Context(), id(3)); err == nil || !strings.Contains(err.Error(), "there is no network") {
		t.Errorf("an unknown network: %v", err)
	}
	e.must(e.svc.Delete(t.Context(), id(3)))
	e.same(before)
}

// What kuryr-libnetwork made becomes ours when a call names it, and is deleted as ours is.
func TestTakeover(t *testing.T) {
	t.Parallel()
	for at := 0; ; at++ {
		e := newEnv(t)
		made, err := peertest.Make(t.Context(), e.sdn, id(1),
			netip.MustParsePrefix("10.50.0.0/24"), netip.MustParsePrefix("fd50::/64"))
		e.must(err)
		if at > 0 {
			e.faults.dieAt(at, false)
			_, _ = e.svc.Find(t.Context(), made.ID)
		}
		killed := e.faults.isDead()
		e.kill()
		view, err := e.svc.Find(t.Context(), made.ID)
		e.must(err)
		if view.ID != made.Network.ID || len(view.Subnets) != 2 {
			t.Errorf("view %+v", view)
		}
		e.must(e.svc.Delete(t.Context(), made.ID))
		for _, r := range made.Ranges {
			p, err := e.sdn.SubnetPool(t.Context(), r.Pool.ID)
			e.must(err)
			if !e.namer.OfThisHost(p.Meta, identity.KindPool) {
				t.Errorf("the pool %+v", p)
			}
			_, err = e.ipam.ReleasePool(t.Context(), &api.ReleasePoolRequest{PoolID: api.PoolID{Pool: p.ID}})
			e.must(err)
		}
		e.same(e.empty)
		e.stop()
		if at > 0 && !killed {
			return
		}
	}
}

// An existing network that kuryr-libnetwork used is its owner's as before when Docker deletes it.
func TestTakeoverUsed(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	theirs := e.theirs("net", "10.50.0.0/24")
	before := e.dump()
	theirs, err := e.sdn.Network(t.Context(), theirs.ID)
	e.must(err)
	made, err := peertest.Use(t.Context(), e.sdn, id(1), theirs.ID, theirs.Subnets...)
	e.must(err)
	view, err := e.svc.Find(t.Context(), made.ID)
	e.must(err)
	if view.ID != theirs.ID || len(view.Subnets) != 1 {
		t.Errorf("view %+v", view)
	}
	e.kill()
	_, err = e.ipam.ReleasePool(t.Context(), &api.ReleasePoolRequest{PoolID: api.PoolID{Pool: made.Ranges[0].Pool.ID}})
	e.must(err)
	e.must(e.svc.Delete(t.Context(), made.ID))
	e.idle()
	e.same(before)
}

// Two networks with the tags of one id are an error, and neither is changed.
func TestTwins(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for range 2 {
		_, err := peertest.Make(t.Context(), e.sdn, id(1))
		e.must(err)
	}
	before := e.dump()
	if err := e.svc.Delete(t.Context(), id(1)); err == nil || !strings.Contains(err.Error(), "2 networks") {
		t.Errorf("the deletion: %v", err)
	}
	e.same(before)
}

// The networks of the previous version on this host become rows: one that Docker has, one that it
// deleted, and one with a subnet that was deleted while it was empty.
func TestImport(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	tag := func(n sdn.Network, tags ...string) {
		tags = append(slices.Clone(n.Tags), tags...)
		tags = slices.DeleteFunc(tags, func(t string) bool { return strings.HasPrefix(t, identity.TagHost) })
		_, err := e.sdn.UpdateNetwork(t.Context(), n.ID, sdn.NetworkPatch{Patch: sdn.Patch{Tags: &tags}})
		e.must(err)
	}
	had := e.create(1, api.NetworkOptions{Publish: api.PublishFloatingIP}, "10.50.0.0/24")
	deleted := e.create(2, api.NetworkOptions{}, "10.51.0.0/24")
	emptied := e.create(3, api.NetworkOptions{}, "10.52.0.0/24")
	for r, tags := range map[*api.CreateNetworkRequest][]string{
		had: {identity.TagEngine + "one"}, deleted: {identity.TagDeleted}, emptied: nil,
	} {
		query := sdn.NetworkQuery{Match: sdn.Match{Tags: identity.IDTags(r.NetworkID)}}
		n, _, err := sdn.First(e.sdn.FindNetworks(t.Context(), query))
		e.must(err)
		if r == emptied {
			pool, subnets := e.ids[r.NetworkID][0], e.subnets(r.NetworkID, "10.52.0.0/24")
			e.must(e.sdn.DeleteSubnet(t.Context(), subnets[0].ID))
			of := []string{
				"kuryr.docker.emptied=" + r.NetworkID + "/4.0", identity.TagGateway + "10.52.0.1",
				"kuryr.docker.route=192.0.2.0/24=10.52.0.9",
			}
			patch := sdn.SubnetPoolPatch{Patch: sdn.Patch{Tags: &of}}
			_, err := e.sdn.UpdateSubnetPool(t.Context(), pool, patch)
			e.must(err)
			tags = []string{"kuryr.docker.emptied=" + string(e.ids[r.NetworkID][0])}
		}
		tag(n, tags...)
	}
	pool := e.pool("10.52.0.0/24")
	e.lose()
	for range 2 {
		for _, r := range []*api.CreateNetworkRequest{had, deleted, emptied} {
			e.must(e.svc.Import(t.Context(), r.NetworkID))
		}
	}
	view, err := e.svc.Find(t.Context(), had.NetworkID)
	e.must(err)
	if view.Options.Publish != api.PublishFloatingIP || len(view.Subnets) != 1 {
		t.Errorf("view %+v", view)
	}
	release, err := e.svc.Hold(t.Context(), pool)
	e.must(err)
	release()
	if b := e.subnets(emptied.NetworkID, "10.52.0.0/24"); len(b) != 1 || b[0].Gateway.String() != "10.52.0.1" ||
		len(b[0].HostRoutes) != 1 {
		t.Errorf("the subnet that was made again: %+v", b)
	}
	for _, r := range []*api.CreateNetworkRequest{had, deleted, emptied} {
		e.remove(r)
	}
	e.idle()
	for n := range 3 {
		if now := e.dump(); strings.Contains(now, id(n+1)) {
			t.Errorf("the SDN has\n%s", now)
		}
	}
}

// docker lists what Docker has.
type docker struct {
	mu       sync.Mutex
	networks []engine.Network
}

func (d *docker) List(context.Context) (engine.List, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return engine.List{Engine: "one", Networks: slices.Clone(d.networks)}, nil
}

func (d *docker) Endpoints(context.Context, string) ([]engine.Endpoint, error) { return nil, nil }

func (d *docker) has(ids ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.networks = nil
	for _, id := range ids {
		d.networks = append(d.networks, engine.Network{ID: id})
	}
}

// A network that Docker no longer has is deleted with its tags. One that it has stays.
func TestOrphan(t *testing.T) {
	t.Parallel()
	d := &docker{}
	d.has(id(1), id(2))
	e := newEnv(t, func(c *network.Config) { c.Engine = engine.NewLister(d) })
	theirs := e.theirs("net", "10.50.0.0/24")
	before := e.dump()
	e.create(1, existing(theirs), "10.50.0.0/24")
	e.create(2, api.NetworkOptions{}, "10.51.0.0/24")
	e.idle()
	made := e.dump()
	e.store.Compare()
	e.eventually(func() bool { return strings.Contains(string(e.store.Rows()["network/"+id(1)]), `"engine":"one"`) })
	e.same(made)
	d.has(id(2))
	e.eventually(func() bool {
		e.store.Compare()
		rows := e.store.Rows()
		return rows["network/"+id(1)] == nil && rows["network-tags/"+id(1)] == nil
	})
	if rows := e.store.Rows(); rows["network/"+id(2)] == nil {
		t.Error("the other network has no row")
	}
	d.has()
	e.eventually(func() bool { e.store.Compare(); return e.store.Rows()["network/"+id(2)] == nil })
	for _, ids := range e.ids {
		for _, id := range ids {
			_, err := e.ipam.ReleasePool(t.Context(), &api.ReleasePoolRequest{PoolID: api.PoolID{Pool: id}})
			e.must(err)
		}
	}
	e.same(before)
}

// Tags that an earlier version had not written are written if its link says that Docker has the
// network, and deleted otherwise. A deletion that it had not completed is completed.
func TestImportCleanups(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	theirs := e.theirs("net", "10.50.0.0/24")
	before := e.dump()
	r := e.create(1, existing(theirs), "10.50.0.0/24")
	deleted := e.create(2, api.NetworkOptions{}, "10.51.0.0/24")
	e.idle()
	made := e.dump()
	e.lose()
	for n := range 2 {
		e.must(e.svc.ImportTags(t.Context(), id(n*8+1), theirs.ID, e.ids[r.NetworkID]))
	}
	e.must(e.svc.ImportDelete(t.Context(), deleted.NetworkID))
	e.kill()
	e.must(e.svc.Finish(t.Context()))
	e.idle()
	e.eventually(func() bool { return e.store.Rows()["network-tags/"+id(9)] == nil })
	if _, err := e.svc.Find(t.Context(), r.NetworkID); err != nil {
		t.Error(err)
	}
	if now := e.dump(); strings.Contains(now, id(2)) || !strings.Contains(now, identity.ExistingTag(id(1))) {
		t.Errorf("the SDN had\n%s\nit has\n%s", made, now)
	}
	e.remove(r)
	e.release(deleted)
	e.idle()
	e.same(before)
}

// A network of which only the deletion is known goes with its router, or leaves an existing network
// as it was.
func TestImportDelete(t *testing.T) {
	t.Parallel()
	e := newEnv(t, routed)
	theirs := e.theirs("net", "10.50.0.0/24")
	before := e.dump()
	networks := []*api.CreateNetworkRequest{
		e.create(1, existing(theirs), "10.50.0.0/24"),
		e.create(2, api.NetworkOptions{}, "10.51.0.0/24"),
	}
	e.idle()
	e.lose()
	for _, r := range networks {
		e.must(e.svc.ImportDelete(t.Context(), r.NetworkID))
	}
	e.kill()
	e.must(e.svc.Finish(t.Context()))
	e.idle()
	for _, r := range networks {
		e.release(r)
	}
	e.idle()
	e.same(before)
}
