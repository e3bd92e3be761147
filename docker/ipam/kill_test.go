package ipam

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kuryr/kuryr/docker/api"
	"github.com/kuryr/kuryr/docker/identity"
	"github.com/kuryr/kuryr/internal/reconcile"
	"github.com/kuryr/kuryr/sdn"
)

// stories are calls of an engine, each of which can be repeated.
var stories = map[string]func(*env) []func(){
	"network": func(e *env) []func() {
		var v4, v6 sdn.ID
		var n sdn.Network
		var got4, got6 string
		return []func(){
			func() { v4 = e.pool("10.50.0.0/24") },
			func() { v6 = e.pool("fd50::/64") },
			func() { e.gateway(v4) },
			func() { n = e.network(v4, v6) },
			func() { got4 = e.take(v4, "", mac1) },
			func() { got6 = e.take(v6, "fd50::9", mac1) },
			func() { e.release(v4, got4) },
			func() { e.release(v6, got6) },
			func() { e.releasePool(v4) },
			func() { e.releasePool(v6) },
			func() { e.removeNetwork(n, v4, v6) },
		}
	},
	"hidden": func(e *env) []func() {
		var id sdn.ID
		var got string
		return []func(){
			func() { id = e.pool("") },
			func() { got = e.take(id, "", mac1) },
			func() { e.take(id, "", mac2) },
			func() { e.release(id, got) },
			func() { e.releasePool(id) },
		}
	},
}

// The process is killed before and after every change of the SDN. The engine sends the call again,
// and at the end nothing is left.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	for name, story := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			died := true
			for last := 1; died; last++ {
				e := newEnv(t)
				died = false
				passed := 0
				for _, call := range story(e) {
					if died {
						call()
						continue
					}
					if died = e.crashAt(last-passed, call); died {
						call()
					}
					passed += e.sdn.steps
				}
				e.clean()
				if t.Failed() {
					t.Fatalf("killed at step %d", last)
				}
				if !died && last < 9 {
					t.Errorf("killed only %d times", last-1)
				}
			}
		})
	}
}

// The engine gives up after a kill: what is there then has a row, so that it can be judged.
func TestKilledAndForgotten(t *testing.T) {
	t.Parallel()
	for name, story := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			died := true
			for last := 1; died; last++ {
				e := newEnv(t)
				died = false
				passed := 0
				for _, call := range story(e) {
					if died = e.crashAt(last-passed, call); died {
						break
					}
					passed += e.sdn.steps
				}
				for _, n := range networksOf(e) {
					e.must(e.sdn.Provider.DeletePorts(t.Context(), portsOn(e, n)))
					e.must(e.sdn.Provider.DeleteNetwork(t.Context(), n.ID))
				}
				e.idle()
				forget(e)
				e.clean()
				if t.Failed() {
					t.Fatalf("killed at step %d", last)
				}
			}
		})
	}
}

// networksOf returns the networks that the engine's stand for.
func networksOf(e *env) []sdn.Network {
	e.t.Helper()
	query := sdn.NetworkQuery{Match: sdn.Match{Owner: e.sdn.Installation(), Kind: identity.KindNetwork}}
	all, err := sdn.All(e.sdn.Provider.FindNetworks(e.t.Context(), query))
	e.must(err)
	return all
}

func portsOn(e *env, n sdn.Network) (ids []sdn.ID) {
	for _, p := range e.ports() {
		if p.Network == n.ID {
			ids = append(ids, p.ID)
		}
	}
	return ids
}

// forget deletes all rows, as those of an engine that lists nothing.
func forget(e *env) {
	e.t.Helper()
	for p := range e.s.pools.Rows() {
		if err := e.s.Queued(e.t.Context(), e.s.pools.RemoveTree(e.t.Context(), p.Key)); err != nil {
			e.t.Error(err)
		}
	}
	for a := range e.s.addresses.Rows() {
		if err := e.s.Queued(e.t.Context(), e.s.addresses.RemoveTree(e.t.Context(), a.Key)); err != nil {
			e.t.Error(err)
		}
	}
}

// The database is lost: the calls of the engine find what there is, and so does the list.
func TestDatabaseLost(t *testing.T) {
	t.Parallel()
	for _, listed := range []bool{false, true} {
		t.Run(fmt.Sprint("listed=", listed), func(t *testing.T) {
			t.Parallel()
			e := newEnv(t)
			v4, v6, n := dual(e)
			got4, got6 := e.take(v4, "", mac1), e.take(v6, "", mac1)
			parked := e.take(v4, "", mac2)
			hidden, unused := e.pool("10.60.0.0/24"), e.pool("10.70.0.0/24")
			held := e.take(hidden, "", mac1)
			before := e.dump()
			e.lose()
			if listed {
				var pools []poolRow
				var ports []addressRow
				for tries := 0; tries < 10 && len(ports) < 3; tries++ { // the import is not waited for
					e.idle()
					pools, ports = slices.Collect(e.s.pools.Rows()), slices.Collect(e.s.addresses.Rows())
				}
				if len(pools) != 4 || len(ports) != 3 {
					t.Errorf("%d pools and %d ports have a row", len(pools), len(ports))
				}
				if h := slices.Collect(e.s.hidden.Rows()); len(h) != 1 || h[0].Last.Subnet.ID == "" {
					t.Errorf("hidden networks %+v", h)
				}
			}
			if again := e.take(v4, "", mac1); again != got4 {
				t.Errorf("again %s, first %s", again, got4)
			}
			if again := e.take(hidden, "", mac1); again != held {
				t.Errorf("again %s, first %s", again, held)
			}
			if now := e.dump(); now != before {
				t.Errorf("before\n%s\nafter\n%s", before, now)
			}
			data := &api.IPAMData{AddressSpace: api.LocalSpace, Pool: prefix("10.70.0.0/24"), Gateway: addr("10.70.0.1")}
			pools, err := e.s.ForRanges(t.Context(), []Range{{IPAMData: data}}, "new")
			if err != nil || pools[0].ID != unused {
				t.Errorf("pools %+v, %v", pools, err)
			}
			data.Pool = prefix("10.60.0.0/24")
			if pools, err := e.s.ForRanges(t.Context(), []Range{{IPAMData: data}}, "new"); err == nil {
				t.Errorf("pools %+v, want none: another driver's network has it", pools)
			}
			e.release(v4, got4)
			e.release(v6, got6)
			e.release(v4, parked)
			e.release(hidden, held)
			if n := len(e.ports()); n != 0 {
				t.Errorf("%d ports are left", n)
			}
			e.releasePool(hidden)
			e.releasePool(unused)
			end(e, n, v4, v6)
		})
	}
}

// The answer of a port is lost with the process, and its engine asks for the other family next.
func TestAnswerLost(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	v4, v6, n := dual(e)
	e.crashAt(2, func() { e.take(v4, "10.50.0.9", mac1) })
	row, ok := e.s.addresses.Holder(macClaim(n.ID, mac1))
	if !ok || row.Done || row.Phase != reconcile.Wanted || len(e.ports()) != 1 {
		t.Fatalf("row %+v, ports %+v", row, e.ports())
	}
	got := e.take(v6, "", mac1)
	if ports := e.ports(); len(ports) != 1 || len(ports[0].Addresses) != 2 {
		t.Errorf("ports %+v", ports)
	}
	e.release(v4, "10.50.0.9")
	e.release(v6, got)
	end(e, n, v4, v6)
}

// The database is lost, and the SDN is unavailable when the engine releases pools.
func TestReleasePoolWithoutRow(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	v4, v6, n := dual(e)
	hidden := e.pool("10.60.0.0/24")
	e.take(hidden, "", mac1)
	e.lose()
	e.sdn.down = true
	for range 2 {
		for _, id := range []sdn.ID{hidden, v4, v6, "none"} {
			e.releasePool(id)
		}
	}
	e.sdn.down = false
	_, err := e.request(v6, "", mac1, false)
	e.refuses(err, "there is no pool "+string(v6))
	e.removeNetwork(n)
	e.clean()
}
