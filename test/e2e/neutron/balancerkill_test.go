//go:build e2e

package neutron_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
	"github.com/kuryr/kuryr/test/e2e/neutronlab"
)

// killed has the process that speaks with Octavia die after each request that changes
// something, before it has the answer. Whoever comes after it ends each kind of change
// with what was asked for, once. No more requests are needed than without a death, but by
// amphora, which has forgotten parts to be written once more.
func (b *balancing) killed(backend string) {
	spec := b.spec("killed", b.members[:2]...)
	var made sdn.LoadBalancer
	for _, c := range []struct {
		what   string
		deaths int
		change func()
	}{
		{"the load balancer is made", 1, func() {}},
		{"members change", 1, func() {
			spec.Listeners[0].Pool.Members = b.spec("", b.members[1:]...).Listeners[0].Pool.Members
		}},
		{"a listener more", 3, func() {
			more := b.spec("", b.members[0]).Listeners[0]
			more.Port = 81
			spec.Listeners = append(spec.Listeners, more)
		}},
		{"a listener less", 2, func() { spec.Listeners = spec.Listeners[1:] }},
	} {
		c.change()
		const enough = 20 // a change that needs more has no end
		deaths := b.lives(backend, enough, func(ctx context.Context, p *neutron.Provider) (wait time.Duration, err error) {
			made, err = p.ApplyLoadBalancer(ctx, spec)
			return made.Status.RetryAfter, err
		})
		b.Logf("%s: %d deaths", c.what, deaths)
		if deaths != c.deaths && (backend == "ovn" || deaths < c.deaths || deaths >= enough) {
			b.Errorf("%s: there were %d deaths, want %d", c.what, deaths, c.deaths)
		}
		b.holds(spec)
		if backend == "ovn" {
			for _, l := range spec.Listeners {
				var members []*neutronlab.VM
				for _, m := range l.Pool.Members {
					members = append(members, &neutronlab.VM{Name: m.Name})
				}
				b.answers(b.runs(), "tcp", netip.AddrPortFrom(made.VIPs[0].Addr, l.Port), members...)
			}
		}
	}
	// Each who deletes asks for it, whether it is there or not.
	b.lives(backend, 1, func(ctx context.Context, p *neutron.Provider) (time.Duration, error) {
		err := p.DeleteLoadBalancer(ctx, made.ID)
		if sdn.IsPending(err) {
			return sdn.RetryAfterOf(err), nil
		}
		return 0, err
	})
	for _, nouns := range []string{"loadbalancers", "listeners", "pools"} {
		if left := b.inOctavia(nouns); len(left) > 0 {
			b.Errorf("the load balancer is gone, and these are not: %v", left)
		}
	}
	if left := b.find("ports", "device_id=lb-"+string(made.ID)); len(left) > 0 {
		b.Errorf("the load balancer is gone, and its VIP's port is not: %v", left)
	}
}

// lives has one process after the other take steps, at most so many of which die of the
// first change that they ask for, until one has nothing left to wait for. It tells how
// many died.
func (b *balancing) lives(
	backend string, most int, step func(context.Context, *neutron.Provider) (time.Duration, error),
) (deaths int) {
	b.Helper()
	for {
		p, octavia := b.open(backend)
		dead := func() bool { return false }
		if deaths < most {
			changes := []neutrontest.Call{{Method: http.MethodPost}, {Method: http.MethodPut}, {Method: http.MethodDelete}}
			for _, c := range changes {
				octavia.CutAndGo(c)
			}
			dead = func() bool {
				return slices.ContainsFunc(changes, func(c neutrontest.Call) bool { return octavia.Count(c) > 0 })
			}
		}
		for {
			wait, err := step(b.ctx, p)
			if dead() {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
			if wait == 0 {
				return deaths
			}
			b.pause(wait)
		}
		deaths++
	}
}

// inOctavia are all of a kind that Octavia has, as its administrator sees them.
func (b *balancing) inOctavia(nouns string) []object {
	b.Helper()
	answer := map[string][]object{}
	if err := b.lab.Octavia(b.ctx, http.MethodGet, nouns, nil, &answer); err != nil {
		b.Fatal(err)
	}
	return answer[nouns]
}

// holds checks that Octavia has a load balancer as it was asked for, and nothing besides.
func (b *balancing) holds(spec sdn.LoadBalancerSpec) {
	b.Helper()
	if all := b.inOctavia("loadbalancers"); len(all) != 1 || all[0].Text("name") != spec.Name {
		b.Errorf("Octavia has the load balancers %v", all)
	}
	if pools := b.inOctavia("pools"); len(pools) != len(spec.Listeners) {
		b.Errorf("%d listeners have the pools %v", len(spec.Listeners), pools)
	}
	var has, want []string
	for _, l := range b.inOctavia("listeners") {
		var answer struct{ Members []object }
		if err := b.lab.Octavia(
			b.ctx, http.MethodGet, "pools/"+l.Text("default_pool_id")+"/members", nil, &answer,
		); err != nil {
			b.Fatal(err)
		}
		for _, m := range answer.Members {
			has = append(has, fmt.Sprintf("%v: %v:%v", l["protocol_port"], m["address"], m["protocol_port"]))
		}
	}
	for _, l := range spec.Listeners {
		for _, m := range l.Pool.Members {
			want = append(want, fmt.Sprintf("%d: %v", l.Port, m.Addr))
		}
	}
	slices.Sort(has)
	slices.Sort(want)
	if !slices.Equal(has, want) {
		b.Errorf("Octavia has the members %v, want %v", has, want)
	}
}
