package neutron

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kuryr/kuryr/sdn"
	"github.com/kuryr/kuryr/sdn/neutron/neutrontest"
)

func balancerSpec(name string, members ...string) sdn.LoadBalancerSpec {
	l := sdn.Listener{Protocol: sdn.TCP, Port: 80}
	for _, m := range members {
		l.Pool.Members = append(l.Pool.Members, sdn.Member{Addr: netip.MustParseAddrPort(m)})
	}
	return sdn.LoadBalancerSpec{Base: sdn.Base{Key: testKey(name), Name: name}, VIPs: []sdn.VIP{{Subnet: "s1"}}, Listeners: []sdn.Listener{l}}
}

// readyBalancer applies until it is ready, and tells what was done on the way.
func readyBalancer(t *testing.T, p *Provider, clock *time.Time, spec sdn.LoadBalancerSpec) (b sdn.LoadBalancer, messages []string) {
	t.Helper()
	for range 60 {
		var err error
		if b, err = p.ApplyLoadBalancer(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if b.Status.Ready {
			return b, messages
		}
		if b.Status.RetryAfter <= 0 || b.Status.Message == "" {
			t.Fatalf("not ready, and it is not said why and for how long: %+v", b.Status)
		}
		messages = append(messages, b.Status.Message)
		*clock = clock.Add(b.Status.RetryAfter)
	}
	t.Fatalf("it is never ready: %q", messages)
	return b, nil
}

func tcpMonitor() *sdn.HealthMonitor {
	return &sdn.HealthMonitor{Type: "TCP", Interval: 5 * time.Second, Timeout: 3 * time.Second}
}

func members(b sdn.LoadBalancer, listener int) (all []string) {
	for _, m := range b.Listeners[listener].Pool.Members {
		all = append(all, fmt.Sprintf("%v/%d", m.Addr, m.Weight))
	}
	return all
}

// changes are the requests that were no reads.
func changes(proxy *neutrontest.Proxy) (all []string) {
	for _, c := range proxy.Calls() {
		if c.Method != http.MethodGet {
			all = append(all, c.String())
		}
	}
	return all
}

func TestBalancerIsMadeByOneRequest(t *testing.T) {
	o := newOctaviaDouble(amphora)
	p, proxy, clock := onOctavia(t, o)
	spec := balancerSpec("web", "10.0.0.1:8080", "10.0.0.2:8080")
	spec.Tags = []string{"b", "a"}
	spec.Listeners[0].Pool.Health = &sdn.HealthMonitor{Type: "TCP", Interval: 5 * time.Second, Timeout: 2 * time.Second}
	spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.UDP, Port: 80, Pool: sdn.Pool{Affinity: sdn.Affinity{ClientIP: true, Timeout: time.Hour}}})
	b, _ := readyBalancer(t, p, clock, spec)
	if got := changes(proxy); len(got) != 1 || got[0] != "POST loadbalancers" {
		t.Errorf("it was made by %v", got)
	}
	body := o.bodies[0]
	if body["description"] != spec.Key.String() || fmt.Sprint(body["tags"]) != "[a b]" || body["provider"] != amphora {
		t.Errorf("the request has %v", body)
	}
	if len(b.Listeners) != 2 || fmt.Sprint(members(b, 0)) != "[10.0.0.1:8080/1 10.0.0.2:8080/1]" || b.Listeners[0].Pool.Health == nil || !b.Listeners[1].Pool.Affinity.ClientIP ||
		b.Listeners[1].Pool.Affinity.Timeout != time.Hour || b.VIPs[0].Port == "" || b.Key != spec.Key || b.Foreign {
		t.Errorf("it is %+v", b)
	}
}

func TestBalancerThatHasNotChangedCostsOneRequest(t *testing.T) {
	p, proxy, clock := onOctavia(t, newOctaviaDouble(amphora))
	spec := balancerSpec("web", "10.0.0.1:8080")
	readyBalancer(t, p, clock, spec)
	*clock = clock.Add(sureAfter)
	readyBalancer(t, p, clock, spec) // what was read in the second of the change is read once more
	proxy.Reset()
	for range 3 {
		readyBalancer(t, p, clock, spec)
	}
	if got := fmt.Sprint(proxy.Calls()); got != "[GET loadbalancers GET loadbalancers GET loadbalancers]" {
		t.Errorf("nothing has changed, and there were %s", got)
	}
}

func TestBalancerMembersChangeInOneRequest(t *testing.T) {
	p, proxy, clock := onOctavia(t, newOctaviaDouble(amphora))
	spec := balancerSpec("web", "10.0.0.1:8080", "10.0.0.2:8080")
	other := sdn.Listener{Protocol: sdn.TCP, Port: 81, Pool: sdn.Pool{Members: spec.Listeners[0].Pool.Members}}
	spec.Listeners = append(spec.Listeners, other)
	before, _ := readyBalancer(t, p, clock, spec)
	*clock = clock.Add(sureAfter)
	readyBalancer(t, p, clock, spec)
	proxy.Reset()
	spec.Listeners[0].Pool.Members = []sdn.Member{{Addr: netip.MustParseAddrPort("10.0.0.2:8080"), Weight: 5}, {Addr: netip.MustParseAddrPort("10.0.0.3:8080"), Drain: true}}
	b, _ := readyBalancer(t, p, clock, spec)
	if got := changes(proxy); len(got) != 1 || got[0] != "PUT pools" {
		t.Errorf("members were changed by %v", got)
	}
	if got := fmt.Sprint(members(b, 0)); got != "[10.0.0.2:8080/5 10.0.0.3:8080/0]" || b.Listeners[0].Pool.Members[0].ID != before.Listeners[0].Pool.Members[1].ID {
		t.Errorf("they are %s", got)
	}
	if got := fmt.Sprint(members(b, 1)); got != "[10.0.0.1:8080/1 10.0.0.2:8080/1]" {
		t.Errorf("the other pool's are %s", got)
	}
}

// All that can be changed is changed in place, one request a step, in an order that Octavia takes.
func TestBalancerChangesInPlace(t *testing.T) {
	p, _, clock := onOctavia(t, newOctaviaDouble(amphora))
	spec := balancerSpec("web", "10.0.0.1:8080")
	spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.TCP, Port: 81, Pool: spec.Listeners[0].Pool})
	before, _ := readyBalancer(t, p, clock, spec)
	spec.Name, spec.Tags = "renamed", []string{"t"}
	l := &spec.Listeners[0]
	l.Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	l.ConnectionLimit, l.ClientTimeout, l.MemberTimeout, l.ConnectTimeout, l.InspectTimeout = 100, time.Minute, time.Minute, time.Second, time.Second
	l.Pool.Algorithm, l.Pool.Affinity.ClientIP = sdn.LeastConns, true
	l.Pool.Health = &sdn.HealthMonitor{Type: "TCP", Interval: 5 * time.Second, Timeout: 2 * time.Second, Rise: 2, Fall: 4}
	spec.Listeners[1] = sdn.Listener{Protocol: sdn.UDP, Port: 80, Pool: sdn.Pool{Members: l.Pool.Members}}
	b, steps := readyBalancer(t, p, clock, spec)
	if b.ID != before.ID || b.Listeners[0].ID != before.Listeners[0].ID || b.Listeners[0].Pool.ID != before.Listeners[0].Pool.ID {
		t.Error("something was made anew that could be changed")
	}
	got := b.Listeners[0]
	if b.Name != "renamed" || fmt.Sprint(b.Tags) != "[t]" || len(got.Sources) != 1 || got.ConnectionLimit != 100 || got.ClientTimeout != time.Minute || got.InspectTimeout != time.Second ||
		got.Pool.Algorithm != sdn.LeastConns || !got.Pool.Affinity.ClientIP || got.Pool.Health == nil || got.Pool.Health.Fall != 4 {
		t.Errorf("it is %+v after %q", b, steps)
	}
	if len(b.Listeners) != 2 || b.Listeners[1].Protocol != sdn.UDP || len(b.Pools) != 0 {
		t.Errorf("its listeners are %+v, and %d pools are left over", b.Listeners, len(b.Pools))
	}
	// And back, and what cannot be changed is made anew below it.
	l.Sources, l.ConnectionLimit, l.Pool.Health, l.Pool.Affinity.ClientIP, l.ProxyProtocol = nil, 0, nil, false, true
	b, _ = readyBalancer(t, p, clock, spec)
	if got := b.Listeners[0]; len(got.Sources) != 0 || got.ConnectionLimit != 0 || got.Pool.Health != nil || got.Pool.Affinity.ClientIP || !got.ProxyProtocol || len(got.Pool.Members) != 1 {
		t.Errorf("back it is %+v", got)
	}
	l.ProxyProtocol, l.ForwardedFor = false, true
	if b, _ = readyBalancer(t, p, clock, spec); !b.Listeners[0].ForwardedFor || len(b.Listeners[0].Pool.Members) != 1 {
		t.Errorf("with HTTP it is %+v", b.Listeners[0])
	}
}

// Each kind of request loses its answer once; whatever was done, there is one load balancer in the end, as asked for.
func TestBalancerLostAnswers(t *testing.T) {
	for _, lost := range []neutrontest.Call{{Method: "POST", Collection: "loadbalancers"}, {Method: "POST", Collection: "listeners"}, {Method: "POST", Collection: "pools"}, {Method: "PUT"}, {Method: "DELETE"}} {
		t.Run(lost.String(), func(t *testing.T) {
			o := newOctaviaDouble(amphora)
			p, proxy, clock := onOctavia(t, o)
			apply := func(spec sdn.LoadBalancerSpec) sdn.LoadBalancer {
				for range 5 {
					if b, err := p.ApplyLoadBalancer(t.Context(), spec); err != nil && !sdn.IsUnavailable(err) {
						t.Fatal(err)
					} else if err == nil && b.Status.Ready {
						return b
					}
				}
				b, _ := readyBalancer(t, p, clock, spec)
				return b
			}
			spec := balancerSpec("web", "10.0.0.1:8080")
			proxy.Cut(lost, 1)
			apply(spec)
			spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.UDP, Port: 53, Pool: spec.Listeners[0].Pool})
			apply(spec)
			spec.Listeners = spec.Listeners[1:]
			spec.Listeners[0].Pool.Members = balancerSpec("", "10.0.0.9:1").Listeners[0].Pool.Members
			b := apply(spec)
			if len(o.balancers) != 1 || len(b.Listeners) != 1 || fmt.Sprint(members(b, 0)) != "[10.0.0.9:1/1]" || len(o.balancers[0].pools) != 1 {
				t.Errorf("there are %d load balancers, the first with %+v", len(o.balancers), b)
			}
		})
	}
}

// Killed after any of its requests, the next process finishes what was begun.
func TestBalancerKilledAnywhere(t *testing.T) {
	for kill := 1; ; kill++ {
		o := newOctaviaDouble(amphora)
		p, proxy, clock := onOctavia(t, o)
		spec := balancerSpec("web", "10.0.0.1:8080")
		steps, killed := 0, false
		step := func(spec sdn.LoadBalancerSpec) bool {
			if steps++; steps == kill {
				killed = true
				proxy.CutAndGo(neutrontest.Call{})
				_, _ = p.ApplyLoadBalancer(t.Context(), spec)
				p, proxy, clock = onOctavia(t, o)
			}
			b, err := p.ApplyLoadBalancer(t.Context(), spec)
			if err != nil {
				t.Fatal(err)
			}
			*clock = clock.Add(time.Second)
			return b.Status.Ready
		}
		for !step(spec) {
		}
		spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.TCP, Port: 443, Pool: spec.Listeners[0].Pool})
		for !step(spec) {
		}
		if len(o.balancers) != 1 || len(o.balancers[0].listeners) != 2 || len(o.balancers[0].pools) != 2 {
			t.Fatalf("killed at step %d there are %d load balancers", kill, len(o.balancers))
		}
		if !killed {
			return
		}
	}
}

// Another process changes the tree while this one is about to: Octavia refuses, and that is no error.
func TestBalancerImmutableIsNoError(t *testing.T) {
	o := newOctaviaDouble(amphora)
	p, proxy, clock := onOctavia(t, o)
	spec := balancerSpec("web", "10.0.0.1:8080")
	readyBalancer(t, p, clock, spec)
	proxy.Say(neutrontest.Call{Method: "PUT"}, 2, neutrontest.Answer{Status: http.StatusConflict, Body: `{"faultcode": "Client", "faultstring": "Load Balancer 1 is immutable and cannot be updated."}`})
	spec.Listeners[0].Pool.Members = nil
	if b, _ := readyBalancer(t, p, clock, spec); len(b.Listeners[0].Pool.Members) != 0 {
		t.Errorf("its members are %v", members(b, 0))
	}
}

// One that is stuck says so, with longer and longer waits, and keeps no other from working.
func TestBalancerStuck(t *testing.T) {
	o := newOctaviaDouble(amphora)
	p, _, clock := onOctavia(t, o)
	stuck, other := balancerSpec("stuck", "10.0.0.1:8080"), balancerSpec("other", "10.0.0.1:8080")
	made, _ := readyBalancer(t, p, clock, stuck)
	o.balancers[0].set("PENDING_UPDATE", o.now())
	o.balancers[0].looks = 1000
	var last time.Duration
	for range 8 {
		b, err := p.ApplyLoadBalancer(t.Context(), stuck)
		if err != nil || b.Status.Ready || b.Status.RetryAfter < last || b.ID != made.ID {
			t.Fatalf("it is %+v %v", b.Status, err)
		}
		last = b.Status.RetryAfter
		*clock = clock.Add(time.Minute)
	}
	*clock = clock.Add(stuckAfter)
	if b, err := p.ApplyLoadBalancer(t.Context(), stuck); err != nil || last != lastLook || !strings.Contains(b.Status.Message, "operator") {
		t.Errorf("after %v it is %+v %v", stuckAfter, b.Status, err)
	}
	if err := p.DeleteLoadBalancer(t.Context(), made.ID); !sdn.IsPending(err) || sdn.RetryAfterOf(err) != lastLook {
		t.Errorf("deleting it: %v", err)
	}
	readyBalancer(t, p, clock, other)
}

// One in ERROR is made anew, and less and less often.
func TestBalancerInErrorIsMadeAnew(t *testing.T) {
	o := newOctaviaDouble(amphora)
	o.fails = 3
	p, _, clock := onOctavia(t, o)
	b, messages := readyBalancer(t, p, clock, balancerSpec("web", "10.0.0.1:8080"))
	anew := slices.DeleteFunc(slices.Clone(messages), func(m string) bool { return !strings.Contains(m, "it is being made anew") })
	if len(anew) != 3 || len(o.balancers) != 1 || b.ID == "" {
		t.Errorf("it was made anew %d times, and there are %d: %q", len(anew), len(o.balancers), messages)
	}
	if wait, times := p.octavia.memory.mayAnew(testKey("web").String(), ""); wait != 0 || times != 0 {
		t.Errorf("it is ready, and waits %v for a fourth time", wait)
	}
	o.balancers[0].listeners[0]["provisioning_status"] = "ERROR"
	o.balancers[0].set("ACTIVE", o.now())
	if again, messages := readyBalancer(t, p, clock, balancerSpec("web", "10.0.0.1:8080")); again.ID != b.ID || again.Listeners[0].ID == b.Listeners[0].ID {
		t.Errorf("a listener in ERROR: %q", messages)
	}
}

// Of one that is deleted while it is made anew nothing is remembered.
func TestBalancerInErrorIsDeleted(t *testing.T) {
	o := newOctaviaDouble(amphora)
	o.fails = 1000
	p, _, clock := onOctavia(t, o)
	spec := balancerSpec("web", "10.0.0.1:8080")
	var b sdn.LoadBalancer
	for range 60 {
		var err error
		if b, err = p.ApplyLoadBalancer(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.Status.Message, "it is made anew again later") {
			break
		}
		*clock = clock.Add(b.Status.RetryAfter)
	}
	if len(p.octavia.memory.failed) != 1 {
		t.Fatalf("it is %+v, and %v is remembered", b.Status, p.octavia.memory.failed)
	}
	o.pend = 0
	if err := p.DeleteLoadBalancer(t.Context(), sdn.ID(o.balancers[0].fields["id"].(string))); err != nil {
		t.Fatal(err)
	}
	if len(o.balancers) != 0 || len(p.octavia.memory.failed) != 0 {
		t.Errorf("it is deleted: there are %d, and %v is remembered", len(o.balancers), p.octavia.memory.failed)
	}
}

// A member that Octavia never takes is written less and less often, and holds up no other change.
func TestBalancerMembersInError(t *testing.T) {
	o := newOctaviaDouble(amphora)
	p, proxy, clock := onOctavia(t, o)
	spec := balancerSpec("web", "10.0.0.1:8080")
	readyBalancer(t, p, clock, spec)
	spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.TCP, Port: 81, Pool: spec.Listeners[0].Pool})
	proxy.Reset()
	for end := clock.Add(time.Minute); clock.Before(end); {
		b := o.balancers[0]
		pool := b.pools[0]
		b.members[pool["id"].(string)][0]["provisioning_status"] = stateError
		pool["updated_at"] = o.now()
		b.fields["updated_at"] = pool["updated_at"]
		now, err := p.ApplyLoadBalancer(t.Context(), spec)
		if err != nil || now.Status.Ready || now.Status.RetryAfter <= 0 {
			t.Fatalf("%+v %v", now.Status, err)
		}
		*clock = clock.Add(now.Status.RetryAfter)
	}
	written := slices.DeleteFunc(changes(proxy), func(c string) bool { return c != "PUT pools" })
	if len(o.balancers[0].listeners) != 2 || len(written) < 3 || len(written) > 6 {
		t.Errorf("there are %d listeners, and members were written %d times in a minute", len(o.balancers[0].listeners), len(written))
	}
	*clock = clock.Add(remakeBackoff.Max)
	readyBalancer(t, p, clock, spec)
}

func TestBalancerDeletedBehindOurBack(t *testing.T) {
	o := newOctaviaDouble(amphora)
	p, _, clock := onOctavia(t, o)
	spec := balancerSpec("web", "10.0.0.1:8080")
	before, _ := readyBalancer(t, p, clock, spec)
	o.balancers = nil
	if b, _ := readyBalancer(t, p, clock, spec); b.ID == before.ID {
		t.Error("it is the one that is gone")
	}
	o.balancers[0].members[o.balancers[0].pools[0]["id"].(string)] = nil
	o.balancers[0].set("ACTIVE", o.now())
	if b, _ := readyBalancer(t, p, clock, spec); len(b.Listeners[0].Pool.Members) != 1 {
		t.Error("its members were taken, and are not back")
	}
}

// Made twice by two processes at once, the younger goes.
func TestBalancerTwins(t *testing.T) {
	o := newOctaviaDouble(amphora)
	p, _, clock := onOctavia(t, o)
	spec := balancerSpec("web", "10.0.0.1:8080")
	first, _ := readyBalancer(t, p, clock, spec)
	d := newOctaviaDouble(amphora)
	q, _, clock2 := onOctavia(t, d)
	readyBalancer(t, q, clock2, spec)
	twin := d.balancers[0]
	twin.fields["id"], twin.fields["created_at"] = "twin", "2026-11-23T09:00:00"
	o.balancers = append(o.balancers, twin)
	if b, _ := readyBalancer(t, p, clock, spec); b.ID != first.ID || len(o.balancers) != 1 {
		t.Errorf("there are %d, and %s stays", len(o.balancers), b.ID)
	}
}

func TestBalancerRefusals(t *testing.T) {
	for _, c := range []struct {
		name   string
		with   func(*octaviaDouble)
		change func(*sdn.LoadBalancerSpec)
		is     func(error) bool
		field  string
	}{
		{"quota", func(o *octaviaDouble) { o.quota = 0 }, nil, func(err error) bool { return sdn.ReasonOf(err) == sdn.NoQuota }, ""},
		{"VIP taken, amphora", func(o *octaviaDouble) { o.taken["10.0.0.9"] = true }, func(s *sdn.LoadBalancerSpec) { s.VIPs[0].Addr = netip.MustParseAddr("10.0.0.9") },
			func(err error) bool { return sdn.ReasonOf(err) == sdn.AddressInUse }, "vips[0].addr"},
		{"VIP taken, OVN", func(o *octaviaDouble) { o.taken["10.0.0.9"], o.providers = true, []string{ovn} }, func(s *sdn.LoadBalancerSpec) { s.VIPs[0].Addr = netip.MustParseAddr("10.0.0.9") },
			func(err error) bool { return sdn.ReasonOf(err) == sdn.AddressInUse }, "vips[0].addr"},
		{"no such provider", nil, func(s *sdn.LoadBalancerSpec) { s.Backend = "f5" }, sdn.IsUnsupported, "backend"},
		{"sources before 2.12", func(o *octaviaDouble) { o.versions = o.versions[:12] }, func(s *sdn.LoadBalancerSpec) {
			s.Listeners[0].Sources = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}, sdn.IsUnsupported, "listeners[0].sources"},
		{"SCTP before 2.23", func(o *octaviaDouble) { o.versions = o.versions[:23] }, func(s *sdn.LoadBalancerSpec) { s.Listeners[0].Protocol = sdn.SCTP }, sdn.IsUnsupported, "listeners[0].protocol"},
		{"two protocols before 2.13", func(o *octaviaDouble) { o.versions = o.versions[:13] },
			func(s *sdn.LoadBalancerSpec) {
				s.Listeners = append(s.Listeners, sdn.Listener{Protocol: sdn.UDP, Port: 80})
			}, sdn.IsUnsupported, "listeners[1].protocol"},
		{"two families before 2.26", func(o *octaviaDouble) { o.versions = o.versions[:26] }, func(s *sdn.LoadBalancerSpec) { s.VIPs = append(s.VIPs, sdn.VIP{Subnet: "s6"}) }, sdn.IsUnsupported, "vips"},
		{"groups before 2.29", nil, func(s *sdn.LoadBalancerSpec) { s.Groups = []sdn.ID{"g"} }, sdn.IsUnsupported, "groups"},
		{"affinity with OVN", func(o *octaviaDouble) { o.providers = []string{ovn} }, func(s *sdn.LoadBalancerSpec) { s.Listeners[0].Pool.Affinity.ClientIP = true }, sdn.IsUnsupported, "listeners[0].pool.affinity"},
		{"a timeout of TCP's affinity", nil, func(s *sdn.LoadBalancerSpec) {
			s.Listeners[0].Pool.Affinity = sdn.Affinity{ClientIP: true, Timeout: time.Hour}
		}, sdn.IsUnsupported, "listeners[0].pool.affinity.timeout"},
		{"drain with OVN", func(o *octaviaDouble) { o.providers = []string{ovn} }, func(s *sdn.LoadBalancerSpec) { s.Listeners[0].Pool.Members[0].Drain = true }, sdn.IsUnsupported, "listeners[0].pool.members[0].drain"},
		{"no subnet", nil, func(s *sdn.LoadBalancerSpec) { s.VIPs = nil }, sdn.IsInvalid, "vips"},
		{"one port twice", nil, func(s *sdn.LoadBalancerSpec) { s.Listeners = append(s.Listeners, s.Listeners[0]) }, sdn.IsInvalid, "listeners[1].port"},
		{"shared without id", nil, func(s *sdn.LoadBalancerSpec) { s.Shared = true }, sdn.IsInvalid, "shared"},
		{"not Octavia 2", func(o *octaviaDouble) { o.versions = []string{"v1"} }, nil, sdn.IsUnsupported, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOctaviaDouble(amphora)
			if c.with != nil {
				c.with(o)
			}
			p, _, _ := onOctavia(t, o)
			spec := balancerSpec("web", "10.0.0.1:8080")
			if c.change != nil {
				c.change(&spec)
			}
			b, err := p.ApplyLoadBalancer(t.Context(), spec)
			if err == nil || !c.is(err) || sdn.FieldOf(err) != c.field {
				t.Errorf("it is %v (field %q), load balancer %s", err, sdn.FieldOf(err), b.ID)
			}
			if len(o.balancers) != 0 {
				t.Error("it is there all the same")
			}
		})
	}
}

func TestBalancerImmutableFields(t *testing.T) {
	p, _, clock := onOctavia(t, newOctaviaDouble(amphora))
	readyBalancer(t, p, clock, balancerSpec("web", "10.0.0.1:8080"))
	for field, change := range map[string]func(*sdn.LoadBalancerSpec){
		"vips[0].subnet": func(s *sdn.LoadBalancerSpec) { s.VIPs[0].Subnet = "s2" },
		"vips[0].addr":   func(s *sdn.LoadBalancerSpec) { s.VIPs[0].Addr = netip.MustParseAddr("10.0.9.200") },
		"vips":           func(s *sdn.LoadBalancerSpec) { s.VIPs = append(s.VIPs, sdn.VIP{Subnet: "s6"}) },
		"backend":        func(s *sdn.LoadBalancerSpec) { s.Backend = ovn },
		"flavor":         func(s *sdn.LoadBalancerSpec) { s.Flavor = "large" },
		"zone":           func(s *sdn.LoadBalancerSpec) { s.Zone = "z1" },
	} {
		spec := balancerSpec("web", "10.0.0.1:8080")
		change(&spec)
		if _, err := p.ApplyLoadBalancer(t.Context(), spec); sdn.ReasonOf(err) != sdn.Immutable || sdn.FieldOf(err) != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// A load balancer that is shared keeps what is others', and is nobody's to rename.
func TestBalancerShared(t *testing.T) {
	o := newOctaviaDouble(amphora)
	p, _, clock := onOctavia(t, o)
	owner, _ := readyBalancer(t, p, clock, balancerSpec("owner", "10.0.0.1:8080"))
	guest := balancerSpec("guest", "10.0.0.2:8080")
	guest.ID, guest.Shared, guest.VIPs = owner.ID, true, nil
	if _, err := p.ApplyLoadBalancer(t.Context(), guest); sdn.ReasonOf(err) != sdn.Exists || sdn.FieldOf(err) != "listeners" {
		t.Errorf("a port that its owner has: %v", err)
	}
	guest.Listeners[0].Port = 81
	if b, _ := readyBalancer(t, p, clock, guest); len(b.Listeners) != 2 || b.Name != "owner" || b.Listeners[1].Key != guest.Key {
		t.Errorf("shared it is %+v", b)
	}
	if b, _ := readyBalancer(t, p, clock, balancerSpec("owner", "10.0.0.3:8080")); len(b.Listeners) != 2 {
		t.Error("its owner has removed what is the guest's")
	}
	guest.Listeners = nil
	if b, _ := readyBalancer(t, p, clock, guest); len(b.Listeners) != 1 || b.Listeners[0].Port != 80 || len(b.Pools) != 0 {
		t.Errorf("the guest has left, and there are %+v", b.Listeners)
	}
}

func TestBalancerDelete(t *testing.T) {
	o := newOctaviaDouble(amphora)
	p, _, clock := onOctavia(t, o)
	b, _ := readyBalancer(t, p, clock, balancerSpec("web", "10.0.0.1:8080"))
	if err := p.DeleteLoadBalancer(t.Context(), b.ID); !sdn.IsPending(err) || sdn.RetryAfterOf(err) <= 0 {
		t.Errorf("Octavia deletes by and by: %v", err)
	}
	if again, err := p.ApplyLoadBalancer(t.Context(), balancerSpec("web", "10.0.0.1:8080")); err != nil || again.Status.Ready {
		t.Errorf("wanted again while it is being deleted: %+v %v", again.Status, err)
	}
	for range 3 {
		_ = p.DeleteLoadBalancer(t.Context(), b.ID)
		_, _ = p.LoadBalancer(t.Context(), b.ID)
	}
	if err := p.DeleteLoadBalancer(t.Context(), b.ID); err != nil {
		t.Errorf("deleted, and then: %v", err)
	}
	if _, err := p.LoadBalancer(t.Context(), b.ID); !sdn.IsNotFound(err) {
		t.Errorf("it is gone: %v", err)
	}
}

func TestBalancerFind(t *testing.T) {
	p, _, clock := onOctavia(t, newOctaviaDouble(amphora))
	a, _ := readyBalancer(t, p, clock, balancerSpec("a", "10.0.0.1:8080"))
	b, _ := readyBalancer(t, p, clock, balancerSpec("b", "10.0.0.1:8080"))
	for _, c := range []struct {
		q    sdn.LoadBalancerQuery
		want []sdn.ID
	}{
		{sdn.LoadBalancerQuery{}, []sdn.ID{a.ID, b.ID}},
		{sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{testKey("b")}}}, []sdn.ID{b.ID}},
		{sdn.LoadBalancerQuery{Match: sdn.Match{Keys: []sdn.Key{testKey("b"), testKey("a")}}}, []sdn.ID{a.ID, b.ID}},
		{sdn.LoadBalancerQuery{Addresses: []netip.Addr{a.VIPs[0].Addr}}, []sdn.ID{a.ID}},
		{sdn.LoadBalancerQuery{Parts: []sdn.ID{b.Listeners[0].Pool.Members[0].ID}}, []sdn.ID{b.ID}},
		{sdn.LoadBalancerQuery{Match: sdn.Match{Owner: "other"}}, nil},
	} {
		found, err := sdn.All(p.FindLoadBalancers(t.Context(), c.q))
		var ids []sdn.ID
		for _, f := range found {
			ids = append(ids, f.ID)
		}
		if err != nil || !slices.Equal(ids, c.want) {
			t.Errorf("%+v finds %v, not %v: %v", c.q, ids, c.want, err)
		}
	}
}

// Who asks for many by what they are alone does not have each one's listeners and pools be read: they are as many requests as the list has, whatever it has.
func TestBalancerOutlines(t *testing.T) {
	o := newOctaviaDouble(amphora)
	p, _, clock := onOctavia(t, o)
	var want []sdn.ID
	for _, name := range []string{"a", "b", "c"} {
		b, _ := readyBalancer(t, p, clock, balancerSpec(name, "10.0.0.1:8080"))
		want = append(want, b.ID)
	}
	next, proxy, _ := onOctavia(t, o) // another process, which remembers none
	for outline, below := range map[bool]bool{true: false, false: true} {
		before := len(proxy.Calls())
		found, err := sdn.All(next.FindLoadBalancers(t.Context(), sdn.LoadBalancerQuery{Match: sdn.Match{Owner: testKey("a").Owner}, Outline: outline}))
		var ids []sdn.ID
		for _, b := range found {
			ids = append(ids, b.ID)
			if !b.VIPs[0].Addr.IsValid() || b.VIPs[0].Port == "" || b.Foreign {
				t.Errorf("outline %v: %+v", outline, b)
			}
		}
		if err != nil || !slices.Equal(ids, want) {
			t.Errorf("outline %v: %v, not %v: %v", outline, ids, want, err)
		}
		read := slices.ContainsFunc(proxy.Calls()[before:], func(c neutrontest.Call) bool { return strings.Contains(c.String(), "listeners") })
		if read != below {
			t.Errorf("outline %v: asked %v", outline, proxy.Calls()[before:])
		}
	}
}

// Endpoints that change faster than Octavia works are no queue: when it has time, what is wanted then is applied.
func TestBalancerChurn(t *testing.T) {
	o := newOctaviaDouble(amphora)
	o.pend = 5
	p, proxy, clock := onOctavia(t, o)
	spec := balancerSpec("web", "10.0.0.1:8080")
	readyBalancer(t, p, clock, spec)
	proxy.Reset()
	for n := range 60 {
		spec.Listeners[0].Pool.Members = balancerSpec("", fmt.Sprintf("10.0.1.%d:8080", n+1)).Listeners[0].Pool.Members
		if _, err := p.ApplyLoadBalancer(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
	}
	b, _ := readyBalancer(t, p, clock, spec)
	if n := len(changes(proxy)); fmt.Sprint(members(b, 0)) != "[10.0.1.60:8080/1]" || n > 60/5 {
		t.Errorf("its members are %v after %d changes", members(b, 0), n)
	}
}

// Health monitors of OVN's provider, which forgets those of a load balancer's first request, are made by requests of their own.
func TestBalancerMonitorsWithOVN(t *testing.T) {
	o := newOctaviaDouble(ovn)
	p, proxy, clock := onOctavia(t, o)
	spec := balancerSpec("web", "10.0.0.1:8080")
	spec.Listeners[0].Pool.Health = &sdn.HealthMonitor{Type: "TCP", Interval: 5 * time.Second, Timeout: 2 * time.Second}
	b, _ := readyBalancer(t, p, clock, spec)
	if got := fmt.Sprint(changes(proxy)); got != "[POST loadbalancers POST healthmonitors]" || b.Listeners[0].Pool.Health == nil || b.Listeners[0].Pool.Members[0].Subnet != "s1" {
		t.Errorf("%s made %+v", got, b.Listeners)
	}
}

// OVN's provider holds a health monitor in ERROR while it cannot check a member. The load
// balancer says which one that is, takes other changes, and is ready after a later repair.
func TestBalancerMonitorInErrorWithOVN(t *testing.T) {
	o := newOctaviaDouble(ovn)
	o.unchecked = true
	p, proxy, clock := onOctavia(t, o)
	spec := balancerSpec("web", "10.0.0.1:8080")
	spec.Listeners[0].Pool.Health = tcpMonitor()
	apply := func() sdn.LoadBalancer {
		t.Helper()
		b, err := p.ApplyLoadBalancer(t.Context(), spec)
		if err != nil || b.Status.Ready || b.Status.RetryAfter <= 0 || b.Status.RetryAfter > remakeBackoff.Max {
			t.Fatalf("a health monitor in ERROR: %+v %v", b.Status, err)
		}
		*clock = clock.Add(b.Status.RetryAfter)
		return b
	}
	said := ""
	for end := clock.Add(10 * time.Minute); clock.Before(end); {
		b := apply()
		if b.Status.RetryAfter <= lastLook {
			continue
		}
		said = b.Status.Message
		want := "health monitor " + string(b.Listeners[0].Pool.Health.ID) + " is in ERROR"
		if !strings.Contains(said, want) {
			t.Fatalf("the status does not say %q: %q", want, said)
		}
	}
	made := neutrontest.Call{Method: http.MethodPost, Collection: "healthmonitors"}
	if n := proxy.Count(made); said == "" || n < 4 || n > 10 { // the first, and nine repairs at the shortest waits
		t.Errorf("in ten minutes %v were made, and the status said %q", changes(proxy), said)
	}
	proxy.Reset()
	spec.Listeners[0].Pool.Members[0].Addr = netip.MustParseAddrPort("10.0.0.2:8080")
	for range 4 {
		apply()
	}
	if got := changes(proxy); len(got) == 0 || got[0] != "PUT pools" {
		t.Errorf("members changed, and Octavia was asked %v", got)
	}
	o.unchecked = false
	if b, _ := readyBalancer(t, p, clock, spec); b.Listeners[0].Pool.Health == nil {
		t.Error("it is ready without a health monitor")
	}
}
