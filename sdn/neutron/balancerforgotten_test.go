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

// Octavia 11 forgets the parts of a load balancer that amphora is to have by one request: each is written once more, and then it is ready and can be changed.
func TestBalancerForgotten(t *testing.T) {
	o := newOctaviaDouble(amphora)
	o.forgets = true
	p, proxy, clock := onOctavia(t, o)
	spec := balancerSpec("web", "10.0.0.1:8080")
	spec.Listeners[0].Pool.Health = &sdn.HealthMonitor{Type: "TCP", Interval: 5 * time.Second, Timeout: 3 * time.Second}
	spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.UDP, Port: 53})
	readyBalancer(t, p, clock, spec)
	for _, part := range o.balancers[0].parts() {
		if part["provisioning_status"] != "ACTIVE" {
			t.Errorf("it is ready, and this is not: %v", part)
		}
	}
	want := []string{"POST loadbalancers", "PUT pools", "PUT healthmonitors", "PUT pools", "PUT pools"}
	if did := changes(proxy); !slices.Equal(did, want) {
		t.Errorf("it was made by %v, want %v", did, want)
	}
	spec.Listeners[0].Pool.Health = nil
	spec.Listeners[0].Pool.Members = nil
	if b, messages := readyBalancer(t, p, clock, spec); len(b.Listeners[0].Pool.Members) != 0 || b.Listeners[0].Pool.Health != nil {
		t.Errorf("it is %+v: %q", b, messages)
	}
}

// A part that stays PENDING whatever is written is written less and less often, and holds up no other change.
func TestBalancerForgottenForGood(t *testing.T) {
	o := newOctaviaDouble(amphora)
	p, proxy, clock := onOctavia(t, o)
	spec := balancerSpec("web", "10.0.0.1:8080")
	readyBalancer(t, p, clock, spec)
	spec.Listeners = append(spec.Listeners, sdn.Listener{Protocol: sdn.TCP, Port: 81})
	proxy.Reset()
	for end := clock.Add(time.Minute); clock.Before(end); {
		b := o.balancers[0]
		b.listeners[0]["provisioning_status"], b.fields["updated_at"] = "PENDING_UPDATE", o.now()
		now, err := p.ApplyLoadBalancer(t.Context(), spec)
		if err != nil || now.Status.Ready || now.Status.RetryAfter <= 0 {
			t.Fatalf("%+v %v", now.Status, err)
		}
		*clock = clock.Add(now.Status.RetryAfter)
	}
	if n := proxy.Count(neutrontest.Call{Method: http.MethodPut, Collection: "listeners"}); len(o.balancers[0].listeners) != 2 || n < 3 || n > 6 {
		t.Errorf("there are %d listeners, and the one was written %d times in a minute", len(o.balancers[0].listeners), n)
	}
	*clock = clock.Add(remakeBackoff.Max)
	readyBalancer(t, p, clock, spec)
	if len(p.octavia.memory.failed) != 0 {
		t.Errorf("it is ready, and %v is remembered", p.octavia.memory.failed)
	}
}

// OVN's provider loses the status of a pool whose health monitor is deleted, and Octavia refuses
// its members from then on. The pool is written again after a while, and takes them.
func TestBalancerPoolLostByOVN(t *testing.T) {
	o := newOctaviaDouble(ovn)
	o.loses = true
	p, proxy, clock := onOctavia(t, o)
	spec := balancerSpec("web", "10.0.0.1:8080")
	spec.Listeners[0].Pool.Health = tcpMonitor()
	readyBalancer(t, p, clock, spec)
	spec.Listeners[0].Pool.Health = nil
	readyBalancer(t, p, clock, spec)
	proxy.Reset()
	spec.Listeners[0].Pool.Members[0].Addr = netip.MustParseAddrPort("10.0.0.2:8080")
	began := *clock
	b, messages := readyBalancer(t, p, clock, spec)
	pool := o.balancers[0].pools[0]
	got := fmt.Sprint(members(b, 0))
	if got != "[10.0.0.2:8080/1]" || pool["provisioning_status"] != "ACTIVE" {
		t.Errorf("its members are %s, its pool is %v", got, pool)
	}
	if took := clock.Sub(began); took > 2*lostAfter || len(changes(proxy)) > 12 {
		t.Errorf("it took %v and %v", took, changes(proxy))
	}
	said := strings.Join(messages, "; ")
	for _, want := range []string{"pool %v is immutable", "(%v) stays in PENDING_UPDATE"} {
		if want = fmt.Sprintf(want, pool["id"]); !strings.Contains(said, want) {
			t.Errorf("the status does not say %q: %q", want, messages)
		}
	}
}

// Parts of OVN's load balancers are at work by themselves, and are waited for by nobody.
func TestBalancerPartsOfOVN(t *testing.T) {
	o := newOctaviaDouble(ovn)
	o.forgets = true
	p, proxy, clock := onOctavia(t, o)
	readyBalancer(t, p, clock, balancerSpec("web", "10.0.0.1:8080"))
	if did := changes(proxy); !slices.Equal(did, []string{"POST loadbalancers"}) {
		t.Errorf("it was made by %v", did)
	}
}
